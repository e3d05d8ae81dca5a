"""Records runs: copies a run folder's curves and settings to results/, and works out its figures."""

from __future__ import annotations

import shlex
import statistics
from pathlib import Path
from typing import Any

import tyro

from a2c.evaluation import SEED
from benchmarks import ROOT
from benchmarks.learning.evidence.store import RESULTS, curve_rows, flat, read_runs, write_curves, write_runs
from commands.experiments import EXPERIMENTS
from commands.run_folder import read_config, read_record
from drlhp.errors import UserError
from drlhp.runtime.run_files import EVALUATIONS, PROGRESS, Row
from envs.moving_dot import greedy_return
from envs.registry import MOVING_DOT_ID

THRESHOLDS = {"PongNoFrameskip-v4": (0.0, 19.0)}  # rewards that a run should come to, by environment


def record(
    experiment: tyro.conf.Positional[str],
    runs: tyro.conf.Positional[tuple[Path, ...]],
    note: str = "",
    tuned_on: bool = False,
) -> None:
    """Adds runs to an experiment's folder in results/; a seed that is there already is replaced.

    Args:
        experiment: its name in `python run.py reproduce`.
        runs: the run folders, one for each seed.
        note: what a run's command does not tell, such as other work on the machine.
        tuned_on: settings were chosen by what these seeds came to; tables keep them apart.

    Raises:
        UserError: there is no such experiment, or a run is not one of it or has not trained yet.
    """
    if experiment not in EXPERIMENTS:
        raise UserError(f"there is no experiment '{experiment}'; `python run.py reproduce` lists them.")
    folder = RESULTS / experiment
    rows: list[Row] = []
    found = read_runs(folder)
    for run in runs:
        seed, about = describe(experiment, run)
        found[seed] = {"tuned_on": tuned_on, **({"note": note} if note else {}), **about}
        rows += curve_rows(seed, PROGRESS.read(run), EVALUATIONS.read(run))
    folder.mkdir(parents=True, exist_ok=True)
    write_runs(folder, found)
    write_curves(folder, rows)


def describe(experiment: str, run: Path) -> tuple[int, dict[str, Any]]:
    """Returns a run's seed, and what runs.json is to say of it. Raises UserError."""
    about = read_record(run)
    config = about["config"]
    mode, env_id = EXPERIMENTS[experiment].command[:2]
    if (config["mode"], config["env_id"]) != (mode, env_id):
        raise UserError(f"{run} is a run of {config['mode']} {config['env_id']}, and {experiment} is {mode} {env_id}.")
    # Other people have other folders.
    log_dir, config["log_dir"] = config["log_dir"], "runs"
    words = ["python", "run.py", *("runs" if word == log_dir else word for word in about["command"][1:])]
    return config["seed"], {
        "figures": figures(run, THRESHOLDS.get(env_id, ())),
        "command": shlex.join(words).replace(f"{ROOT}/", ""),
        **{key: about[key] for key in ("started", "git_revision", "machine", "versions")},
        "settings": flat(config),
    }


def figures(run: Path, thresholds: tuple[float, ...]) -> dict[str, Any]:
    """Returns the figures of a run. Raises UserError if it has not trained a policy yet."""
    rows = [row for row in PROGRESS.read(run) if row["steps"]]
    training = [row for row in rows if float(row["steps"]) > 0]
    if not training:
        raise UserError(f"{run} has not trained a policy yet; carry on with it by --resume, and record it then.")
    found: dict[str, Any] = {
        "labels": int(rows[-1]["labels"] or 0),
        "agent_steps": int(float(rows[-1]["steps"])),
        "true_reward_first": _first(rows, "episode_return"),
        "true_reward_last_100_episodes": _last(rows, "episode_return"),
        "true_reward_total": _last(rows, "true_reward_total"),
        "validation_accuracy": _last(rows, "validation_accuracy"),
        "batches_due": _last(rows, "batches_due"),
        "batches_trained": _last(rows, "batches_trained"),
        "median_steps_per_second": round(statistics.median(float(row["steps_per_second"]) for row in training)),
        "seconds": float(rows[-1]["seconds"]),
        "peak_memory_mb": _last(rows, "peak_memory_mb"),
        "reached": {f"{threshold:g}": _reached(training, threshold) for threshold in thresholds},
    }
    if evaluations := EVALUATIONS.read(run):
        found["evaluation"] = last_evaluation(evaluations)
        if read_config(run)["env_id"] == MOVING_DOT_ID:
            found["greedy"] = greedy_return(int(float(evaluations[-1]["episodes"])), SEED)
    return found


def last_evaluation(rows: list[Row]) -> dict[str, float]:
    """Returns both means of a run's last evaluation, and the agent steps, seconds and labels before it."""
    last = {row["policy"]: float(row["mean"]) for row in rows[-2:]}
    about = {"agent_steps": int(rows[-1]["steps"]), "seconds": float(rows[-1]["seconds"])}
    return last | about | {"labels": int(float(rows[-1]["labels"]))}


def _reached(rows: list[Row], threshold: float) -> dict[str, float] | None:
    """Returns when the mean reward of the last 100 episodes first was that much; None if it never was."""
    for row in rows:
        if float(row["episodes"]) >= 100 and float(row["episode_return"]) >= threshold:
            return {"agent_steps": float(row["steps"]), "seconds": float(row["seconds"])}
    return None


def _values(rows: list[Row], name: str) -> list[float]:
    return [float(row[name]) for row in rows if row.get(name) not in (None, "", "nan")]


def _first(rows: list[Row], name: str) -> float | None:
    return next(iter(_values(rows, name)), None)


def _last(rows: list[Row], name: str) -> float | None:
    return next(reversed(_values(rows, name)), None)
