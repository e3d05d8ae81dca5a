"""Films of evaluations: what they show, and that they leave no trace."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from a2c.config import PolicyConfig
from a2c.evaluation import SEED, Evaluator
from a2c.film import FRAMES_PER_SECOND, SECONDS, SIDE
from a2c.model import Policy
from drlhp.runtime.channels import Channels
from envs import EnvError, env_info, make_vec_env
from tests.support.commands import DOT, PONG, SYNC, TINY, UNEVALUATED, here

PENDULUM = "InvertedPendulum-v1"
TAG = "evaluation/deterministic_film"


def frames_of(gif: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The frames (T, H, W, 3) uint8, and when each begins, in seconds; equal neighbours are one frame."""
    with Image.open(io.BytesIO(gif)) as picture:
        assert picture.format == "GIF"
        shown, begins = [], [0.0]
        for i in range(getattr(picture, "n_frames", 1)):
            picture.seek(i)
            shown.append(np.asarray(picture.convert("RGB")))
            begins.append(begins[-1] + picture.info.get("duration", 0) / 1000)
    return np.stack(shown), np.array(begins[:-1])


def evaluator_of(folder: Path, env_id: str) -> tuple[Evaluator, Policy, Channels]:
    torch.manual_seed(3)
    info = env_info(env_id)
    evaluator = Evaluator(info, PolicyConfig(eval_episodes=1), folder)
    network: Any = "feature_points" if env_id in (DOT, PONG) else "nature"  # the fastest
    return evaluator, Policy(info, network), Channels.create(synchronous=True, take_turns=False)


@pytest.mark.parametrize("env_id", [DOT, PONG, PENDULUM])
def test_a_film_shows_how_the_first_evaluated_episode_began(
    tmp_path: Path, env_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation of this test is watched itself, at each step."""
    monkeypatch.setattr("a2c.film.LONGEST", 60.0)  # a busy machine plays too little of Pong in three seconds
    evaluator, policy, channels = evaluator_of(tmp_path, env_id)
    seen: list[np.ndarray] = []
    with closing(evaluator):
        try:
            env = make_vec_env(env_id, 1, SEED, n_watched=1, in_process=True, whole_games=True)
        except EnvError as error:  # no renderer for bodies here
            pytest.skip(str(error))
        evaluator._env = env
        step, longest = env.step, round(SECONDS * evaluator.info.fps) + 20

        def watched(actions: Any) -> Any:
            """Ends an episode soon after what is filmed of it."""
            seen.append(env.watch()[0].copy())
            *others, truncated, info = step(actions)
            return *others, truncated | (len(seen) % longest == 0), info

        env.step = watched  # type: ignore[method-assign]
        played = evaluator.evaluate(policy, channels, 0)
        film = evaluator.film()
    assert film is not None and played is not None
    seen = seen[: played["deterministic"].lengths[0]]  # the others are of the drawn actions' episode
    frames, begins = frames_of(film)
    assert max(frames.shape[1:3]) <= SIDE and len(film) < 200_000
    fps = evaluator.info.fps
    stride = math.ceil(fps / FRAMES_PER_SECOND)
    filmed = seen[: round(SECONDS * fps) : stride]
    for i, original in enumerate(filmed):
        frame = frames[np.searchsorted(begins, i * stride / fps + 0.02) - 1]
        assert np.abs(frame.astype(int) - original).mean() < 3
    assert begins[-1] < len(filmed) * stride / fps <= SECONDS
    assert len(frames) > (env_id == PONG) * 20, "it moves"


def test_a_film_changes_no_evaluation(tmp_path: Path) -> None:
    played = []
    for films in (True, False):
        evaluator, policy, channels = evaluator_of(tmp_path, DOT)
        with closing(evaluator):
            for steps in (0, 1):
                result = evaluator.evaluate(policy, channels, steps)
                assert result is not None
                played.append([(name, one.returns.tolist(), one.lengths.tolist()) for name, one in result.items()])
                random = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
                if films:
                    assert evaluator.film()
                assert torch.equal(torch.get_rng_state(), random[0])
                assert np.random.get_state()[1].tolist() == random[1]  # type: ignore[index]
    assert played[:2] == played[2:]


class Blind(gymnasium.Env):
    """Cannot be drawn; counts how often it was made."""

    made = 0

    def __init__(self, render_mode: str | None = None) -> None:
        type(self).made += 1
        if render_mode:
            raise RuntimeError("there is nothing to see")
        self.observation_space, self.action_space = Box(-1, 1, (2,)), Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 9
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.zeros(2, np.float32), float(action), not self.left, False, {}


@pytest.fixture
def blind() -> Iterator[str]:
    gymnasium.register("Blind-v0", f"{__name__}:Blind")
    yield "Blind-v0"
    del gymnasium.registry["Blind-v0"]


def test_what_cannot_be_drawn_has_no_film_and_is_evaluated_as_before(
    tmp_path: Path, blind: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    evaluator, policy, channels = evaluator_of(tmp_path, blind)
    with closing(evaluator):
        assert evaluator.evaluate(policy, channels, 0) and evaluator.film() is None
        n_made = Blind.made
        assert evaluator.evaluate(policy, channels, 1) and evaluator.film() is None
    assert Blind.made == n_made, "it is tried once"
    assert [record.getMessage() for record in caplog.records if "films" in record.getMessage()] == [
        "No films of evaluations: Blind-v0 cannot draw frames for people to watch: there is nothing to see"
    ]
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("short_episodes")
def test_tensorboard_has_a_film_of_each_evaluation(tmp_path: Path) -> None:
    words = ("train_policy_with_original_rewards", DOT, "--run_name", "a", *TINY[:2], *TINY[-4:], SYNC)
    here(tmp_path, *words, "--eval_interval_million_timesteps", "0.001")
    events = EventAccumulator(str(tmp_path / "a" / "events" / "a2c"), {"images": 0}).Reload()
    assert events.Tags()["images"] == [TAG]
    films = events.Images(TAG)
    assert [film.step for film in films] == [point.step for point in events.Scalars("evaluation/deterministic_mean")]
    for film in films:
        frames, _ = frames_of(film.encoded_image_string)
        assert (film.height, film.width) == frames.shape[1:3] == (210, 160)
    (first, *others) = (frames_of(film.encoded_image_string)[0][0] for film in films)
    assert others and all((first == other).all() for other in others), "each is of the same episode"


def test_without_evaluations_there_are_no_films(tmp_path: Path) -> None:
    words = ("train_policy_with_original_rewards", DOT, "--run_name", "a", *TINY[:2], *TINY[-2:], SYNC)
    here(tmp_path, *words, *UNEVALUATED)
    assert EventAccumulator(str(tmp_path / "a" / "events" / "a2c")).Reload().Tags()["images"] == []
