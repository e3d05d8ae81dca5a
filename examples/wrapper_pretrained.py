"""Only use a trained reward predictor: no process is started, nobody is asked, nothing is written.

python -m examples.wrapper_pretrained drlhp_logs/
"""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium

from drlhp import HumanPreferencesEnvWrapper


def main(predictor_dir: str | Path, n_steps: int = 200) -> list[float]:
    """Steps at random and returns the predicted rewards."""
    env = HumanPreferencesEnvWrapper(
        gymnasium.make("CartPole-v1"),
        collect_prefs=False,
        train_reward=False,
        pretrained_reward_predictor_dir=predictor_dir,
    )
    assert env.using_reward_from_predictor
    env.reset(seed=0)
    rewards = []
    for _ in range(n_steps):
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        rewards.append(float(reward))
        if terminated or truncated:
            env.reset()
    env.close()
    print(f"{n_steps} steps, predicted reward {sum(rewards):.1f}.")
    return rewards


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "drlhp_logs/")
