"""Updates the policy by A2C (Mnih et al. 2016) or PPO (Schulman et al. 2017); the third update rule is in `trpo`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from a2c.acting import ActingPolicy
from a2c.config import PolicyConfig
from a2c.crew import ALONE, Crew, share
from a2c.model import Policy
from a2c.runner import Rollout
from drlhp.networks.device import CPU, Recorded, to_device
from drlhp.networks.optimizers import Uncompiled, UncompiledAdam

VALUE_COEF = 0.5
MAX_GRAD_NORM = 0.5
PPO_CLIP = 0.2
LOSSES = ("policy_loss", "value_loss", "entropy")
Rows = slice | np.ndarray | Tensor  # of a rollout laid flat


class RMSProp(Uncompiled, Optimizer):
    """RMSProp with epsilon inside the root, as TensorFlow has it and the paper's A2C settings expect.

    PyTorch adds epsilon outside, which makes the first steps on rarely active weights far larger. Computed by PyTorch's
    fused Adagrad, which goes through memory once: its sum of squared gradients is made to decay. For an average v of
    squares, v + epsilon is (1 - alpha) times that sum.
    """

    def __init__(self, params: list[nn.Parameter], lr: float, alpha: float = 0.99, eps: float = 1e-5) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps})
        for param in params:
            at_first = torch.full_like(param, (1 + eps) / (1 - alpha))  # an average of 1
            self.state[param] = {"sum": at_first, "step": torch.zeros((), device=param.device)}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            sums, steps = ([self.state[p][name] for p in params] for name in ("sum", "step"))
            share = 1 - group["alpha"]
            least = torch.full((), group["eps"] / share, device=params[0].device)  # without gradients it comes to that
            torch._foreach_lerp_(sums, [least] * len(sums), share)
            torch._fused_adagrad_(
                params,
                [p.grad for p in params],
                sums,
                steps,
                lr=group["lr"] / math.sqrt(share),
                lr_decay=0.0,
                weight_decay=0.0,
                eps=0.0,
                maximize=False,
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            for param in group["params"]:
                if "square_avg" in (state := self.state[param]):  # of a checkpoint older than the fused update
                    state["sum"] = (state.pop("square_avg") + group["eps"]) / (1 - group["alpha"])
                # A checkpoint holds it in main memory, and PyTorch leaves an entry of this name there.
                state["step"] = torch.as_tensor(state.get("step", 0.0), device=param.device)


@dataclass(frozen=True)
class Batch:
    """A rollout laid flat: T * N decisions, those of reset steps left out of every mean by `valid`."""

    observations: Tensor  # (B, ...)
    actions: Tensor  # (B,) or (B, A)
    log_probs: Tensor  # (B,) at the time of acting
    advantages: Tensor  # (B,)
    returns: Tensor  # (B,)
    valid: Tensor  # (B,) bool
    memory: Tensor | None = None  # (B, M) of a recurrent policy before each decision

    def __len__(self) -> int:
        return len(self.valid)

    @classmethod
    def of(cls, rollout: Rollout, observations: Tensor | None = None, device: torch.device = CPU) -> Batch:
        """Returns a rollout's arrays as tensors, without a copy on a CPU.

        Args:
            observations: those of the rollout, if they are on the device already.
        """
        columns = (rollout.log_probs, rollout.advantages, rollout.returns, rollout.valid)
        flat = (rollout.flat_actions(), *(column.reshape(-1) for column in columns))
        moved = [to_device(column, device) for column in flat]
        if observations is None:
            observations = to_device(rollout.flat_observations(), device)
        if rollout.memory.shape[-1]:
            moved.append(to_device(rollout.memory[:-1].reshape(rollout.n_decisions, -1), device))
        return cls(observations, *moved)

    def columns(self) -> list[Tensor]:
        """Returns the columns; without the memory if the policy has none."""
        columns = [getattr(self, name) for name in self.__dataclass_fields__]
        return columns if self.memory is not None else columns[:-1]

    def select(self, rows: Rows, *, but_observations: bool = False) -> Batch:
        """Returns the decisions of some rows, perhaps without their observations, which take longest to copy."""
        columns = self.columns()
        if isinstance(rows, slice):
            return Batch(*(column[rows] for column in columns))
        indices = to_device(rows, self.valid.device)
        observations = self.observations[:0] if but_observations else _rows(self.observations, indices)
        return Batch(observations, *(_rows(column, indices) for column in columns[1:]))


def _rows(x: Tensor, indices: Tensor) -> Tensor:
    """Returns x[indices]; faster for pixels, because rows are copied in the order in which they lie in memory."""
    if x.dim() == 4:
        return x.permute(0, 2, 3, 1).index_select(0, indices).permute(0, 3, 1, 2)
    return x.index_select(0, indices)


def make_optimizer(policy: ActingPolicy, config: PolicyConfig) -> Optimizer:
    """Returns RMSProp for A2C, as in the paper; Adam for the others, of TRPO for the critic alone."""
    params = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    if config.algo == "a2c":
        return RMSProp(params, lr=config.lr)
    return UncompiledAdam(params, lr=config.lr, eps=1e-8 if config.algo == "sac" else 1e-5, fused=True)


@dataclass(frozen=True)
class Descent:
    """One process's share of a gradient: its decisions, and means over all shares, which are tensors on a GPU."""

    rows: Rows  # its decisions of the rollout laid flat
    n_valid: float | Tensor  # decisions of all shares, of which the losses are means
    mean: float | Tensor = 0.0  # subtracted from the advantages
    std: float | Tensor = 1.0  # then divides them
    ent_coef: float = 0.0  # weight of the entropy bonus


def a2c_update(
    policy: Policy, optimizer: Optimizer, batch: Batch, config: PolicyConfig, crew: Crew = ALONE
) -> dict[str, float]:
    """Takes one step on the whole batch along the advantage-weighted policy gradient; returns its statistics."""
    rows: list[Rows] = [share(len(batch), crew.size, index) for index in range(crew.size)]
    if policy.memory_size or policy.keeps:  # then of the environments in which each process acted
        envs = torch.arange(config.n_envs)
        rows = [_all_steps(envs[share(len(envs), crew.size, index)], config) for index in range(crew.size)]
    n_valid = batch.valid.sum().clamp(min=1)
    return _numbers(_step(policy, optimizer, batch, config, crew, rows, n_valid=_known(n_valid)[0]))


def ppo_update(
    policy: Policy, optimizer: Optimizer, batch: Batch, config: PolicyConfig, crew: Crew = ALONE
) -> dict[str, float]:
    """Several passes over shuffled minibatches with the clipped surrogate objective (eq. 7).

    Minibatches of a recurrent policy are of environments with all their steps, at least one for each process.
    """
    figures: dict[str, Tensor] = {}
    n, n_minibatches = len(batch), config.ppo_minibatches
    if policy.memory_size:
        n, n_minibatches = config.n_envs, max(1, min(n_minibatches, config.n_envs // crew.size))
    for _ in range(config.ppo_epochs):
        order = torch.randperm(n)
        if not policy.memory_size:
            order = to_device(order, batch.valid.device)
        for indices in order.tensor_split(n_minibatches):
            rows = [
                _all_steps(part, config) if policy.memory_size else part if part.is_cuda else part.numpy()
                for part in indices.tensor_split(crew.size)
            ]
            figures = _step(policy, optimizer, batch, config, crew, rows, **_statistics(batch, rows))
    return _numbers(figures)


def _all_steps(envs: Tensor, config: PolicyConfig) -> np.ndarray:
    """Returns the rows of these environments in a rollout laid flat, step by step."""
    steps = np.arange(config.n_steps)[:, None]
    return (steps * config.n_envs + envs.numpy()).reshape(-1)


def _statistics(batch: Batch, rows: Sequence[np.ndarray | Tensor]) -> dict[str, float | Tensor]:
    """Returns the number of valid decisions, and mean and standard deviation of their advantages; 0 and 1 if n < 2."""
    indices = torch.cat([to_device(part, batch.valid.device) for part in rows])
    valid, advantages = batch.valid[indices].float(), batch.advantages[indices]
    n = valid.sum()
    mean = (advantages * valid).sum() / n.clamp(min=1)
    std = (((advantages - mean) ** 2 * valid).sum() / (n - 1).clamp(min=1)).sqrt() + 1e-8
    known = _known(n.clamp(min=1), mean.where(n >= 2, 0), std.where(n >= 2, 1))
    return dict(zip(("n_valid", "mean", "std"), known, strict=True))


def _known(*numbers: Tensor) -> Sequence[float | Tensor]:
    """Returns numbers that every process of a crew can use; those on a GPU stay there, so nothing waits for them."""
    return numbers if numbers[0].is_cuda else torch.stack(numbers).tolist()


def _step(
    policy: Policy,
    optimizer: Optimizer,
    batch: Batch,
    config: PolicyConfig,
    crew: Crew,
    rows: Sequence[Rows],
    **statistics: float | Tensor,
) -> dict[str, Tensor]:
    """Moves the weights by the clipped gradient of the three losses; each process adds the share of its rows."""
    descents = [Descent(part, ent_coef=config.ent_coef, **statistics) for part in rows]
    crew.order("descend", descents)
    with crew.one_thread_each():
        found, losses = gradients(policy, batch, config, descents[0])
        losses = torch.stack([losses, *map(torch.tensor, crew.results())]).sum(0)
        policy.set_gradients([found, *crew.gradients])
        grad_norm = nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        policy.refresh()
    return {**dict(zip(LOSSES, losses, strict=True)), "grad_norm": grad_norm}


def gradients(policy: Policy, batch: Batch, config: PolicyConfig, descent: Descent) -> tuple[list[Tensor], Tensor]:
    """Returns a share of the gradient, in the order of `Policy.weights`, and of LOSSES (3,); all shares add up."""
    mine = batch.select(descent.rows, but_observations=policy.keeps)
    numbers = (descent.n_valid, descent.mean, descent.std, descent.ent_coef)
    if mine.valid.is_cuda and mine.memory is None:
        if policy.descending is None:
            policy.descending = Recorded(lambda *x: _gradients(policy, config, Batch(*x[:-4]), *x[-4:]))
        there = (x if isinstance(x, Tensor) else torch.full((), x, device=mine.valid.device) for x in numbers)
        found = policy.descending(*mine.columns(), *there)
    else:
        found = _gradients(policy, config, mine, *numbers)
    return list(found[1:]), found[0]


def _gradients(
    policy: Policy,
    config: PolicyConfig,
    batch: Batch,
    n_valid: float | Tensor,
    mean: float | Tensor,
    std: float | Tensor,
    ent_coef: float | Tensor,
) -> tuple[Tensor, ...]:
    """Returns LOSSES (3,) and the gradient; reads no rate or weight of the config: these change during a run."""
    at_first = None if batch.memory is None else batch.memory[: len(batch) // config.n_steps]
    evaluation = policy.evaluate(None if policy.keeps else batch.observations, batch.actions, at_first, batch.valid)
    advantages = (batch.advantages - mean) / std
    policy_losses = -advantages * evaluation.log_probs
    if config.algo == "ppo":
        ratio = (evaluation.log_probs - batch.log_probs).exp()
        policy_losses = -torch.minimum(ratio * advantages, ratio.clamp(1 - PPO_CLIP, 1 + PPO_CLIP) * advantages)
    value_losses = (batch.returns - evaluation.values) ** 2
    columns = torch.stack([policy_losses, value_losses, evaluation.entropy])
    losses = (columns * batch.valid).sum(1) / n_valid
    loss = losses[0] + VALUE_COEF * losses[1] - ent_coef * losses[2]
    return losses.detach(), *torch.autograd.grad(loss, policy.weights())


def _numbers(figures: dict[str, Tensor]) -> dict[str, float]:
    """Returns the figures of an update, moved from the device at once because each transfer waits for the device."""
    return dict(zip(figures, torch.stack(list(figures.values())).tolist(), strict=True))
