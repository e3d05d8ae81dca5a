"""What the wrapper costs, what it teaches through Stable-Baselines3, and what it leaves behind.

python benchmarks/wrapper.py overhead
python benchmarks/wrapper.py moving_dot --seed 0
python benchmarks/wrapper.py leaks
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ale_py.vector_env
import gymnasium
import numpy as np

import checkpoint
from channels import peak_memory_mb
from drlhp import HumanPreferencesEnvWrapper, HumanPreferencesSB3VecEnv, HumanPreferencesVectorEnv, Settings
from envs import make_env
from reward_predictor import ARCHITECTURE, RewardPredictor, inputs_as_dict

NOBODY: dict[str, Any] = {"collect_prefs": False, "train_reward": False}


def save_untrained(envs: HumanPreferencesVectorEnv, folder: Path) -> None:
    """A predictor as the wrapper would train one; how long it takes does not depend on its weights."""
    info = envs.system.info
    config = Settings().predictor_config(info.kind)
    state = {
        "kind": "reward_predictor",
        "env_id": info.env_id,
        "config": {name: getattr(config, name) for name in ARCHITECTURE},
        "inputs": inputs_as_dict(info.inputs),
        "pretrained": True,
        "weights": RewardPredictor(info.inputs, config).state_dict(),
    }
    checkpoint.save(folder / "reward_predictor", 1, state)


def overhead(n_envs: int, steps: int, rounds: int) -> None:
    """Milliseconds per step of all environments, bare, wrapped, and with predictions; in turns within one run."""
    with tempfile.TemporaryDirectory() as folder:
        bare = ale_py.vector_env.AtariVectorEnv("pong", num_envs=n_envs)
        wrapped = HumanPreferencesVectorEnv(ale_py.vector_env.AtariVectorEnv("pong", num_envs=n_envs), **NOBODY)
        save_untrained(wrapped, Path(folder))
        predicting = HumanPreferencesVectorEnv(
            ale_py.vector_env.AtariVectorEnv("pong", num_envs=n_envs), **NOBODY, pretrained_reward_predictor_dir=folder
        )
        rows: dict[str, tuple[Any, list[float]]] = {
            "bare": (bare, []),
            "wrapped, no training": (wrapped, []),
            "wrapped, predicting": (predicting, []),
        }
        for envs, _ in rows.values():
            envs.reset(seed=0)
        actions = np.zeros(n_envs, np.int64)
        for _ in range(rounds):
            for envs, took in rows.values():
                start = time.perf_counter()
                for _ in range(steps):
                    envs.step(actions)
                took.append((time.perf_counter() - start) / steps * 1000)
        base = statistics.median(rows["bare"][1])
        for name, (envs, took) in rows.items():
            middle = statistics.median(took)
            spread = f"{min(took):.2f} to {max(took):.2f}"
            print(f"{name}: {middle:.2f} ms per step of {n_envs} ({spread}), {middle / base - 1:+.1%}", flush=True)
            envs.close()


def moving_dot(seed: int, steps: int, n_labels: int) -> None:
    """Stable-Baselines3's A2C on the moving dot: true rewards of the last 100 episodes, never seen by the agent."""
    from stable_baselines3 import A2C
    from stable_baselines3.common.env_util import make_vec_env

    started = time.monotonic()
    inner = make_vec_env(lambda: make_env("MovingDotNoFrameskip-v0"), n_envs=16, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        env = HumanPreferencesSB3VecEnv(
            inner,
            "feature_points",
            segment_length=25,
            n_initial_prefs=n_labels // 2,
            n_initial_training_steps=300,
            max_prefs_in_db=n_labels,
            max_pref_interface_segs=200,
            log_dir=folder,
            seed=seed,
        )
        env.reset()
        while not env.using_reward_from_predictor:
            env.step(np.array([env.action_space.sample() for _ in range(env.num_envs)]))
        waited = time.monotonic() - started
        model = A2C("CnnPolicy", env, seed=seed, gamma=0.9, ent_coef=0.01, policy_kwargs={"normalize_images": True})
        model.learn(steps)
        returns = [episode["r"] for episode in model.ep_info_buffer or ()]
        print(
            f"seed {seed}: true reward {np.mean(returns):.1f} over the last {len(returns)} episodes, {steps} steps, "
            f"{env.pref_db_size.value} labels, {env.reward_training_steps.value} training batches; "
            f"{waited:.0f} s until the first prediction, {time.monotonic() - started:.0f} s in all",
            flush=True,
        )
        env.close()


def leaks(times: int) -> None:
    """Opens, steps and closes again and again; prints what there is of each thing after the first and the last time."""

    def counts() -> str:
        gc.collect()
        resident = Path("/proc/self/statm").read_text().split()[1]
        megabytes = int(resident) * os.sysconf("SC_PAGE_SIZE") / 2**20
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return (
            f"{len(children)} processes (one is Python's resource tracker), {threading.active_count()} threads, "
            f"{len(os.listdir('/proc/self/fd'))} file handles, {megabytes:.0f} MB resident, "
            f"{peak_memory_mb():.0f} MB at most"
        )

    with tempfile.TemporaryDirectory() as folder:
        for i in range(times):
            env = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), log_dir=folder)
            env.reset(seed=0)
            for _ in range(200):
                if any(env.step(env.action_space.sample())[2:4]):
                    env.reset()
            env.close()
            if i in (0, 1, times // 2, times - 1):
                print(f"after {i + 1}: {counts()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the wrapper.")
    parser.add_argument("what", choices=["overhead", "moving_dot", "leaks"])
    parser.add_argument("--n_envs", type=int, default=16, help="environments (overhead)")
    parser.add_argument("--steps", type=int, help="steps per reading (overhead), of all environments (moving_dot)")
    parser.add_argument("--rounds", type=int, default=20, help="readings of each (overhead)")
    parser.add_argument("--seed", type=int, default=0, help="seed (moving_dot)")
    parser.add_argument("--labels", type=int, default=500, help="labels in all (moving_dot)")
    parser.add_argument("--times", type=int, default=100, help="how often (leaks)")
    given = parser.parse_args()
    if given.what == "overhead":
        overhead(given.n_envs, given.steps or 100, given.rounds)
    elif given.what == "moving_dot":
        moving_dot(given.seed, given.steps or 100_000, given.labels)
    else:
        leaks(given.times)


if __name__ == "__main__":
    main()
