"""The command line: tuned defaults, flags, resumed settings, and what cannot work."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from a2c.config import PPO_DEFAULTS, SAC_DEFAULTS, TRPO_DEFAULTS, PolicyConfig
from commands import MODES
from commands.config import RunConfig
from commands.flags import parse
from commands.run_folder import RunFolder, read_config
from drlhp.errors import UserError
from drlhp.runtime import checkpoint
from drlhp.runtime.checkpoint import CheckpointError
from envs import EnvError, env_info
from envs.tuned import VECTOR_DEFAULTS as TUNED_VECTOR
from pref_interface import PrefsConfig
from reward_predictor import PredictorConfig

TRAIN = "train_policy_with_preferences"
DOT, CARTPOLE, PONG = "MovingDotNoFrameskip-v0", "CartPole-v1", "PongNoFrameskip-v4"


def train(env_id: str, *flags: str, mode: str = TRAIN) -> RunConfig:
    return parse([mode, env_id, *flags])


def settings(config: RunConfig) -> dict[str, Any]:
    """All settings by flag name."""
    flat = config.as_dict()
    return {**flat, **flat["prefs"], **flat["predictor"], **flat["policy"]}


PAPERS = {
    "lr": 7e-4,
    "lr_zero_million_timesteps": 80.0,
    "n_envs": 16,
    "n_steps": 5,
    "ent_coef": 0.01,
    "gamma": 0.99,
    "gae_lambda": 1.0,
    "ensemble_size": 3,
    "reward_std": 0.05,
    "reward_predictor_uses_actions": False,
    "dropout": 0.0,
    "n_initial_prefs": 500,
    "max_prefs": 5500,
    "label_schedule": "paper",
    "labels_per_step": 0.02,
}
ATARI_DEFAULTS = {
    **PAPERS,
    **{"algo": "ppo", "lr": 5e-4, "lr_zero_million_timesteps": 10.0, "million_timesteps": 10.0, "gae_lambda": 0.95},
    **{"n_envs": 32, "n_steps": 64, "ppo_epochs": 1, "ppo_minibatches": 8},
}
PONG_DEFAULTS = {**ATARI_DEFAULTS, "lr_zero_million_timesteps": 3.0, "million_timesteps": 3.0, "max_prefs": 3300}
VECTOR_DEFAULTS = {
    **PAPERS,
    "gamma": 0.995,
    "gae_lambda": 0.97,
    "reward_std": 1.0,
    "reward_predictor_uses_actions": True,
    "n_initial_prefs": 175,
    "max_prefs": 700,
    **{name: TUNED_VECTOR[name] for name in ("algo", "lr", "lr_zero_million_timesteps", "n_steps", "ppo_epochs")},
}
BODY_DEFAULTS = {**VECTOR_DEFAULTS, "bootstrap": False, "hold_out": False, "n_initial_epochs": 25}
DOT_DEFAULTS = {
    **PAPERS,
    "algo": "a2c",
    "lr": 3e-3,
    "lr_zero_million_timesteps": 0.1,
    "ent_coef": 0.5,
    "gamma": 0.5,
    "ensemble_size": 1,
    "reward_std": 1.0,
    "reward_predictor_uses_actions": True,
    "n_initial_prefs": 250,
    "max_prefs": 500,
    "labels_per_step": 0.1,
}


@pytest.mark.parametrize(
    ("env_id", "steps_of_a_clip", "expected"),
    [
        (PONG, 25, PONG_DEFAULTS),
        ("BreakoutNoFrameskip-v4", 25, ATARI_DEFAULTS),
        (DOT, 15, DOT_DEFAULTS),
        (CARTPOLE, 25, VECTOR_DEFAULTS),  # its clips are shorter than the paper's: its episodes are
        ("Pendulum-v1", 45, VECTOR_DEFAULTS),  # 1.5 s of 30 steps each
        ("Hopper-v5", 60, BODY_DEFAULTS),
        (
            "Hopper",
            60,
            {
                **{**BODY_DEFAULTS, "max_prefs": 200, "n_initial_prefs": 50, "reward_predictor_uses_actions": False},
                **{"policy_reset_million_timesteps": 0.3, "policy_resets": 2, "first_episode_steps": 100},
            },
        ),
        (
            "Swimmer-v5",
            38,
            {**BODY_DEFAULTS, "ent_coef": 0.05, "gamma": 0.9999, "gae_lambda": 0.995, "n_envs": 8, "n_steps": 256},
        ),
        ("Reacher", 15, {**BODY_DEFAULTS, "gamma": 0.95, "ensemble_size": 6}),
    ],
)
def test_defaults_are_those_of_the_domain(env_id: str, steps_of_a_clip: int, expected: dict[str, Any]) -> None:
    given = settings(train(env_id))
    assert {name: given[name] for name in expected} == expected
    assert given["clip_steps"] == steps_of_a_clip


def test_a_quarter_of_the_labels_is_gathered_first_where_observations_are_vectors() -> None:
    assert train("Pendulum-v1", "--max_prefs", "1400").prefs.n_initial_prefs == 350
    assert train("Pendulum-v1", "--max_prefs", "1400", "--n_initial_prefs", "9").prefs.n_initial_prefs == 9
    assert train("Pendulum-v1", "--max_prefs", "1").prefs.n_initial_prefs == 1
    assert train(PONG, "--max_prefs", "1400").prefs.n_initial_prefs == 500


@pytest.mark.parametrize(
    ("env_id", "n_labels", "initial"),
    [(DOT, 30, 25), (DOT, 100, 50), (DOT, 10, 10), (PONG, 499, 76), (PONG, 20, 20)],
)
def test_fewer_labels_in_all_lower_the_initial_ones_and_a_sentence_says_so(
    capsys: pytest.CaptureFixture[str], env_id: str, n_labels: int, initial: int
) -> None:
    assert train(env_id, "--max_prefs", str(n_labels)).prefs.n_initial_prefs == initial
    said = capsys.readouterr().out
    assert said == f"Training starts after {initial} of the {n_labels} labels; --n_initial_prefs changes that.\n"


@pytest.mark.parametrize("flags", [("--max_prefs", "260"), ("--max_prefs", "30", "--n_initial_prefs", "30")])
def test_nothing_is_said_of_initial_labels_that_were_not_lowered(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]
) -> None:
    train(DOT, *flags)
    assert capsys.readouterr().out == ""


def test_a_flag_overrides_a_tuned_setting() -> None:
    config = train(
        DOT, "--lr", "0.5", "--ensemble_size", "4", "--max_prefs", "777", "--no_reward_predictor_uses_actions"
    )
    assert (config.policy.lr, config.predictor.ensemble_size, config.prefs.max_prefs) == (0.5, 4, 777)
    assert not config.predictor.reward_predictor_uses_actions
    assert config.prefs.n_initial_prefs == env_info(DOT).tuned["n_initial_prefs"]


def test_a_flag_overrides_a_tuned_setting_with_the_papers_own_value() -> None:
    assert train(DOT, "--ensemble_size", str(PredictorConfig().ensemble_size)).predictor.ensemble_size == 3
    assert train(PONG, "--algo", "ppo", "--n_steps", str(PolicyConfig().n_steps)).policy.n_steps == 5


def test_ppo_has_defaults_of_its_own() -> None:
    given = settings(train(DOT, "--algo", "ppo"))
    assert {name: given[name] for name in PPO_DEFAULTS} == PPO_DEFAULTS
    assert (given["n_envs"], given["million_timesteps"]) == (PolicyConfig().n_envs, 0.1)
    assert train(DOT, "--algo", "ppo", "--lr", "0.5").policy.lr == 0.5


def test_the_learning_rate_lasts_to_the_end_of_training() -> None:
    for flags, ends_at in (((DOT,), 0.1), ((DOT, "--million_timesteps", "0.05"), 0.05), ((DOT, "--algo", "ppo"), 20.0)):
        assert train(*flags).policy.lr_zero_million_timesteps == ends_at
    for flags in ((DOT,), (PONG, "--algo", "ppo"), ("Hopper-v5", "--algo", "ppo"), ("Hopper-v5", "--algo", "a2c")):
        assert train(*flags, "--million_timesteps", "100").policy.lr_zero_million_timesteps == 100
    with pytest.raises(UserError, match=r"0 from 2 million steps on; give --lr_zero_million_timesteps 3 or more, or 0"):
        train(PONG, "--million_timesteps", "3", "--lr_zero_million_timesteps", "2")
    constant = train(PONG, "--million_timesteps", "3", "--lr_zero_million_timesteps", "0").policy
    assert constant.lr_zero_million_timesteps == 0


def test_vectors_have_ppo_unless_another_algorithm_is_named() -> None:
    policy = train("Hopper-v5").policy
    assert (policy.algo, policy.n_steps, policy.million_timesteps) == ("ppo", 128, policy.lr_zero_million_timesteps)
    assert train("Hopper-v5", "--million_timesteps", "0.5").policy.lr_zero_million_timesteps == 0.5
    assert train("Hopper-v5", "--million_timesteps", "10").policy.lr_zero_million_timesteps == 10
    assert train("Hopper-v5", "--algo", "ppo").policy == policy
    a2c = train("Hopper-v5", "--algo", "a2c").policy
    assert (a2c.algo, a2c.n_steps, a2c.lr, a2c.gamma) == ("a2c", PolicyConfig().n_steps, PolicyConfig().lr, 0.995)
    discrete = train(CARTPOLE).policy
    assert (discrete.algo, discrete.gamma, discrete.gae_lambda) == ("ppo", 0.995, 0.97)


def test_trpo_has_defaults_of_its_own_and_is_for_vectors_alone() -> None:
    for env_id in (CARTPOLE, "Hopper-v5"):
        given = settings(train(env_id, "--algo", "trpo", "--max_kl", "0.001"))
        assert {name: given[name] for name in TRPO_DEFAULTS} == TRPO_DEFAULTS and given["max_kl"] == 0.001
    with pytest.raises(UserError, match=f"{PONG} shows pixels; give --algo ppo"):
        train(PONG, "--algo", "trpo")


def test_sac_has_defaults_of_its_own_and_is_for_bounded_actions_alone() -> None:
    for env_id in ("Walker", "Hopper-v5"):
        given = settings(train(env_id, "--algo", "sac", "--replay_ratio", "0.5"))
        assert {name: given[name] for name in SAC_DEFAULTS} == SAC_DEFAULTS and given["replay_ratio"] == 0.5
        assert given["policy_reset_million_timesteps"] == 0
    assert train("Walker", "--algo", "sac").policy.first_episode_steps == 100
    assert train("Reacher", "--algo", "sac").policy.gamma == 0.95, "which its targets need"
    for env_id in (PONG, CARTPOLE):
        with pytest.raises(UserError, match=f"needs vectors, and continuous actions with bounds, and {env_id} has"):
            train(env_id, "--algo", "sac")
    with pytest.raises(UserError, match="--explore_million_timesteps does not go with --algo sac"):
        parse(["train_policy_with_original_rewards", "Hopper", "--algo", "sac", "--explore_million_timesteps", "0.01"])
    flags = ("--disagreement_bonus 1", "--continuing_episodes", "--actors ray")
    for flag in flags:
        name = flag.split()[0]
        with pytest.raises(UserError, match=f"{name} does not go with --algo sac; leave it out"):
            train("Hopper", "--algo", "sac", *flag.split())


def test_an_environment_may_be_named_in_short() -> None:
    assert train("Hopper").env_id == "Hopper-v1" and train("Hopper") == train("Hopper-v1")


def test_every_mode_is_accepted_and_flags_are_spelled_either_way() -> None:
    for mode in MODES:
        config = parse(
            [mode, CARTPOLE, "--n-envs", "3", "--n_steps", "7", "--load-prefs-dir", "there", "--synthetic-prefs"]
        )
        assert (config.mode, config.env_id) == (mode, CARTPOLE)
        assert (config.policy.n_envs, config.policy.n_steps) == (3, 7)
        assert config.prefs.load_prefs_dir == "there" and config.prefs.synthetic_prefs


def test_flags_may_stand_before_the_environment() -> None:
    assert parse([TRAIN, "--synthetic_prefs", "--seed", "5", DOT]) == train(DOT, "--synthetic_prefs", "--seed", "5")
    with pytest.raises(UserError):
        parse([TRAIN, "--n_envs", "0", CARTPOLE])


def test_help_shows_the_tuned_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        train(DOT, "--help")
    output = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert left.value.code == 0
    assert "--lr " in output and f"(default: {env_info(DOT).tuned['lr']})" in output


@pytest.mark.parametrize("arguments", [["play", CARTPOLE], [TRAIN, CARTPOLE, "--seed", "x"], [TRAIN, CARTPOLE, "-q"]])
def test_a_line_that_cannot_be_read_ends_with_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse(arguments)
    assert left.value.code == 2
    captured = capsys.readouterr()
    assert captured.out + captured.err


def test_the_help_that_such_a_line_is_told_of_has_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([TRAIN, CARTPOLE, "--seed", "x"])
    told = re.search(r"run\.py (.*)--help", capsys.readouterr().err)
    assert told is not None and TRAIN in told[1], "run.py --help alone lists the commands, without flags"
    with pytest.raises(SystemExit):
        parse([*told[1].split(), "--help"])
    assert "--n_initial_prefs" in capsys.readouterr().out


# Loading what another run has made


def predictor_checkpoint(folder: Path) -> str:
    """A run folder with a predictor that was not trained with the default settings."""
    config = {"reward_predictor_network": "feature_points", "ensemble_size": 2, "dropout": 0.25}
    checkpoint.save(folder / "reward_predictor", 5, {"kind": "reward_predictor", "env_id": PONG, "config": config})
    return str(folder)


def test_a_predictor_whose_training_was_stopped_is_not_loaded_without_labels(tmp_path: Path) -> None:
    state = {"kind": "reward_predictor", "env_id": PONG, "config": {}, "pretrained": False}
    checkpoint.save(tmp_path / "reward_predictor", 5, state)
    with pytest.raises(UserError, match=f"finish it with `python run.py --resume {tmp_path}`"):
        train(PONG, "--load_reward_predictor_ckpt_dir", str(tmp_path))
    loading = ("--load_reward_predictor_ckpt_dir", str(tmp_path), "--load_prefs_dir", "there")
    assert train(PONG, *loading).prefs.load_prefs_dir == "there"


def test_a_loaded_predictor_is_built_as_it_was_trained_and_asks_for_nothing(tmp_path: Path) -> None:
    place = predictor_checkpoint(tmp_path)
    config = train(PONG, "--load_reward_predictor_ckpt_dir", place)
    assert (config.prefs.n_initial_prefs, config.prefs.gather_prefs) == (0, False)
    assert config.predictor == replace(
        PredictorConfig(),
        reward_predictor_network="feature_points",
        ensemble_size=2,
        dropout=0.25,
        load_reward_predictor_ckpt_dir=place,
    )
    assert train(PONG, "--load_reward_predictor_ckpt_dir", place, "--gather_prefs").prefs.gather_prefs


@pytest.mark.parametrize("max_prefs", [700, PrefsConfig().max_prefs])
def test_a_loaded_predictor_is_trained_on_if_a_number_of_labels_is_given(tmp_path: Path, max_prefs: int) -> None:
    place = predictor_checkpoint(tmp_path)
    prefs = train(PONG, "--load_reward_predictor_ckpt_dir", place, "--max_prefs", str(max_prefs)).prefs
    assert (prefs.n_initial_prefs, prefs.gather_prefs, prefs.max_prefs) == (0, True, max_prefs)


def test_a_loaded_policy_is_built_as_it_was_trained(tmp_path: Path) -> None:
    state = {"kind": "policy", "env_id": PONG, "network": "feature_points"}
    checkpoint.save(tmp_path / "policy", 5, state)
    assert train(PONG, "--load_policy_ckpt_dir", str(tmp_path)).policy.policy_network == "feature_points"


@pytest.mark.parametrize(
    ("env_id", "loaded", "learns_by"),
    [("HalfCheetah-v1", "ppo", "ppo"), ("Hopper-v1", "sac", "sac"), ("Hopper-v1", "a2c", "ppo")],
)
def test_a_loaded_policy_goes_on_by_an_algorithm_that_has_its_network(
    tmp_path: Path, env_id: str, loaded: str, learns_by: str
) -> None:
    state = {"kind": "policy", "env_id": env_id, "network": "nature", "algo": loaded}
    checkpoint.save(tmp_path / "policy", 5, state)
    given = train(env_id, "--load_policy_ckpt_dir", str(tmp_path))
    assert settings(given) == settings(train(env_id, "--algo", learns_by, "--load_policy_ckpt_dir", str(tmp_path)))
    assert given.policy.algo == learns_by


@pytest.mark.parametrize("flag", ["--load_policy_ckpt_dir", "--load_reward_predictor_ckpt_dir"])
def test_loading_from_where_nothing_is_says_so(tmp_path: Path, flag: str) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        train(PONG, flag, str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        train(PONG, flag, str(tmp_path))


# What cannot work


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("n_envs", "0"),
        ("n_steps", "0"),
        ("ppo_epochs", "0"),
        ("ppo_minibatches", "-1"),
        ("policy_ckpt_interval", "0"),
        ("log_interval", "0"),
        ("eval_episodes", "0"),
        ("eval_interval_million_timesteps", "-1"),
        ("eval_interval_million_timesteps", "inf"),
        ("eval_interval_million_timesteps", "nan"),
        ("lr_zero_million_timesteps", "-1"),
        ("ent_coef", "-0.1"),
        ("ent_coef_zero_million_timesteps", "-1"),
        ("ent_coef", "nan"),
        ("ensemble_size", "0"),
        ("n_initial_epochs", "0"),
        ("labels_per_step", "-1"),
        ("label_batch_size", "0"),
        ("reward_predictor_ckpt_interval", "0"),
        ("n_initial_prefs", "-1"),
        ("max_prefs", "-1"),
        ("max_segs", "1"),
        ("max_segs", "9223372036854775808"),
        ("clip_steps", "0"),
        ("seed", "-1"),
        ("million_timesteps", "0"),
        ("million_timesteps", "0.0000004"),
        ("million_timesteps", "inf"),
        ("lr", "0"),
        ("lr", "nan"),
        ("max_kl", "0"),
        ("max_kl", "inf"),
        ("init_noise_std", "0"),
        ("policy_reset_million_timesteps", "-1"),
        ("policy_reset_million_timesteps", "50"),
        ("first_episode_steps", "-1"),
        ("reward_predictor_learning_rate", "-1"),
        ("reward_std", "0"),
        ("gamma", "1.01"),
        ("gae_lambda", "-0.1"),
        ("dropout", "1"),
        ("teacher", "orakel"),
        ("teacher_beta", "0"),
        ("teacher_beta", "nan"),
        ("teacher_gamma", "1.1"),
        ("teacher_mistake", "-0.1"),
        ("teacher_mistake", "nan"),
        ("teacher_skip", "2"),
        ("teacher_equal", "-1"),
        ("teacher_equal", "nan"),
        ("teacher_end_penalty", "-1"),
        ("teacher_end_penalty", "inf"),
        ("wait_for_labels", "1.5"),
        ("wait_for_labels", "-0.1"),
        ("wait_for_labels", "nan"),
        ("l2", "-0.1"),
        ("l2", "nan"),
        ("l2", "inf"),
        ("reward_l1", "-1"),
        ("reward_l1", "inf"),
        ("crop_steps", "-1"),
        ("label_error_rate", "1"),
        ("label_buffer", "0"),
        ("query_candidates", "0"),
        ("n_initial_rounds", "0"),
        ("explore_million_timesteps", "inf"),
        ("labels_per_step", "inf"),
        ("seed", str(2**62)),
        ("crop_steps", str(env_info(CARTPOLE).segment_length)),
        ("run_name", "a/b"),
        ("run_name", ""),
        ("run_name", ".."),
        ("resume", ""),
        ("load_prefs_dir", ""),
        ("load_reward_predictor_ckpt_dir", ""),
        ("load_policy_ckpt_dir", ""),
        ("demonstrations", ""),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_sentence(flag: str, value: str) -> None:
    with pytest.raises(UserError) as caught:
        train(CARTPOLE, f"--{flag}={value}")
    message = str(caught.value)
    assert message.startswith(f"--{flag} must ") and message.endswith(".") and "\n" not in message


def test_no_body_learns_to_be_given_up() -> None:
    with pytest.raises(UserError, match="give --first_episode_steps 0 with it"):
        train("Walker", "--continuing_episodes")
    assert train("Walker", "--continuing_episodes", "--first_episode_steps", "0").policy.continuing_episodes


def test_first_episodes_are_no_longer_than_whole_ones() -> None:
    assert train("Walker", "--clip_steps", "150").policy.first_episode_steps == 100
    with pytest.raises(UserError, match=r"must not exceed the 1000 steps of an episode of Walker-v1"):
        train("Walker", "--first_episode_steps", "1001")


@pytest.mark.parametrize(
    ("mode", "flags", "reason"),
    [
        (TRAIN, ["--first_episode_steps", "100"], "needs a MuJoCo body"),
        (TRAIN, ["--max_prefs", "499", "--n_initial_prefs", "500"], "n_initial_prefs 500"),
        (TRAIN, ["--no_gather_prefs"], "nothing to learn from"),
        (TRAIN, ["--algo", "ppo", "--n_envs", "1", "--n_steps", "3"], "ppo_minibatches"),
        ("pretrain_reward_predictor", [], "load_prefs_dir"),
        (TRAIN, ["--ensemble_size", "1", "--query_selection", "disagreement"], "needs an ensemble"),
        (TRAIN, ["--ensemble_size", "1", "--disagreement_bonus", "0.1"], "needs an ensemble"),
        (TRAIN, ["--n_initial_rounds", "2", "--query_selection", "random"], "give --query_selection disagreement"),
        (TRAIN, ["--n_initial_rounds", "11", "--n_initial_prefs", "10"], "must not exceed the 10 labels"),
        (TRAIN, ["--n_initial_rounds", "26", "--wait_for_labels", "never"], "must not exceed the 25 labels"),
        (TRAIN, ["--l2", "adaptive", "--no_hold_out", "--no_bootstrap"], "labels that are not trained on"),
        ("gather_initial_prefs", ["--n_initial_rounds", "2"], "leave it out here"),
        (TRAIN, ["--demonstrations", "there.npz", "--explore_million_timesteps", "0.1"], "forget the --demonstrations"),
        (
            TRAIN,
            ["--demonstrations", "a.npz", "--policy_reset_million_timesteps", "0.5"],
            "forget the --demonstrations",
        ),
        (
            TRAIN,
            ["--explore_million_timesteps", "0.99", "--million_timesteps", "0.0006"],
            "not exceed the 0.0006 million",
        ),
    ],
)
def test_flags_that_contradict_each_other_are_refused(mode: str, flags: list[str], reason: str) -> None:
    with pytest.raises(UserError) as caught:
        train(CARTPOLE, *flags, mode=mode)
    message = str(caught.value)
    assert reason in message and message.endswith(".") and "\n" not in message


def test_one_network_is_asked_about_any_pair() -> None:
    assert train(CARTPOLE, "--ensemble_size", "1").prefs.query_selection == "random"
    assert train(DOT).prefs.query_selection == "random"
    assert train(CARTPOLE).prefs.query_selection == "disagreement"


def test_a_function_has_no_end_penalty() -> None:
    """It takes the place of the true reward, from which the penalty is taken."""
    with pytest.raises(UserError, match="teacher_end_penalty"):
        train(PONG, "--teacher", "examples.dot_left:to_the_left", "--teacher_end_penalty", "1")


def test_the_true_return_is_a_target_only_where_the_true_reward_teaches() -> None:
    flags = ("--reward_target", "true_return")
    assert train(PONG, "--synthetic_prefs", *flags).predictor.reward_target == "true_return"
    for teacher in ((), ("--teacher", "examples.dot_left:to_the_left")):
        with pytest.raises(UserError, match="--reward_target true_return needs the true reward"):
            train(PONG, *flags, *teacher)


def test_a_crop_leaves_a_step_of_the_clips_that_were_asked_for() -> None:
    assert train(PONG, "--clip_steps", "40", "--crop_steps", "39").predictor.crop_steps == 39
    with pytest.raises(UserError, match="below the 10 steps"):
        train(PONG, "--clip_steps", "10", "--crop_steps", "10")


def test_a_policy_starts_from_one_thing(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "policy", 5, {"kind": "policy", "env_id": PONG, "network": "nature"})
    with pytest.raises(UserError, match="give one"):
        train(PONG, "--load_policy_ckpt_dir", str(tmp_path), "--demonstrations", "there.npz")
    with pytest.raises(UserError, match="forget the --load_policy_ckpt_dir that it starts from; give one"):
        train(PONG, "--load_policy_ckpt_dir", str(tmp_path), "--explore_million_timesteps", "0.1")


def test_a_synthetic_teacher_that_would_never_start_is_refused() -> None:
    """Its labels follow the policy's steps, and the policy waits for the first of them."""
    with pytest.raises(UserError, match="n_initial_prefs"):
        train(CARTPOLE, "--synthetic_prefs", "--n_initial_prefs", "0")


@pytest.mark.parametrize(
    "flags", [["--teacher", "oracle"], ["--teacher=mistake"], ["--teacher-beta", "inf"], ["--teacher_skip=0.2"]]
)
def test_a_flag_about_the_teacher_means_that_nobody_labels_by_hand(tmp_path: Path, flags: list[str]) -> None:
    assert train(CARTPOLE, *flags).prefs.synthetic_prefs
    assert not train(CARTPOLE, *flags, "--no_synthetic_prefs").prefs.synthetic_prefs
    path = make_run(tmp_path)
    assert not parse(["--resume", str(path)]).prefs.synthetic_prefs
    assert parse(["--resume", str(path), *flags]).prefs.synthetic_prefs


def test_a_place_to_label_at_is_refused_where_nobody_labels_by_hand(tmp_path: Path) -> None:
    path = make_run(tmp_path, "--synthetic_prefs")
    for words in ([TRAIN, DOT, "--teacher", "oracle"], [TRAIN, DOT, "--synthetic_prefs"], ["--resume", str(path)]):
        with pytest.raises(UserError, match="--ui is for people, and a synthetic teacher answers here; leave it out"):
            parse([*words, "--ui", "web"])
    assert parse(["--resume", str(path), "--no_synthetic_prefs", "--ui", "web"]).prefs.ui == "web"
    person = make_run(tmp_path / "person", "--ui", "web")
    assert parse(["--resume", str(person), "--teacher", "oracle"]).prefs.synthetic_prefs


def test_resuming_keeps_the_teacher(tmp_path: Path) -> None:
    path = make_run(tmp_path, "--teacher", "myopic", "--teacher_mistake", "0.2")
    prefs = parse(["--resume", str(path)]).prefs
    kept = (prefs.synthetic_prefs, prefs.teacher, prefs.teacher_mistake, prefs.teacher_gamma)
    assert kept == (True, "myopic", 0.2, None)
    assert parse(["--resume", str(path), "--teacher", "stoc"]).prefs.teacher == "stoc"


def test_an_unknown_environment_is_refused_with_what_was_meant() -> None:
    with pytest.raises(EnvError, match="PongNoFrameskip-v4"):
        train("PongNoFrameskip-v5")


# The run folder and --resume


def make_run(log_dir: Path, *flags: str) -> Path:
    config = train(DOT, *flags, "--log_dir", str(log_dir), "--run_name", "one")
    RunFolder.create(config.run_path(), config.as_dict()).close()
    return config.run_path()


def test_resuming_restores_every_setting(tmp_path: Path) -> None:
    path = make_run(tmp_path, "--lr", "0.25", "--synthetic_prefs", "--seed", "9", "--n_initial_prefs", "3")
    config = parse(["--resume", str(path)])
    assert replace(config, resume=None) == RunConfig.from_dict(read_config(path))
    assert (config.policy.lr, config.prefs.synthetic_prefs, config.seed, config.prefs.n_initial_prefs) == (
        0.25,
        True,
        9,
        3,
    )
    assert config.run_path() == path
    assert parse([TRAIN, DOT, "--resume", str(path)]) == config


def test_a_flag_overrides_what_is_resumed(tmp_path: Path) -> None:
    path = make_run(tmp_path, "--lr", "0.25")
    config = parse(["--resume", str(path), "--million_timesteps", "2"])
    policy = config.policy
    assert (policy.million_timesteps, policy.lr, policy.lr_zero_million_timesteps) == (2, 0.25, 2), "of 0.1"


@pytest.mark.parametrize(
    "flags",
    [
        *(("--policy_network", "nature"), ("--clip_steps", "9"), ("--load_prefs_dir", "a")),
        *(("--demonstrations", "a.npz"), ("--explore_million_timesteps", "0.05"), ("--init_noise_std", "1")),
    ],
)
def test_what_a_run_folder_holds_does_not_change_when_it_is_resumed(tmp_path: Path, flags: tuple[str, str]) -> None:
    path = make_run(tmp_path)
    before = read_config(path)
    with pytest.raises(UserError, match=f"^{flags[0]} stays .* in a resumed run; leave it out, or start a new run.$"):
        parse(["--resume", str(path), *flags])
    assert read_config(path) == before


def test_a_resumed_run_stays_where_it_is_and_asks_no_single_network_where_it_disagrees(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    for flag in ("--run_name", "--log_dir"):
        with pytest.raises(UserError, match="stays where it is"):
            parse(["--resume", str(path), flag, "other"])
    for flags in (("--query_selection", "disagreement"), ("--disagreement_bonus", "1")):
        with pytest.raises(UserError, match="needs an ensemble"):
            parse(["--resume", str(path), *flags])
    record = json.loads((path / "config.json").read_text())
    record["config"]["prefs"]["query_selection"] = "disagreement"  # as an older version took it
    (path / "config.json").write_text(json.dumps(record))
    assert parse(["--resume", str(path), "--million_timesteps", "2"]).prefs.query_selection == "disagreement"


def test_labels_to_gather_are_as_many_as_are_named() -> None:
    for env_id in (DOT, CARTPOLE):
        assert parse(["gather_initial_prefs", env_id, "--max_prefs", "40"]).prefs.n_initial_prefs == 40
    with pytest.raises(UserError, match="n_initial_prefs must be 1 or more"):
        parse(["gather_initial_prefs", DOT, "--n_initial_prefs", "0"])
    with pytest.raises(UserError, match="max_prefs must be a whole number, 0 or more"):
        parse(["gather_initial_prefs", DOT, "--max_prefs", "-1"])


def test_an_ensemble_that_is_asked_for_is_asked_where_it_disagrees() -> None:
    assert train(DOT).prefs.query_selection == "random", "of a single network, which the dot has"
    assert train(DOT, "--ensemble_size", "3").prefs.query_selection == "disagreement"


def test_l2_is_a_number_or_adaptive(tmp_path: Path) -> None:
    assert train(CARTPOLE, "--l2", "0.5").predictor.l2 == 0.5
    path = make_run(tmp_path, "--l2", "adaptive")
    assert parse(["--resume", str(path)]).predictor.l2 == "adaptive"
    assert parse(["--resume", str(path), "--l2", "0"]).predictor.l2 == 0


def test_resuming_as_something_else_is_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    for words in ([TRAIN, CARTPOLE], ["train_policy_with_original_rewards", DOT]):
        with pytest.raises(UserError, match=f"{TRAIN} {DOT}"):
            parse([*words, "--resume", str(path)])


def test_resuming_from_what_is_no_run_is_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="does not exist"):
        parse(["--resume", str(tmp_path / "nowhere")])
    with pytest.raises(UserError, match="no run folder"):
        parse(["--resume", str(tmp_path / "empty")])
    null = re.sub('"lr": [^,]+', '"lr": null', (path / "config.json").read_text())
    for damage in ("{", "[]", "{}", '{"config": 3}', '{"config": {}}', '{"config": {"mode": "x", "colour": 1}}', null):
        (path / "config.json").write_text(damage)
        with pytest.raises(UserError, match=r"\.$"):
            parse([TRAIN, DOT, "--resume", str(path)])
    (path / "config.json").unlink()
    os.mkfifo(path / "config.json")
    with pytest.raises(UserError, match=r"config\.json is no regular file"):
        parse([TRAIN, DOT, "--resume", str(path)])


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        ("config policy algo", "dqn", "algo must be 'a2c', 'ppo', 'trpo' or 'sac', not 'dqn'"),
        ("config policy n_envs", "16", "n_envs must be a whole number, 1 or more, not '16'"),
        ("config policy n_envs", True, "n_envs must be"),
        ("config policy lr", float("nan"), "lr must be"),
        ("config policy demonstrations", 3, "demonstrations must be a text"),
        ("config predictor batchnorm", "False", "batchnorm must be True or False, not 'False'"),
        ("config prefs", [], "prefs must hold settings"),
        ("config page task", None, "task must be a text"),
        ("config log_dir", "a\0b", "log_dir must be a text"),
        ("config mode", "gather_initial_prefs", f"its mode is gather_initial_prefs, and the run began with {TRAIN}"),
        ("config env_id", CARTPOLE, "its env_id is CartPole-v1"),
        ("history", 1, "no history in it"),
        ("run_id", None, "no run_id in it"),
    ],
)
def test_what_no_command_line_gives_is_damage_in_every_command(
    tmp_path: Path, place: str, value: object, expected: str
) -> None:
    path = make_run(tmp_path)
    record = json.loads((path / "config.json").read_text())
    *sections, name = place.split()
    values = record
    for section in sections:
        values = values[section]
    values[name] = value
    (path / "config.json").write_text(json.dumps(record))
    for read in (read_config, lambda path: parse(["--resume", str(path)])):
        with pytest.raises(UserError, match=r"config\.json is damaged \(.*\); restore it\.$") as raised:
            read(path)
        assert expected in str(raised.value)


def test_settings_too_deep_to_read_and_pipes_are_one_sentence(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    (path / "config.json").write_text('{"config":' + "[" * 100_000)
    with pytest.raises(UserError, match="is damaged"):
        read_config(path)
    (path / "config.json").unlink()
    os.mkfifo(path / "config.json")
    with pytest.raises(UserError, match="is no regular file"):
        read_config(path)


def test_a_run_folder_is_never_overwritten_nor_shared(tmp_path: Path) -> None:
    place = tmp_path / "a b"
    path = make_run(place)
    before = (path / "config.json").read_bytes()
    with pytest.raises(UserError, match=f"already exists; .*--resume '{path}'`, or"):
        make_run(place, "--seed", "3")
    with pytest.raises(UserError, match="cannot make"):
        RunFolder.create(path / "config.json" / "run", {})
    assert (path / "config.json").read_bytes() == before
    folder = RunFolder.resume(path, read_config(path))
    try:
        with pytest.raises(UserError, match="in use by another process; wait until that has ended, or stop it"):
            RunFolder.resume(path, read_config(path))
    finally:
        folder.close()
    (path / "config.new").mkdir()  # stands where the changed config is drafted
    with pytest.raises(IsADirectoryError):
        RunFolder.resume(path, read_config(path) | {"seed": 3})
    RunFolder.resume(path, read_config(path)).close()  # which is free again
    (path / "lock").unlink()
    (path / "lock").mkdir()  # permissions do not bind root
    with pytest.raises(UserError, match=r"^cannot write in .+ \(Is a directory\); allow that, or copy it elsewhere\.$"):
        RunFolder.resume(path, read_config(path))
    assert (path / "config.json").read_bytes() == before


def test_what_a_resumed_run_was_told_holds_when_it_is_resumed_again(tmp_path: Path) -> None:
    path = make_run(tmp_path, "--lr", "0.25")
    config = parse(["--resume", str(path), "--ent_coef", "0.125"])
    RunFolder.resume(path, config.as_dict()).close()
    again = parse(["--resume", str(path)])
    assert (again.policy.ent_coef, again.policy.lr) == (0.125, 0.25)
    (earlier,) = json.loads((path / "config.json").read_text())["history"]
    assert earlier["config"]["policy"]["ent_coef"] != 0.125
