"""What is measured to see how cost grows with size, and the picture of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Reading = dict[str, Any]


@dataclass(frozen=True)
class Axis:
    """One measurement at several sizes."""

    name: str
    command: tuple[str, ...]  # of measure.py
    flag: str  # that sets the size
    sizes: tuple[int, ...]
    label: str  # of the size, in the picture


ENVIRONMENTS = Axis("environments", ("true_reward_loop",), "--n-envs", (1, 4, 16, 64, 256), "environments")
LABELS = (100, 300, 1000, 3000, 10_000)
TRAINED = Axis("labels, trainer", ("predictor_update",), "--labels", LABELS, "labels in the store")
STORED = Axis("labels, store", ("label_store",), "--labels", LABELS, "labels in the store")
MEMBERS = (1, 2, 3, 4, 5)
MEMBERS_UPDATE = Axis("ensemble, update", ("predictor_update",), "--ensemble-size", MEMBERS, "members of the ensemble")
MEMBERS_FORWARD = Axis(
    "ensemble, forward", ("predictor_forward",), "--ensemble-size", MEMBERS, "members of the ensemble"
)
LENGTHS = Axis("segment length", ("predictor_update",), "--segment-length", (10, 25, 50, 100), "steps of a segment")
AXES = (ENVIRONMENTS, TRAINED, STORED, MEMBERS_UPDATE, MEMBERS_FORWARD, LENGTHS)

# Panels of the picture: curves by name, each an axis and its cost in ms worked out from a reading.
PANELS: tuple[dict[str, tuple[Axis, Callable[[Reading], float]]], ...] = (
    {"one step of all environments, A2C": (ENVIRONMENTS, lambda r: 1e3 * r["n_envs"] / r["value"])},
    {
        "one training batch": (TRAINED, lambda r: 1e3 * r["batch"] / r["value"]),
        "trainer reads the store": (TRAINED, lambda r: 1e3 * r["catch_up_seconds"]),
        "opening the store": (STORED, lambda r: r["open_ms"]),
        "adding a label": (STORED, lambda r: r["value"]),
    },
    {
        "one training batch": (MEMBERS_UPDATE, lambda r: 1e3 * r["batch"] / r["value"]),
        "prediction of an A2C rollout": (MEMBERS_FORWARD, lambda r: 1e3 * r["batch"] / r["value"]),
    },
    {"one training batch": (LENGTHS, lambda r: 1e3 * r["batch"] / r["value"])},
)


def draw(readings: Mapping[str, list[Reading]], path: Path) -> None:
    """Draws cost against size, log-log, with a dashed line where cost would grow as size does.

    Args:
        readings: of `AXIS=SIZE`; sizes that were not measured are left out.
        path: of the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.8), layout="constrained")
    for axes, curves in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        for name, (axis, cost) in curves.items():
            sizes = [size for size in axis.sizes if readings.get(f"{axis.name}={size}")]
            costs = [statistics.median(cost(reading) for reading in readings[f"{axis.name}={size}"]) for size in sizes]
            (line,) = axes.plot(sizes, costs, marker="o", label=name)
            linear = [costs[0] * size / sizes[0] for size in sizes]
            axes.plot(sizes, linear, linestyle="--", linewidth=0.8, color=line.get_color())
            axes.set(xscale="log", yscale="log", xlabel=axis.label)
            axes.set_xticks(axis.sizes, [f"{size:,}" for size in axis.sizes])
            axes.set_xticks([], minor=True)
        axes.set(ylabel="ms (dashed: grows as size does)")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)
