"""Vector environments as other projects write them, with what Gymnasium leaves open or does otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

EPISODE = 5  # steps


def same(values: Any) -> Any:
    return values


class Counting(VectorEnv[Any, Any, Any]):
    """Two environments that observe their number and the time; each step's reward is 1 more than the last one's.

    Args:
        resets: how it resets.
        says: what it says about that, in `metadata`; None if nothing.
        flags, numbers: make what it returns of arrays of bool, and of rewards and observations.
        rewards: of the steps of an episode.
    """

    def __init__(
        self,
        resets: AutoresetMode = AutoresetMode.SAME_STEP,
        says: Any = AutoresetMode.SAME_STEP,
        flags: Callable[[np.ndarray], Any] = same,
        numbers: Callable[[np.ndarray], Any] = same,
        rewards: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0),
    ) -> None:
        self.num_envs = 2
        self.single_observation_space = spaces.Box(-100, 100, (2,))
        self.observation_space = spaces.Box(-100, 100, (2, 2))
        self.single_action_space = spaces.Discrete(3)
        self.action_space = spaces.MultiDiscrete([3, 3])
        self.metadata = {} if says is None else {"autoreset_mode": says}
        self.resets, self.flags, self.numbers, self.rewards = resets, flags, numbers, rewards
        self.t = 0

    def observations(self) -> Any:
        return self.numbers(np.array([[0, self.t], [1, self.t]], np.float32))

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        return self.observations(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, Any]:
        nothing = np.zeros(2, np.bool_)
        if self.t == EPISODE:  # it has not been reset since
            self.t = 0
            return self.observations(), self.numbers(np.zeros(2)), self.flags(nothing), self.flags(nothing), {}
        rewards = np.full(2, self.rewards[self.t])
        self.t += 1
        done = np.full(2, self.t == EPISODE)
        if done[0] and self.resets == AutoresetMode.SAME_STEP:
            self.t = 0
        return self.observations(), self.numbers(rewards), self.flags(done), self.flags(nothing), {}


class OfSuperSuit(VectorEnv[Any, Any, Any]):
    """As SuperSuit makes them of PettingZoo's: spaces of one agent alone, flags of uint8, and a list of infos."""

    num_envs = 2
    observation_space = spaces.Box(-100, 100, (2,), np.float32)
    action_space = spaces.Discrete(3)
    metadata = {"name": "walkers_v0", "render_modes": []}  # noqa: RUF012 (Gymnasium's interface)

    def __init__(self) -> None:
        self._inside = Counting(says=None)

    def reset(self, seed: Any = None, options: Any = None) -> tuple[Any, Any]:
        return self._inside.reset()[0], [{}, {}]

    def step_async(self, actions: Any) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        return self.step(self._actions)

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, _ = self._inside.step(actions)
        infos: list[dict[str, Any]] = [{}, {}]
        if terminated.any():
            infos = [{"terminal_observation": np.full(2, EPISODE)} for _ in infos]
        return observations, rewards.astype(np.float32), *(f.astype(np.uint8) for f in (terminated, truncated)), infos

    def close(self) -> None:  # type: ignore[override]
        """Takes no arguments, and may not be called twice."""
        assert not hasattr(self, "gone")
        self.gone = True
