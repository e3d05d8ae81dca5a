"""What the imitation library's preference comparisons learn on a classic task, with synthetic labels.

benchmarks/speed/peers/.venv-imitation/bin/python benchmarks/speed/peers/imitation/classic.py Pendulum-v1 --seed 0

All settings are those of the library's own tutorial for Pendulum, with a phase for each rollout of its policy.
"""

# mypy: disable-error-code="import-not-found"
# The packages are in this script's own environment, which benchmarks/speed/peers/install.py makes.

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

import numpy as np
from imitation.algorithms.preference_comparisons import (
    AgentTrainer,
    BasicRewardTrainer,
    CrossEntropyRewardLoss,
    PreferenceComparisons,
    PreferenceModel,
    RandomFragmenter,
    SyntheticGatherer,
)
from imitation.data.wrappers import RolloutInfoWrapper
from imitation.policies.base import FeedForward32Policy, NormalizeFeaturesExtractor
from imitation.rewards.reward_nets import BasicRewardNet
from imitation.util import logger
from imitation.util.networks import RunningNorm
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from benchmarks.learning.classic_tasks import HORIZON, make, outcome, processor_time

N_ENVS, ROLLOUT = 8, 2048  # steps of a rollout in all environments
PPO_SETTINGS: dict[str, Any] = {
    "n_steps": ROLLOUT // N_ENVS,
    "batch_size": 64,
    "ent_coef": 0.01,
    "learning_rate": 2e-3,
    "clip_range": 0.1,
    "gae_lambda": 0.95,
    "gamma": 0.97,
    "n_epochs": 10,
}
COMPARISON_SETTINGS: dict[str, Any] = {
    "fragment_length": 100,
    "transition_oversampling": 1,
    "initial_comparison_frac": 0.1,
    "allow_variable_horizon": False,
    "initial_epoch_multiplier": 4,
    "query_schedule": "hyperbolic",
}
REWARD_EPOCHS, EXPLORATION = 3, 0.05


class SamplingAgent(AgentTrainer):
    """Counts the steps that it samples for fragments beside those that the policy learns from."""

    sampled = 0

    def sample(self, steps: int) -> Sequence[Any]:
        trajectories = super().sample(steps)
        self.sampled += sum(len(trajectory) for trajectory in trajectories)
        return trajectories


def measure(env_id: str, seed: int, steps: int, n_labels: int, episodes: int) -> dict[str, Any]:
    """Learns for `steps` agent steps, in whole rollouts; then the policy plays on the true reward."""
    start, used = time.perf_counter(), processor_time()
    rng = np.random.default_rng(seed)
    envs = VecMonitor(DummyVecEnv([lambda: RolloutInfoWrapper(make(env_id))] * N_ENVS))
    envs.seed(seed)
    rollouts = math.ceil(steps / ROLLOUT)
    with tempfile.TemporaryDirectory() as folder:
        log = logger.configure(folder, format_strs=[])
        reward_net = BasicRewardNet(envs.observation_space, envs.action_space, normalize_input_layer=RunningNorm)
        features = {"features_extractor_class": NormalizeFeaturesExtractor}
        features["features_extractor_kwargs"] = {"normalize_class": RunningNorm}
        policy = PPO(FeedForward32Policy, envs, seed=seed, policy_kwargs=features, **PPO_SETTINGS)
        agent = SamplingAgent(policy, reward_net, envs, exploration_frac=EXPLORATION, rng=rng, custom_logger=log)
        trainer = PreferenceComparisons(
            agent,
            reward_net,
            num_iterations=rollouts - 1,  # it trains the policy once more than that
            fragmenter=RandomFragmenter(rng=rng, warning_threshold=0, custom_logger=log),
            preference_gatherer=SyntheticGatherer(rng=rng, custom_logger=log),
            reward_trainer=BasicRewardTrainer(
                PreferenceModel(reward_net), CrossEntropyRewardLoss(), epochs=REWARD_EPOCHS, rng=rng, custom_logger=log
            ),
            custom_logger=log,
            **COMPARISON_SETTINGS,
        )
        trainer.train((rollouts - 1) * ROLLOUT, n_labels)
    seconds, processor_seconds = time.perf_counter() - start, processor_time() - used
    return {
        **outcome(policy, env_id, episodes, "imitation"),
        "seed": seed,
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor_seconds, 1),
        "steps_besides": agent.sampled,
        "labels": len(trainer.dataset),
        "settings": {"ppo": PPO_SETTINGS, "comparisons": COMPARISON_SETTINGS, "reward_epochs": REWARD_EPOCHS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Let imitation's preference comparisons learn a classic task.")
    parser.add_argument("env_id", choices=sorted(HORIZON))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50_000, help="agent steps, rounded up to whole rollouts")
    parser.add_argument("--labels", type=int, default=250)
    parser.add_argument("--episodes", type=int, default=20, help="played by the policy that was learned")
    given = parser.parse_args()
    print(json.dumps(measure(given.env_id, given.seed, given.steps, given.labels, given.episodes)))


if __name__ == "__main__":
    main()
