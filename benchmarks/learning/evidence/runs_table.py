"""Makes the table of every recorded run, for results/README.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.learning.evidence.store import Run
from commands.run_folder import short_revision
from drlhp.runtime.run_files import POLICIES

HEAD = (
    *("experiment", "seed", "tuned on", "labels", "agent steps", "evaluated after", "most likely actions"),
    *(
        "sampled actions",
        "last 100 episodes of the training",
        "validation accuracy",
        "batches trained of those due",
        "cores",
        "steps/s",
        "minutes",
    ),
    *("memory", "commit"),
)
REACHED = ("experiment", "seed", "mean of 100 episodes", "after agent steps", "after minutes")


def by_run(found: dict[str, dict[int, Run]]) -> str:
    """Returns a table of all runs, one of when they reached which reward, their machines, and their notes."""
    rows, times, notes, machines = [], [], [], set()
    for name, runs in found.items():
        for seed, run in runs.items():
            rows.append((f"[{name}]({name}/curves.png)", seed, *_cells(run)))
            for threshold, reached in run["figures"].get("reached", {}).items():
                when = (
                    (f"{reached['agent_steps']:,.0f}", f"{reached['seconds'] / 60:.0f}") if reached else ("never", "")
                )
                times.append((name, seed, threshold, *when))
            machines.add(f"{run['machine']['processor']}, Python {run['machine']['python']}")
            if "note" in run:
                notes.append(f"- {name}, seed {seed}: {run['note'].rstrip('.')}.")
    where = f"Machines: {'; '.join(sorted(machines))}. Speed: median over the policy phase, all processes at work."
    return "\n\n".join((table(HEAD, rows), where, table(REACHED, times), "\n".join(notes)))


def _cells(run: Run) -> tuple[Any, ...]:
    f, evaluation = run["figures"], run["figures"].get("evaluation", {})
    return (
        "yes" if run["tuned_on"] else "no",
        f"{f['labels']:,}",
        f"{f['agent_steps']:,}",
        f"{evaluation['agent_steps']:,}" if evaluation else "",
        *(f"{evaluation[policy]:,.1f}" if evaluation else "" for policy in POLICIES),
        f"{f['true_reward_last_100_episodes']:,.1f}",
        "" if f["validation_accuracy"] is None else f"{f['validation_accuracy']:.0%}",
        f"{f['batches_trained']:,.0f} of {f['batches_due']:,.0f}" if f.get("batches_due") else "",
        run["machine"]["cores"],
        f"{f['median_steps_per_second']:,}",
        f"{f['seconds'] / 60:.0f}",
        "" if f["peak_memory_mb"] is None else f"{f['peak_memory_mb']:,.0f} MB",
        short_revision(run["git_revision"]),
    )


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Returns a table in Markdown."""
    names = list(head)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
