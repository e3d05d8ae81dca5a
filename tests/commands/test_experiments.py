"""Named experiments: every one is a command that exists, and seeds are carried out, skipped and gone on with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import pytest

from commands import parallel, recorded
from commands.experiments import EXPERIMENTS, WALKER_WALK, Experiment
from commands.flags import parse
from commands.jobs import is_done
from commands.parallel import at_once_by_default
from commands.reproduce import Needs, ReproduceConfig, reproduce
from drlhp.cli import CLOSED, FAILURE
from drlhp.data.views import draw_with
from drlhp.errors import UserError
from drlhp.runtime.machine import n_cores
from envs import draw_states
from tests.support import ROOT
from tests.support.commands import BRIEF_PPO, SYNC, UNEVALUATED, refused
from tests.support.preloaded import PreloadedPopen

TINY = Experiment(
    "a trial",
    (
        *("train_policy_with_original_rewards", "CartPole-v1", "--n_envs", "1", "--eval_episodes", "1"),
        *("--million_timesteps", "0.0001", "--n_steps", "25", "--policy_ckpt_interval", "2", SYNC, *BRIEF_PPO),
    ),
)

pytestmark = pytest.mark.xdist_group("experiments")  # what they share is made once


@pytest.fixture(autouse=True)
def quick_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    quicken(monkeypatch)


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"PIPE": subprocess.PIPE, "STDOUT": subprocess.STDOUT, "Popen": started_for_a_seed}
    monkeypatch.setattr(parallel, "subprocess", SimpleNamespace(**parts))


def started_for_a_seed(words: list[str], preexec_fn: Any, **options: Any) -> subprocess.Popen[str]:
    """A program with its imports done, which gets its cores from the thread that starts it."""
    cores = os.sched_getaffinity(0)
    preexec_fn()
    try:
        return PreloadedPopen(words, **options)
    finally:
        os.sched_setaffinity(0, cores)


@pytest.fixture(scope="module")
def one_seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The --log_dir of a trial with one seed, which has come to its end: to read, and to copy."""
    folder = tmp_path_factory.mktemp("one") / "runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EXPERIMENTS, "trial", TINY)
        quicken(patch)
        assert reproduce(ReproduceConfig("trial", seeds=1, log_dir=str(folder), at_once=2)) == 0
    return folder


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_a_valid_command(name: str) -> None:
    if WALKER_WALK in EXPERIMENTS[name].command and find_spec("dm_control") is None:
        pytest.skip("dm_control has no packages for this Python")
    parsed = parse([*EXPERIMENTS[name].command, "--seed", "1"])
    assert parsed.trains_policy and parsed.seed == 1


def test_seeds_are_carried_out_skipped_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "trial", TINY)
    assert reproduce(ReproduceConfig("trial", seeds=2, log_dir=str(tmp_path), at_once=2)) == 0
    runs = [tmp_path / "trial-seed0", tmp_path / "trial-seed1"]
    assert all(is_done(run) for run in runs)
    assert "seed1" in (tmp_path / "trial-report" / "report.html").read_text()
    cores = [json.loads((run / "config.json").read_text())["machine"]["cores"] for run in runs]
    assert sum(cores) == max(2, n_cores()), "which they share"
    output = capfd.readouterr().out
    assert "seed0: Finished." in output and "seed1: Finished." in output
    checkpoints = sorted((runs[1] / "policy").glob("step-*.pt"))
    before = [path.stat().st_mtime_ns for path in sorted((runs[0] / "policy").iterdir())]
    for path in checkpoints[1:]:
        path.unlink()  # as if it had been stopped then
    assert not is_done(runs[1])
    assert reproduce(ReproduceConfig("trial", seeds=2, log_dir=str(tmp_path), at_once=2)) == 0
    output = capfd.readouterr().out
    assert "seed0: done" in output and "2 seeds, 1 at a time" in output, "which has all cores"
    assert is_done(runs[1])
    assert [path.stat().st_mtime_ns for path in sorted((runs[0] / "policy").iterdir())] == before


def test_a_trick_ends_in_a_video_beside_the_ordinary_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_with(draw_states)
    length = ("--n_envs", "2", "--n_steps", "50", "--million_timesteps", "0.0003", *BRIEF_PPO, SYNC, *UNEVALUATED)
    few = ("--max_prefs", "10", "--max_segs", "20", "--n_initial_epochs", "1")
    labels = (*few, "--teacher", "examples.circus:away_from_the_target")
    trick = ("train_policy_with_preferences", "Reacher-v1", *labels, *length)
    monkeypatch.setitem(EXPERIMENTS, "trick", Experiment("a trick", trick, "usual"))
    usual = Experiment("as usual", ("train_policy_with_original_rewards", "Reacher-v1", *length))
    monkeypatch.setitem(EXPERIMENTS, "usual", usual)
    assert reproduce(ReproduceConfig("trick", seeds=1, log_dir=str(tmp_path))) == 0
    assert is_done(tmp_path / "trick-seed0") and is_done(tmp_path / "usual-seed0")
    with av.open(str(tmp_path / "trick.mp4")) as film:
        assert sum(1 for _ in film.decode(video=0)) == 50


def test_a_place_where_no_run_can_be_is_refused_before_the_first_begins(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file.*choose another --log_dir"):
        reproduce(ReproduceConfig("pong-true", seeds=2, log_dir=str(tmp_path / "file")))


def test_a_seed_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "trial", TINY)
    (tmp_path / "trial-seed0").mkdir()  # no run folder
    with pytest.raises(UserError, match="trial-seed0"):
        reproduce(ReproduceConfig("trial", seeds=1, log_dir=str(tmp_path)))
    flags = [*TINY.command, "--seed", "0", "--log_dir", str(tmp_path), "--run_name", "trial-seed0"]
    record = {"config": parse(flags).as_dict()}
    (tmp_path / "trial-seed0" / "config.json").write_text(json.dumps(record))
    (tmp_path / "trial-seed0" / "policy").mkdir()
    (tmp_path / "trial-seed0" / "policy" / "step-000000001000.pt").write_bytes(b"no checkpoint")
    message = refused(tmp_path, "reproduce", "trial", "--seeds", "2", status=FAILURE)
    assert "seed0 did not finish" in message
    assert is_done(tmp_path / "trial-seed1")
    assert "seed1" in (tmp_path / "trial-report" / "report.html").read_text(), "those that came to their end"


def test_who_reads_no_more_what_is_printed_ends_it(tmp_path: Path) -> None:
    """As `reproduce NAME | head -2` does: the seeds that have not begun wait for nothing."""
    script = (
        "import sys, run; from commands import experiments; from commands.experiments import Experiment;"
        f"experiments.EXPERIMENTS['trial'] = Experiment('a trial', {TINY.command});"
        "sys.exit(run.main(['reproduce', 'trial', '--seeds', '2', '--at_once', '1', '--log_dir', sys.argv[1]]))"
    )
    with PreloadedPopen(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("a trial: 2 seeds")
            process.stdout.close()
            assert process.wait(timeout=240) == CLOSED
        finally:
            process.kill()


def test_a_folder_of_another_run_is_not_gone_on_with(one_seed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = json.loads((one_seed / "trial-seed0" / "config.json").read_text())
    assert record["machine"]["cores"] == n_cores(), "one alone has them all"
    monkeypatch.setitem(EXPERIMENTS, "trial", Experiment("longer", (*TINY.command, "--gamma", "0.5")))
    with pytest.raises(UserError, match=r"trial-seed0 holds a run of other settings \(--gamma 0.995, not 0.5\)"):
        reproduce(ReproduceConfig("trial", seeds=1, log_dir=str(one_seed)))


def test_a_run_that_was_stopped_in_its_last_evaluation_is_gone_on_with(
    one_seed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "trial", TINY)
    shutil.copytree(one_seed / "trial-seed0", tmp_path / "trial-seed0")
    evaluations = tmp_path / "trial-seed0" / "evaluations.csv"
    rows = evaluations.read_text().splitlines(keepends=True)
    evaluations.write_text("".join(rows[:-2]))
    assert not is_done(tmp_path / "trial-seed0")
    assert reproduce(ReproduceConfig("trial", seeds=1, log_dir=str(tmp_path))) == 0
    assert evaluations.read_text().splitlines()[-1].split(",")[1:] == rows[-1].strip().split(",")[1:]


def test_what_is_in_the_reports_way_is_told_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "trial", TINY)
    (tmp_path / "trial-report").mkdir()
    (tmp_path / "trial-report" / "mine").touch()
    with pytest.raises(UserError, match=r"trial-report .* holds something else"):
        reproduce(ReproduceConfig("trial", seeds=1, log_dir=str(tmp_path)))
    assert not (tmp_path / "trial-seed0").exists()


def test_a_folder_of_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXPERIMENTS, "trial", TINY)
    folder = tmp_path / "trial-seed0"
    folder.mkdir()
    flags = [*TINY.command, "--seed", "0", "--log_dir", str(tmp_path), "--run_name", folder.name]
    values = parse(flags).as_dict()
    values["policy"]["of_another_version"] = 1
    (folder / "config.json").write_text(json.dumps({"config": values}))
    with pytest.raises(UserError, match=r"trial-seed0 cannot .* another version .* --log_dir to start anew"):
        reproduce(ReproduceConfig("trial", seeds=1, log_dir=str(tmp_path)))


def test_as_many_runs_at_once_as_cores_and_memory_carry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    monkeypatch.setattr(parallel, "MEMORY_FREE", free)
    monkeypatch.setattr(parallel, "MEMORY_LIMITS", (limit, tmp_path / "nowhere"))
    monkeypatch.setattr(parallel, "n_cores", lambda: 16)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 10**7, "SC_PAGE_SIZE": 4096}.__getitem__)  # 41 GB
    assert at_once_by_default(2, 4e9) == 8, "two cores each"
    free.write_text("MemTotal: 40000000 kB\nMemFree: 100 kB\nMemAvailable: 20000000 kB\n")
    assert at_once_by_default(2, 4e9) == 5, "what others hold is not there"
    limit.write_text("max\n")
    assert at_once_by_default(2, 4e9) == 5
    limit.write_text("9000000000\n")
    assert at_once_by_default(2, 4e9) == 2, "nor what a container may not have"
    limit.write_text("1000000\n")
    assert at_once_by_default(2, 4e9) == 1


@pytest.mark.parametrize(
    ("name", "given", "cores"), [("pong-3.3k", None, 2), ("hopper-200", None, 1), ("hopper-200", 4, 4)]
)
def test_runs_on_vectors_get_a_core_each(name: str, given: int | None, cores: int) -> None:
    assert Needs.of(ReproduceConfig(name, cores_per_run=given)).cores == cores


def test_the_end_of_a_run_is_the_step_to_which_it_was_trained(tmp_path: Path) -> None:
    policy = {"million_timesteps": 0.00204, "eval_interval_million_timesteps": 0}  # times 1e6 a little more than 2040
    (tmp_path / "policy").mkdir()
    (tmp_path / "config.json").write_text(json.dumps({"config": {"policy": policy}}))
    (tmp_path / "policy" / "step-000000002040.pt").touch()
    assert is_done(tmp_path)


@pytest.mark.parametrize(("flag", "values"), [("seeds", {"seeds": 0}), ("at_once", {"at_once": 0})])
def test_impossible_numbers_are_refused(flag: str, values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=flag):
        reproduce(ReproduceConfig("moving-dot", **values))


def test_without_a_name_all_are_listed() -> None:
    root = ROOT
    command = [sys.executable, str(root / "run.py"), "reproduce"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(name in result.stdout for name in EXPERIMENTS)
    wrong = subprocess.run([*command, "pong"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "no experiment 'pong'" in wrong.stderr and "Traceback" not in wrong.stderr


def test_the_list_has_the_time_and_the_machines_of_recorded_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((recorded.RESULTS / "ant-true" / "runs.json").read_text())
    runs = list(record["seeds"].values())
    seconds = [run["figures"]["seconds"] for run in runs]
    parts = dict.fromkeys((run["machine"]["cores"], run["machine"]["processor"]) for run in runs)
    machines = " or ".join(f"{cores} core{'s' if cores > 1 else ''} of {processor}" for cores, processor in parts)
    reproduce(ReproduceConfig())
    lines = iter(capsys.readouterr().out.splitlines())
    told = {line.split()[0]: (next(lines), next(lines))[1] for line in lines if line.split()[0] in EXPERIMENTS}
    assert told.keys() == EXPERIMENTS.keys()
    minutes = f"{min(seconds) / 60:.0f} min to {max(seconds) / 60:.0f} min"
    assert told["ant-true"].endswith(f"  time of a seed: {minutes} ({len(runs)} seeds, {machines})")
    for name, line in told.items():
        assert ("no run is recorded" in line) == (not (recorded.RESULTS / name).exists())

    first, second, third = (json.loads(json.dumps(run)) for run in runs)
    first["machine"] |= {"cores": 2, "processor": "Abacus"}
    first["figures"] |= {"seconds": 60.0}
    second["figures"] |= {"seconds": 7200.0, "agent_steps": 1_000_000}  # stopped half-way
    record["seeds"] = {"0": first, "1": second}
    (tmp_path / "ant-true").mkdir()
    monkeypatch.setattr(recorded, "RESULTS", tmp_path)
    (tmp_path / "ant-true" / "runs.json").write_text(json.dumps(record))
    assert recorded.recorded("ant-true") == "60 s (1 seed, 2 cores of Abacus)", "of those that were not stopped"
    third["figures"] |= {"seconds": 9000.0, "agent_steps": 500_000}
    record["seeds"] = {"1": second, "2": third}
    (tmp_path / "ant-true" / "runs.json").write_text(json.dumps(record))
    expected = f"2.0 h to 2.5 h for 25 % to 50 % of its agent steps (2 seeds, {machines})"
    assert recorded.recorded("ant-true") == expected
