"""Statistics of the answers, against other implementations and against answers whose quality is known."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

import krippendorff
import numpy as np
import pytest

from drlhp.labelling.answers import Submission
from drlhp.labelling.quality import Judgement, in_words, known_error_rates, krippendorff_alpha, quality, wilson
from drlhp.labelling.queue import LabelQueue
from pref_db import PrefDB
from tests.support.labelling import make_store


def judgement(
    labeller: str, pair: object, value: str, choice: str | None = None, seconds: float | None = 3
) -> Judgement:
    return Judgement(
        labeller, str(pair), choice or {"first": "left", "second": "right"}.get(value, value), value, seconds
    )


@pytest.mark.parametrize("seed", range(5))
def test_alpha_is_that_of_the_krippendorff_package(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 4, 40)
    ratings = np.where(rng.random((3, 40)) < 0.3, rng.integers(0, 4, (3, 40)), truth).astype(float)
    ratings[rng.random((3, 40)) < 0.3] = np.nan  # not everybody rates everything
    units = [[value for value in unit if not math.isnan(value)] for unit in ratings.T]
    expected = krippendorff.alpha(reliability_data=ratings, level_of_measurement="nominal")
    assert krippendorff_alpha(units) == pytest.approx(expected, abs=1e-12)


def test_alpha_needs_something_to_compare() -> None:
    assert krippendorff_alpha([]) is None
    assert krippendorff_alpha([["a"], ["b"]]) is None
    assert krippendorff_alpha([["a", "a"], ["a", "a"]]) is None, "chance would agree as well"
    assert krippendorff_alpha([["a", "a"], ["b", "b"]]) == 1


def test_wilson_interval() -> None:
    low, high = wilson(8, 10)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)  # Newcombe 1998, table I's method 3
    assert wilson(0, 0) == (0, 1)


def test_error_rates_are_found_from_shared_pairs() -> None:
    rng = np.random.default_rng(0)
    rates = {"careful": 0.02, "usual": 0.1, "hasty": 0.3}
    answers = []
    for pair in range(2000):
        for labeller, rate in rates.items():
            answers.append(judgement(labeller, pair, "second" if rng.random() < rate else "first"))
    found = known_error_rates(answers)
    for labeller, rate in rates.items():
        assert found[labeller] == pytest.approx(rate, abs=0.02)


def test_one_persons_error_rate_comes_from_repetitions() -> None:
    rng = np.random.default_rng(1)
    answers = [
        judgement("me", pair, "second" if rng.random() < 0.1 else "first") for pair in range(2000) for _ in range(2)
    ]
    assert known_error_rates(answers)["me"] == pytest.approx(0.1, abs=0.02)
    assert known_error_rates(answers[:4]) == {}, "too few to tell"


def test_the_page_of_quality() -> None:
    answers = [judgement("a", i, "first", "left", seconds) for i, seconds in enumerate((2, 4, 900, None))]
    answers += [judgement("a", 0, "second", "left", 4), judgement("a", 1, "first", "right", 4)]
    answers += [judgement("b", 0, "equal"), judgement("b", 5, "incomparable")]
    page = quality(answers, {"a": 2})
    a, b = page["labellers"]
    assert (a["answers"], a["median_seconds"]) == (6, 4), "a pause is no answer's time"
    assert (a["p90_seconds"], a["undone_share"], b["undone_share"]) == (4, 0.25, 0)
    assert a["left_rate"] == pytest.approx(5 / 6) and a["left_low"] < 5 / 6 < a["left_high"]
    assert (a["repeats"], a["self_consistency"]) == (2, 0.5), "another segment was preferred the second time"
    assert (b["equal_share"], b["incomparable_share"], b["left_rate"]) == (0.5, 0.5, None)
    assert page["overlap"] == 1 and a["error_rate"] is None


def test_a_screen_without_tables_tells_of_slow_answers_and_of_those_that_were_taken_back(tmp_path: Path) -> None:
    with closing(PrefDB.open(make_store(tmp_path, 4))) as db:
        queue = LabelQueue(db)
        for n, lease in enumerate(queue.claim("me", 4)):
            about = (lease.token, lease.token, lease.comparison_id)
            queue.answers.add(Submission(*about, "me", "equal", shown_at=100.0 * n, answered_at=100.0 * n + 2 + n))
        assert queue.answers.undo("me")
        words = in_words(queue.answers.history(), queue.answers.undone())
    assert "me: 3 answers, 3.0 s each (nine in ten within 4.0 s)" in words
    assert "equal 100%, can't tell 0%, taken back 25%" in words
