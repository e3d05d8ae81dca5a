"""The last words of a run: whether the agent learned, as the report judges it, why, and what to do next."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict

import numpy as np

from a2c.config import PolicyConfig
from commands.config import RunConfig
from commands.flags import defaults_for
from commands.report import words
from commands.report.runs import Run

FEW = 0.5  # share of the usual number below which labels and steps are called few
NEAR_CHANCE = 0.6  # accuracy on held-out labels; a coin gets 0.5


def last_words(run: Run) -> str:
    """Returns the verdict on a finished run, its reason, advice unless the agent learned, and the next commands."""
    lines = [words.headline(run)]
    if run.trains_policy and (verdict := run.outcome.verdict) != "unknown":
        why = words.goal(run.outcome) if verdict == "learned" else words.reason(run.outcome)
        lines = [f"{words.judged(run)}.", why]
    if run.trains_policy and run.outcome.verdict != "learned":
        lines += [f"To try: {advice}" for advice in advices(run)]
    return "\n".join([*lines, "Next:", *(f"  {command}" for command in next_commands(run))])


def advices(run: Run) -> list[str]:
    """Returns what may help an agent that did not learn: a flag or command, and what was found."""
    steps, returns = run.last("steps"), run.curve("steps")[1]
    usual = 1e6 * _defaults(run).policy.million_timesteps
    found = _about_labels(run) if run.uses_preferences else []
    if steps < FEW * usual:
        flag = f"--million_timesteps {usual / 1e6:g}"
        found.append(f"more steps ({flag}): {steps:,.0f} are few, {usual:,.0f} are usual here.")
    if not len(returns):
        found.append("longer training, or episodes that end sooner: no episode has ended.")
    elif len(returns) > 1 and np.ptp(returns) == 0:
        flags = "--explore_million_timesteps, --demonstrations"
        found.append(f"a policy that meets rewards at first ({flags}): the true reward was always the same.")
    return found or ["another seed (--seed 1), after a look at the curves in the report."]


def _about_labels(run: Run) -> list[str]:
    usual, accuracy = _defaults(run).prefs.max_prefs, run.last("validation_accuracy")
    predicted, steps = run.column("predicted_reward"), run.column("steps")
    known = np.isfinite(predicted)
    predicted, steps = predicted[known], steps[known]
    found = []
    if 0 < run.labels < FEW * usual:
        found.append(f"more labels (--max_prefs {usual}): {run.labels:,} are few, {usual:,} are usual here.")
    if accuracy < NEAR_CHANCE:
        look = f"python run.py show_prefs {shlex.quote(str(run.path))}"
        agreed = f"{accuracy:.0%} of the held-out labels agree with the reward predictor, and chance is 50%"
        found.append(f"a look at the labels (`{look}`): {agreed}.")
    if len(predicted) > 1 and np.ptp(steps) > _steps_of_a_point(run) and np.ptp(predicted) == 0:
        found.append("labels that prefer a clip: the predicted reward was always the same, which teaches nothing.")
    return found


def _steps_of_a_point(run: Run) -> int:
    """Returns the agent steps between two points of the curves; until the next one, a row repeats the last."""
    policy = asdict(_defaults(run).policy) | run.config["policy"]
    return int(policy["n_envs"] * policy["n_steps"] * policy["log_interval"])


def _defaults(run: Run) -> RunConfig:
    """Returns the defaults for the run's environment and algorithm."""
    policy = PolicyConfig(algo=run.config["policy"]["algo"])
    return defaults_for(RunConfig("train_policy_with_preferences", run.env_id, policy=policy), frozenset({"algo"}))


def next_commands(run: Run) -> list[str]:
    """Returns the commands that show more of a run, as they can be pasted."""
    place = shlex.quote(str(run.path))
    names = ["report"]
    if run.trains_policy and (run.path / "policy").is_dir():
        names.insert(0, "watch")
    elif run.mode == "gather_initial_prefs" and run.labels:
        names.insert(0, "show_prefs")
    return [f"python run.py {name} {place}" for name in names]


def rewards(run: Run) -> str:
    """Returns the true rewards before and after, of which the verdict is."""
    outcome = run.outcome
    if math.isnan(outcome.after):
        return "no episode has ended"
    episodes = words.count(outcome.episodes, "episode" if outcome.evaluation else "training episode")
    source = f"evaluation, {episodes}" if outcome.evaluation else f"mean of the last {episodes}"
    return f"{words.number(outcome.before)} before, {words.number(outcome.after)} after ({source})"
