"""The script for Slurm's job arrays: carried out for real, by stand-ins of Slurm's two programs that it uses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from drlhp.cli import INTERRUPTED
from drlhp.runtime.leash import descendants
from tests.support import ROOT
from tests.support.commands import BRIEF_PPO, DEADLINE, SYNC, UNEVALUATED, environment, policy_steps, wait_for

SCRIPT = ROOT / "examples" / "slurm.sh"
SHORT = ("train_policy_with_original_rewards", "CartPole-v1", "--n_envs", "1", "--n_steps", "20", *BRIEF_PPO, SYNC)
# A task of an array as Slurm starts it: a copy of the script elsewhere, in the folder from which it was submitted.
SBATCH = """#!/usr/bin/env bash
set -eu
export SLURM_ARRAY_TASK_ID=${1#--array=} SLURM_ARRAY_JOB_ID=7
cp "$2" "$SPOOL/slurm_script"
shift 2
exec bash "$SPOOL/slurm_script" "$@"
"""
SCONTROL = """#!/usr/bin/env bash
echo "$@" >>"$SPOOL/told"
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with run.py, from which jobs are submitted, and Slurm's programs beside it."""
    for name, text in (("sbatch", SBATCH), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / "run.py").symlink_to(ROOT / "run.py")
    return tmp_path / "clone"


@contextmanager
def submitted(clone: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    spool = str(clone.parent)
    variables = environment(PATH=f"{spool}:{os.environ['PATH']}", SPOOL=spool, PYTHON=sys.executable)
    command = ["sbatch", "--array=3", str(SCRIPT), *words]
    process = subprocess.Popen(
        command, cwd=clone, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def steps_when_stopped(clone: Path, number: signal.Signals, after: int, status: int) -> int:
    """Starts the task, sends it a signal when there are so many steps, and returns the steps of its checkpoint."""
    run = clone / "runs" / "cart-seed3"
    with submitted(clone, "cart", *SHORT, *UNEVALUATED, "--policy_ckpt_interval", "5") as process:
        wait_for(lambda: policy_steps(run) > after, process)
        programs = [Path(f"/proc/{child}/cmdline").read_text() for child in descendants(process.pid)]
        assert len(programs) == 1 and "run.py" in programs[0], "a synchronous run starts no server of processes"
        process.send_signal(number)
        printed = process.communicate(timeout=DEADLINE)[0]
    assert process.returncode == status and "Carry on with" in printed, printed
    return policy_steps(run)


def test_a_task_of_an_array_saves_when_it_is_to_stop_and_goes_on_when_it_is_queued_again(clone: Path) -> None:
    told = clone.parent / "told"
    first = steps_when_stopped(clone, signal.SIGTERM, 0, status=INTERRUPTED)
    assert not told.exists(), "a preempted job is put into the queue by Slurm itself"
    steps_when_stopped(clone, signal.SIGUSR1, first, status=0)
    assert told.read_text() == "requeue 7_3\n", "which one whose time is over has to ask for"
    run = clone / "runs" / "cart-seed3"
    assert [path.name for path in run.parent.iterdir()] == [run.name]
    assert json.loads((run / "config.json").read_text())["config"]["seed"] == 3


def test_without_an_array_the_script_says_how_it_is_used() -> None:
    variables = environment()
    variables.pop("SLURM_ARRAY_TASK_ID", None)
    done = subprocess.run([SCRIPT, "cart", *SHORT], env=variables, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("usage: sbatch --array=0-4 ")


@pytest.mark.parametrize("script", ["examples/slurm.sh", ".ci/run"])
def test_shellcheck_finds_nothing(script: str) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", str(ROOT / script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
