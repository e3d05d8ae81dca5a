"""Carries a segment from where it was cut to the pool, with what the reward predictor then thought of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drlhp.data.segment import Segment


@dataclass(frozen=True, eq=False)
class Candidate:
    """A segment that a teacher may be asked about."""

    segment: Segment
    member_returns: np.ndarray | None = None
    """(members,) float32 sums of each ensemble member's raw reward; None if there was no predictor. Not stored."""
