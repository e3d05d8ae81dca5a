"""Draws what each task reached by the number of its labels: a point for each recorded run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.learning.evidence.estimates import iqm
from benchmarks.learning.evidence.store import Run
from benchmarks.learning.evidence.tables import ACTIONS, score
from commands.experiments import PREFERENCES

COLUMNS = 3  # panels side by side; more would be too small to read


def draw_labels(found: dict[str, dict[int, Run]], path: Path) -> None:
    """Draws a panel for each environment with several numbers of labels; lines join the interquartile means.

    Args:
        found: recorded runs by experiment and seed. Left out are those whose teacher is not the oracle.
    """
    from matplotlib.figure import Figure  # slow to import

    tasks = {env_id: learners for env_id, learners in by_task(found).items() if len(_counts(learners)) > 1}
    n_rows, n_columns = -(-len(tasks) // COLUMNS), min(len(tasks), COLUMNS)
    figure = Figure(figsize=(5.5 * n_columns, 4 * n_rows), layout="constrained")
    for number, (env_id, learners) in enumerate(tasks.items(), start=1):
        axes = figure.add_subplot(n_rows, n_columns, number)
        axes.set(title=env_id, xlabel="labels", ylabel="true episode reward, last evaluation", xscale="log")
        for off_policy, by_labels in sorted(learners.items()):
            _draw_learner(axes, by_labels, off_policy=off_policy)
        every = [run for by_labels in learners.values() for runs in by_labels.values() for run in runs]
        for reached in {run["figures"]["greedy"] for run in every if "greedy" in run["figures"]}:
            axes.axhline(reached, color="gray", linestyle=":", label="the best player, from the same starts")
        counts = _counts(learners)
        axes.set_xticks(counts, [f"{n:,}" for n in counts])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15))  # below, where it hides no point
    figure.savefig(path, dpi=100)


def _counts(learners: dict[bool, dict[int, list[Run]]]) -> list[int]:
    return sorted(set().union(*learners.values()))


def _draw_learner(axes: Any, by_labels: dict[int, list[Run]], *, off_policy: bool) -> None:
    """Draws the runs of SAC, or those of all other algorithms."""
    counts, name = sorted(by_labels), " (SAC)" if off_policy else ""
    for colour, (policy, actions) in zip(("C2", "C3") if off_policy else ("C0", "C1"), ACTIONS.items(), strict=True):
        scores = [[score(run, policy) for run in by_labels[n]] for n in counts]
        means = [float(iqm(those)) for those in scores]
        axes.plot(
            counts, means, "x-" if off_policy else "-", color=colour, linewidth=1, label=f"{actions} actions{name}"
        )
        for n in counts:
            for run in by_labels[n]:
                filling = "none" if run["tuned_on"] else "full"
                axes.plot(n, score(run, policy), "o", color=colour, alpha=0.6, markersize=4, fillstyle=filling)


def by_task(found: dict[str, dict[int, Run]]) -> dict[str, dict[bool, dict[int, list[Run]]]]:
    """Returns the evaluated runs on the oracle's labels; no ablations.

    By environment, whether they learned off-policy, and `--max_prefs`.
    """
    tasks: dict[str, dict[bool, dict[int, list[Run]]]] = {}
    for run in (run for name, runs in found.items() if not name.startswith("ablation-") for run in runs.values()):
        settings = run["settings"]
        by_oracle = (settings.get("prefs.teacher") or "oracle") == "oracle"
        if settings["mode"] == PREFERENCES and by_oracle and "evaluation" in run["figures"]:
            learners = tasks.setdefault(settings["env_id"], {})
            by_labels = learners.setdefault(settings["policy.algo"] == "sac", {})
            by_labels.setdefault(settings["prefs.max_prefs"], []).append(run)
    return tasks
