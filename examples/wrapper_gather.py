"""Only gather preferences, for later use: nothing is trained, and the rewards stay the environment's own.

python -m examples.wrapper_gather
"""

from __future__ import annotations

from pathlib import Path

import gymnasium

from drlhp import HumanPreferencesEnvWrapper


def main(log_dir: str | Path = "drlhp_logs/", n_labels: int = 40) -> Path:
    """Gathers preferences and returns the file that holds them."""
    env = HumanPreferencesEnvWrapper(
        gymnasium.make("CartPole-v1"),
        train_reward=False,
        segment_length=20,
        n_initial_prefs=n_labels,
        max_prefs_in_db=n_labels,
        log_dir=log_dir,
    )
    env.reset(seed=0)
    while env.pref_db_size.value < n_labels:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    place = env.save_prefs()
    env.close()
    assert place is not None
    print(f"{n_labels} preferences are in {place}.")
    return place


if __name__ == "__main__":
    main()
