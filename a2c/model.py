"""The policy: a network body, a value head, and a categorical or Gaussian head over actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

from a2c.acting import ActingPolicy
from a2c.action_box import action_box
from a2c.body import ComputingBody
from a2c.crew import Arena
from drlhp.networks import architectures as networks
from drlhp.networks.device import CPU, Recorded, joined, to_device
from drlhp.networks.readers import Statistics
from envs import EnvInfo

LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)
MEMORY = 256  # units of a recurrent policy
PIXEL_STEPS = 10_000  # agent steps whose frames give each pixel's mean and standard deviation


@dataclass(frozen=True)
class Evaluation:
    """A batch of past decisions under the present weights, for the updates; every field is (B,)."""

    log_probs: Tensor
    entropy: Tensor
    values: Tensor


class Policy(ActingPolicy):
    """Actor and critic on one body.

    Args:
        info: the environment's observations and actions.
        network: `nature`, `feature_points` or `nature_lstm` for pixels; vectors always get an MLP.
        device: where the networks compute; observations come, and actions go, as arrays in main memory.
    """

    def __init__(self, info: EnvInfo, network: str, device: torch.device = CPU) -> None:
        super().__init__(device)
        self.body: nn.Module
        if info.kind == "vector":
            self.body = networks.PolicyMLP(info.observation_shape[0])
        elif network == "feature_points":
            self.body = networks.FeaturePoints()
        else:
            self.body = networks.NatureCNN(info.observation_shape[0])
        n_features = int(self.body.n_features)
        self.lstm: nn.LSTMCell | None = None
        if info.kind == "pixels" and network == "nature_lstm":
            self.lstm, n_features = nn.LSTMCell(n_features, MEMORY), MEMORY
        seen = info.observation_shape if info.kind == "vector" else info.observation_shape[1:]
        self.statistics = Statistics(*seen) if hasattr(self.body, "reader") else None
        self.n_actions, self.action_dim = info.n_actions, info.action_dim
        self.actor = nn.Linear(n_features, info.n_actions or info.action_dim or 0)
        self.critic = nn.Linear(n_features, 1)
        networks.orthogonal_(self.actor, 0.01)  # near-uniform actions at the start
        networks.orthogonal_(self.critic, 1.0)
        self.log_std = None if info.action_dim is None else nn.Parameter(torch.zeros(info.action_dim))
        self.box = action_box(info)
        self.to(device)
        self._computing = ComputingBody(self.body, device)
        self._gradients: list[Tensor] = []  # of the float32 weights, memory that every update uses again
        self.descending: Recorded | None = None  # see `a2c.update`
        self._deciding = Recorded(self._decided) if device.type == "cuda" and self.lstm is None else None

    @property
    def channels_last(self) -> bool:
        """Whether pixels should lie channels last in memory, which `readers.converted` reads fastest.

        A GPU changes the layout itself, in less time than a CPU would.
        """
        return isinstance(self.body, networks.NatureCNN) and self.device.type == "cpu"

    @property
    def memory_size(self) -> int:
        """Numbers M that a recurrent policy keeps from one decision of an environment for the next; else 0."""
        return 2 * MEMORY if self.lstm else 0

    @property
    def keeps(self) -> bool:
        """Whether `evaluate` can do without the observations of the steps that `act` kept."""
        return self._computing.keeps

    def keep(self, n_steps: int, n_envs: int) -> None:
        """Lets `act` keep what the body computes, if it can, so that `evaluate` need not compute it again."""
        self._computing.keep(n_steps, n_envs)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Observations (B, ...) -> action logits or means (B, A), values (B,); only if it is not recurrent."""
        return self._heads(self._computing.features(observations))

    def _heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        # A body that can hold an ensemble holds one member for both heads, or one for each.
        for_actor, for_critic = (features[0], features[-1]) if features.dim() == 3 else (features, features)
        return self.actor(for_actor), self.critic(for_critic).squeeze(-1)

    def distribution(self, head: Tensor) -> Categorical | Independent:
        """Returns the action distribution that the actor head (B, A) describes."""
        if self.log_std is None:
            return Categorical(logits=head, validate_args=False)
        return Independent(Normal(head, self.log_std.exp(), validate_args=False), 1, validate_args=False)

    def noise(self, *shape: int) -> np.ndarray:
        """Returns the noise that is added to the actor head of each of so many decisions: (*shape, A) float32.

        It is Gumbel noise for logits, so that their argmax is drawn from the softmax; Gaussian for means.
        """
        values = torch.empty(*shape, self.actor.out_features)
        drawn = values.normal_() if self.log_std is not None else values.exponential_().log_().neg_()
        return drawn.numpy()

    def _remembering(
        self, observations: Tensor, memory: np.ndarray | None, step: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns the heads of one step, like `forward`; overwrites `memory` (N, M) for the next step."""
        features = self._computing.features(observations, step)
        if self.lstm is not None:
            assert memory is not None, "a recurrent policy needs its memory"
            hidden, cell = self.lstm(features, to_device(memory, self.device).chunk(2, dim=1))
            memory[:] = torch.cat([hidden, cell], dim=1).cpu().numpy()
            features = hidden
        return self._heads(features)

    @torch.inference_mode()
    def act(
        self,
        observations: np.ndarray,
        noise: np.ndarray | None,
        memory: np.ndarray | None = None,
        step: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Observations (N, ...) -> actions (N,) int64 or (N, A) float32, their log-probabilities (N,), values (N,).

        Args:
            noise: (N, A) of `noise`; None for the most likely actions, or the means.
            memory: (N, M), zeros at the start of an episode; overwritten for the next step of the same episodes. Only
                a recurrent policy needs it.
            step: the step of a rollout; kept if there is room for it (`keep`).
        """
        moved = to_device(observations, self.device)
        if moved.is_cuda and moved.dim() == 4:
            moved = moved.contiguous(memory_format=torch.channels_last)
        self.acted_on.append(moved)
        if self._deciding and noise is not None and step is not None:  # as many environments as each step before
            return self.fetched(*self._deciding(moved, to_device(noise, self.device)))
        chance = 0.0 if noise is None else to_device(noise, self.device)
        actions, log_probs, values = self._decide(self._remembering(moved, memory, step), chance)
        if moved.is_cuda:
            return self.fetched(joined(actions, log_probs, values))
        return actions.numpy(), log_probs.numpy(), values.numpy()

    def _decided(self, observations: Tensor, noise: Tensor) -> tuple[Tensor]:
        """Returns what `act` returns, `joined`."""
        return (joined(*self._decide(self(observations), noise)),)

    def _decide(self, found: tuple[Tensor, Tensor], chance: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
        """Turns the heads into actions, their log-probabilities and the values."""
        head, values = found
        actions = (head + chance).argmax(-1) if self.log_std is None else head + self.log_std.exp() * chance
        if self.box is not None:
            actions = self.box(actions)
        return actions, self._judged(head, actions)[0], values

    def fetched(self, columns: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the parts of what is `joined` on a GPU, in main memory."""
        actions, log_probs, values = columns.cpu().split([columns.shape[1] - 2, 1, 1], 1)
        chosen = actions if self.n_actions is None else actions.squeeze(1).long()
        return chosen.numpy(), log_probs.squeeze(1).numpy(), values.squeeze(1).numpy()

    @torch.inference_mode()
    def values(self, observations: np.ndarray, memory: np.ndarray | None = None) -> np.ndarray:
        """Observations (N, ...) -> V (N,); the `memory` (N, M) of `act` is only read."""
        read = None if memory is None else memory.copy()
        _, values = self._remembering(to_device(observations, self.device), read)
        return values.cpu().numpy()

    def evaluate(
        self, observations: Tensor | None, actions: Tensor, memory: Tensor | None = None, valid: Tensor | None = None
    ) -> Evaluation:
        """Returns log-probabilities, entropies and values of past decisions under the present weights, with gradients.

        A recurrent policy needs all decisions of N environments, step by step: B is T times N.

        Args:
            observations: (B, ...); None for all T times N that `act` kept, if the weights are still the same.
            memory: (N, M) of a recurrent policy before the first step.
            valid: (B,) bool; False at the steps between two episodes, which empty the memory.
        """
        body = self._computing
        features = body.kept_features() if observations is None else body.features(observations)
        if self.lstm is not None:
            assert memory is not None and valid is not None, "a recurrent policy needs its memory"
            features = self._recalled(features, memory, valid)
        head, values = self._heads(features)
        return Evaluation(*self._judged(head, actions), values)

    def _recalled(self, features: Tensor, memory: Tensor, valid: Tensor) -> Tensor:
        """(T * N, F) features of T steps -> (T * N, MEMORY) hidden states of the LSTM, step after step."""
        assert self.lstm is not None
        hidden, cell = memory.chunk(2, dim=1)
        steps, found = len(features) // len(memory), []
        goes_on = valid.float().reshape(steps, -1, 1)
        for x, kept in zip(features.reshape(steps, len(memory), -1), goes_on, strict=True):
            hidden, cell = self.lstm(x, (hidden, cell))
            found.append(hidden)
            hidden, cell = hidden * kept, cell * kept
        return torch.cat(found)

    def _judged(self, head: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns log-probabilities and entropies (B,) of actions, like `distribution`.

        For means the formula is written out, because PyTorch's distributions cost more than a small network. Densities
        are per unit of the policy, also if its actions are stretched to a box.
        """
        if self.log_std is None:
            distribution = self.distribution(head)
            return distribution.log_prob(actions), distribution.entropy()
        unit = actions if self.box is None else self.box.unit_of(actions)
        deviations = (unit - head) * (-self.log_std).exp()
        constant = self.log_std.sum() + len(self.log_std) * LOG_ROOT_TWO_PI
        log_probs = -0.5 * deviations.square().sum(-1) - constant
        return log_probs, (constant + 0.5 * len(self.log_std)).expand(len(head))

    def weights(self) -> list[Tensor]:
        """Returns the weights that `evaluate` computes with: the heads', and the bfloat16 body's if there is one."""
        instead = self._computing.computing_weights()
        return [instead.get(id(parameter), parameter) for parameter in self.parameters()]

    @torch.no_grad()
    def move_to(self, arena: Arena, *, fill: bool) -> None:
        """Moves every tensor to the arena's memory; unless `fill`, takes over the values that it finds there."""
        for module in (self, *self._computing.modules[1:]):
            for tensor in (*module.parameters(), *module.buffers()):
                memory = arena.tensor(tensor)
                tensor.data = memory.copy_(tensor) if fill else memory

    @torch.no_grad()
    def set_gradients(self, shares: Sequence[Sequence[Tensor]]) -> None:
        """Sets the gradient of the weights to the sum of these shares, each in the order of `weights`."""
        parameters = list(self.parameters())
        if not self._gradients:
            self._gradients = [torch.empty_like(parameter) for parameter in parameters]
        torch._foreach_copy_(self._gradients, list(shares[0]))
        for share in shares[1:]:
            torch._foreach_add_(self._gradients, [gradient.float() for gradient in share])
        for parameter, gradient in zip(parameters, self._gradients, strict=True):
            parameter.grad = gradient

    @torch.no_grad()
    def observe(self, observations: np.ndarray) -> None:
        """Adds observations to the statistics that normalise them; of pixels (N, C, H, W), the newest frames.

        They bring out what moves in front of what never changes (`readers.PixelReader`). Statistics of pixels stay
        as they are after the first `PIXEL_STEPS`; those of vectors follow the policy to wherever it gets.
        """
        of_pixels = isinstance(self.body, networks.NatureCNN)
        if self.statistics is None or (of_pixels and self.statistics.count >= PIXEL_STEPS):
            return
        self.statistics.add(torch.from_numpy(observations[:, -1] if of_pixels else observations))
        self._normalise(self._computing.modules)

    def _normalise(self, bodies: Sequence[nn.Module]) -> None:
        for body in bodies:
            body.reader.normalise(*self.statistics.mean_and_std())  # type: ignore[union-attr, operator]

    def refresh(self) -> None:
        """Copies the float32 weights to the bfloat16 copy; call it after every change of the weights."""
        self._computing.refresh()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        result = super().load_state_dict(*args, **kwargs)
        self._computing.refresh(buffers=True)
        if self.statistics is not None and self.statistics.count:  # else the copy's would be rounded twice
            self._normalise(self._computing.modules[1:])
        return result


def acting(policy: Policy, *, published: bool = False) -> list[Tensor]:
    """Returns all tensors that `Policy.act` computes with, in the same order on every device.

    Args:
        published: weights of convolutional bodies in bfloat16, as most machines compute with them anyway.
    """
    computing = policy._computing.modules[-1]
    weights: list[Tensor] = list(computing.parameters())
    if published and isinstance(computing, networks.NatureCNN):
        weights = [weight.bfloat16() for weight in weights]
    apart = {id(tensor) for tensor in (*policy.body.parameters(), *policy.body.buffers())}
    if policy.statistics is not None:  # of which `act` reads what the body makes of them
        apart |= {id(tensor) for tensor in policy.statistics.buffers()}
    others = [tensor for tensor in (*policy.parameters(), *policy.buffers()) if id(tensor) not in apart]
    return [*weights, *computing.buffers(), *others]
