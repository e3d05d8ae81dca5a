"""Steps in which an environment ignores its action, because it resets instead (Gymnasium's NEXT_STEP)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from drlhp.errors import UserError

# Only environments that reset in the same step need these keys of info.
FINAL = ("final_obs", "final_observation", "final_info", "terminal_observation")


def said_mode(said: Any, env_id: str) -> AutoresetMode | None:
    """Returns the mode that an environment says, by a member of an enum or by a name; None if it says none.

    Raises UserError for a mode that Gymnasium does not have.
    """
    if said is None:
        return None
    names = (said.name, said.value) if isinstance(said, Enum) else (said,)
    for name in names:
        letters = re.sub("[^a-z]", "", str(name).lower().rpartition(".")[2])
        for mode in AutoresetMode:
            if letters == mode.name.lower().replace("_", ""):
                return mode
    modes = ", ".join(f"AutoresetMode.{mode.name}" for mode in AutoresetMode)
    raise UserError(f"{env_id} says that its autoreset mode is {said!r}: let it be one of {modes}.")


class Autoreset:
    """Tells which steps ignore their action.

    If an environment does not say its mode, the first ended episode shows it: an environment that resets in the same
    step says so in its info, or rewards the next step, or has already observed something like the start of an episode.
    """

    def __init__(self, mode: AutoresetMode | None, n_envs: int) -> None:
        self.mode = mode
        self._ended = np.zeros(n_envs, np.bool_)  # in the newest step, and not reset by the user since
        self._first = self._last = np.zeros((n_envs, 0))  # observations of starts, and after the newest step

    @property
    def found(self) -> bool:
        """Whether the mode is known."""
        return self.mode is not None

    @property
    def undecided(self) -> bool:
        """Whether an episode has ended, so that the next step shows the mode."""
        return self.mode is None and bool(self._ended.any())

    def reset(self, which: np.ndarray, observations: np.ndarray) -> None:
        """Takes in the observations (N, ...) after a reset of the environments `which`, (N,) bool."""
        self._ended[which] = False
        if not self.found and which.any():
            self._first = _flat(observations)[which]

    def valid(self, observations: np.ndarray, rewards: np.ndarray, done: np.ndarray, info: Any) -> np.ndarray:
        """Takes in one step and returns (N,) bool, False where it ignored its action."""
        if self.undecided:
            self.mode = self._mode_by_step_after_end(_flat(observations), rewards, done)
        valid = ~self._ended if self.mode == AutoresetMode.NEXT_STEP else np.ones_like(done)
        self._ended = done
        if self.undecided:
            if _tells_final(info):
                self.mode = AutoresetMode.SAME_STEP
            self._last = _flat(observations)
        return valid

    def _mode_by_step_after_end(self, now: np.ndarray, rewards: np.ndarray, done: np.ndarray) -> AutoresetMode:
        acted = (rewards[self._ended] != 0).any() or done[self._ended].any()  # a step that resets has neither
        if acted or not self._first.size:
            return AutoresetMode.SAME_STEP

        def from_start(observations: np.ndarray) -> float:
            return sum(float(np.abs(self._first - one).mean(1).min()) for one in observations[self._ended])

        return AutoresetMode.NEXT_STEP if from_start(now) < from_start(self._last) else AutoresetMode.SAME_STEP


def _flat(observations: np.ndarray) -> np.ndarray:
    """Returns observations as (N, D), in new memory."""
    return observations.reshape(len(observations), -1).astype(np.float32)


def _tells_final(info: Any) -> bool:
    infos = [info] if isinstance(info, Mapping) else info or []
    return any(name in one for one in infos for name in FINAL)
