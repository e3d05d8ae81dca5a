"""Only train a reward predictor, on stored preferences; the environment is never stepped.

python -m examples.wrapper_train_predictor drlhp_logs/
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import gymnasium

from drlhp import HumanPreferencesEnvWrapper


def main(prefs_dir: str | Path, log_dir: str | Path = "drlhp_logs/", network: Any = None) -> Path:
    """Trains a predictor and returns its checkpoint; `network` may be your own (examples/own_network.py)."""
    env = HumanPreferencesEnvWrapper(
        gymnasium.make("CartPole-v1"),
        network,
        collect_prefs=False,
        prefs_dir=prefs_dir,
        segment_length=20,  # as long as the segments of the preferences
        log_dir=log_dir,
    )
    while not env.using_reward_from_predictor:  # true once the loss on held-out preferences no longer falls
        time.sleep(0.5)
        print(f"{env.reward_training_steps.value} training steps", flush=True)
    place = env.save_reward_predictor()
    env.close()
    assert place is not None
    print(f"The reward predictor is {place}.")
    return place


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "drlhp_logs/")
