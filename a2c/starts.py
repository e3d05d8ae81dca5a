"""Trains policies from new weights in turn, and goes on with the one whose steps are rewarded most.

The gait that a policy falls into is decided early, by chance and by a reward predictor that knew little, and is hard to
lose (the primacy bias, Nikishin et al. 2022, arXiv 2205.07802). Later predictors know which gait is better.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from a2c.config import PolicyConfig
from a2c.learner import Learner
from a2c.rewards import Rewarder
from a2c.runner import Rollout
from drlhp.runtime.snapshot import restored, state_of
from envs import EnvInfo

JUDGED_BY = 16_384  # newest steps of each start, or the rollouts that have as many
MEMORY = 2**26  # about so many bytes of observations; fewer steps if they do not fit


@dataclass(frozen=True)
class Turn:
    """A new start or, after the last one, the choice among all."""

    number: int  # of the start that begins or goes on, from 1
    of: int
    worths: tuple[float, ...] = ()  # average reward of a step of each start; none before the choice


class Starts:
    """Ends each start in time, and chooses one after the last.

    All are judged at the same moment, by the same reward predictor.

    Args:
        learner: what starts anew.
        rewarder: judges the steps; None: by their true rewards.
    """

    KEPT = ("_ended", "_seen")

    def __init__(self, info: EnvInfo, config: PolicyConfig, learner: Learner, rewarder: Rewarder | None) -> None:
        self._info, self._learner, self._rewarder = info, learner, rewarder
        self._length = round(config.policy_reset_million_timesteps * 1e6)
        self._n = config.policy_resets + 1
        size = math.prod(info.observation_shape) * (1 if info.kind == "pixels" else 4)
        self._judged_by = min(JUDGED_BY, MEMORY // size)
        self._ended: list[dict[str, Any]] = []  # the learner's state at the end of each start, and its newest steps
        self._seen: list[dict[str, Tensor]] = []  # the newest rollouts of the present start

    def see(self, rollout: Rollout, observations: Tensor, rewards: np.ndarray, before: int) -> None:
        """Keeps a rollout with these observations (T * N, ...) and rewards (T, N), and forgets what is too old.

        Args:
            before: agent steps before it.
        """
        if before >= self._n * self._length:
            return
        valid = torch.as_tensor(rollout.valid.reshape(-1))
        actions = torch.as_tensor(self._info.carried_out(rollout.flat_actions()))
        kept = {"observations": observations.cpu(), "actions": actions, "rewards": torch.as_tensor(rewards).flatten()}
        self._seen.append({name: values[valid].clone() for name, values in kept.items()})
        while sum(len(newer["rewards"]) for newer in self._seen[1:]) >= self._judged_by:
            del self._seen[0]

    def turn(self, before: int, after: int) -> Turn | None:
        """Starts the learner anew, or goes on with the best start; returns None if these agent steps end no start."""
        if not self._length or before // self._length == after // self._length or after // self._length > self._n:
            return None
        # All starts share what a subclass keeps besides, such as the past steps of SAC.
        state = copy.deepcopy({name: state_of(getattr(self._learner, name)) for name in Learner.KEPT})
        self._ended.append({"state": state, "steps": self._seen})
        self._seen = []
        if after // self._length < self._n:
            self._learner.begin_anew()
            return Turn(len(self._ended) + 1, self._n)
        worths = tuple(self._judge(start["steps"]) for start in self._ended)
        if (best := int(np.argmax(worths))) < len(worths) - 1:
            for name, kept in self._ended[best]["state"].items():
                setattr(self._learner, name, restored(getattr(self._learner, name), kept))
        self._ended = []
        return Turn(best + 1, self._n, worths)

    def _judge(self, steps: list[dict[str, Tensor]]) -> float:
        if self._rewarder is None:
            return float(torch.cat([seen["rewards"] for seen in steps]).mean())
        device, rewards = self._learner.policy.device, []
        for seen in steps:
            observations, actions = seen["observations"].to(device), seen["actions"].to(device)
            rewards.append(self._rewarder.past_rewards(observations, actions).mean(0))
        return float(np.concatenate(rewards).mean())
