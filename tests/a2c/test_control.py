"""Continuous control as a whole: PPO learns, alone and in a crew, and goes on from a checkpoint."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

import a2c.worker
from a2c.model import Policy
from a2c.worker import PolicyWorker, WorkerSpec
from commands.flags import parse
from drlhp.runtime.channels import Channels, drain
from drlhp.runtime.weights import WeightsBoard
from envs import EnvError
from reward_predictor import MemberRewards, PredictorCopy, PredictorCopySpec, PredictorInputs, RewardPredictor
from tests.support.commands import BRIEF_PPO

PENDULUM = "InvertedPendulum-v1"
ALONE = ("--n_envs", "1", *BRIEF_PPO)  # where neither their number nor how well the policy learns is the point


@dataclass(frozen=True)
class Built:
    """The spec of a copy that was built already."""

    rewarder: PredictorCopy

    def build(self) -> PredictorCopy:
        return self.rewarder


def worker(
    folder: Path,
    million_timesteps: float,
    *flags: str,
    resume: bool = False,
    rewarder: PredictorCopy | None = None,
    env_id: str = PENDULUM,
    channels: Channels | None = None,
    clip_steps: int | None = None,
) -> PolicyWorker:
    words = ["train_policy_with_original_rewards", env_id, "--million_timesteps", str(million_timesteps), *flags]
    config = replace(parse(words).policy, eval_interval_million_timesteps=0)
    channels = channels or Channels.create(synchronous=True, take_turns=False)
    spec = WorkerSpec(env_id, config, folder, 0, Built(rewarder) if rewarder else None, resume=resume)
    return PolicyWorker(replace(spec, clip_steps=clip_steps), channels)


def untrained() -> PredictorCopy:
    """The policy's copy of a predictor for the pendulum that has published nothing yet."""
    config = parse(["train_policy_with_preferences", PENDULUM]).predictor
    inputs = PredictorInputs("vector", (4,), None, 1)
    return PredictorCopySpec(inputs, config, WeightsBoard(RewardPredictor(inputs, config), None)).build()


def test_the_rest_of_an_episode_that_began_in_its_middle_is_not_counted_as_one(tmp_path: Path) -> None:
    begun = worker(tmp_path, 0.03)
    rollout, _ = begun.runner.collect()
    ended = rollout.terminated | rollout.truncated
    assert ended[:25].sum(0).tolist() == [1] * ended.shape[1], "an episode lasts for 25 steps"
    assert begun.runner.n_episodes == ended.sum() - (ended.shape[1] - 1)
    begun.close()


def test_a_policy_waits_while_the_trainer_is_behind(tmp_path: Path) -> None:
    rewarder = untrained()
    rewarder.board.publish(rewarder.predictor)
    channels = Channels.create(synchronous=True, take_turns=False)
    begun = worker(tmp_path, 0.03, *ALONE, rewarder=rewarder, channels=channels)
    channels.behind.set()
    assert not begun.step() and begun.steps == 0
    channels.behind.clear()
    assert begun.step() and begun.steps > 0
    begun.close()


def test_actions_begin_with_the_deviation_that_was_asked_for(tmp_path: Path) -> None:
    begun = worker(tmp_path, 0.03, "--init_noise_std", "0.2")
    rollout, _ = begun.runner.collect()
    assert rollout.actions.std() == pytest.approx(0.2, rel=0.1)
    begun.close()


def test_a_policy_that_is_reset_begins_anew_once_and_acts_so(tmp_path: Path) -> None:
    flags = ("--n_envs", "8", "--n_steps", "64", "--init_noise_std", "0.2", "--policy_reset_million_timesteps", "0.001")
    begun = worker(tmp_path, 0.03, *flags)
    begun.step()
    assert isinstance(begun.policy, Policy)
    learned = begun.policy.body.state_dict()
    learned = {name: weights.clone() for name, weights in learned.items()}
    assert begun.policy.log_std is not None and begun.learner.units.rollouts == 1 and begun.steps < 1000
    with torch.no_grad():
        begun.policy.log_std.add_(3)
    begun.step()
    assert 1000 < begun.steps <= 1024 and begun.updates == 2, "the training goes on"
    assert begun.learner.units.rollouts == 0 and not begun.learner.optimizer.state, (
        "nothing is left of what was learned"
    )
    assert not any(torch.equal(weights, learned[name]) for name, weights in begun.policy.body.state_dict().items())
    assert begun.runner.collect()[0].actions.std() == pytest.approx(0.2, rel=0.2)
    begun.close()
    resumed = worker(tmp_path, 0.03, *flags, resume=True)
    for rollouts in (1, 2):
        resumed.step()
        assert resumed.learner.units.rollouts == rollouts and resumed.learner.optimizer.state, (
            "and it is not reset again"
        )
    resumed.close()


def test_a_point_of_the_curves_is_a_mean_also_where_a_run_was_resumed_between_two(tmp_path: Path) -> None:
    begun = worker(tmp_path, 0.03, *ALONE, "--log_interval", "4")
    for _ in range(6):
        begun.step()
    begun.close()
    resumed = worker(tmp_path, 0.03, *ALONE, "--log_interval", "4", resume=True)
    for _ in range(2):
        resumed.step()
    resumed.close()
    events = EventAccumulator(str(tmp_path / "events" / "a2c"))
    events.Reload()
    first, second = (point.value for point in events.Scalars("policy/entropy"))
    assert second == pytest.approx(first, rel=0.3)


def test_an_action_beyond_its_bounds_is_rewarded_as_what_it_comes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pendulum's motor does no more than 3; else the policy could earn more by asking for more in vain."""
    copy, rewarded = untrained(), list[Tensor]()
    copy.board.publish(copy.predictor)
    predict = copy.member_rewards

    def noted(observations: Tensor, actions: Tensor) -> MemberRewards:
        rewarded.append(actions)
        return predict(observations, actions)

    monkeypatch.setattr(copy, "member_rewards", noted)
    trained = worker(tmp_path, 0.03, *ALONE, rewarder=copy)
    assert isinstance(trained.policy, Policy) and trained.policy.log_std is not None
    with torch.no_grad():
        trained.policy.log_std.add_(3)
    trained.step()
    assert np.abs(trained.runner.rollout.actions).max() > 10, "what the policy learns from is what it chose"
    assert torch.cat(rewarded).abs().max() == 3
    trained.close()


def test_the_critic_of_another_run_tells_true_rewards_in_the_units_it_learned_them_in(tmp_path: Path) -> None:
    """What is predicted is of another scale in each run."""
    known = untrained()
    known.board.publish(known.predictor)
    known.normaliser = known.predictor.mean, known.predictor.std
    for source, rewarder in (("true", None), ("predicted", known)):
        begun = worker(tmp_path / source, 0.03, *ALONE, rewarder=rewarder)
        begun.step()
        begun.close()
        for name, taken_over in (("a", source == "true"), ("b", False)):
            flags = (*ALONE, "--load_policy_ckpt_dir", str(tmp_path / source))
            loaded = worker(tmp_path / name, 0.03, *flags, rewarder=None if name == "a" else untrained())
            assert (loaded.learner.units.state() == begun.learner.units.state()) == taken_over
            assert loaded.learner.units.rollouts == int(taken_over)
            loaded.close()


def test_a_run_without_labels_ends_where_no_episode_is_long_enough_for_a_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for ever; with labels from elsewhere it needs no clips."""
    for labels, clip_steps in ((0, 52), (0, 50), (1, 52)):
        channels = Channels.create(synchronous=True, take_turns=False)
        channels.n_labels.value = labels
        given = {"rewarder": untrained(), "channels": channels, "clip_steps": clip_steps}
        begun = worker(tmp_path, 0.03, "--n_envs", "64", *BRIEF_PPO, **given)  # type: ignore[arg-type]
        hopeless = pytest.raises(EnvError, match=r"^none of \d{4} episodes of .* half of --clip_steps 52, .* fewer\.$")
        with hopeless if (labels, clip_steps) == (0, 52) else contextlib.nullcontext():
            while begun.runner.n_episodes < a2c.worker.EPISODES_IN_VAIN + 50:  # of 25 steps each
                begun.step()
                drain(channels.segments)
        begun.close()
        monkeypatch.setattr("a2c.worker.EPISODES_IN_VAIN", 100)  # enough to see that the others go on


class FaultyEnv(gymnasium.Env):
    """From its 200th step on it shows and gives what is here."""

    observation_space, action_space = Box(-np.inf, np.inf, (2,), np.float64), Box(-1, 1, (1,), np.float32)

    def __init__(self, shown: float, reward: float) -> None:
        self.steps, self.shown, self.reward = 0, shown, reward

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(2), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        faulty = self.steps >= 200
        shown = np.array([0.5, self.shown if faulty else 0.0])
        return shown, self.reward if faulty else 1.0, False, self.steps % 20 == 0, {}


@pytest.mark.parametrize(
    ("shown", "reward", "reason"),
    [
        (np.inf, 1.0, "an observation"),
        (np.nan, 1.0, "an observation"),
        (1e300, 1.0, "an observation"),  # beyond float32
        (0.0, np.nan, "a reward"),
        (0.0, -np.inf, "a reward"),
    ],
)
def test_what_is_not_finite_ends_the_run_and_not_the_policy(
    shown: float, reward: float, reason: str, tmp_path: Path
) -> None:
    """Of one such number all weights became NaN, and the run went on to its end without a word."""
    faulty = {"shown": shown, "reward": reward}
    gymnasium.register("Faulty-v0", entry_point="tests.a2c.test_control:FaultyEnv", kwargs=faulty)
    try:
        begun = worker(tmp_path, 0.01, *ALONE, env_id="Faulty-v0")
        begun.step()
        with np.errstate(over="ignore"), pytest.raises(EnvError, match=rf"^{reason} of Faulty-v0 .* fix the envir"):
            begun.step()
        assert all(bool(weights.isfinite().all()) for weights in begun.policy.parameters()) and begun.updates == 1
        begun.close()
    finally:
        del gymnasium.registry["Faulty-v0"]


@pytest.mark.slow
def test_ppo_learns_to_balance_with_the_defaults_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Of 25 steps rewarded by 1 less the squared angle an untrained policy gets far less than 20."""
    begun = worker(tmp_path, 0.03)
    begun.step()
    first = float(np.mean(begun.runner.finished_returns))
    learned = first
    while not begun.finished and learned <= 24:
        begun.step()
        learned = float(np.mean(begun.runner.finished_returns))
    begun.close()
    assert first < 20 < 24 < learned <= 25
    resumed = worker(tmp_path, 0.04, resume=True)
    assert (
        resumed.learner.units.state() == begun.learner.units.state() and begun.learner.units.rollouts == begun.updates
    )
    assert resumed.runner.true_reward_total == begun.runner.true_reward_total > 0.6 * begun.steps
    for ours, theirs in zip(resumed.policy.state_dict().values(), begun.policy.state_dict().values(), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert isinstance(resumed.policy, Policy) and resumed.policy.statistics is not None
    assert int(resumed.policy.statistics.count) == resumed.steps
    resumed.close()
