"""The report's sections: each function returns HTML, or raises `Missing` with the sentence to show instead."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence

import numpy as np

from a2c.config import PolicyConfig
from commands.config import RunConfig
from commands.config import settings as settings_of
from commands.flags import defaults_for
from commands.report import figures, model, words
from commands.report.markup import Report, frame, missing, note, pair, plain, table
from commands.report.references import references
from commands.report.runs import Experiment, Missing, Run
from drlhp.errors import USER_ERRORS

NO_POLICY = "No policy is trained by this command."
SPEED, UNIT = "speed/", "_steps_per_second"  # of the names of TensorBoard's curves


def reward(report: Report, group: Sequence[Experiment], suffix: str) -> str:
    """Shows the true reward of the experiments of one environment."""
    training = [experiment for experiment in group if experiment.runs[0].trains_policy]
    runs = [run for experiment in training for run in experiment.runs]
    if not training:
        raise Missing(NO_POLICY)
    if not any(len(run.curve("steps")[0]) or run.evaluations for run in runs):
        raise Missing("No episode has ended yet.")
    known = references(runs[0].env_id)
    png = figures.reward(training, "steps", known)
    charts = [report.chart(f"reward-steps{suffix}", png, "true reward by agent steps")]
    if labelled := [experiment for experiment in training if any(run.labels for run in experiment.runs)]:
        png = figures.reward(labelled, "labels", [r for r in known if r.labels != 0 or r.is_target])
        charts.append(report.chart(f"reward-labels{suffix}", png, "true reward by labels"))
    else:
        charts.append(missing("No labels were used, so there is no curve against labels."))
    notes = []
    if any(len(experiment.runs) > 1 for experiment in training):
        notes.append("Each mean covers the seeds that have come so far; the legend has their number.")
    if any(run.evaluations for run in runs):
        notes.append("Evaluations are episodes outside training; the curves behind them are the training episodes.")
    else:
        notes.append("There was no evaluation: these are the episodes of training, with random actions.")
    if known:
        notes.append("Grey lines: others' final rewards, mostly after more steps or labels than are drawn here.")
    return pair(*charts) + note(" ".join(notes))


def others(env_id: str) -> str:
    """Lists others' results, with their sources."""
    if not (known := references(env_id)):
        raise Missing(f"We know no results of others for {env_id}.")
    rows = []
    for r in known:
        source = f"{r.source} (not drawn: {r.not_comparable})" if r.not_comparable else r.source
        steps, labels = ("" if value is None else plain(value) for value in (r.steps, r.labels))
        rows.append((r.who, f"{r.reward:,g}", steps, labels, source))
    return table(("who", "true reward", "agent steps", "labels", "where from"), rows, numbers=(1, 2, 3))


def predictor(report: Report, run: Run, suffix: str) -> str:
    """Shows accuracy and loss of the reward predictor in training."""
    if not run.uses_preferences:
        raise Missing("This run learned from the true reward, so it has no reward predictor.")
    curves = model.scalars(run.path / "events" / "reward_predictor")
    if not any(np.isfinite(y).any() for _, y in curves.values()):
        raise Missing("No reward predictor has been measured in this run: none was trained (yet).")
    loss = figures.loss(curves, of_returns=model.fits_returns(run))
    charts = (
        report.chart(f"accuracy{suffix}", figures.accuracy(curves), "accuracy of the reward predictor"),
        report.chart(f"loss{suffix}", loss, "loss of the reward predictor"),
    )
    text = (
        "Validation labels are never trained on; the newest 100 of them are measured. Dotted: the result of guessing."
    )
    return pair(*charts) + note(text)


def _with_facts(chart: str, facts: Sequence[str]) -> str:
    return pair(chart, f"<p>{' '.join(facts)}</p>")


def calibration(report: Report, run: Run, suffix: str) -> str:
    """Compares predicted probabilities with the shares of answers."""
    probabilities, answers = model.label_probabilities(run)
    bins = model.calibration(probabilities, answers, model.CALIBRATION_EDGES)
    decisive = answers != 0.5
    right = ((probabilities > 0.5) == (answers > 0.5))[decisive]
    facts = [
        f"{len(answers):,} validation labels (the newest {model.MAX_LABELS} at most).",
        f"Mean distance from the dotted line: {model.calibration_error(bins):.1%}.",
    ]
    if len(right):
        facts.append(f"{right.mean():.0%} of the {len(right):,} answers that prefer one clip are predicted right.")
    rate = model.error_rate(run)
    facts.append(f"The loss allows for {rate:.0%} random answers, so no prediction is surer than {1 - rate / 2:.0%}.")
    facts.append("An answer of equal counts as half.")
    chart = report.chart(f"calibration{suffix}", figures.calibration(bins), "predicted probability and answers")
    return _with_facts(chart, facts)


def correlation(report: Report, run: Run, suffix: str) -> str:
    """Compares predicted with true returns of stored segments."""
    scored = model.scored_segments(run)
    both = [measure(scored.predicted, scored.true) for measure in (model.pearson, model.spearman)]
    facts = [f"Correlation: Pearson {both[0]:+.2f}, Spearman (of ranks) {both[1]:+.2f}."]
    if math.isnan(both[0]):
        facts = ["There is no correlation, because one of the two returns never changes."]
    facts.append(f"{len(scored.ids):,} of {scored.n_stored:,} stored segments, evenly spread over the run.")
    facts.append("They include those that the predictor learned from.")
    facts.append("True rewards are as the teacher sees them: in games +1, 0 or -1 for each step.")
    chart = report.chart(f"correlation{suffix}", figures.correlation(scored), "predicted and true return")
    return _with_facts(chart, facts)


def episode(report: Report, run: Run, suffix: str) -> str:
    """Shows the reward along an episode, with a filmstrip."""
    played = model.played_episode(run)
    chart = report.chart(f"episode{suffix}", figures.episode(played), "reward along an episode")
    facts = [f"{len(played.true):,} agent steps{', where it was cut' if played.cut else ''}"]
    facts.append(f"true reward {played.true.sum():g}")
    if played.predicted is None:
        facts.append("there is no reward predictor, so no predicted reward is drawn")
    else:
        facts.append(f"predicted reward {played.predicted.sum():+.2f} in all")
    text = f"The policy after {played.checkpoint_step:,} agent steps, actions drawn as in training: {'; '.join(facts)}."
    frames = "".join(frame("png", figures.frame_png(picture), f"step {t:,}") for t, picture in played.frames)
    film = missing(played.no_frames) if played.no_frames else f'<div class="frames">{frames}</div>'
    return f'<div class="wide">{chart}</div>{film}{note(text)}'


def gallery(report: Report, run: Run, suffix: str) -> str:
    """Shows the clips that the predictor rewards most and least."""
    scored = model.scored_segments(run)
    rows = []
    for title, clips in zip(("Most", "Least"), model.gallery(run, scored), strict=True):
        items = []
        for clip in clips:
            rewards = (f"predicted {clip.predicted:+.2f}", f"true {clip.true:+g}")
            items.append(frame("gif", figures.clip_gif(clip), *rewards, f"at step {clip.policy_step:,}"))
        rows.append(f'<h4>{title}</h4><div class="frames">{"".join(items)}</div>')
    text = f"Of {len(scored.ids):,} stored segments, at real speed; rewards are sums over the segment, and the step is "
    text += "how far the policy's training was."
    return f"{''.join(rows)}{note(text)}"


def timing(report: Report, run: Run, suffix: str) -> str:
    """Shows how long people took to answer."""
    seconds = model.answer_seconds(run)
    low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75))
    facts = [
        f"{words.count(len(seconds), 'answer')}: median {middle:.1f} s, half of them {low:.1f} to {high:.1f} s.",
        f"{words.duration(float(seconds.sum()))} of looking in all; answers that were taken back do not count.",
    ]
    chart = report.chart(f"timing{suffix}", figures.answer_times(seconds), "seconds for an answer")
    return _with_facts(chart, facts)


def speed(report: Report, run: Run, suffix: str) -> str:
    """Shows agent steps per second, of the run and of its parts."""
    if not run.trains_policy:
        raise Missing(NO_POLICY)
    curves = {k: v for k, v in model.scalars(run.path / "events" / "a2c").items() if k.startswith(SPEED)}
    whole = curves.pop(f"{SPEED}agent{UNIT}", None)
    if whole is None:
        raise Missing("No speed has been measured yet.")
    medians = {"whole run": float(np.median(whole[1]))}
    for name, (_, values) in curves.items():
        medians[name.removeprefix(SPEED).removesuffix(UNIT).replace("_", " ")] = float(np.median(values))
    charts = (
        report.chart(f"speed{suffix}", figures.speed(whole), "speed by agent steps"),
        report.chart(f"speed-parts{suffix}", figures.speed_of_parts(medians), "speed of each part"),
    )
    text = "A part's speed is that of a run that does nothing else, so the slowest part costs the most time."
    return pair(*charts) + note(text)


def settings(report: Report, run: Run, suffix: str) -> str:
    """Lists settings that differ from the defaults, and everything else that a repetition needs."""
    command = shlex.join(["python", "run.py", *map(str, run.record.get("command", ["?"])[1:])])
    machine, versions = run.record.get("machine", {}), run.record.get("versions", {})
    facts = {"command": command, "commit": run.record.get("git_revision"), "started": run.record.get("started")}
    rows = [(name, str(value)) for name, value in {**facts, **machine, **versions}.items() if value]
    return f"{_changed_settings(run)}<h4>How it was run</h4>{table(('', ''), rows, code=1)}"


def _changed_settings(run: Run) -> str:
    try:
        config = RunConfig.from_dict(run.config)
        first = RunConfig(config.mode, config.env_id, policy=PolicyConfig(algo=config.policy.algo))
        defaults = settings_of(defaults_for(first, frozenset({"algo"})).as_dict())
    except USER_ERRORS as error:
        return missing(f"The settings cannot be compared with the defaults: {error}")
    values = settings_of(config.as_dict()).items()
    rows = [(f"--{name}", str(v), str(defaults[name])) for name, v in values if v != defaults[name]]
    if not rows:
        return "<p>Every setting has its default for this environment.</p>"
    return table(("setting", "here", f"default ({config.env_id}, {config.policy.algo})"), rows)


# Name, title and maker of the sections about one run, in the order of the page.
OF_A_RUN: tuple[tuple[str, str, Callable[[Report, Run, str], str]], ...] = (
    ("predictor", "Does the reward predictor agree with the answers?", predictor),
    ("calibration", "Is it as sure as it should be?", calibration),
    ("correlation", "Does it see the true reward?", correlation),
    ("episode", "An episode of the newest policy", episode),
    ("gallery", "What the predictor likes most and least", gallery),
    ("timing", "How long people take to answer", timing),
    ("speed", "Speed", speed),
    ("settings", "Settings", settings),
)
