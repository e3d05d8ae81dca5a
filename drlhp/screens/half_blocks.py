"""Pictures in a terminal by half blocks: each cell shows two pixels, one above the other.

A cell is U+2580 in the colour of the upper pixel on that of the lower. Only cells that change are sent.
"""

from __future__ import annotations

import math
import os

import numpy as np
from PIL import Image

OUTLIER_SHARE = 0.6  # of the most unusual pixel in the colour of many; judged by eye with Pong and Enduro

Pictures = dict[tuple[int, int], np.ndarray]  # (row, column) of the upper left cell -> (down, across, 2, 3) uint8


def true_colour() -> bool:
    """Returns whether the terminal says that it has 24-bit colour."""
    return os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")


def to_256(pixels: np.ndarray) -> np.ndarray:
    """Returns xterm's number of the nearest of its 216 colours and 24 greys: (..., 3) uint8 -> (...)."""
    levels = np.array([0, 95, 135, 175, 215, 255])
    rgb = pixels.astype(int)
    cube = np.abs(rgb[..., None] - levels).argmin(-1)
    grey = ((rgb.mean(-1) - 8) / 10).round().clip(0, 23).astype(int)
    cube_error = np.square(levels[cube] - rgb).sum(-1)
    grey_error = np.square((8 + 10 * grey)[..., None] - rgb).sum(-1)
    numbers = 16 + 36 * cube[..., 0] + 6 * cube[..., 1] + cube[..., 2]
    return np.where(grey_error < cube_error, 232 + grey, numbers)


def fitted(frame: np.ndarray, columns: int, rows: int) -> np.ndarray:
    """Returns the frame scaled to fit the cells in its own proportions: (at most 2 rows, at most columns, 3) pixels."""
    height, width = frame.shape[:2]
    scale = min(columns / width, 2 * rows / height)
    w, h = max(1, round(width * scale)), min(2 * rows, max(2, round(height * scale / 2) * 2))
    if scale >= 1:
        return np.asarray(Image.fromarray(frame).resize((w, h), Image.Resampling.NEAREST))
    n = math.ceil(1 / scale)
    ys = ((np.arange(h * n) + 0.5) * height / (h * n)).astype(int)
    xs = ((np.arange(w * n) + 0.5) * width / (w * n)).astype(int)
    samples = frame[ys][:, xs].reshape(h, n, w, n, 3).swapaxes(1, 2).reshape(h, w, n * n, 3).astype(np.float32)
    mean = samples.mean(2)
    # A mean would hide small things (Pong's ball is 2 of 4 pixels wide), so the sample farthest from it counts more.
    farthest = np.square(samples - mean[:, :, None]).sum(-1).argmax(2)
    outlier = np.take_along_axis(samples, farthest[:, :, None, None], 2)[:, :, 0]
    return (mean + OUTLIER_SHARE * (outlier - mean)).round().astype(np.uint8)


class CellGrid:
    """Knows which lines and cells a terminal shows, and writes what changes them."""

    def __init__(self, *, true_colour: bool) -> None:
        self._true_colour = true_colour
        self._cells = np.zeros((0, 0, 2, 3), np.uint8)
        self._known = np.zeros((0, 0), bool)  # the cells whose contents are known
        self._texts: dict[int, str] = {}  # row -> the text that stands there

    def clear(self, columns: int, rows: int) -> str:
        """Starts anew with an empty terminal of another size; returns what to send."""
        self._cells = np.zeros((rows, columns, 2, 3), np.uint8)
        self._known = np.zeros((rows, columns), bool)
        self._texts.clear()
        return "\x1b[0m\x1b[2J"

    def draw(self, texts: dict[int, str], pictures: Pictures) -> str:
        """Returns what to send so that the terminal shows these lines of text by row, and these pictures."""
        out: list[str] = []
        for row in sorted(self._texts.keys() | texts.keys()):
            if self._texts.get(row) != texts.get(row):
                out.append(f"\x1b[{row + 1};1H\x1b[0m\x1b[2K{texts.get(row, '')}")
                self._known[row] = False
        self._texts = texts
        return "".join(out) + self._changes(pictures)

    def _changes(self, pictures: Pictures) -> str:
        """Returns what turns the present cells into these pictures; cells that leave a picture are blanked."""
        wanted, covered = np.zeros_like(self._cells), np.zeros_like(self._known)
        for (row, column), cells in pictures.items():
            place = (slice(row, row + cells.shape[0]), slice(column, column + cells.shape[1]))
            wanted[place], covered[place] = cells, True
        for row in self._texts:
            covered[row] = False
        changed = covered & (~self._known | (wanted != self._cells).any((2, 3)))
        blanked = self._known & ~covered
        for row in self._texts:
            blanked[row] = False
        out: list[str] = []
        if blanked.any():
            for row in np.nonzero(blanked.any(1))[0].tolist():
                out.append(f"\x1b[{row + 1};1H\x1b[0m\x1b[2K")
                changed[row] = covered[row]
        out += self._cells_text(wanted, changed)
        self._cells, self._known = wanted, covered
        return "".join(out)

    def _cells_text(self, cells: np.ndarray, changed: np.ndarray) -> list[str]:
        out: list[str] = []
        codes = None if self._true_colour else to_256(cells)
        colours: tuple[object, object] = (None, None)
        at = (-1, -1)
        for row, column in np.argwhere(changed).tolist():  # plain numbers format faster
            if (row, column) != at:
                out.append(f"\x1b[{row + 1};{column + 1}H")
            if codes is None:
                upper, lower = (";".join(map(str, rgb)) for rgb in cells[row, column].tolist())
            else:
                upper, lower = map(str, codes[row, column].tolist())
            kind = 2 if codes is None else 5
            new = [f"{ground};{kind};{colour}" for ground, colour in ((38, upper), (48, lower))]
            needed = [one for one, old in zip(new, colours, strict=True) if one != old]
            if needed:
                out.append(f"\x1b[{';'.join(needed)}m")
            out.append("▀")
            colours, at = (new[0], new[1]), (row, column + 1)
        return out
