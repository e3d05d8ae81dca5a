"""Moving dot: a white dot on black, rewarded for nearing the screen's centre. A quick test of everything."""

from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.utils import seeding
from numpy.typing import NDArray

from .preprocessing import cell_mean, cell_sums
from .registry import MOVING_DOT_ID
from .table import ATARI_SCREEN, MOVING_DOT
from .vector import PreferenceVecEnv

ROWS, COLUMNS = ATARI_SCREEN
RADIUS = 2  # the dot covers [y - 2, y + 2) x [x - 2, x + 2)
MOVES = np.array([(0, 0), (0, 1), (1, 0), (0, -1), (-1, 0)])  # (x, y) by action; see MOVING_DOT.action_names
LOWEST = np.array([2, 2])
HIGHEST = np.array([157, 207])
CENTRE = np.array([80, 105])


def random_start(generator: np.random.Generator) -> NDArray[np.int64]:
    """Draws a start position (x, y), uniform over the positions that the dot can reach."""
    return generator.integers(LOWEST, HIGHEST + 1)


def squared_distance(position: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the squared Euclidean distance to the centre, (..., 2) -> (...); exact, so ties are ties."""
    return ((position - CENTRE) ** 2).sum(-1)


def draw(position: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Returns the screen (210, 160, 3) with the dot at a position (x, y)."""
    x, y = position
    frame = np.zeros((ROWS, COLUMNS, 3), np.uint8)
    frame[y - RADIUS : y + RADIUS, x - RADIUS : x + RADIUS] = 255
    return frame


class MovingDotEnv(gymnasium.Env):
    """One moving dot at one pixel a frame; Gymnasium's time limit truncates episodes.

    A frame's reward is +1, 0 or -1 as the dot came closer to the centre, kept its distance, or went away.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}  # noqa: RUF012 (Gymnasium's interface)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = Box(0, 255, (ROWS, COLUMNS, 3), np.uint8)
        self.action_space = Discrete(len(MOVES))
        self.position = CENTRE.copy()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Starts an episode at a random position."""
        super().reset(seed=seed)
        self.position = random_start(self.np_random)
        return draw(self.position), {}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Moves the dot by one pixel."""
        before = squared_distance(self.position)
        self.position = np.clip(self.position + MOVES[action], LOWEST, HIGHEST)
        reward = np.sign(before - squared_distance(self.position))
        return draw(self.position), float(reward), False, False, {}

    def render(self) -> NDArray[np.uint8] | None:
        """Returns the screen if the environment was made with render_mode="rgb_array"."""
        return draw(self.position) if self.render_mode == "rgb_array" else None


gymnasium.register(
    MOVING_DOT_ID, entry_point="envs.moving_dot:MovingDotEnv", max_episode_steps=MOVING_DOT.max_episode_frames
)


def bar_profiles(pixels: int, cells: int, patch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns how a bar of 4 or 5 lit pixels on one axis spreads over the cells that it is resized to.

    Shapes: first cell (2, pixels) and weights (2, pixels, patch), by (length - 4, first lit pixel).
    """
    weights = cell_sums(np.eye(pixels, dtype=np.int64), cells)  # (cells, pixels)
    first = np.zeros((2, pixels), np.int64)
    profile = np.zeros((2, pixels, patch), np.int64)
    for extra in (0, 1):
        length = 2 * RADIUS + extra
        for start in range(pixels - length + 1):
            lit = weights[:, start : start + length].sum(1)
            cell = min(int(np.flatnonzero(lit)[0]), cells - patch)
            first[extra, start] = cell
            profile[extra, start] = lit[cell : cell + patch]
    return first, profile


class MovingDotVectorEnv(PreferenceVecEnv):
    """Many moving dots without a loop over them: equal to MovingDotEnv behind the preprocessing, bit for bit.

    The maximum of two successive frames is again a rectangle, so that its 84x84 picture is the outer product
    of two 1-D profiles: only a 3x4 patch is not black, and only patches are ever written.
    """

    PATCH = (3, 4)  # cells that 5 pixels can touch: of 2.5 rows each, of 1.9 columns each

    def __init__(self, n_envs: int, seed: int, n_watched: int = 0) -> None:
        super().__init__(MOVING_DOT, n_envs, seed, n_watched)
        stack, height, width = MOVING_DOT.observation_shape
        self._rows = bar_profiles(ROWS, height, self.PATCH[0])
        self._columns = bar_profiles(COLUMNS, width, self.PATCH[1])
        self._size = (height, width)
        self._obs = np.zeros((n_envs, stack, height, width), np.uint8)
        self._patch_offsets = (np.arange(self.PATCH[0])[:, None] * width + np.arange(self.PATCH[1])).ravel()
        self._picture_offsets = np.arange(n_envs * stack).reshape(n_envs, stack, 1) * (height * width)
        self._where = np.zeros((n_envs, stack, self.PATCH[0] * self.PATCH[1]), np.int64)  # within a picture
        self._patches = np.zeros(self._where.shape, np.uint8)
        self._generators = [seeding.np_random(seed + i)[0] for i in range(n_envs)]
        self._position = np.zeros((n_envs, 2), np.int64)
        self._frames = np.zeros(n_envs, np.int64)
        self._done = np.zeros(n_envs, bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Starts an episode in every environment."""
        seed = self._seed_for_reset(seed)
        if seed is not None:
            self._generators = [seeding.np_random(seed + i)[0] for i in range(self.num_envs)]
        everyone = np.ones(self.num_envs, bool)
        self._restart(everyone)
        self._done[:] = False
        return self._push(self._position, self._position, everyone), {}

    def step(
        self, actions: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Takes one agent step in every environment."""
        resetting = self._done
        skip = MOVING_DOT.frame_skip
        moves = MOVES[actions][:, None] * np.arange(skip + 1)[:, None]  # (N, skip + 1, 2)
        path = np.clip(self._position[:, None] + moves, LOWEST, HIGHEST)
        closer = -np.diff(squared_distance(path), axis=1)
        rewards = np.sign(np.sign(closer).sum(1)).astype(np.float32)
        self._position = path[:, -1].copy()
        self._frames += skip
        if resetting.any():
            self._restart(resetting)
            rewards[resetting] = 0
            path[resetting] = self._position[resetting, None]
        self._done = self._frames >= (MOVING_DOT.max_episode_frames or np.inf)
        obs = self._push(path[:, -2], path[:, -1], resetting)
        return obs, rewards, np.zeros(self.num_envs, bool), self._done.copy(), {}

    def watch(self) -> NDArray[np.uint8]:
        """Returns the last frames, (n_watched, 210, 160, 3)."""
        frames = [draw(position) for position in self._position[: self.n_watched]]
        return np.stack(frames) if frames else np.zeros((0, ROWS, COLUMNS, 3), np.uint8)

    def _restart(self, which: NDArray[np.bool_]) -> None:
        for i in np.flatnonzero(which):
            self._position[i] = random_start(self._generators[i])
        self._frames[which] = 0

    def _push(
        self, before: NDArray[np.int64], now: NDArray[np.int64], resetting: NDArray[np.bool_]
    ) -> NDArray[np.uint8]:
        """Adds pictures of two successive positions (N, 2) to the stacks; a new episode's stack starts empty."""
        flat = self._obs.reshape(-1)
        flat[self._picture_offsets + self._where] = 0
        self._where[:, :-1] = self._where[:, 1:]
        self._patches[:, :-1] = self._patches[:, 1:]
        self._patches[resetting] = 0
        left, top = (np.minimum(before, now) - RADIUS).T
        longer, taller = np.abs(now - before).T
        (row_first, row_profile), (column_first, column_profile) = self._rows, self._columns
        corner = row_first[taller, top] * self._size[1] + column_first[longer, left]
        self._where[:, -1] = corner[:, None] + self._patch_offsets
        sums = 255 * row_profile[taller, top][:, :, None] * column_profile[longer, left][:, None, :]
        self._patches[:, -1] = cell_mean(sums, ROWS, COLUMNS, *self._size).reshape(self.num_envs, -1)
        flat[self._picture_offsets + self._where] = self._patches
        return self._obs


@cache
def greedy_return(n_episodes: int, seed: int) -> float:
    """Returns the mean return of the best player: of each step's moves, it takes one that brings the dot closest.

    Args:
        n_episodes: of the environments with the seeds `seed + i`.
    """
    env = MovingDotVectorEnv(n_episodes, seed)
    env.reset(seed=seed)
    total, playing = np.zeros(n_episodes), True
    while playing:
        reached = np.clip(env._position[:, None] + MOVING_DOT.frame_skip * MOVES, LOWEST, HIGHEST)  # (N, moves, 2)
        _, rewards, _, done, _ = env.step(squared_distance(reached).argmin(1))
        total, playing = total + rewards, not done.all()
    return float(total.mean())
