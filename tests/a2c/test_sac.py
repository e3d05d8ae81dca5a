"""Soft actor-critic: what is drawn, what the parts compute, that it learns, and whose rewards it learns from."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from a2c.config import SAC_DEFAULTS, PolicyConfig
from a2c.crew import Arena
from a2c.replay import Replay
from a2c.runner import Rollout
from a2c.sac import FIRST_STEPS, ReplayLearner
from a2c.squashed import SquashedPolicy
from commands.agent import Agent
from drlhp.runtime.weights import WeightsBoard
from envs import EnvInfo
from reward_predictor import PredictorConfig, PredictorCopy, PredictorInputs, RewardPredictor
from tests.a2c.test_control import worker

N_STEPS, N_ENVS, BOUNDS = 8, 4, ((-2.0, 0.0), (2.0, 1.0))
INFO = EnvInfo("Test-v0", "vector", (3,), None, 2, 5, 30.0, 1, (), None, (), {}, action_bounds=BOUNDS)
CONFIG = replace(
    PolicyConfig(algo="sac"),
    **{**SAC_DEFAULTS, "n_envs": N_ENVS, "n_steps": N_STEPS, "lr": 3e-3, "gamma": 0.5},  # type: ignore[arg-type]
)


def empty_rollout() -> Rollout:
    return Rollout.allocate(INFO, N_STEPS, N_ENVS, Arena(), channels_last=False)


def counted(start: int) -> Rollout:
    """Steps from this number on: observation and action tell the step and the environment; every seventh is a reset."""
    rollout = empty_rollout()
    steps = start + np.arange(N_STEPS + 1)
    rollout.observations[:, :, 0], rollout.observations[:, :, 1] = steps[:, None], np.arange(N_ENVS)
    rollout.actions[:, :, 0] = steps[:-1, None]
    rollout.valid[:] = steps[:-1, None] % 7 > 0
    rollout.terminated[:] = steps[:-1, None] % 7 == 6
    return rollout


def test_what_is_drawn_are_the_newest_steps_with_what_followed_and_no_resets() -> None:
    replay, kept = Replay(INFO, N_ENVS, 20 * N_ENVS), 19
    for n_rollouts in range(1, 9):
        start = (n_rollouts - 1) * N_STEPS
        replay.add(
            counted(start), torch.as_tensor(start + np.arange(N_STEPS, dtype=np.float32))[:, None].expand(-1, N_ENVS)
        )
        end = n_rollouts * N_STEPS
        drawn = replay.draw(4000)
        numbers, envs = drawn.observations[:, 0].long(), drawn.observations[:, 1].long()
        wanted = {(n, env) for n in range(max(0, end - kept), end) if n % 7 for env in range(N_ENVS)}
        assert set(zip(numbers.tolist(), envs.tolist(), strict=True)) == wanted
        assert torch.equal(drawn.following[:, 0].long(), numbers + 1)
        assert torch.equal(drawn.following[:, 1].long(), envs)
        assert torch.equal(drawn.actions[:, 0].long(), numbers) and torch.equal(drawn.rewards.long(), numbers)
        assert torch.equal(drawn.goes_on == 0, numbers % 7 == 6)
        restored = Replay(INFO, N_ENVS, 20 * N_ENVS)
        restored.restore(replay.snapshot())
        torch.manual_seed(n_rollouts)
        ours = replay.draw(100).columns()
        torch.manual_seed(n_rollouts)
        for one, other in zip(ours, restored.draw(100).columns(), strict=True):
            assert torch.equal(one, other)


def test_actions_are_within_their_bounds_and_as_probable_as_said() -> None:
    torch.manual_seed(0)
    policy = SquashedPolicy(INFO)
    with torch.no_grad():
        policy.actor.out.bias.uniform_(-0.5, 0.5)
    observations, noise = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32), policy.noise(500)
    actions, log_probs, _ = policy.act(observations, noise)
    low, high = np.array(BOUNDS)
    assert (actions >= low).all() and (actions <= high).all() and (actions.std(0) > 0.05 * (high - low)).all()
    with torch.no_grad():
        mean, spread = policy.actor(policy.reader(torch.from_numpy(observations)))[0].chunk(2, -1)
        std = torch.exp(-5 + 3.5 * (torch.tanh(spread) + 1))
        density = TransformedDistribution(Normal(mean, std), TanhTransform())
        unit = policy.unit_of(torch.from_numpy(actions)).double()
        inside = (unit.abs() < 0.999).all(1)  # beyond, its inverse rounds
        wanted = density.log_prob(unit.float()).sum(-1)
    assert inside.sum() > 200
    np.testing.assert_allclose(log_probs[inside.numpy()], wanted[inside].numpy(), atol=0.05)
    np.testing.assert_allclose(policy.act(observations, None)[0], policy.act(observations, 0 * noise)[0])


def learner(rewarder: PredictorCopy | None = None) -> ReplayLearner:
    torch.manual_seed(0)
    return ReplayLearner(INFO, CONFIG, SquashedPolicy(INFO), rewarder)


def drawn_rollout(learning: ReplayLearner, rng: np.random.Generator, *, terminated: bool = False) -> Rollout:
    """Random observations, which no action changes, and what the policy does about them."""
    rollout, policy = empty_rollout(), learning.policy
    rollout.observations[:] = rng.normal(size=rollout.observations.shape)
    for t in range(N_STEPS):
        rollout.actions[t], *_ = policy.act(rollout.observations[t], policy.noise(N_ENVS))
    rollout.valid[:], rollout.terminated[:] = True, terminated
    return rollout


def learn(
    learning: ReplayLearner, rewards: str, *, n_updates: int, terminated: bool = False, factor: float = 1.0
) -> None:
    rng = np.random.default_rng(0)
    config = replace(CONFIG, replay_ratio=0.25)
    gathered = max(0, FIRST_STEPS - len(learning.replay))  # before the first update
    rollouts = gathered // (N_STEPS * N_ENVS) + n_updates // 8
    for _ in range(rollouts):
        rollout = drawn_rollout(learning, rng, terminated=terminated)
        given = np.ones((N_STEPS, N_ENVS), np.float32)
        if rewards == "near a point":
            given -= np.square(rollout.actions - np.array([1.0, 0.75], np.float32)).sum(-1)
        learning.update(rollout, factor * given, torch.as_tensor(rollout.flat_observations()), config)


def test_it_finds_the_action_that_is_rewarded_most() -> None:
    learning = learner()
    observations = np.random.default_rng(1).normal(size=(100, 3)).astype(np.float32)
    learn(learning, "near a point", n_updates=400)
    actions = learning.policy.act(observations, None)[0]
    assert np.abs(actions - [1.0, 0.75]).mean() < 0.1


def test_the_unit_of_rewards_makes_no_difference() -> None:
    observations, actions = np.random.default_rng(1).normal(size=(100, 3)).astype(np.float32), []
    for factor in (1.0, 1024.0):
        learning = learner()
        learn(learning, "near a point", n_updates=80, factor=factor)
        actions.append(learning.policy.act(observations, None)[0])
    assert np.ptp(actions[0], axis=0).max() > 0.01
    np.testing.assert_allclose(actions[0], actions[1], atol=1e-4)


@pytest.mark.parametrize(("terminated", "n_updates"), [(True, 200), (False, 800)])
def test_values_are_discounted_rewards_up_to_the_end_of_the_task(terminated: bool, n_updates: int) -> None:
    learning = learner()
    assert isinstance(learning.policy, SquashedPolicy)
    with torch.no_grad():
        learning.policy.log_temperature.fill_(-20.0)  # else entropy counts too
    learn(learning, "one", n_updates=n_updates, terminated=terminated)
    observations = np.random.default_rng(1).normal(size=(100, 3)).astype(np.float32)
    assert learning.policy.values(observations).mean() == pytest.approx(1.0 if terminated else 2.0, rel=0.1)


def test_all_past_steps_are_rewarded_by_the_newest_predictor() -> None:
    """It turns round; the steps and the rewards that came with them stay as they were."""
    inputs = PredictorInputs("vector", (3,), None, 2)
    config = PredictorConfig(reward_predictor_uses_actions=True, reward_std=1.0)
    predictor = RewardPredictor(inputs, config)
    copy = PredictorCopy(RewardPredictor(inputs, config), WeightsBoard(predictor, None))
    observations = np.random.default_rng(1).normal(size=(200, 3)).astype(np.float32)
    learning, means = learner(copy), list[float]()

    def publish() -> None:
        copy.board.publish(predictor)
        copy.refresh()

    def better_than_chance() -> float:
        """In standard deviations of what any action earns."""
        (low, high), seen = torch.tensor(BOUNDS), torch.from_numpy(observations)
        chosen = torch.from_numpy(learning.policy.act(observations, None)[0])
        earned, by_chance = (
            copy.past_rewards(seen, actions).mean(0) for actions in (chosen, low + (high - low) * torch.rand(200, 2))
        )
        return float((earned.mean() - by_chance.mean()) / by_chance.std())

    publish()
    learn(learning, "one", n_updates=200)
    means.append(better_than_chance())
    with torch.no_grad():
        for weights in predictor.parameters():
            if weights.shape[-1] == 1:  # the last layer
                weights.neg_()
    publish()
    means.append(better_than_chance())
    learn(learning, "one", n_updates=200)
    means.append(better_than_chance())
    assert means[0] > 0.2 and means[1] < -0.2, "what was best is worst now"
    assert means[2] > 0.2


def test_a_policy_that_begins_anew_keeps_its_steps_and_how_it_reads() -> None:
    learning = learner()
    learn(learning, "near a point", n_updates=80)
    policy = learning.policy
    assert isinstance(policy, SquashedPolicy)
    policy.observe(np.random.default_rng(0).normal(3.0, 2.0, (1000, 3)).astype(np.float32))
    before, n_steps = {name: value.clone() for name, value in policy.state_dict().items()}, len(learning.replay)
    learning.begin_anew()
    after = policy.state_dict()
    assert len(learning.replay) == n_steps and not learning.optimizer.state
    assert math.isclose(float(policy.log_temperature.detach().exp()), 0.1, rel_tol=1e-5)
    for name, value in before.items():
        reads = name.startswith(("reader", "statistics", "scale", "offset"))
        assert torch.equal(value, after[name]) == reads or name == "log_temperature", name


def test_a_run_learns_and_goes_on_from_its_checkpoint_with_new_steps(tmp_path: Path) -> None:
    """The pendulum's episodes last for 25 steps at most; the true reward is 1 for each step that it stands."""
    flags = ("--algo", "sac", "--lr", "1e-3")
    begun = worker(tmp_path, 0.012, *flags)
    while not begun.finished:
        begun.step()
    assert np.mean(list(begun.runner.finished_returns)[-20:]) > 20
    begun.close()
    curves = EventAccumulator(str(tmp_path / "events" / "a2c")).Reload()
    weights = [event.value for event in curves.Scalars("policy/entropy_weight")]
    found = float(begun.policy.state_dict()["log_temperature"].exp())
    assert math.isclose(weights[-1], found, rel_tol=0.3), "the mean of the last updates, not what a flag says"
    resumed = worker(tmp_path, 0.024, *flags, resume=True)
    before, after = begun.policy.state_dict(), resumed.policy.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert resumed.steps == begun.steps and resumed.learner.optimizer.state
    resumed.step()
    assert all(torch.equal(value, after[name]) for name, value in before.items() if name.startswith("critics")), (
        "it first gathers steps"
    )
    resumed.close()
    agent = Agent.load(tmp_path)
    observations = resumed.runner.rollout.observations[0]
    assert np.array_equal(agent.policy.act(observations, None)[0], resumed.policy.act(observations, None)[0])


def test_short_episodes_leave_steps_for_every_update() -> None:
    """Half of what is drawn are resets, which nothing is learned from."""
    learning, rng, updated = learner(), np.random.default_rng(0), list[dict[str, float]]()
    for _ in range(2 * FIRST_STEPS // (N_STEPS * N_ENVS)):
        rollout = drawn_rollout(learning, rng)
        rollout.valid[::2] = False
        given = np.ones((N_STEPS, N_ENVS), np.float32)
        updated.append(learning.update(rollout, given, torch.as_tensor(rollout.flat_observations()), CONFIG))
        if sum(map(bool, updated)) == 5:
            break
    assert sum(map(bool, updated)) == 5 and all(math.isfinite(x) for losses in updated for x in losses.values())
