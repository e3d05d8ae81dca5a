"""Keys pressed at a terminal: decoded from its bytes, with held keys taken once."""

from __future__ import annotations

import atexit
import codecs
import contextlib
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from drlhp.screens.keys import ALWAYS, PLAYING, TERMINAL_KEYS
from drlhp.screens.playback import GUARD_SECONDS, Playback

END = "\x04"  # Ctrl-D, and the end of the input
PASTE, PASTED = "\x1b[200~", "\x1b[201~"  # around a pasted text, which is no key of ours
# Arrows and the like, F1 to F5 of Linux's console, and keys pressed together with Alt, which are none of ours.
KEY = re.compile(r"\x1b(?:\[\[[A-E]|\[[0-9;]*[A-Za-z~]|O[A-Za-z]|[^\x1b])|[^\x1b]|\x1b", re.DOTALL)
HALF_KEY = re.compile(r"\x1b(?:\[\[|\[[0-9;]*|O)?$")  # a sequence that may go on
ESCAPE_SECONDS = 0.05  # after which an escape byte is the key, and not the beginning of an arrow
# A key that is held down comes again every 30 ms or so, after a quarter of a second or more. The same key within
# HELD_SECONDS is doubtful, and taken only if it comes alone.
REPEAT_SECONDS, HELD_SECONDS = 0.08, 1.0


def _key(press: str) -> str:
    """Returns the action of a press, or the press itself if it has none."""
    return TERMINAL_KEYS.get(press.lower() if len(press) == 1 else press, press)


class Keys:
    """Decodes bytes to actions: an arrow from its sequence, a held key once. Letters of a note go to `playback`."""

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
        """Returns the next action that is certain by now; keys after it wait, because it may begin a note."""
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
        """Returns the next press whose key is not being held down."""
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
            # In a note every letter may be held except the F that began it. A held key that ends it does nothing else.
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
    """Returns a descriptor of the same terminal from which reading never blocks.

    Reading could block if a shell gets the terminal back after the check that a key was pressed. `fd` itself must stay
    blocking, because the shell uses it too.
    """
    try:
        return os.open(os.ttyname(fd), os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:  # it has no name here, or belongs to another user
        return os.dup(fd)


def read_keys(fd: int, keys: Keys) -> None:
    """Feeds the keys that were pressed at the terminal, without blocking; its end counts as Ctrl-D."""
    while select.select([fd], [], [], 0)[0]:
        try:
            data = os.read(fd, 1024)
        except BlockingIOError:
            return
        keys.feed(data or b"\x04")
        if not data:
            return


def in_foreground(fd: int) -> bool:
    """Returns whether this program may use the terminal; one in the background would be stopped for it."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:  # not the terminal from which the program was started
        return True


@contextlib.contextmanager
def unstopped() -> Iterator[None]:
    """Lets this thread set the terminal's mode although the shell may have taken the terminal back just now."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class TerminalKeys:
    """Single keys at the terminal, beside a window that shows the clips; `close` gives the terminal back."""

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
        """Reads what was pressed, unless another program has the terminal now, such as the shell."""
        if self._closed or not in_foreground(self._in):
            return
        with contextlib.suppress(termios.error):  # the terminal is gone
            mode = termios.tcgetattr(self._in)
            if mode[3] & termios.ICANON:  # it comes from the shell, perhaps once more
                self._before = mode
                with unstopped():
                    tty.setcbreak(self._in)
                    if not in_foreground(self._in):  # Ctrl-Z and `bg` came amid this
                        termios.tcsetattr(self._in, termios.TCSANOW, mode)
        read_keys(self._source, self._keys)

    def new_pair(self) -> None:
        """Answers pressed before or within 0.25 s are ignored."""
        self._read()
        self._kept += [action for action in iter(self._keys.next, None) if action in ALWAYS]
        self._guarded_until = time.monotonic() + GUARD_SECONDS

    def next(self, *, asked: bool) -> str | None:
        """Returns the next action that was not meant for another pair; None if there is none."""
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
        """Gives the terminal back; may be called twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        os.close(self._source)
        if self._before is not None and in_foreground(self._in):
            with contextlib.suppress(OSError, termios.error), unstopped():  # the terminal is gone
                termios.tcsetattr(self._in, termios.TCSAFLUSH, self._before)
