"""The newest steps of the policy, on which the scale of predicted rewards is fitted."""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch import Tensor

# Raw rewards whose standard deviation is less are alike. Those of new networks have 2e-4 (pixels) or 3e-2 (vectors),
# and rounding gives 1e-8.
ALIKE = 1e-5
# A first scale is fitted once the newest rewards have this share of the standard deviation over the labelled segments.
LEAST_SHARE = 0.1
LEAST_KEPT_SHARE = 1e-3  # of the wanted standard deviation; below, rounding would decide the next scale


def tell_scale(raw: Tensor, labelled: Tensor | None, before: np.ndarray | None, wanted: float) -> bool:
    """Returns whether rewards of the newest steps differ enough to fit the scale of all later rewards to them.

    A policy may begin with a thousand steps that look alike. On their scale, all later rewards would be huge.

    Args:
        raw: (members, B) raw rewards, by the newest weights.
        labelled: (members,) the standard deviation over the labelled segments; None if that does not matter.
        before: (members, B) normalised rewards by the weights before; None if there is no scale to keep.
        wanted: the standard deviation of normalised rewards.
    """
    least = torch.full_like(raw[:, 0], ALIKE)
    if before is not None:
        if before.std(1).min() <= LEAST_KEPT_SHARE * wanted:
            return False
    elif labelled is not None:
        least = least.maximum(LEAST_SHARE * labelled)
    return bool((raw.std(1) > least).all())


class RecentSteps:
    """Keeps one in `stride` of the newest steps, as whole batches, so that at least `n_steps` stay."""

    KEPT = ("_batches", "_n_kept", "_skip")

    def __init__(self, n_steps: int, stride: int) -> None:
        self.n_steps, self.stride = n_steps, stride
        self._batches: deque[tuple[Tensor, Tensor]] = deque()
        self._n_kept = 0
        self._skip = 0  # of the next steps, before one is kept

    @property
    def full(self) -> bool:
        """Whether there are as many as were asked for."""
        return self._n_kept >= self.n_steps

    def add(self, observations: Tensor, actions: Tensor) -> None:
        """Keeps some of these steps, (B, ...) and (B,) or (B, A), and forgets the oldest that are too many."""
        kept = slice(self._skip, None, self.stride)
        moves_on = len(actions) % self.stride == 0  # otherwise it would keep steps of the same few environments
        self._skip = (self._skip - len(actions) + moves_on) % self.stride
        self._batches.append((observations[kept].clone(), actions[kept].clone()))
        self._n_kept += len(self._batches[-1][1])
        while self._n_kept - len(self._batches[0][1]) >= self.n_steps:
            self._n_kept -= len(self._batches.popleft()[1])

    def all(self) -> list[Tensor]:
        """Returns the observations and the actions of the kept steps; call it only if there are some."""
        return [torch.cat(parts) for parts in zip(*self._batches, strict=True)]
