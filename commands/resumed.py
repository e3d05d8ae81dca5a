"""Checks what lies in the folder of a run before it is resumed: whether it is the run's own, and all there."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from a2c.learner import Learner, new_policy
from a2c.saved import PolicyCheckpoints
from a2c.starts import Starts
from commands.config import RunConfig, gathers
from commands.run_folder import read_run_id
from drlhp.errors import PrefDBError, UserError
from drlhp.networks.device import CPU
from drlhp.runtime import checkpoint
from drlhp.runtime.run_files import EVALUATIONS, PROGRESS, as_number
from drlhp.training.checkpoints import Checkpoints
from drlhp.training.learner import Learner as RewardLearner
from drlhp.training.pace import Pace
from drlhp.training.pretraining import Pretraining
from drlhp.training.trainer import TrainerSpec
from envs import env_info
from pref_db import PrefDB
from reward_predictor import PredictorInputs

PARTS = ("policy", "reward_predictor")
# A run makes these after its store, so the store cannot be missing where one of them is.
LATER_THAN_THE_STORE = (*PARTS, PROGRESS.name, EVALUATIONS.name, "events", "prefs.db-wal")


def check_resumed(config: RunConfig) -> None:
    """Raises UserError if the newest checkpoints or the store of a run's folder cannot be those that it wrote."""
    folder = config.run_path()
    run_id = read_run_id(folder)
    for table in (PROGRESS, EVALUATIONS):
        table.read_to_go_on(folder)
    policy, predictor = (_own_checkpoint(folder, part, config.env_id, run_id) for part in PARTS)
    with torch.random.fork_rng(devices=[]):  # each checkpoint holds a state of it
        _try_checkpoints(config, policy, predictor)
    if config.uses_preferences:
        n_labels = _check_store(config, folder, run_id, _answers_seen(folder, predictor))
        too_few = n_labels is not None and n_labels < 2 and predictor is None
        if too_few and not gathers(config) and config.mode != "gather_initial_prefs":
            store = folder / "prefs.db"
            raise UserError(f"{store} holds {n_labels} labels, too few to learn from; leave out --no_gather_prefs.")


class Loaded(NamedTuple):
    """A checkpoint, and where it lies."""

    state: dict[str, Any]
    path: Path


def _own_checkpoint(folder: Path, part: str, env_id: str, run_id: str) -> Loaded | None:
    """Returns the newest checkpoint of a part of the run; None if there is none.

    Raises CheckpointError if it cannot be used, or another run wrote it.
    """
    if not checkpoint.list_checkpoints(folder / part):
        return None
    path = checkpoint.find(folder / part, part)
    state = checkpoint.load(path, kind=part, env_id=env_id)
    if state.get("run_id", run_id) != run_id:  # those of older versions have none
        raise checkpoint.CheckpointError(
            f"{path} was written by another run; move it away, or start a new run from it (--load_{part}_ckpt_dir)."
        )
    return Loaded(state, path)


def _try_checkpoints(config: RunConfig, policy: Loaded | None, predictor: Loaded | None) -> None:
    """Raises CheckpointError if the parts of the run could not go on from these checkpoints, which are its newest."""
    folder, info = config.run_path(), env_info(config.env_id)
    if policy is not None:
        learner = Learner(info, config.policy, new_policy(info, config.policy, CPU))
        starts = Starts(info, config.policy, learner, None)
        PolicyCheckpoints(folder / "policy", info.env_id, config.policy, learner, starts, None).take(*policy)
    if predictor is not None:
        inputs = PredictorInputs.of(info)
        spec = TrainerSpec(
            inputs=inputs,
            env_id=config.env_id,
            config=config.predictor,
            run_dir=folder,
            board=None,
            seed=config.seed,
            n_initial_prefs=0,
            freeze=True,
            resume=True,
        )
        trainer = RewardLearner(inputs, config.predictor, np.random.default_rng(0))
        pretraining = Pretraining(config.predictor.initial_passes, None, freeze=True)
        Checkpoints(spec, trainer, pretraining, Pace(config.predictor, 0, policy_waits=True)).take(*predictor)


def answers_seen(folder: Path) -> int:
    """Returns the number of an answer that the store must have: the trainer had read it, or the run had counted it."""
    predictor = None
    if checkpoint.list_checkpoints(folder / "reward_predictor"):
        path = checkpoint.find(folder, "reward_predictor")
        predictor = Loaded(checkpoint.read(path), path)
    return _answers_seen(folder, predictor)


def _answers_seen(folder: Path, predictor: Loaded | None) -> int:
    counted = [as_number(row.get("labels", "")) for row in PROGRESS.read(folder)]
    in_checkpoint = predictor.state.get("newest_seq", 0) if predictor else 0  # older ones have none
    return max([in_checkpoint, *(int(n) for n in counted if 0 < n < 2**53)])  # NaN is not


def _check_store(config: RunConfig, folder: Path, run_id: str, seen: int) -> int | None:
    """Returns the number of labels in a run's store; None if the run was stopped before it had made the store.

    Raises UserError if it is missing, another run's, or has lost answers.
    """
    path = folder / "prefs.db"
    if not path.exists():
        if any((folder / name).exists() for name in LATER_THAN_THE_STORE):
            raise UserError(
                f"{path} is missing, and with it the labels of this run; put it back, or a copy of it with "
                f"`python run.py restore {shlex.quote(str(folder))} COPY`."
            )
        return None
    with contextlib.closing(PrefDB.open(path, read_only=True)) as db:
        check_own(db, path, config, run_id)
        if db.last_seq_given() < seen:
            lost = f"has lost answers: it ends with number {db.last_seq_given()}, and this run has seen number {seen}"
            if config.store:
                raise PrefDBError(f"{config.store} {lost}; restore a newer dump of the database.")
            raise PrefDBError(
                f"{path} {lost}; put back the prefs.db-wal that lay beside it, or go on with what is there by "
                f"`python run.py restore {shlex.quote(str(folder))} {shlex.quote(str(folder))}`."
            )
        return db.n_labels()


def check_own(db: PrefDB, path: Path, config: RunConfig, run_id: str) -> None:
    """Raises PrefDBError if a store, which lies at `path`, is not this run's own."""
    theirs, ours = (db.env_id, db.segment_length), (config.env_id, config.prefs.clip_steps)
    if theirs != ours:
        held, own = (f"{env_id} clips of {steps} steps" for env_id, steps in (theirs, ours))
        raise PrefDBError(f"{path} holds {held}, not {own}; put back the store of this run.")
    if db.run_id != run_id:
        raise PrefDBError(f"{path} is the store of another run; put back the store of this run.")
