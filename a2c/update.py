"""The two update rules, on the same rollouts: A2C (Mnih et al. 2016) and PPO (Schulman et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

import networks
from a2c.config import PolicyConfig
from a2c.model import Policy

VALUE_COEF = 0.5
MAX_GRAD_NORM = 0.5
PPO_CLIP = 0.2


class RMSProp(Optimizer):
    """RMSProp with epsilon inside the root, as TensorFlow has it and the paper's A2C settings expect.

    PyTorch adds epsilon outside, which makes the first steps on rarely active weights far larger.
    """

    def __init__(self, params: list[nn.Parameter], lr: float, alpha: float = 0.99, eps: float = 1e-5) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps})
        for param in params:
            self.state[param]["square_avg"] = torch.ones_like(param)
        self._roots = {param: torch.empty_like(param) for param in params}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            averages = [self.state[p]["square_avg"] for p in params]
            torch._foreach_mul_(averages, group["alpha"])
            torch._foreach_addcmul_(averages, grads, grads, 1 - group["alpha"])
            roots = [self._roots[p] for p in params]  # kept: new memory would cost as much as the arithmetic
            torch._foreach_copy_(roots, averages)
            torch._foreach_add_(roots, group["eps"])
            torch._foreach_sqrt_(roots)
            torch._foreach_addcdiv_(params, grads, roots, -group["lr"])


@dataclass(frozen=True)
class Batch:
    """A rollout laid flat: T * N decisions, those of reset steps left out of every mean by `valid`."""

    observations: Tensor  # (B, ...)
    actions: Tensor  # (B,) or (B, A)
    log_probs: Tensor  # (B,) at the time of acting
    advantages: Tensor  # (B,)
    returns: Tensor  # (B,)
    valid: Tensor  # (B,) 1.0 or 0.0

    def __len__(self) -> int:
        return len(self.valid)

    def select(self, indices: Tensor) -> Batch:
        """The decisions at `indices`."""
        return Batch(*(_rows(getattr(self, name), indices) for name in self.__dataclass_fields__))


def _rows(x: Tensor, indices: Tensor) -> Tensor:
    """x[indices], faster for pixels: whole rows are copied, in the order in which they lie in memory."""
    if x.dim() == 4:
        return x.permute(0, 2, 3, 1).index_select(0, indices).permute(0, 3, 1, 2)
    return x.index_select(0, indices)


def make_optimizer(policy: Policy, config: PolicyConfig) -> Optimizer:
    """RMSProp for A2C, as in the paper; Adam for PPO."""
    params = list(policy.parameters())
    if config.algo == "ppo":
        return Adam(params, lr=config.lr, eps=1e-5, fused=True)
    return RMSProp(params, lr=config.lr)


def a2c_update(policy: Policy, optimizer: Optimizer, batch: Batch, config: PolicyConfig) -> dict[str, float]:
    """One step on the whole batch along the advantage-weighted policy gradient."""
    evaluation = policy.evaluate(batch.observations, batch.actions)
    policy_losses = -batch.advantages * evaluation.log_probs
    return _numbers(_step(policy, optimizer, batch, policy_losses, evaluation.entropy, evaluation.values, config))


def ppo_update(policy: Policy, optimizer: Optimizer, batch: Batch, config: PolicyConfig) -> dict[str, float]:
    """Several passes over shuffled minibatches with the clipped surrogate objective (eq. 7)."""
    losses: dict[str, Tensor] = {}
    for _ in range(config.ppo_epochs):
        for indices in networks.to_device(torch.randperm(len(batch)), policy.device).chunk(config.ppo_minibatches):
            part = batch.select(indices)
            evaluation = policy.evaluate(part.observations, part.actions)
            ratio = (evaluation.log_probs - part.log_probs).exp()
            advantages = _normalised(part.advantages, part.valid)
            clipped = ratio.clamp(1 - PPO_CLIP, 1 + PPO_CLIP)
            policy_losses = -torch.minimum(ratio * advantages, clipped * advantages)
            losses = _step(policy, optimizer, part, policy_losses, evaluation.entropy, evaluation.values, config)
    return _numbers(losses)


def _normalised(advantages: Tensor, valid: Tensor) -> Tensor:
    """Zero mean and unit deviation over the valid decisions; fewer than two have no deviation and stay as they are."""
    kept = advantages[valid > 0]
    if len(kept) < 2:
        return advantages
    return (advantages - kept.mean()) / (kept.std() + 1e-8)


def _step(
    policy: Policy,
    optimizer: Optimizer,
    batch: Batch,
    policy_losses: Tensor,
    entropy: Tensor,
    values: Tensor,
    config: PolicyConfig,
) -> dict[str, Tensor]:
    """Joins the three losses, and moves the weights by their clipped gradient."""
    n_valid = batch.valid.sum().clamp(min=1)
    policy_loss = (policy_losses * batch.valid).sum() / n_valid
    mean_entropy = (entropy * batch.valid).sum() / n_valid
    value_loss = ((batch.returns - values) ** 2 * batch.valid).sum() / n_valid
    loss = policy_loss - config.ent_coef * mean_entropy + VALUE_COEF * value_loss
    optimizer.zero_grad()
    loss.backward()
    policy.collect_gradients()
    grad_norm = nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
    optimizer.step()
    policy.refresh()
    return {
        "policy_loss": policy_loss.detach(),
        "value_loss": value_loss.detach(),
        "entropy": mean_entropy.detach(),
        "grad_norm": grad_norm,
    }


def _numbers(losses: dict[str, Tensor]) -> dict[str, float]:
    """The figures of an update, brought from the device at once: each transfer waits for all that it computes."""
    return dict(zip(losses, torch.stack(list(losses.values())).tolist(), strict=True))
