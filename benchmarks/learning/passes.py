"""How well a body's reward predictor tells what the policy does next, by the passes over its initial labels.

python -m benchmarks.learning.passes RUN...  # labels of a synthetic teacher; to results/passes.json and docs/

The trainer learns from the initial labels of each of these runs, none held out, as `reproduce` has it for bodies. After
some of its passes, what it predicts is compared with the true reward, on each step of the clips that were asked about
next.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import tyro

from benchmarks import ROOT
from benchmarks.learning.queries import pretrainer
from benchmarks.pages import write_between
from benchmarks.speed.parts import scratch_folder
from commands.config import RunConfig
from commands.run_folder import git_revision, read_config
from drlhp.data.comparison import MU, Choice, Comparison
from drlhp.data.segment import Segment
from drlhp.errors import USER_ERRORS, UserError, told
from drlhp.runtime.machine import machine
from envs import env_info
from pref_db import PrefDB

RESULTS = ROOT / "results"
PASSES = (10, 25, 50, 100, 200)
NEXT_LABELS = 60
CHOICES = {mu: choice for choice, mu in MU.items()}

Asked = tuple[Segment, Segment, Choice]


def main(runs: tyro.conf.Positional[list[Path]]) -> None:
    """Measures it on the labels of these runs.

    Args:
        runs: run folders, whose labels a synthetic teacher gave.
    """
    torch.set_num_threads(1)
    found = {run.name: correlations(run) for run in runs}
    origin = {
        "command": " ".join(["python -m benchmarks.learning.passes", *sys.argv[1:]]),
        "git_revision": git_revision(),
    }
    result = {**origin, "machine": machine(), "next_labels": NEXT_LABELS, "correlations": found}
    (RESULTS / "passes.json").write_text(json.dumps(result, indent=2) + "\n")
    write_between("passes", table(found))


def correlations(run: Path) -> dict[str, float]:
    """Of predicted and true reward, step by step, after each of PASSES."""
    config = RunConfig.from_dict(read_config(run))
    n_initial = config.prefs.n_initial_prefs
    with contextlib.closing(PrefDB.open(run / "prefs.db", read_only=True)) as db:
        labels = db.labels()[: n_initial + NEXT_LABELS]
        if len(labels) < n_initial + NEXT_LABELS:
            raise UserError(f"{run} has only {len(labels)} labels; give one of {n_initial + NEXT_LABELS} or more.")
        asked = [
            (db.stored_segment(label.a).decode(), db.stored_segment(label.b).decode(), CHOICES[label.mu])
            for label in labels
            if label.mu
        ]
    with scratch_folder() as folder:
        return _learn(
            config, folder, asked[:n_initial], [segment for *pair, _ in asked[n_initial:] for segment in pair]
        )


def _learn(config: RunConfig, folder: Path, initial: list[Asked], then: list[Segment]) -> dict[str, float]:
    """Correlations on the segments of `then`, of a trainer that learns from `initial`."""
    store = PrefDB.create(folder / "prefs.db", config.env_id, env_info(config.env_id).segment_length)
    store.add_answers([(Comparison(a, b, flip=False), choice) for a, b, choice in initial], teacher="oracle")
    store.close()
    settings = replace(config.predictor, hold_out=False, bootstrap=False, n_initial_epochs=max(PASSES))
    trainer = pretrainer(folder, replace(config, predictor=settings), config.seed)
    observations, actions, true = (
        np.concatenate([getattr(segment, name) for segment in then]) for name in ("observations", "actions", "rewards")
    )
    found = dict[str, float]()
    with contextlib.closing(trainer):
        while not trainer.finished:
            trainer.step()
            if trainer.pretraining.epochs in PASSES:
                raw = trainer.predictor.member_rewards(observations, actions)
                predicted = trainer.predictor.normalised(raw).mean(0)
                found[str(trainer.pretraining.epochs)] = float(np.corrcoef(predicted, true)[0, 1])
    return found


def table(found: dict[str, dict[str, float]]) -> str:
    """A line for each run, and their median."""
    lines = [f"| initial labels of | {' | '.join(f'{n} passes' for n in PASSES)} |", "|---|" + "---|" * len(PASSES)]
    middle = {str(n): statistics.median(one[str(n)] for one in found.values()) for n in PASSES}
    for run, values in {**found, "median": middle}.items():
        lines.append(f"| {run} | {' | '.join(f'{values[str(n)]:.2f}' for n in PASSES)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        tyro.cli(main, use_underscores=True)
    except USER_ERRORS as error:
        sys.exit(f"passes.py: {told(error)}")
