"""Carries out the cases of an attack, each in a child process with a time limit, and collects what went wrong."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import run
from benchmarks import ROOT
from benchmarks.chaos.preloaded import Preloaded
from drlhp.runtime.machine import n_cores

MARK = "CHAOS_CASE"  # environment variable by which the processes of a case are found, whoever their parent is now
LEAVE_SECONDS = 90.0  # A run waits 60 s for its children, and then kills them.
LOOK_SECONDS = 0.02
NOT_BEGUN = "not begun, because the time was over"  # among the counts
SENTENCE = re.compile(r"(run\.py|drlhp): .+[^.][.?]")
HELP = re.compile("For full helptext|usage: ")  # the parser's own words about flags
TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Finding:
    """One thing that went wrong; `python -m benchmarks.chaos ATTACK --seed SEED --case CASE` does it again."""

    attack: str
    seed: int
    case: int
    did: str
    seen: str


@dataclass
class Outcome:
    """The counts and findings of one attack."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


class Notes:
    """Writes down what a case counts and finds, line by line, so that nothing is lost if the case is killed.

    Args:
        rng: all that the case leaves to chance; it follows from the seed, the attack and the case's number.
        folder: an empty folder for the case, deleted after it.
    """

    def __init__(self, path: Path, rng: random.Random, folder: Path) -> None:
        self.path, self.rng, self.folder = path, rng, folder

    def count(self, what: str, n: int = 1) -> None:
        self._write({"count": what, "n": n})

    def found(self, did: object, seen: str) -> None:
        self._write({"did": str(did), "seen": seen[-1500:]})

    def _write(self, line: dict[str, object]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


Body = Callable[[int, Notes], None]  # carries out the case of a number


class Ended(NamedTuple):
    """How a command ended: its exit status, None if it had to be killed, and all that it printed."""

    status: int | None
    output: str


class Child(NamedTuple):
    """A case that is being carried out."""

    number: int
    pid: int
    place: Path
    until: float


def carry_out(
    attack: str, body: Body, seed: int, numbers: Iterable[int], *, seconds: float, until: float = float("inf")
) -> Outcome:
    """Carries out cases, as many at once as there are cores; returns what they counted and found.

    Args:
        body: runs in a forked child, so that a case can neither hang nor change or end this process.
        seconds: the time limit of a case.
        until: the monotonic time after which no case begins; those that did not are counted.
    """
    outcome, running, left = Outcome(), list[Child](), iter(numbers)
    gc.freeze()  # The children need not look through all that this process has imported.
    try:
        while True:
            while len(running) < n_cores() and (number := next(left, None)) is not None:
                if time.monotonic() >= until:
                    outcome.counts[NOT_BEGUN] += 1
                else:
                    running.append(_begin(attack, body, seed, number, seconds))
            if not running:
                return outcome
            for child in [child for child in running if _has_ended(child, attack, seed, outcome)]:
                running.remove(child)
            time.sleep(LOOK_SECONDS)
    finally:
        for child in running:
            _end(child)
        gc.unfreeze()


def _begin(attack: str, body: Body, seed: int, number: int, seconds: float) -> Child:
    """Starts a case in a forked child."""
    place = Path(tempfile.mkdtemp(prefix="chaos-"))
    (place / "case").mkdir()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Threads of numeric libraries, which survive a fork.
        pid = os.fork()
    if pid:
        return Child(number, pid, place, time.monotonic() + seconds)
    notes = Notes(place / "notes", random.Random(f"{seed} {attack} {number}"), place / "case")
    try:
        os.environ[MARK] = place.name
        for number_of_signal in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number_of_signal, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(place / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number_of_stream in (1, 2):
            os.dup2(output, number_of_stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        os.chdir(notes.folder)
        body(number, notes)
    except BaseException:
        notes.found("the attack itself", traceback.format_exc())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)


def _has_ended(child: Child, attack: str, seed: int, outcome: Outcome) -> bool:
    """Returns whether a case has ended, or its time is up; then its notes are in the outcome."""
    ended, status = os.waitpid(child.pid, os.WNOHANG)
    if not ended and time.monotonic() < child.until:
        return False
    if not ended:
        outcome.findings.append(Finding(attack, seed, child.number, "the case as a whole", f"hang: {_doing(child)}"))
    elif status:
        seen = f"the process ended with {os.waitstatus_to_exitcode(status)}"
        outcome.findings.append(Finding(attack, seed, child.number, "the case as a whole", seen))
    outcome.counts["cases"] += 1
    notes = child.place / "notes"
    for line in notes.read_text().splitlines() if notes.exists() else ():
        note = json.loads(line)
        if "count" in note:
            outcome.counts[note["count"]] += note["n"]
        else:
            outcome.findings.append(Finding(attack, seed, child.number, note["did"], note["seen"]))
    output = (child.place / "output").read_text(errors="replace") if (child.place / "output").exists() else ""
    if TRACEBACK in output:
        outcome.findings.append(Finding(attack, seed, child.number, "printed meanwhile", output[-1500:]))
    left = _end(child, reap=not ended)
    if ended and left:
        outcome.findings.append(Finding(attack, seed, child.number, "at the end", f"processes left: {left}"))
    return True


def _doing(child: Child) -> str:
    """Returns what a case that does not end has written last."""
    lines = (child.place / "notes").read_text().splitlines() if (child.place / "notes").exists() else []
    return f"no end in time; its last note: {lines[-1] if lines else 'none'}"


def _end(child: Child, *, reap: bool = True) -> list[str]:
    """Ends a case with all its processes, and removes its files; returns the names of processes that it had left."""
    if reap:
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
    left = processes(child.place.name)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(child.place, ignore_errors=True)
    return list(left.values())


def processes(mark: str | None = None) -> dict[int, str]:
    """Returns the processes that a case has started, without this one: their names by their ids."""
    wanted, found = f"{MARK}={mark or os.environ[MARK]}".encode(), {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # A process of another user, or one that has just ended, has no environment to read.
            if int(place.name) != os.getpid() and wanted in (place / "environ").read_bytes().split(b"\0"):
                found[int(place.name)] = _name(place)
    return found


def _name(place: Path) -> str:
    line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    name = (place / "comm").read_text().strip()
    special = [word for word in ("resource_tracker", "forkserver", "run.py") if word in line]
    return name if not special or not name.startswith(("python", "pytest")) else special[0]


def all_ended(seconds: float = LEAVE_SECONDS) -> list[str]:
    """Waits until the case's processes have ended; returns the names of those that have not."""
    deadline = time.monotonic() + seconds
    while (left := processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return list(left.values())


def called(*words: str, main: Callable[[list[str]], int] = run.main) -> Ended:
    """Carries out a command of run.py in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = main([*words])
        except SystemExit as left:
            status = left.code if isinstance(left.code, int) else 1
        except BaseException:
            status = 1
            traceback.print_exc(file=out)
    return Ended(status, out.getvalue())


class Command:
    """A command of run.py in a process of its own, which prints to a file.

    Args:
        preloaded: it need not import the program, which takes most of the time of a short command.
    """

    def __init__(self, *words: str, cwd: Path, preloaded: bool = False) -> None:
        self.path = cwd / f"output-{uuid.uuid4().hex}"
        self.process: subprocess.Popen[bytes] | Preloaded
        if preloaded:
            self.process = Preloaded(words, self.path, cwd)
            return
        # Surrogates in a word stand for bytes that are no UTF-8.
        line = [os.fsencode(word) for word in (sys.executable, str(ROOT / "run.py"), *words)]
        environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
        with self.path.open("wb") as file:
            self.process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=cwd, env=environment
            )

    def wait(self, seconds: float) -> bool:
        """Returns whether the command has ended after so many seconds at most."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.poll() is not None

    def ended(self, seconds: float = LEAVE_SECONDS) -> Ended:
        """Waits for the end; kills the command after so many seconds."""
        status = self.process.returncode if self.wait(seconds) else None
        if status is None:
            self.process.kill()
            self.process.wait()
        return Ended(status, self.path.read_text(errors="replace"))


def complaint(ended: Ended, *allowed: int) -> str:
    """Returns what is wrong with the end of a command, empty if nothing is.

    Args:
        allowed: statuses of an end without a sentence; by default 0. With 1 and 2 there has to be one.
    """
    said = ended.output.strip()
    if ended.status is None:
        return f"hang: it had to be killed; it said: {said[-500:]}"
    if TRACEBACK in said:
        return f"traceback: {said[-1000:]}"
    if ended.status in (allowed or (0,)):
        return ""
    if ended.status not in (1, 2):
        return f"exit status {ended.status}: {said[-500:]}"
    if any(SENTENCE.fullmatch(line) for line in said.splitlines()) or HELP.search(said):
        return ""
    return f"exit status {ended.status} without a sentence: {said[-500:]}"
