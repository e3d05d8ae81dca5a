"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905): learns off-policy, from past steps again and again.

So the agent needs fewer steps. A predicted reward is that of the reward predictor at the time of the update: each new
predictor rewards all past steps anew, as in PEBBLE (Lee et al. 2021, arXiv 2106.05091).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from a2c.acting import ActingPolicy
from a2c.config import PolicyConfig
from a2c.learner import Learner
from a2c.replay import Replay, Transitions
from a2c.returns import ValueUnits
from a2c.rewards import Rewarder
from a2c.runner import Rollout
from a2c.squashed import SquashedPolicy
from drlhp.networks.device import to_device
from envs import EnvInfo

CAPACITY = 1_000_000  # steps, if they fit
MEMORY = 2**31  # bytes of observations, at most
FIRST_STEPS = 5_000  # before the first update; a resumed run gathers them anew
BATCH = 256
FOLLOWING = 0.005  # share of the way to the critics that their targets go with each update
ACTOR_INTERVAL = 2  # updates of the critics for each of the actor


class ReplayLearner(Learner):
    """Learns from steps drawn from all of the run.

    Args:
        rewarder: rewards the steps when they are drawn; None: their rewards are those of the rollout.
    """

    policy: SquashedPolicy
    KEPT = (*Learner.KEPT, "replay", "reward_units", "_due", "_updates")

    def __init__(
        self, info: EnvInfo, config: PolicyConfig, policy: SquashedPolicy, rewarder: Rewarder | None = None
    ) -> None:
        super().__init__(info, config, policy)
        self._rewarder = rewarder
        fitting = MEMORY // (4 * math.prod(info.observation_shape))
        self.replay = Replay(info, config.n_envs, min(CAPACITY, fitting))
        # Rewards grow with the policy. In units of their usual size, values stay within what critics learn quickly.
        self.reward_units = ValueUnits()
        self._due, self._updates = 0.0, 0  # a part of an update may be due

    def _untrained(self) -> ActingPolicy:
        anew = super()._untrained()
        assert isinstance(anew, SquashedPolicy)
        anew.read_as(self.policy)  # what it will learn from are the old steps
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
        """Adds a rollout with these rewards (T, N), and takes the updates that are due; returns the last losses."""
        self.replay.add(rollout, torch.as_tensor(rewards))
        if len(self.replay) < FIRST_STEPS:
            return {}
        self._due += rollout.n_decisions * config.replay_ratio
        n, self._due = int(self._due), self._due % 1
        if not n:
            return {}
        drawn = self.replay.draw(n * BATCH).to(self.policy.device)
        if self._rewarder is not None and not exploring:
            predicted = self._rewarder.past_rewards(drawn.observations, drawn.actions)
            drawn = drawn.rewarded(to_device(predicted.mean(0), self.policy.device))
        self.reward_units.observe(drawn.rewards.cpu().numpy())
        drawn = drawn.rewarded(drawn.rewards / self.reward_units.size)
        figures: dict[str, Tensor] = {}
        for steps in drawn.split(n):
            figures |= self._step(steps)
        with torch.no_grad():  # of one batch, because each rollout brings others
            self.units.observe(self._wanted(steps).cpu().numpy())
        return {name: float(value) for name, value in figures.items()}

    def _wanted(self, steps: Transitions) -> Tensor:
        """Returns what the critics should expect of these steps, (B,)."""
        policy = self.policy
        following, temperature = policy.reader(steps.following), policy.log_temperature.exp()
        actions, log_probs = policy.decide(following, torch.randn_like(steps.actions))
        values = policy.judge(policy.targets, following, actions).amin(0) - temperature * log_probs
        return steps.rewards + self.config.gamma * steps.goes_on * values

    def _step(self, steps: Transitions) -> dict[str, Tensor]:
        """Takes one step of the critics, and at times of the actor and the temperature."""
        policy, read = self.policy, self.policy.reader(steps.observations)
        with torch.no_grad():
            wanted = self._wanted(steps)
        judged = policy.judge(policy.critics, read, policy.unit_of(steps.actions))
        loss = (judged - wanted).square().mean(1).sum()
        figures = {"value_loss": loss.detach()}
        if self._updates % ACTOR_INTERVAL == 0:
            actions, log_probs = policy.decide(read, torch.randn_like(steps.actions))
            temperature = policy.log_temperature.detach().exp()
            policy.critics.requires_grad_(False)
            policy_loss = (temperature * log_probs - policy.judge(policy.critics, read, actions).amin(0)).mean()
            policy.critics.requires_grad_(True)
            entropy = -log_probs.detach().mean()
            # It rises while the entropy is below the wanted one, -1 nat for each dimension of the actions.
            loss = loss + policy_loss + policy.log_temperature * (entropy + policy.action_dim)
            figures |= {"policy_loss": policy_loss.detach(), "entropy": entropy, "entropy_weight": temperature}
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(policy.targets.parameters()), list(policy.critics.parameters()), FOLLOWING)
        self._updates += 1
        return figures
