"""Carries out one run on a node of a cluster: waits for its folder, starts or resumes it, and ends it with its task."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from commands.cores import cores_for
from drlhp.cli import FAILURE, INTERRUPTED, USER_ERROR
from drlhp.runtime.leash import LEAVE_WITH_PARENT
from drlhp.runtime.locks import in_use

SECRET = "secret"  # the file in a sign
CLONE = Path(__file__).resolve().parent.parent
LAST_LINES = 20  # of a run's output, which tell why it failed
# Until the folder of a run is free whose node was lost: file servers give up the locks of a lost machine after 90 s.
LOCK_SECONDS = 180.0
SEEN_SECONDS = 60.0  # until a new file on shared storage is seen on all nodes
STOP_SECONDS = 90.0  # for the checkpoints of a run that is to end
POLL_SECONDS = 0.2  # in which a task notices that it is to stop

Tell = Callable[[str], None]


@dataclass(frozen=True)
class NodeRun:
    """A run that is to be carried out on this node.

    Args:
        name: the name of its folder.
        log_dir: the folder that holds its folder.
        words: the arguments of run.py that start it.
        n_cores: the cores that it may use.
        n_gpus: the GPUs that Ray gave to it.
        n_threads: OMP_NUM_THREADS of the command, if that was set: Ray sets one of its own.
        sign: a folder that the command keeps locked, with `secret` in its file.
    """

    name: str
    log_dir: str
    words: tuple[str, ...]
    n_cores: int
    n_gpus: float
    n_threads: str | None
    sign: str
    secret: str

    @property
    def run(self) -> Path:
        return Path(self.log_dir) / self.name

    def carry_out(self, tell: Tell) -> tuple[int, list[str]]:
        """Returns the exit status of the run, and its last lines; each line is told at once, too."""
        stop = threading.Event()
        # Ray interrupts a task that is to stop. An exception could come at any place, also between the start of the
        # run and the first line that would end it.
        before = signal.signal(signal.SIGINT, lambda *_: stop.set())
        try:
            if trouble := self.trouble(tell):
                return USER_ERROR, [trouble]
            until = time.monotonic() + LOCK_SECONDS
            while not stop.is_set():
                if not self._wait_for_folder(tell, stop, until):
                    return USER_ERROR, [f"{self.run} is in use by another process; wait for its end, or stop it."]
                status, lines = self._carry_out(tell, stop)
                if status != USER_ERROR or not in_use(self.run):  # else somebody else took it a moment earlier
                    return status, lines
            return INTERRUPTED, []
        finally:
            signal.signal(signal.SIGINT, before)

    def trouble(self, tell: Tell) -> str:
        """Returns why runs cannot be here, in a sentence; empty if they can."""
        node, end = socket.gethostname(), time.monotonic() + SEEN_SECONDS
        while not _holds(Path(self.sign) / SECRET, self.secret):
            if time.monotonic() > end:
                return f"{self.log_dir} on {node} is another folder; give a --log_dir on storage that all nodes share."
            tell(f"looks for {self.log_dir}")
            time.sleep(1.0)
        if not in_use(Path(self.sign)):
            return (
                f"{self.log_dir} on {node} does not know the locks of other machines, so a run could be carried out "
                "twice; mount it with locks (docs/clusters.md)."
            )
        return ""

    def _wait_for_folder(self, tell: Tell, stop: threading.Event, until: float) -> bool:
        """Returns whether the run's folder is free before that time, or nobody waits for it any more."""
        while in_use(self.run) and not stop.is_set():
            left = until - time.monotonic()
            if left < 0:
                return False
            tell(f"waits up to {left:.0f} s for {self.run}, which another process uses")
            stop.wait(1.0)
        return True

    def _carry_out(self, tell: Tell, stop: threading.Event) -> tuple[int, list[str]]:
        """Starts or resumes the run on cores of its own."""
        with contextlib.suppress(OSError):
            self.run.rmdir()  # it is empty if its node was lost before the first file was written
        words = ("--resume", str(self.run)) if self.run.exists() else self.words
        with cores_for(self.n_cores) as cores:
            program = [sys.executable, str(CLONE / "run.py"), *words]
            start = [sys.executable, str(CLONE / "commands" / "tethered.py"), str(os.getpid())]
            with subprocess.Popen(
                [*start, ",".join(map(str, cores)), *program],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="backslashreplace",
                env=self._environment(),
                cwd=CLONE,
                start_new_session=True,
            ) as process:
                tell("resumes" if words[0] == "--resume" else "starts")
                return _follow(process, tell, stop)

    def _environment(self) -> dict[str, str]:
        """Returns the environment of the run: this process's without what Ray has put in."""
        environment = {**os.environ, LEAVE_WITH_PARENT: "1"}
        environment.pop("OMP_NUM_THREADS", None)
        if self.n_threads is not None:
            environment["OMP_NUM_THREADS"] = self.n_threads
        if not self.n_gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ""  # Ray may have given the node's GPUs to others
        return environment


def _holds(sign: Path, secret: str) -> bool:
    try:
        return sign.read_text() == secret
    except OSError:
        return False


def _follow(process: subprocess.Popen[str], tell: Tell, stop: threading.Event) -> tuple[int, list[str]]:
    """Tells each line of a run; returns its exit status, and its last lines.

    If it is to stop, the run is told to write its checkpoints and to end.
    """
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(process, lines), daemon=True, name="lines").start()
    last: deque[str] = deque(maxlen=LAST_LINES)
    told_at, raylet = None, os.getppid()
    while True:
        if os.getppid() != raylet:  # Ray ends its workers then only if they become children of process 1
            process.kill()
            os._exit(1)
        if stop.is_set() and told_at is None:
            process.send_signal(signal.SIGINT)
            told_at = time.monotonic()
        if told_at is not None and time.monotonic() > told_at + STOP_SECONDS:
            process.kill()
        try:
            line = lines.get(timeout=POLL_SECONDS)
        except queue.Empty:
            continue
        if line is None:
            break
        last.append(line)
        tell(line)
    status = process.wait()
    if status < 0:
        last.append(f"killed by {signal.Signals(-status).name}")
    return status if status >= 0 else FAILURE, list(last)


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip():
            lines.put(line.rstrip())
    lines.put(None)
