"""What a labeller sees besides the clips: the progress of the labelling, why no pair is shown, and the run's curves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from drlhp.labelling.answers import Counts
from drlhp.labelling.notices import FEW_LABELS, SILENT_SECONDS, Heartbeat, number_of
from drlhp.labelling.queue import LabelQueue
from drlhp.runtime.run_files import EVALUATIONS, PROGRESS, Row, as_number

MAX_POINTS = 200  # points of one curve
EPISODE = Path("web") / "episode.mp4"  # The run writes this file into its folder.
# column of progress.csv -> name, unit, whether it reveals the true reward
CURVES = {
    "predicted_reward": ("Predicted reward", "per step", False),
    "validation_accuracy": ("Right about held-out answers", "%", False),
    "training_accuracy": ("Right about learned answers", "%", False),
    "validation_loss": ("Loss on held-out answers", "", False),
    "labels": ("Labels", "", False),
    "episode_return": ("True return", "mean of 100 episodes", True),
}


def status(queue: LabelQueue, run_dir: Path, now: float) -> dict[str, Any]:
    """Returns the numbers of the status line, and why there may be no pair; see STATUS in schema.py."""
    counts, beats = queue.counts(), queue.notices.heartbeats()
    settings = queue.notices.settings("goal", "initial_labels", "task", "instructions")
    goal, initial = number_of(settings.get("goal")), number_of(settings.get("initial_labels"))
    at, state = _newest_word(beats, run_goes_on=queue.notices.goes_on("run"))
    silent = None if at is None else max(0.0, now - at)
    ended = str(state.get("ended", ""))
    episode = run_dir / EPISODE
    steps = state.get("agent_steps")
    # Training that has begun goes on even if labels are taken back.
    initial = 0 if steps else queue.notices.labels_to_start(initial)
    return {
        "now": now,
        "labels": counts.labels,
        "goal": goal,
        "initial_labels": initial,
        "may_start": FEW_LABELS <= counts.labels < initial,
        "answers": counts.answers,
        "ready": counts.ready,
        "leased": counts.leased,
        "agent_steps": float(steps) if isinstance(steps, (int, float)) and math.isfinite(steps) else None,
        "reason": _reason(counts, goal, silent, str(state.get("status", "")), ended),
        "trainer": _trainer(silent, str(state.get("line", ""))),
        "trouble": str(state.get("trouble", "")),
        "ended": ended,
        "episode": str(episode.stat().st_mtime_ns) if episode.exists() else None,
        "task": settings.get("task", ""),
        "instructions": settings.get("instructions", ""),
    }


def _newest_word(beats: dict[str, Heartbeat], *, run_goes_on: bool) -> tuple[float | None, dict[str, Any]]:
    """Returns when a process last sent its state, and that state; None and nothing if none has.

    While the run goes on it is the run's. Later it is the newer of the run's and of `label`'s, which asks about the
    segments that the run has left.
    """
    run, label = (beats.get(who, Heartbeat(-math.inf, {})) for who in ("run", "label"))
    at, state = run if run_goes_on or run[0] >= label[0] else label
    return (at, state) if at > -math.inf else (None, {})


def _reason(counts: Counts, goal: int, silent: float | None, waiting_for: str, ended: str) -> str:
    if goal and counts.labels >= goal:
        return f"All {goal} labels have been given. You may close this page."
    if counts.ready:
        return ""
    if ended:
        return ended
    if silent is not None and silent > SILENT_SECONDS:
        return (
            f"The training run was last heard of {_span(silent)} ago. Answers are kept; new pairs come when it goes on."
        )
    if counts.leased:
        pairs = "pair that is left is" if counts.leased == 1 else f"{counts.leased} pairs that are left are"
        return f"The {pairs} with other people. New ones will appear here by themselves."
    if silent is None:
        return "Every stored pair has been answered, and no training run is connected to make new ones."
    return waiting_for or "The agent is recording new clips. They will appear here by themselves."


def _trainer(silent: float | None, line: str) -> str:
    if silent is None:
        return "no training run is connected; answers are kept"
    if silent > SILENT_SECONDS:
        return f"training run last heard of {_span(silent)} ago; answers are kept"
    return line


def _span(seconds: float) -> str:
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}s"
    return f"{seconds:.0f} seconds"


def curves(run_dir: Path, true_reward: bool) -> list[dict[str, Any]]:
    """Returns the run's curves over agent steps, at most 200 points each; with those of the true reward if allowed."""
    rows = PROGRESS.read(run_dir)
    found = []
    for column, (name, unit, is_true) in CURVES.items():
        if true_reward or not is_true:
            found.append(_curve(name, unit, rows, column, scale=100 if unit == "%" else 1))
    if true_reward:
        rows = [row for row in EVALUATIONS.read(run_dir) if row.get("policy") == "deterministic"]
        found.append(_curve("True return, evaluation", "mean", rows, "mean"))
    return [curve for curve in found if len(curve["steps"]) > 1]


def _curve(name: str, unit: str, rows: list[Row], column: str, scale: float = 1) -> dict[str, Any]:
    points = [(as_number(row.get("steps", "")), as_number(row.get(column, "")) * scale) for row in rows]
    points = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    stride = max(1, -(-len(points) // MAX_POINTS))
    points = points[::-1][::stride][::-1]  # Counting from the end always keeps the newest point.
    return {"name": name, "unit": unit, "steps": [x for x, _ in points], "values": [y for _, y in points]}
