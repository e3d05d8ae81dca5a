"""TODO."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from drlhp.data.segment import Segment

VALIDATION_FRACTION = 1 / 5


class Choice(StrEnum):
    """An answer to a comparison; incomparable ones are kept but give no label."""

    A = "a"
    B = "b"
    EQUAL = "equal"
    INCOMPARABLE = "incomparable"


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
        """sha256 (hex) of the unordered pair, so that the same pair is recognised."""
        return self.id_of(self.a.id, self.b.id)

    @property
    def is_drawn(self) -> bool:
        """Whether both segments can be shown as they are."""
        return self.a.is_drawn and self.b.is_drawn

    def drawn(self) -> Comparison:
        """The same question with the clips of both segments drawn; raises what the drawer does."""
        return replace(self, a=self.a.drawn(), b=self.b.drawn())

    @staticmethod
    def id_of(a: str, b: str) -> str:
        """The id of the pair of two segments' ids."""
        return hashlib.sha256("\n".join(sorted((a, b))).encode()).hexdigest()


@dataclass(frozen=True)
class Label:
    """An answered comparison that trains the predictor, or (mu None) a pure retraction of an earlier one.

    `a` and `b` are segment ids in the order in which the pair was first asked. `retracts` may name an
    answer that gave no label or was never delivered: then there is nothing to drop.
    """

    seq: int
    comparison_id: str
    a: str
    b: str
    mu: tuple[float, float] | None  # P(a preferred), P(b preferred)
    validation: bool
    retracts: int | None = None  # seq of the answer that this one takes back or replaces


def is_validation(comparison_id: str) -> bool:
    """The fixed split: about 1 comparison in 5, decided by its id alone."""
    digest = hashlib.sha256(comparison_id.encode()).digest()
    return int.from_bytes(digest[:4], "big") < VALIDATION_FRACTION * 2**32
