"""The policy of soft actor-critic: Gaussian actions squashed to the environment's box, and two critics of actions."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from a2c.acting import ActingPolicy
from drlhp.networks.architectures import EnsembleLinear
from drlhp.networks.device import CPU, has_bf16, to_device
from drlhp.networks.readers import Statistics, VectorReader
from envs import EnvInfo

HIDDEN = 256
LOG_STD = (-5.0, 2.0)  # lowest and highest of the Gaussian before it is squashed
FIRST_TEMPERATURE = 0.1
LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)


class Layers(nn.Module):
    """Two hidden layers of 256 ReLU units for each member: (B, inputs) -> (members, B, outputs).

    The hidden layers compute in bfloat16 if the device is faster with it.
    """

    def __init__(self, n_members: int, n_inputs: int, n_outputs: int, *, fast: bool) -> None:
        super().__init__()
        self.fc1, self.fc2 = EnsembleLinear(n_members, n_inputs, HIDDEN), EnsembleLinear(n_members, HIDDEN, HIDDEN)
        self.out = EnsembleLinear(n_members, HIDDEN, n_outputs)
        self._dtype = torch.bfloat16 if fast else torch.float32

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.fc2(F.relu(self.fc1(x.to(self._dtype)))))
        features: Tensor = self.out(hidden.float())
        return features


class SquashedPolicy(ActingPolicy):
    """Actor, two critics of observations and actions, and their slowly following targets.

    The critics expect the discounted rewards, and the entropy that they are weighed against.
    """

    scale: Tensor  # (A,)
    offset: Tensor  # (A,)

    def __init__(self, info: EnvInfo, device: torch.device = CPU) -> None:
        super().__init__(device)
        n_inputs, n_actions = info.observation_shape[0], info.action_dim or 0
        fast = has_bf16(device)
        self.action_dim = n_actions
        self.reader, self.statistics = VectorReader(n_inputs, limit=10), Statistics(n_inputs)
        self.actor = Layers(1, n_inputs, 2 * n_actions, fast=fast)
        self.critics = Layers(2, n_inputs + n_actions, 1, fast=fast)
        self.targets = Layers(2, n_inputs + n_actions, 1, fast=fast)
        self.targets.load_state_dict(self.critics.state_dict())
        self.targets.requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(FIRST_TEMPERATURE)))
        low, high = np.array(info.action_bounds, np.float32)
        self.register_buffer("scale", torch.from_numpy((high - low) / 2))
        self.register_buffer("offset", torch.from_numpy((high + low) / 2))
        self.to(device)

    def decide(self, read: Tensor, noise: Tensor | float) -> tuple[Tensor, Tensor]:
        """Returns actions (B, A) from -1 to 1 and their log-probabilities (B,), for observations that were read."""
        mean, spread = self.actor(read)[0].chunk(2, -1)
        low, high = LOG_STD
        log_std = low + 0.5 * (high - low) * (torch.tanh(spread) + 1)
        raw = mean + log_std.exp() * noise
        # log(1 - tanh^2), without the rounding where an action is near its bound
        squashing = 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        density = -0.5 * ((raw - mean) * (-log_std).exp()).square() - log_std - LOG_ROOT_TWO_PI
        return torch.tanh(raw), (density - squashing).sum(-1)

    def judge(self, critics: Layers, read: Tensor, unit_actions: Tensor) -> Tensor:
        """Returns what both critics expect, (2, B)."""
        judged: Tensor = critics(torch.cat([read, unit_actions], 1)).squeeze(-1)
        return judged

    def unit_of(self, actions: Tensor) -> Tensor:
        """Returns actions from -1 to 1 for the environment's."""
        return (actions - self.offset) / self.scale

    def noise(self, *shape: int) -> np.ndarray:
        """Returns the noise of so many decisions, (*shape, A) float32."""
        return torch.randn(*shape, self.action_dim).numpy()

    @torch.inference_mode()
    def act(
        self,
        observations: np.ndarray,
        noise: np.ndarray | None,
        memory: np.ndarray | None = None,
        step: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Observations (N, D) -> actions (N, A) float32, their log-probabilities (N,), values (N,).

        Args:
            noise: (N, A) of `noise`; None or zeros for the most likely actions before the squashing.
            memory, step: unused.
        """
        read = self.reader(to_device(observations, self.device))
        unit, log_probs = self.decide(read, 0.0 if noise is None else to_device(noise, self.device))
        values = self.judge(self.critics, read, unit).amin(0)
        actions = unit * self.scale + self.offset
        return actions.cpu().numpy(), log_probs.cpu().numpy(), values.cpu().numpy()

    def values(self, observations: np.ndarray, memory: np.ndarray | None = None) -> np.ndarray:
        """Observations (N, D) -> V (N,) of the most likely actions."""
        return self.act(observations, None)[2]

    @torch.no_grad()
    def observe(self, observations: np.ndarray) -> None:
        """Adds observations to the statistics that normalise them."""
        self.statistics.add(torch.from_numpy(observations))
        self.reader.normalise(*self.statistics.mean_and_std())

    def read_as(self, other: SquashedPolicy) -> None:
        """Normalises observations as another policy does."""
        self.statistics.load_state_dict(other.statistics.state_dict())
        self.reader.load_state_dict(other.reader.state_dict())
