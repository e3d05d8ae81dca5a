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


class ReturnScale:
    """Rewards as the critic learns them: less their mean, over the deviation of what they then come to discounted.

    So its targets are of the order of 1 and on both sides of 0, as its learning rate expects, whatever the task and the
    discount. Where every step costs something, as where a body without ends has to stand up first, all states are worth
    about the same without it: the Walker on its own reward stays on the ground. An end is worth 0 in rewards, and less
    the mean for ever after in these, so that policies compare as before. The discounted sum runs forward over an
    episode's rewards, for what is to come is not known yet.
    """

    limit = 10.0  # a reward beyond so many deviations counts as just so far

    def __init__(self, n_envs: int, gamma: float) -> None:
        self.gamma = gamma
        self.running = np.zeros(n_envs)  # discounted sums of the episodes' rewards, less their mean, up to now
        self.count, self.rewards, self.total, self.squares = 0, 0.0, 0.0, 0.0

    def scaled(self, rewards: Floats, terminated: Bools, truncated: Bools, valid: Bools) -> Floats:
        """Takes in a rollout's rewards (T, N), and returns them by the mean and deviation with these included.

        Args:
            terminated, truncated: (T, N), where an episode ended; where nothing follows an end, and where time ran out
                or the agent is not told of ends.
            valid: (T, N), False on the steps that reset, which do not count.
        """
        self.count += int(valid.sum())
        self.rewards += float(rewards[valid].sum(dtype=np.float64))
        mean = self.rewards / max(1, self.count) if self.gamma < 1 else 0.0
        centred = (rewards - mean) * valid
        ends = terminated * (self.gamma / (1 - self.gamma) * mean if mean else 0.0)
        for reward, ended, counts in zip(centred - ends, terminated | truncated, valid, strict=True):
            self.running = self.gamma * self.running + reward
            sums = self.running[counts]
            self.total += float(sums.sum())
            self.squares += float(np.square(sums).sum())
            self.running[ended] = 0.0
        variance = self.squares / max(1, self.count) - (self.total / max(1, self.count)) ** 2
        deviation = np.sqrt(max(variance, 1e-8))
        return ((centred / deviation).clip(-self.limit, self.limit) - ends / deviation).astype(np.float32)

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps; a resumed run's environments begin new episodes."""
        return {"count": self.count, "rewards": self.rewards, "total": self.total, "squares": self.squares}

    def load(self, state: dict[str, float]) -> None:
        """Goes on from what `state` returned; checkpoints from before rewards were centred begin anew."""
        if "rewards" in state:
            self.count, self.rewards = int(state["count"]), state["rewards"]
            self.total, self.squares = state["total"], state["squares"]
