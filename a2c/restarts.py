"""Which episodes of bodies are given up in training, where nothing in the task ends them."""

from __future__ import annotations

from collections import deque

import numpy as np

from a2c.returns import Bools, Floats, ValueUnits

STARTS = 64  # newest episodes, of whose starts the values are averaged
FEWEST_STARTS = 16  # before such an average is gone by
MARGIN = 0.5  # deviations of returns; at 0 an agent that went on as well as it began never saw what comes later


class Restarts:
    """Lets an episode go on unless the critic expects much less of it than of a new one.

    A body that fell, in a task that does not end there, would spend most of the training on the ground. An episode is
    cut as by a time limit: its returns go on with the critic's value, so that the cut itself teaches nothing, and it
    depends on nothing but the rewards that the policy learns from.

    Args:
        first: steps for which every episode lasts, and about as long as the first ones last.
    """

    def __init__(self, n_envs: int, first: int) -> None:
        self._first = first
        self.given_up = np.zeros(n_envs, np.bool_)  # (N,) which episodes are to end where the next rollout begins
        self._ages = np.zeros(n_envs, np.int64)
        self._start_values: deque[float] = deque(maxlen=STARTS)

    def wait(self, valid: Bools) -> None:
        """Goes by the age of episodes alone, after a rollout of which the critic knows nothing yet.

        Args:
            valid: (T, N) False on the steps that began an episode.
        """
        for goes_on in valid:
            self._ages = np.where(goes_on, self._ages + 1, 0)
        self.given_up = self._ages >= self._first

    def judge(self, valid: Bools, told: Floats, told_last: Floats, units: ValueUnits) -> None:
        """Decides by what the critic told in a rollout, in these units.

        Args:
            valid: (T, N) False on the steps that began an episode.
            told: (T, N) of what was seen before each step.
            told_last: (N,) of what was seen last.
        """
        self.wait(valid)
        self._start_values.extend(units.values(told[1:][valid[1:] & ~valid[:-1]]).tolist())
        if len(self._start_values) >= FEWEST_STARTS:
            least = np.mean(self._start_values) - MARGIN * units.deviation
            self.given_up &= units.values(told_last) < least
