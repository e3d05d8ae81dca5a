"""A trained agent, and episodes that it plays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from a2c.acting import ActingPolicy
from a2c.config import PolicyConfig
from a2c.learner import new_policy
from drlhp.bounds import check
from drlhp.networks.device import CPU
from drlhp.runtime import checkpoint
from envs import EnvInfo, PreferenceVecEnv, env_info
from reward_predictor import PredictorConfig, PredictorInputs, RewardPredictor


@dataclass(frozen=True)
class Agent:
    """A trained policy and, if its run has one, the reward predictor."""

    info: EnvInfo
    policy: ActingPolicy
    predictor: RewardPredictor | None
    policy_path: Path
    folder: Path  # the run's, or the one that holds the checkpoint

    @classmethod
    def load(cls, place: Path) -> Agent:
        """Reads a run folder, its policy folder, or a policy checkpoint.

        Raises:
            CheckpointError: there is no policy, or one that cannot be used.
        """
        path = checkpoint.find(place, "policy")
        whole = path if path.parent.name == "policy" else path.resolve()  # a link may lead to the policy's folder
        folder = whole.parent.parent if whole.parent.name == "policy" else path.parent
        state = checkpoint.load(path, kind="policy", env_id=checkpoint.read(path)["env_id"])
        info = env_info(state["env_id"])
        if info.all_frames is not None:  # a choice that older policies did not have
            info = replace(info, all_frames=bool(state.get("all_frames", False)))
        with checkpoint.entries(path):
            policy = new_policy(info, PolicyConfig(state["algo"], policy_network=state["network"]), CPU)
            checkpoint.fill(policy, state["weights"], path)
        return cls(info, policy, load_predictor(folder / "reward_predictor", info), path, folder)


def load_predictor(folder: Path, info: EnvInfo) -> RewardPredictor | None:
    """Returns the newest reward predictor of a folder; None if the folder holds none.

    Raises:
        CheckpointError: it cannot be used.
    """
    if not checkpoint.list_checkpoints(folder):
        return None
    path = checkpoint.find(folder, "reward_predictor")
    state = checkpoint.load(path, kind="reward_predictor", env_id=info.env_id)
    inputs = PredictorInputs.of(info)
    with checkpoint.entries(path):
        config = PredictorConfig(**state["config"])
        check(config)
        predictor = RewardPredictor(inputs, config)
        if not checkpoint.is_finite(state["weights"]):
            raise checkpoint.CheckpointError(
                f"the training of {path} diverged, so it predicts no numbers; train again with a lower "
                "--reward_predictor_learning_rate."
            )
        checkpoint.fill(predictor, state["weights"], path)
    return predictor


@dataclass(frozen=True)
class Step:
    """One agent step of an episode: the picture before it, and its rewards."""

    picture: np.ndarray | None  # (H, W, 3) uint8; None if nobody watches the environment
    true: float
    predicted: float | None  # None without a reward predictor
    ends_episode: bool


def play(agent: Agent, env: PreferenceVecEnv, *, deterministic: bool) -> Iterator[Step]:
    """Plays one episode of a single environment, and yields each step."""
    observations, _ = env.reset()
    memory = np.zeros((len(observations), agent.policy.memory_size), np.float32)
    done = False
    while not done:
        noise = None if deterministic else agent.policy.noise(len(observations))
        actions = agent.policy.act(observations, noise, memory)[0]
        picture = env.watch()[0].copy() if env.n_watched else None
        predicted = None
        if agent.predictor is not None:
            raw = agent.predictor.member_rewards(observations, agent.info.carried_out(actions))
            predicted = float(agent.predictor.normalised(raw).mean(0)[0])
        observations, rewards, terminated, truncated, _ = env.step(actions)
        done = bool(terminated[0] or truncated[0])
        yield Step(picture, float(rewards[0]), predicted, done)
