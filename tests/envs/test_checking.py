"""Environments that break Gymnasium's interface are told before a run folder is made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from envs import check_env, env_info
from tests.support.commands import refused

OBSERVATION = np.zeros(2, np.float32)


class Scripted(gymnasium.Env):
    """Returns what it is told to."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)

    def __init__(self, reset: Any = (OBSERVATION, {}), step: Any = (OBSERVATION, 1.0, False, False, {})) -> None:
        self.answers = reset, step

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return self.answers[0]

    def step(self, action: int) -> Any:
        return self.answers[1]


class Seedless(Scripted):
    """Has a reset of the old interface."""

    def reset(self) -> Any:  # type: ignore[override]
        return OBSERVATION


class Faulty(Scripted):
    """Fails in its first step."""

    def step(self, action: int) -> Any:
        return dict[str, Any]()["speed"]


@pytest.fixture
def scripted() -> Iterator[Any]:
    def registered(env: str = "Scripted", **kwargs: Any) -> str:
        gymnasium.register("Scripted-v0", entry_point=f"tests.envs.test_checking:{env}", kwargs=kwargs)
        return "Scripted-v0"

    env_info.cache_clear()
    yield registered
    del gymnasium.registry["Scripted-v0"]
    env_info.cache_clear()


def step(**changed: Any) -> tuple[Any, ...]:
    """Five values of a step, some of them changed."""
    values = {"observation": OBSERVATION, "reward": 1.0, "terminated": False, "truncated": False, "info": {}}
    return tuple({**values, **changed}.values())


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (r"reset\(\) of Scripted-v0 returns ndarray of shape \(2,\), not .*: port it", {"reset": OBSERVATION}),
        (r"reset\(\) of Scripted-v0 returns 3 values", {"reset": (OBSERVATION, 0.0, {})}),
        (r"returns 2 values, not an observation and a dict", {"reset": (OBSERVATION, None)}),
        (r"reset\(\) .* fails \(TypeError: .*'seed'", {"env": "Seedless"}),
        (r"has shape \(1, 2\), not \(2,\): fix its observation_space", {"reset": (np.zeros((1, 2)), {})}),
        (r"has shape \(3,\), not \(2,\)", {"step": step(observation=np.zeros(3))}),
        (r"has shape \(\), not \(2,\)", {"step": step(observation=None)}),
        (r"NaN or infinity", {"step": step(observation=np.array([0, np.nan]))}),
        (r"step\(\) of Scripted-v0 returns 4 values, not .*: port it", {"step": (OBSERVATION, 1.0, False, {})}),
        (r"step\(\) of Scripted-v0 fails \(KeyError: 'speed'\): fix it", {"env": "Faulty"}),
        (r"returns ndarray of shape \(1,\) for its reward: .* one finite number", {"step": step(reward=np.ones(1))}),
        (r"returns ndarray of shape \(2,\) for its reward", {"step": step(reward=np.ones(2))}),
        (r"returns \[1.0\] for its reward", {"step": step(reward=[1.0])}),
        (r"returns None for its reward", {"step": step(reward=None)}),
        (r"returns nan for its reward", {"step": step(reward=float("nan"))}),
        (r"returns '1' for its reward", {"step": step(reward="1")}),
        (r"returns None for its truncated: let it return one bool", {"step": step(truncated=None)}),
        (r"returns ndarray of shape \(1,\) for its terminated", {"step": step(terminated=np.zeros(1, np.bool_))}),
    ],
)
def test_a_broken_interface_is_told_in_one_sentence(
    words: str, env: dict[str, Any], scripted: Any, tmp_path: Path
) -> None:
    arguments = ("train_policy_with_preferences", scripted(**env), "--synthetic_prefs")
    message = refused(tmp_path, *arguments)
    assert re.search(words, message), message
    assert not list(tmp_path.iterdir()), "no run folder"


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"reset": (OBSERVATION.astype(np.float64) + 2, {})},  # beyond the bounds, and of another type
        {"reset": ([0.0, 0.0], {})},
        {"step": step(reward=np.float32(2), terminated=np.bool_(True), truncated=0)},
        {"step": step(reward=np.array(2), terminated=True)},
    ],
)
def test_what_works_is_let_through(env: dict[str, Any], scripted: Any) -> None:
    check_env(scripted(**env))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Hopper", "PongNoFrameskip-v4"])
def test_good_environments_pass(env_id: str) -> None:
    check_env(env_id)
