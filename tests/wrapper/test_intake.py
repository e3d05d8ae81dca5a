"""What environments of other projects return is taken in right, or refused in one sentence."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper

import drlhp
from drlhp import HumanPreferencesEnvWrapper, HumanPreferencesVectorEnv, UserError
from drlhp.wrapper.intake import as_numpy
from tests.support.foreign_envs import Counting, OfSuperSuit, same
from tests.wrapper.test_wrappers import NOBODY, predictor_for

NEXT, SAME = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP


class One(gymnasium.Env[Any, Any]):
    """Observes the time, and is rewarded by it; an episode has fifty steps."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.t += 1
        return np.full(2, self.t / 50, np.float32), float(self.t), self.t == 50, False, {}


@pytest.fixture
def pretrained(tmp_path: Path) -> dict[str, Any]:
    """The arguments of a wrapper with a predictor for `Counting`, and with nothing beside it."""
    env = gymnasium.Env[Any, Any]()
    env.observation_space, env.action_space = Box(-100, 100, (2,)), Discrete(3)
    for name in ("Counting", "walkers_v0"):
        predictor_for(env, tmp_path / name, name)
    return {**NOBODY, "segment_length": 4, "pretrained_reward_predictor_dir": tmp_path / "Counting"}


def rewards_of(envs: HumanPreferencesVectorEnv) -> tuple[np.ndarray, int]:
    """The rewards of 24 steps, and how many segments these made."""
    envs.reset()
    rewards = [envs.step(np.array([0, 2]))[1] for _ in range(24)]
    envs.close()
    return np.array([as_numpy(each) for each in rewards]), envs.segments_collected


@pytest.mark.parametrize("mode", [NEXT, SAME])
@pytest.mark.parametrize(
    ("flags", "numbers"),
    [
        (lambda flags: flags.astype(np.uint8), same),
        (lambda flags: flags.astype(np.int64), same),
        (lambda flags: flags.astype(np.float32), same),
        (lambda flags: flags.astype(object), lambda numbers: numbers.astype(object)),
        (lambda flags: flags[:, None], same),
        (np.ndarray.tolist, np.ndarray.tolist),
        (torch.from_numpy, torch.from_numpy),
        (lambda flags: torch.from_numpy(flags).byte(), lambda numbers: torch.from_numpy(numbers).bfloat16()),
        (torch.from_numpy, lambda numbers: list(torch.from_numpy(numbers).requires_grad_())),
    ],
)
def test_flags_rewards_and_observations_of_any_kind(
    mode: AutoresetMode, flags: Any, numbers: Any, pretrained: dict[str, Any]
) -> None:
    """Signs and sizes of rewards, and segments, are those of an environment of bools and NumPy."""
    expected, n_segments = rewards_of(HumanPreferencesVectorEnv(Counting(mode, mode), **pretrained))
    rewards, n = rewards_of(HumanPreferencesVectorEnv(Counting(mode, mode, flags, numbers), **pretrained))
    np.testing.assert_allclose(np.asarray(rewards, np.float64), expected, rtol=0.02)
    assert n == n_segments == (8 if mode == NEXT else 10) and len(np.unique(rewards)) > 4
    untrained = HumanPreferencesVectorEnv(Counting(mode, mode, flags, numbers), **NOBODY)
    untrained.reset()
    info = untrained.step(np.zeros(2, np.int64))[4]
    assert info["true_reward"].tolist() == [1, 1] and info["true_reward"].dtype == np.float64


def test_an_environment_of_torch_gives_and_takes_tensors(pretrained: dict[str, Any]) -> None:
    """Its rewards stay tensors when they are predicted, and its dicts of observations are read."""
    envs = HumanPreferencesVectorEnv(Counting(flags=torch.from_numpy, numbers=torch.from_numpy), **pretrained)
    observations, _ = envs.reset()
    _, rewards, terminated, _, info = envs.step(torch.tensor([0, 2]))
    assert isinstance(observations, torch.Tensor) and isinstance(terminated, torch.Tensor)
    assert isinstance(rewards, torch.Tensor) and rewards.dtype == torch.float64
    assert rewards.tolist() == info["predicted_reward"].tolist() != info["true_reward"].tolist()
    envs.close()

    class Parts(VectorWrapper):
        """Observes a dict of tensors."""

        def __init__(self, env: Any) -> None:
            super().__init__(env)
            self.single_observation_space = Dict({"both": env.single_observation_space})
            self.observation_space = Dict({"both": env.observation_space})

        def reset(self, **arguments: Any) -> Any:
            observations, info = self.env.reset(**arguments)
            return {"both": observations}, info

        def step(self, actions: Any) -> Any:
            observations, *rest = self.env.step(actions)
            return {"both": observations}, *rest

    expected, _ = rewards_of(HumanPreferencesVectorEnv(Counting(), **pretrained))
    parts = Parts(Counting(numbers=lambda numbers: torch.from_numpy(numbers).requires_grad_()))
    in_dicts = HumanPreferencesVectorEnv(parts, **pretrained, obs_transform_func=lambda observed: observed["both"])
    np.testing.assert_array_equal(rewards_of(in_dicts)[0], expected)


def test_one_environment_of_torch() -> None:
    class Torch(One):
        def reset(self, **_: Any) -> Any:
            observation, info = super().reset()
            return torch.from_numpy(observation), info

        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, info = super().step(action)
            return torch.from_numpy(observation), torch.tensor(reward), torch.tensor(terminated), truncated, info

    env = HumanPreferencesEnvWrapper(Torch(), **NOBODY, segment_length=10)
    env.reset()
    for t in range(1, 51):
        observation, _, terminated, _, info = env.step(torch.tensor(2))
        assert info["true_reward"] == t and bool(terminated) == (t == 50)
    assert isinstance(observation, torch.Tensor) and env.segments_collected == 5
    env.close()


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        (0, np.zeros((2, 3), np.float32), r"an observation of shape \(3,\) came from"),
        (0, np.zeros((3, 2), np.float32), "3 observations came from the 2 environments"),
        (0, None, "an observation is not of Box"),
        (0, np.full((2, 2), np.nan), "holds NaN or infinity"),
        (0, [["a", "b"]] * 2, "an observation is not of Box"),
        (0, [[1.0, 2.0], [1.0]], "an observation is not of Box"),
        (1, None, "returned the reward None, not a number for each of 2 environments"),
        (1, 3.0, "returned the reward 3.0, not a number for each of 2"),
        (1, [1.0, [2.0]], "not a number for each of 2 environments"),
        (1, [1.0, None], r"returned the reward \[1.0, None\], not a number for each of 2"),
        (1, np.zeros((2, 2)), "not a number for each of 2 environments"),
        (1, ["1", "2"], "not a number for each of 2 environments"),
        (2, None, "returned the flag None, not True or False for each of 2"),
        (2, ["False", "False"], "not True or False for each of 2"),
        (2, [0.0, np.nan], "not True or False for each of 2"),
        (3, np.zeros(3, np.bool_), "not True or False for each of 2"),
        (4, 3, "as before Gymnasium 0.26: let reset return"),
    ],
)
def test_what_a_vector_environment_must_not_return(part: int, value: Any, words: str) -> None:
    class Broken(Counting):
        def step(self, actions: Any) -> Any:
            return tuple(value if i == part else returned for i, returned in enumerate(super().step(actions)))

    envs = HumanPreferencesVectorEnv(Broken(), **NOBODY)
    envs.reset()
    with pytest.raises(UserError, match=words) as told:
        envs.step(np.zeros(2, np.int64))
    assert re.fullmatch(r"[^\n]+: [^\n]+\.", str(told.value))
    envs.close()


def test_true_rewards_may_be_nan_if_no_teacher_compares_them(pretrained: dict[str, Any]) -> None:
    rewards, n_segments = rewards_of(HumanPreferencesVectorEnv(Counting(rewards=(np.nan,) * 5), **pretrained))
    assert np.isfinite(rewards).all() and n_segments == 10


@pytest.mark.parametrize("rewards", [(1.0, 2.0, 3.0, 4.0, 5.0), (0.0, 0.0, 0.0, 0.0, 1.0), (0.0,) * 5])
@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_how_an_environment_resets_is_found_out_if_it_does_not_say(
    mode: AutoresetMode, rewards: tuple[float, ...], pretrained: dict[str, Any]
) -> None:
    """No first step of an episode is lost, and no step that resets counts."""
    expected = rewards_of(HumanPreferencesVectorEnv(Counting(mode, mode, rewards=rewards), **pretrained))
    with pytest.warns(UserWarning, match=r"Counting does not say how it resets.*metadata\['autoreset_mode'\]") as told:
        envs = HumanPreferencesVectorEnv(Counting(mode, None, rewards=rewards), **pretrained)
    assert told[0].filename == __file__
    found = rewards_of(envs)
    np.testing.assert_array_equal(found[0], expected[0])
    assert found[1] == expected[1] and (found[0] == 0).any() == (mode == NEXT)


@pytest.mark.parametrize("says", ["NEXT_STEP", "NextStep", "next-step", "AutoresetMode.NEXT_STEP"])
def test_the_mode_of_resets_may_be_a_name(says: str, pretrained: dict[str, Any]) -> None:
    for mode, name in ((NEXT, says), (SAME, says.lower().replace("next", "same"))):
        expected = rewards_of(HumanPreferencesVectorEnv(Counting(mode, mode), **pretrained))
        found = rewards_of(HumanPreferencesVectorEnv(Counting(mode, name), **pretrained))
        np.testing.assert_array_equal(found[0], expected[0])
        assert found[1] == expected[1]
    with pytest.raises(UserError, match="Counting says that its autoreset mode is 'sometimes': let it be one of Auto"):
        HumanPreferencesVectorEnv(Counting(NEXT, "sometimes"), **pretrained)


def test_one_environment_that_resets_in_the_same_step_loses_no_step() -> None:
    class Resetting(One):
        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, info = super().step(action)
            return (super().reset()[0] if terminated else observation), reward, terminated, truncated, info

    env = HumanPreferencesEnvWrapper(Resetting(), **NOBODY, segment_length=10)
    env.reset()
    for _ in range(50):
        env.step(0)
    with pytest.warns(UserWarning, match="Resetting was stepped after the end of an episode") as told:
        env.step(0)
    assert told[0].filename == __file__
    for _ in range(99):
        env.step(0)
    assert env.segments_collected == 15
    env.close()


class Failing(One):
    """Raises at its 3rd step, once."""

    failed = False

    def step(self, action: Any) -> Any:
        if self.t == 2 and not self.failed:
            self.failed = True
            raise KeyboardInterrupt if action == 2 else ValueError("a rare bug")
        return super().step(action)


@pytest.mark.parametrize("action", [0, 2])
@pytest.mark.parametrize("kind", ["one", "many", "sb3"])
def test_no_segment_spans_a_step_that_raised(kind: str, action: int) -> None:
    """A program may go on after its environment's error, and a notebook after a Ctrl-C."""
    env: Any
    if kind == "one":
        env = HumanPreferencesEnvWrapper(Failing(), **NOBODY, segment_length=4)
    elif kind == "many":
        env = HumanPreferencesVectorEnv(SyncVectorEnv([Failing, One]), **NOBODY, segment_length=4)
    else:
        vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
        env = drlhp.HumanPreferencesSB3VecEnv(vec_env.DummyVecEnv([Failing, One]), **NOBODY, segment_length=4)
    env.reset()
    counts = []
    for _ in range(7):
        with contextlib.suppress(ValueError, KeyboardInterrupt):
            env.step(action if kind == "one" else np.full(2, action))
        counts.append(env.segments_collected)
    assert counts == [0, 0, 0, 0, 0, 0, env.system.n_envs]
    env.close()


def test_no_segment_spans_a_reset_that_raised_nor_an_observation_that_was_refused() -> None:
    class Odd(One):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            if options:
                raise OSError("no such level")
            return super().reset()

        def step(self, action: Any) -> Any:
            observation, *rest = super().step(action)
            return observation if self.t != 8 else observation * np.nan, *rest

    env = HumanPreferencesEnvWrapper(Odd(), **NOBODY, segment_length=4)
    env.reset()
    for _ in range(3):
        env.step(0)
    with pytest.raises(OSError, match="no such level"):
        env.reset(options={"level": 3})
    counts = []
    for _ in range(9):
        with contextlib.suppress(UserError):
            env.step(0)
        counts.append(env.segments_collected)
    assert counts == [0, 0, 0, 1, 1, 1, 1, 1, 2]
    env.close()


def test_vector_environments_as_supersuits(pretrained: dict[str, Any]) -> None:
    expected, n_segments = rewards_of(HumanPreferencesVectorEnv(Counting(), **pretrained))
    folder = pretrained["pretrained_reward_predictor_dir"].parent / "walkers_v0"
    with pytest.warns(UserWarning, match="walkers_v0 does not say how it resets"):
        envs = HumanPreferencesVectorEnv(OfSuperSuit(), **{**pretrained, "pretrained_reward_predictor_dir": folder})
    assert envs.system.info.env_id == "walkers_v0" and envs.single_action_space == Discrete(3)
    envs.reset()
    for t in range(24):
        _, rewards, terminated, _, infos = envs.step(np.array([0, 2]))
        np.testing.assert_array_equal(rewards, expected[t])
        assert terminated.dtype == np.uint8 and isinstance(infos, list)
        assert [info["predicted_reward"] for info in infos] == rewards.tolist()
        assert [info["true_reward"] for info in infos] == [1 + t % 5] * 2
    assert envs.segments_collected == n_segments
    envs.close()
    envs.close()


def test_vector_environments_as_supersuits_for_stable_baselines3(pretrained: dict[str, Any]) -> None:
    """They cannot be asked for any attribute."""
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import VecEnvWrapper

    class ForSB3(VecEnvWrapper):
        def __init__(self, venv: Any) -> None:
            self.venv = venv
            self.num_envs = venv.num_envs
            self.observation_space, self.action_space = venv.observation_space, venv.action_space
            self.render_mode = None
            self.reset_infos: list[dict[str, Any]] = []

        def reset(self) -> Any:
            return self.venv.reset()[0]

        def step_wait(self) -> Any:
            observations, rewards, terminated, truncated, infos = self.venv.step_wait()
            return observations, rewards, np.array([a or b for a, b in zip(terminated, truncated, strict=True)]), infos

        def getattr_depth_check(self, name: str, already_found: bool) -> Any:
            return None

        def get_attr(self, attr_name: str, indices: Any = None) -> Any:
            return self.venv.get_attr(attr_name)

    folder = pretrained["pretrained_reward_predictor_dir"].parent / "walkers_v0"
    venv = drlhp.HumanPreferencesSB3VecEnv(
        ForSB3(OfSuperSuit()), **{**pretrained, "pretrained_reward_predictor_dir": folder}
    )
    assert venv.system.info.env_id == "walkers_v0"
    stable_baselines3.PPO("MlpPolicy", venv, n_steps=12, batch_size=8, n_epochs=1, device="cpu").learn(24)
    assert venv.segments_collected == 4
    venv.close()


def test_supersuits_own_vector_environments() -> None:
    """Only if they are installed; their mirror above is always tested."""
    supersuit, pettingzoo = pytest.importorskip("supersuit"), pytest.importorskip("pettingzoo")
    stable_baselines3 = pytest.importorskip("stable_baselines3")

    class Walkers(pettingzoo.ParallelEnv):  # type: ignore[name-defined]
        metadata = {"name": "walkers_v0"}  # noqa: RUF012 (PettingZoo's interface)
        render_mode = None
        possible_agents = ["a", "b"]  # noqa: RUF012

        def observation_space(self, agent: str) -> Any:
            return Box(-100, 100, (2,), np.float32)

        def action_space(self, agent: str) -> Any:
            return Discrete(3)

        def reset(self, seed: Any = None, options: Any = None) -> Any:
            self.agents, self.t = self.possible_agents[:], 0
            return self.all_see(), {agent: {} for agent in self.agents}

        def all_see(self) -> Any:
            return {agent: np.array([i, self.t], np.float32) for i, agent in enumerate(self.possible_agents)}

        def step(self, actions: Any) -> Any:
            self.t += 1
            done, agents = self.t == 5, self.agents
            self.agents = [] if done else agents
            told = [dict.fromkeys(agents, value) for value in (float(self.t), done, False)]
            return self.all_see(), *told, {agent: {} for agent in agents}

    def made(base_class: str) -> Any:
        vector = supersuit.pettingzoo_env_to_vec_env_v1(Walkers())
        return supersuit.concat_vec_envs_v1(vector, 2, base_class=base_class)

    with pytest.warns(UserWarning, match="walkers_v0 does not say how it resets"):
        envs = HumanPreferencesVectorEnv(made("gymnasium"), **NOBODY, segment_length=4)
    envs.reset()
    for t in range(24):
        assert envs.step(np.zeros(4, np.int64))[1].tolist() == [1 + t % 5] * 4
    assert envs.segments_collected == 20
    envs.close()
    venv = drlhp.HumanPreferencesSB3VecEnv(made("stable_baselines3"), **NOBODY, segment_length=4)
    stable_baselines3.PPO("MlpPolicy", venv, n_steps=12, batch_size=8, n_epochs=1, device="cpu").learn(48)
    assert venv.system.info.env_id == "walkers_v0" and venv.segments_collected > 4
    venv.close()


class OldStep(One):
    """Its `step` is that of gym before 0.26."""

    def step(self, action: Any) -> Any:
        observation, reward, done, _, info = super().step(action)
        return observation, reward, done, info


class OldApi(OldStep):
    def reset(self, **_: Any) -> Any:
        return super().reset()[0]


class NoSeed(OldApi):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class NoObservation(One):
    def reset(self, **_: Any) -> Any:
        return None


class WrongReset(One):
    def reset(self, **_: Any) -> Any:
        return np.zeros((1, 2)), super().reset()[1]


class NoReward(One):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, None, *rest


class TwoRewards(One):
    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward, reward]), *rest


class InfoList(One):
    def step(self, action: Any) -> Any:
        *parts, info = super().step(action)
        return *parts, [info]


@pytest.mark.filterwarnings("ignore:.*WARN:")  # Gymnasium's own checker
@pytest.mark.parametrize("make", [OldStep, OldApi, NoSeed, NoObservation, WrongReset, NoReward, TwoRewards, InfoList])
def test_an_environment_with_another_interface_is_told_in_one_sentence(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it was made, and by whichever code its values are first taken in."""
    spec = gymnasium.envs.registration.EnvSpec("Faulty-v0", entry_point=make, max_episode_steps=50)
    monkeypatch.setitem(gymnasium.registry, "Faulty-v0", spec)
    ways: list[Callable[[], Any]] = [
        lambda: HumanPreferencesEnvWrapper(make(), **NOBODY),
        lambda: HumanPreferencesEnvWrapper(gymnasium.make("Faulty-v0"), **NOBODY),
    ]
    if make is not NoReward:  # NumPy makes NaN of None, which matters only to a synthetic teacher
        ways.append(lambda: HumanPreferencesVectorEnv(SyncVectorEnv([make] * 2), **NOBODY))
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    if make not in (NoReward, WrongReset):  # SB3 brings both to the right shape
        ways.append(lambda: drlhp.HumanPreferencesSB3VecEnv(vec_env.DummyVecEnv([make] * 2), **NOBODY))
    for way in ways:
        env = way()
        with pytest.raises(UserError) as told:
            env.reset()
            env.step(np.zeros(2, np.int64) if hasattr(env, "num_envs") else 0)
        assert re.fullmatch(r"[^\n]+: [^\n]+\.", str(told.value)), told.value


def test_an_environments_own_error_stays_what_it_is() -> None:
    class Mistaken(One):
        def step(self, action: Any) -> Any:
            return [][int(action)]

    env: Any
    for env, action in (
        (HumanPreferencesEnvWrapper(Mistaken(), **NOBODY), 0),
        (HumanPreferencesVectorEnv(SyncVectorEnv([Mistaken]), **NOBODY), np.zeros(1, np.int64)),
    ):
        env.reset()
        with pytest.raises(IndexError):
            env.step(action)


def test_an_argument_that_is_misspelt_is_told_with_the_nearest() -> None:
    one, many = gymnasium.make("CartPole-v1"), SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")])
    with pytest.raises(UserError, match=r"^HumanPreferencesEnvWrapper has no argument 'misspelt': the nearest is '"):
        HumanPreferencesEnvWrapper(one, misspelt=1)
    with pytest.raises(
        TypeError, match=r"HumanPreferencesVectorEnv.*'segment_lenght': the nearest is 'segment_length'"
    ):
        HumanPreferencesVectorEnv(many, segment_lenght=20)


@pytest.mark.filterwarnings("ignore:.*ERROR:")  # Gymnasium's own, about the worker
def test_a_wrapper_inside_gymnasiums_workers_is_told_by_the_first_reset(tmp_path: Path) -> None:
    def make() -> Any:
        return HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), train_reward=False, log_dir=tmp_path)

    for use in (AsyncVectorEnv.reset, lambda envs: envs.get_attr("using_reward_from_predictor")):
        envs = AsyncVectorEnv([make], context="fork")
        with pytest.raises(UserError, match="wrap the vector environment as a whole"):
            use(envs)
        envs.close(terminate=True)


def test_a_wrapper_inside_the_workers_of_stable_baselines3_is_told(tmp_path: Path) -> None:
    """Its caller saw an EOFError: of its workers it passes on what they send, and nothing of what they raise."""
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")

    def make() -> Any:
        env = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), train_reward=False, log_dir=tmp_path)
        return gymnasium.wrappers.TransformReward(env, float)

    with pytest.raises(UserError, match="wrap the vector environment as a whole"):
        vec_env.SubprocVecEnv([make], start_method="fork")
    assert not list(tmp_path.iterdir())


def test_a_worker_of_stable_baselines3_that_ends_in_its_first_reset_is_told() -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    envs = drlhp.HumanPreferencesSB3VecEnv(vec_env.SubprocVecEnv([NoObservation], start_method="fork"), **NOBODY)
    with pytest.raises(UserError, match="the first reset of NoObservation ended a worker, whose error stands above"):
        envs.reset()
    with contextlib.suppress(ConnectionError, EOFError):
        envs.close()
