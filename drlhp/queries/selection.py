"""TODO."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from drlhp.data.segment import Segment

if TYPE_CHECKING:
    pass  # takes PyTorch, which whoever has no rounds can do without


NEWEST_SHARE = 0.1  # of the pool, the segments of the newest policy


# What is compared of a segment, where pairs are to be unlike each other: so many moments, squares down and across.
MOMENTS, SQUARES = 5, 7


CENTRES = 1000  # newest pairs asked, from which the next is to be far


QuerySelection = Literal["random", "disagreement", "entropy", "newest", "k_center", "ordering"]


def informativeness(a: Segment, b: Segment, selection: QuerySelection) -> float:
    """How much the answer about two segments should tell, by the ensemble's predictions when they were cut.

    `disagreement`: the variance over the members of the probability that a is preferred (section 2.2.4); `entropy`:
    that of the answer by their mean, in bits. A pair that was cut before there was a predictor has 0.
    """
    if a.member_returns is None or b.member_returns is None:
        return 0.0
    difference = (a.member_returns - b.member_returns).astype(float)
    p = 1 / (1 + np.exp(-difference.clip(-50, 50)))
    if selection == "disagreement":
        return float(p.var())
    mean = float(np.clip(p.mean(), 1e-12, 1 - 1e-12))
    return -mean * math.log2(mean) - (1 - mean) * math.log2(1 - mean)


def looks(segment: Segment) -> np.ndarray:
    """(K,) float32: a few moments of a segment, of pictures the means of their squares, of vectors themselves."""
    moments = np.linspace(0, len(segment) - 1, MOMENTS).round().astype(int)
    seen = segment.observations[moments].astype(np.float32)
    if not segment.is_pixels:
        return seen.ravel()
    if seen.ndim == 4:
        seen = seen.mean(1)
    for axis in (1, 2):
        edges = np.linspace(0, seen.shape[axis], SQUARES + 1).astype(int)
        sums = np.add.reduceat(seen, edges[:-1], axis)
        seen = sums / np.diff(edges).clip(1).reshape((-1, 1) if axis == 1 else -1)
    return seen.ravel().astype(np.float32)
