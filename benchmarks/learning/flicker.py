"""Finds the Atari games that draw an object in frames that the networks never see.

    python -m benchmarks.learning.flicker [GAME ...] [--steps 400] [--output results/flicker.json]

An agent step has four frames. In the paper the networks see the maximum of the last two; people see that of all four.
Random play shows for each game how often something is there in the first two frames of several steps in a row and in
none of their last two. What only moves is in another place in the next step, so it does not count. An object that is
missing in some steps only does not count either, because the networks see the pictures of four steps.

`chosen` makes of these figures the list of games in which the networks see all four frames (`envs/table.py`). For
these, the same is measured in what the networks get, with and without `--all_frames`, and what that costs. With
`--hidden FILE` only this is measured, and the list is taken from the file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import ale_py
import gymnasium
import numpy as np
from ale_py.vector_env import AtariVectorEnv

from drlhp.runtime.machine import machine
from envs import make_vec_env
from envs.preprocessing import area_resize

gymnasium.register_envs(ale_py)
GAMES = {spec.kwargs["game"]: spec.id for spec in gymnasium.registry.values() if spec.id.startswith("ALE/")}
PAPERS = ("beam_rider", "breakout", "enduro", "pong", "qbert", "seaquest", "space_invaders")
OFTEN = 0.01  # share of moments from which on a game hides too much
FRAMES = 4  # of an agent step
IN_A_ROW = 4  # steps: what moves has left its place by then
BRIGHTER = 20  # of 255, than anything in the last two frames
SMALLEST = 8  # pixels of an object; the screen has 33,600
SMALLEST_CELLS = 2  # the same in the networks' picture, which has a fifth as many
BURST = 25  # steps with one action each, so that the agent gets about
N_ENVS, SPEED_STEPS, SPEED_ROUNDS = 16, 20, 7


def hidden_pixels(frames: np.ndarray) -> int:
    """Returns how many pixels are lit in the first two frames of all these steps, and never in their last two.

    Shape: frames (steps, 4, H, W) uint8.
    """
    early = frames[:, : FRAMES // 2].max(1).min(0).astype(np.int16)
    late = frames[:, FRAMES // 2 :].max((0, 1)).astype(np.int16)
    return int((early > late + BRIGHTER).sum())


def share_hidden(game: str, steps: int, seed: int) -> float:
    """Returns the share of moments of random play in which an object of the game is hidden from the networks."""
    emulator = AtariVectorEnv(
        game, 1, frameskip=1, maxpool=False, stack_num=1, img_height=210, img_width=160, num_threads=1
    )
    rng, newest, found = np.random.default_rng(seed), list[np.ndarray](), list[bool]()
    n_actions = int(emulator.single_action_space.n)  # type: ignore[attr-defined]
    emulator.reset(seed=seed)
    action = np.zeros(1, np.int64)
    for step in range(steps):
        if step % BURST == 0 or rng.random() < 0.1:
            action = rng.integers(n_actions, size=1)
        frames, over = [], False
        for _ in range(FRAMES):
            observation, _, terminated, truncated, _ = emulator.step(action)
            frames.append(observation[0, -1])
            over = over or bool(terminated[0] or truncated[0])
        newest = [] if over else [*newest[1 - IN_A_ROW :], np.stack(frames)]
        if over:
            emulator.reset(seed=seed + step)
        if len(newest) == IN_A_ROW:
            found.append(hidden_pixels(np.stack(newest)) >= SMALLEST)
    emulator.close()
    return float(np.mean(found)) if found else 0.0


def chosen(hidden: Mapping[str, float]) -> list[str]:
    """Returns the games in which the networks see all four frames of a step, from the shares of `share_hidden`.

    The paper's games are none of them, because their results are compared with the paper's.
    """
    return sorted(game for game, share in hidden.items() if share >= OFTEN and game not in PAPERS)


def share_missed(game: str, steps: int, seed: int, *, all_frames: bool) -> float:
    """Returns the share of moments of random play in which an object is in none of the four pictures of the networks.

    It is compared with the maximum of all frames at the networks' size; what is half as bright there is not missed.
    """
    rng, newest, found = np.random.default_rng(seed), list[tuple[np.ndarray, np.ndarray]](), list[bool]()
    raw: dict[str, Any] = {"frameskip": 1, "maxpool": False, "stack_num": 1, "img_height": 210, "img_width": 160}
    screens = AtariVectorEnv(game, 1, **raw, repeat_action_probability=0.25, num_threads=1)
    with contextlib.closing(screens), contextlib.closing(made(game, 1, all_frames)) as env:
        env.reset(seed=seed)
        screens.reset(seed=seed)
        action = np.zeros(1, np.int64)
        for step in range(steps):
            if step % BURST == 0 or rng.random() < 0.1:
                action = rng.integers(env.info.n_actions or 1, size=1)
            truth = np.max([screens.step(action)[0][0, -1] for _ in range(FRAMES)], axis=0)
            seen, _, terminated, truncated, _ = env.step(action)
            newest = [*newest[1 - IN_A_ROW :], (area_resize(truth, *seen.shape[2:]), seen[0, -1].copy())]
            if terminated[0] or truncated[0]:
                newest = []
                env.reset(seed=seed + step)
                screens.reset(seed=seed + step)
            if len(newest) == IN_A_ROW:
                there, shown = (np.stack(pictures).astype(np.int16) for pictures in zip(*newest, strict=True))
                dark = there.min(0) > np.maximum(shown.max(0) + BRIGHTER, 2 * shown.max(0))
                found.append(bool(dark.sum() >= SMALLEST_CELLS))
    return float(np.mean(found)) if found else 0.0


def made(game: str, n_envs: int, all_frames: bool) -> Any:
    """Returns environments of a game as a training makes them."""
    return make_vec_env(GAMES[game], n_envs, seed=0, all_frames=all_frames)


def relative_speed(game: str) -> float:
    """Returns the agent steps per second with all frames, as a share of those without, side by side."""
    ratios, rng = list[float](), np.random.default_rng(0)
    with contextlib.closing(made(game, N_ENVS, True)) as whole, contextlib.closing(made(game, N_ENVS, False)) as two:
        for _ in range(SPEED_ROUNDS):
            seconds = []
            for env in (whole, two):
                env.reset(seed=0)
                began = time.perf_counter()
                for _ in range(SPEED_STEPS):
                    env.step(rng.integers(env.info.n_actions, size=N_ENVS))
                seconds.append(time.perf_counter() - began)
            ratios.append(seconds[1] / seconds[0])
    return median(ratios)


def effect(game: str, steps: int) -> dict[str, float]:
    """Returns what `--all_frames` changes in a game: the share of moments with a missed object, and the speed."""
    missed = {
        all_frames: float(np.mean([share_missed(game, steps, seed, all_frames=all_frames) for seed in (0, 1)]))
        for all_frames in (False, True)
    }
    return {"missed": missed[False], "missed_with_all_frames": missed[True], "relative_speed": relative_speed(game)}


def main() -> None:
    """Prints the games from the most hidden to the least, and perhaps writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("games", nargs="*", help="names of ROMs; all by default")
    parser.add_argument("--steps", type=int, default=400, help="agent steps of each of two plays of a game")
    parser.add_argument("--output", type=Path, help="file for the figures")
    parser.add_argument("--hidden", type=Path, help="earlier output, of which the shares are taken")
    options = parser.parse_args()
    shares = json.loads(options.hidden.read_text())["hidden"] if options.hidden else {}
    for game in () if options.hidden else sorted(options.games or GAMES):
        shares[game] = float(np.mean([share_hidden(game, options.steps, seed) for seed in (0, 1)]))
    ranked = dict(sorted(shares.items(), key=lambda item: -item[1]))
    for game, share in ranked.items():
        print(f"{game:24} {share:6.1%}", flush=True)
    if options.output:
        effects = {game: effect(game, options.steps) for game in chosen(ranked)}
        record = {"steps": options.steps, "hidden": ranked, "all_frames": effects, "machine": machine()}
        options.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
