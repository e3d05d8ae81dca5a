"""Gatherers bring comparisons to a teacher and its answers back: a synthetic teacher, or people through the queue.

A gatherer takes comparisons at any time and reports answers by the comparison's id. No method blocks, and answers may
come in any order, or never. An answer is on disk before a gatherer reports it.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from drlhp.data.comparison import Choice, Comparison, Label, side_of
from drlhp.labelling.answers import CLAIM_SECONDS, Lease, Submission
from drlhp.labelling.notices import Who
from drlhp.labelling.queue import LabelQueue
from drlhp.labelling.teachers import SyntheticTeacher
from pref_db import PrefDB

log = logging.getLogger("run")

ANSWERS_PER_COMMIT = 64
PEOPLE_AHEAD = 24  # enough for several people, whose pages fetch the next pairs early
PRINT_SECONDS = 10.0  # between two lines about what a teacher that has no screen does or waits for
TELL_SECONDS = 2.0  # between two equal heartbeats, because each is written to disk


@dataclass(frozen=True)
class Answered:
    """The outcome of a comparison.

    `choice` is in the order in which the pair was first asked; None: the answer was taken back. `label` is the label or
    retraction for the trainer; None if the trainer has nothing to do.
    """

    comparison_id: str
    choice: Choice | None
    label: Label | None


class PreferenceGatherer(Protocol):
    """Asks a teacher; no method blocks."""

    is_person: bool  # people see clips, set the pace, and may leave
    ahead: int  # comparisons that it wants to have open at once

    @property
    def ended(self) -> bool:
        """Returns whether no more answers will come."""

    @property
    def pending(self) -> Collection[str]:
        """Returns the ids of the open comparisons."""

    def submit(self, comparisons: Sequence[Comparison]) -> None:
        """Asks the comparisons; a comparison that was asked before stays as it is."""

    def drain(self) -> list[Answered]:
        """Returns, in order, the comparisons that were answered or taken back since the last call."""

    def withdraw(self, older_than_policy_step: int) -> None:
        """Withdraws older comparisons that nobody has seen, if possible."""

    def tell(self, status: str, state: dict[str, Any]) -> None:
        """Shows people a line about the progress, and numbers."""

    def announce(self, text: str) -> None:
        """Prints a message, and shows it on the screen of who labels here, if there is one."""

    def close(self) -> None: ...


class Answerer(Protocol):
    """A program that answers at once, such as a `teachers.SyntheticTeacher`."""

    name: str  # kept with each answer

    def poll(self, comparison: Comparison) -> Choice | None:
        """Returns the answer; None if the program has no more answers."""


class SyntheticGatherer:
    """Lets a program answer in the order of asking; stores many answers with one commit."""

    is_person, ended = False, False
    ahead = ANSWERS_PER_COMMIT
    KEPT = ("teacher",)  # it answers all that it was asked within a step

    def __init__(self, db: PrefDB, teacher: Answerer) -> None:
        self.db, self.teacher = db, teacher
        self._open: deque[Comparison] = deque()

    @property
    def pending(self) -> Collection[str]:
        return [comparison.id for comparison in self._open]

    def submit(self, comparisons: Sequence[Comparison]) -> None:
        self._open.extend(comparisons)

    def drain(self) -> list[Answered]:
        answers: list[tuple[Comparison, Choice]] = []
        while self._open and len(answers) < ANSWERS_PER_COMMIT:
            choice = self.teacher.poll(self._open[0])
            if choice is None:
                break
            answers.append((self._open.popleft(), choice))
        if not answers:
            return []
        labels = self.db.add_answers(answers, teacher=self.teacher.name)
        told = zip(answers, labels, strict=True)
        return [Answered(comparison.id, choice, label) for (comparison, choice), label in told]

    def withdraw(self, older_than_policy_step: int) -> None: ...

    def tell(self, status: str, state: dict[str, Any]) -> None: ...

    def announce(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None: ...


class QueueGatherer:
    """Lets people answer on any screen, through the queue in the store.

    Args:
        who: the process that reports progress to them: the run, or `label`, which may run beside it.
    """

    is_person = True
    ahead = PEOPLE_AHEAD

    def __init__(self, db: PrefDB, who: Who = "run") -> None:
        self.db, self.queue, self.who = db, LabelQueue(db), who
        self._told, self._told_at, self._look_at = "", 0.0, 0.0
        self._last_seq = db.newest_seq()
        self.pending: Collection[str] = ()
        self._look()

    @property
    def ended(self) -> bool:
        return False

    def submit(self, comparisons: Sequence[Comparison]) -> None:
        self.queue.submit(comparisons)
        self._look()

    def drain(self) -> list[Answered]:
        now = time.monotonic()
        if now < self._look_at:
            return []
        self._look_at = now + self.db.store.look_seconds
        rows = self.db.changes(after=self._last_seq)
        if not rows:
            return []
        labels = {label.seq: label for label in self.db.labels(after=self._last_seq)}
        self._last_seq = rows[-1][0]
        self._look()
        return [Answered(comparison_id, choice, labels.get(seq)) for seq, comparison_id, choice in rows]

    def _look(self) -> None:
        self.pending = self.queue.unanswered()

    def withdraw(self, older_than_policy_step: int) -> None:
        if self.pending and self.queue.withdraw(older_than_policy_step):
            self._look()

    def tell(self, status: str, state: dict[str, Any]) -> None:
        if status == self._told and time.monotonic() < self._told_at + TELL_SECONDS:
            return
        self._told, self._told_at = status, time.monotonic()
        self._look()  # a page may have retired questions that cannot be shown
        self.queue.notices.beat(self.who, {"status": status, **state, **self._news(status)})

    def _news(self, status: str) -> dict[str, Any]:
        """Returns what else the heartbeat says."""
        return {"line": status}

    def announce(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None: ...


class TeacherGatherer(QueueGatherer):
    """Lets a synthetic teacher answer through the queue, as one more labeller beside people.

    Its random choices depend on seed, labeller and pair only, so the order of the pairs does not matter.
    """

    def __init__(self, db: PrefDB, teacher: SyntheticTeacher, labeller: str, seed: int) -> None:
        super().__init__(db, "label")
        self.teacher, self.labeller, self.seed = teacher, labeller, seed
        self.lease: Lease | None = None
        self._claim_at, self._printed_at = 0.0, time.monotonic()

    def drain(self) -> list[Answered]:
        now = time.monotonic()
        if now >= self._claim_at:
            leases = self.queue.claim(self.labeller)
            if leases:
                self._answer(leases[0])
            else:
                self._claim_at = now + CLAIM_SECONDS
        return super().drain()

    def _answer(self, lease: Lease) -> None:
        self.lease, shown_at = lease, time.time()
        # A repetition is judged again, and another labeller makes other mistakes.
        chance = (self.seed, int(lease.comparison_id, 16), int(lease.kind == "repeat"), *self.labeller.encode())
        self.teacher.rng = np.random.default_rng(chance)
        left, right = (self.db.stored_segment(segment_id).decode() for segment_id in (lease.left, lease.right))
        choice = side_of(self.teacher.poll(Comparison(left, right, flip=False)), flip=False)
        about = (lease.token, lease.comparison_id, self.labeller, choice, shown_at, time.time())
        # A conflict means that another process labels by this name; the pair has its answer all the same.
        self.queue.answers.add(Submission(uuid.uuid4().hex, *about, teacher=self.teacher.name))
        self.lease = None

    def tell(self, status: str, state: dict[str, Any]) -> None:
        """Reports progress from the current state: others may have answered or withdrawn questions meanwhile."""
        self._look()
        super().tell(status, state)
        if time.monotonic() >= self._printed_at + PRINT_SECONDS:  # the teacher has no screen that shows it
            self._printed_at = time.monotonic()
            print(status, flush=True)

    def close(self) -> None:
        """Gives back a pair that it could not judge."""
        if self.lease is not None:
            self.queue.leases.release([self.lease.token])
        self.lease = None
