"""Atari games on ale-py's C++ vector environment."""

from math import ceil
from typing import Any

import numpy as np
from ale_py.vector_env import AtariVectorEnv
from numpy.typing import NDArray

from .registry import atari_kwargs, find_spec
from .table import ATARI_SCREEN, EnvInfo
from .vector import PreferenceVecEnv

NOOP = 0  # the number of the action that does nothing, in every game
POOLED = 2  # frames of which ale-py can take the maximum
MAX_NOOPS = 30  # random no-op actions at an episode's start
SEED_LIMIT = 2**31  # ale-py takes 32-bit seeds; larger ones wrap around


def blank_cells(info: EnvInfo) -> list[tuple[slice, slice]]:
    """Returns the rows and columns of the network's picture that fully cover each blanked area of the screen."""
    scale_y, scale_x = np.divide(info.observation_shape[1:], ATARI_SCREEN)
    return [
        (slice(int(top * scale_y), ceil(bottom * scale_y)), slice(int(left * scale_x), ceil(right * scale_x)))
        for top, bottom, left, right in info.blank_areas
    ]


class WholeSteps:
    """Emulators of which an agent step shows the maximum of all its frames; ale-py's own steps show the last two.

    Shape: observations (N, stack, H, W) uint8, zeros before a game's start.

    They play two frames at a time, so that nothing is darker than in ale-py's own steps. All emulators play on
    together. So a game that ended within a step is begun anew by the rest of that step and by the whole next one, whose
    actions are no-ops and whose rewards do not count.

    Args:
        game: the arguments of AtariVectorEnv that are about the game and its picture.
    """

    def __init__(self, frame_skip: int, stack: int, **game: Any) -> None:
        self._emulators = AtariVectorEnv(**game, frameskip=POOLED, stack_num=1)
        self._parts, self._stack_size = frame_skip // POOLED, stack
        self._ended = np.zeros(self._emulators.num_envs, np.bool_)  # by the last step, so the next one begins a game

    def reset(self, seed: int | None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Starts all games; returns their first observations."""
        frames, info = self._emulators.reset(seed=seed)
        self._ended = np.zeros_like(self._ended)
        self._stack = np.zeros((len(frames), self._stack_size, *frames.shape[2:]), np.uint8)
        self._stack[:, -1] = frames[:, 0]
        return self._stack, info

    def send(self, actions: NDArray[np.int64]) -> None:
        """Begins an agent step."""
        self._actions = np.where(self._ended, NOOP, actions)
        self._emulators.send(self._actions)

    def recv(
        self,
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Plays an agent step to its end; returns its results."""
        begins = self._ended
        lost, cut = np.zeros_like(begins), np.zeros_like(begins)
        newest, total = np.zeros_like(self._stack[:, -1]), np.zeros(len(begins), np.float32)
        for i in range(self._parts):
            ended = lost | cut
            if i:
                self._emulators.send(np.where(ended, NOOP, self._actions))
            frames, rewards, terminated, truncated, info = self._emulators.recv()
            newest[~ended] = np.maximum(newest, frames[:, 0])[~ended]
            plays = ~(begins | ended)
            total += rewards * plays
            lost |= terminated & plays
            cut |= truncated & plays
        self._stack = np.concatenate([self._stack[:, 1:], newest[:, None]], axis=1)
        self._stack[begins, :-1] = 0
        self._ended = lost | cut
        return self._stack, total, lost, cut, info

    def close(self) -> None:
        """Stops the emulators."""
        self._emulators.close()


class AtariPreferenceVecEnv(PreferenceVecEnv):
    """Any Atari id, always through the standard preprocessing, whatever frame skip its name stands for.

    Frame skip 4, maximum of the last two frames (with `info.all_frames` of all four), gray 84x84, stack of 4, up to 30
    no-ops at the start, FIRE where a game waits for it, whole games (not lives) as episodes, the game's own rewards.
    The id decides the game and the chance that an action is repeated (0.25 for v0 and v5, 0 for v4).
    `info.blank_areas` are 0 in observations.

    The frames for people come from a second emulator of each watched environment that is given the same seeds and
    actions and shows colour; RuntimeError if the two ever differ. People see the maximum of all four frames, because
    some games draw each object in one frame of four only (`benchmarks/learning/flicker.py`).
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
            "noop_max": MAX_NOOPS,
            "episodic_life": False,
            "reward_clipping": False,
        }
        seen: dict[str, Any] = {"num_envs": n_envs, "img_height": height, "img_width": width, **game}
        self._emulators: AtariVectorEnv | WholeSteps = (
            WholeSteps(info.frame_skip, stack, **seen)
            if info.all_frames
            else AtariVectorEnv(frameskip=info.frame_skip, stack_num=stack, **seen)
        )
        rows, columns = ATARI_SCREEN
        raw: dict[str, Any] = {"frameskip": 1, "maxpool": False, "stack_num": 1, "grayscale": False}
        raw |= {"img_height": rows, "img_width": columns, "num_envs": 1, "num_threads": 1}
        self._colour = [AtariVectorEnv(**game | raw) for _ in range(n_watched)]
        self._colour_frames = np.zeros((n_watched, *ATARI_SCREEN, 3), np.uint8)
        self._colour_ended = np.zeros(n_watched, np.bool_)  # by the last step
        self._colour_resets = np.zeros(n_watched, np.bool_)  # with the next frame
        self._blank = blank_cells(info)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Starts a game in every environment."""
        seed = self._seed_for_reset(seed)
        if seed is not None:
            seed %= SEED_LIMIT - self.num_envs  # environment i gets seed + i
        obs, info = self._emulators.reset(seed=seed)
        self._colour_frames = np.empty_like(self._colour_frames)  # callers may hold the last ones
        for i, emulator in enumerate(self._colour):
            self._colour_frames[i] = emulator.reset(seed=None if seed is None else seed + i)[0][0, 0]
        self._colour_ended[:] = self._colour_resets[:] = False
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
        self._sent = actions

    def recv(
        self,
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Waits for the end of the step, and returns its results."""
        self._colour_frames = np.empty_like(self._colour_frames)
        twins = [self._play_frames(i) for i in range(self.n_watched)]  # while the emulators are at work
        obs, rewards, terminated, truncated, info = self._emulators.recv()
        for ours, twin in zip(zip(rewards, terminated, truncated, strict=True), twins, strict=False):
            if ours != twin:
                raise RuntimeError("The colour emulators no longer play the same game: report this as a bug.")
        return self._blanked(obs), rewards.astype(np.float32), terminated, truncated, info

    def watch(self) -> NDArray[np.uint8]:
        """Returns the current screens in colour, nothing blanked, (n_watched, 210, 160, 3)."""
        return self._colour_frames

    def close_extras(self, **kwargs: Any) -> None:
        """Stops the emulators."""
        for emulator in (self._emulators, *self._colour):
            emulator.close()

    def _play_frames(self, i: int) -> tuple[float, bool, bool]:
        """Plays one agent step of a colour emulator; returns its reward and whether the game has ended or was cut.

        It goes on after an end as the networks' emulators do: those of WholeSteps with the step's next part.
        """
        assert self._sent is not None
        skip, action, begins = self.info.frame_skip, self._sent[i : i + 1], self._colour_ended[i]
        part = POOLED if self.info.all_frames else skip
        total, lost, cut, frames = 0.0, False, False, []
        for _ in range(skip // part):
            for _ in range(1 if self._colour_resets[i] else part):
                plays = not (begins or lost or cut)
                result = self._colour[i].step(action if plays else np.full_like(action, NOOP))
                (frame,), (reward,), (terminated,), (truncated,), _ = result
                if not (lost or cut):
                    frames.append(frame[-1])
                if plays:
                    total, lost, cut = total + float(reward), bool(terminated), bool(truncated)
                self._colour_resets[i] = terminated or truncated
                if self._colour_resets[i]:
                    break
        self._colour_frames[i] = np.max(frames, axis=0)
        self._colour_ended[i] = lost or cut
        return total, lost, cut

    def _blanked(self, obs: NDArray[np.uint8]) -> NDArray[np.uint8]:
        for rows, columns in self._blank:
            obs[:, :, rows, columns] = 0  # in place, because nobody else reads these pictures
        return obs
