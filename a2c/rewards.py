"""The rewards that the policy learns from: the environment's own, or those of its copy of the reward predictor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from a2c.config import PolicyConfig
from a2c.runner import Rollout
from drlhp.errors import UserError
from drlhp.networks.device import to_device
from envs import EnvError, EnvInfo
from reward_predictor import DIVERGED, MemberRewards


class Rewarder(Protocol):
    """The policy's own copy of a reward predictor, with weights that arrive on the board."""

    normaliser: tuple[Tensor, Tensor] | None  # new weights keep it, so a checkpoint holds it

    @property
    def trained(self) -> bool:
        """Whether weights were ever published."""

    def refresh(self) -> int:
        """Takes over the newest weights; returns how many times weights were published (0: none yet)."""

    def member_rewards(self, observations: Tensor, actions: Tensor) -> MemberRewards:
        """(B, ...), (B,) or (B, A) -> (members, B) rewards of a rollout."""

    def past_rewards(self, observations: Tensor, actions: Tensor) -> np.ndarray:
        """(B, ...), (B,) or (B, A) -> (members, B) normalised rewards of steps of any age."""


class RewarderSpec(Protocol):
    """Builds the copy in the process that uses it."""

    def build(self) -> Rewarder: ...


@dataclass(frozen=True)
class Rewards:
    """The rewards of one rollout."""

    learned_from: np.ndarray  # (T, N)
    by_member: np.ndarray | None  # (members, T, N) as the members predicted them; None for true rewards


def true_rewards(rollout: Rollout, info: EnvInfo) -> Rewards:
    """Returns the environment's own rewards; raises EnvError if one is not finite."""
    if not np.isfinite(rollout.rewards).all():
        raise EnvError(f"a reward of {info.env_id} is NaN or infinity: fix the environment.")
    return Rewards(rollout.rewards, None)


def predicted_rewards(
    rewarder: Rewarder, rollout: Rollout, observations: Tensor, info: EnvInfo, *, bonus: float
) -> Rewards:
    """Returns the predicted rewards, 0 on the steps that reset; raises UserError if the training diverged.

    Args:
        observations: (T * N, ...) on the device that predicts.
        bonus: weight of the members' disagreement (`disagreement_bonus`).
    """
    actions = to_device(info.carried_out(rollout.flat_actions()), observations.device)
    predicted, shape = rewarder.member_rewards(observations, actions), (-1, *rollout.rewards.shape)
    rewards = with_bonus(predicted.normalised.reshape(shape), bonus) * rollout.valid
    if not np.isfinite(rewards).all():
        raise UserError(DIVERGED)
    return Rewards(rewards, predicted.raw.reshape(shape))


def disagreement_bonus(config: PolicyConfig, steps: int, max_steps: int) -> float:
    """Returns the weight of the bonus after so many agent steps: it falls to 0 over the run."""
    return config.disagreement_bonus * (1 - steps / max_steps)


def with_bonus(predicted: np.ndarray, weight: float) -> np.ndarray:
    """(members, T, N) -> (T, N): the members' mean, and a bonus if they disagree (RUNE, Liang et al. 2022)."""
    reward: np.ndarray = predicted.mean(0)
    return reward + np.float32(weight) * predicted.std(0) if weight > 0 else reward
