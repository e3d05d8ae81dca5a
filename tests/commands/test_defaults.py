"""Defaults are the settings with which results/ was measured; `--preset paper` has the paper's."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from a2c.config import PolicyConfig
from commands.config import RunConfig
from commands.experiments import EXPERIMENTS
from commands.flags import parse
from drlhp.errors import UserError
from drlhp.runtime import checkpoint
from pref_interface import PrefsConfig
from reward_predictor import PredictorConfig
from tests.support import ROOT

TRAIN, TRUE_REWARD = "train_policy_with_preferences", "train_policy_with_original_rewards"
DOT, PONG, ENDURO = "MovingDotNoFrameskip-v0", "PongNoFrameskip-v4", "EnduroNoFrameskip-v4"
# Of each environment, the experiment that gave its best results with a teacher whose task is the environment's own.
BEST = {
    DOT: "moving-dot",
    PONG: "pong-3.3k",
    ENDURO: "enduro-as-people",
    "BeamRiderNoFrameskip-v4": "beamrider",
    "BreakoutNoFrameskip-v4": "breakout",
    "Hopper": "hopper-200",
    "Walker": "walker-700",
    "HalfCheetah": "halfcheetah-200-sac",
    "Swimmer": "swimmer-200",
    "Reacher": "reacher-700",
    "Ant": "ant-400-sac",
}
# They say how often a run is looked at, not how it learns.
SAYS_NOTHING = {"eval_interval_million_timesteps", "eval_episodes"}


def learning(config: RunConfig) -> dict[str, Any]:
    """All settings of how a run learns, by flag."""
    parts = (config.prefs, config.predictor, config.policy)
    return {field.name: getattr(part, field.name) for part in parts for field in fields(part)}


@pytest.mark.parametrize("env_id", BEST)
def test_the_defaults_are_those_of_the_measured_experiment(env_id: str) -> None:
    assert learning(parse([TRAIN, env_id, "--synthetic_prefs"])) == learning(
        parse([*EXPERIMENTS[BEST[env_id]].command])
    )


@pytest.mark.parametrize("env_id", [env_id for env_id in BEST if (ROOT / "results" / BEST[env_id]).exists()])
def test_the_defaults_are_those_that_the_recorded_runs_had(env_id: str) -> None:
    recorded = json.loads((ROOT / "results" / BEST[env_id] / "runs.json").read_text())["settings"]
    had = {name.rpartition(".")[2]: value for name, value in recorded.items()}
    given = learning(parse([TRAIN, env_id, "--synthetic_prefs"]))
    names = had.keys() & given.keys() - SAYS_NOTHING  # the older ones lack flags that are newer
    assert len(names) > 40 and {name: given[name] for name in names} == {name: had[name] for name in names}


def test_people_get_the_same_defaults_as_a_synthetic_teacher() -> None:
    for env_id in BEST:
        person, teacher = learning(parse([TRAIN, env_id])), learning(parse([TRAIN, env_id, "--synthetic_prefs"]))
        assert {name for name in person if person[name] != teacher[name]} == {"synthetic_prefs"}


@pytest.mark.parametrize(
    ("env_id", "algo", "same_as"),
    [(PONG, "ppo", ()), (PONG, "a2c", ("--preset", "paper")), ("Hopper", "ppo", ()), (DOT, "a2c", ())],
)
def test_an_algorithm_by_itself_has_the_settings_that_were_measured_with_it(
    env_id: str, algo: str, same_as: tuple[str, ...]
) -> None:
    policy, other = parse([TRAIN, env_id, "--algo", algo]).policy, parse([TRAIN, env_id, *same_as]).policy
    for name in ("algo", "n_envs", "n_steps", "lr", "gae_lambda", "ppo_epochs", "ppo_minibatches"):
        assert getattr(policy, name) == getattr(other, name)


def test_a_game_takes_a2c_more_steps_than_ppo() -> None:
    assert parse([TRUE_REWARD, PONG]).policy.million_timesteps == 3
    assert parse([TRUE_REWARD, PONG, "--algo", "a2c"]).policy.million_timesteps == 10


def test_the_papers_preset_for_games() -> None:
    policy = PolicyConfig(million_timesteps=50, continuing_episodes=True, normalise_pixels=False)
    predictor = PredictorConfig(
        labels_per_step=0.1, l2="adaptive", dropout=0.5, reward_predictor_normalises_pixels=False
    )
    prefs = PrefsConfig(label_schedule="stepped")
    for env_id in (PONG, ENDURO, "ALE/Pacman-v5"):
        config = parse([TRAIN, env_id, "--preset", "paper"])
        assert (config.prefs, config.predictor, config.policy) == (prefs, predictor, policy)


@pytest.mark.parametrize(
    ("env_id", "differs"),
    [("Hopper", {}), ("Swimmer", {"ent_coef": 0.001}), ("InvertedPendulum-v5", {"million_timesteps": 2.0})],
)
def test_the_papers_preset_for_bodies(env_id: str, differs: dict[str, float]) -> None:
    given = learning(parse([TRAIN, env_id, "--preset", "paper"]))
    papers = {
        **{"algo": "trpo", "gamma": 0.995, "gae_lambda": 0.97, "ent_coef": 0.01, "million_timesteps": 20.0},
        **{"max_prefs": 700, "n_initial_prefs": 175, "reward_std": 1.0, "label_schedule": "paper"},
        **{"bootstrap": True, "hold_out": True, "l2": "adaptive", "policy_reset_million_timesteps": 0.0},
        **{"reward_predictor_uses_actions": True, "first_episode_steps": 0},
        **differs,
    }
    assert {name: given[name] for name in papers} == papers
    assert parse([TRAIN, env_id, "--preset", "paper", "--max_prefs", "1400"]).prefs.n_initial_prefs == 350


def test_flags_and_algorithms_change_the_papers_preset() -> None:
    config = parse([TRAIN, PONG, "--preset", "paper", "--dropout", "0", "--algo", "ppo"])
    assert (config.predictor.dropout, config.predictor.l2, config.policy.algo) == (0, "adaptive", "ppo")
    assert (config.policy.million_timesteps, config.policy.lr_zero_million_timesteps) == (50, 50)


def test_a_policy_on_the_true_reward_is_not_reset() -> None:
    assert parse([TRAIN, "Walker"]).policy.policy_reset_million_timesteps == 0.25
    assert parse([TRUE_REWARD, "Walker"]).policy.policy_reset_million_timesteps == 0


def test_a_policy_that_starts_from_something_is_not_reset_by_default(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "policy", 5, {"kind": "policy", "env_id": "Walker-v1", "network": "nature"})
    loaded = ["--load_policy_ckpt_dir", str(tmp_path)]
    for flags in (loaded, ["--demonstrations", "shown.npz"]):
        assert parse([TRAIN, "Walker", *flags]).policy.policy_reset_million_timesteps == 0
    with pytest.raises(UserError, match="makes the policy forget"):
        parse([TRAIN, "Walker", *loaded, "--policy_reset_million_timesteps", "0.25"])


def test_a_run_that_is_too_short_for_another_start_is_not_reset_by_default() -> None:
    assert parse([TRAIN, "Walker", "--million_timesteps", "0.6"]).policy.policy_reset_million_timesteps == 0.25
    assert parse([TRAIN, "Walker", "--million_timesteps", "0.5"]).policy.policy_reset_million_timesteps == 0
    with pytest.raises(UserError, match=r"must be below 0\.25"):
        parse([TRAIN, "Walker", "--million_timesteps", "0.5", "--policy_reset_million_timesteps", "0.25"])


def test_enduro_is_judged_as_people_judge_it_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([TRAIN, ENDURO, "--synthetic_prefs"]).prefs.teacher == "examples.circus:overtaking"
    said = capsys.readouterr().out
    assert said.startswith("The synthetic teacher is examples.circus:overtaking, because") and said.count("\n") == 1
    for flags in (("--teacher", "oracle"), ("--teacher", "examples.circus:racing"), ()):  # and people
        parse([TRAIN, ENDURO, *flags])
    parse([TRUE_REWARD, ENDURO])
    parse([TRAIN, PONG, "--synthetic_prefs"])
    assert capsys.readouterr().out == ""
    with pytest.raises(UserError, match="or give --teacher oracle"):
        parse([TRAIN, ENDURO, "--synthetic_prefs", "--teacher_end_penalty", "1"])
    assert parse([TRAIN, ENDURO, "--teacher", "oracle", "--teacher_end_penalty", "1"]).prefs.teacher == "oracle"
