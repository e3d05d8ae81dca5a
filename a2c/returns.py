"""Advantages and returns as pure functions on (T, N) arrays: T steps of N environments."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


def advantages(
    rewards: Floats,
    values: Floats,
    last_values: Floats,
    terminated: Bools,
    truncated: Bools,
    *,
    gamma: float,
    gae_lambda: float,
) -> Floats:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16); lambda 1 gives A2C's n-step advantages.

    The environments reset on the step after a done, so the value at t + 1 is that of the episode's last observation:
    a truncated episode is bootstrapped from it, a terminated one from 0.

    Args:
        rewards, values, terminated, truncated: (T, N); `values[t]` is V(observation t).
        last_values: (N,), V(observation T).

    Returns:
        (T, N) advantages; add `values` for the returns.
    """
    result = np.empty_like(rewards)
    next_values, carried = last_values, np.zeros_like(last_values)
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * next_values * ~terminated[t] - values[t]
        carried = delta + gamma * gae_lambda * carried * ~(terminated[t] | truncated[t])
        result[t], next_values = carried, values[t]
    return result


def continuing_advantages(
    rewards: Floats,
    values: Floats,
    last_values: Floats,
    valid: Bools,
    *,
    gamma: float,
    gae_lambda: float,
) -> Floats:
    """Returns the estimates of `advantages` as if all episodes were a single endless one (paper, appendix A).

    The agent does not learn where episodes end: an episode's last step is followed by the next one's first. The step
    between them, on which the environment reset, is skipped. If a rollout ends between the two, the value of the last
    observation replaces that of the next episode's first.

    Args:
        rewards, values, valid: (T, N); `valid` is False on the steps that reset.
        last_values: (N,), V(observation T).

    Returns:
        (T, N) advantages, 0 on the steps that reset; add `values` for the returns.
    """
    result = np.zeros_like(rewards)
    next_values, carried = last_values, np.zeros_like(last_values)
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * next_values - values[t]
        carried = np.where(valid[t], delta + gamma * gae_lambda * carried, carried)
        next_values = np.where(valid[t], values[t], next_values)
        result[t, valid[t]] = carried[valid[t]]
    return result


class ValueUnits:
    """The critic's units of value: standard deviations of the returns that it lately learned from, about their mean.

    So its targets are of the order of 1 and on both sides of 0, as its learning rate expects, for any task and
    discount. If every step costs something, all states are worth about the same, and in other units the critic learns
    nothing else. After PopArt (van Hasselt et al. 2016), whose weights compensate a change of the units. Here they do
    not, so that if all states become worth more, all values soon rise.
    """

    KEPT = ("rollouts", "mean", "square")
    share = 0.1  # of the newest rollout in the mean and the standard deviation; more in the first rollouts

    def __init__(self) -> None:
        self.rollouts, self.mean, self.square = 0, 0.0, 1.0

    @property
    def deviation(self) -> float:
        return math.sqrt(max(self.square - self.mean**2, 1e-8))

    @property
    def size(self) -> float:
        """The root of the mean square."""
        return math.sqrt(max(self.square, 1e-8))

    def values(self, told: Floats) -> Floats:
        """Converts the critic's outputs to the units of rewards."""
        return told * self.deviation + self.mean

    def targets(self, returns: Floats) -> Floats:
        """Converts returns to the critic's units."""
        return (returns - self.mean) / self.deviation

    def observe(self, returns: Floats) -> None:
        """Adds the returns of a rollout's steps, in the units of rewards; none if all its steps reset."""
        if not len(returns):
            return
        self.rollouts += 1
        share = max(self.share, 1 / self.rollouts)
        self.mean += share * (float(returns.mean(dtype=np.float64)) - self.mean)
        self.square += share * (float(np.square(returns, dtype=np.float64).mean()) - self.square)

    def state(self) -> dict[str, float]:
        """Returns the state for a checkpoint."""
        return {"rollouts": self.rollouts, "mean": self.mean, "square": self.square}

    def load(self, state: dict[str, float]) -> None:
        """Goes on from what `state` returned."""
        self.rollouts, self.mean, self.square = int(state["rollouts"]), state["mean"], state["square"]
