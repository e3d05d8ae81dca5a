"""Finds the Atari games that draw an object in frames that the networks never see.

    python -m benchmarks.learning.flicker [GAME ...] [--steps 400] [--output results/flicker.json]

An agent step has four frames. The networks see the maximum of the last two, as in the paper; people see that of all
four. Random play shows for each game how often something is there in the first two frames of several steps in a row
and in none of their last two. What only moves is in another place in the next step, so it does not count.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import ale_py
import gymnasium
import numpy as np
from ale_py.vector_env import AtariVectorEnv

gymnasium.register_envs(ale_py)
GAMES = {spec.kwargs["game"] for spec in gymnasium.registry.values() if spec.id.startswith("ALE/")}
FRAMES = 4  # of an agent step
IN_A_ROW = 4  # steps: what moves has left its place by then
BRIGHTER = 20  # of 255, than anything in the last two frames
SMALLEST = 8  # pixels of an object; the screen has 33,600
BURST = 25  # steps with one action each, so that the agent gets about


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


def main() -> None:
    """Prints the games from the most hidden to the least, and perhaps writes them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("games", nargs="*", help="names of ROMs; all by default")
    parser.add_argument("--steps", type=int, default=400, help="agent steps of each of two plays of a game")
    parser.add_argument("--output", type=Path, help="file for the figures")
    options = parser.parse_args()
    shares = {
        game: float(np.mean([share_hidden(game, options.steps, seed) for seed in (0, 1)]))
        for game in sorted(options.games or GAMES)
    }
    ranked = dict(sorted(shares.items(), key=lambda item: -item[1]))
    for game, share in ranked.items():
        print(f"{game:24} {share:6.1%}", flush=True)
    if options.output:
        options.output.write_text(json.dumps({"steps": options.steps, "hidden": ranked}, indent=1) + "\n")


if __name__ == "__main__":
    main()
