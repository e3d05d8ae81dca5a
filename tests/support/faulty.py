"""Small environments that fail in a way of their own; each registers when this module is imported."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Cycle(gymnasium.Env):
    """Goes round a circle of so many places whatever the agent does, so that few clips differ; no action matters."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(1)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  # as Gymnasium has it

    def __init__(self, places: int = 10, render_mode: str | None = None, length: int = 10) -> None:
        self.places, self.t, self.render_mode, self.length = places, 0, render_mode, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return self._observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        return self._observation(), float(self.t % self.places), False, self.t % self.length == 0, {}

    def _observation(self) -> np.ndarray:
        return np.full(1, self.t % self.places, np.float32)

    def render(self) -> np.ndarray:
        return np.zeros((8, 8, 3), np.uint8)


class Hang(Cycle):
    """Starts a program of its own, writes its process id to a file, and sleeps forever in its tenth step."""

    def __init__(self, file: str, render_mode: str | None = None) -> None:
        super().__init__(1000, render_mode)
        self.file = file

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.t == 9:
            program = subprocess.Popen(["sleep", "100000"])
            with open(self.file, "a") as file:
                print(program.pid, os.getpid(), file=file, flush=True)
            time.sleep(100_000)
        return super().step(action)


class Leave(Cycle):
    """Ends its process in its tenth step, as if all were well."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.t == 9:
            os._exit(0)
        return super().step(action)


class Broken(Cycle):
    """Raises an error in its tenth step."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.t == 9:
            raise ZeroDivisionError("a fault inside the environment")
        return super().step(action)


# Clips of three steps, one in each episode: all the same, or of three kinds.
gymnasium.register("Same-v0", "tests.support.faulty:Cycle", kwargs={"places": 3, "length": 3})
gymnasium.register("Few-v0", "tests.support.faulty:Cycle", kwargs={"places": 9, "length": 3})
gymnasium.register("Hang-v0", "tests.support.faulty:Hang", kwargs={"file": os.environ.get("HANG_FILE", os.devnull)})
gymnasium.register("Leave-v0", "tests.support.faulty:Leave")
gymnasium.register("Broken-v0", "tests.support.faulty:Broken")
