"""Environments whose true rewards are given numbers, and a teacher that does not read them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box, Discrete

from drlhp.data.segment import Segment


class PoisonedPole(CartPoleEnv):
    """Gymnasium's pole, whose rewards are these numbers in turn."""

    def __init__(self, rewards: list[float], **rest: Any) -> None:
        super().__init__(**rest)
        self.rewards, self.t = rewards, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        self.t += 1
        return observation, self.rewards[self.t % len(self.rewards)], terminated, truncated, info


class PoisonedPicture(gymnasium.Env):
    """A square that goes left and right, whose rewards are these numbers in turn."""

    observation_space, action_space = Box(0, 255, (84, 84, 3), np.uint8), Discrete(3)
    metadata = {"render_modes": []}  # noqa: RUF012  # as Gymnasium has it

    def __init__(self, rewards: list[float], render_mode: str | None = None) -> None:
        self.rewards, self.t, self.x = rewards, 0, 40

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.x = int(self.np_random.integers(8, 70))
        return self._picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        self.x = int(np.clip(self.x + int(action) - 1, 4, 74))
        return self._picture(), self.rewards[self.t % len(self.rewards)], False, False, {}

    def _picture(self) -> np.ndarray:
        picture = np.zeros((84, 84, 3), np.uint8)
        picture[40:48, self.x : self.x + 8] = 255
        return picture


def to_the_right(segment: Segment) -> float:
    """Returns how far right the pole's cart or the square ends."""
    last = segment.observations[-1].astype(float)
    return float(last[0]) if last.ndim == 1 else float(last.sum(0) @ np.arange(last.shape[1]))
