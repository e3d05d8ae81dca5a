"""Commands that take a run find it by its name, in the folder where runs are made."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from commands import show_prefs
from commands.environments import lend_environments
from commands.flags import parse
from drlhp.cli.program import Program
from drlhp.cli.runs import find_run, runs_in
from drlhp.errors import UserError
from drlhp.wrapper.settings import Settings
from pref_db import PrefDB
from tests.support.commands import DOT, UNEVALUATED, here, policy_steps

pytestmark = pytest.mark.xdist_group("named_runs")  # what they share is made once


@pytest.fixture
def runs(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder `runs` in the current one, with `dot` in it, a finished run."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, tmp_path / "runs" / "dot")
    return tmp_path / "runs"


@pytest.mark.usefixtures("short_episodes")
def test_every_command_that_takes_a_run_finds_it_by_its_name(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show_prefs, "MAX_FILMED_PAIRS", 2)
    here(None, "--resume", "dot", "--million_timesteps", "0.0007", *UNEVALUATED)
    assert policy_steps(runs / "dot") >= 700
    watched = here(None, "watch", "dot", "--beside", "dot", "--output", "pair.mp4").stdout
    assert "policy of runs/dot/policy/" in watched and "left" in watched
    assert "Report: runs/dot/report/report.html" in here(None, "report", "dot").stdout
    assert "runs/dot/show_prefs.mp4" in here(None, "show_prefs", "dot").stdout
    assert "written to labels" in here(None, "export", "dot", "--output", "labels").stdout
    here(None, "push", "dot", "./shared")
    assert Path("shared/README.md").exists()
    assert "Carry on with: python run.py --resume runs/dot" in here(None, "restore", "dot", "dot").stdout
    labelled = here(None, "label", "dot", "--teacher", "oracle", "--max_prefs", "21").stdout
    assert "21 labels in runs/dot/prefs.db" in labelled and "--load_prefs_dir runs/dot" in labelled


def test_flags_that_take_a_run_find_it_by_its_name_and_record_its_place(runs: Path) -> None:
    words = ["train_policy_with_preferences", DOT, "--no_gather_prefs", "--load_prefs_dir", "dot"]
    config = parse([*words, "--load_policy_ckpt_dir", "dot", "--load_reward_predictor_ckpt_dir", "dot"])
    found = (config.predictor.load_reward_predictor_ckpt_dir, config.policy.load_policy_ckpt_dir)
    assert (config.prefs.load_prefs_dir, *found) == ("runs/dot",) * 3


def test_a_resumed_run_is_looked_for_in_the_log_dir_that_is_given(runs: Path) -> None:
    runs.rename("elsewhere")
    for log_dir in (("--log_dir", "elsewhere"), ("--log-dir=elsewhere",)):
        assert parse(["--resume", "dot", *log_dir]).resume == "elsewhere/dot"
        assert parse(["train_policy_with_preferences", DOT, "--resume", "dot", *log_dir]).resume == "elsewhere/dot"


def test_what_has_the_name_itself_comes_first(runs: Path) -> None:
    shutil.copytree(runs / "dot", "dot")
    assert find_run("dot", "runs") == Path("dot")
    assert find_run("nowhere", "runs") == Path("nowhere"), "each command says itself what is missing"


def test_the_library_looks_where_its_wrappers_store_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(Program().log_dir) == Path(Settings().log_dir)
    monkeypatch.chdir(tmp_path)
    folder = Path(Program().log_dir) / "20261128-101500"
    folder.mkdir(parents=True)
    with contextlib.closing(PrefDB.create(folder / "prefs.db", DOT, 25)):
        pass
    assert find_run(folder.name, Program().log_dir) == folder
    assert runs_in(Path(Program().log_dir)) == [folder] and runs_in(folder) == []


@pytest.mark.parametrize("command", ["--resume", "watch", "show_prefs", "export", "label", "restore"])
def test_where_one_run_is_wanted_a_folder_of_runs_is_refused_by_their_names(command: str, runs: Path) -> None:
    shutil.copytree(runs / "dot", runs / "other")
    rest = {"export": ["--output", "labels"], "restore": ["copy"]}.get(command, [])
    sentence = here(None, command, "runs", *rest, status=2).stderr
    assert "runs is no run, but holds some; give one of them: " in sentence
    assert "runs/dot" in sentence and "runs/other" in sentence


def test_report_on_a_folder_of_runs_offers_each_and_all_of_one_environment(runs: Path) -> None:
    other = shutil.copytree(runs / "dot", runs / "a b")
    pong = json.loads((other / "config.json").read_text())
    (shutil.copytree(other, runs / "pong") / "config.json").write_text(
        json.dumps(pong | {"config": pong["config"] | {"env_id": "PongNoFrameskip-v4"}, "began_as": {}})
    )
    (shutil.copytree(other, runs / "broken") / "config.json").write_text("{")
    (runs / "dot-report").mkdir()
    printed = here(None, "report", "runs").stdout
    assert printed.startswith("runs holds 4 runs, newest first:\n") and "dot-report" not in printed
    assert f"  dot: {DOT}. The agent" in printed and "    python run.py report runs/dot\n" in printed
    assert "  broken: runs/broken/config.json is damaged" in printed
    (together,) = (line for line in printed.splitlines() if line.count("runs/") == 2)
    assert "'runs/a b'" in together and "runs/dot" in together and "pong" not in together
    assert not list(runs.glob("*/report")), "nothing is written"
    with pytest.raises(UserError, match="give one of them"):
        from commands.report.command import report_command

        lend_environments()
        report_command(["runs", "--output", "all"])
