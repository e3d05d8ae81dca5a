"""What acting, evaluations and checkpoints need of a policy, however it learns."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch import Tensor, nn

from drlhp.networks.device import CPU


class ActingPolicy(nn.Module):
    """A policy that acts.

    Args:
        device: where the networks compute; observations come, and actions go, as arrays in main memory.
    """

    def __init__(self, device: torch.device = CPU) -> None:
        super().__init__()
        self.device = device
        # The newest observations that `act` moved to the device; the policy's process makes room for some on a GPU.
        self.acted_on: deque[Tensor] = deque(maxlen=0)

    @property
    def channels_last(self) -> bool:
        """Whether pixels should lie channels last in memory."""
        return False

    @property
    def memory_size(self) -> int:
        """Numbers M that a recurrent policy keeps from one decision of an environment for the next; else 0."""
        return 0

    def noise(self, *shape: int) -> np.ndarray:
        """Returns the noise with which so many decisions are drawn, (*shape, A) float32."""
        raise NotImplementedError

    def act(
        self,
        observations: np.ndarray,
        noise: np.ndarray | None,
        memory: np.ndarray | None = None,
        step: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Observations (N, ...) -> actions (N,) or (N, A), their log-probabilities (N,), values (N,); see `Policy`."""
        raise NotImplementedError

    def values(self, observations: np.ndarray, memory: np.ndarray | None = None) -> np.ndarray:
        """Observations (N, ...) -> V (N,); the `memory` (N, M) of `act` is only read."""
        raise NotImplementedError

    def observe(self, observations: np.ndarray) -> None:
        """Adds observations to the statistics that normalise them; of pixels (N, C, H, W), the newest frames."""
        raise NotImplementedError
