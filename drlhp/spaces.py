"""Decides whether a box of several axes is a picture, codes that name things, or only numbers.

The environments of `run.py` and the wrapper share this rule. The bounds of the space decide:

| the numbers | are read as |
|---|---|
| integers of two values | a plane for each channel, black and white |
| integers of up to 32 values | codes: a plane for each code of each channel, if that gives no more than 64 planes |
| a matrix with a side below 16, or bytes with a side below 32 | a vector |
| anything else with two bounds | brightness from one bound to the other |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from drlhp.errors import SpaceError

MAX_PLANES = 64
MAX_CODES = 32
SMALLEST_PICTURE = 16  # rows and columns; stacked vectors have fewer
# Worlds of squares that MiniGrid shows whole have up to 25 a side. Their codes are declared as bytes of any value.
SMALLEST_BYTES = 32
WIDEST_RANGE = 2.0**24  # float32 tells no more integers apart; a bound beyond is only the largest number of its type
HALF_A_BYTE = 127
OVERSHOOT = 0.01  # a picture may leave its range by this share of it, because resizing filters do that


@dataclass(frozen=True)
class Layout:
    """Where planes lie in an observation (H, W), (H, W, C) or (C, H, W), or in a stack of them; what they hold."""

    shape: tuple[int, ...]  # of an observation
    n_stacked: int
    channels: int  # of one picture
    height: int
    width: int
    channels_last: bool
    low: float
    high: float
    n_codes: int = 0  # what an integer may name; 0 if it is the brightness

    @property
    def names_things(self) -> bool:
        """Whether the mean of several values says nothing: black and white planes, and codes."""
        return self.n_codes > 0

    @property
    def n_planes(self) -> int:
        """Planes of an observation, those of the newest picture last."""
        return self.n_stacked * self.channels * (self.n_codes if self.n_codes > 2 else 1)

    def brightness(self, values: np.ndarray) -> np.ndarray:
        """Returns observations (N, *shape) as (N, stacked channels, H, W) uint8, 0 at one bound and 255 at the other.

        Raises SpaceError, with half a sentence, if one leaves the bounds.
        """
        values = self._channels_first(values)
        if values.dtype == np.uint8 and (self.low, self.high) == (0, 255):
            return values
        scaled = (values - self.low) * (255 / (self.high - self.low))
        if scaled.min() < -255 * OVERSHOOT or scaled.max() > 255 * (1 + OVERSHOOT):
            raise SpaceError(f"holds {values.min():g} to {values.max():g}, not {self.low:g} to {self.high:g}")
        return np.rint(scaled.clip(0, 255)).astype(np.uint8)

    def planes(self, values: np.ndarray) -> np.ndarray:
        """Returns observations (N, *shape) as (N, n_planes, H, W) uint8; a code is 255 in its plane.

        Raises SpaceError as `brightness` does.
        """
        brightness = self.brightness(values)
        if self.n_codes <= 2:
            return brightness
        codes = (self._channels_first(values) - int(self.low)).astype(np.int64)
        planes = (codes[:, :, None] == np.arange(self.n_codes)[:, None, None]) * np.uint8(255)
        return planes.reshape(len(values), self.n_planes, self.height, self.width)

    def _channels_first(self, values: np.ndarray) -> np.ndarray:
        if self.channels_last:
            values = np.moveaxis(values, -1, -3)
        return values.reshape(len(values), -1, self.height, self.width)


def layout_of(box: Box) -> Layout | None:
    """Returns where the planes of a picture lie in a box of several axes, or None if it is read as a vector.

    Raises SpaceError, with half a sentence, if the box has no range, or is too large for a vector and no picture.
    """
    low, high = float(box.low.min()), float(box.high.max())
    if not (math.isfinite(low) and math.isfinite(high) and 0 < high - low <= WIDEST_RANGE):
        raise SpaceError(f"have {len(box.shape)} axes but no range")
    is_integer = np.dtype(box.dtype).kind in "biu"
    if box.dtype == np.uint8 and high - low > HALF_A_BYTE:
        low, high = 0.0, 255.0  # a photograph that does not use all of its bytes
    shape = box.shape
    n_stacked = shape[0] if len(shape) == 4 else 1
    one: tuple[Any, ...] = shape[-3:] if len(shape) >= 3 else (1, *shape)
    # A board may have more planes than squares to a side.
    channels_last = one[0] == one[1] or (one[1] != one[2] and one[2] < one[0])
    channels, height, width = (one[2], one[0], one[1]) if channels_last else one
    n_codes = int(high - low) + 1 if is_integer and high - low < MAX_CODES else 0
    if n_codes > 2 and n_stacked * channels * n_codes > MAX_PLANES:
        n_codes = 0
    layout = Layout(shape, n_stacked, channels, height, width, channels_last, low, high, n_codes)
    side, enough = min(height, width), SMALLEST_BYTES if box.dtype == np.uint8 else SMALLEST_PICTURE
    if len(shape) <= 4 and side >= 2 and layout.n_planes <= MAX_PLANES and (n_codes or side >= enough):
        return layout
    if side < enough and len(shape) <= 4:
        return None
    raise SpaceError("are no pictures of (H, W), (H, W, C) or (C, H, W), or stacks of them")
