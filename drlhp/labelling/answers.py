"""Records of what a labeller is asked and answers: leases, submissions, receipts and rows of the history."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

from drlhp.data.comparison import Side
from drlhp.errors import PrefDBError

LABELLER = "me"  # nickname of a labeller on the run's own machine who gives no other
PERSON = "person"  # answer.teacher of answers that people give
MAX_NOTE, MAX_NICKNAME = 500, 40  # characters
CLAIM_SECONDS = 0.2  # between two claims while there is no pair


class SubmissionError(PrefDBError):
    """A labeller's submission cannot be stored; the message is one sentence."""


@dataclass(frozen=True)
class Lease:
    """A pair that one labeller has before them; `left` and `right` are segment ids, as they are shown."""

    token: str
    comparison_id: str
    left: str
    right: str
    flip: bool  # the pair's second segment is on the left
    kind: str
    expires_at: float
    env_id: str
    fps: float  # agent steps per second in real time
    steps: int  # of the longer segment


@dataclass(frozen=True)
class Submission:
    """An answer as a labeller gives it. `supersedes`: seq of the labeller's own answer that this one edits."""

    client_id: str  # made by the sender; the same one again is the same answer
    token: str
    comparison_id: str
    labeller: str
    choice: Side
    shown_at: float
    answered_at: float
    watched_ms: int | None = None
    replays: int = 0
    speed: float = 1.0
    flag: bool = False
    note: str = ""
    supersedes: int | None = None
    teacher: str = PERSON  # or the name of a program that answers beside people

    def check(self) -> None:
        """Raises SubmissionError if a field is out of its range."""
        check_labeller(self.labeller)
        whole = (self.replays, 0 if self.watched_ms is None else self.watched_ms)
        wrong = {
            "client_id must be 1 to 64 of A-Z, a-z, 0-9, _ and -": not re.fullmatch(
                r"[\w-]{1,64}", self.client_id, re.A
            ),
            f"choice must be one of {', '.join(get_args(Side))}": self.choice not in get_args(Side),
            "shown_at and answered_at must be numbers": not math.isfinite(self.shown_at + self.answered_at),
            "speed must be a number above 0": not 0 < self.speed < math.inf,
            "watched_ms and replays must be whole numbers of 0 or more": not all(0 <= n < 2**53 for n in whole),
            f"note must be {MAX_NOTE} characters or fewer": len(self.note) > MAX_NOTE,
        }
        for sentence, holds in wrong.items():
            if holds:
                raise SubmissionError(f"{sentence}.")


@dataclass(frozen=True)
class Receipt:
    """The outcome of a submission, with the row that is in the store now.

    `stored`: committed. `late`: committed, but the lease had expired. `known`: this client_id was stored before.
    `conflict`: nothing was stored, because the labeller has another answer to this pair or edits an old one.
    """

    status: Literal["stored", "known", "conflict", "late"]
    seq: int
    choice: str


@dataclass(frozen=True)
class HistoryRow:
    """An effective answer of a labeller; `left` and `right` are segment ids as they were shown."""

    seq: int
    comparison_id: str
    labeller: str
    choice: str
    left: str
    right: str
    token: str
    shown_at: float | None
    answered_at: float
    watched_ms: int | None
    replays: int
    speed: float
    late: bool
    flag: bool
    note: str


@dataclass(frozen=True)
class Counts:
    """Numbers of effective labels and answers, and of queries that are free, on lease and withdrawn."""

    labels: int
    answers: int
    ready: int
    leased: int
    withdrawn: int


def check_labeller(labeller: str) -> None:
    """Raises SubmissionError unless the nickname has an allowed length and can be printed."""
    if not 1 <= len(labeller) <= MAX_NICKNAME or not labeller.isprintable() or labeller.isspace():
        raise SubmissionError(f"a nickname must be 1 to {MAX_NICKNAME} printable characters.")


def flip_of(labeller: str, comparison_id: str) -> bool:
    """Returns whether this labeller sees the pair's second segment on the left: random, but always the same."""
    digest = hashlib.blake2b(f"{labeller}\n{comparison_id}".encode()).digest()
    return bool(digest[-1] & 1)
