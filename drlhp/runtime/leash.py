"""Ends processes together with the process that started them, however that one ends.

Imports the standard library alone, because a process should be on its leash before it imports anything else.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import subprocess
import sys
import threading
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of <linux/prctl.h>
PARENT_ENDS_SECONDS = 1.0  # far more than a system takes to end a process whose pipes it has closed
# A variable of the environment. With it the children of a run that was killed end at once, without a checkpoint: the
# run may go on elsewhere by then, in the same folder.
LEAVE_WITH_PARENT = "DRLHP_LEAVE_WITH_PARENT"


def _prctl(option: int, value: int) -> None:
    """Changes a setting of this process, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def end_with_parent() -> None:
    """Lets this process end at once when the process that started it does.

    On Linux the system ends it, whatever it does then; elsewhere a thread does, which waits for the end of a pipe.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True, name="parent watch").start()


def _follow(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    end_all(os.getpid())
    os._exit(1)


class OnLeash:
    """A process body whose process ends with its parent, from before it imports what the body needs.

    The body is a named top-level function.
    """

    def __init__(self, body: Callable[..., None]) -> None:
        self.body = body

    def __call__(self, *arguments: Any) -> None:
        """Runs the body."""
        end_with_parent()
        try:
            self.body(*arguments)
        except (ConnectionError, EOFError):
            # A parent that ends closes its pipes a moment before this process is ended. Nobody is left to tell.
            parent = multiprocessing.parent_process()
            if parent is not None:
                parent.join(PARENT_ENDS_SECONDS)
            if parent is None or parent.is_alive():
                raise

    def __reduce__(self) -> tuple[Callable[[str, str], OnLeash], tuple[str, str]]:
        return _restored, (self.body.__module__, self.body.__name__)


def _restored(module: str, name: str) -> OnLeash:
    """Returns the body in its own process, where this is called before anything else of ours is imported."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return OnLeash(getattr(importlib.import_module(module), name))


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Lets processes that are started in the block skip the imports of the program's main file.

    For bodies that need nothing of it: they take seconds, in each process.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def descendants(pid: int) -> list[int]:
    """Returns the ids of the processes that a process has started, and of those that they have, oldest first."""
    children = defaultdict(list)
    for child, parent in _parents():
        children[parent].append(child)
    found = list(children[pid])
    for one in found:
        found += children[one]
    return found


def _parents() -> Iterator[tuple[int, int]]:
    """Yields the id of each process on this machine, with that of its parent."""
    if Path("/proc/self/stat").exists():
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                # The name, in brackets, may hold spaces and brackets itself.
                yield int(stat.parent.name), int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
    else:
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
        for line in listed.splitlines():
            child, parent = line.split()
            yield int(child), int(parent)


def end_all(pid: int, spare: frozenset[int] = frozenset()) -> None:
    """Ends what a process has started, and what that has, but not the process itself, nor those to spare."""
    for one in descendants(pid):
        if one not in spare:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)


@contextlib.contextmanager
def everything_ends_here() -> Iterator[None]:
    """Ends, after the block, every process that was started in it, also those whose own parents have died.

    For a program of its own, because it ends what anybody in it has started.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)  # so that orphans are this process's children
    try:
        yield
    finally:
        # multiprocessing's own two end by themselves; one of them frees what the others have left.
        tracker, server = multiprocessing.resource_tracker._resource_tracker, multiprocessing.forkserver._forkserver
        own = {getattr(tracker, "_pid", None), getattr(server, "_forkserver_pid", None)}
        end_all(os.getpid(), frozenset(pid for pid in own if pid is not None))
