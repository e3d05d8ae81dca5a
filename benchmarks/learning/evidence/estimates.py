"""Estimates from a few seeds, as rliable defines them (Agarwal et al. 2021), computed by SciPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy  # which imports its `stats` when that is used: it takes a second and a half

RESAMPLES = 9999
SEED = 0  # so that the same results make the same tables
Values = Sequence[float] | np.ndarray


def iqm(values: Values, axis: int = -1) -> np.ndarray:
    """Returns the interquartile mean: without the lowest and highest quarter (rounded down to whole seeds)."""
    return np.asarray(scipy.stats.trim_mean(values, 0.25, axis=axis))


def improvement(*samples: Values, axis: int = -1) -> np.ndarray:
    """Returns the probability that a run of the first kind beats one of the second; a tie counts as half.

    Args:
        samples: the runs of both kinds on one task, then those on the next; the mean of the tasks is returned.
    """
    shares = []
    with np.errstate(invalid="ignore"):  # of the test's p-value, which nobody reads, if all runs are equal
        for first, second in zip(samples[::2], samples[1::2], strict=True):
            wins = scipy.stats.mannwhitneyu(first, second, axis=axis, method="asymptotic").statistic
            shares.append(wins / (np.shape(first)[axis] * np.shape(second)[axis]))
    return np.asarray(np.mean(shares, axis=0))


def interval(statistic: Callable[..., np.ndarray], *samples: Values) -> tuple[float, float] | None:
    """Returns the 95 % interval by the stratified percentile bootstrap; None if a sample is a single run.

    Stratified: runs are drawn again within each sample, that is within a task and a kind of reward.
    """
    if min(map(len, samples)) < 2:
        return None
    rng = np.random.default_rng(SEED)
    options = {"n_resamples": RESAMPLES, "method": "percentile", "vectorized": True, "axis": -1, "rng": rng}
    found = scipy.stats.bootstrap(samples, statistic, **options).confidence_interval
    return float(found.low), float(found.high)
