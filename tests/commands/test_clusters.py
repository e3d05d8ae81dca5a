"""Runs on a Ray cluster: a real one of two nodes, whose processes are killed; and what is refused in one sentence."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commands.experiments import EXPERIMENTS, Experiment
from commands.jobs import Job
from drlhp.cli import INTERRUPTED, USER_ERROR
from drlhp.runtime.leash import descendants
from drlhp.runtime.locks import FolderLock
from tests.support import ROOT
from tests.support.commands import (
    BRIEF_PPO,
    DEADLINE,
    SYNC,
    alive,
    environment,
    here,
    one_sentence,
    policy_steps,
    progress,
)
from tests.support.preloaded import PreloadedPopen
from tests.support.ray_cluster import RayCluster

pytestmark = pytest.mark.xdist_group("clusters")  # the cluster is started once

SEEDS, N_STEPS = 3, 20
TRIAL = (
    *("train_policy_with_original_rewards", "tests.support.gated:Gated-v0", *BRIEF_PPO, SYNC),
    *("--n_envs", "1", "--n_steps", str(N_STEPS), "--eval_episodes", "1"),
    *("--million_timesteps", "0.0012", "--eval_interval_million_timesteps", "0.0006"),
    *("--policy_ckpt_interval", "5"),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes, the head of one core and another of two: as many as there are seeds."""
    with contextlib.closing(RayCluster.start(1, 2)) as cluster:
        yield cluster


@contextlib.contextmanager
def reproducing(log_dir: Path, *words: str, setup: str = "", **variables: str) -> Iterator[subprocess.Popen[str]]:
    """The command on a trial, in the background, with its output in a file beside the runs."""
    script = (
        f"import sys, run; from commands import experiments; {setup}\n"
        f"experiments.EXPERIMENTS['trial'] = experiments.Experiment('a trial', {TRIAL})\n"
        f"sys.exit(run.main(['reproduce', 'trial', '--seeds', '{SEEDS}', '--log_dir', *sys.argv[1:]]))"
    )
    log_dir.mkdir(exist_ok=True)
    with (log_dir.parent / "output").open("w") as output:
        process = PreloadedPopen(
            [sys.executable, "-c", script, str(log_dir), *words],
            cwd=ROOT,
            env=environment(**variables),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until(condition: Callable[[], Any], log_dir: Path, process: subprocess.Popen[str] | None = None) -> None:
    """Waits until the condition holds; fails if the command ends before."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert process is None or process.poll() is None, output(log_dir)
        assert time.monotonic() < deadline, output(log_dir)
        time.sleep(0.1)


def output(log_dir: Path) -> str:
    return (log_dir.parent / "output").read_text()


def folders(log_dir: Path) -> list[Path]:
    return [log_dir / f"trial-seed{seed}" for seed in range(SEEDS)]


def runs_below(pid: int) -> dict[str, int]:
    """The processes of runs that a process has started, or that its children have, by the names of their folders."""
    found = {}
    for child in descendants(pid):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            if str(ROOT / "run.py") in words[:2]:
                names = [word for word in words if "trial-seed" in word]
                found[Path(names[0]).name] = child
    return found


def cores_of(pid: int) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list"))


def evaluations(folder: Path) -> list[dict[str, str]]:
    with (folder / "evaluations.csv").open(newline="") as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]


def saved_steps(folder: Path) -> int:
    """The steps after which the run goes on: those of the ring's newest state, which is written last."""
    turns = [int(path.stem.split("-")[1]) for path in (folder / "synchronous").glob("step-*.pt")]
    return max(turns, default=0) * N_STEPS


def rows_until_saved(folder: Path) -> list[dict[str, str]]:
    """What the run has noted until then, with the time of each row."""
    newest = saved_steps(folder)
    return [row for row in progress(folder) if float(row["steps"]) <= newest]


@pytest.mark.slow
def test_seeds_survive_ctrl_c_and_a_lost_node_and_are_what_they_are_here(
    tmp_path: Path, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_dir = tmp_path / "runs"
    words, places = ("--on", "ray", "--cores_per_run", "1"), folders(log_dir)
    variables = cluster.variables() | {"RAY_ADDRESS": cluster.address}
    head, other = cluster.raylets

    cluster.allow(130)
    with reproducing(log_dir, *words, **variables) as process:
        wait_until(lambda: all(policy_steps(folder) >= 100 for folder in places), log_dir, process)
        running = runs_below(head) | runs_below(other)
        assert len(runs_below(other)) == 2 and len(running) == SEEDS
        cores = {name: cores_of(pid) for name, pid in running.items()}
        assert all(core.isdigit() for core in cores.values()), "one core each"
        assert len(set(cores.values())) == min(SEEDS, len(os.sched_getaffinity(0))), "and not the same one"
        process.send_signal(signal.SIGINT)
        for n_steps in itertools.count(130):  # slowly, so that no run gets to its end before it is told to stop
            cluster.allow(n_steps)
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert process.wait(0.1) == INTERRUPTED, output(log_dir)
                break
    assert not runs_below(head) and not runs_below(other)
    assert "Warning" not in output(log_dir), "it has a token"
    stopped_at = [policy_steps(folder) for folder in places]
    assert all(100 <= n < 400 for n in stopped_at)

    cluster.allow(max(stopped_at) + 130)  # a resumed environment knows how many it has taken
    with contextlib.closing(FolderLock(places[2])) as lock, reproducing(log_dir, *words, **variables) as process:
        wait_until(lambda: "trial-seed2: waits up to" in output(log_dir), log_dir, process)
        assert "trial-seed2" not in runs_below(head) | runs_below(other), "nobody else's folder is run"
        lock.close()
        wait_until(lambda: len(runs_below(other)) == 2, log_dir, process)
        lost = runs_below(other)
        for name in lost:  # each has a checkpoint of this start
            before = stopped_at[places.index(log_dir / name)]
            wait_until(lambda: saved_steps(log_dir / name) > before, log_dir, process)  # noqa: B023
        kept = {name: rows_until_saved(log_dir / name) for name in lost}
        os.kill(other, signal.SIGKILL)
        end = time.monotonic() + 10
        while any(alive(pid) for pid in lost.values()):
            assert time.monotonic() < end, "no process of the dead node goes on"
            time.sleep(0.02)
        cluster.allow(10**9)
        assert process.wait(DEADLINE) == 0, output(log_dir)
    for name, rows in kept.items():
        assert progress(log_dir / name)[: len(rows)] == rows, "it went on from no earlier checkpoint"
    monkeypatch.setitem(EXPERIMENTS, "trial", Experiment("a trial", TRIAL))
    for seed, folder in enumerate(places):
        alone = Job("trial", seed, tmp_path / "here" / folder.name)
        here(None, *alone.flags)
        assert evaluations(alone.run) == evaluations(folder) and len(evaluations(folder)) == 6
        assert policy_steps(alone.run) == policy_steps(folder)
        assert json.loads((folder / "config.json").read_text())["machine"]["cores"] == 1
    report = (log_dir / "trial-report" / "report.html").read_text()
    assert all(folder.name in report for folder in places)


@pytest.mark.parametrize(
    ("setup", "changes", "sentence"),
    [
        ("", {"RAY_AUTH_TOKEN": "wrong"}, "refuses this machine's token; give the cluster's in RAY_AUTH_TOKEN"),
        ("import ray; ray.__version__ = '2.59.0'", {}, "and this command Ray 2.59.0 with Python"),
    ],
    ids=["wrong token", "version"],
)
def test_a_cluster_that_refuses_is_one_sentence(
    setup: str, changes: dict[str, str], sentence: str, tmp_path: Path, cluster: RayCluster
) -> None:
    variables = cluster.variables() | {"RAY_ADDRESS": cluster.address} | changes
    with reproducing(tmp_path / "runs", "--on", "ray", setup=setup, **variables) as process:
        assert process.wait(DEADLINE) == USER_ERROR, output(tmp_path / "runs")
    assert sentence in one_sentence(output(tmp_path / "runs"))
    assert not list((tmp_path / "runs").iterdir()), "nothing is made"


@pytest.mark.parametrize(
    ("words", "variables", "sentence"),
    [
        (("--on", "slurm"), {}, "--on takes `ray` for the Ray cluster of this machine, or ray://HOST:10001"),
        (("--on", "ray://a b"), {}, "--on takes `ray`"),
        (("--on", "ray://127.0.0.1:1"), {}, "no Ray cluster answers at 127.0.0.1:1 (Connection refused); start one"),
        (("--on", "ray://127.0.0.1:99999"), {}, "no Ray cluster answers at 127.0.0.1:99999"),
        (("--on", "ray"), {"RAY_ADDRESS": "127.0.0.1:1"}, "no Ray cluster answers at 127.0.0.1:1 (Connection refused)"),
        (("--on", "ray"), {"RAY_ADDRESS": "head"}, "RAY_ADDRESS is head, which is no address; give HOST:6379, or ray"),
        (("--on", "ray", "--cores_per_run", "0"), {}, "--cores_per_run must be 1 or more, not 0"),
        (("--on", "ray", "--gpus_per_run", "1.5"), {}, "--gpus_per_run must be a whole number, or a share of one GPU"),
        (("--gpus_per_run", "1"), {}, "--gpus_per_run is for clusters"),
    ],
)
def test_what_cannot_work_is_one_sentence(
    words: tuple[str, ...], variables: dict[str, str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    told = here(None, "reproduce", "moving-dot", *words, "--log_dir", str(tmp_path / "runs"), status=USER_ERROR)
    assert sentence in one_sentence(told.stderr)
    assert not (tmp_path / "runs").exists()


def test_without_the_package_the_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    told = here(None, "reproduce", "moving-dot", "--on", "ray", "--log_dir", str(tmp_path), status=USER_ERROR)
    assert "run `python -m pip install 'ray[client]'`" in one_sentence(told.stderr)
    assert not list(tmp_path.iterdir())
