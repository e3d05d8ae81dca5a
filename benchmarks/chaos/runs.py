"""Small runs for the attacks: their flags, and what their folders hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from benchmarks.chaos.cases import Notes
from benchmarks.chaos.commands import called
from commands import endings
from tests.support.commands import DOT, answers, progress

NAME = "a"
GOAL = 12  # labels of a small run
SMALL = (
    *("train_policy_with_preferences", DOT, "--synthetic_prefs", "--n_envs", "2", "--n_initial_prefs", "6"),
    *("--max_prefs", str(GOAL), "--max_segs", "10", "--n_initial_epochs", "1", "--ensemble_size", "2"),
    *("--eval_episodes", "1", "--million_timesteps", "0.0004", "--run_name", NAME),
)
LABELS_USED = re.compile(r"labels used +([\d,]+)")


def made(place: Path) -> Path:
    """Carries out a small run in this process; returns its folder."""
    ended = called(*SMALL, "--synchronous", "--log_dir", str(place))
    assert ended.status == 0, ended.output
    return place / NAME


@contextmanager
def no_curves() -> Iterator[None]:
    """Lets the commands of the block draw no curves when they end, which would take a third of a short resume."""
    with mock.patch.object(endings, "draw_curves"):
        yield


def check_labels(before: list[tuple[str, str, str]], folder: Path, notes: Notes, did: str) -> None:
    """Notes if answers that were stored before are lost, changed, or stored twice."""
    after = answers(folder) if (folder / "prefs.db").exists() else []
    notes.count("labels checked", len(before))
    if lost := len(set(before) - set(after)):
        notes.found(did, f"{lost} of {len(before)} labels lost")
    if len({client_id for client_id, _, _ in after}) < len(after):
        notes.found(did, "labels stored twice")


def check_end(output: str, folder: Path, notes: Notes, did: str) -> None:
    """Notes if a finished run has used more or fewer labels than it has stored, or its progress went back."""
    used = LABELS_USED.search(output)
    stored = len({comparison for _, comparison, _ in answers(folder)})
    if used and int(used[1].replace(",", "")) != stored:
        notes.found(did, f"labels used {used[1]}, stored {stored}")
    steps = [float(row["steps"]) for row in progress(folder)]
    if steps != sorted(steps):
        notes.found(did, f"the steps of progress.csv go back: {steps}")
