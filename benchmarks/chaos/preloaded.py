"""Commands of run.py in processes that are forked from this one, which has imported the program already.

They are the real command from run.py's first line on. Only its imports, two seconds of a core, are there already.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
import types
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import ROOT

LOOK_SECONDS = 0.01
_spawn = multiprocessing.util.spawnv_passfds


class Preloaded:
    """A command in a forked process, with what the attacks use of `subprocess.Popen`.

    Args:
        words: the command line, without `python run.py`.
        output: the file that takes all that it prints.
        cwd: the folder that it runs in.
    """

    def __init__(self, words: Sequence[str], output: Path, cwd: Path) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        gc.collect()  # A forked process must not inherit an open SQLite connection, which only this may close.
        with output.open("wb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Threads of numeric libraries, which survive a fork.
            self.pid = os.fork()
            if self.pid == 0:
                _become(words, file.fileno(), cwd)

    def poll(self) -> int | None:
        """Returns the exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float = float("inf")) -> int:
        """Returns the exit status; raises subprocess.TimeoutExpired if it has none after so many seconds."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("run.py", timeout)
            time.sleep(LOOK_SECONDS)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal if the process is still there."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills the process."""
        self.send_signal(signal.SIGKILL)


def _become(words: Sequence[str], output: int, cwd: Path) -> None:
    """Makes this forked process the command, and ends it as Python ends."""
    status = 1
    try:
        for number in (1, 2):
            os.dup2(output, number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", 1, closefd=False), os.fdopen(2, "w", 1, closefd=False)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as Python begins
        multiprocessing.util.spawnv_passfds = _spawn_preloaded
        os.chdir(cwd)
        os.environ.pop("DISPLAY", None)
        _forget_processes()
        sys.argv = [str(ROOT / "run.py"), *words]
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            status = 0
        except SystemExit as left:
            status = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
        except KeyboardInterrupt:  # by which Python ends itself
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(status)


def _spawn_preloaded(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """Starts a helper of multiprocessing as it wants to; its forkserver is forked too, for the same reason."""
    if "forkserver" not in args[-1]:
        return int(_spawn(path, args, passfds))
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        Path("/proc/self/comm").write_text("forkserver")
        sys.modules["__main__"] = types.ModuleType("__main__")  # as its children import run.py themselves
        _forget_processes()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in map(int, os.listdir("/proc/self/fd")):
            if number > 2 and number not in (*passfds, nowhere):
                os.dup2(nowhere, number)  # not closed: what owns the number might close it when it is another's
        exec(args[-1])  # what follows `python -c`: multiprocessing's own main function of the server
    except SystemExit:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _forget_processes() -> None:
    """Forgets the helpers of multiprocessing that the forking process may have: a command starts its own."""
    tracker: Any = multiprocessing.resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None
    server: Any = multiprocessing.forkserver._forkserver
    server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None
