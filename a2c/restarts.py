"""Decides which episodes of bodies to give up in training, if nothing in the task ends them."""

from __future__ import annotations

from collections import deque

import numpy as np

from a2c.config import PolicyConfig
from a2c.returns import Bools, Floats
from envs import EnvInfo

STARTS = 64  # newest episodes; the values of their starts are averaged
FEWEST_STARTS = 16  # with fewer the average is not used
MARGIN = (
    0.5  # standard deviations of returns; at 0 an agent that goes on as well as it began never sees what comes later
)


class Restarts:
    """Lets an episode go on unless the critic expects much less of it than of a new one.

    If the task does not end when a body falls, the body would spend most of the training on the ground. An episode is
    cut as by a time limit: its returns go on with the critic's value, so that the cut itself teaches nothing. The
    decision depends only on the rewards that the policy learns from.

    Args:
        first: least steps of an episode, and about the length of the first ones.
    """

    KEPT = ("given_up", "_ages", "_start_values")

    def __init__(self, n_envs: int, first: int) -> None:
        self._first = first
        self.given_up = np.zeros(n_envs, np.bool_)  # (N,) episodes that the next rollout ends at its start
        self._ages = np.zeros(n_envs, np.int64)
        self._start_values: deque[float] = deque(maxlen=STARTS)

    @classmethod
    def of(cls, config: PolicyConfig, info: EnvInfo) -> Restarts | None:
        """Returns None if all episodes are to be whole."""
        first = config.first_episode_steps
        return cls(config.n_envs, max(first, info.segment_length)) if first else None

    def wait(self, valid: Bools) -> None:
        """Decides by the age of episodes alone, after a rollout that the critic cannot judge yet.

        Args:
            valid: (T, N) False on the steps that began an episode.
        """
        for goes_on in valid:
            self._ages = np.where(goes_on, self._ages + 1, 0)
        self.given_up = self._ages >= self._first

    def judge(self, valid: Bools, values: Floats, last_values: Floats, deviation: float) -> None:
        """Decides by the critic's values in a rollout.

        Args:
            valid: (T, N) False on the steps that began an episode.
            values: (T, N) before each step, in the units of rewards.
            last_values: (N,) after the last step.
            deviation: the standard deviation of returns.
        """
        self.wait(valid)
        self._start_values.extend(values[1:][valid[1:] & ~valid[:-1]].tolist())
        if len(self._start_values) >= FEWEST_STARTS:
            self.given_up &= last_values < np.mean(self._start_values) - MARGIN * deviation
