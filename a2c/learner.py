"""Learns from rollouts: the policy, its optimiser, and the units in which its critic values states."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from a2c.acting import ActingPolicy
from a2c.config import PolicyConfig
from a2c.crew import ALONE, Crew
from a2c.model import Policy
from a2c.returns import ValueUnits, advantages, continuing_advantages
from a2c.runner import Rollout
from a2c.squashed import SquashedPolicy
from a2c.trpo import trpo_update
from a2c.update import Batch, a2c_update, make_optimizer, ppo_update
from drlhp.networks.device import to_device
from envs import EnvInfo

UPDATES = {"a2c": a2c_update, "ppo": ppo_update, "trpo": trpo_update}


def new_policy(info: EnvInfo, config: PolicyConfig, device: torch.device) -> ActingPolicy:
    """Returns an untrained policy."""
    if config.algo == "sac":
        return SquashedPolicy(info, device)
    policy = Policy(info, config.policy_network, device)
    if policy.log_std is not None:
        torch.nn.init.constant_(policy.log_std, math.log(config.init_noise_std))
    return policy


class Learner:
    """Updates the policy from rollouts and their rewards; the subclasses say how.

    Args:
        policy: what learns.
    """

    KEPT: tuple[str, ...] = ("policy", "optimizer", "units")

    def __init__(self, info: EnvInfo, config: PolicyConfig, policy: ActingPolicy) -> None:
        self.info, self.config, self.policy = info, config, policy
        self.optimizer = make_optimizer(policy, config)
        self.units = ValueUnits()  # of returns; the rewards' own on pixels

    def values(self, told: np.ndarray) -> np.ndarray:
        """Returns what the policy's critic tells in the units of rewards."""
        return told

    def begin_anew(self) -> None:
        """Forgets all that the policy has learned."""
        self.policy.load_state_dict(self._untrained().state_dict())
        self.optimizer = make_optimizer(self.policy, self.config)
        self.units = ValueUnits()

    def _untrained(self) -> ActingPolicy:
        return new_policy(self.info, self.config, self.policy.device)

    def scheduled(self, steps: int) -> PolicyConfig:
        """Returns the settings after so many agent steps, and gives the optimiser its learning rate.

        Both rates decay linearly, as in the paper (appendix A.2).
        """

        def falling(start: float, zero_million_timesteps: float) -> float:
            zero_at = zero_million_timesteps * 1e6
            return start * (max(0.0, 1 - steps / zero_at) if zero_at else 1.0)

        config = self.config
        lr = falling(config.lr, config.lr_zero_million_timesteps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return replace(config, lr=lr, ent_coef=falling(config.ent_coef, config.ent_coef_zero_million_timesteps))

    def observe(self, rollout: Rollout, kind: str) -> None:
        """Adds observations of this kind to the statistics with which the policy normalises them.

        Call it for vectors after learning: the updated policy must be the one that acted, with the statistics that it
        acted with.
        """
        if self.config.normalise_pixels and self.info.kind == kind:
            self.policy.observe(rollout.flat_observations())

    def observations(self, rollout: Rollout) -> Tensor:
        """Returns the observations (T * N, ...) on which the policy acted; a GPU still holds them since then."""
        if self.policy.acted_on:
            return torch.cat(tuple(self.policy.acted_on))
        return to_device(rollout.flat_observations(), self.policy.device)

    def update(
        self,
        rollout: Rollout,
        rewards: np.ndarray,
        observations: Tensor,
        config: PolicyConfig,
        *,
        exploring: bool = False,
    ) -> dict[str, float]:
        """Updates the policy on a rollout with these rewards (T, N); returns the losses.

        Args:
            config: the settings of this moment (`scheduled`).
            exploring: the rewards are for exploration, so their scale differs from that of later ones.
        """
        raise NotImplementedError


class RolloutLearner(Learner):
    """Learns from each rollout once, by the policy that acted in it.

    Args:
        policy: what learns; the crew's processes have its weights already.
        crew: computes the gradients on pixels together.
    """

    policy: Policy

    def __init__(self, info: EnvInfo, config: PolicyConfig, policy: Policy, crew: Crew = ALONE) -> None:
        super().__init__(info, config, policy)
        # A minibatch of vectors takes less time than sending the orders to the crew.
        self._crew = crew if info.kind == "pixels" else ALONE

    def values(self, told: np.ndarray) -> np.ndarray:
        """Returns what the policy's critic tells in the units of rewards."""
        return self.units.values(told)

    def _untrained(self) -> ActingPolicy:
        anew = super()._untrained()
        assert isinstance(anew, Policy)
        anew.box = self.policy.box  # an older checkpoint's policy keeps its unit
        return anew

    def update(
        self,
        rollout: Rollout,
        rewards: np.ndarray,
        observations: Tensor,
        config: PolicyConfig,
        *,
        exploring: bool = False,
    ) -> dict[str, float]:
        values = self.values(rollout.values)
        gained = self._advantages(rollout, rewards, values, self.values(rollout.last_values))
        # Rewards on pixels are clipped or predicted to a scale already, as the paper's settings for Atari expect.
        if self.info.kind == "vector" and not exploring:
            self.units.observe((gained + values)[rollout.valid])
        rollout.advantages[:] = gained / self.units.deviation
        rollout.returns[:] = self.units.targets(gained + values)
        batch = Batch.of(rollout, observations, self.policy.device)
        return UPDATES[config.algo](self.policy, self.optimizer, batch, config, self._crew)

    def _advantages(
        self, rollout: Rollout, rewards: np.ndarray, values: np.ndarray, last_values: np.ndarray
    ) -> np.ndarray:
        """Returns the advantages (T, N) for these rewards and values (T, N), and values (N,) after the last step."""
        discounts = {"gamma": self.config.gamma, "gae_lambda": self.config.gae_lambda}
        if self.config.continuing_episodes:
            return continuing_advantages(rewards, values, last_values, rollout.valid, **discounts)
        return advantages(rewards, values, last_values, rollout.terminated, rollout.truncated, **discounts)
