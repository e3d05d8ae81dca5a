"""Starts child processes with all that they may touch, watches them, and always ends them."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVarTuple

from drlhp.errors import USER_ERRORS, ChildError, reason_of, told
from drlhp.runtime.channels import Channels, Failure

Arguments = TypeVarTuple("Arguments")

STOP_SECONDS = 60.0  # for the end of a rollout on a busy machine, a checkpoint and the end of the environments


def child_main(name: str, body: Callable[..., None], channels: Channels, arguments: tuple[Any, ...]) -> None:
    """Runs a process body; reports its failure to the parent, and ends it if the parent dies.

    It ignores the signals that end a run. A terminal, `timeout` or a batch system sends them to all processes of the
    run, and a child that died of one would leave no checkpoint.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    status = 1
    atexit.register(lambda: os._exit(status))  # because Python needs a second to unload PyTorch
    with contextlib.suppress(OSError):  # only Linux has this file
        Path("/proc/self/comm").write_text(name)  # the name of this process in `top` and `ps`

    def report_thread(failure: threading.ExceptHookArgs) -> None:
        """Reports the failure of a library's background thread, such as TensorBoard's writer on a full disk."""
        details = "".join(traceback.format_exception(failure.exc_type, failure.exc_value, failure.exc_traceback))
        message = told(failure.exc_value) if failure.exc_value else failure.exc_type.__name__
        channels.reports.put(Failure(name, message, details))

    threading.excepthook = report_thread
    threading.Thread(target=_follow_parent, args=(channels,), daemon=True, name="parent watch").start()
    try:
        body(channels, *arguments)
        status = 0
    except Exception as error:
        text = told(error) if isinstance(error, USER_ERRORS) else f"{type(error).__name__}: {reason_of(error)}"
        channels.reports.put(Failure(name, text, traceback.format_exc()))
        raise SystemExit(1) from None
    finally:
        # The environments' processes ignore SIGTERM as this one does, so multiprocessing would wait for them forever.
        for process in multiprocessing.active_children():
            process.kill()
        channels.discard()


def _follow_parent(channels: Channels) -> None:
    """Ends this process soon after its parent has died, with a checkpoint if there is time for one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        channels.stop.set()
        time.sleep(STOP_SECONDS)
        os._exit(1)


class Children:
    """The child processes of a run."""

    def __init__(self, channels: Channels) -> None:
        self.channels = channels
        self.processes: dict[str, Any] = {}

    def start(self, name: str, body: Callable[[Channels, *Arguments], None], *arguments: *Arguments) -> None:
        """Starts a process that runs `body(channels, *arguments)`."""
        process = self.channels.context.Process(  # type: ignore[union-attr]
            target=child_main, args=(name, body, self.channels, arguments), name=name
        )
        # The child inherits the block: until its body ignores Ctrl-C, that would end it during its imports.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.processes[name] = process

    def has_finished(self, name: str) -> bool:
        """Returns whether the child has left by itself without an error."""
        return bool(self.processes[name].exitcode == 0)

    def check(self) -> None:
        """Raises ChildError if a child was killed, or died without a report."""
        for name, process in self.processes.items():
            code = process.exitcode
            if code is not None and code < 0:
                killer = signal.Signals(-code).name
                hint = "; if memory was short, free some or use fewer environments" if -code == signal.SIGKILL else ""
                raise ChildError(f"the {name} process was killed by {killer}{hint}")
            if code:
                raise ChildError(f"the {name} process died with exit status {code}")

    def wait(self, seconds: float) -> None:
        """Sleeps, but wakes as soon as a child ends."""
        alive = [process.sentinel for process in self.processes.values() if process.exitcode is None]
        if alive:
            multiprocessing.connection.wait(alive, timeout=seconds)
        else:
            time.sleep(seconds)

    def stop(self) -> None:
        """Asks every child to checkpoint and leave, and ends those that do not; may be called twice."""
        self.channels.stop.set()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self.processes.values():
            process.join(max(0.0, deadline - time.monotonic()))
        self.kill()

    def close(self) -> None:
        """Frees what this process keeps of children that have ended."""
        for process in self.processes.values():
            process.close()
        self.processes.clear()

    def kill(self) -> None:
        """Ends every child at once."""
        for process in self.processes.values():
            if process.exitcode is None:
                process.kill()
                process.join()
