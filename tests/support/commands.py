"""Commands of run.py: in a process of their own, in the background, or in this process."""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import run as run_module
from tests.support import ROOT
from tests.support.preloaded import PreloadedPopen, run_captured

DOT = "MovingDotNoFrameskip-v0"
PONG = "PongNoFrameskip-v4"
TINY = (
    *("--n_envs", "4", "--n_initial_prefs", "12", "--max_prefs", "20", "--max_segs", "16"),
    *("--n_initial_epochs", "2", "--eval_episodes", "1", "--million_timesteps", "0.001"),
)
UNEVALUATED = ("--eval_interval_million_timesteps", "0")  # for runs whose evaluations are not the point
BRIEF_PPO = ("--algo", "ppo", "--ppo_epochs", "1", "--ppo_minibatches", "1")
SYNC = "--synchronous"  # all parts of the run in one process
READ_LATE = {"DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "HANG_FILE", "TMPDIR"}  # variables that no large library reads
DEADLINE = 240  # seconds for anything that is waited for


def command(tmp_path: Path, *words: str) -> list[str]:
    return [sys.executable, str(ROOT / "run.py"), *words, "--log_dir", str(tmp_path)]


def environment(**changes: str) -> dict[str, str]:
    """This environment without a display, unless one is given."""
    return {**{name: value for name, value in os.environ.items() if name != "DISPLAY"}, **changes}


def starter(changes: dict[str, str]) -> type[subprocess.Popen[str]]:
    """What starts a program with these variables: most may count while the large libraries are imported."""
    return PreloadedPopen if changes.keys() <= READ_LATE else subprocess.Popen


def run(
    tmp_path: Path, *words: str, status: int = 0, cwd: Path = ROOT, **changes: str
) -> subprocess.CompletedProcess[str]:
    start = starter(changes)
    result = run_captured(command(tmp_path, *words), DEADLINE, start=start, env=environment(**changes), cwd=cwd)
    assert result.returncode == status, result.stdout + result.stderr
    return result


@contextmanager
def small_files(n_bytes: int) -> Iterator[None]:
    """No file grows beyond so many bytes, as on a full disk: the same failed writes, from the system itself."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def started(tmp_path: Path, *words: str, fresh: bool = False, **changes: str) -> Iterator[subprocess.Popen[str]]:
    """A run in the background, ended with the block; `fresh`: of a Python that has imported nothing beforehand."""
    process = (subprocess.Popen if fresh else starter(changes))(
        command(tmp_path, *words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(**changes),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(condition: object, process: subprocess.Popen[str]) -> None:
    """Waits until the condition (a function) holds; fails if the run ends first or the time is up."""
    deadline = time.monotonic() + DEADLINE
    while not condition():  # type: ignore[operator]
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def children(pid: int) -> dict[str, int]:
    """The children of a run, and theirs, by the names that they give themselves."""
    listed = [int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in path.read_text().split()]
    short = {name[:15]: name for name in ("reward predictor", "a2c", "a2c 2")}  # as much as the system keeps
    found: dict[str, int] = {}
    for child in listed:
        try:
            name = Path(f"/proc/{child}/comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        found |= {short[name]: child} if name in short else children(child)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def answers(folder: Path) -> list[tuple[str, str, str]]:
    """Every answer in a run's store, read with plain SQLite."""
    # Closed at once, because a process that is forked meanwhile would inherit what SQLite knows of its locks.
    with contextlib.closing(sqlite3.connect(f"file:{folder / 'prefs.db'}?mode=ro", uri=True)) as db:
        return db.execute("SELECT client_id, comparison_id, choice FROM answer ORDER BY seq").fetchall()


def policy_steps(folder: Path) -> int:
    checkpoints = sorted((folder / "policy").glob("step-*.pt"))
    return int(checkpoints[-1].stem.split("-")[1]) if checkpoints else 0


def progress(folder: Path) -> list[dict[str, str]]:
    """The rows of progress.csv so far; none while there is no file."""
    # As it is at one moment: a header that comes after a first look at the file would be taken for a row.
    path = folder / "progress.csv"
    return list(csv.DictReader(io.StringIO(path.read_text()))) if path.exists() else []


def steps_with_a_return(folder: Path) -> list[float]:
    """The policy's steps in the rows that tell an episode's return."""
    return [float(row["steps"]) for row in progress(folder) if row["episode_return"] not in ("", "nan")]


def without_waits(text: str) -> str:
    """Output without what a busy machine makes a program say about what it waits for."""
    return "".join(line for line in text.splitlines(keepends=True) if "Still waiting" not in line)


def one_sentence(text: str) -> str:
    """The message of a failed command: one line from the program's name to one full stop, and no traceback."""
    assert "Traceback" not in text, text
    lines = [line for line in text.strip().splitlines() if line]
    assert len(lines) == 1 and re.fullmatch(r"run\.py: .+[^.][.?]", lines[0]), text
    return lines[0]


class Done(NamedTuple):
    """What a command in this process has printed."""

    stdout: str
    stderr: str


def here(log_dir: Path | None, *words: str, status: int = 0) -> Done:
    """Carries out a command in this process, without a display: a process of its own takes seconds to import.

    A run has to be `--synchronous` if its parts are not the point, else it starts processes all the same.
    """
    extra = () if log_dir is None else ("--log_dir", str(log_dir))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    out, err, level, renderer = io.StringIO(), io.StringIO(), logging.getLogger().level, None
    logging.getLogger().setLevel(logging.INFO)  # as run.py does where nobody has set one
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.dict(os.environ),
        ):
            os.environ.pop("DISPLAY", None)
            try:
                returned = run_module.main([*words, *extra])
            except SystemExit as left:  # of the library that reads the flags
                returned = left.code if isinstance(left.code, int) else 1
            renderer = os.environ.get("MUJOCO_GL")
            assert returned == status, out.getvalue() + err.getvalue()
    finally:
        if renderer:  # with which MuJoCo was imported, for this whole process
            os.environ["MUJOCO_GL"] = renderer
        logging.getLogger().setLevel(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return Done(out.getvalue(), err.getvalue())


def refused(log_dir: Path, *words: str, status: int = 2) -> str:
    """Returns the one sentence of a command that cannot work."""
    has_log_dir = words[0] not in ("watch", "show_prefs", "report", "import", "label")
    return one_sentence(here(log_dir if has_log_dir else None, *words, status=status).stderr)
