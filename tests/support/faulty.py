"""Small environments that fail in a way of their own; each registers when this module is imported."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Cycle(gymnasium.Env):
    """Goes round a circle of so many places whatever the agent does, so that few clips differ; no action matters."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(1)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # as Gymnasium has it

    def __init__(self, places: int = 10, render_mode: str | None = None) -> None:
        self.places, self.t, self.render_mode = places, 0, render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        return self._observation(), float(self.t % self.places), False, self.t % 10 == 0, {}

    def _observation(self) -> np.ndarray:
        return np.full(1, self.t % self.places, np.float32)

    def render(self) -> np.ndarray:
        return np.zeros((8, 8, 3), np.uint8)


# Clips of ten steps, one in each episode: all the same, or of three kinds.
gymnasium.register("Same-v0", Cycle, kwargs={"places": 10})
gymnasium.register("Few-v0", Cycle, kwargs={"places": 30})
