"""Measures how good the answers are: pace, bias to one side, agreement with oneself and others, errors per labeller."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from drlhp.labelling.answers import HistoryRow
from drlhp.labelling.reliability import Vote, error_rates, shared_votes

DECISIVE = ("first", "second")
Z95 = 1.959964  # standard normal, two-sided 95 %
MAX_SECONDS = 120.0  # a longer answer is a pause, not an answer's time
SHARES = {"equal_share": "equal", "incomparable_share": "can't tell", "undone_share": "taken back"}
LEAST_SHARED = 10  # answers to shared pairs; an error rate from fewer would mean nothing


@dataclass(frozen=True)
class Judgement:
    """An effective answer as the statistics need it."""

    labeller: str
    comparison_id: str
    choice: str  # the side: left, right, equal or incomparable
    value: str  # independent of the sides: first, second (by segment id), equal or incomparable
    seconds: float | None  # from shown to answered

    @classmethod
    def of(cls, row: HistoryRow) -> Judgement:
        """Returns the judgement of an answer; its value does not depend on the sides."""
        preferred = {"left": row.left, "right": row.right}.get(row.choice)
        first = preferred == min(row.left, row.right)
        value = row.choice if preferred is None else "first" if first else "second"
        seconds = None if row.shown_at is None else row.answered_at - row.shown_at
        return cls(row.labeller, row.comparison_id, row.choice, value, seconds)


@dataclass(frozen=True)
class LabellerQuality:
    """One labeller's row; None if there are too few answers."""

    labeller: str
    answers: int
    median_seconds: float | None
    p90_seconds: float | None
    undone_share: float  # of the answers ever given
    left_rate: float | None
    left_low: float | None
    left_high: float | None
    equal_share: float
    incomparable_share: float
    repeats: int
    self_consistency: float | None
    error_rate: float | None


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Returns the 95 % interval of a share (Wilson 1927); (0, 1) for n = 0."""
    if n == 0:
        return 0.0, 1.0
    p, z2 = successes / n, Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def krippendorff_alpha(units: Iterable[Sequence[Hashable]]) -> float | None:
    """Returns Krippendorff's alpha for nominal values (2011, "Computing Krippendorff's alpha-reliability", section C).

    Args:
        units: the values that each unit was given, one per rater; units with fewer than two do not count.

    It is 1 for agreement and 0 for chance; None if nothing was rated twice or all values are the same.
    """
    coincidences: Counter[tuple[Hashable, Hashable]] = Counter()
    for values in units:
        if len(values) < 2:
            continue
        counts = Counter(values)
        for c, n_c in counts.items():
            for k, n_k in counts.items():
                coincidences[c, k] += (n_c * (n_k - (c == k))) / (len(values) - 1)  # type: ignore[assignment]
    totals: Counter[Hashable] = Counter()
    for (c, _), n in coincidences.items():
        totals[c] += n
    n_pairable = sum(totals.values())
    expected = n_pairable**2 - sum(n**2 for n in totals.values())
    if n_pairable < 2 or expected <= 0:
        return None
    observed = sum(n for (c, k), n in coincidences.items() if c != k)
    return 1 - (n_pairable - 1) * observed / expected


def values_by_pair(judgements: Sequence[Judgement]) -> list[list[str]]:
    """Returns the values that each comparison was given: the newest answer of each labeller."""
    newest: dict[str, dict[str, str]] = defaultdict(dict)
    for judgement in judgements:
        newest[judgement.comparison_id][judgement.labeller] = judgement.value
    return [list(values.values()) for values in newest.values()]


def known_error_rates(judgements: Sequence[Judgement]) -> dict[str, float]:
    """Returns the error rates (`reliability.error_rates`) of labellers with at least ten answers to shared pairs."""
    shared = shared_votes([Vote(j.labeller, j.comparison_id, j.value) for j in judgements if j.value in DECISIVE])
    given = Counter(vote.labeller for one in shared for vote in one)
    return {name: rate for name, rate in error_rates(shared).items() if given[name] >= LEAST_SHARED}


def labeller_quality(
    labeller: str, judgements: Sequence[Judgement], error_rate: float | None, n_undone: int = 0
) -> LabellerQuality:
    """Returns the row of one labeller, from their judgements in order and the number of answers taken back."""
    n = len(judgements)
    choices = Counter(judgement.choice for judgement in judgements)
    decisive = choices["left"] + choices["right"]
    low, high = wilson(choices["left"], decisive)
    seconds = sorted(j.seconds for j in judgements if j.seconds is not None and 0 <= j.seconds <= MAX_SECONDS)
    by_pair: dict[str, list[Judgement]] = defaultdict(list)
    for judgement in judgements:
        by_pair[judgement.comparison_id].append(judgement)
    repeated = [answers for answers in by_pair.values() if len(answers) > 1]
    same = sum(answers[0].value == answers[-1].value for answers in repeated)
    return LabellerQuality(
        labeller=labeller,
        answers=n,
        median_seconds=statistics.median(seconds) if seconds else None,
        p90_seconds=seconds[math.ceil(0.9 * len(seconds)) - 1] if seconds else None,
        undone_share=n_undone / (n + n_undone) if n else 0.0,
        left_rate=choices["left"] / decisive if decisive else None,
        left_low=low if decisive else None,
        left_high=high if decisive else None,
        equal_share=choices["equal"] / n if n else 0.0,
        incomparable_share=choices["incomparable"] / n if n else 0.0,
        repeats=len(repeated),
        self_consistency=same / len(repeated) if repeated else None,
        error_rate=error_rate,
    )


def judged(newest_first: Sequence[HistoryRow]) -> list[Judgement]:
    """Returns the judgements of a history, oldest first."""
    return [Judgement.of(row) for row in reversed(newest_first)]


def quality(judgements: Sequence[Judgement], undone: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Returns the quality page as JSON values: a row per labeller, and the agreement between labellers.

    undone: how many answers each labeller has taken back.
    """
    by_labeller: dict[str, list[Judgement]] = defaultdict(list)
    for judgement in judgements:
        by_labeller[judgement.labeller].append(judgement)
    rates = known_error_rates(judgements)
    rows = [
        labeller_quality(name, own, rates.get(name), (undone or {}).get(name, 0))
        for name, own in sorted(by_labeller.items())
    ]
    shared = [values for values in values_by_pair(judgements) if len(values) > 1]
    return {
        "labellers": [asdict(row) for row in rows],
        "alpha": krippendorff_alpha(shared),
        "overlap": len(shared),
        "answers": len(judgements),
    }


def in_words(newest_first: Sequence[HistoryRow], undone: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the quality page as lines for a screen without tables."""
    found = quality(judged(newest_first), undone)
    lines = [f"{found['answers']} answers; {found['overlap']} pairs were answered by more than one person."]
    if found["alpha"] is not None:
        lines.append(f"They agree with Krippendorff's alpha = {found['alpha']:.2f} (1: always, 0: as by chance).")
    for one in found["labellers"]:
        pace = ""
        if one["median_seconds"] is not None:
            pace = f", {one['median_seconds']:.1f} s each (nine in ten within {one['p90_seconds']:.1f} s)"
        told = [f"{name} {one[key]:.0%}" for key, name in SHARES.items()]
        if one["left_rate"] is not None:
            told.insert(0, f"picks left {one['left_rate']:.0%} ({one['left_low']:.0%} to {one['left_high']:.0%})")
        if one["self_consistency"] is not None:
            told.append(f"same again {one['self_consistency']:.0%} of {one['repeats']}")
        if one["error_rate"] is not None:
            told.append(f"errors about {one['error_rate']:.0%}")
        lines += ["", f"{one['labeller']}: {one['answers']} answers{pace}", ", ".join(told)]
    return (
        *lines,
        "",
        "Picks left: share of the decided answers, with its 95% interval; far from 50% hints at a habit.",
        "Taken back: share of all answers given that were undone.",
        "Same again: pairs asked a second time, sides swapped. Errors: estimated from pairs with several answers.",
        "Nobody is judged by this page.",
    )
