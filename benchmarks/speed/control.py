"""Speed of PPO on a MuJoCo task, as `run.py` trains it and as Stable-Baselines3 does, in turns on the same machine.

python -m benchmarks.speed.control                # to results/control.json
python -m benchmarks.speed.control --seconds 5 --rounds 1 --output /tmp/control.json

Both learn from Gymnasium's own reward with the settings that each has for it; Stable-Baselines3's are its defaults,
with observations and rewards normalised, as its documentation and RL Zoo have it for these tasks.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import tyro

from benchmarks import ROOT
from benchmarks.speed.whole_runs import speed
from commands.run_folder import git_revision
from drlhp.runtime.machine import machine

NO_EVALUATIONS = ("--eval_interval_million_timesteps", "0")


def stable_baselines3(env_id: str, seconds: float) -> None:
    """Prints agent steps/s of Stable-Baselines3's PPO, whole rollouts with their updates; in a process of its own."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    from benchmarks.speed.peers.sb3.run import StepClock

    class Clock(StepClock):
        def _on_step(self) -> bool:
            return not self.times or self.times[-1] - self.times[0] < seconds

    clock = Clock()
    PPO("MlpPolicy", VecNormalize(make_vec_env(env_id, seed=0)), seed=0, device="cpu").learn(10**9, callback=clock)
    print(json.dumps((clock.steps[-1] - clock.steps[0]) / (clock.times[-1] - clock.times[0])))


def measure_stable_baselines3(env_id: str, seconds: float) -> float:
    """The same, started as a process."""
    flags = ["--peer", "--env_id", env_id, "--seconds", str(seconds)]
    command = [sys.executable, "-m", "benchmarks.speed.control", *flags]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def main(
    env_id: str = "Hopper-v5",
    seconds: float = 30.0,
    rounds: int = 3,
    output: Path = ROOT / "results" / "control.json",
    peer: bool = False,
) -> None:
    """Measures both in turns, and writes all readings with their medians.

    Args:
        env_id: one of Gymnasium's MuJoCo tasks.
        seconds: of training in each reading.
        rounds: readings of each.
        output: where to write.
        peer: take one reading of Stable-Baselines3 and print it.
    """
    if peer:
        stable_baselines3(env_id, seconds)
        return
    readings: dict[str, list[float]] = {"this project": [], "stable_baselines3": []}
    for _ in range(rounds):
        run = speed("ppo", seconds, "train_policy_with_original_rewards", env_id, *NO_EVALUATIONS)
        readings["this project"].append(float(run["value"]))
        readings["stable_baselines3"].append(measure_stable_baselines3(env_id, seconds))
        print({name: round(values[-1]) for name, values in readings.items()}, flush=True)
    medians = {name: statistics.median(values) for name, values in readings.items()}
    result = {
        "command": f"python -m benchmarks.speed.control --env_id {env_id} --seconds {seconds:g} --rounds {rounds}",
        "revision": git_revision(),
        "machine": machine(),
        "unit": "agent steps/s",
        "env_id": env_id,
        "readings": {name: [round(value, 1) for value in values] for name, values in readings.items()},
        "medians": {name: round(value, 1) for name, value in medians.items()},
        "times_as_fast": round(medians["this project"] / medians["stable_baselines3"], 2),
    }
    output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["medians"]), f"{result['times_as_fast']} times as fast")


if __name__ == "__main__":
    tyro.cli(main, use_underscores=True)
