"""The time that the recorded runs of an experiment took, and their machines, from results/EXPERIMENT/runs.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "results"
WHOLE = 0.99  # share of its agent steps from which on a run counts as a whole one


def recorded(experiment: str) -> str:
    """Returns the time and the machines of an experiment's recorded runs; of whole runs if there is one."""
    file = RESULTS / experiment / "runs.json"
    if not file.exists():
        return "no run is recorded"
    record = json.loads(file.read_text(encoding="utf-8"))
    runs = list(record["seeds"].values())
    goals = [1e6 * float((record["settings"] | run["settings"])["policy.million_timesteps"]) for run in runs]
    shares = [run["figures"]["agent_steps"] / goal for run, goal in zip(runs, goals, strict=True)]
    whole = [run for run, share in zip(runs, shares, strict=True) if share >= WHOLE]
    part = "" if whole else f" for {_range([f'{100 * share:.0f} %' for share in sorted(shares)])} of its agent steps"
    runs = whole or runs
    times = [_time(seconds) for seconds in sorted(run["figures"]["seconds"] for run in runs)]
    seeds = f"{len(runs)} seed{'s' if len(runs) > 1 else ''}"
    machines = " or ".join(dict.fromkeys(_machine(run["machine"]) for run in runs))
    return f"{_range(times)}{part} ({seeds}, {machines})"


def _range(sorted_texts: list[str]) -> str:
    """Returns the first and the last text, or one if they are the same."""
    return " to ".join(dict.fromkeys((sorted_texts[0], sorted_texts[-1])))


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"


def _machine(machine: dict[str, Any]) -> str:
    cores = machine["cores"]
    return f"{cores} core{'s' if cores > 1 else ''} of {machine['processor']}"
