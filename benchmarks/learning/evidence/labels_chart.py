"""Draws what each task reached by the number of its labels: a point for each recorded run."""

from __future__ import annotations

from pathlib import Path

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

    tasks = {env_id: by_labels for env_id, by_labels in by_task(found).items() if len(by_labels) > 1}
    n_rows, n_columns = -(-len(tasks) // COLUMNS), min(len(tasks), COLUMNS)
    figure = Figure(figsize=(5.5 * n_columns, 4 * n_rows), layout="constrained")
    for number, (env_id, by_labels) in enumerate(tasks.items(), start=1):
        axes = figure.add_subplot(n_rows, n_columns, number)
        counts = sorted(by_labels)
        for colour, (policy, actions) in zip(("C0", "C1"), ACTIONS.items(), strict=True):
            scores = [[score(run, policy) for run in by_labels[n]] for n in counts]
            axes.plot(counts, [float(iqm(those)) for those in scores], colour, linewidth=1, label=f"{actions} actions")
            for n, those in zip(counts, scores, strict=True):
                axes.plot([n] * len(those), those, ".", color=colour, alpha=0.6)
        best = {run["figures"]["greedy"] for runs in by_labels.values() for run in runs if "greedy" in run["figures"]}
        for reached in best:
            axes.axhline(reached, color="gray", linestyle=":", label="the best player, from the same starts")
        axes.set(title=env_id, xlabel="labels", ylabel="true episode reward, last evaluation", xscale="log")
        axes.set_xticks(counts, [f"{n:,}" for n in counts])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15))  # below, where it hides no point
    figure.savefig(path, dpi=100)


def by_task(found: dict[str, dict[int, Run]]) -> dict[str, dict[int, list[Run]]]:
    """Returns the evaluated runs on the oracle's labels, by environment and `--max_prefs`; no ablations."""
    tasks: dict[str, dict[int, list[Run]]] = {}
    for run in (run for name, runs in found.items() if not name.startswith("ablation-") for run in runs.values()):
        settings = run["settings"]
        by_oracle = (settings.get("prefs.teacher") or "oracle") == "oracle"
        if settings["mode"] == PREFERENCES and by_oracle and "evaluation" in run["figures"]:
            tasks.setdefault(settings["env_id"], {}).setdefault(settings["prefs.max_prefs"], []).append(run)
    return tasks
