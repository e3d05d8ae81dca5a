"""Start from a policy that was trained elsewhere, so that people compare its behaviour from the first clip on.

python -m examples.wrapper_warm_start policy.zip
"""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
from stable_baselines3 import PPO

from drlhp import HumanPreferencesEnvWrapper


def main(policy: str | Path, log_dir: str | Path = "drlhp_logs/", n_labels: int = 40, n_steps: int = 512) -> None:
    """Continues the training of the policy in a file that `PPO.save` wrote."""
    env = HumanPreferencesEnvWrapper(
        gymnasium.make("CartPole-v1"),
        segment_length=20,
        n_initial_prefs=n_labels,
        n_initial_training_steps=20,
        log_dir=log_dir,
    )
    model = PPO.load(policy, env=env, n_steps=256)
    observation, _ = env.reset(seed=0)
    while not env.using_reward_from_predictor:  # the loaded policy acts, but does not learn yet
        action, _ = model.predict(observation)
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
    model.learn(n_steps)
    env.close()
    print(f"Learned on for {n_steps} steps from {env.pref_db_size.value} preferences.")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("Give the file of a policy for CartPole-v1 that Stable-Baselines3's PPO.save wrote.")
    main(sys.argv[1])
