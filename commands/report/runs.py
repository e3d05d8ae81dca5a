"""Run folders as a report reads them: their tables, their curves, and whether the agent learned."""

from __future__ import annotations

import itertools
import json
import math
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from commands.config import RunConfig, nulls, settings
from commands.report.references import Reference, target
from commands.run_folder import read_record
from drlhp.errors import PrefDBError, UserError
from drlhp.runtime import checkpoint
from drlhp.runtime.checkpoint import CheckpointError
from drlhp.runtime.locks import in_use
from drlhp.runtime.regular_files import open_regular
from drlhp.runtime.run_files import EVALUATIONS, PROGRESS, as_number
from pref_db import PrefDB

GRID = 200  # points at which the curves of several seeds are compared
RECENT_EPISODES = 100  # a training average covers so many (a2c/runner.py)
NAMED = ("mode", "env_id")  # settings that an experiment's name has in words
SHORT = 24  # most letters of other settings in an experiment's name, which has to fit in a legend

Curve = tuple[np.ndarray, np.ndarray]  # (N,) strictly increasing, (N,)
Verdict = Literal["learned", "learned a little", "did not learn", "unknown"]
Status = Literal["running", "finished", "stopped"]


class Missing(Exception):
    """Something cannot be shown; the message is the reason, in one sentence."""


@dataclass(frozen=True)
class Evaluation:
    """One row of evaluations.csv: episodes outside training, with true, unclipped rewards."""

    steps: float
    labels: float
    policy: str  # deterministic or sampled
    episodes: int
    mean: float
    std: float
    lowest: float
    highest: float
    capped: bool  # whether an episode was cut short


@dataclass(frozen=True)
class Outcome:
    """The result of a run: the newest mean reward of an episode, and the first one."""

    verdict: Verdict
    before: float
    after: float
    evaluation: Evaluation | None  # the source of `after`; None: training episodes
    episodes: int
    target: Reference | None


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder as it is now; the run may still continue."""

    path: Path
    record: dict[str, Any]  # config.json
    progress: list[dict[str, str]]  # rows of progress.csv
    evaluations: list[Evaluation]
    status: Status
    error: str  # the last error in log.txt, if the run ended with one

    @classmethod
    def load(cls, path: Path) -> Run:
        """Reads a run folder.

        Raises:
            UserError: the folder is no run folder, or its config.json is damaged.
        """
        record = read_record(path)
        config = record["config"]
        wanted = {"mode": str, "env_id": str, "seed": int, "predictor": dict}
        missing = [name for name, kind in wanted.items() if not isinstance(config.get(name), kind)] or nulls(config)
        if missing:
            raise UserError(f"{path / 'config.json'} is damaged (no {missing[0]} in it); restore it.")
        progress = PROGRESS.read(path)
        status, error = _status(path, progress, config)
        evaluations = [_evaluation(row) for row in EVALUATIONS.read(path)]
        return cls(path, record, progress, evaluations, status, error)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def config(self) -> dict[str, Any]:
        return self.record["config"]

    @property
    def env_id(self) -> str:
        return self.config["env_id"]

    @property
    def mode(self) -> str:
        return self.config["mode"]

    @property
    def uses_preferences(self) -> bool:
        return self.mode != "train_policy_with_original_rewards"

    @property
    def trains_policy(self) -> bool:
        return self.mode.startswith("train_policy")

    @property
    def max_steps(self) -> float:
        """Returns the agent steps that the run was started for."""
        return _max_steps(self.config)

    def column(self, name: str) -> np.ndarray:
        """Returns a column (N,) of progress.csv; NaN if a row holds no number."""
        return np.array([as_number(row.get(name, "")) for row in self.progress])

    def last(self, name: str) -> float:
        """Returns the newest number in a column of progress.csv; NaN if there is none."""
        numbers = self.column(name)
        numbers = numbers[np.isfinite(numbers)]
        return float(numbers[-1]) if len(numbers) else math.nan

    def curve(self, x: str) -> Curve:
        """Returns the mean true reward of the last 100 training episodes, against `steps` or `labels`."""
        return newest_values(self.column(x), self.column("episode_return"))

    def evaluation_curve(self, policy: str, x: str) -> Curve:
        """Returns the mean true reward of a policy's evaluations, against `steps` or `labels`."""
        rows = [row for row in self.evaluations if row.policy == policy]
        xs = np.array([getattr(row, x) for row in rows], float)
        return newest_values(xs, np.array([row.mean for row in rows], float))

    @cached_property
    def labels(self) -> int:
        """Returns the number of labels in the store; without a store, in progress.csv, which is behind it."""
        try:
            db = PrefDB.open(self.path / "prefs.db", read_only=True)
        except PrefDBError:
            told = self.last("labels")
            return 0 if math.isnan(told) else int(told)
        try:
            return db.n_labels()
        finally:
            db.close()

    @cached_property
    def outcome(self) -> Outcome:
        """Returns the result, from evaluations if there are any, else from training episodes."""
        _, returns = self.curve("steps")
        before = float(returns[0]) if len(returns) else math.nan
        reference = target(self.env_id)
        if evaluation := self._newest_evaluation():
            first = next(row for row in self.evaluations if row.policy == evaluation.policy)
            spread = evaluation.std
            error = spread / math.sqrt(max(evaluation.episodes, 1))
            if first.steps == 0 and evaluation.steps > 0:
                before = first.mean
                error = math.hypot(error, first.std / math.sqrt(max(first.episodes, 1)))
            after, episodes = evaluation.mean, evaluation.episodes
        else:
            after = float(returns[-1]) if len(returns) else math.nan
            episodes = int(min(RECENT_EPISODES, np.nan_to_num(self.last("episodes"))))
            spread = self._episode_spread()
            error = spread * math.sqrt(2 / max(episodes, 1))
        verdict = judge(before, after, error, spread, None if reference is None else reference.reward)
        return Outcome(verdict, before, after, evaluation, episodes, reference)

    def _newest_evaluation(self) -> Evaluation | None:
        """Returns the newest evaluation with sampled actions, as in training and in the paper, else deterministic ones.

        An evaluation before the first step does not count.
        """
        later = [row for row in self.evaluations if row.steps > 0 and math.isfinite(row.mean)]
        for policy in ("sampled", "deterministic"):
            rows = [row for row in later if row.policy == policy]
            if rows:
                return rows[-1]
        return None

    def _episode_spread(self) -> float:
        """Returns the standard deviation of the newest training episodes' rewards; NaN without a checkpoint."""
        try:
            returns = checkpoint.read(checkpoint.find(self.path, "policy"))["finished_returns"]
        except (CheckpointError, KeyError):
            return math.nan
        return float(np.std(returns)) if len(returns) > 1 else math.nan


def judge(before: float, after: float, error: float, spread: float, goal: float | None) -> Verdict:
    """Returns whether an agent learned.

    Args:
        before, after: mean rewards of episodes.
        error: standard error of their difference; NaN counts as 0.
        spread: standard deviation of one episode's reward; NaN if unknown.
        goal: the reward to compare with, if there is one.

    A gain of at most two standard errors counts as none. A larger gain counts as little if it is less than half the way
    to the goal or, without a goal, less than the spread.
    """
    if math.isnan(before) or math.isnan(after):
        return "unknown"
    if goal is not None and after >= goal:
        return "learned"
    gain = after - before
    if gain <= 2 * np.nan_to_num(error):
        return "did not learn"
    much = spread if goal is None else (goal - before) / 2
    return "learned" if gain >= much else "learned a little"  # NaN compares as False


def newest_values(x: np.ndarray, y: np.ndarray) -> Curve:
    """Returns points with strictly increasing x and known y.

    The newest point counts if several have the same x, or if a resumed run went back behind an x.
    """
    kept: list[int] = []
    lowest = math.inf
    for i in reversed(range(len(x))):
        if math.isfinite(y[i]) and x[i] < lowest:
            kept.append(i)
            lowest = x[i]
    kept.reverse()
    return x[kept], y[kept]


def over_seeds(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ma.MaskedArray] | None:
    """Interpolates curves of several seeds on one grid, over the range that any of them covers.

    Returns:
        grid (G,) and values (seeds, G), masked if a seed has none; None for fewer than two curves of two points.
    """
    curves = [(x, y) for x, y in curves if len(x) > 1]
    if len(curves) < 2:
        return None
    grid = np.linspace(min(x[0] for x, _ in curves), max(x[-1] for x, _ in curves), GRID)
    values = [np.interp(grid, x, y, left=math.nan, right=math.nan) for x, y in curves]
    return grid, np.ma.masked_invalid(np.stack(values))


@dataclass(frozen=True, eq=False)
class Experiment:
    """Runs of the same settings, with different seeds."""

    name: str  # short, for headings and legends
    runs: list[Run]
    differing: dict[str, Any]  # this experiment's values of the settings in which the report's experiments differ

    @property
    def middle(self) -> Run:
        """Returns the run with the median reward at the end, which the report shows in detail."""
        known = [run for run in self.runs if not math.isnan(run.outcome.after)] or self.runs
        return sorted(known, key=lambda run: run.outcome.after)[(len(known) - 1) // 2]


def experiments(runs: Sequence[Run]) -> list[Experiment]:
    """Groups runs that differ at most in their seed, in the order given."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(_settings(run), sort_keys=True), []).append(run)
    found_settings = [_settings(group[0]) for group in groups.values()]
    names = list(dict.fromkeys(name for values in found_settings for name in values))
    # A setting that some experiments lack, such as those of preferences, is no difference in itself.
    differing = [name for name in names if len({str(values[name]) for values in found_settings if name in values}) > 1]
    folders = [_without_seed(group) for group in groups.values()]
    named = all(folders) and len(set(folders)) == len(folders)
    found = []
    for letter, group, values, folder in zip(_letters(), groups.values(), found_settings, folders, strict=False):
        differences = {name: values.get(name, "") for name in differing}
        name = f"{letter}: {folder}" if named else _name(letter, group[0], differences)
        found.append(Experiment(name if len(groups) > 1 else group[0].env_id, group, differences))
    return found


def _without_seed(runs: Sequence[Run]) -> str:
    """Returns the name that an experiment's run folders share apart from their seeds; empty if they share none."""
    names = {re.sub(r"[-_]?(seed)?[-_]?\d+$", "", run.name) for run in runs}
    return names.pop() if len(names) == 1 else ""


def _letters() -> Iterator[str]:
    """Yields A to Z, then A1 to Z1, and so on."""
    for number in itertools.count():
        yield from (f"{letter}{number or ''}" for letter in string.ascii_uppercase)


def _name(letter: str, run: Run, differing: dict[str, Any]) -> str:
    """Returns a letter and the kind of reward, with other differences if they are short."""
    words = ["preferences" if run.uses_preferences else "true reward"]
    if "env_id" in differing:
        words.insert(0, run.env_id.removesuffix("NoFrameskip-v4").removesuffix("NoFrameskip-v0"))
    others = ", ".join(f"{name} {value}" for name, value in differing.items() if value != "" and name not in NAMED)
    return f"{letter}: {', '.join([*words, others] if 0 < len(others) <= SHORT else words)}"


def _settings(run: Run) -> dict[str, Any]:
    """Returns the settings of an experiment, by flag; settings that an old run lacks have their defaults."""
    try:
        config = RunConfig.from_dict(run.config).as_dict()
    except UserError:  # another version, with other settings, wrote it
        config = run.config
    without_effect = ("seed",) if run.uses_preferences else ("seed", "prefs", "predictor")
    return settings({name: value for name, value in config.items() if name not in without_effect})


def _evaluation(row: dict[str, str]) -> Evaluation:
    number = {name: as_number(row.get(name, "")) for name in ("steps", "labels", "mean", "std", "lowest", "highest")}
    episodes = as_number(row.get("episodes", ""))
    capped = row.get("capped", "").strip().lower() not in ("", "0", "0.0", "false", "no")
    return Evaluation(
        **number,
        policy=row.get("policy", ""),
        episodes=0 if math.isnan(episodes) else int(episodes),
        capped=capped,
    )


def _max_steps(config: dict[str, Any]) -> float:
    try:
        return round(float(config["policy"]["million_timesteps"]) * 1e6)
    except (KeyError, TypeError, ValueError):
        return math.nan


def _status(path: Path, progress: list[dict[str, str]], config: dict[str, Any]) -> tuple[Status, str]:
    """Returns whether a run is running, finished or stopped, and the error that stopped it."""
    if in_use(path):
        return "running", ""
    try:
        with open_regular(path / "log.txt") as file:
            log = file.read().decode(errors="replace")
    except OSError:  # a copy without its log
        steps = as_number(progress[-1].get("steps", "")) if progress else math.nan
        return ("finished" if steps >= _max_steps(config) else "stopped"), ""
    log = log.split(" INFO command: ")[-1]  # since it was last started or resumed
    if " INFO finished" in log:
        return "finished", ""
    errors = [line for line in log.splitlines() if " ERROR " in line]
    return "stopped", errors[-1].split(" ERROR ", 1)[1] if errors else ""
