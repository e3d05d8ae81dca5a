"""The experiment trackers that a run's curves can be sent to: Weights & Biases and MLflow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from drlhp.errors import UserError, reason_of

Track = Literal["none", "wandb", "mlflow"]
Outcome = Literal["finished", "stopped", "failed"]

PACKAGES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}  # what to install, by the name of what is imported
PROJECT = "drlhp"
RUN_ID = "drlhp_run_id"  # the tag by which a resumed run finds its run of MLflow
MOST_AT_ONCE = {"metrics": 1000, "params": 100}  # that a server of MLflow takes in one request
LONGEST_VALUE = 5000  # characters; a server of MLflow takes 6,000 of a setting and 8,000 of a tag
# What the points of a curve are counted in, by the group of its name.
AXES = {"reward_predictor": "batches", "reward_predictor_members": "batches", "demonstrations": "epochs"}
STEPS = "steps"  # all other curves


class Point(NamedTuple):
    """A point of a curve."""

    name: str
    value: float
    step: int
    seconds: float  # since 1970


class RunFacts(NamedTuple):
    """What a tracker is told of a run when it begins."""

    run_id: str
    folder: Path
    settings: dict[str, Any]
    command: str


class Tracker(Protocol):
    """Takes the curves of one run; any method may raise what its package raises."""

    where: str  # how to see them, as the end of a sentence

    def add(self, points: Sequence[Point]) -> None:
        """Takes points in, in the order in which they were written."""

    def close(self, outcome: Outcome) -> None:
        """Sends what is left, and says how the run has ended."""


def check_tracker(name: Track) -> None:
    """Raises UserError if a tracker's package or its login is missing, or its address cannot be used."""
    if name == "none":
        return
    if find_spec(name) is None:
        raise UserError(
            f"--track {name} needs a package that is not installed: run `python -m pip install {PACKAGES[name]}`."
        )
    try:
        if name == "mlflow":
            import mlflow

            mlflow.MlflowClient()
        elif os.environ.get("WANDB_MODE", "online") == "online":
            import wandb

            wandb.login()  # asks for the key in a terminal, as its users know it
    except Exception as error:
        instead = {
            "mlflow": "set MLFLOW_TRACKING_URI to a server, or for SQLite install the whole package mlflow",
            "wandb": "run `wandb login`, or set WANDB_MODE=offline",
        }
        raise UserError(f"--track {name} cannot begin ({reason_of(error)}): {instead[name]}.") from error


def open_tracker(name: Track, facts: RunFacts) -> Tracker:
    """Begins the run at a tracker; a run that is resumed goes on there."""
    return WandbTracker(facts) if name == "wandb" else MlflowTracker(facts)


def release(name: Track) -> None:
    """Ends what a tracker has started, also after a failure: later wandb would complain that its process is gone."""
    if name == "wandb":
        import wandb

        with contextlib.suppress(Exception, SystemExit):
            wandb.teardown()


class WandbTracker:
    """Sends curves to Weights & Biases, or with WANDB_MODE=offline to files in the run folder."""

    def __init__(self, facts: RunFacts) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=facts.run_id,
            name=facts.folder.name,
            resume="allow",
            dir=os.environ.get("WANDB_DIR", str(facts.folder)),
            # It leaves the terminal and the code alone.
            settings=wandb.Settings(console="off", silent=True, save_code=False, disable_git=True),
        )
        self._run.config.update({**facts.settings, "command": facts.command}, allow_val_change=True)
        for axis in {STEPS, *AXES.values()}:
            self._run.define_metric(axis, hidden=True)
        self._run.define_metric("*", step_metric=STEPS)
        for group, axis in AXES.items():
            self._run.define_metric(f"{group}/*", step_metric=axis)
        sync = f"`wandb sync {Path(self._run.dir).parent}` sends it"
        self.where = sync if self._run.offline else str(self._run.url)

    def add(self, points: Sequence[Point]) -> None:
        rows: dict[tuple[str, int], dict[str, float]] = {}
        for point in points:
            axis = AXES.get(point.name.split("/")[0], STEPS)
            rows.setdefault((axis, point.step), {axis: point.step})[point.name] = point.value
        for row in rows.values():
            self._run.log(row)

    def close(self, outcome: Outcome) -> None:
        self._run.finish(exit_code=0 if outcome == "finished" else 1)


class MlflowTracker:
    """Sends curves to MLflow, at the address in MLFLOW_TRACKING_URI."""

    def __init__(self, facts: RunFacts) -> None:
        import mlflow

        self._client = mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        with contextlib.suppress(mlflow.MlflowException):  # it exists, or another run has just made it
            self._client.create_experiment(name)
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            raise LookupError(f"there is no experiment {name}")
        found = self._client.search_runs([experiment.experiment_id], f"tags.{RUN_ID} = '{facts.run_id}'")
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, "RUNNING")
        else:
            tags = {RUN_ID: facts.run_id}
            run = self._client.create_run(experiment.experiment_id, run_name=facts.folder.name, tags=tags)
            self._id = run.info.run_id
            self._add_settings(facts.settings)
        self._client.set_tag(self._id, "command", facts.command[:LONGEST_VALUE])
        self.where = f"run {self._id} of the experiment {name} at {mlflow.get_tracking_uri()}"

    def _add_settings(self, settings: dict[str, Any]) -> None:
        from mlflow.entities import Param

        every = [Param(name, str(value)[:LONGEST_VALUE]) for name, value in settings.items()]
        size = MOST_AT_ONCE["params"]
        for start in range(0, len(every), size):
            self._client.log_batch(self._id, params=every[start : start + size])

    def add(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        every = [Metric(name, value, int(seconds * 1000), step) for name, value, step, seconds in points]
        size = MOST_AT_ONCE["metrics"]
        for start in range(0, len(every), size):
            self._client.log_batch(self._id, metrics=every[start : start + size])

    def close(self, outcome: Outcome) -> None:
        status = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
        self._client.set_terminated(self._id, status[outcome])
