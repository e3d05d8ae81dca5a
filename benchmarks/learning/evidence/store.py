"""The files of an experiment in results/: runs.json, curves.csv and curves.png, each about all of its seeds."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from commands.experiments import EXPERIMENTS
from drlhp.runtime.run_files import EVALUATIONS, POLICIES, PROGRESS, Row, as_number, read_rows

RESULTS = ROOT / "results"
TRAINING = "training"  # stands in the column `policy` of what was measured while training
COLUMNS = tuple(dict.fromkeys(("seed", "policy", *PROGRESS.columns, *EVALUATIONS.columns)))
PANELS = {
    TRAINING: ("episode_return", "in training, mean of the last 100 episodes"),
    "deterministic": ("mean", "evaluations, most likely actions"),
    "sampled": ("mean", "evaluations, sampled actions"),
}

Run = dict[str, Any]  # what runs.json says of a seed, and under `settings` all of its settings


def recorded(results: Path = RESULTS) -> dict[str, dict[int, Run]]:
    """Returns all recorded runs by experiment and seed."""
    names = sorted(path.parent.name for path in results.glob("*/runs.json"))
    return {name: read_runs(results / name) for name in names}


def read_runs(folder: Path) -> dict[int, Run]:
    """Returns an experiment's runs by seed, each with all of its settings; none if nothing was recorded."""
    path = folder / "runs.json"
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return {int(seed): run | {"settings": found["settings"] | run["settings"]} for seed, run in found["seeds"].items()}


def write_runs(folder: Path, runs: dict[int, Run]) -> None:
    """Writes an experiment's runs: once the settings that all seeds share, and with each seed its own."""
    settings = [run["settings"] for run in runs.values()]
    # As JSON, because Python takes 1, 1.0 and True for equal.
    shared = set.intersection(*({(key, json.dumps(value)) for key, value in own.items()} for own in settings))
    keys = {key for key, _ in shared}
    seeds = {}
    for seed, run in sorted(runs.items()):
        own = {key: value for key, value in run["settings"].items() if key not in keys}
        seeds[str(seed)] = run | {"settings": own}
    record = {"settings": {key: value for key, value in settings[0].items() if key in keys}, "seeds": seeds}
    (folder / "runs.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a run folder's config.json without groups, such as `policy.lr`; the seed is left out."""
    settings: dict[str, Any] = {}
    for key, value in config.items():
        settings |= {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
    return {key: value for key, value in settings.items() if key != "seed"}


def curve_rows(seed: int, progress: list[Row], evaluations: list[Row]) -> list[Row]:
    """Returns a run's rows for curves.csv: those of the training, then those of the evaluations."""
    rows = [{"seed": str(seed), "policy": TRAINING, **row} for row in progress]
    rows += [{"seed": str(seed), **row} for row in evaluations]
    return [{key: "" if value == "nan" else value for key, value in row.items()} for row in rows]


def write_curves(folder: Path, rows: Iterable[Row]) -> None:
    """Replaces the rows of their seeds in an experiment's curves.csv, and draws curves.png of all."""
    rows = list(rows)
    new = {row["seed"] for row in rows}
    rows += [row for row in read_rows(folder / "curves.csv") if row["seed"] not in new]
    rows.sort(key=lambda row: int(row["seed"]))  # keeps the order within a seed
    with (folder / "curves.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    draw(folder)


def draw(folder: Path) -> None:
    """Draws an experiment's curves.csv as curves.png: true reward by agent steps, a colour or dashes for each seed."""
    from matplotlib.figure import Figure  # slow to import

    rows = read_rows(folder / "curves.csv")
    seeds = sorted({int(row["seed"]) for row in rows})
    figure = Figure(figsize=(13, 4), layout="constrained")
    name = folder.name
    figure.suptitle(f"{name}: {EXPERIMENTS[name].title}" if name in EXPERIMENTS else name)
    panels: Any = figure.subplots(1, len(PANELS), sharex=True, sharey=True)
    for axes, (policy, (column, title)) in zip(panels, PANELS.items(), strict=True):
        for i, seed in enumerate(seeds):
            points = [
                (float(row["steps"]), as_number(row[column]))
                for row in rows
                if row["policy"] == policy and row["seed"] == str(seed) and row["steps"]
            ]
            points = [(x, y) for x, y in points if not math.isnan(y)]
            marker = "." if policy in POLICIES else ""
            style = {"color": f"C{i}", "linestyle": "--" if i >= 10 else "-"}  # the colours begin again after ten
            x, y = [x for x, _ in points], [y for _, y in points]
            axes.plot(x, y, **style, marker=marker, linewidth=1, label=f"seed {seed}")
        axes.set(title=title, xlabel="agent steps")
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="true episode reward")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(folder / "curves.png", dpi=80)
