"""Bounds of settings: declared beside each field of a dataclass, and checked in one place.

    n_envs: Annotated[int, at_least(1)] = 16

`check` refuses what a field's annotation excludes: numbers out of bounds, unknown names, and no text or boolean.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from drlhp.errors import UserError

LARGEST = 2**31 - 1  # of whatever is counted
# SQLite takes 63 bits and PyTorch 64. Environments have seeds that exceed the run's by some billions.
LARGEST_SEED = 2**62 - 1


@dataclass(frozen=True)
class Bounds:
    """The lowest and the highest number that a setting may have."""

    low: float
    high: float
    words: str  # after "a number" or "a whole number" in the message


def at_least(low: int) -> Bounds:
    """Returns the bounds of a number that is not limited otherwise."""
    return Bounds(low, LARGEST, f", {low} or more")


ANY = Bounds(-math.inf, math.inf, "")
POSITIVE = Bounds(math.ulp(0.0), sys.float_info.max, " above 0")
POSITIVE_OR_INFINITE = Bounds(math.ulp(0.0), math.inf, " above 0, or inf")
FINITE = Bounds(0.0, sys.float_info.max, ", 0 or more and finite")
SHARE = Bounds(0.0, 1.0, " from 0 to 1")
BELOW_ONE = Bounds(0.0, math.nextafter(1.0, 0.0), ", at least 0 and below 1")
SEED = Bounds(0, LARGEST_SEED, ", 0 or more, and below 2^62")


def check(settings: Any, prefix: str = "") -> None:
    """Checks the fields of a dataclass, in their order.

    Args:
        settings: the dataclass's instance.
        prefix: stands before a field's name in the message; `--` makes it a flag.

    Raises:
        UserError: a value cannot work.
    """
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        if (wanted := _wanted(hint, value)) is not None:
            raise UserError(f"{prefix}{name} must be {wanted}, not {value!r}.")


def _wanted(hint: Any, value: Any) -> str | None:
    """Returns the values that an annotation allows, in words; None if this value is one of them."""
    bounds = [about for about in get_args(hint)[1:] if isinstance(about, Bounds)] if _is_annotated(hint) else []
    kind = get_args(hint)[0] if _is_annotated(hint) else hint
    if kind is bool:
        return None if isinstance(value, (bool, np.bool_)) else "True or False"
    names = [name for part in (kind, *get_args(kind)) if get_origin(part) is Literal for name in get_args(part)]
    if get_origin(kind) is Literal:
        return None if value in names else _joined(names)
    if kind in (str, str | None):
        return None if _is_text(value) or (value is None and kind is not str) else "a text"
    if kind is float and not bounds:
        return _wanted_number(ANY, value, names, whole=False)
    if not bounds or value in names or (value is None and type(None) in get_args(kind)):
        return None
    return _wanted_number(bounds[0], value, names, whole=float not in (kind, *get_args(kind)))


def _wanted_number(bounds: Bounds, value: Any, names: list[str], *, whole: bool) -> str | None:
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if is_number and bounds.low <= value <= bounds.high:
        return None
    words = f", {bounds.high} or less" if is_number and value > bounds.high == LARGEST else bounds.words
    return _joined([*names, ("a whole number" if whole else "a number") + words])


def _is_text(value: Any) -> bool:
    """Returns whether a value is a text that may name a file, and can be stored and printed."""
    try:
        return isinstance(value, str) and b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def _joined(names: list[str]) -> str:
    """Returns the names in a row, as in "'a', 'b' or 'c'"."""
    *others, last = (name if name.startswith("a ") else repr(name) for name in names)
    return f"{', '.join(others)} or {last}" if others else last


def _is_annotated(hint: Any) -> bool:
    return get_origin(hint) is Annotated
