"""Draws what each ablation of the paper's figures 5 and 6 reached, ours beside the paper's."""

from __future__ import annotations

from pathlib import Path

from benchmarks.learning.evidence.estimates import iqm
from benchmarks.learning.evidence.tables import Runs, ablations_of, kind_of, values, what_differs
from commands.experiments import EXPERIMENTS
from commands.report.references import PAPERS_ABLATIONS


def draw_ablations(found: dict[str, Runs], path: Path) -> None:
    """Draws a panel for each body: what its ablations earned as shares of what the unchanged experiment earned.

    By most likely actions. Games have no panel: their returns may be negative, of which shares tell nothing.
    """
    from matplotlib.figure import Figure  # slow to import

    every = ablations_of(found)
    groups = {name: every[name] for name in every if kind_of(name, EXPERIMENTS[name].command[1]) == "bodies"}
    figure = Figure(figsize=(5.5 * len(groups), 4.5), layout="constrained")
    for axes, (original, group) in zip(figure.subplots(1, len(groups), squeeze=False)[0], groups.items(), strict=True):
        env_id = EXPERIMENTS[original].command[1]
        paper, middle = PAPERS_ABLATIONS[env_id], float(iqm(values(group[original], "deterministic")))
        for place, (name, runs) in enumerate(group.items()):
            shares = [score / middle for score in values(runs, "deterministic")]
            axes.plot([place] * len(shares), shares, ".", color="C0", alpha=0.6, label="" if place else "a run")
            axes.plot(place, iqm(shares), "_", color="C0", markersize=20, label="" if place else "IQM of the runs")
            reached = paper[what_differs(name)] / paper[""]
            axes.plot(place, reached, "x", color="C1", label="" if place else "paper, 700 labels, mean of five")
        axes.axhline(1, color="gray", linewidth=0.5)
        names = [what_differs(name).replace("-", " ") or "nothing" for name in group]
        axes.set_xticks(range(len(names)), names, rotation=30, horizontalalignment="right")
        axes.set(title=env_id, xlabel="what differs", ylabel=f"reward as a share of {original}")
        axes.grid(alpha=0.3, axis="y")
    # Below, where it hides no run.
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center")
    figure.savefig(path, dpi=100)
