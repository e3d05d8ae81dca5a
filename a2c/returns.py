"""Advantages and returns as pure functions on (T, N) arrays: T steps of N environments."""

from __future__ import annotations

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
    """The same estimates where the agent is not told that episodes end (paper, appendix A): one endless episode.

    What follows an episode's last step is the next episode's first one. The step between them, on which the
    environment reset, is no step of the agent's: it is passed over. Where a rollout ends between the two, the value of
    the last observation stands in for that of the next episode's first.

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
