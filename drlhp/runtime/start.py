"""Starts processes: from one server that has imported the large libraries already."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import tempfile
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any

Context = SpawnContext | ForkServerContext
LARGE_LIBRARIES = ["torch", "gymnasium", "ale_py", "cv2"]
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


def warm_up() -> None:
    """Starts the server now, so that it imports the libraries while this process does the same."""
    if start_context().get_start_method() == "forkserver":
        # The server and the tracker inherit the blocked signals. A closing terminal and `timeout` signal them too, but
        # the run needs them to its end.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGTERM})
        multiprocessing.resource_tracker.ensure_running()  # first, because it unblocks SIGINT and SIGTERM
        # The terminal sends Ctrl-C to the server too, which would print a traceback of its imports.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        multiprocessing.forkserver.ensure_running()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})
