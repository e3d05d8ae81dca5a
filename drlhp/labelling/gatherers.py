"""Ways from a comparison to its answer: a synthetic teacher, a script, a person at this screen, people elsewhere.

Each takes comparisons at any time and tells of answers when it has some, by the comparison's id: nothing waits, and
answers may come in any order, or never. An answer is on disk before it is told.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from label_queue import LABELLER, LabelQueue, Lease, Submission, Who
from label_queue import Choice as Side
from person import CLAIM_SECONDS, Person, Presses, Screen, Ui, open_screen
from pref_db import Choice, Comparison, Label, PrefDB, PrefDBError
from teachers import SyntheticTeacher

log = logging.getLogger("run")

ANSWERS_PER_COMMIT = 64
PERSON_AHEAD = 3  # few, so that a clip is young when it is asked about
PEOPLE_AHEAD = 24  # several people, of whom each has the next pairs on their page already
TELL_SECONDS = 2.0  # each word to those who label elsewhere is written to disk
# How a choice reads for a pair whose first segment is on the left.
SIDES: dict[Choice, Side] = {
    Choice.A: "left",
    Choice.B: "right",
    Choice.EQUAL: "equal",
    Choice.INCOMPARABLE: "incomparable",
}


class Drawing:
    """Pairs whose clips are being drawn, which takes a second, in a thread: a person's screen must not stand still.

    They are drawn and stored here, since who shows them may be a process that cannot draw.
    """

    def __init__(self) -> None:
        self.open: dict[str, Future[Comparison]] = {}  # by the comparison's id
        self.trouble = ""  # why the last pair could not be drawn; empty where it was
        self._artist = ThreadPoolExecutor(1, "drawing")

    def begin(self, comparison: Comparison) -> None:
        """Draws what is not drawn yet."""
        if comparison.is_drawn:
            self.open[comparison.id] = Future()
            self.open[comparison.id].set_result(comparison)
        else:
            self.open[comparison.id] = self._artist.submit(comparison.drawn)

    def done(self) -> list[Comparison]:
        """The pairs that can be shown by now; one that cannot be drawn is left out."""
        drawn = []
        for id, future in list(self.open.items()):
            if not future.done():
                continue
            del self.open[id]
            try:
                drawn.append(future.result())
                self.trouble = ""
            except Exception as error:  # a renderer may raise anything
                self.trouble = f"A pair was left out: {error}"
                log.warning("%s", self.trouble)
        return drawn

    def status(self) -> str:
        """What is drawn, or what became of it, in words; empty where there is nothing to tell."""
        return f"Drawing {2 * len(self.open)} clips" if self.open else self.trouble

    def close(self) -> None:
        """Leaves what is not drawn yet."""
        self._artist.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Answered:
    """What became of a comparison. `choice`: by the order in which it was first asked; None: taken back, open again.

    `label` is what the trainer should know of: a label or a retraction; None where it has nothing to do.
    """

    comparison_id: str
    choice: Choice | None
    label: Label | None


class PreferenceGatherer(Protocol):
    """Who is asked. Neither method waits."""

    is_person: bool  # people see clips, set the pace, and may leave
    ahead: int  # comparisons that it wants to have open at once

    @property
    def ended(self) -> bool:
        """Whether no answers will come any more."""

    @property
    def pending(self) -> Collection[str]:
        """Ids of the comparisons that are open."""

    def submit(self, comparisons: Sequence[Comparison]) -> None:
        """Asks; what was asked before is left as it is."""

    def drain(self) -> list[Answered]:
        """What was answered or taken back since the last call, in order."""

    def withdraw(self, older_than_policy_step: int) -> None:
        """Takes back what is older and was seen by nobody, if it can."""

    def tell(self, status: str, state: dict[str, Any]) -> None:
        """What people may want to know: a line about how far it is, and numbers."""

    def close(self) -> None: ...


class Answerer(Protocol):
    """A program that answers at once: a `teachers.SyntheticTeacher`, or a Script."""

    name: str  # kept with each answer

    def poll(self, comparison: Comparison) -> Choice | None:
        """The answer; None if it has none any more."""


class Script:
    """Answers from a list, in the order in which they are asked for."""

    name = "script"

    def __init__(self, choices: Iterable[Choice]) -> None:
        self._choices = iter(choices)

    def poll(self, comparison: Comparison) -> Choice | None:
        return next(self._choices, None)


class SyntheticGatherer:
    """A program answers, in the order of asking, with one commit for many answers."""

    is_person, ended = False, False
    ahead = ANSWERS_PER_COMMIT

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

    def close(self) -> None: ...


class QueueGatherer:
    """People answer, wherever they are, through the queue in the store.

    Args:
        who: tells them how far it is: the run, or `label`, which may be there beside it.
    """

    is_person = True
    ahead = PEOPLE_AHEAD

    def __init__(self, db: PrefDB, who: Who = "run") -> None:
        self.db, self.queue, self.who = db, LabelQueue(db), who
        self._told, self._told_at = "", 0.0
        self._last_seq = db.read("SELECT coalesce(max(seq), 0) FROM answer")[0][0]
        self.pending: Collection[str] = ()
        self._look()

    @property
    def ended(self) -> bool:
        return False

    def submit(self, comparisons: Sequence[Comparison]) -> None:
        self.queue.submit(comparisons)
        self._look()

    def drain(self) -> list[Answered]:
        columns = "seq, comparison_id, choice, preferred = segment_a"
        source = "answer JOIN comparison ON comparison.id = comparison_id"
        rows = self.db.read(f"SELECT {columns} FROM {source} WHERE seq > ? ORDER BY seq", (self._last_seq,))
        if not rows:
            return []
        labels = {label.seq: label for label in self.db.labels(after=self._last_seq)}
        self._last_seq = rows[-1][0]
        self._look()
        answered = []
        for seq, comparison_id, stored, prefers_a in rows:
            choice = None
            if stored != "retracted":
                choice = (Choice.A if prefers_a else Choice.B) if stored == "preferred" else Choice(stored)
            answered.append(Answered(comparison_id, choice, labels.get(seq)))
        return answered

    def _look(self) -> None:
        # A pair that a second person may be asked about has its label already.
        answered = "SELECT 1 FROM effective_answer AS a WHERE a.comparison_id = query.comparison_id"
        unanswered = f"SELECT comparison_id FROM query WHERE state = 'ready' AND NOT EXISTS ({answered})"
        self.pending = {row[0] for row in self.db.read(unanswered)}

    def withdraw(self, older_than_policy_step: int) -> None:
        if self.pending and self.queue.withdraw(older_than_policy_step):
            self._look()

    def tell(self, status: str, state: dict[str, Any]) -> None:
        if status == self._told and time.monotonic() < self._told_at + TELL_SECONDS:
            return
        self._told, self._told_at = status, time.monotonic()
        self._look()  # a page may have taken questions back that cannot be shown
        self.queue.beat(self.who, {"status": status, **state, **self._news(status)})

    def _news(self, status: str) -> dict[str, Any]:
        """What else there is to tell."""
        return {"line": status}

    def close(self) -> None: ...


class PersonGatherer(QueueGatherer):
    """One person answers at this screen; others may help from elsewhere."""

    ahead = PERSON_AHEAD

    def __init__(
        self,
        db: PrefDB,
        screen: Screen,
        presses: Presses | None = None,
        labeller: str = LABELLER,
        who: Who = "run",
    ) -> None:
        super().__init__(db, who)
        self.person = Person(self.queue, screen, presses, labeller)
        self._helped = False

    @property
    def ended(self) -> bool:
        return self.person.ended and not self._helped

    def drain(self) -> list[Answered]:
        self.person.step()
        return super().drain()

    def tell(self, status: str, state: dict[str, Any]) -> None:
        self._look()  # what cannot be shown has been taken back
        super().tell(status, state)
        # Whether somebody answers the run's questions through `label`.
        self._helped = self.person.ended and self.who == "run" and self.queue.goes_on("label")
        self.person.status = status
        self.person.before_training = state.get("labels", 0) < state.get("initial_labels", 0)
        self.person.labels_left = max(0, (state.get("goal") or 0) - state.get("labels", 0))

    def _news(self, status: str) -> dict[str, Any]:
        return {**super()._news(status), "labellers": [] if self.person.ended else [self.person.labeller]}

    def close(self) -> None:
        self.person.close()
        with contextlib.suppress(PrefDBError):  # it may be the store that failed
            self.queue.beat(self.who, {"status": self._told, "labellers": []})


class TeacherGatherer(QueueGatherer):
    """A synthetic teacher answers through the queue, as one more labeller beside people.

    What it leaves to chance depends on seed, labeller and pair alone, in whatever order the pairs come.
    """

    def __init__(self, db: PrefDB, teacher: SyntheticTeacher, labeller: str, seed: int) -> None:
        super().__init__(db, "label")
        self.teacher, self.labeller, self.seed = teacher, labeller, seed
        self.lease: Lease | None = None
        self._claim_at = 0.0

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
        # A repetition is judged anew, and another labeller makes other mistakes.
        chance = (self.seed, int(lease.comparison_id, 16), int(lease.kind == "repeat"), *self.labeller.encode())
        self.teacher.rng = np.random.default_rng(chance)
        left, right = (self.db.stored_segment(segment_id).decode() for segment_id in (lease.left, lease.right))
        choice = SIDES[self.teacher.poll(Comparison(left, right, flip=False))]
        about = (lease.token, lease.comparison_id, self.labeller, choice, shown_at, time.time())
        # A conflict, where another process labels by this name, is as good: the pair has its answer.
        self.queue.answer(Submission(uuid.uuid4().hex, *about, teacher=self.teacher.name))
        self.lease = None

    def tell(self, status: str, state: dict[str, Any]) -> None:
        """That somebody answers here; others may have answered meanwhile, too, or taken questions back."""
        self._look()
        super().tell(status, state)

    def close(self) -> None:
        """Gives back what it could not judge."""
        if self.lease is not None:
            self.queue.release([self.lease.token])
        self.lease = None


def gatherer_for(ui: Ui, db: PrefDB, labeller: str = LABELLER, who: Who = "run") -> PreferenceGatherer:
    """Who is asked where people label: the person at this screen. Raises DisplayError."""
    return PersonGatherer(db, *open_screen(ui), labeller, who)
