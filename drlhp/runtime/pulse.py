"""Tells what a process does now, so that its parent can say what has not moved.

Imports the standard library alone, because the program watches its own imports too.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any

SLOW_SECONDS = 10.0  # after which it is said what is waited for; said again each time that it has taken twice as long
SOON_SECONDS = 2.0  # the same for what people wait for at a command
LOOK_SECONDS = 0.5
LONGEST = 200  # bytes of a description
STARTING = "its start"


class Pulse:
    """What a process does, and since when, in memory that its parent can read.

    Args:
        context: makes memory that processes share; None if only this process looks.
    """

    def __init__(self, context: Any = None, what: str = "") -> None:
        raw = context.RawArray if context is not None else lambda kind, n: (kind * n)()
        self._what = raw(ctypes.c_char, LONGEST)
        self._since = raw(ctypes.c_double, 1)
        self._flags = raw(ctypes.c_bool, 2)  # is it somebody else's code; has the body returned
        self.begin(what)

    def begin(self, what: str, *, foreign: bool = False) -> None:
        """Notes what this process does from now on; '' if it does nothing that anybody waits for."""
        self._what.value = what.encode()[: LONGEST - 1]
        self._flags[0], self._since[0] = foreign, time.monotonic()

    @property
    def what(self) -> str:
        """Returns what the process does now."""
        return str(self._what.value.decode(errors="ignore"))

    @property
    def foreign(self) -> bool:
        """Returns whether this is code of an environment or teacher, after which nothing of ours can be saved."""
        return bool(self._flags[0])

    @property
    def since(self) -> float:
        """Returns the monotonic time at which the process last began or ended something."""
        return float(self._since[0])

    def finish(self) -> None:
        """Notes that the body of the process has returned."""
        self._flags[1] = True

    @property
    def finished(self) -> bool:
        """Returns whether the body of the process has returned: `os._exit(0)` in somebody's code does not count."""
        return bool(self._flags[1])


_here = Pulse()


def here() -> Pulse:
    """Returns the pulse of this process."""
    return _here


def share(pulse: Pulse) -> None:
    """Lets this process note what it does in memory that its parent reads."""
    global _here
    _here = pulse


class doing:
    """Notes what this process does within a block, and after it what it did before.

    Args:
        foreign: the block calls code of an environment or teacher.
    """

    def __init__(self, what: str, *, foreign: bool = False) -> None:
        self._what, self._foreign = what, foreign
        self._counts = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        if self._counts:  # other threads wait for nothing that people wait for
            self._before = _here.what, _here.foreign
            _here.begin(self._what, foreign=self._foreign)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._counts:
            what, foreign = self._before
            _here.begin(what, foreign=foreign)


class Patience:
    """Says, from a thread, what has taken ten seconds and goes on in the processes that it watches.

    Args:
        say: takes a sentence.
        watched: by the name of the process, which is empty for this one.
        soon: descriptions of what is said after two seconds, because people wait for it at a command.
    """

    def __init__(
        self, say: Callable[[str], None], watched: dict[str, Pulse] | None = None, soon: Collection[str] = ()
    ) -> None:
        self.say, self.watched, self.soon = say, watched or {}, soon
        self._said: dict[str, tuple[float, float]] = {}  # name -> since when, and after how many seconds it was said
        self._over = threading.Event()
        threading.Thread(target=self._look, daemon=True, name="patience").start()

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            for name, pulse in list(self.watched.items()):
                what, since = pulse.what, pulse.since
                seconds = time.monotonic() - since
                said_since, said_at = self._said.get(name, (0.0, 0.0))
                first = SOON_SECONDS if what in self.soon else SLOW_SECONDS
                due = first if said_since != since else max(SLOW_SECONDS, 2 * said_at)
                if what and seconds >= due and pulse.since == since:
                    self._said[name] = since, due
                    whom = f" for the {name} process" if name else ""
                    self.say(f"Still waiting{whom}: {what} has taken {seconds:.0f} seconds so far.")

    def close(self) -> None:
        """Says nothing more; may be called twice."""
        self._over.set()
