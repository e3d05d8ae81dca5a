"""The report's sentences: headlines, numbers and times."""

from __future__ import annotations

import math
from collections.abc import Sequence

from commands.report.runs import Experiment, Outcome, Run

RULE = (
    "Learned means a gain of more than two standard errors and of at least half the way to the goal; without a goal, "
    "of at least the standard deviation of an episode's reward."
)


def number(value: float) -> str:
    """Returns a reward with one decimal, or with none from 1,000 on."""
    if math.isnan(value):
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:z.1f}"


def count(value: float, noun: str) -> str:
    """Returns a number with its noun: `1 label`, `3,300 labels`."""
    return f"{value:,.0f} {noun}{'' if round(value) == 1 else 's'}"


def duration(seconds: float) -> str:
    """Returns seconds in the one or two units that matter."""
    if math.isnan(seconds):
        return "an unknown time"
    if seconds < 100:
        return count(round(seconds), "second")
    minutes = round(seconds / 60)
    if minutes < 100:
        return count(minutes, "minute")
    return " ".join(filter(None, (count(minutes // 60, "hour"), count(minutes % 60, "minute") if minutes % 60 else "")))


def headline(run: Run) -> str:
    """Returns the result of a run, in one or two sentences."""
    labels = count(run.labels, "label")
    if run.mode == "gather_initial_prefs":
        return f"{_progress(run)}{labels} gathered; this command trains nothing."
    if run.mode == "pretrain_reward_predictor":
        return f"{_progress(run)}The reward predictor had {labels} to learn from; this command trains no policy."
    if run.outcome.verdict == "unknown":
        steps = run.last("steps")
        if math.isnan(steps) or steps == 0:
            so_far = f", after {labels}" if run.uses_preferences else ""
            return f"{_progress(run)}The policy has not begun to learn{so_far}."
        return f"{_progress(run)}No episode has ended, so nothing is known about the true reward."
    return f"{_progress(run)}{judged(run)} in {_time(run)}."


def judged(run: Run) -> str:
    """Returns the verdict on a run that trains a policy with its rewards and labels, without a full stop."""
    outcome, running = run.outcome, run.status == "running"
    learned = {
        "learned": ("learned", "has learned"),
        "learned a little": ("learned a little", "has learned a little"),
        "did not learn": ("did not learn", "has not learned"),
    }[outcome.verdict][running]
    words = f"The agent {learned}{' so far' if running else ''}: {measured(outcome)}"
    return f"{words}, before {number(outcome.before)}, {_from(run)}"


def _progress(run: Run) -> str:
    """Returns how far an unfinished run is; empty for a finished one."""
    if run.status == "finished":
        return ""
    steps = run.last("steps")
    far = f"{_steps(steps)} of {_steps(run.max_steps)} agent steps"
    if not run.trains_policy or math.isnan(steps) or not steps <= run.max_steps:
        far = ""
    if run.status == "running":
        return f"Still running{f', {far}' if far else ''}. "
    return f"Stopped before its end{f', after {far}' if far else ''}. "


def _steps(value: float) -> str:
    return f"{value:,.0f}"


def _time(run: Run) -> str:
    return duration(run.last("seconds"))


def _from(run: Run) -> str:
    if not run.uses_preferences:
        return "from the true reward"
    return f"from {count(run.labels, 'label')}" if run.labels else "from a reward predictor of another run"


def measured(outcome: Outcome) -> str:
    """Returns the newest mean reward, and the episodes that it is the mean of."""
    if outcome.evaluation is not None:
        return f"evaluation {number(outcome.after)} ({count(outcome.episodes, 'episode')})"
    episodes = f"last {count(outcome.episodes, 'training episode')}, no evaluation"
    return f"true reward {number(outcome.after)} ({episodes})"


def reason(outcome: Outcome) -> str:
    """Returns the reason for the verdict, with the figure that the run is compared with."""
    return f"{goal(outcome)} {RULE}"


def goal(outcome: Outcome) -> str:
    """Returns the figure that a run is compared with, in a sentence."""
    target = outcome.target
    if target is None:
        return "No goal is known for this environment."
    return f"The goal here is {number(target.reward)} ({target.who})."


def headline_of(experiment: Experiment) -> str:
    """Returns the results of an experiment's runs, in one sentence."""
    runs = experiment.runs
    if len(runs) == 1:
        return headline(runs[0])
    verdicts = [run.outcome.verdict for run in runs]
    words = [f"{verdicts.count('learned')} of {len(runs)} runs learned"]
    words += [f"{verdicts.count(v)} {v}" for v in ("learned a little", "did not learn") if v in verdicts]
    words += [f"{verdicts.count('unknown')} unknown"] if "unknown" in verdicts else []
    running = sum(run.status == "running" for run in runs)
    words += [f"{running} still running"] if running else []
    stopped = sum(run.status == "stopped" for run in runs)
    words += [f"{stopped} stopped before {'its' if stopped == 1 else 'their'} end"] if stopped else []
    after = [run.outcome.after for run in runs if not math.isnan(run.outcome.after)]
    before = [run.outcome.before for run in runs if not math.isnan(run.outcome.before)]
    if not after:
        return f"{', '.join(words)}."
    mean = sum(after) / len(after)
    evaluated = all(run.outcome.evaluation is not None for run in runs)
    what = "evaluation" if evaluated else "true reward"
    rewards = f"{what} {number(mean)} (lowest {number(min(after))}, highest {number(max(after))})"
    return f"{', '.join(words)}: {rewards}, before {number(sum(before) / len(before))}, {_from_each(runs)}."


def _from_each(runs: Sequence[Run]) -> str:
    if not runs[0].uses_preferences:
        return "from the true reward"
    labels = sorted({run.labels for run in runs})
    if len(labels) == 1:
        return f"from {count(labels[0], 'label')} each" if labels[0] else "from a reward predictor of another run"
    return f"from {labels[0]:,} to {labels[-1]:,} labels"
