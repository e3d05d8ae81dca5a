"""Atari games on ale-py's C++ vector environment."""

from math import ceil
from typing import Any

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from numpy.typing import NDArray

from .registry import atari_kwargs, find_spec
from .table import ATARI_SCREEN, EnvInfo
from .vector import PreferenceVecEnv

MAX_NOOPS = 30  # random no-op actions at an episode's start
SEED_LIMIT = 2**31  # ale-py takes 32-bit seeds; larger ones wrap around


def blank_cells(info: EnvInfo) -> list[tuple[slice, slice]]:
    """Returns the rows and columns of the network's picture that fully cover each blanked area of the screen."""
    scale_y, scale_x = np.divide(info.observation_shape[1:], ATARI_SCREEN)
    return [
        (slice(int(top * scale_y), ceil(bottom * scale_y)), slice(int(left * scale_x), ceil(right * scale_x)))
        for top, bottom, left, right in info.blank_areas
    ]


class AtariPreferenceVecEnv(PreferenceVecEnv):
    """Any Atari id, always through the standard preprocessing, whatever frame skip its name stands for.

    Frame skip 4, maximum of the last two frames, gray 84x84, stack of 4, up to 30 no-ops at the start, FIRE
    where a game waits for it, whole games (not lives) as episodes, the game's own rewards. The id decides the
    game and the chance that an action is repeated (0.25 for v0 and v5, 0 for v4). `info.blank_areas` are 0 in
    observations.

    The frames for people come from a second emulator of each watched environment that is given the same seeds
    and actions and shows colour; RuntimeError if the two ever differ.
    """

    def __init__(self, info: EnvInfo, n_envs: int, seed: int, n_watched: int = 0, n_threads: int = 0) -> None:
        super().__init__(info, n_envs, seed, n_watched)
        kwargs = atari_kwargs(find_spec(info.env_id))
        stack, height, width = info.observation_shape
        game: dict[str, Any] = {
            "game": kwargs["game"],
            "repeat_action_probability": kwargs["repeat_action_probability"],
            "full_action_space": kwargs["full_action_space"],
            "max_num_frames_per_episode": info.max_episode_frames,
            "num_threads": n_threads,
            "autoreset_mode": self.metadata["autoreset_mode"],
            "frameskip": info.frame_skip,
            "noop_max": MAX_NOOPS,
            "episodic_life": False,
            "reward_clipping": False,
        }
        self._emulators = AtariVectorEnv(num_envs=n_envs, img_height=height, img_width=width, stack_num=stack, **game)
        self._colour: AtariVectorEnv | None = None
        self._colour_frames = np.zeros((0, *ATARI_SCREEN, 3), np.uint8)
        if n_watched:
            rows, columns = ATARI_SCREEN
            self._colour = AtariVectorEnv(
                num_envs=n_watched, img_height=rows, img_width=columns, stack_num=1, grayscale=False, **game
            )
        self._blank = blank_cells(info)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Starts a game in every environment."""
        seed = self._seed_for_reset(seed)
        if seed is not None:
            seed %= SEED_LIMIT - self.num_envs  # environment i gets seed + i
        obs, info = self._emulators.reset(seed=seed)
        if self._colour is not None:
            self._colour_frames = self._colour.reset(seed=seed)[0][:, 0]
        return self._blanked(obs), info

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Takes one agent step in every environment."""
        self.send(actions)
        return self.recv()

    def send(self, actions: NDArray[np.int64]) -> None:
        """Begins an agent step in every environment."""
        self._emulators.send(actions)
        if self._colour is not None:
            self._colour.send(actions[: self.n_watched])

    def recv(
        self,
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Waits for the end of the step, and returns its results."""
        obs, rewards, terminated, truncated, info = self._emulators.recv()
        if self._colour is not None:
            frames, *twins, _ = self._colour.recv()
            self._colour_frames = frames[:, 0]
            for ours, twin in zip((rewards, terminated, truncated), twins, strict=True):
                if not np.array_equal(ours[: self.n_watched], twin):
                    raise RuntimeError("The colour emulators no longer play the same game: report this as a bug.")
        return self._blanked(obs), rewards.astype(np.float32), terminated, truncated, info

    def watch(self) -> NDArray[np.uint8]:
        """Returns the current screens in colour, nothing blanked, (n_watched, 210, 160, 3)."""
        return self._colour_frames

    def close_extras(self, **kwargs: Any) -> None:
        """Stops the emulators."""
        self._emulators.close()
        if self._colour is not None:
            self._colour.close()

    def _blanked(self, obs: NDArray[np.uint8]) -> NDArray[np.uint8]:
        for rows, columns in self._blank:
            obs[:, :, rows, columns] = 0  # in place, because ale-py returns a copy of its stack
        return obs
