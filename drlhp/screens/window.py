"""Windows with two clips side by side: the one that asks which is better, and the one that shows answers."""

from __future__ import annotations

import time

import numpy as np
from rich.cells import cell_len

from drlhp.pictures import BORDER, CHOSEN, CHOSEN_SIDES, DIM_TEXT, TEXT, TRACK
from drlhp.screens.canvas import (
    BAR_GAP,
    BAR_HEIGHT,
    FOOTER,
    MARGIN,
    TITLE,
    Canvas,
    Rect,
    around,
    check_film,
    fit,
    progress_bar,
)
from drlhp.screens.keys import ALWAYS, ANSWERS, STEPPING_KEYS, STEPPING_KEYS_LINE, WIDE_KEYS_LINE, WINDOW_KEYS
from drlhp.screens.playback import GUARD_SECONDS, Playback

SIDES = ("left", "right")
QUESTION = "Which clip is better?"
LETTER_WIDTH, LINE_HEIGHT = 11, 22  # pixels, of the help


class _PairWindow:
    """Two clips side by side that loop together at real speed; a chosen clip has a frame around it."""

    def __init__(self, title: str, keys: dict[str, str], keys_line: str, question: str = "") -> None:
        self._canvas, self._question = Canvas(title, 1080, 780, keys), question
        self._keys_line = keys_line
        self._clips: tuple[np.ndarray, np.ndarray] | None = None
        self._framed: tuple[int, ...] = ()
        self._rects: list[Rect] = []  # of the clips on the screen, left and right
        self.playback = Playback()
        self._caption, self._pairs = "Waiting for clips", 0
        self._draw()

    def message(self, text: str) -> None:
        """Shows text instead of clips while there is no pair; presses are no answers then."""
        self._clips, self._caption = None, text
        self._draw()

    def caption(self, text: str) -> None:
        """Changes the line under the clips."""
        self._caption = text

    def close(self) -> None:
        self._canvas.close()

    def _start(self, left: np.ndarray, right: np.ndarray, fps: float, caption: str) -> None:
        """Shows a pair from frame 0 of both."""
        check_film("left clip", left, fps)
        check_film("right clip", right, fps)
        self._clips, self._caption, self._pairs = (left, right), caption, self._pairs + 1
        self.playback.start(max(len(left), len(right)), fps)
        self._draw()

    def _draw(self) -> None:
        canvas = self._canvas
        if canvas.closed:
            return
        width, height = canvas.window.get_size()
        if self.playback.reading:
            if canvas.begin((self.playback.reading, self.playback.page)):
                self._draw_page(width, height)
                canvas.end()
            return
        if self._clips is None:
            if canvas.begin(self._caption):
                canvas.text("message", self._caption, width // 2, height // 2, 20, TEXT, width - 2 * MARGIN)
                canvas.end()
            return
        index = self.playback.index()
        if canvas.begin((self._pairs, index, self._framed, self._caption)):
            self._draw_pair(self._clips, index)
            canvas.end()

    def _draw_page(self, width: int, height: int) -> None:
        """Draws a page of the help, or of other text, in place of the clips."""
        columns, rows = max(20, (width - 2 * MARGIN) // LETTER_WIDTH), (height - 2 * MARGIN) // LINE_HEIGHT
        lines = self.playback.page_lines(columns, rows)
        text_width = LETTER_WIDTH * (max(map(cell_len, lines)) + 1)
        self._canvas.text("reading", "\n".join(lines), width // 2, height // 2, 13, TEXT, text_width)

    def _draw_words(self, width: int) -> int:
        """Draws keys, caption, question and task at the bottom, one above the other; returns how high they reach."""
        keys = "" if self.playback.writing else self.playback.keys_line or self._keys_line
        question = "" if self.playback.keys_line else self._question  # an earlier answer is looked at, not asked for
        asked = " ".join(filter(None, (question, self.playback.task)))
        y = MARGIN // 3
        for slot, text, size, colour in (
            ("keys", keys, 12, DIM_TEXT),
            ("caption", self._caption, 13, TEXT),
            ("task", asked, 13, TEXT),
        ):
            if text:
                y += self._canvas.text(slot, text, width // 2, y, size, colour, width - MARGIN, anchor_y="bottom")
                y += MARGIN // 4
        return y

    def _draw_pair(self, clips: tuple[np.ndarray, np.ndarray], index: int) -> None:
        canvas = self._canvas
        width, height = canvas.window.get_size()
        footer = max(FOOTER, self._draw_words(width) + BAR_GAP + BAR_HEIGHT + MARGIN // 3)
        pane = max(1, (width - 3 * MARGIN) // 2)
        share = (index + 1) / max(len(clip) for clip in clips)
        self._rects = []
        for side, (name, clip) in enumerate(zip(("Left", "Right"), clips, strict=True)):
            box = (
                MARGIN + side * (pane + MARGIN),
                footer,
                pane,
                max(1, height - footer - TITLE - MARGIN // 2),
            )
            frame = clip[min(index, len(clip) - 1)]
            _, y, w, h = fit(frame, box)
            rect = (box[0] if side else box[0] + pane - w, y, w, h)  # close together: easier to compare
            self._rects.append(rect)
            # Without a frame nobody can tell a black clip from the background.
            chosen = side in self._framed
            canvas.fill(around(rect, BORDER if chosen else 1), CHOSEN if chosen else TRACK)
            canvas.picture(name, frame, rect)
            progress_bar(canvas, rect, share)
            top = rect[1] + rect[3] + TITLE * 2 // 3
            canvas.text(f"{name} title", name, rect[0] + rect[2] // 2, top, 13, DIM_TEXT, pane)


class ClipWindow(_PairWindow):
    """Asks which of two clips is better; keys answer, and the chosen side lights up."""

    def __init__(self) -> None:
        """Opens the window; raises DisplayError."""
        super().__init__(QUESTION, WINDOW_KEYS, WIDE_KEYS_LINE, QUESTION)
        self._framed_until = 0.0
        self._writes = False  # whether the newest key was pressed while a note was written: then its text belongs there
        self._canvas.window.push_handlers(
            on_text=self._on_text, on_text_motion=self._on_motion, on_mouse_press=self._on_click
        )

    def _on_text(self, text: str) -> None:
        self._canvas.pressed.append(text)  # a single character; actions have longer names

    def _on_motion(self, motion: int) -> None:
        from pyglet.window import key

        if motion == key.MOTION_BACKSPACE:
            self._canvas.pressed.append("\b")

    def _on_click(self, x: int, y: int, _button: int, _modifiers: int) -> None:
        """Chooses the clip that is clicked."""
        is_shown = self._clips is not None and not self.playback.reading and not self.playback.writing
        if not is_shown or time.monotonic() < self._canvas.guarded_until:
            return
        for side, (left, bottom, width, height) in zip(SIDES, self._rects, strict=True):
            if left <= x < left + width and bottom <= y < bottom + height:
                self._canvas.pressed.append(side)

    def show(self, left: np.ndarray, right: np.ndarray, fps: float, caption: str) -> None:
        """Starts a new pair at frame 0 of both clips; answers pressed before or within 0.25 s are ignored.

        Args:
            left, right: (T, H, W, 3) uint8; the shorter clip holds its last frame.
            fps: frames per second.
            caption: line under the clips.
        """
        if self._canvas.closed:
            return
        self._canvas.dispatch()
        self._canvas.pressed = [key for key in self._canvas.pressed if key in ALWAYS]
        self._start(left, right, fps, caption)
        self._canvas.guarded_until = time.monotonic() + GUARD_SECONDS

    def tick(self) -> list[str]:
        """Draws what is due and returns the next action of keys.py that was pressed, or none; never blocks.

        The window itself handles the keys that play the clips, help and notes; the caller closes it. Only one action is
        returned at a time, because it may change what the next key means.
        """
        if self._canvas.closed:
            return []
        self._canvas.dispatch()
        action = self._next()
        if time.monotonic() >= self._framed_until:
            self._framed = ()
        if action in ANSWERS:
            self._framed, self._framed_until = CHOSEN_SIDES[action], time.monotonic() + GUARD_SECONDS
        self._draw()
        return [action] if action else []

    def _next(self) -> str:
        """Returns the next action that the window does not handle itself; empty if there is none."""
        if self._canvas.leaving:
            return "close"
        pressed, playback = self._canvas.pressed, self.playback
        while pressed:
            press = pressed.pop(0)
            if len(press) == 1:
                if self._writes and playback.writing:
                    playback.write(press)
                continue
            self._writes = playback.writing
            if playback.writing:
                if press == "escape":  # which is no text
                    playback.write("\x1b")
            elif press and not playback.reads(press) and (self._clips or press in ALWAYS) and not playback.do(press):
                return press
        return ""


class AnswerWindow(_PairWindow):
    """Shows answered pairs with a frame around the preferred side; keys step through them."""

    def __init__(self, title: str = "Answers") -> None:
        """Opens the window; raises DisplayError."""
        super().__init__(title, STEPPING_KEYS, STEPPING_KEYS_LINE)

    def show(self, left: np.ndarray, right: np.ndarray, fps: float, caption: str, answer: str) -> None:
        """Starts a pair at frame 0 of both clips.

        Args:
            left, right: (T, H, W, 3) uint8; the shorter clip holds its last frame.
            fps: frames per second.
            caption: line under the clips.
            answer: "left", "right", "equal" (both are framed) or "incomparable".
        """
        self._framed = CHOSEN_SIDES[answer]
        self._start(left, right, fps, caption)

    def tick(self) -> list[str]:
        """Draws what is due, and returns the presses since the last call: "next", "previous", "close"; never blocks."""
        if self._canvas.closed:
            return []
        self._canvas.dispatch()
        self._draw()
        return self._canvas.take_pressed()
