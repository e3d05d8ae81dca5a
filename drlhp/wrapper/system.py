"""What is behind the wrappers: segments out of a program's steps, the processes beside it, rewards from its own copy.

    the program's steps --Segment--> preference interface --Label--> reward predictor --weights--> the program's copy

The program's process steps the environments, cuts segments and predicts rewards. The preference interface (who is
asked, and the store) and the trainer are processes of their own, started only where they are needed. Neither outlives
the program, however that ends.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.util
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch

from drlhp.data.cutter import SegmentCutter
from drlhp.errors import ChildError, UserError, reason_of
from drlhp.label_server.config import PageConfig
from drlhp.label_server.gatherer import WebGatherer
from drlhp.labelling.answers import LABELLER
from drlhp.labelling.gatherers import PreferenceGatherer, SyntheticGatherer
from drlhp.labelling.notices import Notices
from drlhp.networks.device import is_forked, use_threads
from drlhp.runtime import checkpoint
from drlhp.runtime.channels import Channels, Failure, drain, offer
from drlhp.runtime.machine import n_cores
from drlhp.runtime.processes import Children
from drlhp.runtime.weights import WeightsBoard
from drlhp.screens.gatherer import PersonGatherer
from drlhp.screens.window import ClipWindow, DisplayError, open_display
from drlhp.training.trainer import Intervals, TrainerSpec, run_trainer
from drlhp.wrapper.folders import new_folder, predictor_checkpoint, preferences
from drlhp.wrapper.settings import Settings, plain
from drlhp.wrapper.spaces import ActionEncoder, ObservationEncoder
from pref_db import PrefDB
from pref_interface import InterfaceSpec, run_interface, teacher_of
from reward_predictor import PredictorConfig, PredictorCopy, PredictorInputs, RewardPredictor, inputs_as_dict

log = logging.getLogger("drlhp")

LOOK_SECONDS = 0.25  # between looks at what the other processes have sent
DEFAULT_FPS = 30.0
N_WATCHED = 2  # environments whose pictures are kept for people
SEGMENTS_LOOKED_AT = 100  # of loaded preferences, to see whether they are this environment's
SHORT_EPISODES = 50  # none of so many gave a segment: none will


@dataclass(frozen=True)
class WrappedEnv:
    """What segments say of a wrapped environment (a `segment_cutter.SegmentSource`)."""

    env_id: str
    kind: Literal["pixels", "vector"]
    observation_shape: tuple[int, ...]
    n_actions: int | None
    action_dim: int | None
    segment_length: int
    fps: float

    @property
    def inputs(self) -> PredictorInputs:
        return PredictorInputs(self.kind, self.observation_shape, self.n_actions, self.action_dim)


def logged(channels: Channels, path: Path, level: int, body: Callable[..., None], *arguments: Any) -> None:
    """Body of a process that keeps a log: that of `body`, with its arguments."""
    logging.basicConfig(filename=path, level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    body(channels, *arguments)


def make_gatherer(db: PrefDB, spec: InterfaceSpec, ui: str) -> PreferenceGatherer:
    """Makes the synthetic teacher, window or page that answers, in the preference interface's process."""
    if spec.config.synthetic_prefs:
        return SyntheticGatherer(db, teacher_of(spec.config, spec.seed, db.n_answers()))
    page = PageConfig(web_port=0)
    Notices(db).give_settings(page.settings(spec.goal, spec.config.labels_to_start()), keep=False)
    if ui == "window":
        return PersonGatherer(db, ClipWindow(), None, LABELLER)
    return WebGatherer(db, db.path.parent, page)


class PreferenceSystem:
    """Turns the steps of `n_envs` environments into segments, questions, labels and rewards.

    Owned by one thread of one process; what it does by itself it does in `begin_step` and `end_step`. `close` may be
    called twice.

    Raises UserError (SpaceError, CheckpointError, PrefDBError among them) if the environment or what is to be loaded
    cannot be used.
    """

    def __init__(
        self,
        settings: Settings,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        n_envs: int,
        *,
        env_id: str,
        fps: float | None,
        max_episode_steps: int | None,
        can_render: bool,
    ) -> None:
        settings.check()
        settings = replace(settings, **plain(settings))  # SQLite, and what crosses to other processes, takes no others
        log.setLevel(settings.env_wrapper_log_level)
        self.settings, self.n_envs = settings, n_envs
        pretrained: tuple[Path, dict[str, Any]] | None = None  # a predictor's checkpoint, and what is in it
        network = settings.reward_predictor_network
        if settings.pretrained_reward_predictor_dir is not None:
            path = predictor_checkpoint(Path(settings.pretrained_reward_predictor_dir))
            pretrained = path, checkpoint.load(path, kind="reward_predictor", env_id=env_id)
            network = network or pretrained[1]["config"].get("reward_predictor_network")
        reads_one_plane = "feature_points" in (network, getattr(network, "reward_predictor_network", None))
        self.observations = ObservationEncoder(
            observation_space, settings.obs_transform_func, channels=settings.channels, gray=reads_one_plane
        )
        self.actions = ActionEncoder(action_space)
        if max_episode_steps is not None and settings.segment_length > max_episode_steps:
            raise UserError(
                f"segment_length {settings.segment_length} is longer than an episode of {env_id}, which ends after "
                f"{max_episode_steps} steps: choose {max_episode_steps} or less."
            )
        self.info = WrappedEnv(
            env_id,
            self.observations.kind,
            self.observations.shape,
            self.actions.n_actions,
            self.actions.action_dim,
            settings.segment_length,
            fps or DEFAULT_FPS,
        )
        self.asks_people = settings.collect_prefs and not settings.synthetic_prefs
        if self.asks_people and not can_render and self.info.kind == "vector":
            raise UserError(
                f"people cannot see {env_id}, whose observations are vectors: make it with render_mode='rgb_array'."
            )
        # Where people are asked only so many are cut, for their pictures take time.
        self.n_watched = min(N_WATCHED, n_envs) if self.asks_people else 0
        self.n_shown = 0 if can_render else self.n_watched  # those of which people see what is observed
        self.cutter = SegmentCutter(self.info, self.n_watched or n_envs, settings.seed, stack=1)
        self.collecting = True
        self.forced_true, self.closed = False, False
        self._episodes_in_vain = 0
        self._drawn: tuple[int, ...] = ()  # shape of what the environments draw
        self._process = os.getpid()
        self._steps = 0  # that the predicted reward was there for
        # What is being done: encoded observations and actions, and pictures for people.
        self._acted: tuple[np.ndarray | None, np.ndarray, np.ndarray | None] = None, np.zeros(0), None
        self._prediction: Future[np.ndarray] | None = None  # of its reward
        self._pool: ThreadPoolExecutor | None = None
        self._look_at = 0.0
        self._version = 0  # of the predictor's weights
        self.run_dir: Path | None = None
        self.channels: Channels | None = None
        self.children: Children | None = None
        self._at_exit: multiprocessing.util.Finalize | None = None
        self.copy: PredictorCopy | None = None
        self._copy_before_training: PredictorCopy | None = None
        self._build(pretrained)

    # Starting

    def _build(self, pretrained: tuple[Path, dict[str, Any]] | None) -> None:
        settings = self.settings
        config = settings.predictor_config(self.info.kind)
        if pretrained is not None:
            path, state = pretrained
            self._check_fit(path, state)
            config = replace(config, **state["config"])
        predictor = RewardPredictor(self.info.inputs, config, make_network=settings.make_network)
        if pretrained is not None:
            checkpoint.fill(predictor, state["weights"], path)
        if is_forked():
            use_threads(1)
        if pretrained is not None and not settings.train_reward:
            board = WeightsBoard(predictor, None)
            board.publish(predictor)
            self.copy = PredictorCopy(predictor, board)
            self.copy.refresh()
        if not (settings.train_reward or settings.collect_prefs):
            return
        self._check_process()
        ui = self._ui()
        # Before there is a folder of this run, which would be the newest where both are the same.
        source = None if settings.prefs_dir is None else preferences(Path(settings.prefs_dir))
        self.run_dir = new_folder(Path(settings.log_dir).absolute())
        n_labels = self._make_store(source)
        if settings.train_reward and not settings.collect_prefs and n_labels < 2:
            shutil.rmtree(self.run_dir)
            raise UserError(f"{source} holds {n_labels} labels, too few to train on: collect some first.")
        self.channels = Channels.create(synchronous=False, take_turns=False, start_method=settings.mp_context)
        self.channels.n_labels.value = n_labels
        self.children = Children(self.channels)
        # Before multiprocessing waits for its processes, as it does at the end of a program and of each of its own. And
        # before it closes queues, which it does at 10.
        self._at_exit = multiprocessing.util.Finalize(None, self.close, exitpriority=20)
        try:
            if settings.collect_prefs:
                self._start_interface(ui)
            if settings.train_reward:
                self._start_trainer(config, predictor, pretrained)
        except BaseException:
            self.close()
            raise

    def _check_process(self) -> None:
        """Raises UserError where no process can be started."""
        process = multiprocessing.current_process()
        if getattr(process, "_inheriting", False):
            raise UserError(
                "the wrapper starts processes, each of which imports your script first: put what the script does "
                "under `if __name__ == '__main__':`."
            )
        if self.settings.mp_context != "fork" and getattr(sys.modules["__main__"], "__file__", None) == "<stdin>":
            raise UserError(
                "the wrapper starts processes, each of which imports your script, and cannot where that is read from "
                "the standard input: put it in a file, or set mp_context='fork'."
            )
        if process.daemon:
            raise UserError(
                "a worker of a vector environment cannot start processes: wrap the vector environment as a whole "
                "(HumanPreferencesVectorEnv, HumanPreferencesSB3VecEnv)."
            )

    def _ui(self) -> str:
        """`window` or `web`. Raises DisplayError if a window was asked for and there is no display."""
        if not self.asks_people or self.settings.ui == "web":
            return "web"
        try:
            open_display("set ui='web'")
        except DisplayError:
            if self.settings.ui == "window":
                raise
            return "web"
        return "window"

    def _make_store(self, source: Path | None) -> int:
        """Creates the run's prefs.db, with the preferences of another in it; returns the number of labels."""
        assert self.run_dir is not None
        db = PrefDB.create(self.run_dir / "prefs.db", self.info.env_id, self.settings.segment_length)
        try:
            n_labels = 0 if source is None else db.merge_from(source)
            for segment_id in db.segment_ids()[:SEGMENTS_LOOKED_AT]:
                segment = db.segment(segment_id)
                shape = segment.stacked().shape[1:]
                if shape != self.info.observation_shape:
                    raise UserError(
                        f"{source} holds observations of shape {shape}, not of {self.info.observation_shape}: they are "
                        "another environment's, or its observations were others."
                    )
                if not self.actions.may_have_made(segment.actions):
                    raise UserError(
                        f"{source} holds other actions than those of {self.actions.space}: they are another "
                        "environment's, or its actions were others."
                    )
            return n_labels
        except BaseException:
            db.close()
            shutil.rmtree(self.run_dir)  # else it would be the newest with preferences, of which it has none
            raise
        finally:
            db.close()

    def _check_fit(self, path: Path, state: dict[str, Any]) -> None:
        """Raises CheckpointError where this state of a predictor is of other spaces or another network."""
        mine = inputs_as_dict(self.info.inputs)
        theirs = state.get("inputs", mine)
        if theirs != mine:
            names = {"observation_shape": "observations of shape", "n_actions": "discrete actions:"}
            differ = [name for name in mine if mine[name] != theirs[name]]
            what = "; ".join(f"{names.get(name, name)} {theirs[name]} and not {mine[name]}" for name in differ)
            raise checkpoint.CheckpointError(
                f"{path} was trained on other spaces than {self.observations.space} and {self.actions.space} ({what}): "
                "wrap the environment as it was then, or train a predictor on this one."
            )
        own = state.get("own_network", False)
        if own != (self.settings.make_network is not None):
            trained, wanted = ("a network of its own", "that") if own else ("a network that is built in", "None")
            raise checkpoint.CheckpointError(
                f"{path} was trained with {trained}: pass {wanted} as reward_predictor_network."
            )

    def _start_interface(self, ui: str) -> None:
        settings = self.settings
        assert self.run_dir is not None and self.children is not None and self.channels is not None
        if not settings.train_reward:
            self.channels.bell = None  # no trainer listens
        goal = settings.max_prefs_in_db
        spec = InterfaceSpec(
            db_path=self.run_dir / "prefs.db",
            make_gatherer=partial(make_gatherer, ui=ui),
            config=settings.prefs_config,
            seed=settings.seed,
            goal=goal,
            # After the initial labels, one more is due for each segment's worth of steps.
            annealed_over=settings.segment_length * (goal - settings.n_initial_prefs),
        )
        self.children.start(
            "preference interface",
            logged,
            self.run_dir / "pref_interface.log",
            settings.pref_interface_log_level,
            run_interface,
            spec,
        )

    def _start_trainer(
        self, config: PredictorConfig, predictor: RewardPredictor, pretrained: tuple[Path, dict[str, Any]] | None
    ) -> None:
        settings = self.settings
        assert self.run_dir is not None and self.children is not None and self.channels is not None
        board = WeightsBoard(predictor, self.channels.context)
        self._copy_before_training = PredictorCopy(predictor, board)
        if pretrained is not None:
            # As it was read: a run that goes on may have removed the file by the time that the trainer has started.
            state = pretrained[1]
            start = checkpoint.save(self.run_dir / "pretrained", state["step"], state)
            config = replace(config, load_reward_predictor_ckpt_dir=str(start))
            if state["pretrained"]:
                board.publish(predictor)  # its rewards count at once
        spec = TrainerSpec(
            inputs=self.info.inputs,
            env_id=self.info.env_id,
            config=config,
            board=board,
            run_dir=self.run_dir,
            seed=settings.seed,
            n_initial_prefs=settings.n_initial_prefs if settings.collect_prefs else 0,
            freeze=not settings.collect_prefs,
            resume=False,
            improve=not settings.collect_prefs,
            n_threads=max(1, n_cores() // 2),
            intervals=Intervals(
                publish=settings.reward_predictor_refresh_interval,
                measure=settings.validation_interval,
                receive=settings.reward_database_refresh_interval,
            ),
            n_initial_batches=settings.n_initial_training_steps,
            make_network=settings.make_network,
        )
        self.children.start(
            "reward predictor",
            logged,
            self.run_dir / "reward_predictor.log",
            settings.reward_predictor_log_level,
            run_trainer,
            spec,
        )

    # Stepping

    def kept(self, observations: np.ndarray | Sequence[Any]) -> np.ndarray | None:
        """Observations encoded, in memory of their own, for the next step; None where nothing could be made of them."""
        if self.copy is not None or self.channels is not None:  # collecting, or weights, may begin before the next step
            return self.observations.kept(observations)
        self.observations.checked(observations)
        return None

    def shown(self, observations: np.ndarray | Sequence[Any]) -> np.ndarray | Sequence[Any]:
        """Of the observations those that people may see, as they are now: the agent may write into what it is given."""
        return deepcopy(observations[: self.n_shown]) if self.n_shown else []

    def views(self, shown: np.ndarray | Sequence[Any]) -> np.ndarray:
        """What people see of them, (n_shown, H, W, 3) uint8."""
        return np.stack([self.observations.view(observation, self.settings.zoom_ratio) for observation in shown])

    def begin_step(self, observations: np.ndarray | None, actions: np.ndarray, views: np.ndarray | None) -> None:
        """Takes in what is about to be done, and predicts its reward while the environments step.

        Args:
            observations: (N, ...) `kept`, on which the actions were chosen.
            actions: (N, ...) encoded.
            views: (n_watched, H, W, 3) pictures of the observations, for people.
        """
        if len(actions) != self.n_envs:
            raise UserError(f"step got {len(actions)} actions for {self.n_envs} environments: pass one for each.")
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self.look()
        self._acted = observations, actions, views
        self._prediction = None
        if self.copy is None or observations is None:
            return
        if self.info.kind == "pixels":
            self._prediction = self._thread().submit(self.copy.member_rewards, observations, actions)
        else:  # a thread would take longer to wake than a vector to be read
            self._prediction = Future()
            self._prediction.set_result(self.copy.member_rewards(observations, actions))

    def _thread(self) -> ThreadPoolExecutor:
        """The thread that reads pictures, with the threads of arithmetic that the environments leave it."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "reward predictor")
            self._pool.submit(use_threads, max(1, n_cores() // 2)).result()
            use_threads(torch.get_num_threads())  # else threads to come would have that number too
        return self._pool

    def end_step(self, rewards: np.ndarray, done: np.ndarray, valid: np.ndarray) -> np.ndarray | None:
        """Takes in what came of the step; returns predicted rewards (N,), 0 where not valid, if there are any.

        Args:
            rewards: (N,) the environment's own.
            done: (N,) bool, where an episode ended.
            valid: (N,) bool, False where the environment ignored the action, being about to reset.
        """
        observations, actions, views = self._acted
        is_compared = self.channels is not None and self.settings.collect_prefs and self.settings.synthetic_prefs
        if is_compared and self.collecting:
            self._check_rewards(rewards)
        predicted = in_own_measure = None
        if self._prediction is not None and self.copy is not None:
            members = self._prediction.result()  # (members, N)
            predicted = members.mean(0) * valid
            in_own_measure = self.copy.in_own_measure(members)
        if self.channels is not None and (self.copy is not None or not self.settings.train_reward):
            self._steps += int(valid.sum())
            self.channels.agent_steps.value = self._steps
        if not self.collecting:
            return predicted
        if self.channels is None or not self.settings.collect_prefs:  # nobody will ever be asked about a segment
            self.cutter.count(done, valid)
        elif observations is not None:
            sent, true = self.channels.segments, rewards.astype(np.float32)
            # Where nobody has time for a segment, or will ever be asked about one, none is made.
            wanted = not sent.full() and self.channels.n_labels.value < self.settings.max_prefs_in_db
            for segment in self.cutter.add(
                observations, actions, true, done, valid, views, in_own_measure, self._steps, wanted
            ):
                offer(sent, segment)
            self._check_length(int((done & valid)[: self.cutter.n_envs].sum()))
        return predicted

    def forget(self, which: np.ndarray | None = None) -> None:
        """Environments are reset: what was not finished of their episodes is in no segment. `which`: (N,) bool."""
        ended = self.cutter.filled > 0
        if which is not None:
            ended &= which[: self.cutter.n_envs]
        self.cutter.forget(which)
        if self.collecting and self.channels is not None and self.settings.collect_prefs:
            self._check_length(int(ended.sum()))

    def drawn(self, render: Callable[[], Any]) -> Any:
        """What the environments draw for people. Raises UserError if they cannot."""
        try:
            return render()
        except Exception as error:  # a renderer may raise anything
            raise UserError(
                f"{self.info.env_id} cannot be drawn for people ({reason_of(error)}): mend its render(), and where "
                "MuJoCo has no display, set MUJOCO_GL to egl or osmesa before the program starts."
            ) from error

    def pictures(self, frames: Sequence[Any]) -> np.ndarray:
        """What environments drew, for people: copies, (n, H, W, 3) uint8. Raises UserError for what is no picture."""
        made = []
        for frame in frames:
            picture = np.array(frame)  # some environments draw the next one into the same memory
            if picture.ndim == 3 and picture.shape[2] == 4:
                picture = picture[:, :, :3]
            elif picture.ndim == 2 or picture.shape[2:] == (1,):
                picture = np.repeat(picture.reshape(*picture.shape[:2], 1), 3, axis=2)
            self._drawn = self._drawn or picture.shape
            if picture.dtype != np.uint8 or picture.shape[2:] != (3,) or picture.shape != self._drawn:
                raise UserError(
                    f"people cannot be shown what render() of {self.info.env_id} returned ({picture.dtype} of shape "
                    f"{np.shape(frame)}): let it return pictures (H, W, 3) of uint8, all of one size."
                )
            made.append(picture)
        return np.stack(made)

    def _check_rewards(self, rewards: np.ndarray) -> None:
        """Raises UserError for rewards by which no synthetic teacher can tell which segment is better."""
        if not np.isfinite(rewards).all():
            raise UserError(
                f"{self.info.env_id} returned a reward of {rewards[~np.isfinite(rewards)][0]}, by which segments "
                "cannot be compared: mend its reward, or let people answer (synthetic_prefs=False)."
            )

    def _check_length(self, n_ended: int) -> None:
        """Raises UserError once it is clear that no episode is long enough."""
        if self.cutter.n_cut:
            return
        self._episodes_in_vain += n_ended
        if self._episodes_in_vain >= SHORT_EPISODES:
            raise UserError(
                f"none of {self._episodes_in_vain} episodes of {self.info.env_id} lasted for half of segment_length "
                f"{self.settings.segment_length}: choose a shorter one."
            )

    def look(self) -> None:
        """Takes over what the other processes have sent.

        Raises ChildError if one of them died; everything is closed then.
        """
        if self.channels is None or self.children is None:
            return
        if self._prediction is not None:
            wait([self._prediction])  # it reads the weights that may be replaced here
        try:
            for report in drain(self.channels.reports):
                if isinstance(report, Failure):
                    raise ChildError(f"the {report.source} process failed: {report.message}", report.traceback)
            self.children.check()
        except ChildError:
            self.close()
            raise
        copy = self.copy or self._copy_before_training
        if copy is not None and copy.trained:
            if self.copy is None:
                log.info("the predicted reward takes the place of the environment's own")
            self.copy = copy
            copy.refresh()

    @property
    def using_predicted(self) -> bool:
        if not self.closed:
            self.look()
        if self.copy is None and not self.settings.train_reward:  # who waits for one would wait for ever
            warnings.warn(
                "there will be no predicted rewards, for no predictor is trained: leave out train_reward=False, or set "
                "pretrained_reward_predictor_dir.",
                stacklevel=3,
            )
        return self.copy is not None and not self.forced_true

    # What users may ask for

    def check_open(self) -> None:
        """Raises UserError after `close`."""
        if self.closed:
            raise UserError(
                "the wrapper was closed: make a new one, which goes on with what this one stored if prefs_dir and "
                "pretrained_reward_predictor_dir name its folder."
            )

    def use_true_reward(self, wanted: bool) -> None:
        """Switches between the rewards; warns where that changes nothing."""
        self.check_open()
        self.look()
        which = "true" if wanted else "predicted"
        if self.copy is None:
            warnings.warn("there is no trained reward predictor yet, so rewards are the true ones.", stacklevel=3)
        elif self.forced_true == wanted:
            warnings.warn(f"rewards are the {which} ones already.", stacklevel=3)
        self.forced_true = wanted  # also of a predictor that is trained later, in the middle of an evaluation

    def collect_segments(self, wanted: bool) -> None:
        """Starts or stops cutting segments; warns where that changes nothing."""
        self.check_open()
        if self.collecting == wanted:
            state = "collected" if wanted else "left alone"
            warnings.warn(f"segments are being {state} already.", stacklevel=3)
        self.collecting = wanted
        self.cutter.forget()

    def save_prefs(self) -> Path | None:
        """The store, which holds every answer given so far; warns and returns None where there is none."""
        self.check_open()
        if self.run_dir is None:
            warnings.warn("no preferences are stored, for none are collected or trained on.", stacklevel=3)
            return None
        store = self.run_dir / "prefs.db"
        PrefDB.open(store).close()  # which folds the write-ahead log into the file, so that it can be copied alone
        return store

    def save_reward_predictor(self) -> Path | None:
        """Waits for the trainer to write a checkpoint; warns and returns None where there is nothing to write."""
        self.check_open()
        if self.children is None or self.channels is None or self.run_dir is None or not self.settings.train_reward:
            warnings.warn("no reward predictor is being trained, so there is none to save.", stacklevel=3)
            return None
        self.channels.save.set()
        while self.channels.save.is_set() and not self.children.has_finished("reward predictor"):
            self.look()
            self.children.wait(0.05)
        folder = self.run_dir / "reward_predictor"
        if self.children.has_finished("reward predictor"):  # there will be no newer one than its last
            found = checkpoint.list_checkpoints(folder)
        else:
            found = sorted(folder.glob("saved-*.pt"))
        if not found:
            warnings.warn("the reward predictor was not trained yet, so there is nothing to save.", stacklevel=3)
            return None
        return found[-1]

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of. Raises UserError where processes belong to it."""
        if self.channels is not None:
            raise UserError("a wrapper with processes beside it cannot be copied: make a new one where you need it.")
        return vars(self)

    def close(self) -> None:
        """Ends the processes, which write what they have learned; may be called twice."""
        if self.closed or os.getpid() != self._process:  # a fork of the program ends nothing that is not its own
            return
        self.closed = True
        if self._at_exit is not None:
            self._at_exit.cancel()
        try:
            if self._pool is not None:
                self._pool.shutdown()
            if self.children is not None:
                self.children.stop()
        finally:
            if self.children is not None and self.channels is not None:
                self.children.kill()  # those that are left, where a Ctrl-C has cut the waiting short
                drain(self.channels.reports)
                self.children.close()
                self.channels.close()


def spec_can_be_sent(ask: Callable[..., Any]) -> bool:
    """Whether an environment in another process can send its spec: one that cannot be pickled would end that process.

    `ask` calls a method of the environment there. The functions that Gymnasium's wrappers are given are in the spec,
    and as a rule they are lambdas.
    """
    return not any(ask("has_wrapper_attr", function) for function in ("func", "episode_trigger"))


def shown_name(shown: str) -> str:
    """An environment's id, or else its class, by how Gymnasium shows it: `<Monitor<LampEnv instance>>`."""
    found = re.search(r"([^<>]+?)(?: instance)?>+$", shown)
    return found[1] if found else shown
