"""Stores the segments of a run that asks nobody."""

from __future__ import annotations

from drlhp.errors import UserError
from drlhp.queries.pool import IN_VAIN
from drlhp.runtime.channels import Channels, drain
from pref_db import PrefDB


class SegmentKeeper:
    """Stores the segments of a run that asks nobody, so that people can be asked later; stands in for PrefInterface.

    Args:
        goal: segments after which there are enough.
    """

    KEPT = ("in_vain",)

    def __init__(self, db: PrefDB, channels: Channels, goal: int) -> None:
        self.db, self.channels, self.goal = db, channels, goal
        self.n, self.in_vain = len(db.segment_ids()), 0

    def step(self) -> bool:
        candidates = drain(self.channels.segments, limit=self.goal - self.n)
        if candidates:
            self.db.add_segments([one.segment for one in candidates])
            n_before, self.n = self.n, len(self.db.segment_ids())
            self.in_vain = self.in_vain + len(candidates) if self.n == n_before else 0
            self._check()
        return bool(candidates)

    def _check(self) -> None:
        """Raises UserError if the agent shows nothing new any more."""
        if self.in_vain >= max(IN_VAIN, self.goal):
            raise UserError(
                f"the last {self.in_vain} clips of {self.db.env_id} were the same as clips before them, so there will "
                f"be no more than {self.n} different ones of {self.goal}: let the agent's actions change what it "
                "observes, let it explore first, or keep fewer (--max_segs)."
            )

    def clips(self) -> str:
        """Says how many segments are stored, of how many."""
        return f"{self.n}/{self.goal}" + (f" (nothing new in the last {self.in_vain})" if self.in_vain else "")

    @property
    def full(self) -> bool:
        return self.n >= self.goal

    def close(self) -> None:
        self.db.close()
