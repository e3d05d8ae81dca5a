"""A policy starts anew some times, and its training goes on with the start whose steps are rewarded most."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import a2c.starts
from a2c.starts import Turn
from a2c.worker import PolicyWorker
from drlhp.runtime.snapshot import state_of
from tests.a2c.test_control import untrained, worker
from tests.support.commands import BRIEF_PPO, SYNC, UNEVALUATED, here

STEPS = 512
ROLLOUTS = ("--n_envs", "8", "--n_steps", "64")
THREE = (*ROLLOUTS, "--policy_reset_million_timesteps", "0.000512", "--policy_resets", "2")
LONGER = (*ROLLOUTS, "--policy_reset_million_timesteps", "0.001536")  # two starts of three rollouts each


def weights_of(begun: PolicyWorker) -> dict[str, Tensor]:
    return {name: weights.clone() for name, weights in begun.policy.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def learn(begun: PolicyWorker, i: int, reward: float = 0.0) -> None:
    """Learns from the next rollout, in which each step of start i earned this reward."""
    rollout, _ = begun.runner.collect()
    rewards = np.full(rollout.rewards.shape, reward, np.float32)
    observations = begun.learner.observations(rollout)
    begun.learner.update(rollout, rewards, observations, begun.config)
    begun.starts.see(rollout, observations, rewards, STEPS * i)


@pytest.mark.parametrize(("n_steps", "first"), [(STEPS, 2.0), (1, 1.0)])
def test_a_start_is_judged_by_its_newest_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_steps: int, first: float
) -> None:
    monkeypatch.setattr(a2c.starts, "JUDGED_BY", n_steps)  # two rollouts, of which some steps do not count, or one
    begun = worker(tmp_path, 0.03, *LONGER)
    for i, reward in enumerate((9.0, 3.0, 1.0)):
        learn(begun, i, reward)
    assert begun.starts.turn(STEPS * 2, STEPS * 3) == Turn(2, 2)
    for i in (3, 4, 5):
        learn(begun, i, reward=1.5)
    turn = begun.starts.turn(STEPS * 5, STEPS * 6)
    assert turn is not None and turn.worths == pytest.approx([first, 1.5], abs=0.1)
    begun.close()


@pytest.mark.parametrize("best", [0, 1, 2])
def test_the_start_that_was_rewarded_most_goes_on_with_all_that_it_learned(tmp_path: Path, best: int) -> None:
    begun, ends, units = worker(tmp_path, 0.03, *THREE), [], []
    for i in range(3):
        assert not begun.learner.optimizer.state, "a start begins with nothing"
        learn(begun, i, reward=7.0 if i == best else float(i))
        ends.append(weights_of(begun))
        units.append(state_of(begun.learner.units))
        turn = begun.starts.turn(STEPS * i, STEPS * (i + 1))
        worths = tuple(7.0 if j == best else float(j) for j in range(3))
        assert turn == (Turn(i + 2, 3) if i < 2 else Turn(best + 1, 3, worths))
    assert not same(ends[0], ends[1]) and not same(ends[1], ends[2])
    assert same(weights_of(begun), ends[best]) and state_of(begun.learner.units) == units[best]
    assert begun.learner.optimizer.state, "its averages are kept"
    assert begun.starts.turn(STEPS * 3, STEPS * 4) is None and same(weights_of(begun), ends[best]), "once is enough"
    begun.close()


def test_all_starts_are_judged_by_the_newest_reward_predictor(tmp_path: Path) -> None:
    """The first one, by which each start learned, would have chosen the other."""
    copy = untrained()
    copy.board.publish(copy.predictor)
    copy.refresh()
    begun, ends, earned = worker(tmp_path, 0.03, *THREE[:-2], rewarder=copy), [], []
    for i in range(2):
        rollout, _ = begun.runner.collect()
        observations, actions = begun.learner.observations(rollout), torch.as_tensor(rollout.flat_actions())
        earned.append(copy.past_rewards(observations, actions).mean())
        learn(begun, i)
        ends.append(weights_of(begun))
        if i == 1:
            with torch.no_grad():
                *_, weight, bias = copy.predictor.parameters()
                weight.neg_()
                bias.neg_()
            copy.board.publish(copy.predictor)
            copy.refresh()
        turn = begun.starts.turn(STEPS * i, STEPS * (i + 1))
    assert turn is not None and turn.number - 1 == np.argmax(turn.worths) == np.argmin(earned)
    assert same(weights_of(begun), ends[int(np.argmin(earned))])
    begun.close()


def test_a_resumed_run_still_goes_on_with_a_start_that_ended_before_it_was_stopped(tmp_path: Path) -> None:
    begun = worker(tmp_path, 0.03, *THREE)
    for i in range(2):
        learn(begun, i, reward=5.0 - i)
        if i == 0:
            first = weights_of(begun)
            begun.starts.turn(0, STEPS)
    begun.steps, begun.updates = 2 * STEPS - 1, 2  # stopped just before the second start ends
    begun.close()
    resumed = worker(tmp_path, 0.03, *THREE, resume=True)
    resumed.starts.turn(STEPS * 1, STEPS * 2)
    learn(resumed, 2, reward=1.0)
    assert resumed.starts.turn(STEPS * 2, STEPS * 3) == Turn(1, 3, (5.0, 4.0, 1.0))
    assert same(weights_of(resumed), first)
    resumed.close()


def test_a_run_says_that_the_policy_starts_anew_and_which_start_goes_on(tmp_path: Path) -> None:
    rollouts = ("--n_envs", "4", "--n_steps", "128", "--million_timesteps", "0.003", *BRIEF_PPO, *UNEVALUATED, SYNC)
    resets = ("--policy_reset_million_timesteps", "0.001")
    said = here(tmp_path, "train_policy_with_original_rewards", "CartPole-v1", *rollouts, *resets).stdout
    begins, chosen = (line for line in said.splitlines() if "tart" in line and "of the policy" in line)
    assert begins == "Start 2 of 2 of the policy begins, with untrained weights; the best start will go on."
    assert re.fullmatch(
        r"Start [12] of 2 of the policy goes on; on average, a step of each start earned 1\.00, 1\.00\.", chosen
    )
