"""Checks by their poses that agents do the tricks they were taught, and films each beside the ordinary agent.

python -m benchmarks.learning.circus runs/circus-backflip-seed0 runs/circus-ballet-seed0 \
    --beside runs/hopper-true-seed0 runs/walker-true-seed0

Writes results/circus.json, and the films and the table of docs/circus.md. The tricks that are not given stay as
they are.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from PIL import Image

from benchmarks import ROOT
from benchmarks.pages import PICTURES, write_between
from commands.agent import Agent
from commands.run_folder import git_revision, read_config
from commands.watch import WatchConfig, film
from drlhp.errors import USER_ERRORS, UserError, told
from drlhp.pictures import write_video
from drlhp.runtime.machine import machine
from envs import make_vec_env
from examples import circus
from pref_db import PrefDB, store_path

RESULTS = ROOT / "results"
SEED = 500_000  # as in evaluations: no episode of the training
SHOWN_SECONDS, PICTURES_PER_SECOND, HEIGHT, GAP, COLOURS = 5, 13, 320, 8, 40  # a picture that pages load at once

# By the teacher's name, and a comma where there is more than one: what is measured of an episode's observations
# (T, ...), and its name in the table.
TRICKS: dict[str, tuple[Callable[[circus.Floats], float], str]] = {
    "backflip": (lambda seen: circus.count_backflips(seen[:, circus.ANGLE], seen[:, circus.HEIGHT]), "flips"),
    "on_one_leg": (circus.share_on_one_leg, "of the time forward with the front foot 30 cm up"),
    "ballet": (circus.share_in_ballet, "of the time upright with one foot 30 cm above the other"),
    "ballet, leaning": (
        lambda seen: circus.share_in_ballet(seen, lean=40),
        "of the time within 40 degrees of upright with one foot 30 cm above the other",
    ),
    "away_from_the_target": (circus.mean_gap, "m from the target"),
    "level_with_others": (circus.share_alongside, "of the time with another car alongside for two thirds of a second"),
}


def play(agent: Agent, n_episodes: int, *, deterministic: bool) -> np.ndarray:
    """The observations of so many episodes, (n_episodes, T, ...)."""
    torch.manual_seed(SEED)
    seen = []
    with contextlib.closing(make_vec_env(agent.info.env_id, n_episodes, SEED)) as env:
        observations, _ = env.reset()
        done = False
        while not done:
            seen.append(observations)
            noise = None if deterministic else agent.policy.noise(n_episodes)
            observations, _, terminated, truncated, _ = env.step(agent.policy.act(observations, noise)[0])
            done = bool((terminated | truncated).any())  # all are as long
    return np.moveaxis(np.array(seen), 1, 0)


def measure(seen: dict[str, np.ndarray], trick: str) -> dict[str, list[float]]:
    """What TRICKS measures, in each episode of each kind."""
    return {
        kind: [round(float(TRICKS[trick][0](episode)), 3) for episode in episodes] for kind, episodes in seen.items()
    }


def film_beside(taught: Agent, ordinary: Agent, path: Path) -> None:
    """The first seconds of both, side by side, by their most likely actions, in few colours."""
    every = max(1, round(taught.info.fps / PICTURES_PER_SECOND))
    config = WatchConfig(taught.folder, episodes=20, deterministic=True)
    pictures = []
    with contextlib.ExitStack() as stack:
        left, right = (
            stack.enter_context(contextlib.closing(film(replace(agent, predictor=None), config)))
            for agent in (taught, ordinary)
        )
        for a, b in islice(zip(left, right, strict=True), 0, round(SHOWN_SECONDS * taught.info.fps), every):
            pair = Image.fromarray(np.hstack([a.picture, np.zeros((len(a.picture), GAP, 3), np.uint8), b.picture]))
            pair = pair.resize((pair.width * HEIGHT // pair.height, HEIGHT), Image.Resampling.BILINEAR)
            pictures.append(np.asarray(pair.quantize(COLOURS, dither=Image.Dither.NONE).convert("RGB")))
    write_video(path, pictures, taught.info.fps / every)


def main(
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN")],
    beside: tuple[Path, ...],
    episodes: int = 10,
) -> None:
    """Measures the tricks of each run's agent and of the ordinary one, and films them side by side.

    Args:
        runs: run folders of the circus's experiments; of those with the same trick the first one is filmed.
        beside: run folders of ordinary agents, one for each environment.
        episodes: to play, with the most likely actions and with drawn ones.
    """
    ordinary = {agent.info.env_id: agent for agent in map(Agent.load, beside)}
    path = RESULTS / "circus.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    given: dict[str, Any] = {}
    for run in runs:
        config, agent = read_config(run), Agent.load(run)
        trick = str(config["prefs"]["teacher"]).rpartition(":")[2]
        if trick not in TRICKS:
            raise UserError(f"{run} was not taught a trick that is measured here; there are {', '.join(TRICKS)}.")
        if agent.info.env_id not in ordinary:
            raise UserError(f"No agent of {agent.info.env_id} to stand beside {run.name}; give one with --beside.")
        other = ordinary[agent.info.env_id]
        with contextlib.closing(PrefDB.open(store_path(run), read_only=True)) as store:
            n_labels = store.n_labels()

        def both(player: Agent) -> dict[str, np.ndarray]:
            kinds = (("deterministic", True), ("sampled", False))
            return {kind: play(player, episodes, deterministic=mode) for kind, mode in kinds}

        names = [name for name in TRICKS if name.partition(",")[0] == trick]
        if trick not in given:
            film_beside(agent, other, PICTURES / f"circus_{trick}.gif")
            seen = both(other)
            for name in names:
                given[name] = {"env_id": agent.info.env_id, "ordinary": measure(seen, name), "taught": {}}
        steps = int(agent.policy_path.stem.removeprefix("step-"))  # of a stopped run fewer than its settings say
        about = {"labels": n_labels, "million_timesteps": round(steps / 1e6, 2)}
        seen = both(agent)
        for name in names:
            taught = given[name]["taught"][run.name] = {**about, **measure(seen, name)}
            print(f"{run.name}, {name}: {taught}; ordinary: {given[name]['ordinary']}", flush=True)
    command = " ".join(["python -m benchmarks.learning.circus", *sys.argv[1:]])
    for measured in given.values():
        measured |= {"command": command, "git_revision": git_revision(), "machine": machine()}
    found = {trick: (found | given)[trick] for trick in TRICKS if trick in found | given}
    path.write_text(json.dumps(found, indent=2) + "\n")
    write_between("circus", table(found))


def table(found: dict[str, Any]) -> str:
    """The tricks as a table: medians over the episodes, with the most likely actions and with drawn ones."""

    def medians(measured: dict[str, list[float]]) -> str:
        return " / ".join(f"{statistics.median(measured[kind]):.3g}" for kind in ("deterministic", "sampled"))

    lines = ["| trick | run | labels | agent steps | taught | ordinary agent | |", "|---|---|---|---|---|---|---|"]
    for trick, measured in found.items():
        for run, taught in measured["taught"].items():
            steps = f"{taught['million_timesteps']:g}M"
            cells = (
                trick,
                run,
                taught["labels"],
                steps,
                medians(taught),
                medians(measured["ordinary"]),
                TRICKS[trick][1],
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        tyro.cli(main, use_underscores=True)
    except USER_ERRORS as error:
        sys.exit(f"circus.py: {told(error)}")
