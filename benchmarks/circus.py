"""Checks Hopper's backflip by its pose, and keeps a short picture of it beside the ordinary agent.

python benchmarks/circus.py runs/circus-backflip-seed0 --beside runs/hopper-true-seed0

Writes results/circus.json and results/circus_backflip.gif.
"""

from __future__ import annotations

import contextlib
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from envs import make_vec_env
from examples.circus import ANGLE, HEIGHT, count_backflips
from pref_db import PrefDB, store_path
from run_folder import git_revision, machine, read_config
from video import write_video
from watch import Agent, WatchConfig, film_pair

RESULTS = Path(__file__).resolve().parent.parent / "results"
SEED = 500_000  # as in evaluations: no episode of the training
SHOWN_STEPS, EVERY, WIDTH = 180, 3, 480  # a picture that pages load at once


def flips(agent: Agent, n_episodes: int, *, deterministic: bool) -> list[int]:
    """Whole backflips that ended on the foot, in each of so many episodes."""
    torch.manual_seed(SEED)
    poses = []
    with contextlib.closing(make_vec_env(agent.info.env_id, n_episodes, SEED)) as env:
        observations, _ = env.reset()
        done = False
        while not done:
            poses.append(observations[:, [HEIGHT, ANGLE]])
            noise = None if deterministic else agent.policy.noise(n_episodes)
            observations, _, terminated, truncated, _ = env.step(agent.policy.act(observations, noise)[0])
            done = bool((terminated | truncated).any())  # all are as long
    heights, angles = np.moveaxis(np.array(poses, np.float64), -1, 0)
    return [count_backflips(angles[:, i], heights[:, i]) for i in range(n_episodes)]


def main(
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN")],
    beside: Path,
    episodes: int = 10,
) -> None:
    """Counts the backflips of each run's agent, and shows the first one's beside the ordinary agent.

    Args:
        runs: run folders of circus-backflip.
        beside: that of an ordinary agent.
        episodes: to play, with the most likely actions and with drawn ones.
    """
    found = {}
    for run in runs:
        agent, labels = Agent.load(run), PrefDB.open(store_path(run), read_only=True)
        found[run.name] = {
            "labels": labels.n_labels(),
            "million_timesteps": read_config(run)["policy"]["million_timesteps"],
            "deterministic": flips(agent, episodes, deterministic=True),
            "sampled": flips(agent, episodes, deterministic=False),
        }
        labels.close()
        print(f"{run.name}: {found[run.name]}", flush=True)
    command = " ".join(["python benchmarks/circus.py", *sys.argv[1:]])
    about = {"command": command, "git_revision": git_revision(), "machine": machine()}
    (RESULTS / "circus.json").write_text(json.dumps({"backflips": found, **about}, indent=2) + "\n")
    left, right = Agent.load(runs[0]), Agent.load(beside)
    with contextlib.closing(film_pair(left, right, WatchConfig(runs[0], deterministic=True))) as scenes:
        pictures = [Image.fromarray(scene.picture) for scene in islice(scenes, 0, SHOWN_STEPS, EVERY)]
    small = [np.asarray(picture.resize((WIDTH, WIDTH * picture.height // picture.width))) for picture in pictures]
    write_video(RESULTS / "circus_backflip.gif", small, left.info.fps / EVERY)


if __name__ == "__main__":
    tyro.cli(main, use_underscores=True)
