"""An environment of a user's own: a lamp in a room, moved by two motors, should hang in the middle.

Its observations are dicts of a picture and a number, and its actions are two choices at once.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, MultiDiscrete

SIDE, STEPS = 96, 100


class LampEnv(gymnasium.Env[Any, Any]):
    """Moves the lamp: each motor goes 3 pixels back, stands still, or goes 3 pixels on.

    The reward is 1 in the middle and 0 in a corner.
    """

    metadata = {"render_modes": [], "render_fps": 10}  # noqa: RUF012 (Gymnasium's interface)

    def __init__(self) -> None:
        picture = Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        self.observation_space = Dict({"picture": picture, "time_left": Box(0.0, 1.0, (1,), np.float32)})
        self.action_space = MultiDiscrete([3, 3])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.steps = self.np_random.integers(6, SIDE - 6, 2), 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = np.clip(self.at + 3 * (np.asarray(action) - 1), 6, SIDE - 6)
        self.steps += 1
        reward = 1 - float(np.abs(self.at - SIDE // 2).sum()) / (SIDE - 12)
        return self._observation(), reward, False, self.steps == STEPS, {}

    def _observation(self) -> dict[str, Any]:
        picture = np.full((SIDE, SIDE, 3), (10, 20, 60), np.uint8)
        picture[self.at[0] - 4 : self.at[0] + 4, self.at[1] - 4 : self.at[1] + 4] = (255, 230, 120)
        return {"picture": picture, "time_left": np.array([1 - self.steps / STEPS], np.float32)}
