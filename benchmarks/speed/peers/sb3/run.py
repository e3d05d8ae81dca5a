"""Speed of Stable-Baselines3's A2C and PPO on Pong's own reward, with RL Zoo's settings for Atari.

benchmarks/speed/peers/.venv-sb3/bin/python benchmarks/speed/peers/sb3/run.py a2c --steps 20000
"""

# mypy: disable-error-code="import-not-found"
# The packages are in this script's own environment, which benchmarks/speed/peers/install.py makes.

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from importlib.metadata import version
from typing import Any

import ale_py
import gymnasium
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

ENV_ID = "PongNoFrameskip-v4"
N_ENVS = 16
WARM_UP_STEPS = 2048  # one rollout of PPO, 26 of A2C
WINDOW_SECONDS = 1.0
PACKAGES = ("stable-baselines3", "gymnasium", "ale-py", "torch", "numpy")
VEC_ENVS = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}

# The Zoo lets PPO's learning rate and clip range fall on a line, which costs no time. It has 8 environments for PPO.
SETTINGS: dict[str, dict[str, Any]] = {
    "a2c": {"n_steps": 5, "ent_coef": 0.01, "vf_coef": 0.25},
    "ppo": {
        "n_steps": 128,
        "batch_size": 256,
        "n_epochs": 4,
        "learning_rate": 2.5e-4,
        "clip_range": 0.1,
        "ent_coef": 0.01,
        "vf_coef": 0.5,
    },
}


class StepClock(BaseCallback):
    """Notes the time at the start of each rollout, when everything about the one before is done."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self.steps: list[int] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= WARM_UP_STEPS:
            self.times.append(time.perf_counter())
            self.steps.append(self.num_timesteps)

    def _on_training_end(self) -> None:
        self._on_rollout_start()

    def speeds(self) -> list[float]:
        """Agent steps/s of windows that are whole rollouts of at least `WINDOW_SECONDS` in all, or all there is."""
        speeds: list[float] = []
        start = 0
        for end in range(1, len(self.times)):
            seconds = self.times[end] - self.times[start]
            if seconds >= WINDOW_SECONDS or (end == len(self.times) - 1 and not speeds):
                speeds.append((self.steps[end] - self.steps[start]) / seconds)
                start = end
        return speeds


def make_model(algo: str, vec_env: str) -> BaseAlgorithm:
    """The untrained agent with its environments."""
    gymnasium.register_envs(ale_py)
    envs = VecFrameStack(make_atari_env(ENV_ID, n_envs=N_ENVS, seed=0, vec_env_cls=VEC_ENVS[vec_env]), n_stack=4)
    if algo == "ppo":
        return PPO("CnnPolicy", envs, seed=0, **SETTINGS["ppo"])
    optimizer = {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"eps": 1e-5}}
    return A2C("CnnPolicy", envs, seed=0, policy_kwargs=optimizer, **SETTINGS["a2c"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the speed of Stable-Baselines3 on Pong.")
    parser.add_argument("algo", choices=sorted(SETTINGS))
    parser.add_argument("--steps", type=int, default=20_000, help="agent steps to measure, after the warm-up's 2,048")
    parser.add_argument(
        "--vec_env",
        choices=sorted(VEC_ENVS),
        default="dummy",
        help="how environments run; both as fast on 2 cores, dummy starts sooner",
    )
    args = parser.parse_args()
    model = make_model(args.algo, args.vec_env)
    clock = StepClock()
    model.learn(WARM_UP_STEPS + args.steps, callback=clock)
    model.get_env().close()
    result = {
        "name": f"sb3_{args.algo}",
        "value": round(statistics.median(clock.speeds()), 1),
        "unit": "agent steps/s",
        "seconds": round(clock.times[-1] - clock.times[0], 2),
        "steps": clock.steps[-1] - clock.steps[0],
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "settings": {
            "env_id": ENV_ID,
            "n_envs": N_ENVS,
            "vec_env": args.vec_env,
            "device": str(model.device),
            **SETTINGS[args.algo],
        },
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
