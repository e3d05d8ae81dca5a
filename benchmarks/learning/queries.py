"""Measures how many labels each query strategy needs until the reward predictor is right about unseen pairs.

python -m benchmarks.learning.queries             # measures, writes results/queries.json and a picture for docs/
python -m benchmarks.learning.queries pages       # writes the results into docs/

Half of the segments are those of an untrained policy, half of one that has learned for a while on the true reward; each
seed draws anew which of them may be asked about. A synthetic teacher answers without mistakes. After some labels the
trainer of a run trains a predictor from scratch, which is then tested on pairs of the remaining segments.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro

from a2c.crew import Arena
from a2c.model import Policy
from a2c.returns import advantages
from a2c.runner import Rollout, Runner
from a2c.update import Batch, make_optimizer, ppo_update
from benchmarks import ROOT
from benchmarks.pages import PICTURES, write_between
from benchmarks.speed.parts import scratch_folder
from commands.config import RunConfig
from commands.flags import parse
from commands.run_folder import git_revision
from drlhp.data.candidate import Candidate
from drlhp.data.comparison import Comparison, Label
from drlhp.data.segment import Segment
from drlhp.labelling.gatherers import SyntheticGatherer
from drlhp.labelling.teachers import SyntheticTeacher
from drlhp.runtime.channels import Channels
from drlhp.runtime.machine import machine
from drlhp.training.trainer import Trainer, TrainerSpec
from envs import env_info, make_vec_env
from pref_db import PrefDB
from pref_interface import PrefInterface
from reward_predictor import PredictorInputs, RewardPredictor

RESULTS = ROOT / "results"
POOL, HELD_OUT, HELD_OUT_PAIRS = 400, 200, 4000  # segments; pairs of those held out, on which accuracy is measured
UPDATES = 10  # of PPO, between the two halves of the segments
LABELS = (50, 100, 200, 300)  # numbers of labels at which accuracy is measured
REFRESHED = (25, 150)  # numbers at which `disagreement` gets a new ensemble, too
TARGET = 0.8  # accuracy
STRATEGIES = {
    "random": "at random",
    "disagreement": "where the ensemble disagrees",
    "ordering": "in order",
    "implied": "in order, trained on implied pairs too",
}
LINES = {"random": "C0", "disagreement": "C1", "ordering": "C2", "implied": "C3"}


def gather(env_id: str, n: int) -> list[Segment]:
    """Returns n segments of an untrained policy, and n of the same policy after some updates."""
    config, info = parse(["train_policy_with_original_rewards", env_id, "--algo", "ppo"]).policy, env_info(env_id)
    torch.manual_seed(0)
    env, policy = make_vec_env(env_id, config.n_envs, seed=0, in_process=True), Policy(info, config.policy_network)
    rollout = Rollout.allocate(info, config.n_steps, config.n_envs, Arena(), policy.channels_last)
    runner = Runner([env], info, policy, rollout, 0, watch=False, record=False)
    optimizer = make_optimizer(policy, config)
    untrained, trained = list[Segment](), list[Segment]()
    while len(untrained) < n:
        runner.collect()
        untrained += [one.segment for one in runner.cut(0)]
    for _ in range(UPDATES):
        r, _ = runner.collect()
        runner.cut(0)
        arrays = (r.rewards, r.values, r.last_values, r.terminated, r.truncated)
        r.advantages[:] = advantages(*arrays, gamma=config.gamma, gae_lambda=config.gae_lambda)
        r.returns[:] = r.advantages + r.values
        ppo_update(policy, optimizer, Batch.of(r), config)
    while len(trained) < n:
        runner.collect()
        trained += [one.segment for one in runner.cut(0)]
    env.close()
    return untrained[:n] + trained[:n]


def implied_pairs(labels: Sequence[Label]) -> list[tuple[str, str]]:
    """Returns pairs (better, worse) of segments that nobody compared, but whose answer follows from several labels.

    Equal segments count as one. If answers contradict each other, what follows from them is left out.
    """
    number = {
        segment: i for i, segment in enumerate(dict.fromkeys(id for label in labels for id in (label.a, label.b)))
    }
    at_least, above = (np.zeros((len(number), len(number)), np.float32) for _ in range(2))
    for label in labels:
        if label.mu is not None:
            a, b = number[label.a], number[label.b]
            above[a, b], above[b, a] = (label.mu[0] > label.mu[1]), (label.mu[1] > label.mu[0])
            at_least[a, b], at_least[b, a] = (label.mu[0] >= label.mu[1]), (label.mu[1] >= label.mu[0])
    np.fill_diagonal(at_least, 1)
    for _ in range(len(number).bit_length()):  # ways of 1, 2, 4, ... labels
        at_least = np.minimum(at_least @ at_least, 1)
    follows = (at_least @ above @ at_least) > 0
    known = {frozenset((label.a, label.b)) for label in labels}
    names = list(number)
    found = ((names[i], names[j]) for i, j in zip(*np.nonzero(follows & ~follows.T), strict=True))
    return [pair for pair in found if frozenset(pair) not in known]


class ImplyingTrainer(Trainer):
    """Trains on as many pairs again as there are labels; their answers follow from the labels."""

    def _receive(self) -> None:
        super()._receive()
        labels = [pair.label for pair in self.labels.training]
        if not labels or labels[-1].seq < 0:
            return  # the store does not change while it trains
        implied = implied_pairs(labels)
        chosen = self.labels.rng.choice(len(implied), min(len(implied), len(labels)), replace=False) if implied else ()
        for number, index in enumerate(chosen, start=1):
            better, worse = implied[index]
            id = Comparison.id_of(better, worse)
            self.labels.add(Label(-number, id, better, worse, (1.0, 0.0), False))


def pretrainer(folder: Path, config: RunConfig, seed: int, trainer_of: type[Trainer] = Trainer) -> Trainer:
    """Returns a trainer that starts from scratch, in this process, on the labels in the folder's store alone."""
    info = env_info(config.env_id)
    inputs = PredictorInputs.of(info)
    channels = Channels.create(synchronous=True, take_turns=False)
    spec = TrainerSpec(
        inputs=inputs,
        env_id=info.env_id,
        config=config.predictor,
        board=None,
        run_dir=folder,
        seed=seed,
        n_initial_prefs=1,
        freeze=True,
        resume=False,
    )
    return trainer_of(channels, spec)


def fit(folder: Path, config: RunConfig, seed: int, trainer_of: type[Trainer]) -> RewardPredictor:
    """Returns a predictor trained from scratch on the labels in the folder's store."""
    trainer = pretrainer(folder, config, seed, trainer_of)
    while not trainer.finished:
        trainer.step()
    trainer.close()
    return trainer.predictor


@torch.inference_mode()
def predicted_returns(predictor: RewardPredictor, segments: list[Segment]) -> np.ndarray:
    """Returns (members, segments) sums of each member's raw reward."""
    observations = torch.from_numpy(np.concatenate([segment.stacked() for segment in segments]))
    actions = torch.from_numpy(np.concatenate([segment.actions for segment in segments]))
    starts = np.cumsum([0, *(len(segment) for segment in segments[:-1])])
    sums: np.ndarray = np.add.reduceat(predictor.predict(observations, actions).numpy(), starts, axis=1)
    return sums


def accuracy(predictor: RewardPredictor, segments: list[Segment], seed: int) -> float:
    """Returns the share of random pairs for which the predictor prefers the segment with the higher true return."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(len(segments), size=(2, HELD_OUT_PAIRS))
    true = np.array([segment.rewards.sum() for segment in segments])
    predicted = predicted_returns(predictor, segments).mean(0)
    decisive = true[a] != true[b]
    return float(((predicted[a] > predicted[b]) == (true[a] > true[b]))[decisive].mean())


def curve(env_id: str, strategy: str, pool: list[Segment], held_out: list[Segment], seed: int) -> dict[str, Any]:
    """Returns the accuracies after LABELS that this strategy asked for, and how many segments they are about."""
    selection = "ordering" if strategy == "implied" else strategy
    flags = ("--synthetic_prefs", "--query_selection", selection, "--max_segs", str(len(pool)))
    config = parse(["train_policy_with_preferences", env_id, *flags])
    trainer_of = ImplyingTrainer if strategy == "implied" else Trainer
    accuracies = []
    with scratch_folder() as folder:
        db = PrefDB.create(folder / "prefs.db", env_id, env_info(env_id).segment_length)
        gatherer = SyntheticGatherer(db, SyntheticTeacher())
        channels = Channels.create(synchronous=True, take_turns=False)
        interface = PrefInterface(db, gatherer, channels, config.prefs, seed=seed, goal=0, annealed_over=0)
        interface.pool.extend(map(Candidate, pool))
        for n in sorted({*LABELS, *(REFRESHED if strategy == "disagreement" else ())}):
            interface.schedule.goal = n
            while interface.n_labels < n:
                interface.step()
            run = folder / str(n)
            run.mkdir()
            (run / "prefs.db").symlink_to(db.path)
            predictor = fit(run, config, seed, trainer_of)
            if n in LABELS:
                accuracies.append(accuracy(predictor, held_out, seed))
            members = predicted_returns(predictor, pool).T
            interface.pool.clear()
            interface.pool.extend(map(Candidate, pool, members))
        asked_about = len(db.segment_ids())
        interface.close()
    return {"accuracies": accuracies, "segments": asked_about}


def labels_needed(accuracies: list[float]) -> float | None:
    """Returns the labels at which accuracy first reaches TARGET, by linear interpolation; None if it never does."""
    points = [(0, 0.5), *zip(LABELS, accuracies, strict=True)]
    for (n_before, before), (n, reached) in itertools.pairwise(points):
        if reached >= TARGET:
            return n_before + (n - n_before) * (TARGET - before) / (reached - before)
    return None


def measure(seeds: int = 5, env_id: str = "HalfCheetah-v5") -> None:
    """Measures all strategies, in this process and one thread; each seed's figures are written as soon as it is done.

    Args:
        seeds: how many.
        env_id: an environment with vector observations.
    """
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    segments = gather(env_id, (POOL + HELD_OUT) // 2)
    found = {strategy: list[dict[str, Any]]() for strategy in STRATEGIES}
    about = {"env_id": env_id, "labels": LABELS, "pool": POOL, "held_out": HELD_OUT, "target": TARGET}
    origin = {"command": "python -m benchmarks.learning.queries", "git_revision": git_revision(), "machine": machine()}
    for seed in range(seeds):
        order = np.random.default_rng(seed).permutation(len(segments))
        pool, held_out = ([segments[i] for i in part] for part in (order[:POOL], order[POOL:]))
        for strategy, curves in found.items():
            started = time.process_time()
            curves.append(curve(env_id, strategy, pool, held_out, seed))
            seconds = time.process_time() - started
            shown = " ".join(f"{value:.3f}" for value in curves[-1]["accuracies"])
            print(f"seed {seed} {strategy:<13} {shown}  ({seconds:.0f} s)", flush=True)
        text = json.dumps({**about, "seeds": seed + 1, **origin, "strategies": found}, indent=2)
        (RESULTS / "queries.json").write_text(text + "\n")
        draw(found, PICTURES / "queries.png", f"{env_id}, {seed + 1} seeds: median, lowest to highest")


def draw(found: dict[str, list[dict[str, Any]]], path: Path, title: str) -> None:
    """Draws accuracy against labels: the median of the seeds and their range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for strategy, curves in found.items():
        values = np.array([one["accuracies"] for one in curves])
        axes.plot(LABELS, np.median(values, 0), marker="o", color=LINES[strategy], label=STRATEGIES[strategy])
        axes.fill_between(LABELS, values.min(0), values.max(0), color=LINES[strategy], alpha=0.15, linewidth=0)
    axes.axhline(TARGET, color="grey", linewidth=0.8, linestyle="--")
    axes.set(xlabel="labels", ylabel="accuracy on unseen pairs", title=title)
    axes.grid(alpha=0.3)
    axes.legend(title="asked")
    figure.savefig(path, dpi=110)


def spread(values: list[float | None]) -> str:
    """Returns the median, lowest and highest of the seeds; None means more labels than were asked for."""
    shown = sorted(float("inf") if value is None else value for value in values)
    words = [f"over {LABELS[-1]}" if value == float("inf") else f"{value:.0f}" for value in (shown[0], shown[-1])]
    middle = statistics.median_low(shown)
    return f"{f'over {LABELS[-1]}' if middle == float('inf') else f'{middle:.0f}'} ({words[0]} to {words[1]})"


def pages() -> None:
    """Writes the results in results/queries.json into docs/, between the marks there."""
    result = json.loads((RESULTS / "queries.json").read_text())
    lines = [
        f"| asked, on {result['env_id']} | labels for {result['target']:.0%} accuracy "
        f"| accuracy with {LABELS[-1]} labels | segments in them |",
        "|---|---|---|---|",
    ]
    for strategy, curves in result["strategies"].items():
        last = [one["accuracies"][-1] for one in curves]
        needed = spread([labels_needed(one["accuracies"]) for one in curves])
        about = statistics.median(one["segments"] for one in curves)
        range_ = f"{statistics.median(last):.0%} ({min(last):.0%} to {max(last):.0%})"
        lines.append(f"| {STRATEGIES[strategy]} | {needed} | {range_} | {about:.0f} |")
    note = f"Median of {result['seeds']} seeds, lowest and highest. [The curves](pictures/queries.png)."
    write_between("queries", "\n".join([*lines, "", note]))


if __name__ == "__main__":
    commands = {"measure": measure, "pages": pages}
    arguments = sys.argv[1:] if sys.argv[1:2] and not sys.argv[1].startswith("--") else ["measure", *sys.argv[1:]]
    tyro.extras.subcommand_cli_from_dict(commands, args=arguments)
