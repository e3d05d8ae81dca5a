"""`--config FILE`: its settings count as flags, those on the command line win, and nothing else gets in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from commands.config import RunConfig
from commands.config_file import with_config_file
from commands.flags import parse
from tests.support.commands import BRIEF_PPO, SYNC, TINY, UNEVALUATED, here, one_sentence

TRAIN = ("train_policy_with_preferences", "CartPole-v1")
SETTINGS = """
n_envs: 3
synthetic_prefs: true
lr: 1e-4
prefs:  # as in a run's config.json
  max_prefs: 50
"""


def config_of(path: Path, *words: str) -> RunConfig:
    return parse(with_config_file([*TRAIN, "--config", str(path), *words]))


def test_flags_on_the_command_line_win(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SETTINGS)
    config = config_of(tmp_path / "a.yaml")
    assert (config.policy.n_envs, config.policy.lr, config.prefs.max_prefs) == (3, 1e-4, 50)
    assert config.prefs.synthetic_prefs and config.prefs.n_initial_prefs == 12, (
        "a quarter, as if --max_prefs were given"
    )
    config = config_of(tmp_path / "a.yaml", "--no_synthetic_prefs", "--n_envs", "5", "--ui", "terminal")
    assert config.policy.n_envs == 5 and not config.prefs.synthetic_prefs


def test_a_runs_config_json_makes_a_run_of_the_same_settings(tmp_path: Path) -> None:
    """Also of one whose algorithm is not the environment's usual one."""
    more = (*BRIEF_PPO, "--gamma", "0.9", "--n_steps", "7", "--million_timesteps", "0.0002", "--n_envs", "1")
    here(tmp_path, *TRAIN, "--synthetic_prefs", *TINY, *more, *UNEVALUATED, SYNC, "--run_name", "a")
    first = json.loads((tmp_path / "a" / "config.json").read_text())["config"]
    here(tmp_path, *TRAIN, "--config", str(tmp_path / "a" / "config.json"), "--run_name", "b")
    second = json.loads((tmp_path / "b" / "config.json").read_text())["config"]
    told = {"config": str(tmp_path / "a" / "config.json"), "run_name": "b"}
    assert second == first | told
    assert parse(["--resume", str(tmp_path / "b")]).policy.gamma == 0.9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n_enfs: 3", "sets n_enfs, which is no flag of a training run; did you mean n_envs?"),
        ("resume: a", "sets resume, which is no flag of a training run; remove it."),
        ("synthetic_prefs: 3", "sets synthetic_prefs to 3; give it true or false."),
        ("n_envs: true", "sets n_envs to True; give it another value than true or false."),
        ("n_envs: [1, 2]", "sets n_envs to several values; give it one."),
        ("env_id: PongNoFrameskip-v4", "is for PongNoFrameskip-v4, not for CartPole-v1"),
        ("seed: -4", "--seed must be a whole number, 0 or more"),
        ("n_envs 3", "holds no settings; write one on each line"),
        ("n_envs: [1", "a.yaml, line 2 is no YAML"),
        ("!!python/object/apply:os.system ['touch ran']", "a.yaml, line 1 is no YAML"),
        ("[" * 5000, "is no YAML"),
        ('{"config": {"policy": {"lr": "x"}}}', "is damaged"),
    ],
)
def test_a_file_that_cannot_work_is_one_sentence(
    text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(text + "\n")
    errors = here(tmp_path / "runs", *TRAIN, "--synthetic_prefs", "--config", "a.yaml", status=2).stderr
    assert expected in one_sentence(errors)
    assert not (tmp_path / "runs").exists() and not (tmp_path / "ran").exists()


def test_a_place_without_a_file_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, expected in (("none", "there is no file"), (".", "Is a directory"), ("pipe", "no regular file")):
        errors = here(tmp_path / "runs", *TRAIN, "--config", str(tmp_path / path), status=2).stderr
        assert expected in one_sentence(errors)
