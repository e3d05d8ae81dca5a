"""The policy with a memory: that learning sees what acting saw, where the memory ends, and that it serves."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from a2c.config import PolicyConfig
from a2c.crew import Arena
from a2c.evaluation import play
from a2c.model import Policy
from a2c.returns import advantages
from a2c.runner import Rollout, Runner
from a2c.update import Batch, make_optimizer, ppo_update
from commands.flags import parse
from commands.watch import watch_command
from drlhp.errors import UserError
from drlhp.runtime.channels import Channels
from envs import EnvInfo, PreferenceVecEnv
from tests.support.commands import BRIEF_PPO, DOT, PONG, SYNC, UNEVALUATED, here

N_STEPS, N_ENVS = 7, 8
LENGTH = 3  # steps of an episode, which with the one between two does not divide those of a rollout
INFO = EnvInfo("Cue-v0", "pixels", (2, 84, 84), 2, None, 5, 15.0, 4, (), None, ("left", "right"), {})
CONFIG = PolicyConfig(
    algo="ppo", n_envs=N_ENVS, n_steps=N_STEPS, ppo_epochs=2, ppo_minibatches=2, lr=2e-3, policy_network="nature_lstm"
)


class Cue(PreferenceVecEnv):
    """Its first picture is white on one side; the last action of the episode earns 1 if it is of that side, else -1."""

    def __init__(self, n_envs: int = N_ENVS) -> None:
        super().__init__(INFO, n_envs, seed=0, n_watched=0)
        self._rng = np.random.default_rng(0)
        self._time, self._side = np.zeros(n_envs, np.int64), np.zeros(n_envs, np.int64)

    def _seen(self) -> np.ndarray:
        """Pictures of now and of one step before."""
        seen = np.zeros((self.num_envs, 2, 84, 84), np.uint8)
        for i, (time, side) in enumerate(zip(self._time, self._side, strict=True)):
            if time < 2:
                seen[i, 1 - time, :, 42 * side : 42 * side + 42] = 255
        return seen

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._time[:], self._side = 0, self._rng.integers(2, size=self.num_envs)
        return self._seen(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        over, last = self._time == LENGTH, self._time == LENGTH - 1
        rewards = np.where(last, np.where(actions == self._side, 1.0, -1.0), 0.0).astype(np.float32)
        self._time = np.where(over, 0, self._time + 1)
        self._side = np.where(over, self._rng.integers(2, size=self.num_envs), self._side)
        return self._seen(), rewards, last, np.zeros_like(last), {}


def runner_for(network: str) -> Runner:
    torch.manual_seed(0)
    policy = Policy(INFO, network)
    rollout = Rollout.allocate(INFO, N_STEPS, N_ENVS, Arena(), policy.channels_last, policy.memory_size)
    return Runner([Cue()], INFO, policy, rollout, 0, watch=False, record=False)


def judged(policy: Policy, rollout: Rollout, observations: Tensor) -> Tensor:
    """Log-probabilities (T, N) of the rollout's actions, had these observations (T * N, ...) been seen."""
    batch = Batch.of(rollout)
    assert batch.memory is not None
    found = policy.evaluate(observations, batch.actions, batch.memory[:N_ENVS], batch.valid)
    return found.log_probs.reshape(N_STEPS, N_ENVS)


def test_learning_recalls_what_was_remembered_in_acting() -> None:
    """Over the ends of episodes within a rollout, and over those of rollouts."""
    runner = runner_for("nature_lstm")
    for _ in range(3):
        rollout, _ = runner.collect()
        assert 0 < (~rollout.valid).sum() < rollout.valid.size / 2
        with torch.no_grad():
            assert isinstance(runner.policy, Policy)
            again = judged(runner.policy, rollout, Batch.of(rollout).observations).numpy()
        np.testing.assert_allclose(again[rollout.valid], rollout.log_probs[rollout.valid], atol=2e-3)


def test_a_memory_reaches_back_to_the_start_of_its_episode_and_not_beyond() -> None:
    runner = runner_for("nature_lstm")
    rollout, _ = runner.collect()
    valid = rollout.valid[:, 0]
    (reset,) = np.flatnonzero(~valid)[:1]
    before = Batch.of(rollout).observations
    changed = before.clone().reshape(N_STEPS, N_ENVS, *before.shape[1:])
    changed[1, 0] = 255 - changed[1, 0]
    with torch.no_grad():
        assert isinstance(runner.policy, Policy)
        moved = judged(runner.policy, rollout, changed.flatten(0, 1)) != judged(runner.policy, rollout, before)
    assert moved[1:reset, 0].all() and not moved[0, 0]
    assert not moved[reset + 1 :, 0].any() and not moved[:, 1:].any()


def test_only_a_memory_tells_what_is_no_longer_seen() -> None:
    """After the same training the one policy is always right, and the other as often as chance."""
    correct = {}
    for network in ("nature_lstm", "nature"):
        runner = runner_for(network)
        policy, config = runner.policy, replace(CONFIG, policy_network=network)
        assert isinstance(policy, Policy)
        optimizer = make_optimizer(policy, config)
        for _ in range(6):
            r, _ = runner.collect()
            bounds = (r.terminated, r.truncated)
            r.advantages[:] = advantages(r.rewards, r.values, r.last_values, *bounds, gamma=0.99, gae_lambda=0.95)
            r.returns[:] = r.advantages + r.values
            ppo_update(policy, optimizer, Batch.of(r), config)
        channels = Channels.create(synchronous=True, take_turns=False)
        episodes = play(Cue(64), policy, channels, seed=0, sampled=False)
        assert episodes is not None
        correct[network] = float((episodes.returns > 0).mean())
    assert correct["nature_lstm"] == 1 and correct["nature"] < 0.75


@pytest.mark.usefixtures("short_episodes")
def test_a_run_with_a_memory_goes_on_and_can_be_watched(tmp_path: Path) -> None:
    flags = ("--policy_network", "nature_lstm", "--n_envs", "2", "--n_steps", "16", *BRIEF_PPO, *UNEVALUATED)
    length = ("--million_timesteps", "0.00006")  # two rollouts
    here(tmp_path, "train_policy_with_original_rewards", DOT, *flags, *length, "--run_name", "run", SYNC)
    here(tmp_path, "--resume", str(tmp_path / "run"), "--million_timesteps", "0.00012")
    video = tmp_path / "agent.mp4"
    watch_command([str(tmp_path / "run"), "--output", str(video)])
    assert video.stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "sentence"),
    [((PONG, "--demonstrations", "play.npz"), "step by step"), (("CartPole-v1",), "shows none")],
)
def test_a_memory_that_cannot_be_is_refused(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse(["train_policy_with_original_rewards", *words, "--policy_network", "nature_lstm"])
