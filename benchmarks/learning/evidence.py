"""Makes the results in results/: runs the command of each claim, and writes down what came out of it.

python -m benchmarks.learning.evidence moving_dot --seeds 5     # trains and records
python -m benchmarks.learning.evidence record pong runs/NAME    # records a run that was made by hand
python -m benchmarks.learning.evidence pages                    # puts the tables into README.md, docs/ and results/
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from benchmarks import ROOT
from benchmarks.pages import write_between
from commands.experiments import BODIES_LABELS
from commands.progress import draw_curves
from commands.report.references import SUM_OF_A_TRAINING, Reference, references
from commands.run_folder import short_revision
from drlhp.errors import USER_ERRORS, UserError, told
from drlhp.runtime.run_files import EVALUATIONS, POLICIES, PROGRESS, read_rows

RESULTS = ROOT / "results"
EARLIER = "_earlier"  # ends the names of results of before something changed that they show
# What stands in the names of results on labels, of those on the true reward to compare with, and at the end of both.
BODIES_VARIANTS = (
    ("", "", ""),
    ("_not_reset", "", ""),
    ("_whole_episodes", "_whole_episodes", ""),
    ("_growing_episodes", "_growing_episodes", ""),
    ("_deviation_1", "_deviation_1", ""),
    ("_lambda_0.97", "_lambda_0.97", ""),
    ("_25_passes", "", ""),
    ("", "", EARLIER),
    ("_all_labels", "", EARLIER),
)
THRESHOLDS = {"PongNoFrameskip-v4": (0.0, 19.0)}  # rewards that a run should come to, by environment
HEADLINES = {
    "moving_dot_100_labels": "Moving dot",
    "pong_3300_labels": "Pong",
    "enduro_as_people": "Enduro, judged as people do",
    "walker_700": "Walker",
}
COMMANDS = (
    "Commands are as they were given then; where a default has changed since, the JSON file of the result has the "
    "setting that was used."
)
MOVING_DOT = ("train_policy_with_preferences", "MovingDotNoFrameskip-v0", "--synthetic_prefs")


def moving_dot(seeds: int = 5, log_dir: str = "runs") -> None:
    """Trains MovingDot from synthetic preferences with seeds 0, 1, ... and records each run.

    Args:
        seeds: how many.
        log_dir: where the run folders go.
    """
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}"
    for seed in range(seeds):
        name = f"evidence-{stamp}-{seed}"
        flags = ("--seed", str(seed), "--run_name", name, "--log_dir", log_dir)
        subprocess.run([sys.executable, str(ROOT / "run.py"), *MOVING_DOT, *flags], cwd=ROOT, check=True)
        record(f"moving_dot_seed{seed}", Path(log_dir) / name)


def record(name: tyro.conf.Positional[str], run: tyro.conf.Positional[Path], note: str = "") -> None:
    """Copies a run's curves and settings to results/ and works out its figures.

    Args:
        name: name of the result's files.
        run: the run folder.
        note: what its command does not tell, such as a resumption with other flags.
    """
    rows = [row for row in PROGRESS.read(run) if row["steps"]]
    config = json.loads((run / "config.json").read_text())
    training = [row for row in rows if float(row["steps"]) > 0]
    if not training:
        raise UserError(f"{run} has not trained a policy yet; carry on with it by --resume, and record it then.")
    speeds = [float(row["steps_per_second"]) for row in training]
    figures: dict[str, Any] = {
        "labels": int(rows[-1]["labels"] or 0),
        "agent_steps": int(float(rows[-1]["steps"])),
        "true_reward_first": _first(rows, "episode_return"),
        "true_reward_last_100_episodes": float(rows[-1]["episode_return"]),
        "true_reward_total": _last(rows, "true_reward_total"),
        "validation_accuracy": _last(rows, "validation_accuracy"),
        "median_steps_per_second": round(statistics.median(speeds)),
        "seconds": float(rows[-1]["seconds"]),
        "peak_memory_mb": _last(rows, "peak_memory_mb"),
    }
    thresholds = THRESHOLDS.get(config["config"]["env_id"], ())
    figures["reached"] = {f"{threshold:g}": _reached(training, threshold) for threshold in thresholds}
    evaluations = run / "evaluations.csv"
    if evaluations.exists():
        shutil.copy(evaluations, RESULTS / f"{name}_evaluations.csv")
        evaluated = EVALUATIONS.read(run)
        figures["evaluation"] = {row["policy"]: float(row["mean"]) for row in evaluated[-2:]}
        figures["evaluation"] |= {
            "agent_steps": int(evaluated[-1]["steps"]),
            "seconds": float(evaluated[-1]["seconds"]),
        }
    # Whoever reads it has other folders.
    log_dir, config["config"]["log_dir"] = config["config"]["log_dir"], "runs"
    config["command"] = ["python", "run.py", *("runs" if word == log_dir else word for word in config["command"][1:])]
    keep = ("command", "started", "git_revision", "machine", "versions", "config")
    RESULTS.mkdir(exist_ok=True)
    about = {"note": note} if note else {}
    text = json.dumps({"figures": figures, **about, **{key: config[key] for key in keep}}, indent=2)
    (RESULTS / f"{name}.json").write_text(text.replace(f"{ROOT}/", "") + "\n")
    shutil.copy(run / "progress.csv", RESULTS / f"{name}.csv")
    if not (run / "curves.png").exists():  # it was killed
        draw_curves(run)
    shutil.copy(run / "curves.png", RESULTS / f"{name}.png")


def pages() -> None:
    """Writes the results of the experiments into README.md and docs/, and every run into results/README.md."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    results = {name: result for name, result in results.items() if "figures" in result}
    write_between("headlines", _headlines(results))
    write_between("results", _by_experiment(results))
    write_between("bodies", _bodies(results))
    write_between("sums", _sums(results))
    parts = ["# Results", "Made by `benchmarks/learning/evidence.py`.", *_by_run(results), COMMANDS, _commands(results)]
    (RESULTS / "README.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _experiments(results: dict[str, Any]) -> dict[str, list[str]]:
    """The names of the results that differ in their seed alone, by what they have in common."""
    experiments: dict[str, list[str]] = {}
    for name in results:
        experiments.setdefault(re.sub(r"_seed\d+", "", name), []).append(name)
    return experiments


def _by_experiment(results: dict[str, Any]) -> str:
    """A table with a line for the runs that differ in their seed alone."""
    lines = [
        "| experiment | seeds | labels | agent steps | evaluation, most likely actions | evaluation, drawn actions "
        "| minutes | others, after agent steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for experiment, names in _experiments(results).items():
        figures = [results[name]["figures"] for name in names]
        scores = [", ".join(_score(f, policy) for f in figures) for policy in POLICIES]
        lines.append(
            f"| {experiment} | {len(names)} | {_range([f['labels'] for f in figures])} "
            f"| {_range([f['agent_steps'] for f in figures])} | {' | '.join(scores)} "
            f"| {_range([round(f['seconds'] / 60) for f in figures])} | {_others(results[names[0]])} |"
        )
    return "\n".join(lines)


def _headlines(results: dict[str, Any]) -> str:
    """Returns a table of the best-known tasks: medians over all seeds, with the lowest and the highest."""
    lines = [
        "| task | labels | agent steps | seeds | most likely actions | sampled actions | others, after agent steps |",
        "|---|---|---|---|---|---|---|",
    ]
    experiments = _experiments(results)
    for experiment, task in HEADLINES.items():
        names = experiments[experiment]
        figures = [results[name]["figures"] for name in names]
        scores = [_spread([f["evaluation"][policy] for f in figures]) for policy in POLICIES]
        labels, steps = (_range([f[name] for f in figures]) for name in ("labels", "agent_steps"))
        lines.append(
            f"| {task} | {labels} | {steps} | {len(names)} | {' | '.join(scores)} | {_others(results[names[0]])} |"
        )
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    middle = f"{statistics.median(values):,.1f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.1f} to {max(values):,.1f})"


def _sums(results: dict[str, Any]) -> str:
    """A table of what the agents got in all of their training, where others tell that and not what they get at last."""
    lines = ["| experiment | labels | agent steps | true reward of the training | others |", "|---|---|---|---|---|"]
    for experiment, names in _experiments(results).items():
        figures = [results[name]["figures"] for name in names]
        labels, env_id = figures[0]["labels"], results[names[0]]["config"]["env_id"]
        for other in references(env_id):
            if other.not_comparable == SUM_OF_A_TRAINING and (other.labels == 0) == (labels == 0):
                sums, steps = ", ".join(f"{f['true_reward_total']:g}" for f in figures), figures[0]["agent_steps"]
                lines.append(f"| {experiment} | {labels} | {steps:,} | {sums} | {_reference(other)} |")
    return "\n".join(lines)


def _bodies(results: dict[str, Any]) -> str:
    """A table of the bodies' means over seeds, on the true reward and on labels.

    Where rewards are negative a share of them says nothing, so the gain over the untrained policy is compared too.
    """
    lines = [
        "| task | on the true reward | on labels | runs | of the reward | of the gain over the untrained policy |",
        "|---|---|---|---|---|---|",
    ]
    for task, n_labels in BODIES_LABELS.items():
        name = task.lower()
        for which, others, when in BODIES_VARIANTS:
            kind = f"{name}_{n_labels}{which}"
            true, learned = _means(results, f"{name}_true{others}", when), _means(results, kind, when)
            if true and learned:
                share = f"{learned.trained / true.trained:.0%}" if true.trained > 0 else ""
                gain = (learned.trained - learned.untrained) / (true.trained - true.untrained)
                numbers = f"{true.trained:,.1f} | {learned.trained:,.1f} | {true.n}, {learned.n} | {share} | {gain:.0%}"
                lines.append(f"| {kind}{when} | {numbers} |")
    return "\n".join(lines)


class Means(NamedTuple):
    """Evaluations of the most likely actions, of all seeds."""

    trained: float
    untrained: float
    n: int


def _means(results: dict[str, Any], experiment: str, when: str) -> Means | None:
    """Those of an experiment's runs whose names end in `when`; None if there is none."""
    names = [name for name in results if re.fullmatch(rf"{experiment}_seed\d+{when}", name)]
    trained = [results[name]["figures"]["evaluation"]["deterministic"] for name in names]
    before = [_before_training(RESULTS / f"{name}.json", "deterministic") for name in names]
    untrained = [value for value in before if value is not None]
    return Means(statistics.mean(trained), statistics.mean(untrained), len(names)) if names else None


def _others(result: dict[str, Any]) -> str:
    """What others came to with the same kind of reward: of labels, with about as many; empty where nobody is known."""
    env_id, labels = result["config"]["env_id"], result["figures"]["labels"]
    teacher = result["config"]["prefs"].get("teacher") or ""
    judges_as_people = teacher == "examples.circus:overtaking"
    if ":" in teacher and not judges_as_people:
        return ""  # a trick, of which the environment's reward tells nothing
    found = [r for r in references(env_id) if not r.on_the_way and not r.not_comparable]
    if labels == 0:
        found = [r for r in found if r.labels == 0]
    else:
        found = [r for r in found if r.labels != 0 and ("synthetic" in r.who) != judges_as_people]
    found.sort(key=lambda r: (abs((r.labels or labels) - labels), not r.is_target))
    return _reference(found[0]) if found else ""


def _reference(other: Reference) -> str:
    if other.steps is None:
        return f"{other.who}: {other.reward:,g}"
    after = f"{other.steps / 1e6:g}M" if other.steps >= 1e5 else f"{other.steps:,.0f}"
    return f"{other.who}: {other.reward:,g} ({after})"


def _score(figures: dict[str, Any], policy: str) -> str:
    """The last evaluation; of a run without any the average in training."""
    if "evaluation" in figures:
        return f"{figures['evaluation'][policy]:.1f}"
    return f"{figures['true_reward_last_100_episodes']:.1f} in training"


def _range(numbers: list[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _by_run(results: dict[str, Any]) -> list[str]:
    """A table of all runs, one of when they came to what, and what else is to be known about them."""
    lines = [
        "| result | labels | agent steps | true reward: before training, last 100 episodes | validation accuracy "
        "| cores | steps/s | time | memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    times = [
        "| result | reached by the mean of the last 100 episodes; or last evaluation, 10 episodes | after agent steps "
        "| after minutes |",
        "|---|---|---|---|",
    ]
    machines: set[str] = set()
    notes = []
    for name, result in results.items():
        f = result["figures"]
        accuracy = "" if f["validation_accuracy"] is None else f"{f['validation_accuracy']:.0%}"
        first = _before_training(RESULTS / f"{name}.json")
        first = f["true_reward_first"] if first is None else first
        memory = "" if f["peak_memory_mb"] is None else f"{f['peak_memory_mb']:,.0f} MB"
        lines.append(
            f"| [{name}]({name}.png) | {f['labels']} | {f['agent_steps']:,} "
            f"| {first:.1f}, **{f['true_reward_last_100_episodes']:.1f}** | {accuracy} "
            f"| {result['machine']['cores']} | {f['median_steps_per_second']:,} | {f['seconds']:.0f} s | {memory} |"
        )
        for threshold, reached in f.get("reached", {}).items():
            when = f"{reached['agent_steps']:,.0f} | {reached['seconds'] / 60:.0f}" if reached else "not reached |"
            times.append(f"| {name} | {threshold} | {when} |")
        if last := f.get("evaluation"):
            scores = f"evaluation: {last['deterministic']:.1f} deterministic, {last['sampled']:.1f} sampled"
            times.append(f"| {name} | {scores} | {last['agent_steps']:,} | {last['seconds'] / 60:.0f} |")
        machine = result["machine"]
        machines.add(f"{machine['processor']}, Python {machine['python']}")
        if "note" in result:
            notes.append(f"{name}: {result['note']}.")
    where = f"Machine: {'; '.join(sorted(machines))}. Speed: median over the policy phase, all processes at work."
    return ["\n".join(lines), where, "\n".join(times), *notes]


def _commands(results: dict[str, Any]) -> str:
    lines = ["| result | command | commit | seed |", "|---|---|---|---|"]
    for name, result in results.items():
        command, revision = " ".join(result["command"]), short_revision(result["git_revision"])
        lines.append(f"| {name} | `{command}` | {revision} | {result['config']['seed']} |")
    return "\n".join(lines)


def _before_training(result: Path, policy: str = "sampled") -> float | None:
    """What the untrained policy got in an evaluation; None if there was none."""
    evaluations = result.with_name(f"{result.stem}_evaluations.csv")
    rows = [row for row in read_rows(evaluations) if row["policy"] == policy and row["steps"] == "0"]
    return float(rows[0]["mean"]) if rows else None


def _values(rows: list[dict[str, str]], name: str) -> list[float]:
    return [float(row[name]) for row in rows if row.get(name) not in (None, "", "nan")]


def _reached(rows: list[dict[str, str]], threshold: float) -> dict[str, float] | None:
    """When the mean reward of the last 100 episodes first was that much; None if it never was."""
    for row in rows:
        if float(row["episodes"]) >= 100 and float(row["episode_return"]) >= threshold:
            return {"agent_steps": float(row["steps"]), "seconds": float(row["seconds"])}
    return None


def _first(rows: list[dict[str, str]], name: str) -> float | None:
    return next(iter(_values(rows, name)), None)


def _last(rows: list[dict[str, str]], name: str) -> float | None:
    return next(reversed(_values(rows, name)), None)


if __name__ == "__main__":
    try:
        tyro.extras.subcommand_cli_from_dict({"moving_dot": moving_dot, "record": record, "pages": pages})
    except USER_ERRORS as error:
        sys.exit(f"evidence.py: {told(error)}")
