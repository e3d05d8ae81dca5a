"""Two clips side by side in the terminal itself, for machines without a display: over SSH, in a container."""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import termios
import time
import tty
from collections import deque

import numpy as np

from drlhp.screens.half_blocks import CellGrid, true_colour
from drlhp.screens.keys import ALWAYS, ANSWERS
from drlhp.screens.playback import GUARD_SECONDS, Playback
from drlhp.screens.terminal_keys import Keys, opened_again, read_keys
from drlhp.screens.terminal_layout import Layout, View, too_small

CHUNK = 512  # bytes at a time: less than a terminal's buffer, so that a slow line blocks nothing
ENTER = "\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[2J"  # the other screen, no cursor, and marks around a pasted text
LEAVE = "\x1b[0m\x1b[?2004l\x1b[?25h\x1b[?1049l"
BEGIN_FRAME, END_FRAME = "\x1b[?2026h", "\x1b[?2026l"  # a frame shown at once; other terminals ignore these
SAID_SECONDS = 1.5


class LastLine(io.TextIOBase):
    """Keeps what the program prints while the screen is in use, so that it can be shown, and printed at the end."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=200)

    def write(self, text: str) -> int:
        self.lines.extend(line for line in text.splitlines() if line)
        return len(text)

    def isatty(self) -> bool:
        return False


class TerminalScreen:
    """The terminal as a screen for two clips; `close`, which the program's end calls too, restores it."""

    def __init__(self) -> None:
        """Takes the terminal that stdin and stdout are."""
        self.playback = Playback()
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._source = opened_again(self._in)
        self._keys, self._kept, self._closed = Keys(self.playback), deque[str](), False
        self._pairs = 0
        self._clips: tuple[np.ndarray, np.ndarray] | None = None
        self._caption, self._message = "", "Waiting for clips"
        self._guarded_until, self._answered, self._answered_until = 0.0, "", 0.0
        self._size = (0, 0)
        self._grid, self._layout = CellGrid(true_colour=true_colour()), Layout(self.playback)
        self._drawn: object = None  # the state that is on the screen
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
        """Starts a pair at frame 0 of both clips; answers pressed before or within 0.25 s are ignored."""
        self._clips, self._caption = (left, right), caption
        self._layout.clear()
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
        """Draws what is due; returns an action as `ClipWindow.tick` does; never blocks."""
        if self._closed:
            return []
        read_keys(self._source, self._keys)
        action = self._next()
        if action in ANSWERS:
            self._answered, self._answered_until = action, time.monotonic() + SAID_SECONDS
        self._draw()
        return [action] if action else []

    def _next(self) -> str:
        """Returns the next action that the screen does not handle itself; empty if there is none."""
        while action := self._kept.popleft() if self._kept else self._keys.next():
            guarded = self._clips is None or too_small(*self._size) or time.monotonic() < self._guarded_until
            if self.playback.reads(action) or (self._clips is not None and self.playback.do(action)):
                continue
            if not guarded or action in ALWAYS:
                return action
        return ""

    def _draw(self) -> None:
        if self._unsent:  # on a slow line the next picture waits until this one is sent
            self._send("")
            return
        size = os.get_terminal_size(self._out)
        columns, rows = size.columns or 80, size.lines or 24  # the usual size, if the terminal does not know
        answered = self._answered if time.monotonic() < self._answered_until else ""
        view = View(self._clips, self._caption, self._message, "".join(tuple(self._printed.lines)[-1:]), answered)
        read = (self.playback.reading, self.playback.page)
        words = (view.caption, view.message, read, view.answered, view.printed)
        state = (size, self._pairs, self._clips is None, self.playback.index(), words)
        if state == self._drawn:
            return
        self._drawn = state
        cleared = ""
        if (columns, rows) != self._size:
            self._size = (columns, rows)
            self._layout.clear()
            cleared = self._grid.clear(columns, rows)
        if frame := cleared + self._grid.draw(*self._layout.contents(view, columns, rows)):
            self._send(f"{BEGIN_FRAME}{frame}{END_FRAME}")

    def _send(self, text: str) -> None:
        """Writes as much as the line takes now, and the rest later."""
        self._unsent += text.encode()
        while self._unsent and select.select([], [self._out], [], 0)[1]:
            n = os.write(self._out, self._unsent[:CHUNK])
            self._unsent = self._unsent[n:]

    def close(self) -> None:
        """Restores the terminal and prints what was printed meanwhile; may be called twice."""
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
