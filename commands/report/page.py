"""The report's page: the verdict, rewards compared with others', and one run of each experiment in detail."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from html import escape

from commands.report import sections, words
from commands.report.markup import Report, missing, note, plain, slug, table
from commands.report.runs import NAMED, Experiment, Run, Verdict
from commands.run_folder import short_revision

DETAILED = 3  # experiments with one run shown in detail; more would make the page too large
COLOURS: dict[Verdict, str] = {"learned": "good", "learned a little": "some", "did not learn": "bad", "unknown": ""}


def build(experiments: Sequence[Experiment]) -> tuple[str, dict[str, bytes]]:
    """Returns the page about these experiments, and its figures by file name."""
    report = Report()
    runs = [run for experiment in experiments for run in experiment.runs]
    report.parts.append(_header(experiments))
    if len(runs) > 1:
        report.section("runs", "Runs", 2, _runs_table, experiments)
    env_ids = list(dict.fromkeys(run.env_id for run in runs))
    for env_id in env_ids:
        group = [experiment for experiment in experiments if experiment.runs[0].env_id == env_id]
        suffix = "" if len(env_ids) == 1 else f"-{slug(env_id)}"
        report.section(f"reward{suffix}", f"True reward, {env_id}", 2, sections.reward, report, group, suffix)
        report.section(f"references{suffix}", "What others reached", 3, sections.others, env_id)
    for i, experiment in enumerate(experiments[:DETAILED], start=1):
        _closely(report, experiment, "" if len(experiments) == 1 else f"-{i}", alone=len(runs) == 1)
    shown = {experiment.middle.path for experiment in experiments[:DETAILED]}
    if rest := [run for run in runs if run.path not in shown]:
        report.section("others", "The other runs in detail", 2, _commands, rest)
    title = f"{runs[0].name}, {runs[0].env_id}" if len(runs) == 1 else f"{len(runs)} runs"
    return report.page(title), report.files


def _header(experiments: Sequence[Experiment]) -> str:
    """Returns the verdict, at the top of the page."""
    runs = [run for experiment in experiments for run in experiment.runs]
    if len(runs) == 1:
        run = runs[0]
        about = note(f"{run.name}, {run.env_id}, {run.mode.replace('_', ' ')}")
        why = note(words.reason(run.outcome)) if run.trains_policy and run.outcome.verdict != "unknown" else ""
        headline = f"<h1>{escape(words.headline(run))}</h1>"
        return f'<header id="verdict">{about}<p>{_verdict(run)}</p>{headline}{_error(run)}{why}{_tiles(run)}</header>'
    lines = [
        f"<p>{_verdict_of(e)}</p><h1>{escape(f'{e.name}. {words.headline_of(e)}')}</h1>"
        f"{''.join(_error(run, run.name) for run in e.runs)}"
        for e in experiments
    ]
    goals = dict.fromkeys(f"{run.env_id}: {words.goal(run.outcome)}" for run in runs if run.trains_policy)  # each once
    return f'<header id="verdict">{"".join(lines)}{note(" ".join([*goals, words.RULE]))}</header>'


def _error(run: Run, name: str = "It") -> str:
    return missing(f"{name} ended with an error: {run.error}") if run.error else ""


def _verdict(run: Run) -> str:
    """Returns the verdict as a coloured word, followed by the status of an unfinished run."""
    status = "" if run.status == "finished" else f' <span class="verdict">{run.status}</span>'
    if not run.trains_policy:
        return status or f'<span class="verdict">{run.status}</span>'
    verdict = run.outcome.verdict
    return f'<span class="verdict {COLOURS[verdict]}">{_told(verdict)}</span>{status}'


def _verdict_of(experiment: Experiment) -> str:
    """Returns the verdicts on an experiment's runs as coloured words, with the number of runs of each."""
    runs = experiment.runs
    if len(runs) == 1 or not runs[0].trains_policy:
        return _verdict(runs[0])
    verdicts = [run.outcome.verdict for run in runs]
    return " ".join(
        f'<span class="verdict {colour}">{verdicts.count(verdict)} of {len(runs)} {_told(verdict)}</span>'
        for verdict, colour in COLOURS.items()
        if verdict in verdicts
    )


def _told(verdict: Verdict) -> str:
    return "nothing known yet" if verdict == "unknown" else verdict


def _tiles(run: Run) -> str:
    """Returns the most important numbers that are known."""
    tiles: list[tuple[str, str]] = []
    for policy in ("sampled", "deterministic"):
        rows = [row for row in run.evaluations if row.policy == policy]
        if rows:
            cut = "; episodes were cut short" if rows[-1].capped else ""
            text = f"evaluation, {policy} actions (± {rows[-1].std:.1f} from episode to episode{cut})"
            tiles.append((words.number(rows[-1].mean), text))
    if not math.isnan(reward := run.last("episode_return")):
        tiles.append((words.number(reward), "true reward in training, mean of the last 100 episodes"))
    if run.trains_policy and not math.isnan(run.outcome.before):
        tiles.append((words.number(run.outcome.before), "true reward before"))
    if run.uses_preferences:
        tiles.append((f"{run.labels:,}", "labels"))
        if not math.isnan(accuracy := run.last("validation_accuracy")):
            tiles.append((f"{accuracy:.0%}", "of validation labels predicted right"))
        if (due := run.last("batches_due")) >= 1:
            tiles.append((f"{run.last('batches_trained'):,.0f}", f"batches of labels trained, of {due:,.0f} due"))
    for name, text in (("steps", "agent steps"), ("episodes", "training episodes")):
        if not math.isnan(value := run.last(name)):
            tiles.append((f"{value:,.0f}", text))
    if not math.isnan(seconds := run.last("seconds")):
        tiles.append((words.duration(seconds), "run time"))
    items = "".join(f'<div class="tile"><b>{escape(v)}</b><span>{escape(text)}</span></div>' for v, text in tiles)
    return f'<div class="tiles">{items}</div>'


def _runs_table(experiments: Sequence[Experiment]) -> str:
    """Returns a table of all runs and, below, the settings in which the experiments differ."""
    head = (
        "experiment",
        "run",
        "seed",
        "status",
        "verdict",
        "before",
        "after",
        "labels",
        "agent steps",
        "time",
        "commit",
    )
    rows = []
    for experiment in experiments:
        for run in experiment.runs:
            outcome = run.outcome
            about = (experiment.name, run.name, f"{run.config['seed']}", run.status, outcome.verdict)
            rewards = (words.number(outcome.before), words.number(outcome.after))
            counts = (f"{run.labels:,}", plain(run.last("steps")), words.duration(run.last("seconds")))
            rows.append((*about, *rewards, *counts, short_revision(str(run.record.get("git_revision", "")))))
    text = table(head, rows, numbers=(5, 6, 7, 8))
    if len(experiments) == 1:
        return text
    settings = [
        (f"--{name}", *(str(experiment.differing[name]) for experiment in experiments))
        for name in experiments[0].differing
        if name not in NAMED
    ]
    names = [experiment.name.split(":")[0] for experiment in experiments]
    return f"{text}<h3>Settings that differ</h3>{table(('setting', *names), settings)}"


def _closely(report: Report, experiment: Experiment, suffix: str, *, alone: bool) -> None:
    """Adds all sections about the middle run of an experiment."""
    run = experiment.middle
    if not alone:
        which = f", the middle one of {len(experiment.runs)} by its reward" if len(experiment.runs) > 1 else ""
        title = f"{experiment.name}: {run.name}, seed {run.config['seed']}{which}"
        report.section(f"run{suffix}", title, 2, _introduction, run)
    for name, title, make in sections.OF_A_RUN:
        report.section(name + suffix, title, 3, make, report, run, suffix)


def _introduction(run: Run) -> str:
    return f"<p>{_verdict(run)} {escape(words.headline(run))}</p>{_error(run)}{_tiles(run)}"


def _commands(runs: Sequence[Run]) -> str:
    lines = (f"<li><code>python run.py report {escape(shlex.quote(str(run.path)))}</code></li>" for run in runs)
    return f"<ul>{''.join(lines)}</ul>"
