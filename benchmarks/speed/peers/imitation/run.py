"""Speed of the imitation library's preference comparisons on Pong, with synthetic labels.

benchmarks/speed/peers/.venv-imitation/bin/python benchmarks/speed/peers/imitation/run.py --steps 6144

The library does one thing after another: sample trajectories and label pairs, train the reward network, train the
policy; PHASES times. Its networks and training settings are the defaults, and those of its tutorial for image
environments where that has others.
"""

# mypy: disable-error-code="import-not-found"
# The packages are in this script's own environment, which benchmarks/speed/peers/install.py makes.

from __future__ import annotations

import argparse
import json
import math
import platform
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import ale_py  # noqa: F401  Registers its games with this version of Gymnasium.
import numpy as np
from imitation.algorithms.preference_comparisons import (
    AgentTrainer,
    BasicRewardTrainer,
    CrossEntropyRewardLoss,
    PreferenceComparisons,
    PreferenceDataset,
    PreferenceModel,
    RandomFragmenter,
    SyntheticGatherer,
)
from imitation.rewards.reward_nets import CnnRewardNet, NormalizedRewardNet
from imitation.util import logger
from imitation.util.networks import RunningNorm
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecFrameStack

ENV_ID = "PongNoFrameskip-v4"
N_ENVS = 16
ROLLOUT_STEPS = 128
# The library trains the policy once more than its num_iterations says; 2 is the tutorial's.
PHASES = 3
# A run's length at which 500 labels are asked for. Each label is then trained on about as often per agent step of the
# policy (0.018) as our predictor does by default (0.02).
LABELS, LABELS_AT_STEPS = 500, 50_000
# The library draws pairs from finished games alone. Whole games of Pong are 1,000 steps or more, which in a run as
# short as this one would take longer to sample than all the rest.
GAME_STEPS = 128
FRAME_SKIP = 4
PACKAGES = ("imitation", "stable-baselines3", "gymnasium", "ale-py", "torch", "numpy")
PPO_SETTINGS: dict[str, Any] = {
    "n_steps": ROLLOUT_STEPS,
    "batch_size": 256,
    "n_epochs": 4,
    "learning_rate": 2.5e-4,
    "clip_range": 0.1,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
}
# What Stable-Baselines3 takes where nothing is said, but for the length of a rollout, which would be ten minutes here.
DEFAULT_PPO: dict[str, Any] = {"n_steps": ROLLOUT_STEPS}
REWARD_SETTINGS: dict[str, Any] = {"epochs": 1, "batch_size": 32, "lr": 1e-3}
COMPARISON_SETTINGS: dict[str, Any] = {
    "num_iterations": PHASES - 1,
    "fragment_length": 25,
    "initial_comparison_frac": 0.1,
    "initial_epoch_multiplier": 1.0,
    "allow_variable_horizon": True,
}


class CountedVecEnv(VecEnvWrapper):
    """Counts agent steps."""

    def __init__(self, envs: VecEnv) -> None:
        super().__init__(envs)
        self.steps = 0

    def reset(self) -> np.ndarray:
        return self.venv.reset()

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        self.steps += self.num_envs
        return self.venv.step_wait()


class TimedAgent(AgentTrainer):
    """Adds up the seconds of policy training and of sampling."""

    train_seconds = 0.0
    sample_seconds = 0.0

    def train(self, steps: int, **kwargs: Any) -> None:
        start = time.perf_counter()
        super().train(steps, **kwargs)
        self.train_seconds += time.perf_counter() - start

    def sample(self, steps: int) -> Sequence[Any]:
        start = time.perf_counter()
        trajectories = super().sample(steps)
        self.sample_seconds += time.perf_counter() - start
        return trajectories


class TimedRewardTrainer(BasicRewardTrainer):
    """Adds up the seconds of training, and the labels trained on, each as often as it was."""

    seconds = 0.0
    labels_trained = 0

    def train(self, dataset: PreferenceDataset, epoch_multiplier: float = 1.0) -> None:
        start = time.perf_counter()
        super().train(dataset, epoch_multiplier)
        self.seconds += time.perf_counter() - start
        self.labels_trained += len(dataset) * round(self.epochs * epoch_multiplier)


def make_trainer(
    folder: str, ppo: dict[str, Any]
) -> tuple[PreferenceComparisons, TimedAgent, TimedRewardTrainer, CountedVecEnv]:
    """The untrained policy and reward network, with their environments; the library's own log goes to `folder`."""
    rng = np.random.default_rng(0)
    log = logger.configure(folder, format_strs=[])
    emulator = {"max_num_frames_per_episode": GAME_STEPS * FRAME_SKIP}
    envs = CountedVecEnv(VecFrameStack(make_atari_env(ENV_ID, N_ENVS, seed=0, env_kwargs=emulator), n_stack=4))
    reward_net = NormalizedRewardNet(CnnRewardNet(envs.observation_space, envs.action_space), RunningNorm)
    policy = PPO("CnnPolicy", envs, seed=0, **ppo)
    agent = TimedAgent(policy, reward_net, envs, rng=rng, custom_logger=log)
    reward_trainer = TimedRewardTrainer(
        PreferenceModel(reward_net), CrossEntropyRewardLoss(), rng=rng, custom_logger=log, **REWARD_SETTINGS
    )
    trainer = PreferenceComparisons(
        agent,
        reward_net,
        fragmenter=RandomFragmenter(rng=rng, warning_threshold=0, custom_logger=log),
        preference_gatherer=SyntheticGatherer(rng=rng, custom_logger=log),
        reward_trainer=reward_trainer,
        custom_logger=log,
        **COMPARISON_SETTINGS,
    )
    return trainer, agent, reward_trainer, envs


def measure(steps: int, ppo: dict[str, Any]) -> dict[str, Any]:
    """Trains for `steps` agent steps, a multiple of `PHASES` rollouts; returns what the JSON line tells."""
    with tempfile.TemporaryDirectory() as folder:
        trainer, agent, reward_trainer, envs = make_trainer(folder, ppo)
        start = time.perf_counter()
        trainer.train(steps // PHASES * (PHASES - 1), round(LABELS * steps / LABELS_AT_STEPS))
        seconds = time.perf_counter() - start
        envs.close()
    trained = agent.algorithm.num_timesteps
    return {
        "name": "imitation",
        "value": round(trained / seconds, 1),
        "unit": "agent steps/s",
        "seconds": round(seconds, 2),
        "steps": trained,
        "policy_phase_value": round(trained / agent.train_seconds, 1),
        "policy_seconds": round(agent.train_seconds, 2),
        "sample_seconds": round(agent.sample_seconds, 2),
        "sampled_steps": envs.steps - trained,
        "reward_training_seconds": round(reward_trainer.seconds, 2),
        "labels": len(trainer.dataset),
        "labels_trained_per_step": round(reward_trainer.labels_trained / trained, 4),
        "note": f"labels scaled to the run: {LABELS} at {LABELS_AT_STEPS:,} agent steps",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "settings": {
            "env_id": ENV_ID,
            "n_envs": N_ENVS,
            "vec_env": "dummy",
            "device": str(agent.algorithm.device),
            "max_steps_per_game": GAME_STEPS,
            "reward_network": "NormalizedRewardNet(CnnRewardNet)",
            "ppo": {**ppo, "batch_size": agent.algorithm.batch_size, "n_epochs": agent.algorithm.n_epochs},
            "reward_training": REWARD_SETTINGS,
            "preference_comparisons": COMPARISON_SETTINGS,
        },
    }


def main() -> None:
    unit = PHASES * N_ENVS * ROLLOUT_STEPS
    parser = argparse.ArgumentParser(description="Measure the speed of imitation's preference comparisons on Pong.")
    parser.add_argument("--steps", type=int, default=unit, help=f"agent steps, rounded up to a multiple of {unit:,}")
    parser.add_argument("--default_ppo", action="store_true", help="PPO as Stable-Baselines3 has it by default")
    arguments = parser.parse_args()
    steps = math.ceil(arguments.steps / unit) * unit
    print(json.dumps(measure(steps, DEFAULT_PPO if arguments.default_ppo else PPO_SETTINGS)))


if __name__ == "__main__":
    main()
