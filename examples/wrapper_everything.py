"""Everything at once: gather preferences and train a predictor while the environment is stepped.

python -m examples.wrapper_everything
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from drlhp import HumanPreferencesEnvWrapper
from examples.lamp_env import LampEnv


def picture_of(observation: dict[str, Any]) -> np.ndarray:
    """Returns the part of an observation that the reward predictor and people see."""
    picture: np.ndarray = observation["picture"]
    return picture


def main(log_dir: str | Path = "drlhp_logs/", n_labels: int = 40) -> None:
    """Learns from a synthetic teacher; with `synthetic_prefs=False`, you answer, in a window or on a web page."""
    env = HumanPreferencesEnvWrapper(
        LampEnv(),
        reward_predictor_network="feature_points",  # because the lamp's place is what matters
        obs_transform_func=picture_of,
        segment_length=20,
        n_initial_prefs=n_labels,
        n_initial_training_steps=20,
        log_dir=log_dir,
    )
    env.reset(seed=0)
    while not env.using_reward_from_predictor:  # until then the rewards are the environment's own
        _, reward, _, truncated, info = env.step(env.action_space.sample())
        if truncated:
            env.reset()
    _, reward, _, _, info = env.step(env.action_space.sample())
    print(f"{env.pref_db_size.value} labels, {env.reward_training_steps.value} training steps.")
    print(f"Predicted reward {reward:.2f}, true reward {info['true_reward']:.2f}; all of it is in {env.run_dir}.")
    env.close()


if __name__ == "__main__":
    main()
