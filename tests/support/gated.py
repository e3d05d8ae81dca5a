"""CartPole whose steps a test lets pass: no more in each environment than the file says that the variable names."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from tests.support.ray_cluster import GATE

POLL_SECONDS = 0.005


class GatedCartPole(CartPoleEnv):
    """A step beyond what is allowed waits until the file allows it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.taken, self.allowed = 0, 0

    def step(self, action: Any) -> Any:
        gate = os.environ.get(GATE)
        while gate and self.taken >= self.allowed:
            self.allowed = int(Path(gate).read_text() or 0)  # empty for a moment, while it is written
            if self.taken >= self.allowed:
                time.sleep(POLL_SECONDS)
        self.taken += 1
        return super().step(action)


gymnasium.register("Gated-v0", entry_point=GatedCartPole, max_episode_steps=500)
