"""Starts child processes with all that they may touch, watches them, and always ends them."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
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
from drlhp.runtime.leash import LEAVE_WITH_PARENT, descendants, end_all
from drlhp.runtime.pulse import STARTING, Patience, Pulse, doing, share

log = logging.getLogger("drlhp")

Arguments = TypeVarTuple("Arguments")

HUNG_SECONDS = 10.0  # in which a step of an environment, or a teacher's answer, should return while a run ends
LOST = 255  # exit status of a child that nobody reports the end of, as multiprocessing gives it
STOP_SECONDS = 60.0  # for the end of a rollout on a busy machine, a checkpoint and the end of the environments


def child_main(
    name: str, pulse: Pulse, body: Callable[..., None], channels: Channels, arguments: tuple[Any, ...]
) -> None:
    """Runs a process body; reports its failure to the parent, and ends it if the parent dies.

    It ignores the signals that end a run. A terminal, `timeout` or a batch system sends them to all processes of the
    run, and a child that died of one would leave no checkpoint.
    """
    threading.Thread(target=_follow_parent, args=(channels, pulse), daemon=True, name="parent watch").start()
    share(pulse)
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
        if isinstance(failure.exc_value, OSError) and not failure.exc_value.filename:
            failure.exc_value.filename = "the curves in events/"  # no other thread writes to files
        message = told(failure.exc_value) if failure.exc_value else failure.exc_type.__name__
        channels.reports.put(Failure(name, message, details))

    threading.excepthook = report_thread
    gc.freeze()  # what was imported stays; looking through all of it would hold the body up for a tenth of a second
    try:
        body(channels, *arguments)
        status = 0
        pulse.finish()
    except Exception as error:
        text = told(error) if isinstance(error, USER_ERRORS) else f"{type(error).__name__}: {reason_of(error)}"
        channels.reports.put(Failure(name, text, traceback.format_exc()))
        raise SystemExit(1) from None
    finally:
        # The environments' processes ignore SIGTERM as this one does, so multiprocessing would wait for them forever;
        # and what an environment has started itself would stay.
        end_all(os.getpid())
        channels.discard()


def _follow_parent(channels: Channels, pulse: Pulse) -> None:
    """Ends this process soon after its parent has died, with a checkpoint if there is something to save."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    multiprocessing.connection.wait([parent.sentinel])
    channels.stop.set()
    asked = time.monotonic()
    until = asked + (0 if os.environ.get(LEAVE_WITH_PARENT) else STOP_SECONDS)
    while pulse.what != STARTING and time.monotonic() < until and not _hangs(pulse, asked):
        time.sleep(0.1)
    end_all(os.getpid())
    os._exit(1)


def _hangs(pulse: Pulse, since: float) -> bool:
    """Returns whether code of an environment or teacher keeps a process that was told to leave at that time."""
    return pulse.foreign and time.monotonic() - max(pulse.since, since) > HUNG_SECONDS


def _alive(pid: int) -> bool:
    """Returns whether a process goes on that nobody reports the end of."""
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0]:  # as an orphan it has become a child of this process
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Children:
    """The child processes of a run.

    Args:
        say: is told in a sentence what has taken a child ten seconds and goes on.
    """

    def __init__(self, channels: Channels, say: Callable[[str], None] = log.warning) -> None:
        self.channels, self.patience = channels, Patience(say)
        self.processes: dict[str, Any] = {}

    def start(self, name: str, body: Callable[[Channels, *Arguments], None], *arguments: *Arguments) -> None:
        """Starts a process that runs `body(channels, *arguments)`."""
        pulse = Pulse(self.channels.context, STARTING)
        process = self.channels.context.Process(  # type: ignore[union-attr]
            target=child_main, args=(name, pulse, body, self.channels, arguments), name=name
        )
        # The child inherits the block: until its body ignores Ctrl-C, that would end it during its imports.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with doing(f"the start of the {name} process"):
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.processes[name], self.patience.watched[name] = process, pulse

    def has_finished(self, name: str) -> bool:
        """Returns whether the child has left by itself without an error."""
        return bool(self.processes[name].exitcode == 0) and self.patience.watched[name].finished

    def check(self) -> None:
        """Raises ChildError if a child was killed, or died without a report."""
        for name, process in self.processes.items():
            code = process.exitcode
            hint = "if memory was short, free some or use fewer environments"
            if code is None or self.has_finished(name):
                continue
            if code == LOST and _alive(process.pid):
                raise ChildError(f"the forkserver, the process that starts the others, was killed; {hint}")
            if code < 0:
                killed = f"the {name} process was killed by {signal.Signals(-code).name}"
                raise ChildError(f"{killed}; {hint}" if -code == signal.SIGKILL else killed)
            how = "left before its work was done, as by `os._exit(0)`" if code == 0 else f"died with exit status {code}"
            raise ChildError(f"the {name} process {how}")

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
        now = asked = time.monotonic()
        while now < asked + STOP_SECONDS and (running := self._running()):
            for name in running:
                pulse = self.patience.watched[name]
                if _hangs(pulse, asked):
                    self.patience.say(f"The {name} process is ended: {pulse.what} has not returned.")
                    self._end(name)
            self.wait(0.05)
            now = time.monotonic()
        self.kill()
        self.patience.close()

    def _running(self) -> list[str]:
        """Returns the names of the children that have not ended."""
        of_each = self.processes.items()
        return [name for name, one in of_each if one.exitcode is None or (one.exitcode == LOST and _alive(one.pid))]

    def close(self) -> None:
        """Frees what this process keeps of children that have ended."""
        for process in self.processes.values():
            process.close()
        self.processes.clear()

    def kill(self) -> None:
        """Ends every child at once."""
        for name in self._running():
            self._end(name)

    def _end(self, name: str) -> None:
        """Ends a child at once, with all that it has started."""
        process = self.processes[name]
        started = descendants(process.pid)
        for pid in (process.pid, *started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.join()
