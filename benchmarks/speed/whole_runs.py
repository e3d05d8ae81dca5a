"""Measurements of whole runs: real command lines in processes of their own, watched through what they write."""

from __future__ import annotations

import contextlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from a2c.config import Algo
from benchmarks import ROOT
from benchmarks.speed.parts import PONG, Reading, reading, scratch_folder
from commands.experiments import EXPERIMENTS
from drlhp.errors import UserError
from drlhp.runtime.run_files import PROGRESS
from pref_db import PrefDB

WARM_UP_SECONDS = 5.0  # of a policy phase, left out of its speed
PHASE_DEADLINE = 900.0  # seconds for a run to come to its policy phase and through it


@contextlib.contextmanager
def started_run(*flags: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A real run of the command line in a folder of its own, stopped and removed afterwards."""
    with scratch_folder() as folder:
        command = [sys.executable, str(ROOT / "run.py"), *flags, "--log_dir", str(folder), "--run_name", "run"]
        with (folder / "output").open("wb") as output:
            process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process, folder / "run"
            if process.poll():
                last_line = (folder / "output").read_text().strip().split("\n")[-1]
                raise UserError(f"'{' '.join(flags)}' failed: {last_line}")
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


@dataclass(frozen=True)
class Row:
    """A line of progress.csv."""

    seconds: float
    steps: float
    steps_per_second: float
    labels: float
    episode_return: float


def policy_rows(run_dir: Path) -> list[Row]:
    """The lines of progress.csv in the policy phase so far."""
    names = [field.name for field in fields(Row)]
    found = [Row(*(float(row[name] or 0) for name in names)) for row in PROGRESS.read(run_dir)]
    return [row for row in found if row.steps > 0]


def policy_phase(
    process: subprocess.Popen[bytes], run_dir: Path, seconds: float, watch: Callable[[], object]
) -> list[Row]:
    """Waits for so many seconds of the policy phase after its first few, and returns them.

    `watch` is called about once a second meanwhile. An early end of the run leaves fewer rows.
    """
    deadline = time.monotonic() + PHASE_DEADLINE
    rows: list[Row] = []
    while process.poll() is None and (not rows or rows[-1].seconds - rows[0].seconds < WARM_UP_SECONDS + seconds):
        if time.monotonic() > deadline:
            raise UserError(f"no policy phase of {seconds:g} s in {PHASE_DEADLINE:g} s; measure on a free machine.")
        time.sleep(1.0)
        rows = policy_rows(run_dir)
        if rows:
            watch()
    return [row for row in rows if row.seconds >= rows[0].seconds + WARM_UP_SECONDS]


def speed(name: str, seconds: float, *flags: str) -> Reading:
    """Speed of a run's policy phase: its steps by its seconds, since the parts of a step come in batches.

    Beside it the median of the reports, which come about once a second.
    """
    with started_run(*flags) as (process, run_dir):
        rows = policy_phase(process, run_dir, seconds, watch=lambda: None)
    if len(rows) < 2:
        raise UserError(f"'{' '.join(flags)}' reported too little in {seconds:g} s; give more --seconds.")
    took = rows[-1].seconds - rows[0].seconds
    mean = (rows[-1].steps - rows[0].steps) / took
    median = statistics.median(row.steps_per_second for row in rows[1:])
    return reading(name, mean, "agent steps/s", took, median=median, labels=rows[-1].labels)


def true_reward(algo: Algo = "a2c", seconds: float = 40.0) -> Reading:
    """A run on the true reward."""
    return speed(f"true_reward_{algo}", seconds, "train_policy_with_original_rewards", PONG, "--algo", algo)


def preference_flags(store: Path, *flags: str) -> tuple[str, ...]:
    """A run whose policy phase starts after one pass over the labels of a store; more labels are asked for in it."""
    db = PrefDB.open(store / "prefs.db", read_only=True)
    n_labels = db.n_labels()
    db.close()
    initial = ("--n_initial_prefs", str(n_labels), "--n_initial_epochs", "1", "--load_prefs_dir", str(store.resolve()))
    return ("train_policy_with_preferences", PONG, "--synthetic_prefs", *flags, *initial)


def preferences(store: Path, algo: Algo = "a2c", reproduces: str = "", seconds: float = 40.0) -> Reading:
    """A run on preferences, the trainer and the synthetic teacher at work.

    Args:
        store: labels to start from.
        algo: the update rule, with its other settings as they are.
        reproduces: the experiment on Pong whose settings to take instead.
        seconds: how long to look on.
    """
    if reproduces:
        flags = EXPERIMENTS[reproduces].command[3:]  # but for what every such command begins with
        return speed("preferences_pong", seconds, *preference_flags(store, *flags))
    return speed(f"preferences_{algo}", seconds, *preference_flags(store, "--algo", algo))


def process_tree(root: int) -> list[int]:
    """A process and all its descendants."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    tree = [root]
    for process in tree:  # which grows meanwhile
        tree += [child for child, parent in parents.items() if parent == process]
    return tree


def pss_mb(root: int) -> dict[str, float]:
    """Memory in MB of a process and its descendants by name, in which what several of them share counts once (PSS)."""
    memory: dict[str, float] = {}
    for process in process_tree(root):
        with contextlib.suppress(OSError):
            folder = Path(f"/proc/{process}")
            lines = (folder / "smaps_rollup").read_text().splitlines()
            kilobytes = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            name = "main" if process == root else (folder / "comm").read_text().strip()
            memory[name] = memory.get(name, 0.0) + kilobytes / 1024
    return memory


def memory(store: Path, seconds: float = 40.0) -> Reading:
    """The most memory that a run on preferences has had in its policy phase."""
    if not Path("/proc/self/smaps_rollup").exists():
        raise UserError("memory is measured by Linux's /proc; leave this measurement out with --only.")
    seen: list[dict[str, float]] = []
    with started_run(*preference_flags(store, "--algo", "a2c")) as (process, run_dir):
        rows = policy_phase(process, run_dir, seconds, watch=lambda: seen.append(pss_mb(process.pid)))
    totals = [sum(memory.values()) for memory in seen]
    most = seen[totals.index(max(totals))]
    return reading("memory", max(totals), "MB", seconds, last=totals[-1], labels=rows[-1].labels, processes=most)


def demo(million_timesteps: float | None = None) -> Reading:
    """`make demo` from its start to its end.

    Args:
        million_timesteps: a shorter run, to try it out.
    """
    flags = ("--million_timesteps", str(million_timesteps)) if million_timesteps else ()
    start = time.perf_counter()
    with started_run(*EXPERIMENTS["moving-dot"].command, *flags) as (process, run_dir):
        process.wait()
        took, rows = time.perf_counter() - start, policy_rows(run_dir)
    return reading("demo", took, "s", took, agent_steps=rows[-1].steps, true_reward=rows[-1].episode_return)


WHOLE_RUNS = (true_reward, preferences, memory, demo)
