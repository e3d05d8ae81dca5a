"""What the wrapper costs, what it teaches through Stable-Baselines3, and what it leaves behind.

python -m benchmarks.speed.wrapper overhead
python -m benchmarks.speed.wrapper overhead --games sync    # pip install opencv-python-headless==5.0.0.93
python -m benchmarks.speed.wrapper moving_dot --seed 0
python -m benchmarks.speed.wrapper lamp --seed 0
python -m benchmarks.speed.wrapper leaks

python -m benchmarks.speed.wrapper docs

Each puts what it measured into results/wrapper.json, beside what was there of the others. The last one writes the
tables of that, and of results/against_imitation.json, into docs/wrapper.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ale_py.vector_env
import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from benchmarks import ROOT
from benchmarks.pages import write_between
from commands.run_folder import git_revision, short_revision
from drlhp import HumanPreferencesEnvWrapper, HumanPreferencesSB3VecEnv, HumanPreferencesVectorEnv, Settings
from drlhp.networks.device import cpu_has_bf16
from drlhp.runtime import checkpoint
from drlhp.runtime.channels import peak_memory_mb
from drlhp.runtime.machine import machine
from envs import make_env
from examples.lamp_env import LampEnv
from examples.wrapper_everything import picture_of
from reward_predictor import ARCHITECTURE, RewardPredictor

RESULT, COMPARED = ROOT / "results" / "wrapper.json", ROOT / "results" / "against_imitation.json"
NOBODY: dict[str, Any] = {"collect_prefs": False, "train_reward": False}


def record(name: str, measured: dict[str, Any]) -> None:
    """Puts a measurement in the place of the last one of that name, and prints it."""
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    command = " ".join(["python -m benchmarks.speed.wrapper", *sys.argv[1:]])
    results[name] = {**measured, "command": command, "git_revision": git_revision(), "machine": machine()}
    RESULT.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    print(f"{name}: {json.dumps(measured)}", flush=True)


def save_untrained(envs: HumanPreferencesVectorEnv, folder: Path) -> None:
    """A predictor as the wrapper would train one; how long it takes does not depend on its weights."""
    info = envs.system.info
    config = Settings().predictor_config(info.kind)
    state = {
        "kind": "reward_predictor",
        "env_id": info.env_id,
        "config": {name: getattr(config, name) for name in ARCHITECTURE},
        "inputs": info.inputs.as_dict(),
        "pretrained": True,
        "weights": RewardPredictor(info.inputs, config).state_dict(),
    }
    checkpoint.save(folder / "reward_predictor", 1, state)


def pong() -> gymnasium.Env[Any, Any]:
    """The game as agents see it: four frames a step, four gray pictures of 84 by 84 pixels."""
    return FrameStackObservation(AtariPreprocessing(gymnasium.make("PongNoFrameskip-v4")), 4)


def overhead(games: str, n_envs: int, steps: int, rounds: int) -> None:
    """Milliseconds per step of all environments, in turns within one run.

    They are ale-py's own, which it steps on all cores at once, or Gymnasium's `SyncVectorEnv`, on one core.

    Bare; wrapped with nothing to do; with segments that are asked about; with predictions. They are the same
    environments each time, for others lie elsewhere in memory, which alone makes some per cent.
    """
    with tempfile.TemporaryDirectory() as folder:
        if games == "ale":
            bare: VectorEnv[Any, Any, Any] = ale_py.vector_env.AtariVectorEnv("pong", num_envs=n_envs)
        else:
            bare = SyncVectorEnv([pong] * n_envs)
        wrapped = HumanPreferencesVectorEnv(bare, **NOBODY)
        save_untrained(wrapped, Path(folder))
        predicting = HumanPreferencesVectorEnv(bare, **NOBODY, pretrained_reward_predictor_dir=folder)
        collecting = HumanPreferencesVectorEnv(bare, train_reward=False, n_initial_prefs=2, log_dir=folder)
        kinds: dict[str, Any] = {"bare": bare, "wrapped": wrapped, "collecting": collecting, "predicting": predicting}
        took: dict[str, list[float]] = {name: [] for name in kinds}  # ms of a step of all environments
        used: dict[str, list[float]] = {name: [] for name in kinds}  # ms that the cores computed for it, all together
        for envs in kinds.values():
            envs.reset(seed=0)
        actions = np.zeros(n_envs, np.int64)
        for _ in range(rounds):
            for name, envs in kinds.items():
                start, processor_start = time.perf_counter(), time.process_time()
                for _ in range(steps):
                    envs.step(actions)
                took[name].append((time.perf_counter() - start) / steps * 1000)
                used[name].append((time.process_time() - processor_start) / steps * 1000)
        for envs in kinds.values():
            envs.close()
    measured: dict[str, Any] = {"n_envs": n_envs, "steps": steps, "rounds": rounds, "bfloat16": cpu_has_bf16()}
    for name in kinds:
        measured[name] = {
            "ms_per_step": round(statistics.median(took[name]), 3),
            "lowest": round(min(took[name]), 3),
            "highest": round(max(took[name]), 3),
            "overhead": over(took[name], took["bare"]),
            "processor_ms_per_step": round(statistics.median(used[name]), 3),
            "processor_overhead": over(used[name], used["bare"]),
        }
    record(f"overhead_{games}", measured)


def over(mine: list[float], base: list[float]) -> float:
    """How much more it is, as a share: the median over the rounds, in each of which both had the same machine."""
    return round(statistics.median(a / b for a, b in zip(mine, base, strict=True)) - 1, 4)


def random_steps_until_predicted(env: HumanPreferencesSB3VecEnv, n_labels: int) -> int:
    """Steps at random for the initial labels, then waits for a predictor, so that no agent learns from the true reward.

    Returns how many steps it took.
    """
    env.reset()
    steps = 0
    while not env.using_reward_from_predictor:
        if env.pref_db_size.value < n_labels:
            env.step(np.array([env.action_space.sample() for _ in range(env.num_envs)]))
            steps += env.num_envs
        else:
            time.sleep(0.1)  # the trainer has all that it waits for, and needs the processor
    return steps


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
        env.action_space.seed(seed)
        steps_before = random_steps_until_predicted(env, n_labels // 2)
        waited = time.monotonic() - started
        model = A2C("CnnPolicy", env, seed=seed, gamma=0.9, ent_coef=0.01, policy_kwargs={"normalize_images": True})
        model.learn(steps)
        returns = [episode["r"] for episode in model.ep_info_buffer or ()]
        measured = {
            "true_return": round(float(np.mean(returns)), 1),
            "episodes": len(returns),
            "steps": steps,
            "random_steps_before": steps_before,
            "labels": env.pref_db_size.value,
            "training_batches": env.reward_training_steps.value,
            "seconds_until_predicted": round(waited),
            "seconds": round(time.monotonic() - started),
        }
        env.close()
    record(f"moving_dot_seed{seed}", measured)


def lamp(seed: int, steps: int, n_labels: int) -> None:
    """An environment unknown to the project (examples/lamp_env.py), learned by Stable-Baselines3's PPO."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        env = HumanPreferencesSB3VecEnv(
            make_vec_env(LampEnv, n_envs=8, seed=seed),
            "feature_points",  # what matters is where the lamp is
            obs_transform_func=picture_of,
            segment_length=20,
            n_initial_prefs=n_labels // 2,
            n_initial_training_steps=100,
            max_prefs_in_db=n_labels,
            max_pref_interface_segs=100,
            log_dir=folder,
            seed=seed,
        )
        env.action_space.seed(seed)
        steps_before = random_steps_until_predicted(env, n_labels // 2)
        model = PPO("MultiInputPolicy", env, seed=seed, n_steps=64, batch_size=128, n_epochs=4, gamma=0.9)
        judge = make_vec_env(LampEnv, n_envs=4, seed=1000 + seed)
        before, _ = evaluate_policy(model, judge, 20, deterministic=False)
        model.learn(steps)
        after, _ = evaluate_policy(model, judge, 20, deterministic=False)
        measured = {
            "true_return_before": round(float(before), 1),
            "true_return_after": round(float(after), 1),
            "steps": model.num_timesteps,
            "random_steps_before": steps_before,
            "labels": env.pref_db_size.value,
            "seconds": round(time.monotonic() - started),
        }
        env.close()
    record(f"lamp_seed{seed}", measured)


def leaks(times: int, mp_context: str) -> None:
    """Opens, steps and closes again and again; what there is of each thing after some of the times."""

    def counts() -> dict[str, int]:
        gc.collect()
        resident = Path("/proc/self/statm").read_text().split()[1]
        return {
            "processes": len(_children()),  # one is multiprocessing's tracker, which stays
            "threads": len(os.listdir("/proc/self/task")),
            "python_threads": threading.active_count(),
            "file_handles": len(os.listdir("/proc/self/fd")),
            "resident_mb": int(resident) * os.sysconf("SC_PAGE_SIZE") // 2**20,
            "peak_mb": round(peak_memory_mb()),
        }

    after: dict[str, dict[str, int]] = {}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for i in range(1, times + 1):
            env = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), mp_context=mp_context, log_dir=folder)
            env.reset(seed=0)
            for _ in range(200):
                if any(env.step(env.action_space.sample())[2:4]):
                    env.reset()
            env.close()
            if i in (1, 2, times // 4, times // 2, times):
                after[str(i)] = counts()
                print(f"after {i}: {after[str(i)]}", flush=True)
    took = round(time.monotonic() - started)
    record(f"leaks_{mp_context}", {"times": times, "steps": 200, "after": after, "seconds": took})


def _children() -> list[int]:
    """Processes whose parent is this one."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[1]) == os.getpid():
            found.append(int(stat.parent.name))
    return found


def words(name: str, measured: dict[str, Any]) -> str:
    """A measurement as a cell of the table."""
    if name.startswith("overhead"):
        asked = (
            (measured["wrapped"], "with nothing to do"),
            (measured["collecting"], "while segments are asked about"),
            (measured["predicting"], "with predictions"),
        )
        each = [
            f"{kind['overhead']:+.1%} ({kind['processor_overhead']:+.1%} of the processor's time) {what}"
            for kind, what in asked
        ]
        step = f"{measured['bare']['ms_per_step']:.2f} ms"
        whose = {"overhead_ale": "ale-py's own vector environment", "overhead_sync": "Gymnasium's `SyncVectorEnv`"}
        return f"of a bare step of {measured['n_envs']} games of Pong ({whose[name]}, {step}): {', '.join(each)}"
    if name.startswith("leaks"):
        first, last = list(measured["after"].values())[1], list(measured["after"].values())[-1]
        kinds = ("processes", "threads", "file_handles", "resident_mb")
        counts = ", ".join(f"{kind.replace('_', ' ')} {first[kind]} and {last[kind]}" for kind in kinds)
        return f"after 2 and after {measured['times']} times: {counts}"
    if name.startswith("moving_dot"):
        before = f"{measured['labels']} labels, {measured['steps']:,} steps"
        return f"true reward {measured['true_return']} over {measured['episodes']} episodes; {before}"
    return (
        f"true reward {measured['true_return_before']} before and {measured['true_return_after']} after; "
        f"{measured['labels']} labels, {measured['steps']:,} steps"
    )


def compared() -> list[str]:
    """The table of the comparison with imitation."""
    result = json.loads(COMPARED.read_text())
    lines = [
        "| task | whose | return by seed | mean | seconds by seed | processor's seconds |",
        "|---|---|---|---|---|---|",
    ]
    for env_id in sorted({run["env_id"] for run in result["runs"]}):
        for who in ("ours", "imitation"):
            runs = [run for run in result["runs"] if (run["who"], run["env_id"]) == (who, env_id)]
            if not runs:
                continue
            returns, seconds = [run["return"] for run in runs], [f"{run['seconds']:.0f}" for run in runs]
            used = [f"{run['processor_seconds']:.0f}" for run in runs]
            cells = (env_id, who, ", ".join(map(str, returns)), f"{np.mean(returns):.1f}", ", ".join(seconds))
            lines.append(f"| {' | '.join(cells)} | {', '.join(used)} |")
    settings = result["settings"]
    what = f"{settings['labels']} labels, {settings['steps']:,} steps, rounded up to whole rollouts"
    return [
        *lines,
        "",
        f"{what}; `python -m benchmarks.learning.against_imitation`, {short_machine(result['machine'])}, "
        f"commit {short_revision(result['git_revision'])}.",
    ]


def short_machine(about: dict[str, Any]) -> str:
    """Of what `machine` says, what a table has room for."""
    return f"{about['processor']}, {about['cores']} core{'s' * (about['cores'] > 1)}"


def docs() -> None:
    """Writes the tables into docs/wrapper.md."""
    results = json.loads(RESULT.read_text())
    lines = ["| what | measured | machine | command | commit |", "|---|---|---|---|---|"]
    for name, measured in results.items():
        where, revision = short_machine(measured["machine"]), short_revision(measured["git_revision"])
        cells = (name, words(name, measured), where, f"`{measured['command']}`", revision)
        lines.append(f"| {' | '.join(cells)} |")
    if COMPARED.exists():
        lines += ["", *compared()]
    write_between("measured", "\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the wrapper.")
    parser.add_argument("what", choices=["overhead", "moving_dot", "lamp", "leaks", "docs"])
    parser.add_argument("--games", choices=["ale", "sync"], default="ale", help="whose environments (overhead)")
    parser.add_argument("--n_envs", type=int, default=16, help="environments (overhead)")
    parser.add_argument("--steps", type=int, help="steps per reading (overhead), of all environments (others)")
    parser.add_argument("--rounds", type=int, default=20, help="readings of each (overhead)")
    parser.add_argument("--seed", type=int, default=0, help="seed (moving_dot, lamp)")
    parser.add_argument("--labels", type=int, help="labels in all (moving_dot, lamp)")
    parser.add_argument("--times", type=int, default=100, help="how often (leaks)")
    parser.add_argument("--mp_context", default="spawn", help="how processes are started (leaks)")
    given = parser.parse_args()
    if given.what == "overhead":
        overhead(given.games, given.n_envs, given.steps or 100, given.rounds)
    elif given.what == "moving_dot":
        moving_dot(given.seed, given.steps or 100_000, given.labels or 500)
    elif given.what == "lamp":
        lamp(given.seed, given.steps or 30_000, given.labels or 100)
    elif given.what == "leaks":
        leaks(given.times, given.mp_context)
    else:
        docs()


if __name__ == "__main__":
    main()
