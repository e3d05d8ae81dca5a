"""Carries a segment from where it was cut to the pool, with what the reward predictor then thought of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drlhp.data.rows import segment_row
from drlhp.data.segment import CompressedSegment, Segment
from drlhp.runtime.snapshot import state_of, value_of


@dataclass(frozen=True, eq=False)
class Candidate:
    """A segment that a teacher may be asked about."""

    segment: Segment
    member_returns: np.ndarray | None = None
    """(members,) float32 sums of each ensemble member's raw reward; None if there was no predictor. Not stored."""

    def snapshot(self) -> dict[str, Any]:
        """Returns plain values, which `of_snapshot` takes; the segment is compressed."""
        env_id, (id_, _, *row, view) = self.segment.env_id, segment_row(self.segment)
        return state_of({"id": id_, "segment": [env_id, *row], "view": view, "member_returns": self.member_returns})

    @classmethod
    def of_snapshot(cls, state: dict[str, Any]) -> Candidate:
        """Returns the same candidate again."""
        values = value_of(state)
        segment = CompressedSegment(*values["segment"]).decode(values["view"])
        return cls(replace(segment, given_id=values["id"]), values["member_returns"])
