"""Tells people in one line how many labels there are, or what the next question waits for."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import dataclass
from pathlib import Path

from drlhp.data.comparison import Comparison
from drlhp.labelling.disk import DiskSpace
from drlhp.labelling.drawing import Drawing
from drlhp.labelling.gatherers import PreferenceGatherer
from drlhp.labelling.notices import FEW_LABELS
from drlhp.queries.pool import Pool
from drlhp.queries.schedule import LabelSchedule
from drlhp.queries.selection import Queries


@dataclass(frozen=True)
class Status:
    """Puts the state of the preference interface into words."""

    gatherer: PreferenceGatherer
    schedule: LabelSchedule
    pool: Pool
    queries: Queries
    drawing: Drawing
    disk: DiskSpace
    run_dir: Path

    def line(self) -> str:
        """Returns how many labels there are, or what the run waits for."""
        schedule, n_open = self.schedule, len(self.gatherer.pending)
        if self.gatherer.ended or schedule.is_done:
            return f"{schedule.n_labels} labels, no more are asked for; {self.without_labels()}"
        if not n_open:
            return self._waits_for()
        note = ""
        if schedule.channels.pause.is_set():
            note = f" (the policy waits: {n_open} pairs are open)"
        elif schedule.n_labels < schedule.n_initial and not schedule.training:  # an undo does not end the training
            note = f" ({schedule.n_initial} before training starts)"
        return f"Label {schedule.n_labels + 1} of {schedule.goal}{note}"

    def without_labels(self) -> str:
        """Returns what the run does without labels from now on."""
        missing = min(self.schedule.n_initial, FEW_LABELS) - self.schedule.n_labels
        if missing > 0 and self.schedule.to_start is not None:
            place = shlex.quote(str(self.run_dir))
            return f"training waits for {missing} labels more, which `python run.py label {place}` gives"
        return "training goes on"

    def _waits_for(self) -> str:
        """Returns why no pair is open."""
        n_labels = self.schedule.n_labels
        if self.disk.is_full:
            return "The disk is nearly full: new pairs come when there is room again"
        if self.drawing.status():
            return self.drawing.status()
        if len(self.pool) < 2:
            return f"Waiting for clips from the agent ({len(self.pool)} of 2)"
        if not self.schedule.is_judged:
            return f"Choosing the next pairs by what {n_labels} labels have taught the reward predictor"
        if not self.schedule.wanted(len(self.drawing.open)):
            return f"{n_labels} labels; the next is due when the policy has trained on"
        if self.schedule.asks_initial and not self.pool.is_full and not self.pool.has_unseen_pair:
            return "Waiting for new clips from the agent: the first pairs have no clip in common"
        if not self.queries.all_asked:
            return "Choosing the next pair"
        why = "every pair was asked" if self.every_pair_asked() else "no new pair was found in those so far"
        return f"Waiting for new clips from the agent: {why}"

    def repeated(self, noun: str = "different") -> str:
        """Returns how many different clips there are, of which no new pair was found."""
        asked = "whose pairs were all asked" if self.every_pair_asked() else "of which no new pair was found"
        return f"{self.pool.n_different} {noun}, {asked}"

    def every_pair_asked(self) -> bool:
        """Returns whether each pair of different clips in the pool was asked; the queries only draw some."""
        ids = sorted({candidate.segment.id for candidate in self.pool})
        if len(ids) * (len(ids) - 1) // 2 > len(self.queries.asked):
            return False
        return all(Comparison.id_of(a, b) in self.queries.asked for a, b in itertools.combinations(ids, 2))
