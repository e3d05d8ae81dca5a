"""What the wrapper teaches, and the imitation library beside it: same labels, same steps, same machine, in turns.

python -m benchmarks.learning.against_imitation  # to results/against_imitation.json
python -m benchmarks.learning.against_imitation ours --env_id Pendulum-v1        # one run of ours
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.learning.classic_tasks import HORIZON, make, outcome, processor_time
from commands.run_folder import git_revision
from drlhp.runtime.machine import machine

RESULT = ROOT / "results" / "against_imitation.json"
PEERS = ROOT / "benchmarks" / "speed" / "peers"
SEEDS = (0, 1, 2)
N_ENVS, ROLLOUT = 16, 2048  # steps of a rollout in all environments, as many as imitation's
PPO_SETTINGS: dict[str, Any] = {
    "n_steps": ROLLOUT // N_ENVS,
    "batch_size": 256,
    "learning_rate": 1e-3,
    "gae_lambda": 0.95,
    "gamma": 0.95,
    "n_epochs": 10,
}
SEGMENT_LENGTH = 25
PAUSE_SECONDS = 0.2  # after a segment of each environment, while the teacher and the predictor start


def ours(env_id: str, seed: int, steps: int, n_labels: int, episodes: int) -> dict[str, Any]:
    """Learns for `steps` agent steps, in whole rollouts; then the policy plays on the true reward."""
    # Here and not above, for the wrapper's processes import this file too, and have no use for these.
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

    from drlhp import HumanPreferencesSB3VecEnv

    start, used = time.perf_counter(), processor_time()
    envs = VecMonitor(DummyVecEnv([lambda: make(env_id)] * N_ENVS))
    envs.seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        wrapped = HumanPreferencesSB3VecEnv(
            envs,
            segment_length=SEGMENT_LENGTH,
            n_initial_prefs=n_labels // 5,
            max_prefs_in_db=n_labels,
            max_pref_interface_segs=200,
            log_dir=folder,
            seed=seed,
        )
        wrapped.reset()
        waited = 0
        rng = np.random.default_rng(seed)
        while not wrapped.using_reward_from_predictor:  # so that the agent never learns from the true reward
            if wrapped.pref_db_size.value < n_labels // 5:
                for _ in range(SEGMENT_LENGTH):
                    wrapped.step(np.array([_random_action(wrapped.action_space, rng) for _ in range(N_ENVS)]))
                waited += N_ENVS * SEGMENT_LENGTH
            time.sleep(PAUSE_SECONDS)
        policy = PPO("MlpPolicy", wrapped, seed=seed, **PPO_SETTINGS)
        policy.learn(math.ceil(steps / ROLLOUT) * ROLLOUT)
        n_given = wrapped.pref_db_size.value
        wrapped.close()
    seconds, processor_seconds = time.perf_counter() - start, processor_time() - used
    return {
        **outcome(policy, env_id, episodes),
        "seed": seed,
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor_seconds, 1),
        "steps_besides": waited,
        "labels": n_given,
        "settings": {"ppo": PPO_SETTINGS, "segment_length": SEGMENT_LENGTH, "n_initial_prefs": n_labels // 5},
    }


def _random_action(space: Any, rng: np.random.Generator) -> Any:
    """Drawn from the generator, for the space's own is seeded from nowhere."""
    return rng.integers(space.n) if hasattr(space, "n") else rng.uniform(space.low, space.high).astype(np.float32)


def compare(steps: int, n_labels: int, episodes: int) -> None:
    """Each seed of each task by both, one after the other; goes on where it was interrupted."""
    subprocess.run([sys.executable, str(PEERS / "install.py"), "imitation"], check=True)
    scripts = {
        "ours": [sys.executable, "-m", "benchmarks.learning.against_imitation", "ours", "--env_id"],
        "imitation": [
            str(PEERS / ".venv-imitation" / "bin" / "python"),
            str(PEERS / "imitation" / "classic.py"),
        ],
    }
    settings = {"steps": steps, "labels": n_labels, "episodes": episodes}
    result: dict[str, Any] = {"settings": settings, "machine": machine(), "git_revision": git_revision(), "runs": []}
    if RESULT.exists() and json.loads(RESULT.read_text())["settings"] == settings:
        result["runs"] = json.loads(RESULT.read_text())["runs"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # more would wait for each other, over networks so small
    done = {(run["who"], run["env_id"], run["seed"]) for run in result["runs"]}
    flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    for env_id in HORIZON:
        for seed in SEEDS:
            for who, command in scripts.items():
                if (who, env_id, seed) in done:
                    continue
                run = subprocess.run(
                    [*command, env_id, "--seed", str(seed), *flags], env=environment, capture_output=True, text=True
                )
                if run.returncode:
                    sys.exit(f"{' '.join(command)} failed:\n{run.stderr}")
                result["runs"].append({"who": who, **json.loads(run.stdout.strip().split("\n")[-1])})
                RESULT.write_text(json.dumps(result, indent=2) + "\n")
                last = result["runs"][-1]
                print(f"{env_id} seed {seed} {who}: return {last['return']}, {last['seconds']:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares the wrapper with imitation's preference comparisons.")
    parser.add_argument("what", nargs="?", choices=["compare", "ours"], default="compare")
    parser.add_argument("--env_id", choices=sorted(HORIZON), default="Pendulum-v1", help="task (ours)")
    parser.add_argument("--seed", type=int, default=0, help="seed (ours)")
    parser.add_argument("--steps", type=int, default=50_000, help="agent steps, rounded up to whole rollouts")
    parser.add_argument("--labels", type=int, default=250, help="labels in all")
    parser.add_argument("--episodes", type=int, default=20, help="played by the policy that was learned")
    given = parser.parse_args()
    if given.what == "ours":
        print(json.dumps(ours(given.env_id, given.seed, given.steps, given.labels, given.episodes)))
    else:
        compare(given.steps, given.labels, given.episodes)


if __name__ == "__main__":
    main()
