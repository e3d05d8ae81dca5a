"""Explores before the first labels: rewards the policy for states that are far from those it has seen.

After PEBBLE (Lee et al. 2021), whose agents explore before anyone is asked. The reward maximises an estimate of the
entropy of the visited states: the distance of each to its k-th nearest neighbour (Singh et al. 2003).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

NEIGHBOUR = 5  # the k-th nearest
KEPT = 4096  # states to compare with, a random choice of those of the newest rollouts
ADDED = 256  # of a rollout, at most
POOL = 7  # pixels averaged on a side
LEAST_STD = 1e-2  # of each compared number; numbers that hardly change would otherwise weigh too much
REWARD_STD = 0.1  # of the rewards, about a mean of zero: small, so that the values have little to unlearn


class StateEntropy:
    """Rewards states for their distance from those seen before."""

    KEPT = ("_rng", "_seen", "_count", "_mean", "_squares")

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._seen: Tensor | None = None  # (K, D)
        self._count, self._mean, self._squares = 0, 0.0, 0.0  # of the distances so far

    def rewards(self, observations: Tensor) -> np.ndarray:
        """(B, ...) observations of a rollout, uint8 pixels or float32 vectors -> (B,) rewards."""
        states = described(observations)
        self._add(states)
        assert self._seen is not None
        distances = torch.log1p(neighbour_distance(states, self._seen)).cpu().numpy().astype(np.float64)
        self._count += len(distances)
        self._mean += (distances - self._mean).sum() / self._count
        self._squares += ((distances - self._mean) ** 2).sum()
        std = max(float(np.sqrt(self._squares / self._count)), 1e-6)
        return (REWARD_STD * (distances - self._mean) / std).astype(np.float32)

    def _add(self, states: Tensor) -> None:
        chosen = torch.from_numpy(self._rng.permutation(len(states))[:ADDED]).to(states.device)
        new = states[chosen]
        self._seen = new if self._seen is None else torch.cat([self._seen, new])[-KEPT:]


def described(observations: Tensor) -> Tensor:
    """Returns what is compared of observations (B, ...), (B, D) float32: vectors, or the newest frames averaged."""
    if observations.dim() == 4:
        newest = observations[:, -1:].float() / 255
        return F.avg_pool2d(newest, POOL).flatten(1)
    return observations.float()


def neighbour_distance(states: Tensor, seen: Tensor) -> Tensor:
    """(B, D), (K, D) -> (B,) Euclidean distance to the k-th nearest, in standard deviations of the seen states.

    The nearest does not count, because a state may itself be among those seen.
    """
    std = seen.std(0, correction=int(len(seen) > 1)).clamp(min=LEAST_STD)
    distances = torch.cdist(states / std, seen / std)
    k = min(NEIGHBOUR + 1, len(seen))
    return distances.topk(k, largest=False).values[:, -1]
