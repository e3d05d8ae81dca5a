"""Starts processes: from one server that has imported the large libraries already."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import tempfile
import warnings
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any

from drlhp.runtime.pulse import Patience, here

Context = SpawnContext | ForkServerContext
IMPORTS = "the import of PyTorch and Gymnasium"
LARGE_LIBRARIES = ["torch", "torch.utils.tensorboard", "gymnasium", "ale_py", "cv2"]
WARNINGS = "PYTHONWARNINGS"  # of a new Python's environment: which warnings it does not print
LONGEST_TMPDIR = 70  # a socket's path has 103 characters at most, of which 32 are multiprocessing's


def start_context(method: str | None = None) -> Context:
    """Returns how processes are started: each by a small server that has imported the large libraries once.

    As with `spawn`, a process inherits nothing from the one that starts it but its arguments. `spawn` serves systems
    without `forkserver`, and those whose temporary folder has too long a name for the server's socket.

    Args:
        method: another start method of multiprocessing.
    """
    if method is None:
        has_room = len(os.fsencode(tempfile.gettempdir())) <= LONGEST_TMPDIR
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() and has_room else "spawn"
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(LARGE_LIBRARIES)
    return context


@contextlib.contextmanager
def _quiet_tracker() -> Iterator[None]:
    """Lets what is started in the block say nothing of multiprocessing's tracker: what it has freed, or its end.

    What a killed tracker was told to watch, its successor does not know, and would print a traceback for each.
    """
    warnings.filterwarnings("ignore", "resource_tracker:", UserWarning)
    tracker: Any = multiprocessing.resource_tracker
    register, unregister = tracker.register, tracker.unregister
    told = dict[str, int]()  # by name, the process id of the tracker that watches it

    def register_here(name: str, kind: str) -> None:
        register(name, kind)
        told[name] = tracker._resource_tracker._pid

    def unregister_if_known(name: str, kind: str) -> None:
        now = tracker._resource_tracker
        if told.pop(name, now._pid) == now._pid and now._check_alive():
            unregister(name, kind)

    tracker.register, tracker.unregister = register_here, unregister_if_known
    before = os.environ.get(WARNINGS)
    os.environ[WARNINGS] = ",".join(filter(None, [before, "ignore:resource_tracker:UserWarning"]))
    try:
        yield
    finally:
        if before is None:
            del os.environ[WARNINGS]
        else:
            os.environ[WARNINGS] = before


def warm_up(*, starts_processes: bool = True) -> None:
    """Starts the server now, so that it imports the libraries while this process does the same.

    From now on this process says what it does if that takes long; first of all these imports, until it does more.

    Args:
        starts_processes: without it there is no server.
    """
    Patience(lambda sentence: print(sentence, flush=True), {"": here()}, soon=(IMPORTS,))
    here().begin(IMPORTS)
    if starts_processes and start_context().get_start_method() == "forkserver":
        # The server and the tracker inherit the blocked signals. A closing terminal and `timeout` signal them too, but
        # the run needs them to its end.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGTERM})
        with _quiet_tracker():
            multiprocessing.resource_tracker.ensure_running()  # first, because it unblocks SIGINT and SIGTERM
            # The terminal sends Ctrl-C to the server too, which would print a traceback of its imports.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            multiprocessing.forkserver.ensure_running()
    if hasattr(signal, "pthread_sigmask"):  # Whoever started this program may have blocked them too, as Ray does.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})


def warmed_up() -> None:
    """Notes that the imports of this process are done."""
    here().begin("")
