"""Which frames of Atari's the networks see: by the game, unless asked otherwise, and in one run always the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from a2c.config import PolicyConfig
from a2c.environments import make_groups
from a2c.learner import Learner, new_policy
from a2c.saved import Course, PolicyCheckpoints
from a2c.starts import Starts
from commands.agent import Agent
from commands.flags import parse
from commands.run_folder import RunFolder
from drlhp.errors import UserError
from drlhp.networks.device import CPU
from drlhp.runtime import checkpoint
from envs import env_info

PACMAN, TRAIN = "ALE/Pacman-v5", "train_policy_with_preferences"


def all_frames(*words: str) -> bool:
    return parse(list(words)).policy.all_frames


def made_run(place: Path, *, without: bool) -> Path:
    """A run of Pacman; `without` as an older version wrote it, which had no choice of frames."""
    config = parse([TRAIN, PACMAN, "--synthetic_prefs", "--log_dir", str(place), "--run_name", "one"])
    values = config.as_dict()
    if without:
        del values["policy"]["all_frames"]
    RunFolder.create(config.run_path(), values).close()
    return config.run_path()


def test_the_game_decides_unless_a_flag_does() -> None:
    assert all_frames(TRAIN, PACMAN) and not all_frames(TRAIN, PACMAN, "--no_all_frames")
    for game in ("Pong", "Enduro", "Breakout", "BeamRider", "Qbert", "Seaquest", "SpaceInvaders"):
        assert not all_frames(TRAIN, f"{game}NoFrameskip-v4"), "as in the results"
    assert all_frames(TRAIN, "SeaquestNoFrameskip-v4", "--all_frames")
    for env_id in ("CartPole-v1", "MovingDotNoFrameskip-v0"):
        with pytest.raises(UserError, match="leave it out"):
            parse([TRAIN, env_id, "--all_frames"])


def test_a_resumed_run_sees_what_it_saw(tmp_path: Path) -> None:
    older, newer = (made_run(tmp_path / name, without=name == "older") for name in ("older", "newer"))
    assert not all_frames("--resume", str(older)) and all_frames("--resume", str(newer))
    for folder, flag in ((older, "--all_frames"), (newer, "--no_all_frames")):
        with pytest.raises(UserError, match="--all_frames stays"):
            parse(["--resume", str(folder), flag])


@pytest.mark.parametrize("without", [False, True])
def test_what_is_loaded_sees_what_it_has_learned_from(tmp_path: Path, without: bool) -> None:
    folder = made_run(tmp_path, without=without)
    state = {"env_id": PACMAN, "network": "nature", "config": {}}
    chosen = {} if without else {"all_frames": True}
    checkpoint.save(folder / "policy", 5, {"kind": "policy", **state, **chosen})
    checkpoint.save(folder / "reward_predictor", 5, {"kind": "reward_predictor", **state})
    for name in ("load_policy_ckpt_dir", "load_reward_predictor_ckpt_dir", "load_prefs_dir"):
        assert all_frames(TRAIN, PACMAN, f"--{name}", str(folder)) is not without, name


@pytest.mark.parametrize("chosen", [False, True])
def test_training_and_watching_see_the_same_frames(tmp_path: Path, chosen: bool) -> None:
    config, info = PolicyConfig(all_frames=chosen, n_envs=1), env_info(PACMAN)
    (env,) = make_groups(PACMAN, config, CPU, info, crew_size=1, seed=0, n_shown=0)
    assert env.info.all_frames is chosen
    env.close()
    learner = Learner(info, config, new_policy(info, config, CPU))
    starts = Starts(info, config, learner, None)
    path = PolicyCheckpoints(tmp_path / "policy", PACMAN, config, learner, starts, None).save(Course(steps=5))
    assert Agent.load(path).info == replace(info, all_frames=chosen)
    state = checkpoint.read(path)
    del state["all_frames"]
    assert Agent.load(checkpoint.save(tmp_path / "older" / "policy", 5, state)).info.all_frames is False
