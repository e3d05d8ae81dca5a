"""Stable-Baselines3; the wrapper around its vector environment is all that is added.

python -m examples.wrapper_sb3
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env

from drlhp import HumanPreferencesSB3VecEnv


def main(log_dir: str | Path = "drlhp_logs/", n_labels: int = 100, n_steps: int = 20_000) -> None:
    """Learns from a synthetic teacher; with `synthetic_prefs=False`, you answer, in a window or on a web page."""
    inner = make_vec_env("CartPole-v1", n_envs=4, seed=0)  # its monitors count the true rewards
    env = HumanPreferencesSB3VecEnv(
        inner,
        segment_length=20,
        n_initial_prefs=n_labels // 2,
        max_prefs_in_db=n_labels,
        log_dir=log_dir,
    )
    env.reset()
    while not env.using_reward_from_predictor:  # so that the agent never learns from the environment's own reward
        env.step(np.array([env.action_space.sample() for _ in range(env.num_envs)]))
    model = A2C("MlpPolicy", env, seed=0)
    model.learn(n_steps)
    env.close()
    print(f"Learned for {n_steps} steps from {env.pref_db_size.value} preferences.")


if __name__ == "__main__":
    main()
