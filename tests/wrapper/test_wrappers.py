"""The wrappers around real environments, in this process alone; test_wrapper_processes.py has the rest."""

from __future__ import annotations

import contextlib
import inspect
import multiprocessing
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ale_py.vector_env
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import drlhp
from drlhp import (
    CheckpointError,
    HumanPreferencesEnvWrapper,
    HumanPreferencesVectorEnv,
    Settings,
    SpaceError,
    UserError,
)
from drlhp.data.comparison import Choice, Comparison
from drlhp.data.cutter import SegmentCutter
from drlhp.data.segment import Segment
from drlhp.runtime import checkpoint
from drlhp.wrapper.description import WrappedEnv
from drlhp.wrapper.spaces import ActionEncoder, ObservationEncoder
from envs import make_env
from examples.lamp_env import LampEnv
from examples.own_network import Waves
from examples.wrapper_everything import picture_of
from pref_db import PrefDB
from reward_predictor import ARCHITECTURE, PredictorInputs, RewardPredictor
from tests.support import ROOT
from tests.support.commands import DEADLINE
from tests.support.preloaded import run_captured
from tests.support.process_server import one_server
from tests.support.ring import predicted_reward

__all__ = ["one_server"]  # a fixture: pytest finds it by name

pytestmark = pytest.mark.usefixtures("one_server")

NOBODY = {"collect_prefs": False, "train_reward": False}


def predictor_for(
    env: gymnasium.Env[Any, Any], folder: Path, env_id: str, *, network: Any = None, **encoder_arguments: Any
) -> RewardPredictor:
    """An untrained predictor for an environment, saved in the folder as if it had been trained."""
    observations = ObservationEncoder(env.observation_space, **encoder_arguments)
    actions = ActionEncoder(env.action_space)
    inputs = PredictorInputs(observations.kind, observations.shape, actions.n_actions, actions.action_dim)
    settings = Settings(reward_predictor_network=network)
    config = settings.predictor_config(observations.kind)
    torch.manual_seed(1)
    predictor = RewardPredictor(inputs, config, make_network=settings.make_network)
    state = {
        "kind": "reward_predictor",
        "env_id": env_id,
        "config": {name: getattr(config, name) for name in ARCHITECTURE},
        "inputs": inputs.as_dict(),
        "own_network": settings.make_network is not None,
        "pretrained": True,
        "weights": predictor.state_dict(),
    }
    checkpoint.save(folder / "reward_predictor", 1, state)
    return predictor


@pytest.fixture
def cartpole(tmp_path: Path) -> Iterator[HumanPreferencesEnvWrapper]:
    """CartPole with a pretrained predictor and nothing beside it."""
    env = gymnasium.make("CartPole-v1")
    predictor_for(env, tmp_path / "old", "CartPole-v1")
    wrapped = HumanPreferencesEnvWrapper(env, **NOBODY, pretrained_reward_predictor_dir=tmp_path / "old")
    yield wrapped
    wrapped.close()


def test_the_signature_is_that_of_the_earlier_package() -> None:
    parameters = inspect.signature(HumanPreferencesEnvWrapper).parameters
    known = {
        "train_reward": True,
        "collect_prefs": True,
        "segment_length": 40,
        "mp_context": "spawn",
        "prefs_dir": None,
        "log_dir": "drlhp_logs/",
        "max_prefs_in_db": 10000,
        "obs_transform_func": None,
        "n_initial_training_steps": 50,
        "n_initial_prefs": 40,
        "pretrained_reward_predictor_dir": None,
        "reward_predictor_ckpt_interval": 10,
        "reward_predictor_refresh_interval": 10,
        "validation_interval": 10,
        "reward_database_refresh_interval": 1,
        "synthetic_prefs": True,
        "max_pref_interface_segs": 25,
        "zoom_ratio": 4,
        "channels": 3,
    }
    assert {name: parameters[name].default for name in known} == known
    assert list(parameters)[:2] == ["env", "reward_predictor_network"]
    assert set(asdict(Settings())) <= set(parameters)


def test_a_pretrained_predictor_rewards_what_was_done_and_starts_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = gymnasium.make("CartPole-v1")
    predictor = predictor_for(env, tmp_path / "old", "CartPole-v1")
    threads = threading.active_count()
    wrapped = HumanPreferencesEnvWrapper(env, **NOBODY, pretrained_reward_predictor_dir="old")
    assert wrapped.using_reward_from_predictor
    before, _ = wrapped.reset(seed=1)
    for action in (0, 1, 1):
        observation, reward, _, _, info = wrapped.step(action)
        expected = predicted_reward(predictor, before[None], np.array([action]))[0]
        assert reward == pytest.approx(float(expected)) == info["predicted_reward"]
        assert info["true_reward"] == 1.0
        before = observation
    wrapped.close()
    assert not multiprocessing.active_children() and threading.active_count() == threads
    assert os.listdir(tmp_path) == ["old"]


def test_switching_to_the_true_reward_and_back(cartpole: HumanPreferencesEnvWrapper) -> None:
    cartpole.reset(seed=0)
    with pytest.warns(UserWarning, match="predicted ones already"):
        cartpole.switch_to_predicted_reward()
    cartpole.switch_to_true_reward()
    assert not cartpole.using_reward_from_predictor
    assert cartpole.step(0)[1] == 1.0
    with pytest.warns(UserWarning, match="true ones already"):
        cartpole.switch_to_true_reward()
    cartpole.switch_to_predicted_reward()
    _, reward, _, _, info = cartpole.step(0)
    assert reward == info["predicted_reward"] != info["true_reward"]


def test_without_a_predictor_a_switch_warns_and_rewards_are_true() -> None:
    wrapped = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), **NOBODY)
    wrapped.reset(seed=0)
    for switch in (wrapped.switch_to_true_reward, wrapped.switch_to_predicted_reward):
        with pytest.warns(UserWarning, match="no trained reward predictor") as told:
            switch()
        assert told[0].filename == __file__
    with pytest.warns(UserWarning, match=r"no predicted rewards.*set pretrained_reward_predictor_dir\.$") as told:
        assert not wrapped.using_reward_from_predictor  # else a loop that waits for it would go on in silence
    assert told[0].filename == __file__
    _, reward, _, _, info = wrapped.step(0)
    assert reward == 1.0 and "predicted_reward" not in info
    for save, words in ((wrapped.save_prefs, "no preferences"), (wrapped.save_reward_predictor, "none to save")):
        with pytest.warns(UserWarning, match=words):
            assert save() is None
    wrapped.close()


@pytest.mark.parametrize("reward", [3, np.float16(3), np.array(3.0), np.array([3.0])])
@pytest.mark.parametrize("settings", [NOBODY, {"train_reward": False, "segment_length": 1}])
def test_a_reward_may_be_a_number_of_any_kind(reward: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    inner = gymnasium.wrappers.TransformReward(LampEnv(), lambda _: reward)
    wrapped = HumanPreferencesEnvWrapper(inner, **settings, obs_transform_func=picture_of, log_dir=tmp_path)
    wrapped.reset()
    assert wrapped.step(np.array([1, 2]))[4]["true_reward"] == 3.0
    wrapped.close()


@pytest.mark.parametrize("collect_prefs", [False, True])
def test_segments_are_counted_while_they_are_collected(tmp_path: Path, collect_prefs: bool) -> None:
    """Of 30 steps there are three segments of ten, as in the earlier package."""
    settings: dict[str, Any] = {**NOBODY, "collect_prefs": collect_prefs, "log_dir": tmp_path, "segment_length": 10}
    wrapped = HumanPreferencesEnvWrapper(LampEnv(), **settings, obs_transform_func=picture_of)
    wrapped.reset(seed=0)

    def steps(n: int) -> int:
        for _ in range(n):
            wrapped.step(np.array([1, 2]))
        return wrapped.segments_collected

    assert steps(30) == 3
    wrapped.stop_segment_collection()
    assert steps(20) == 3
    wrapped.start_segment_collection()
    assert steps(9) == 3 and steps(1) == 4
    with pytest.warns(UserWarning, match="collected already"):
        wrapped.start_segment_collection()
    steps(5)
    wrapped.reset()
    assert steps(9) == 4 and steps(1) == 5  # no segment spans a reset
    wrapped.close()


@pytest.mark.parametrize("make", [lambda: gymnasium.make("CartPole-v1"), LampEnv], ids=["vector", "dict"])
def test_gymnasiums_own_check(make: Callable[[], gymnasium.Env[Any, Any]]) -> None:
    transform = picture_of if make is LampEnv else None
    wrapped = HumanPreferencesEnvWrapper(make(), **NOBODY, obs_transform_func=transform)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of every wrapper, for not being the environment itself
        check_env(wrapped, skip_render_check=True)
    wrapped.close()


def test_moving_dot_of_any_size_and_atari(tmp_path: Path) -> None:
    dot = gymnasium.make("MovingDotNoFrameskip-v0")  # (210, 160, 3) uint8
    predictor_for(dot, tmp_path, "MovingDotNoFrameskip-v0", network="feature_points", gray=True)
    before = threading.active_count(), torch.get_num_threads()
    wrapped = HumanPreferencesEnvWrapper(dot, **NOBODY, pretrained_reward_predictor_dir=tmp_path)  # it says which
    wrapped.reset(seed=0)
    rewards = [wrapped.step(i % 5)[1] for i in range(5)]
    assert np.isfinite(rewards).all() and len(set(rewards)) > 1
    wrapped.close()
    # Pictures are read by a thread, which is gone, and has left this one's arithmetic its threads.
    assert (threading.active_count(), torch.get_num_threads()) == before
    stacked = HumanPreferencesEnvWrapper(make_env("MovingDotNoFrameskip-v0"), **NOBODY)
    assert stacked.system.info.observation_shape == (4, 84, 84)
    stacked.close()


def test_the_vector_twin_predicts_and_cuts_what_single_environments_do(tmp_path: Path) -> None:
    """With Gymnasium's resets in a step of their own, which is no step, and with those in the same step."""
    predictor_for(gymnasium.make("CartPole-v1"), tmp_path, "CartPole-v1")
    settings: dict[str, Any] = {**NOBODY, "pretrained_reward_predictor_dir": tmp_path, "segment_length": 10}
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        makers = [lambda: gymnasium.make("CartPole-v1")] * 2
        inner = SyncVectorEnv(makers, autoreset_mode=mode)
        inner.metadata["autoreset_mode"] = AutoresetMode.DISABLED  # as others of its class do before Gymnasium 1.4
        envs = HumanPreferencesVectorEnv(inner, **settings)
        singles = [HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), **settings) for _ in range(2)]
        observations, _ = envs.reset(seed=3)
        for i, single in enumerate(singles):
            np.testing.assert_array_equal(single.reset(seed=3 + i)[0], observations[i])
        resetting, rng = np.zeros(2, bool), np.random.default_rng(0)
        for _ in range(100):
            actions = rng.integers(0, 2, 2)
            observations, rewards, terminated, _, info = envs.step(actions)
            for i, single in enumerate(singles):
                if resetting[i]:
                    assert rewards[i] == 0 and not terminated[i]
                    observation = single.reset()[0]
                else:
                    observation, reward, ended, _, theirs = single.step(int(actions[i]))
                    assert rewards[i] == pytest.approx(reward, rel=1e-4, abs=1e-6) and ended == terminated[i]
                    assert info["true_reward"][i] == theirs["true_reward"]
                    if ended and mode == AutoresetMode.SAME_STEP:
                        observation = single.reset()[0]
                np.testing.assert_array_equal(observation, observations[i])
            expected = rewards.copy()
            rewards *= 100  # by who learns from them
            np.testing.assert_array_equal(info["predicted_reward"], expected)
            resetting = terminated if mode == AutoresetMode.NEXT_STEP else resetting
        assert envs.segments_collected == sum(single.segments_collected for single in singles) > 5
        envs.close()
        for single in singles:
            single.close()


def test_an_environment_that_resets_itself_is_rewarded_and_cut_as_the_vector_twin(tmp_path: Path) -> None:
    """The step in which it does so ignores its action."""
    predictor_for(gymnasium.make("CartPole-v1"), tmp_path, "CartPole-v1")
    settings: dict[str, Any] = {**NOBODY, "pretrained_reward_predictor_dir": tmp_path, "segment_length": 10}
    inner = gymnasium.wrappers.Autoreset(gymnasium.make("CartPole-v1"))
    single = HumanPreferencesEnvWrapper(inner, **settings)
    envs = HumanPreferencesVectorEnv(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")]), **settings)
    np.testing.assert_array_equal(single.reset(seed=3)[0], envs.reset(seed=3)[0][0])
    for action in np.random.default_rng(0).integers(0, 2, 100):
        observations, rewards, terminated, _, info = envs.step(np.array([action]))
        observation, reward, ended, _, theirs = single.step(int(action))
        np.testing.assert_array_equal(observation, observations[0])
        assert (reward, ended) == (rewards[0], terminated[0])
        assert all(theirs[name] == info[name][0] for name in ("true_reward", "predicted_reward"))
    assert single.segments_collected == envs.segments_collected > 2
    single.close()
    envs.close()


def test_environments_that_their_user_resets_one_by_one() -> None:
    """An episode that ends leaves the others' segments alone, and what follows a reset begins a new one."""
    makers = [lambda: gymnasium.make("CartPole-v1")] * 2
    inner = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
    envs = HumanPreferencesVectorEnv(inner, **NOBODY, segment_length=6)
    envs.reset(seed=0)
    lengths, complete = np.zeros(2, int), 0  # by the literal rule: whole ones, and what is left if that is half of one
    for _ in range(60):
        _, _, terminated, _, _ = envs.step(np.array([0, 1]))
        lengths += 1
        cut = (lengths == 6) | terminated
        complete += int((cut & (lengths >= 3)).sum())
        lengths[cut] = 0
        if terminated.any():
            envs.reset(options={"reset_mask": terminated})
    assert envs.segments_collected == complete > 10
    envs.close()


def test_a_reset_in_the_middle_of_an_episode_ends_a_segment_too() -> None:
    makers = [lambda: gymnasium.make("Pendulum-v1")] * 2
    inner = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
    envs = HumanPreferencesVectorEnv(inner, **NOBODY, segment_length=6)
    envs.reset(seed=0)
    for steps, segments in ((4, 0), (2, 1), (4, 2)):
        for _ in range(steps):
            envs.step(np.zeros((2, 1), np.float32))
        assert envs.segments_collected == segments
        if steps == 4:
            envs.reset(options={"reset_mask": np.array([True, False])})
    envs.close()


def test_an_evaluation_keeps_the_true_reward_though_a_predictor_is_trained_meanwhile(tmp_path: Path) -> None:
    """Weights arrive from another process whenever they are ready."""
    env = gymnasium.make("CartPole-v1")
    predictor_for(env, tmp_path, "CartPole-v1")
    wrapped = HumanPreferencesEnvWrapper(env, **NOBODY, pretrained_reward_predictor_dir=tmp_path)
    wrapped.reset(seed=0)
    wrapped.system.predicted.copy, arrived = None, wrapped.system.predicted.copy
    with pytest.warns(UserWarning, match="no trained reward predictor"):
        wrapped.switch_to_true_reward()
    wrapped.system.predicted.copy = arrived
    _, reward, _, _, info = wrapped.step(0)
    assert reward == 1.0 != info["predicted_reward"]
    wrapped.close()


def test_an_environment_without_an_id_goes_by_its_class_however_it_is_wrapped(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    settings: dict[str, Any] = {**NOBODY, "obs_transform_func": picture_of}
    makers = [lambda: Monitor(LampEnv())] * 2
    wrapped: list[Any] = [
        HumanPreferencesEnvWrapper(LampEnv(), **settings),
        HumanPreferencesVectorEnv(SyncVectorEnv(makers), **settings),
        HumanPreferencesVectorEnv(AsyncVectorEnv(makers), **settings),
        drlhp.HumanPreferencesSB3VecEnv(DummyVecEnv(makers), **settings),
    ]
    for one in wrapped:
        assert one.system.info.env_id == "LampEnv"
        one.close()


def test_environments_in_workers_that_cannot_send_their_spec_go_by_their_id() -> None:
    """A function that was given to a wrapper is in it."""
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import SubprocVecEnv

    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda reward: 3 * float(reward))

    for wrap, inner in (
        (HumanPreferencesVectorEnv, AsyncVectorEnv([make] * 2)),
        (drlhp.HumanPreferencesSB3VecEnv, SubprocVecEnv([make] * 2)),
    ):
        wrapped: Any = wrap(inner, **NOBODY)
        wrapped.reset()
        assert wrapped.system.info.env_id == "CartPole-v1" and wrapped.step(np.zeros(2, np.int64))[1].tolist() == [3, 3]
        wrapped.close()


def test_atari_in_ales_own_vector_environment(tmp_path: Path) -> None:
    inner = ale_py.vector_env.AtariVectorEnv("pong", num_envs=2)
    envs = HumanPreferencesVectorEnv(inner, **NOBODY, segment_length=5)
    observations, _ = envs.reset(seed=0)
    for _ in range(10):
        observations, rewards, _, _, info = envs.step(np.array([2, 3]))
    assert observations.shape == (2, 4, 84, 84) and rewards.shape == (2,) and envs.segments_collected == 4
    expected = rewards.tolist()
    rewards -= 1  # by who learns from them
    assert info["true_reward"].tolist() == expected
    envs.close()


def test_frames_that_an_environment_stacks_are_kept_once_in_segments() -> None:
    for stacks, planes in ((True, 4), (False, 3)):
        info = WrappedEnv("Pictures-v0", "pixels", (planes, 84, 84), 2, None, segment_length=5, fps=30.0)
        cutter, everywhere = SegmentCutter(info, 1, seed=0, stack=1), np.ones(1, np.bool_)
        pictures = np.random.default_rng(0).integers(256, size=(9, planes, 84, 84)).astype(np.uint8)
        if stacks:
            pictures = np.stack([pictures[i : i + planes, 0] for i in range(6)])
        rest = np.zeros(1, np.int64), np.zeros(1, np.float32), ~everywhere, everywhere
        cut = [one.segment for t in range(5) for one in cutter.add(pictures[None, t], *rest, None, None, 0)]
        assert len(cut) == 1 and cut[0].observations.shape == ((8, 84, 84) if stacks else (5, 3, 84, 84))
        np.testing.assert_array_equal(cut[0].stacked(), pictures[:5])


def test_dict_observations_and_actions_of_several_choices_in_the_vector_twin(tmp_path: Path) -> None:
    predictor_for(LampEnv(), tmp_path, "LampEnv", transform=picture_of)
    arguments: dict[str, Any] = {**NOBODY, "obs_transform_func": picture_of}
    envs = HumanPreferencesVectorEnv(
        SyncVectorEnv([LampEnv] * 3), **arguments, pretrained_reward_predictor_dir=tmp_path
    )
    envs.reset(seed=0)
    rewards = [envs.step(envs.action_space.sample())[1] for _ in range(3)]
    assert np.isfinite(rewards).all() and len(np.unique(rewards)) > 3
    envs.close()


def test_what_cannot_work_is_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISPLAY", raising=False)
    cartpole = gymnasium.make("CartPole-v1")
    predictor_for(gymnasium.make("Acrobot-v1"), tmp_path / "acrobot", "CartPole-v1")
    predictor_for(cartpole, tmp_path / "cartpole", "CartPole-v1")
    for name, width, action in (("shorter", 2, 0), ("other_actions", 4, 2)):
        (tmp_path / name).mkdir()
        with contextlib.closing(PrefDB.create(tmp_path / name / "prefs.db", "CartPole-v1", 40)) as db:
            about: dict[str, Any] = {"stack": 1, "policy_step": 0, "seed": 0, "fps": 50.0}
            arrays = np.zeros((40, width), np.float32), np.full(40, action), np.zeros(40, np.float32)
            others = [Segment("CartPole-v1", arrays[0] + i, *arrays[1:], **about) for i in range(2)]
            db.add_answers([(Comparison(others[0], others[1], flip=False), Choice.A)], teacher="synthetic")
    true_return = drlhp.PredictorConfig(reward_target="true_return")
    refusals: list[tuple[gymnasium.Env[Any, Any], dict[str, Any], type[Exception], str]] = [
        (LampEnv(), {}, SpaceError, "obs_transform_func"),
        (cartpole, {"segment_length": 501}, UserError, "500 steps"),
        (cartpole, {"segment_length": 0}, UserError, "segment_length must be a whole number, 1 or more"),
        (cartpole, {"collect_prefs": False}, UserError, "nothing to train on"),
        (cartpole, {"n_initial_prefs": 50, "max_prefs_in_db": 40}, UserError, "max_prefs_in_db"),
        (cartpole, {"reward_predictor_network": "rnn"}, UserError, "'cnn', 'feature_points'"),
        (
            cartpole,
            {"mp_context": "threads"},
            UserError,
            "mp_context must be 'spawn', 'forkserver' or 'fork', not 'threads'",
        ),
        (cartpole, {"prefs_dir": "other_actions"}, UserError, r"other actions than those of Discrete\(2\)"),
        (cartpole, {"segment_length": 10.5}, UserError, "segment_length must be a whole number.*not 10.5"),
        (cartpole, {"log_dir": None}, UserError, "log_dir must be a folder, not None"),
        (cartpole, {"prefs_dir": 3}, UserError, "prefs_dir must be a folder, not 3"),
        (cartpole, {"pretrained_reward_predictor_dir": 3}, UserError, "predictor_dir must be a folder, not 3"),
        (cartpole, {"ui": "browser"}, UserError, "ui must be 'auto', 'window', 'web' or 'notebook', not 'browser'"),
        (cartpole, {"synthetic_prefs": "False"}, UserError, "synthetic_prefs must be True or False, not 'False'"),
        (cartpole, {"reward_predictor_log_level": "quiet"}, UserError, "must be a level of logging.*not 'quiet'"),
        (cartpole, {"seed": -1}, UserError, r"seed must be a whole number, 0 or more, and below 2\^62, not -1"),
        (cartpole, {"seed": 2**63}, UserError, r"seed must be a whole number.* below 2\^62, not 9223372036854775808"),
        (cartpole, {"obs_transform_func": "flat"}, UserError, "obs_transform_func must be a function"),
        (cartpole, {"prefs_dir": "shorter"}, UserError, r"observations of shape \(2,\), not of \(4,\)"),
        (cartpole, {"reward_predictor_network": lambda shape: Waves(shape)}, UserError, "top level of a module"),
        (cartpole, {**NOBODY, "reward_predictor_network": lambda _: torch.nn.Flatten(0)}, UserError, "features"),
        (cartpole, {**NOBODY, "reward_predictor_network": lambda _: None}, UserError, "made None: let it make"),
        (cartpole, {"reward_predictor_network": Waves((4,))}, UserError, r"a function that makes.*not Waves\( \(mix\)"),
        (
            cartpole,
            {**NOBODY, "pretrained_reward_predictor_dir": "cartpole", "reward_predictor_network": Waves},
            CheckpointError,
            "pass None as reward_predictor_network",
        ),
        (cartpole, {"synthetic_prefs": False}, UserError, "render_mode='rgb_array'"),
        (
            LampEnv(),
            {"synthetic_prefs": False, "ui": "window", "obs_transform_func": picture_of},
            UserError,
            "DISPLAY is not set.*: set ui='web',",
        ),
        (
            cartpole,
            {"synthetic_prefs": False, "reward_predictor_network": true_return},
            UserError,
            "whatever people answer: leave it out, or set synthetic_prefs=True",
        ),
        (cartpole, {"prefs_dir": "nowhere"}, drlhp.PrefDBError, "does not exist"),
        (cartpole, {**NOBODY, "pretrained_reward_predictor_dir": "nowhere"}, CheckpointError, "does not exist"),
        (
            cartpole,
            {**NOBODY, "pretrained_reward_predictor_dir": "acrobot"},
            CheckpointError,
            r"other spaces than Box.*\[6\] and not \[4\].*train a predictor",
        ),
    ]
    for env, arguments, error, words in refusals:
        with pytest.raises(error, match=words):
            HumanPreferencesEnvWrapper(env, **arguments)
    assert not multiprocessing.active_children()


def test_what_is_typed_into_a_notebook_is_refused_where_no_other_process_can_import_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(Waves, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Waves", Waves, raising=False)
    with pytest.raises(UserError, match="cannot import: make it a function or class at the top level of a module"):
        Settings(reward_predictor_network=Waves).check()
    Settings(reward_predictor_network=Waves, mp_context="fork").check()


def test_the_vector_twin_refuses_what_the_wrapper_refuses() -> None:
    refusals: list[tuple[Callable[[], gymnasium.Env[Any, Any]], dict[str, Any], type[Exception], str]] = [
        (LampEnv, {}, SpaceError, "obs_transform_func"),
        (lambda: gymnasium.make("CartPole-v1"), {"segment_length": 501}, UserError, "500 steps"),
        (lambda: gymnasium.make("CartPole-v1"), {"synthetic_prefs": False}, UserError, "render_mode='rgb_array'"),
    ]
    for make, arguments, error, words in refusals:
        with pytest.raises(error, match=words):
            HumanPreferencesVectorEnv(SyncVectorEnv([make] * 2), **arguments)
    assert not multiprocessing.active_children()
    envs = HumanPreferencesVectorEnv(SyncVectorEnv([BrokenEnv] * 2), **NOBODY)
    envs.reset()
    envs.step(np.zeros(2, np.int64))
    envs.step(np.zeros(2, np.int64))
    with pytest.raises(SpaceError, match=r"Box.*NaN or infinity"):
        envs.step(np.zeros(2, np.int64))
    envs.close()
    with pytest.raises(UserError, match="closed: make a new one"):
        envs.step(np.zeros(2, np.int64))


def test_an_environment_for_another_wrapper_is_refused_with_the_right_one() -> None:
    sb3 = pytest.importorskip("stable_baselines3.common.vec_env")
    one, many = gymnasium.make("CartPole-v1"), gymnasium.make_vec("CartPole-v1", num_envs=2)
    theirs = sb3.DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
    wrappers: list[tuple[Any, list[Any]]] = [
        (HumanPreferencesEnvWrapper, [many, theirs, "CartPole-v1", LampEnv]),
        (HumanPreferencesVectorEnv, [one, theirs]),
        (drlhp.HumanPreferencesSB3VecEnv, [one, many]),
    ]
    for wrapper, wrong in wrappers:
        for env in wrong:
            with pytest.raises(UserError, match=f"^{wrapper.__name__} cannot wrap .*VectorEnv a gymnasium.vector"):
                wrapper(env, **NOBODY)


def test_each_environment_gets_an_action() -> None:
    envs = HumanPreferencesVectorEnv(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2), **NOBODY)
    envs.reset()
    with pytest.raises(UserError, match="step got 3 actions for 2 environments"):
        envs.step(np.zeros(3, np.int64))
    envs.close()


def test_no_use_after_close(cartpole: HumanPreferencesEnvWrapper) -> None:
    cartpole.reset()
    cartpole.close()
    cartpole.close()
    uses: list[Callable[[], Any]] = [
        cartpole.reset,
        lambda: cartpole.step(0),
        cartpole.switch_to_true_reward,
        cartpole.save_prefs,
        cartpole.save_reward_predictor,
        cartpole.stop_segment_collection,
    ]
    for use in uses:
        with pytest.raises(UserError, match="closed: make a new one"):
            use()


class BrokenEnv(gymnasium.Env[Any, Any]):
    """Observes NaN from its third step on."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.full(2, np.nan if self.steps == 3 else 0, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("transform", [None, np.negative])
def test_nan_is_refused_when_it_is_observed(transform: Any) -> None:
    wrapped = HumanPreferencesEnvWrapper(BrokenEnv(), **NOBODY, obs_transform_func=transform)
    wrapped.reset()
    wrapped.step(0)
    wrapped.step(0)
    with pytest.raises(SpaceError, match=r"Box.*NaN or infinity"):
        wrapped.step(0)
    wrapped.close()


class Board(gymnasium.Env[Any, Any]):
    """Draws what it is told to, always into the same memory."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (Gymnasium's interface)
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = "rgb_array"

    def __init__(self, picture: np.ndarray | None) -> None:
        self.picture = picture

    def render(self) -> Any:
        return self.picture


@pytest.mark.parametrize("shape", [(20, 30, 3), (20, 30, 4), (20, 30, 1), (20, 30)])
def test_people_see_what_was_drawn_at_each_step(shape: tuple[int, ...]) -> None:
    drawn = np.full(shape, 7, np.uint8)
    wrapped = HumanPreferencesEnvWrapper(Board(drawn), **NOBODY)
    first = wrapped.system.pictures.checked([wrapped.env.render()])
    drawn[:] = 9
    assert first.shape == (1, 20, 30, 3) and (first == 7).all()
    wrapped.close()


@pytest.mark.parametrize(
    "picture", [None, np.zeros((20, 30, 3)), np.zeros((3, 20, 30), np.uint8), np.zeros((9, 30, 3), np.uint8)]
)
def test_what_is_no_picture_is_not_shown_to_people(picture: Any) -> None:
    wrapped = HumanPreferencesEnvWrapper(Board(picture), **NOBODY)
    wrapped.system.pictures.checked([np.zeros((20, 30, 3), np.uint8)])
    with pytest.raises(UserError, match=r"render\(\) of Board returned .*let it return pictures \(H, W, 3\)"):
        wrapped.system.pictures.checked([wrapped.env.render()])
    wrapped.close()


def test_an_environment_that_cannot_draw_is_told_with_the_fix() -> None:
    """As MuJoCo's is where there is no display."""

    def render() -> Any:
        raise RuntimeError("an OpenGL platform library has not been loaded.\nBacktrace")

    board = Board(None)
    wrapped = HumanPreferencesEnvWrapper(board, **NOBODY)
    board.render = render  # type: ignore[method-assign]
    wrapped.system.pictures.n_watched = 1
    wrapped.system.before = np.zeros((1, 2), np.float32)
    with pytest.raises(
        UserError, match=r"Board cannot be drawn for people \(.* loaded\): .*MUJOCO_GL to egl or osmesa"
    ):
        wrapped.step(0)
    wrapped.close()


@pytest.mark.parametrize("n_envs", [1, 2])
def test_mujoco_without_a_display_is_told_when_the_wrapper_is_made(n_envs: int) -> None:
    program = f"""
import gymnasium, drlhp
if {n_envs} == 1:
    env, wrapper = gymnasium.make("Reacher-v5", render_mode="rgb_array"), drlhp.HumanPreferencesEnvWrapper
else:
    env = gymnasium.make_vec("Reacher-v5", {n_envs}, vectorization_mode="sync", render_mode="rgb_array")
    wrapper = drlhp.HumanPreferencesVectorEnv
try:
    wrapper(env, synthetic_prefs=False)
except drlhp.UserError as error:
    print(error)
"""
    environ = {**os.environ, "MUJOCO_GL": "glfw", "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    result = run_captured([sys.executable, "-c", program], DEADLINE, cwd=ROOT, env=environ)
    assert re.fullmatch(r"Reacher-v5 cannot be drawn for people \(.*\): .*MUJOCO_GL.*\.\n", result.stdout), result
    assert not result.stderr


def test_a_function_that_cannot_be_copied_transforms_all_the_same() -> None:
    class Reader:
        def __init__(self) -> None:
            self.mine = threading.Lock()

        def read(self, observation: Any) -> Any:
            return observation

    wrapped = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), **NOBODY, obs_transform_func=Reader().read)
    assert wrapped.reset(seed=0)[0].shape == (4,)
    wrapped.close()


def test_stable_baselines3_learns_from_predicted_rewards(tmp_path: Path) -> None:
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.env_checker import check_env as check_env_of_sb3
    from stable_baselines3.common.vec_env import DummyVecEnv

    predictor_for(gymnasium.make("CartPole-v1"), tmp_path, "CartPole-v1")
    settings: dict[str, Any] = {**NOBODY, "pretrained_reward_predictor_dir": tmp_path}
    venv = drlhp.HumanPreferencesSB3VecEnv(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * 2), **settings)
    model = stable_baselines3.PPO("MlpPolicy", venv, n_steps=32, batch_size=32, n_epochs=1)
    model.learn(64)
    rewards = model.rollout_buffer.rewards
    assert rewards.shape == (32, 2) and len(np.unique(rewards)) > 10  # the true ones are all 1
    venv.close()
    single = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), **settings)
    check_env_of_sb3(single)
    stable_baselines3.A2C("MlpPolicy", single, n_steps=8).learn(32)
    single.close()


def test_each_environment_of_stable_baselines3_is_told_its_own_reward(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import DummyVecEnv

    class OneInfo(DummyVecEnv):
        """Gives one info for all, as some environments do that are many at once."""

        def step_wait(self) -> Any:
            observations, rewards, dones, _ = super().step_wait()
            return observations, rewards + np.arange(2), dones, [{}] * 2

    predictor_for(gymnasium.make("CartPole-v1"), tmp_path, "CartPole-v1")
    settings: dict[str, Any] = {**NOBODY, "pretrained_reward_predictor_dir": tmp_path}
    venv = drlhp.HumanPreferencesSB3VecEnv(OneInfo([lambda: gymnasium.make("CartPole-v1")] * 2), **settings)
    venv.seed(0)
    venv.reset()
    venv.step(np.array([0, 1]))
    _, rewards, _, infos = venv.step(np.array([0, 1]))
    assert [info["true_reward"] for info in infos] == [1, 2]
    assert [info["predicted_reward"] for info in infos] == pytest.approx(rewards.tolist()) and rewards[0] != rewards[1]
    venv.close()


def lazy(observation_shape: tuple[int, ...]) -> torch.nn.Module:
    """A network whose layers find out by themselves how many inputs they have."""
    return torch.nn.Sequential(torch.nn.LazyLinear(16), torch.nn.ReLU())


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("network", [Waves, lazy])
def test_a_network_of_ones_own_is_trained_saved_and_loaded(tmp_path: Path, network: Any) -> None:
    env = gymnasium.make("CartPole-v1")
    predictor = predictor_for(env, tmp_path, "CartPole-v1", network=network)
    settings: dict[str, Any] = {**NOBODY, "pretrained_reward_predictor_dir": tmp_path}
    with pytest.raises(CheckpointError, match="a network of its own: pass that"):
        HumanPreferencesEnvWrapper(env, **settings)
    wrapped = HumanPreferencesEnvWrapper(env, network, **settings)
    before, _ = wrapped.reset(seed=1)
    _, reward, _, _, _ = wrapped.step(1)
    assert reward == pytest.approx(float(predicted_reward(predictor, before[None], np.array([1]))[0]))
    wrapped.close()


def test_the_predictors_settings_can_all_be_chosen() -> None:
    config = replace(drlhp.PredictorConfig(), ensemble_size=2, dropout=0.5)
    chosen = Settings(reward_predictor_network=config, reward_predictor_ckpt_interval=7).predictor_config("vector")
    assert (chosen.ensemble_size, chosen.dropout, chosen.reward_predictor_ckpt_interval) == (2, 0.5, 7)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ensemble_size", 0, "a whole number, 1 or more, not 0"),  # whose rewards were NaN
        ("label_batch_size", 1.5, "a whole number, 1 or more, not 1.5"),
        ("reward_std", 0, "a number above 0, not 0"),
        ("reward_predictor_learning_rate", "1e-3", "a number above 0, not '1e-3'"),
        ("dropout", 2.0, "a number, at least 0 and below 1, not 2.0"),
        ("label_error_rate", np.nan, "a number, at least 0 and below 1, not nan"),
        ("l2", "adaptiv", "'adaptive' or a number, 0 or more and finite, not 'adaptiv'"),
        ("reward_predictor_network", "rnn", "'cnn' or 'feature_points', not 'rnn'"),
    ],
)
def test_settings_of_the_predictor_that_cannot_work_are_refused(name: str, value: Any, words: str) -> None:
    config = replace(drlhp.PredictorConfig(), **{name: value})
    with pytest.raises(UserError, match=f"^{name} must be {words}\\.$"):
        HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), config, **NOBODY)


def test_numpys_numbers_among_the_predictors_settings_can_be_saved_and_loaded(tmp_path: Path) -> None:
    env = gymnasium.make("CartPole-v1")
    numbers: dict[str, Any] = {"reward_std": np.sqrt(4.0), "ensemble_size": np.int64(2)}
    config = replace(drlhp.PredictorConfig(), **numbers)
    predictor_for(env, tmp_path, "CartPole-v1", network=config)
    wrapped = HumanPreferencesEnvWrapper(env, config, **NOBODY, pretrained_reward_predictor_dir=tmp_path)
    assert wrapped.using_reward_from_predictor
    wrapped.close()
