"""TODO."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import tempfile
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


Context = SpawnContext | ForkServerContext


LARGE_LIBRARIES = ["torch", "gymnasium", "ale_py", "cv2"]


LONGEST_TMPDIR = 70  # a socket's path has 103 characters at most, of which 32 are multiprocessing's


def start_context(method: str | None = None) -> Context:
    """How processes are started: each from a small server that has imported the large libraries once, for all of them.

    A process so started has nothing of the one that asked for it but what it is given, as with `spawn`, which is what
    systems without `forkserver` have, and those whose temporary folder has too long a name for the server's socket; or
    by the `method` of multiprocessing that is given.
    """
    if method is None:
        has_room = len(os.fsencode(tempfile.gettempdir())) <= LONGEST_TMPDIR
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() and has_room else "spawn"
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(LARGE_LIBRARIES)
    return context


def warm_up() -> None:
    """Starts that server now, so that it imports the libraries while this process does the same."""
    if start_context().get_start_method() == "forkserver":
        # They inherit that: a terminal that closes tells them too, as `timeout` does, and they are needed to the end.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGTERM})
        multiprocessing.resource_tracker.ensure_running()  # first, since it lifts what blocks the other signal
        # And a Ctrl-C, which the terminal sends to the server too, would show in a traceback of imports.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        multiprocessing.forkserver.ensure_running()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})
