"""Switch to the true reward for an evaluation, and back.

python -m examples.wrapper_evaluate drlhp_logs/
"""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium

from drlhp import HumanPreferencesEnvWrapper


def episode(env: gymnasium.Env) -> float:
    """Returns the sum of the rewards of one episode of random actions."""
    env.reset()
    total, done = 0.0, False
    while not done:
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        total, done = total + float(reward), terminated or truncated
    return total


def main(predictor_dir: str | Path) -> tuple[float, float]:
    """Measures the true return of one episode and the predicted return of another, and returns both."""
    env = HumanPreferencesEnvWrapper(
        gymnasium.make("CartPole-v1"),
        collect_prefs=False,
        train_reward=False,
        pretrained_reward_predictor_dir=predictor_dir,
    )
    env.switch_to_true_reward()
    env.stop_segment_collection()  # so that nobody is asked about the evaluation
    true_return = episode(env)
    env.start_segment_collection()
    env.switch_to_predicted_reward()
    predicted_return = episode(env)
    env.close()
    print(f"True return {true_return:.1f}; predicted return of another episode {predicted_return:.1f}.")
    return true_return, predicted_return


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "drlhp_logs/")
