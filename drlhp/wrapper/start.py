"""Starts the processes beside the program: the preference interface and the trainer of the reward predictor."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import gymnasium

from drlhp.errors import UserError, WorkerError
from drlhp.label_server.config import PageConfig
from drlhp.label_server.gatherer import WebGatherer
from drlhp.labelling.answers import LABELLER
from drlhp.labelling.gatherers import PreferenceGatherer, SyntheticGatherer
from drlhp.labelling.notices import Notices
from drlhp.runtime import checkpoint
from drlhp.runtime.channels import Channels
from drlhp.runtime.machine import n_cores
from drlhp.runtime.weights import WeightsBoard
from drlhp.screens.canvas import DisplayError, open_display
from drlhp.screens.gatherer import PersonGatherer
from drlhp.screens.window import ClipWindow
from drlhp.training.trainer import Intervals, TrainerSpec, run_trainer
from drlhp.wrapper.background import INTERFACE, NO_GUARD, NO_GUARD_STATUS, TRAINER, BackgroundProcesses
from drlhp.wrapper.description import WrappedEnv
from drlhp.wrapper.folders import new_folder, preferences
from drlhp.wrapper.pretrained import FirstPredictor
from drlhp.wrapper.settings import Settings
from drlhp.wrapper.spaces import ActionEncoder
from pref_db import PrefDB, merge
from pref_interface import InterfaceSpec, run_interface, teacher_of

IN_WORKER = (
    "a worker of a vector environment cannot start processes: wrap the vector environment as a whole "
    "(HumanPreferencesVectorEnv, HumanPreferencesSB3VecEnv)."
)
SEGMENTS_LOOKED_AT = 100  # of loaded preferences, to see whether they come from this environment
Ui = Literal["window", "web"]
Spec = TypeVar("Spec", InterfaceSpec, TrainerSpec)


@dataclass(frozen=True)
class LogFile:
    """The log of a process."""

    path: Path
    level: int
    """Least important messages that are logged, as `logging` numbers them."""


def logged(channels: Channels, log_file: LogFile, body: Callable[[Channels, Spec], None], spec: Spec) -> None:
    """Body of a process that keeps a log: sets up the log, then runs another body."""
    form = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logging.basicConfig(filename=log_file.path, level=log_file.level, format=form)
    body(channels, spec)


def make_gatherer(db: PrefDB, spec: InterfaceSpec, ui: Ui, framed: bool) -> PreferenceGatherer:
    """Makes the synthetic teacher, window or page that answers, in the process of the preference interface."""
    if spec.config.synthetic_prefs:
        return SyntheticGatherer(db, teacher_of(spec.config, spec.seed, db.n_answers()))
    page = PageConfig(web_port=0, web_framed=framed)
    Notices(db).give_settings(page.settings(spec.goal, spec.config.labels_to_start()), keep=False)
    if ui == "window":
        return PersonGatherer(db, ClipWindow(), None, LABELLER)
    return WebGatherer(db, db.path.parent, page)


def start_processes(
    settings: Settings, env: WrappedEnv, actions: ActionEncoder, first: FirstPredictor
) -> BackgroundProcesses:
    """Makes a folder for this wrapper and starts the processes that the settings want.

    Raises UserError if they cannot be started, or if the preferences to start from do not fit.
    """
    check_process(settings.mp_context)
    ui = chosen_ui(settings)
    # Found before this wrapper has a folder: if both are in the same log_dir, that folder would be the newest.
    source = None if settings.prefs_dir is None else preferences(Path(settings.prefs_dir))
    run_dir = new_folder(Path(settings.log_dir).absolute())
    n_labels = make_store(run_dir, source, env, actions)
    if settings.train_reward and not settings.collect_prefs and n_labels < 2:
        shutil.rmtree(run_dir)
        raise UserError(f"{source} holds {n_labels} labels, too few to train on: collect some first.")
    channels = Channels.create(synchronous=False, take_turns=False, start_method=settings.mp_context)
    channels.n_labels.value = n_labels
    background = BackgroundProcesses(run_dir, channels)
    try:
        if settings.collect_prefs:
            start_interface(background, settings, ui)
        if settings.train_reward:
            start_trainer(background, settings, env, first)
    except BaseException:
        background.close()
        raise
    return background


def check_process(mp_context: str) -> None:
    """Raises UserError if this process cannot start others; ends it if the wrapper itself has started it."""
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        print(f"UserError: {NO_GUARD}", file=sys.stderr, flush=True)
        os._exit(NO_GUARD_STATUS)  # the process that started this one raises the error
    if mp_context != "fork" and getattr(sys.modules["__main__"], "__file__", None) == "<stdin>":
        raise UserError(
            "the wrapper starts processes, each of which imports your script, which they cannot if it is read from "
            "the standard input: put it in a file, or set mp_context='fork'."
        )
    if process.daemon:
        raise WorkerError(IN_WORKER)


def telling(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Returns the same space, of which a process that it is sent to gets the sentence about workers as an error.

    Stable-Baselines3 asks its first worker for its spaces, and tells its caller nothing of what a worker raises.
    """
    told = copy.copy(space)
    told.__class__ = type(type(space).__name__, (type(space),), {"__reduce__": lambda _: (_refuse, ())})
    return told


def _refuse() -> None:
    raise WorkerError(IN_WORKER)


def chosen_ui(settings: Settings) -> Ui:
    """Returns where people answer. Raises DisplayError if a window was asked for and there is no display."""
    if not settings.asks_people or settings.ui in ("web", "notebook"):
        return "web"
    try:
        open_display("set ui='web'")
    except DisplayError:
        if settings.ui == "window":
            raise
        return "web"
    return "window"


def make_store(run_dir: Path, source: Path | None, env: WrappedEnv, actions: ActionEncoder) -> int:
    """Creates the folder's prefs.db with the preferences of another in it, and returns the number of labels.

    Raises UserError, and removes the folder, if the preferences are about another environment.
    """
    db = PrefDB.create(run_dir / "prefs.db", env.env_id, env.segment_length)
    try:
        n_labels = 0 if source is None else merge(db, source)
        for segment_id in db.segment_ids()[:SEGMENTS_LOOKED_AT]:
            segment = db.segment(segment_id)
            shape = segment.stacked().shape[1:]
            if shape != env.observation_shape:
                raise UserError(
                    f"{source} holds observations of shape {shape}, not of {env.observation_shape}: they come from "
                    "another environment, or its observations have changed."
                )
            if not actions.may_have_made(segment.actions):
                raise UserError(
                    f"{source} holds other actions than those of {actions.space}: they come from another "
                    "environment, or its actions have changed."
                )
        return n_labels
    except BaseException:
        db.close()
        shutil.rmtree(run_dir)  # it would otherwise be the newest with preferences, of which it has none
        raise
    finally:
        db.close()


def start_interface(background: BackgroundProcesses, settings: Settings, ui: Ui) -> None:
    """Starts the process that asks and stores the answers."""
    if not settings.train_reward:
        background.channels.bell = None  # no trainer listens
    goal = settings.max_prefs_in_db
    spec = InterfaceSpec(
        db_path=background.run_dir / "prefs.db",
        make_gatherer=partial(make_gatherer, ui=ui, framed=settings.ui == "notebook"),
        config=settings.prefs_config,
        seed=settings.seed,
        goal=goal,
        # After the initial labels, one more is due for each segment's worth of steps.
        annealed_over=settings.segment_length * (goal - settings.n_initial_prefs),
    )
    log_file = LogFile(background.run_dir / "pref_interface.log", settings.pref_interface_log_level)
    background.children.start(INTERFACE, logged, log_file, run_interface, spec)


def start_trainer(background: BackgroundProcesses, settings: Settings, env: WrappedEnv, first: FirstPredictor) -> None:
    """Starts the process that trains the reward predictor, from the checkpoint if there is one."""
    background.board = board = WeightsBoard(first.predictor, background.channels.context)
    config = first.config
    if first.pretrained is not None:
        # The trainer loads a copy: the run that wrote the checkpoint may soon remove it.
        state = first.pretrained.state
        copied = checkpoint.save(background.run_dir / "pretrained", state["step"], state)
        config = replace(config, load_reward_predictor_ckpt_dir=str(copied))
        if state["pretrained"]:
            board.publish(first.predictor)  # its rewards count at once
    spec = TrainerSpec(
        inputs=env.inputs,
        env_id=env.env_id,
        config=config,
        board=board,
        run_dir=background.run_dir,
        seed=settings.seed,
        n_initial_prefs=settings.n_initial_prefs if settings.collect_prefs else 0,
        freeze=not settings.collect_prefs,
        resume=False,
        improve=not settings.collect_prefs,
        policy_waits=False,
        n_threads=max(1, n_cores() // 2),
        intervals=Intervals(
            publish=settings.reward_predictor_refresh_interval,
            measure=settings.validation_interval,
            receive=settings.reward_database_refresh_interval,
        ),
        n_initial_batches=settings.n_initial_training_steps,
        make_network=settings.make_network,
    )
    log_file = LogFile(background.run_dir / "reward_predictor.log", settings.reward_predictor_log_level)
    background.children.start(TRAINER, logged, log_file, run_trainer, spec)
