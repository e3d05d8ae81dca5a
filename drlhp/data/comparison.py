"""Comparisons (questions about two segments), the choices that answer them, and the labels that these give."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Literal

from drlhp.data.segment import Segment

VALIDATION_FRACTION = 1 / 5

Side = Literal["left", "right", "equal", "incomparable"]  # a choice in terms of what the labeller saw


class Choice(StrEnum):
    """An answer to a comparison, whichever side its segments were shown on; an incomparable one gives no label."""

    A = "a"
    B = "b"
    EQUAL = "equal"
    INCOMPARABLE = "incomparable"

    @property
    def reversed(self) -> Choice:
        """Returns the same answer to the pair in the other order."""
        return {Choice.A: Choice.B, Choice.B: Choice.A}.get(self, self)

    def columns(self, a: str, b: str) -> tuple[str, str | None]:
        """Returns the store's columns `choice` and `preferred` for a pair of segment ids."""
        preferred = {Choice.A: a, Choice.B: b}.get(self)
        return ("preferred", preferred) if preferred else (self.value, None)

    @classmethod
    def of_columns(cls, choice: str, preferred: str | None, a: str) -> Choice | None:
        """Returns what the store's columns mean for a pair whose first segment is `a`; None for a retraction."""
        if choice == "retracted":
            return None
        return (cls.A if preferred == a else cls.B) if choice == "preferred" else cls(choice)


# Each choice as the labeller sees it, if the pair's first segment is on the left.
SIDES: dict[Choice, Side] = {
    Choice.A: "left",
    Choice.B: "right",
    Choice.EQUAL: "equal",
    Choice.INCOMPARABLE: "incomparable",
}
CHOICES = {side: choice for choice, side in SIDES.items()}
# mu of the label that a choice gives: the probabilities that a and b are preferred.
MU = {Choice.A: (1.0, 0.0), Choice.B: (0.0, 1.0), Choice.EQUAL: (0.5, 0.5)}


def side_of(choice: Choice, *, flip: bool) -> Side:
    """Returns the choice as the labeller saw it; flip: the pair's second segment was on the left."""
    return SIDES[choice.reversed if flip else choice]


def choice_of(side: Side, *, flip: bool) -> Choice:
    """Returns the choice of a labeller; flip: the pair's second segment was on the left."""
    return CHOICES[side].reversed if flip else CHOICES[side]


@dataclass(frozen=True)
class Comparison:
    """A question about two segments of one environment; flip: b is shown on the left."""

    a: Segment
    b: Segment
    flip: bool

    def __post_init__(self) -> None:
        if self.a.env_id != self.b.env_id:
            received = f"{self.a.env_id} and {self.b.env_id}"
            raise ValueError(f"expected two segments of one environment; received {received}")

    @cached_property
    def id(self) -> str:
        """Returns the sha256 (hex) of the unordered pair, so that the same pair is recognised."""
        return self.id_of(self.a.id, self.b.id)

    @property
    def is_drawn(self) -> bool:
        """Returns whether both segments can be shown as they are."""
        return self.a.is_drawn and self.b.is_drawn

    def drawn(self) -> Comparison:
        """Returns the same question with the clips of both segments drawn; raises what the drawer does."""
        return replace(self, a=self.a.drawn(), b=self.b.drawn())

    @staticmethod
    def id_of(a: str, b: str) -> str:
        """Returns the id of the pair with these segment ids."""
        return hashlib.sha256("\n".join(sorted((a, b))).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """An effective answer as stored and exported; times are unix seconds. `a` and `b` are segment ids."""

    client_id: str
    comparison_id: str
    a: str
    b: str
    choice: Choice
    flip: bool
    teacher: str
    shown_at: float | None
    answered_at: float
    labeller: str | None = None  # a person's nickname
    watched_ms: int | None = None
    replays: int = 0
    speed: float = 1.0
    late: bool = False
    flag: bool = False
    note: str = ""


@dataclass(frozen=True)
class Label:
    """An answered comparison that trains the predictor, or (mu None) a pure retraction of an earlier one.

    `a` and `b` are segment ids in the order in which the pair was first asked. `retracts` may name an answer that gave
    no label or was never delivered; then the trainer has nothing to drop.
    """

    seq: int
    comparison_id: str
    a: str
    b: str
    mu: tuple[float, float] | None  # P(a preferred), P(b preferred)
    validation: bool
    retracts: int | None = None  # seq of the answer that this one takes back or replaces


def is_validation(comparison_id: str) -> bool:
    """Returns whether a comparison is held out: about 1 in 5, decided by its id alone."""
    digest = hashlib.sha256(comparison_id.encode()).digest()
    return int.from_bytes(digest[:4], "big") < VALIDATION_FRACTION * 2**32
