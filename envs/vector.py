"""The vector environment that every kind of environment becomes."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from .registry import EnvError
from .table import EnvInfo


class PreferenceVecEnv(VectorEnv):
    """N environments stepped together, with colour frames of the first few for people to watch.

    Shapes: observations (N, *info.observation_shape); rewards float32 (N,); terminated, truncated bool (N,);
    actions int64 (N,), or float32 (N, A) when continuous. Pixels are stacked with the newest frame last.
    The next step() may overwrite observations, so callers copy those that they keep.
    The step after a done one ignores its action and returns reward 0 and the new episode's first observation.
    The first reset() gives environment i the seed `seed + i`; later ones go on from there.
    """

    def __init__(self, info: EnvInfo, n_envs: int, seed: int, n_watched: int) -> None:
        if n_envs < 1:
            raise EnvError(f"{n_envs} environments were asked for: give at least 1.")
        if not 0 <= n_watched <= n_envs:
            raise EnvError(f"{n_watched} of {n_envs} environments cannot be watched: give 0 to {n_envs}.")
        self.info = info
        self.num_envs = n_envs
        self.n_watched = n_watched
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        if info.kind == "pixels":
            self.single_observation_space = Box(0, 255, info.observation_shape, np.uint8)
        else:
            self.single_observation_space = Box(-np.inf, np.inf, info.observation_shape, np.float32)
        if info.n_actions is not None:
            self.single_action_space = Discrete(info.n_actions)
        else:
            assert info.action_dim is not None
            self.single_action_space = Box(-np.inf, np.inf, (info.action_dim,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, n_envs)
        self.action_space = batch_space(self.single_action_space, n_envs)
        self._first_seed: int | None = seed
        self._sent: NDArray[Any] | None = None  # actions

    def send(self, actions: NDArray[Any]) -> None:
        """Begins a step; `recv` returns its results. Emulators step at once, all others in `recv`."""
        self._sent = actions

    def recv(
        self,
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Ends the step that `send` began; returns the same as step()."""
        return self.step(self._sent)

    def watch(self) -> NDArray[np.uint8]:
        """Returns colour frames of the current observation of the watched environments, (n_watched, H, W, 3)."""
        raise NotImplementedError

    def end_episodes(self, which: NDArray[np.bool_]) -> None:
        """Ends some of the running episodes (N,) with the next step, as a time limit would; only for bodies."""
        raise NotImplementedError

    @property
    def states(self) -> NDArray[np.float32]:
        """Returns positions and velocities of MuJoCo's bodies, (N, info.state_size), for `draw_states`."""
        return np.zeros((self.num_envs, 0), np.float32)

    def _seed_for_reset(self, seed: int | None) -> int | None:
        """Returns the seed of a reset: the caller's, or the first time the constructor's."""
        chosen = self._first_seed if seed is None else seed
        self._first_seed = None
        return chosen
