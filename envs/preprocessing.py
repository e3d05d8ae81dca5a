"""From screen frames to the network's picture: frame skip, maximum of two frames, gray, 84x84, stack."""

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from .table import EnvInfo


def cell_sums(values: NDArray[Any], cells: int) -> NDArray[np.int64]:
    """Sums axis 0 of integer values into equal cells; a pixel that cells share counts in each in proportion.

    Shapes: (n, ...) -> (cells, ...). A pixel weighs cells / gcd(n, cells) units, a cell n / gcd(n, cells).
    """
    size = len(values)
    unit = math.gcd(size, cells)
    pixel_units, cell_units = cells // unit, size // unit
    values = values.astype(np.int64)
    before = np.zeros((size + 1, *values.shape[1:]), np.int64)
    np.cumsum(values, axis=0, out=before[1:])
    whole, part = np.divmod(np.arange(cells + 1) * cell_units, pixel_units)
    part = part.reshape(-1, *[1] * (values.ndim - 1))
    at_edges = pixel_units * before[whole] + part * values[np.minimum(whole, size - 1)]
    return np.diff(at_edges, axis=0)


def cell_mean(sums: NDArray[np.int64], rows: int, columns: int, height: int, width: int) -> NDArray[np.uint8]:
    """Rounds sums over cells of a rows x columns picture to the mean of each cell of a height x width one."""
    total = (rows // math.gcd(rows, height)) * (columns // math.gcd(columns, width))
    return ((sums + total // 2) // total).astype(np.uint8)


def area_resize(picture: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Resizes by area: each new pixel is the mean of the old ones under it, (H, W) -> (height, width).

    Integer arithmetic throughout, so that every way to compute a picture agrees bit for bit.
    """
    rows, columns = picture.shape
    sums = cell_sums(cell_sums(picture, height).T, width).T
    return cell_mean(sums, rows, columns, height, width)


def gray(frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the luminance (ITU-R 601) of a colour frame, (H, W, 3) -> (H, W); a gray frame stays as it is."""
    if frame.ndim == 2:
        return frame
    return ((frame.astype(np.int64) @ np.array([299, 587, 114]) + 500) // 1000).astype(np.uint8)


class PixelPreprocessing(gymnasium.Wrapper):
    """The standard Atari preprocessing for any environment that observes its screen.

    Shape: observations (stack, height, width) uint8 as in `info`, newest last, zeros before the start.
    Each step repeats its action for `info.frame_skip` frames, adds up their rewards, and shows the
    maximum of the last two frames. No no-op starts.
    """

    def __init__(self, env: gymnasium.Env, info: EnvInfo) -> None:
        super().__init__(env)
        self._frame_skip = info.frame_skip
        self._stack = np.zeros(info.observation_shape, np.uint8)
        self.observation_space = Box(0, 255, info.observation_shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        frame, info = self.env.reset(seed=seed, options=options)
        self._stack = np.zeros_like(self._stack)
        return self._push(frame), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes one agent step."""
        total = 0.0
        frames: list[NDArray[np.uint8]] = []
        for _ in range(self._frame_skip):
            frame, reward, terminated, truncated, info = self.env.step(action)
            frames.append(frame)
            total += float(reward)
            if terminated or truncated:
                break
        return self._push(np.max(frames[-2:], axis=0)), total, terminated, truncated, info

    def _push(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        picture = area_resize(gray(frame), *self._stack.shape[1:])
        self._stack = np.concatenate([self._stack[1:], picture[None]])
        return self._stack
