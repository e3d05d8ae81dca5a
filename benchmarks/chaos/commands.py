"""Commands of run.py, in this process or in one of their own, and what is wrong with how they ended."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import run
from benchmarks import ROOT
from benchmarks.chaos.cases import LEAVE_SECONDS, TRACEBACK
from benchmarks.chaos.preloaded import Preloaded

SENTENCE = re.compile(r"(run\.py|drlhp): .+[^.][.?]")
HELP = re.compile("For full helptext|usage: ")  # the parser's own words about flags


class Ended(NamedTuple):
    """How a command ended: its exit status, None if it had to be killed, and all that it printed."""

    status: int | None
    output: str


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
