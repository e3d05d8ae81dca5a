"""Carries out the cases of an attack, each in a child process with a time limit, and collects what went wrong."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from drlhp.runtime.leash import PR_SET_CHILD_SUBREAPER, descendants
from drlhp.runtime.machine import n_cores

LEAVE_SECONDS = 90.0  # A run waits 60 s for its children, and then kills them.
LOOK_SECONDS, TELL_SECONDS = 0.02, 10.0
LAST_SECONDS = 5.0  # in which helpers of multiprocessing end with their case
NOT_BEGUN = "not begun, because the time was over"  # among the counts
CUT_SHORT = "cut short, because the time was over"
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


def quiet(so_far: Outcome) -> None:
    """Tells nobody what was counted and found so far."""


class Child(NamedTuple):
    """A case that is being carried out."""

    attack: str
    seed: int
    number: int
    pid: int
    place: Path
    until: float  # monotonic times: after this one it hangs
    end: float  # and after this one there is no time left for it

    def finding(self, did: str, seen: str) -> Finding:
        return Finding(self.attack, self.seed, self.number, did, seen)

    def notes(self) -> list[dict[str, Any]]:
        """Returns what the case has written down; the last line may be half written."""
        path = self.place / "notes"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]


class Limits(NamedTuple):
    """How many cases run at once on each core, and how long."""

    seconds: float  # of a case, after which it counts as hanging
    per_core: int = 1
    last_begin: float = math.inf  # the monotonic times after which none begins, and none goes on
    end: float = math.inf


def carry_out(
    attack: str, body: Body, seed: int, numbers: Iterable[int], limits: Limits, tell: Callable[[Outcome], None] = quiet
) -> Outcome:
    """Carries out cases, several at once; returns what they counted and found.

    Args:
        body: runs in a forked child, so that a case can neither hang nor change or end this process.
        tell: is told now and then what was counted and found so far.
    """
    outcome, running, left = Outcome(), list[Child](), iter(numbers)
    told, theirs = time.monotonic(), frozenset(_children())
    gc.freeze()  # The children need not look through all that this process has imported.
    adopt_orphans(True)
    try:
        while True:
            while len(running) < limits.per_core * n_cores() and (number := next(left, None)) is not None:
                if time.monotonic() >= limits.last_begin:
                    outcome.counts[NOT_BEGUN] += 1
                else:
                    running.append(_begin(attack, body, seed, number, limits))
            if not running:
                return outcome
            for child in [child for child in running if _is_over(child, outcome)]:
                running.remove(child)
                _take_notes(child, outcome)
                _end_orphans(child, running, theirs, outcome)
            if time.monotonic() > told + TELL_SECONDS:
                told = time.monotonic()
                tell(_so_far(outcome, running))
            time.sleep(LOOK_SECONDS)
    finally:
        for child in running:
            _kill(child)
        _end_orphans(None, [], theirs, outcome)
        adopt_orphans(False)
        gc.unfreeze()


def _begin(attack: str, body: Body, seed: int, number: int, limits: Limits) -> Child:
    """Starts a case in a forked child."""
    place = Path(tempfile.mkdtemp(prefix="chaos-"))
    (place / "case").mkdir()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Threads of numeric libraries, which survive a fork.
        pid = os.fork()
    if pid:
        return Child(attack, seed, number, pid, place, time.monotonic() + limits.seconds, limits.end)
    notes = Notes(place / "notes", random.Random(f"{seed} {attack} {number}"), place / "case")
    try:
        adopt_orphans(True)  # so that every process of the case is below this one
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


def _is_over(child: Child, outcome: Outcome) -> bool:
    """Returns whether a case has ended, or its time is up; then it is ended now."""
    ended, status = os.waitpid(child.pid, os.WNOHANG)
    now = time.monotonic()
    if not ended and now < min(child.until, child.end):
        return False
    if not ended:
        _kill(child)
        if now < child.until:
            outcome.counts[CUT_SHORT] += 1
        else:
            outcome.findings.append(child.finding("the case as a whole", f"hang: {_doing(child)}"))
    elif status:
        seen = f"the process ended with {os.waitstatus_to_exitcode(status)}"
        outcome.findings.append(child.finding("the case as a whole", seen))
    outcome.counts["cases"] += int(bool(ended) or now >= child.until)
    return True


def _take_notes(child: Child, outcome: Outcome) -> None:
    """Adds what a case has counted and found so far to the outcome."""
    for note in child.notes():
        if "count" in note:
            outcome.counts[note["count"]] += note["n"]
        else:
            outcome.findings.append(child.finding(note["did"], note["seen"]))
    output = (child.place / "output").read_text(errors="replace") if (child.place / "output").exists() else ""
    if TRACEBACK in output:
        outcome.findings.append(child.finding("printed meanwhile", output[-1500:]))


def _so_far(outcome: Outcome, running: list[Child]) -> Outcome:
    """Returns what was counted and found, also by the cases that still run."""
    sum_so_far = Outcome(outcome.counts.copy(), [*outcome.findings])
    for child in running:
        _take_notes(child, sum_so_far)
    return sum_so_far


def _doing(child: Child) -> str:
    """Returns what a case that does not end has written last."""
    return f"no end in time; its last notes: {child.notes()[-3:]}"


def _kill(child: Child) -> None:
    """Ends a case with all its processes."""
    for pid in (*descendants(child.pid), child.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)


def _end_orphans(child: Child | None, running: list[Child], theirs: frozenset[int], outcome: Outcome) -> None:
    """Ends the processes that a case has left, which is a finding, and removes its files.

    Args:
        child: the case; of two that end at the same moment, the first answers for both. None: ended by this process.
        theirs: the processes of this one that are not of cases.
    """
    deadline = time.monotonic() + LAST_SECONDS
    while left := _children() - theirs - {one.pid for one in running}:
        for pid in list(left):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0]:  # which also adds its processor time to that of our children
                    left.remove(pid)
        if left and time.monotonic() > deadline:
            if child:
                names = [name_of(one) for pid in left for one in (pid, *descendants(pid))]
                outcome.findings.append(child.finding("at the end", f"processes left: {names}"))
            for one in [one for pid in left for one in (*descendants(pid), pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
            deadline = math.inf
        time.sleep(LOOK_SECONDS)
    if child:
        shutil.rmtree(child.place, ignore_errors=True)


def _children() -> set[int]:
    """Returns the ids of the processes whose parent is this one, also of those that have ended."""
    return {int(word) for path in Path("/proc/self/task").glob("*/children") for word in path.read_text().split()}


def adopt_orphans(on: bool) -> None:
    """Makes this process the parent of all below it whose own parents have died, or no longer."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(on))


def processes() -> dict[int, str]:
    """Returns the processes that this one has started, and those that they have: their names by their ids."""
    found = {pid: name_of(pid) for pid in descendants(os.getpid())}
    return {pid: name for pid, name in found.items() if name}


def name_of(pid: int) -> str:
    """Returns what a process is; empty if it has ended."""
    place = Path(f"/proc/{pid}")
    try:
        line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        name = (place / "comm").read_text().strip()
    except OSError:
        return ""
    special = [word for word in ("resource_tracker", "forkserver", "run.py") if word in line]
    # What has ended, and waits for its parent to see that, has no command line any more.
    return "" if not line else name if not special or not name.startswith(("python", "pytest")) else special[0]


def all_ended(seconds: float = LEAVE_SECONDS) -> list[str]:
    """Waits until the case's processes have ended; returns the names of those that have not."""
    deadline = time.monotonic() + seconds
    while (left := processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return list(left.values())
