"""How many labels are due as the policy trains."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from drlhp.queries.schedule import labels_due


@pytest.mark.parametrize(("n_initial", "n_total"), [(500, 5500), (0, 700), (250, 500)])
def test_labels_come_at_the_papers_rate(n_initial: int, n_total: int) -> None:
    """The rate falls as c / (T + c) with c = Tmax / 10: 5M of 50M steps (appendix A.2); here it is summed up."""
    max_steps, c, parts = 50e6, 5e6, 20_000
    steps = (np.arange(parts) + 0.5) * max_steps / parts
    share = np.cumsum(c / (steps + c)) / np.sum(c / (steps + c))
    for part in range(999, parts, 1000):
        expected = n_initial + (n_total - n_initial) * share[part]
        assert labels_due((part + 1) * max_steps / parts, max_steps, n_initial, n_total) == pytest.approx(
            expected, abs=1.1
        )


def test_labels_due_start_at_the_initial_ones_and_end_at_all() -> None:
    assert labels_due(0, 1000, 500, 5500) == 500
    assert labels_due(1000, 1000, 500, 5500) == labels_due(5000, 1000, 500, 5500) == 5500
    due = [labels_due(steps, 1000, 500, 5500) for steps in range(1001)]
    assert all(0 <= later - earlier < 60 for earlier, later in itertools.pairwise(due))


def test_the_other_schedules() -> None:
    steps = np.linspace(0, 1000, 11)
    # The paper on Atari: stepped down every 5M of 50M steps, in proportion to 5M / (T + 5M)
    asked = np.array([labels_due(step, 1000, 500, 100_500, "stepped") for step in np.linspace(0, 1000, 21)])
    tenth = (asked[2:] - asked[:-2])[::2]
    assert tenth / tenth[0] == pytest.approx(1 / np.arange(1, 11), abs=1e-4) and (asked[0], asked[-1]) == (500, 100_500)
    assert (asked[1:] - asked[:-1])[::2] == pytest.approx((asked[1:] - asked[:-1])[1::2], abs=2), "even within a tenth"
    due = [labels_due(step, 1000, 500, 1500, "constant") for step in steps]
    assert due == pytest.approx(np.linspace(500, 1500, 11), abs=1)
    due = [labels_due(step, 1000, 250, 1000, "exponential") for step in steps]
    # rl-teacher: n(t) = N (f0 + (1 - f0)(1 - 0.01^(t / T))), here with f0 = 1/4
    assert due == pytest.approx([1000 * (0.25 + 0.75 * (1 - 0.01 ** (step / 1000))) for step in steps], abs=1)
