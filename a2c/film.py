"""Films the beginning of an evaluated episode, for people who look at TensorBoard."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from drlhp.errors import reason_of
from drlhp.pictures import gif_of
from envs import EnvInfo, PreferenceVecEnv, make_vec_env

log = logging.getLogger("run")

SECONDS = 5.0  # of the episode at its real speed
FRAMES_PER_SECOND = 15.0  # at most; the speed of Atari, which bodies exceed
SIDE = 240  # pixels: the longest side of a frame, at most
LONGEST = 3.0  # seconds that an environment may take to play; the film of a slower one is shorter


def filmed_steps(info: EnvInfo) -> int:
    """Returns how many agent steps a film shows."""
    return round(SECONDS * info.fps)


class Camera:
    """Plays the actions of an episode again, in an environment of its own that draws.

    So an evaluation draws nothing, and is what it would be without films. An environment that cannot be drawn has none.

    Args:
        seed: of the evaluation's first environment.
    """

    def __init__(self, info: EnvInfo, seed: int, *, all_frames: bool | None) -> None:
        self.info, self._seed, self._all_frames = info, seed, all_frames
        self._env: PreferenceVecEnv | None = None
        self._fails = False

    def film(self, actions: Sequence[np.ndarray]) -> bytes | None:
        """Returns an animated GIF of the episode that begins with these actions; None if it cannot be drawn."""
        if self._fails or not actions:
            return None
        stride = math.ceil(self.info.fps / FRAMES_PER_SECOND)
        try:
            with warnings.catch_warnings():  # of what the user did not ask for
                warnings.simplefilter("ignore")
                return gif_of(self._frames(actions, stride), self.info.fps / stride, quickly=True)
        except Exception as error:  # a renderer may raise anything
            self._fails = True
            log.info("No films of evaluations: %s", reason_of(error))
            return None

    def _frames(self, actions: Sequence[np.ndarray], stride: int) -> Iterator[np.ndarray]:
        """Yields every so many pictures, at least the first one, until the time for playing is over."""
        if self._env is None:
            self._env = make_vec_env(
                self.info.env_id,
                1,
                self._seed,
                n_watched=1,
                n_threads=1,
                in_process=True,
                whole_games=True,
                all_frames=self._all_frames,
            )
        until = time.monotonic() + LONGEST
        self._env.reset(seed=self._seed)
        for i, action in enumerate(actions):
            if i % stride == 0:
                yield _small(self._env.watch()[0])
            self._env.step(action[None])
            if time.monotonic() > until:
                return

    def close(self) -> None:
        """Ends the environment."""
        if self._env is not None:
            self._env.close()


def _small(frame: np.ndarray) -> np.ndarray:
    """Returns the frame, shrunk by a whole factor if it is larger than a film's frames."""
    factor = math.ceil(max(frame.shape[:2]) / SIDE)
    return frame if factor == 1 else np.asarray(Image.fromarray(frame).reduce(factor))
