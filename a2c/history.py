"""The actions since the environments were made: played again, they bring the same environments to the same state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drlhp.runtime.snapshot import state_of, value_of
from envs import EnvInfo, PreferenceVecEnv


class History:
    """Remembers what was done to N environments in every rollout of T steps.

    The state of an environment cannot be stored in general. Actions can, and an environment that was made with the same
    seed and is given the same actions is in the same state. No network is needed for that.
    """

    def __init__(self, info: EnvInfo, n_steps: int) -> None:
        self.n_steps = n_steps
        self._dtype = np.dtype(np.uint8 if info.n_actions and info.n_actions <= 256 else np.int64)
        if info.n_actions is None:
            self._dtype = np.dtype(np.float32)
        self._actions: list[np.ndarray] = []  # (steps, N) or (steps, N, A), of one or several rollouts each
        self._given_up: list[np.ndarray] = []  # (rollouts, N) bool; none if episodes are never given up

    def add(self, actions: np.ndarray, given_up: NDArray[np.bool_] | None) -> None:
        """Remembers a rollout: actions (T, N) or (T, N, A), and the episodes (N,) that it ended at its start."""
        self._actions.append(actions.astype(self._dtype))
        if given_up is not None:
            self._given_up.append(given_up[None].copy())

    def snapshot(self) -> dict[str, Any]:
        """Returns what `play` takes."""
        for parts in (self._actions, self._given_up):
            parts[:] = [np.concatenate(parts)] if parts else []
        return state_of({"actions": self._actions, "given_up": self._given_up})

    def play(self, state: dict[str, Any], envs: Sequence[tuple[PreferenceVecEnv, slice]]) -> np.ndarray | None:
        """Plays all rollouts in new environments; returns the last observations (N, ...), None if there were none.

        Args:
            envs: each environment, and which of the N are in it.
        """
        values = value_of(state)
        self._actions, self._given_up = values["actions"], values["given_up"]
        found: list[np.ndarray] = []
        for t, actions in enumerate(self._actions[0] if self._actions else ()):
            if self._given_up and t % self.n_steps == 0:
                for env, mine in envs:
                    env.end_episodes(self._given_up[0][t // self.n_steps, mine])
            for env, mine in envs:
                env.send(actions[mine].astype(np.int64) if actions.dtype == np.uint8 else actions[mine])
            found = [env.recv()[0] for env, _ in envs]
        return np.concatenate(found) if found else None
