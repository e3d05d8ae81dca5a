"""Where the clips and the words stand in a terminal of a given size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len, set_cell_size

from drlhp.screens.half_blocks import Pictures, fitted
from drlhp.screens.keys import KEYS_LINE, SHORT_KEYS_LINE, WORDS
from drlhp.screens.playback import Playback, plain

HEADINGS = "LEFT: press L or ←", "RIGHT: press R or →"
SHORT_HEADINGS = "LEFT: L or ←", "RIGHT: R or →"  # for a narrow terminal
GAP, MARGIN, ROWS_BESIDES = 3, 1, 5  # columns between the clips and at the sides; rows of text and of the bar
MIN_COLUMNS, MIN_ROWS = 40, 15
FRAME = (128, 128, 128)  # of clips: neither the black nor the white of most terminals, and of many clips
DIM, PLAIN = "\x1b[0;90m", "\x1b[0m"


def too_small(columns: int, rows: int) -> bool:
    """Returns whether clips have no room in a terminal of this size."""
    return columns < MIN_COLUMNS or rows < MIN_ROWS


def cut(text: str, columns: int) -> str:
    """Returns as much of the text as the columns show; some letters are two columns wide."""
    text = plain(text)
    return text if cell_len(text) <= columns else f"{set_cell_size(text, columns - 1).rstrip()}…"


def centred(text: str, columns: int) -> str:
    text = cut(text, columns)
    return " " * ((columns - cell_len(text)) // 2) + text


@dataclass(frozen=True)
class View:
    """What a terminal is to show, besides what `Playback` knows."""

    clips: tuple[np.ndarray, np.ndarray] | None
    caption: str  # the line under the clips
    message: str  # shown if there are no clips
    printed: str  # the last line that the program printed
    answered: str  # the answer that was pressed a moment ago; empty if none was


class Layout:
    """Lays out lines of text and pictures; frames are scaled once for all loops of a pair."""

    def __init__(self, playback: Playback) -> None:
        self._playback = playback
        self._scaled: dict[tuple[int, int], np.ndarray] = {}  # side, frame -> cells

    def clear(self) -> None:
        """Forgets the scaled frames, because the clips or the size changed."""
        self._scaled.clear()

    def contents(self, view: View, columns: int, rows: int) -> tuple[dict[int, str], Pictures]:
        """Returns lines of text by row, and pictures by place."""
        if too_small(columns, rows):
            lines = [f"{columns} x {rows} is too small:", f"clips need {MIN_COLUMNS} x {MIN_ROWS}.", "Make it larger."]
            return {i: line[:columns] for i, line in enumerate(lines[:rows])}, {}
        if self._playback.reading:
            page = ["", *(f" {line}" for line in self._playback.page_lines(columns - 2, rows - 1))]
            return dict(enumerate(page)), {}
        printed = cut(view.printed, columns - 1)
        if view.clips is None:
            return {rows // 2: centred(view.message, columns), rows - 1: f"{DIM}{printed}{PLAIN}"}, {}
        task = [centred(self._playback.task, columns)] if self._playback.task else []
        pane, height = (columns - 2 * MARGIN - GAP) // 2, rows - ROWS_BESIDES - len(task)
        headings = HEADINGS if pane >= len(HEADINGS[1]) else SHORT_HEADINGS
        below = (self._bar(columns), *task, *self._words(view, columns), printed)
        texts = {0: " " * MARGIN + (" " * GAP).join(heading.center(pane) for heading in headings)}
        texts |= {rows - len(below) + i: line for i, line in enumerate(below)}
        texts[rows - 1] = f"{DIM}{texts[rows - 1]}{PLAIN}"
        return texts, self._pictures(view.clips, pane, height)

    def _pictures(self, clips: tuple[np.ndarray, np.ndarray], pane: int, height: int) -> Pictures:
        pictures, index = {}, self._playback.index()
        for side, clip in enumerate(clips):
            cells = self._frame(clip, side, min(index, len(clip) - 1), pane, height)
            indent = (pane - cells.shape[1]) * (1 - side)  # close together, because that is easier to compare
            pictures[(1 + (height - cells.shape[0]) // 2, MARGIN + indent + side * (pane + GAP))] = cells
        return pictures

    def _frame(self, clip: np.ndarray, side: int, index: int, columns: int, rows: int) -> np.ndarray:
        """Returns a frame of a clip, with a thin line around it, as cells (down, across, upper and lower, 3)."""
        if (side, index) not in self._scaled:
            inside = fitted(clip[index], columns - 2, rows - 1)
            pixels = np.full((inside.shape[0] + 2, inside.shape[1] + 2, 3), FRAME, np.uint8)
            pixels[1:-1, 1:-1] = inside
            self._scaled[(side, index)] = pixels.reshape(len(pixels) // 2, 2, -1, 3).swapaxes(1, 2)
        return self._scaled[(side, index)]

    def _bar(self, columns: int) -> str:
        width = columns - 2 * MARGIN
        done = round(width * (self._playback.index() + 1) / self._playback.n_frames)
        return f"{' ' * MARGIN}{'━' * done}{DIM}{'─' * (width - done)}{PLAIN}"

    def _words(self, view: View, columns: int) -> tuple[str, str]:
        """Returns the caption and what keys do."""
        if self._playback.writing:  # a note, whose end the writer looks at
            return centred(cut(view.caption[::-1], columns)[::-1], columns), ""
        usual = KEYS_LINE if columns >= len(KEYS_LINE) else SHORT_KEYS_LINE
        if view.answered:
            usual = f"{WORDS[view.answered]} · U takes it back"
        return centred(view.caption, columns), centred(self._playback.keys_line or usual, columns)
