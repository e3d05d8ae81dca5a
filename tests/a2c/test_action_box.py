"""Continuous actions of any box: stretched from the policy's unit, and what was trained before stays as it was."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from a2c.action_box import action_box
from a2c.config import PolicyConfig
from a2c.learner import RolloutLearner
from a2c.model import Policy
from drlhp.runtime import checkpoint
from drlhp.runtime.run_files import EVALUATIONS
from envs import EnvInfo, env_info, make_vec_env
from envs.bodies import TASKS
from tests.support.commands import SYNC, here, progress


class Heater(gymnasium.Env):
    """Heats with 30 to 1017 watts, of which 800 are best; a second action has no effect."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(np.array([30, -1], np.float32), np.array([1017, 1], np.float32))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action)
        self.steps += 1
        return np.zeros(1, np.float32), -abs(float(action[0]) - 800) / 500, False, self.steps == 20, {}


@pytest.fixture(scope="module")
def info() -> EnvInfo:
    if "Heater-v0" not in gymnasium.registry:
        gymnasium.register("Heater-v0", entry_point="tests.a2c.test_action_box:Heater")
    return env_info("Heater-v0")


def of_box(low: float, high: float) -> EnvInfo:
    """Pendulum's facts with another box of actions."""
    info = env_info("Pendulum-v1")
    return EnvInfo(**{**vars(info), "action_bounds": ((low,), (high,))})


def observations(n: int) -> np.ndarray:
    return np.zeros((n, 1), np.float32)


def test_the_first_actions_of_a_far_box_lie_around_its_middle(info: EnvInfo) -> None:
    policy = Policy(info, "nature")
    actions, log_probs, _ = policy.act(observations(1000), policy.noise(1000))
    assert actions.mean(0) == pytest.approx([523.5, 0], abs=60) and 400 < actions[:, 0].std() < 600
    means = policy.act(observations(1), None)[0]
    assert means[0] == pytest.approx([523.5, 0], abs=20)
    judged = policy.evaluate(torch.from_numpy(observations(1000)), torch.from_numpy(actions))
    np.testing.assert_allclose(judged.log_probs.detach(), log_probs, atol=1e-4)
    with closing(make_vec_env("Heater-v0", 2, seed=0, in_process=True)) as env:
        env.reset()
        env.step(actions[:2])  # within the bounds, as the environment checks


@pytest.mark.parametrize(
    ("low", "high", "stretched"),
    [
        *((-high, high, False) for high in (0.25, 0.4, 1, 2, 3, 4)),
        *((-high, high, True) for high in (0.001, 0.1, 5, 1000)),
        *((low, high, True) for low, high in ((0, 1), (30, 1017), (-3, 200), (-1, 0), (0, 0.5))),
        *((low, high, False) for low, high in ((-np.inf, np.inf), (0, np.inf), (-3.4e38, 3.4e38))),
    ],
)
def test_which_boxes_are_far(low: float, high: float, stretched: bool) -> None:
    box = action_box(of_box(low, high))
    assert (box is not None) == stretched
    if box is not None:
        ends = box(torch.tensor([[-1.0], [0.0], [1.0]])).flatten().tolist()
        assert ends == pytest.approx([low, (low + high) / 2, high], rel=1e-5, abs=1e-6)


def test_no_body_is_changed() -> None:
    """Recorded results and checkpoints are of policies that act in the bodies' own units."""
    bodies = {task.gymnasium_id for task in TASKS.values()} | {"Humanoid-v5", "Pusher-v5"}
    for env_id in (*TASKS, *bodies, "Pendulum-v1", "MountainCarContinuous-v0"):
        info = env_info(env_id)
        assert action_box(info) is None and not [name for name in Policy(info, "nature").state_dict() if "box" in name]


def test_a_policy_of_an_older_checkpoint_keeps_its_unit(info: EnvInfo, tmp_path: Path) -> None:
    torch.manual_seed(0)
    policy = Policy(info, "nature")
    older = {name: value for name, value in policy.state_dict().items() if not name.startswith("box.")}
    noise = policy.noise(3)
    stretched = policy.act(observations(3), noise)[0]
    for round_trip in (older, policy.state_dict()):  # the second is saved by this version after it went on
        checkpoint.fill(policy, {name: value.clone() for name, value in round_trip.items()}, tmp_path)
        if round_trip is older:
            unit = policy.act(observations(3), noise)[0]
            assert np.abs(unit).max() < 10
        np.testing.assert_array_equal(policy.act(observations(3), noise)[0], unit)
    np.testing.assert_allclose(unit * [493.5, 1] + [523.5, 0], stretched, rtol=1e-4)
    RolloutLearner(info, PolicyConfig(), policy).begin_anew()
    assert np.abs(policy.act(observations(3), noise)[0]).max() < 10


def test_a_run_acts_within_a_far_box(info: EnvInfo, tmp_path: Path) -> None:
    """Without the box every action was clipped to 30, and every return was -30.8."""
    words = ("train_policy_with_original_rewards", "Heater-v0", SYNC, "--n_envs", "1", "--eval_episodes", "1")
    here(tmp_path, *words, "--million_timesteps", "0.001", "--n_steps", "250")
    (folder,) = tmp_path.iterdir()
    assert float(progress(folder)[-1]["episode_return"]) > -20
    (evaluation, *_) = EVALUATIONS.read_to_go_on(folder)
    assert float(evaluation["mean"]) > -20
