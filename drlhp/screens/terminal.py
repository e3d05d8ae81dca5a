"""Two clips side by side in the terminal itself, in half blocks, where there is no display: over SSH, in a container.

Each character cell shows two pixels, one above the other: U+2580 in the colour of the upper on that of the lower. Only
cells that change are sent.
"""

from __future__ import annotations

import atexit
import codecs
import contextlib
import io
import math
import os
import re
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image
from rich.cells import cell_len, set_cell_size

from drlhp.screens.playback import ALWAYS, ANSWERS, GUARD_SECONDS, PLAYING, WORDS, Playback, plain

KEYS = {
    **dict.fromkeys(["l", "\x1b[D", "\x1bOD"], "left"),
    **dict.fromkeys(["r", "\x1b[C", "\x1bOC"], "right"),
    **dict.fromkeys(["e", "\x1b[A", "\x1bOA"], "equal"),
    **dict.fromkeys(["\r", "\n", "\x1b[B", "\x1bOB"], "incomparable"),
    **dict.fromkeys(["u", "\x7f", "\b"], "undo"),
    **{" ": "pause", ",": "back", ".": "forward", "[": "slower", "]": "faster"},
    **dict.fromkeys(["\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"], "replay"),
    **{"s": "skip", "f": "flag", "g": "gallery", "q": "quality", "p": "break", "t": "start"},
    **dict.fromkeys(["h", "?"], "help"),
    **{"\x1b": "escape", "\x04": "close"},
}
END = "\x04"  # Ctrl-D, and the end of the input
PASTE, PASTED = "\x1b[200~", "\x1b[201~"  # around what is pasted, which is no key of ours
# Arrows and the like, F1 to F5 of Linux's console, and what is pressed together with Alt, which is no key of ours.
KEY = re.compile(r"\x1b(?:\[\[[A-E]|\[[0-9;]*[A-Za-z~]|O[A-Za-z]|[^\x1b])|[^\x1b]|\x1b", re.DOTALL)
HALF_KEY = re.compile(r"\x1b(?:\[\[|\[[0-9;]*|O)?$")  # what more may follow
ESCAPE_SECONDS = 0.05  # after which an escape byte is the key, and not the beginning of an arrow
# A key that is held down comes again every 30 ms or so, after a quarter of a second or more. The same key within
# HELD_SECONDS is doubtful, and taken only if it comes alone.
REPEAT_SECONDS, HELD_SECONDS = 0.08, 1.0
KEYS_LINE = "L/← left  R/→ right  E/↑ equal  Enter/↓ can't tell  U undo  H all keys"
HEADINGS = "LEFT: press L or ←", "RIGHT: press R or →"
# In a narrow terminal.
SHORT_KEYS_LINE, SHORT_HEADINGS = "L R E Enter answer  U undo  H all keys", ("LEFT: L or ←", "RIGHT: R or →")

GAP, MARGIN, ROWS_BESIDES = 3, 1, 5  # columns between the clips and at the sides; rows of text and of the bar
MIN_COLUMNS, MIN_ROWS = 40, 15
OUTLIER_SHARE = 0.6  # of the most unusual pixel in the colour of many; judged by eye with Pong and Enduro
CHUNK = 512  # bytes at a time: less than a terminal's buffer, so that a slow line holds up nothing

ENTER = "\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[2J"  # the other screen, no cursor, and PASTE around what is pasted
LEAVE = "\x1b[0m\x1b[?2004l\x1b[?25h\x1b[?1049l"
BEGIN_FRAME, END_FRAME = "\x1b[?2026h", "\x1b[?2026l"  # shown at once by terminals that know it, ignored by others
DIM, BRIGHT, PLAIN = "\x1b[0;90m", "\x1b[0;1m", "\x1b[0m"
SAID_SECONDS = 1.5


def true_colour() -> bool:
    """Whether the terminal says that it has 24-bit colour."""
    return os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")


def to_256(pixels: np.ndarray) -> np.ndarray:
    """(..., 3) uint8 -> (...) the nearest of the 216 colours of the cube or the 24 greys, as xterm numbers them."""
    levels = np.array([0, 95, 135, 175, 215, 255])
    rgb = pixels.astype(int)
    cube = np.abs(rgb[..., None] - levels).argmin(-1)
    grey = ((rgb.mean(-1) - 8) / 10).round().clip(0, 23).astype(int)
    cube_error = np.square(levels[cube] - rgb).sum(-1)
    grey_error = np.square((8 + 10 * grey)[..., None] - rgb).sum(-1)
    numbers = 16 + 36 * cube[..., 0] + 6 * cube[..., 1] + cube[..., 2]
    return np.where(grey_error < cube_error, 232 + grey, numbers)


def fitted(frame: np.ndarray, columns: int, rows: int) -> np.ndarray:
    """The frame as (2 rows', columns', 3) pixels that fit into so many cells, its proportions kept."""
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
    # What a mean would hide (Pong's ball is 2 of 4 pixels wide) shows by the sample that is farthest from it.
    farthest = np.square(samples - mean[:, :, None]).sum(-1).argmax(2)
    outlier = np.take_along_axis(samples, farthest[:, :, None, None], 2)[:, :, 0]
    return (mean + OUTLIER_SHARE * (outlier - mean)).round().astype(np.uint8)


def cut(text: str, columns: int) -> str:
    """As much of the text as so many cells show; some letters are two cells wide."""
    text = plain(text)
    return text if cell_len(text) <= columns else f"{set_cell_size(text, columns - 1).rstrip()}…"


def centred(text: str, columns: int) -> str:
    text = cut(text, columns)
    return " " * ((columns - cell_len(text)) // 2) + text


class LastLine(io.TextIOBase):
    """Takes what the program prints while the screen is in use: the last line is shown, the newest 200 later."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=200)

    def write(self, text: str) -> int:
        self.lines.extend(line for line in text.splitlines() if line)
        return len(text)

    def isatty(self) -> bool:
        return False


def _key(press: str) -> str:
    """What a press is for, or else itself."""
    return KEYS.get(press.lower() if len(press) == 1 else press, press)


class Keys:
    """Presses from bytes: arrows from their sequences, held keys once; what is written as a note goes to `playback`."""

    def __init__(self, playback: Playback, clock: Callable[[], float] = time.monotonic) -> None:
        self.playback, self.clock = playback, clock
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text, self._came_at, self._pasting = "", 0.0, False
        self._presses = deque[tuple[str, float]]()
        self._last: tuple[str, float] = ("", 0.0)  # key that may be held down, and when it came
        self._doubtful: tuple[str, float] | None = None

    def feed(self, data: bytes) -> None:
        self._text += self._decoder.decode(data)
        self._came_at = self.clock()

    def next(self) -> str | None:
        """The next action that is certain by now. What follows it waits: it may be a note, if that is what begins."""
        now = self.clock()
        waits = HALF_KEY.search(self._text) if now - self._came_at < ESCAPE_SECONDS else None
        whole = self._text[: waits.start()] if waits else self._text
        self._text = self._text[len(whole) :]
        self._presses += [(press, now) for press in KEY.findall(whole)]
        while (press := self._unheld(now)) is not None:
            if press in (PASTE, PASTED):
                self._pasting = press == PASTE
            elif self.playback.writing and press != END:
                self.playback.write(" " if self._pasting and press in "\r\n" else press)
            elif not self._pasting and _key(press) != press:
                return _key(press)
        return None

    def _unheld(self, now: float) -> str | None:
        """The next press whose key is not being held down."""
        while self._presses or self._doubtful:
            if self._doubtful:
                press, at = self._doubtful
                alone = _key(self._presses[0][0]) != _key(press) if self._presses else now - at >= REPEAT_SECONDS
                if alone:
                    self._doubtful = None
                    return press
            if not self._presses:
                return None
            press, at = self._presses.popleft()
            key, (last, last_at) = _key(press), self._last
            # Letters may be held in a note, but for the F that began it; what ends it must not answer or end more.
            if self.playback.writing and key != last:
                self._last = (key, at) if press in "\r\n\x1b" else ("", 0.0)
                return press
            if not self.playback.writing and key in (press, "help", *PLAYING):
                self._last = ("", 0.0)
                return press
            self._last = (key, at)  # a key that is held down comes again with no other in between
            if key != last or at - last_at >= HELD_SECONDS:
                return press
            self._doubtful = (press, at) if at - last_at >= REPEAT_SECONDS else None
        return None


def opened_again(fd: int) -> int:
    """A descriptor of the same terminal from which reading never waits.

    A shell may get the terminal back between a look whether something was pressed and the reading of it. `fd` itself
    is the shell's, too, which wants its own to wait.
    """
    try:
        return os.open(os.ttyname(fd), os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:  # it has no name here, or belongs to another user
        return os.dup(fd)


def read_keys(fd: int, keys: Keys) -> None:
    """Feeds what has been pressed at the terminal, without waiting; its end counts as Ctrl-D."""
    while select.select([fd], [], [], 0)[0]:
        try:
            data = os.read(fd, 1024)
        except BlockingIOError:
            return
        keys.feed(data or b"\x04")
        if not data:
            return


def in_foreground(fd: int) -> bool:
    """Whether a terminal may be used without being stopped for it, as programs in the background are."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:  # it is not the terminal that we were started from
        return True


class TerminalKeys:
    """Single presses at the terminal, beside a window that shows the clips; `close` gives the terminal back."""

    def __init__(self, playback: Playback, fd: int | None = None) -> None:
        """Takes the keyboard of the terminal that stdin is, or of another.

        Args:
            playback: the window's.
        """
        self._in = sys.stdin.fileno() if fd is None else fd
        self._source = opened_again(self._in)
        self._keys, self._kept, self._closed = Keys(playback), deque[str](), False
        self._guarded_until = 0.0
        self._before: list[Any] | None = None  # how the terminal was when it was taken
        atexit.register(self.close)
        self._read()

    def _read(self) -> None:
        """Reads what was pressed, unless another program has the terminal now, as the shell that we were left in."""
        if self._closed or not in_foreground(self._in):
            return
        with contextlib.suppress(termios.error):  # the terminal is gone
            mode = termios.tcgetattr(self._in)
            if mode[3] & termios.ICANON:  # it comes from the shell, perhaps once more
                self._before = mode
                tty.setcbreak(self._in)
        read_keys(self._source, self._keys)

    def new_pair(self) -> None:
        """Answers pressed before or within 0.25 s are ignored."""
        self._read()
        self._kept += [action for action in iter(self._keys.next, None) if action in ALWAYS]
        self._guarded_until = time.monotonic() + GUARD_SECONDS

    def next(self, *, asked: bool) -> str | None:
        """The next press that was not meant for another pair; None if there is none."""
        if self._closed:
            return None
        if self._kept:
            return self._kept.popleft()
        self._read()
        for action in iter(self._keys.next, None):
            if action in (*ALWAYS, *PLAYING) or time.monotonic() >= self._guarded_until:
                return action
        return None

    def close(self) -> None:
        """May be called twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        os.close(self._source)
        if self._before is not None and in_foreground(self._in):
            with contextlib.suppress(OSError, termios.error):  # the terminal is gone
                termios.tcsetattr(self._in, termios.TCSAFLUSH, self._before)


class TerminalScreen:
    """The terminal as a screen for two clips; `close`, which the program's end calls too, leaves it as it was."""

    def __init__(self) -> None:
        """Takes the terminal that stdin and stdout are."""
        self.playback = Playback()
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._source = opened_again(self._in)
        self._true_colour = true_colour()
        self._keys, self._kept, self._closed = Keys(self.playback), deque[str](), False
        self._pairs = 0
        self._clips: tuple[np.ndarray, np.ndarray] | None = None
        self._caption, self._message = "", "Waiting for clips"
        self._guarded_until, self._answered, self._answered_until = 0.0, "", 0.0
        self._size = (0, 0)
        self._cells = np.zeros((0, 0, 2, 3), np.uint8)
        self._known = np.zeros((0, 0), bool)  # cells whose contents the terminal has
        self._texts: dict[int, str] = {}  # row -> what is written there
        self._scaled: dict[tuple[int, int], np.ndarray] = {}
        self._drawn: object = None
        self._unsent = b""
        self._before = termios.tcgetattr(self._in)
        self._printed = LastLine()
        self._streams = (sys.stdout, sys.stderr)
        atexit.register(self.close)
        tty.setcbreak(self._in)
        mode = termios.tcgetattr(self._in)
        mode[6][termios.VSUSP] = b"\0"  # Ctrl-Z would leave the shell with our screen
        termios.tcsetattr(self._in, termios.TCSADRAIN, mode)
        sys.stdout = sys.stderr = self._printed
        self._send(ENTER)

    def show(self, left: np.ndarray, right: np.ndarray, fps: float, caption: str) -> None:
        """Starts a pair at frame 0 of both; answers pressed before or within 0.25 s are ignored."""
        self._clips, self._caption = (left, right), caption
        self._scaled.clear()
        self._pairs += 1
        self.playback.start(max(len(left), len(right)), fps)
        read_keys(self._source, self._keys)
        self._kept += [action for action in iter(self._keys.next, None) if action in ALWAYS]
        self._guarded_until = time.monotonic() + GUARD_SECONDS

    def caption(self, text: str) -> None:
        self._caption = text

    def message(self, text: str) -> None:
        self._clips, self._message = None, text

    def tick(self) -> list[str]:
        """Draws what is due; returns a press as `viewer.ClipWindow.tick` does; never waits."""
        if self._closed:
            return []
        read_keys(self._source, self._keys)
        action = self._next()
        if action in ANSWERS:
            self._answered, self._answered_until = action, time.monotonic() + SAID_SECONDS
        self._draw()
        return [action] if action else []

    def _next(self) -> str:
        """The next press that is not the screen's own business; empty if there is none."""
        while action := self._kept.popleft() if self._kept else self._keys.next():
            guarded = self._clips is None or self._too_small or time.monotonic() < self._guarded_until
            if self.playback.reads(action) or (self._clips is not None and self.playback.do(action)):
                continue
            if not guarded or action in ALWAYS:
                return action
        return ""

    @property
    def _too_small(self) -> bool:
        """Whether the clips are not shown, for want of room."""
        return self._size[0] < MIN_COLUMNS or self._size[1] < MIN_ROWS

    @property
    def _said(self) -> bool:
        """Whether an answer was pressed a moment ago."""
        return time.monotonic() < self._answered_until

    def _draw(self) -> None:
        if self._unsent:  # a slow line: the next picture waits until it has this one
            self._send("")
            return
        size = os.get_terminal_size(self._out)
        columns, rows = size.columns or 80, size.lines or 24  # as terminals mostly are that do not say it
        read = (self.playback.reading, self.playback.page)
        words = (self._caption, self._message, read, self._said, tuple(self._printed.lines)[-1:])
        state = (size, self._pairs, self._clips is None, self.playback.index(), words)
        if state == self._drawn:
            return
        self._drawn = state
        out: list[str] = []
        if (columns, rows) != self._size:
            self._size = (columns, rows)
            self._cells = np.zeros((rows, columns, 2, 3), np.uint8)
            self._known = np.zeros((rows, columns), bool)
            self._texts.clear()
            self._scaled.clear()
            out.append("\x1b[0m\x1b[2J")
        texts, picture = self._contents(columns, rows)
        for row in sorted(self._texts.keys() | texts.keys()):
            if self._texts.get(row) != texts.get(row):
                out.append(f"\x1b[{row + 1};1H\x1b[0m\x1b[2K{texts.get(row, '')}")
                self._known[row] = False
        self._texts = texts
        out.append(self._changes(picture))
        if any(out):
            self._send(BEGIN_FRAME + "".join(out) + END_FRAME)

    def _contents(self, columns: int, rows: int) -> tuple[dict[int, str], dict[tuple[int, int], np.ndarray]]:
        """What is to be seen: lines of text by row, and pictures (cells down, cells across, 2, 3) by their place."""
        if self._too_small:
            lines = [f"{columns} x {rows} is too small:", f"clips need {MIN_COLUMNS} x {MIN_ROWS}.", "Make it larger."]
            return {i: line[:columns] for i, line in enumerate(lines[:rows])}, {}
        printed = cut(self._printed.lines[-1], columns - 1) if self._printed.lines else ""
        if self.playback.reading:
            return dict(enumerate(self._page(columns, rows))), {}
        if self._clips is None:
            return {rows // 2: centred(self._message, columns), rows - 1: f"{DIM}{printed}{PLAIN}"}, {}
        index, n_frames = self.playback.index(), self.playback.n_frames
        task = [centred(self.playback.task, columns)] if self.playback.task else []
        pane, height = (columns - 2 * MARGIN - GAP) // 2, rows - ROWS_BESIDES - len(task)
        headings = HEADINGS if pane >= len(HEADINGS[1]) else SHORT_HEADINGS
        pictures = {}
        for side, clip in enumerate(self._clips):
            cells = self._frame(side, min(index, len(clip) - 1), pane, height)
            indent = (pane - cells.shape[1]) * (1 - side)  # close together: easier to compare
            pictures[(1 + (height - cells.shape[0]) // 2, MARGIN + indent + side * (pane + GAP))] = cells
        done = round((columns - 2 * MARGIN) * (index + 1) / n_frames)
        bar = f"{' ' * MARGIN}{'━' * done}{DIM}{'─' * (columns - 2 * MARGIN - done)}{PLAIN}"
        usual = KEYS_LINE if columns >= len(KEYS_LINE) else SHORT_KEYS_LINE
        if self._said:
            usual = f"{WORDS[self._answered]} · U takes it back"
        keys = "" if self.playback.writing else self.playback.keys_line or usual
        # Of a note that is being written, the end is what one looks at.
        caption = cut(self._caption[::-1], columns)[::-1] if self.playback.writing else self._caption
        below = (bar, *task, centred(caption, columns), centred(keys, columns), printed)
        texts = {0: " " * MARGIN + (" " * GAP).join(heading.center(pane) for heading in headings)}
        texts |= {rows - len(below) + i: line for i, line in enumerate(below)}
        texts[rows - 1] = f"{DIM}{texts[rows - 1]}{PLAIN}"
        return texts, pictures

    def _page(self, columns: int, rows: int) -> list[str]:
        """The page of what is read in place of the clips."""
        return ["", *(f" {line}" for line in self.playback.page_lines(columns - 2, rows - 1))]

    def _frame(self, side: int, index: int, columns: int, rows: int) -> np.ndarray:
        """A frame as cells (down, across, upper and lower, 3); scaled once for all loops."""
        if (side, index) not in self._scaled:
            assert self._clips is not None
            pixels = fitted(self._clips[side][index], columns, rows)
            cells = pixels.reshape(len(pixels) // 2, 2, -1, 3).swapaxes(1, 2)
            self._scaled[(side, index)] = cells
        return self._scaled[(side, index)]

    def _changes(self, pictures: dict[tuple[int, int], np.ndarray]) -> str:
        """Moves the terminal from the cells that it has to these; what is no longer a picture is blanked."""
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
        for row, column in np.argwhere(changed).tolist():  # plain numbers, which format faster
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

    def _send(self, text: str) -> None:
        """Writes as much as the line takes now; the rest later."""
        self._unsent += text.encode()
        while self._unsent and select.select([], [self._out], [], 0)[1]:
            n = os.write(self._out, self._unsent[:CHUNK])
            self._unsent = self._unsent[n:]

    def close(self) -> None:
        """Gives the terminal back as it was, and prints what was printed meanwhile; may be called twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        os.close(self._source)
        sys.stdout, sys.stderr = self._streams
        try:
            termios.tcsetattr(self._in, termios.TCSAFLUSH, self._before)
            os.write(self._out, f"{END_FRAME}{LEAVE}".encode())
            for line in self._printed.lines:
                print(line, flush=True)
        except (OSError, termios.error):
            pass  # the terminal is gone
