"""Answers that are typed as lines, or sent by a program."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import IO

from drlhp.screens.keys import KEYS_HELP, LINES


class TerminalLines:
    """Reads the lines of a stream in a thread of its own, so that nothing waits for them."""

    def __init__(self, stream: IO[str], *, beside_window: bool = False) -> None:
        self._lines: deque[str | None] = deque()  # None: the end of the input
        self._beside_window = beside_window
        self._typed_by_hand = stream.isatty()
        # A daemon, because a thread that waits for a line cannot be woken, and must not keep the program from ending.
        threading.Thread(target=self._read, args=(stream,), daemon=True, name="terminal").start()

    def _read(self, stream: IO[str]) -> None:
        has_come = False
        try:
            with contextlib.suppress(OSError):  # as nohup's replacement of a terminal raises it
                for line in stream:
                    has_come = True
                    self._lines.append(line)
        finally:
            # Beside a window, an input that is empty from the start (as in the background) does not end labelling.
            if has_come or not self._beside_window:
                self._lines.append(None)

    def next(self, *, asked: bool) -> str | None:
        """Returns the next action of `LINES`, "close" at the end of input, or None if nothing was typed.

        While no pair is shown, a person's line is no answer to it. A script's lines wait for the next pair.
        """
        while self._lines:
            line = self._lines[0]
            if line is not None and not asked and not self._typed_by_hand:
                return None
            self._lines.popleft()
            if line is None:
                return "close"
            answer = LINES.get(line.strip().lower())
            if answer is None:
                print(f"'{line.strip()}' is no answer; type one of: {KEYS_HELP}.", flush=True)
            elif asked or answer == "undo":
                return answer
            else:
                print("There is no pair to answer yet.", flush=True)
        return None

    def new_pair(self) -> None: ...

    def close(self) -> None: ...
