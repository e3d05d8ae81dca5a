"""Two of Gymnasium's classic tasks with episodes of one length, for this project and for the imitation library.

Needs nothing but Gymnasium and Stable-Baselines3, of either library's version.
"""

from __future__ import annotations

import resource
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

if TYPE_CHECKING:
    from stable_baselines3 import PPO

PACKAGES = ("stable-baselines3", "gymnasium", "torch", "numpy")

HORIZON = {"Pendulum-v1": 200, "CartPole-v1": 500}  # steps, as registered


class EndlessCartPole(CartPoleEnv):
    """CartPole in which the pole may fall and be caught again: 1 for each step that it stands, 0 for the others.

    An episode that ended with the fall would tell the agent the reward.
    """

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, _, fallen, truncated, info = super().step(action)
        self.steps_beyond_terminated = None  # else Gymnasium warns at the next step
        return observation, float(not fallen), False, truncated, info


def make(env_id: str) -> gymnasium.Env[Any, Any]:
    """One environment of `HORIZON`."""
    if env_id == "CartPole-v1":
        return gymnasium.wrappers.TimeLimit(EndlessCartPole(), HORIZON[env_id])
    return gymnasium.make(env_id)


def processor_time() -> float:
    """Seconds that this process and its children that have ended have computed, on all cores."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def outcome(policy: PPO, env_id: str, episodes: int, *packages: str) -> dict[str, Any]:
    """What the policy earns on the true reward, the steps from which it learned, and versions, also of `packages`."""
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    judge = DummyVecEnv([lambda: Monitor(make(env_id))])
    judge.seed(10_000)  # the same starts for whoever is judged
    returns, _ = evaluate_policy(policy, judge, episodes, return_episode_rewards=True)
    return {
        "env_id": env_id,
        "return": round(float(np.mean(returns)), 1),
        "steps": policy.num_timesteps,
        "versions": {name: version(name) for name in (*packages, *PACKAGES)},
    }
