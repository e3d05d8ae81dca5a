"""The parts behind a wrapper: segments from the program's steps, the background processes, the predicted rewards.

    the program's steps --Segment--> preference interface --Label--> reward predictor --weights--> the program's copy

The program's process steps the environments, cuts segments and predicts rewards. The preference interface, which asks
and stores the answers, and the trainer are processes of their own, started only if they are needed. Neither outlives
the program, however the program ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from drlhp.errors import ChildError, SpaceError, UserError, WorkerError
from drlhp.runtime.weights import WeightsBoard
from drlhp.wrapper.background import BackgroundProcesses
from drlhp.wrapper.collection import SegmentCollection
from drlhp.wrapper.description import EnvDescription, WrappedEnv
from drlhp.wrapper.pictures import N_WATCHED, Pictures, check_mujoco_draws
from drlhp.wrapper.predicted import PredictedRewards
from drlhp.wrapper.pretrained import FirstPredictor, Pretrained
from drlhp.wrapper.settings import Settings, plain
from drlhp.wrapper.spaces import ActionEncoder, ObservationEncoder
from drlhp.wrapper.start import start_processes
from reward_predictor import PredictorCopy

LOOK_SECONDS = 0.25  # between looks at what the background processes have sent


class PreferenceSystem:
    """Turns the steps of environments into segments, and into rewards.

    One thread of one process uses it. For each step, that thread calls `begin_step`, steps the environments, and calls
    `end_step` and `observe`. `close` may be called twice.

    Raises UserError (SpaceError, CheckpointError and PrefDBError are such errors) if the environment, or what the
    settings say to load, cannot be used.
    """

    def __init__(self, settings: Settings, env: EnvDescription) -> None:
        settings.check()
        settings = replace(settings, **plain(settings))  # SQLite and the other processes take no NumPy numbers
        logging.getLogger("drlhp").setLevel(settings.env_wrapper_log_level)
        self.settings, self.n_envs = settings, env.n_envs
        pretrained = Pretrained.load(settings, env.env_id)
        network = settings.reward_predictor_network or (pretrained and pretrained.network)
        reads_one_plane = "feature_points" in (network, getattr(network, "reward_predictor_network", None))
        self.observations = ObservationEncoder(
            env.observation_space, settings.obs_transform_func, channels=settings.channels, gray=reads_one_plane
        )
        self.actions = ActionEncoder(env.action_space)
        self.info = WrappedEnv(
            env.env_id,
            self.observations.kind,
            self.observations.shape,
            self.actions.n_actions,
            self.actions.action_dim,
            settings.segment_length,
            env.fps,
        )
        self._check(env)
        # Only a few environments are watched by people, because pictures take time; only those give segments then.
        n_watched = min(N_WATCHED, env.n_envs) if settings.asks_people else 0
        self.pictures = Pictures(
            env.env_id, self.observations, n_watched=n_watched, can_render=env.can_render, zoom=settings.zoom_ratio
        )
        self.predicted = PredictedRewards(in_thread=self.info.kind == "pixels")
        self.background: BackgroundProcesses | None = None
        # It is raised later, because AsyncVectorEnv tells its caller what `reset` raises in a worker, and nothing else.
        # Stable-Baselines3 tells nothing at all, and has `telling`.
        self.refusal: WorkerError | None = None
        self._start(FirstPredictor.build(settings, self.info, self.observations, self.actions, pretrained))
        channels = self.background and self.background.channels
        self.collection = SegmentCollection(settings, self.info, n_watched or env.n_envs, channels)
        self.before: np.ndarray | None = None  # encoded observations that the next actions are chosen on
        self._step: tuple[np.ndarray | None, np.ndarray, np.ndarray | None] = None, np.zeros(0), None
        self._steps = 0  # taken while there were predicted rewards
        self._look_at = 0.0
        self._process, self._closed = os.getpid(), False

    def _check(self, env: EnvDescription) -> None:
        """Raises UserError if episodes are too short for segments, or people would see nothing."""
        length, longest = self.settings.segment_length, env.max_episode_steps
        if longest is not None and length > longest:
            raise UserError(
                f"segment_length {length} is longer than an episode of {env.env_id}, which ends after {longest} steps: "
                f"choose {longest} or less."
            )
        if self.settings.asks_people and not env.can_render and self.info.kind == "vector":
            raise UserError(
                f"people cannot see {env.env_id}, whose observations are vectors: make it with render_mode='rgb_array'."
            )
        if self.settings.asks_people and env.can_render and env.uses_mujoco:
            check_mujoco_draws(env.env_id)  # now, because the first step may come hours later

    def _start(self, first: FirstPredictor) -> None:
        """Starts the background processes, and connects the predicted rewards to their board of weights."""
        if first.pretrained is not None and not self.settings.train_reward:
            board = WeightsBoard(first.predictor, None)
            board.publish(first.predictor)
            self.predicted.copy = PredictorCopy(first.predictor, board)
            self.predicted.refresh()
        if self.settings.train_reward or self.settings.collect_prefs:
            try:
                self.background = start_processes(self.settings, self.info, self.actions, first)
            except WorkerError as error:
                self.refusal = error
                return
            if self.background.board is not None:
                self.predicted.follow(PredictorCopy(first.predictor, self.background.board))

    def left(self) -> None:
        """Forgets what was last observed, because the environments have left it."""
        self.before = None

    def checked(self, observations: np.ndarray | Sequence[Any]) -> np.ndarray:
        """Returns N observations as `observe` takes them. Raises SpaceError if the space does not have them."""
        values = self.observations.checked(observations)
        if len(values) != self.n_envs:
            raise SpaceError(
                f"{len(values)} observations came from the {self.n_envs} environments of {self.info.env_id}: fix them."
            )
        return values

    def observe(self, checked: np.ndarray, observations: np.ndarray | Sequence[Any]) -> None:
        """Keeps the observations (N, ...) that the next actions are chosen on.

        Args:
            checked: these, as `checked` returned them.

        Raises SpaceError if a picture is not of the space.
        """
        # Segments or weights may be wanted before the next step, so both a predictor and processes are a reason.
        wanted = self.predicted.copy is not None or self.background is not None
        self.before = self.observations.kept(checked) if wanted else None
        self.pictures.observe(observations)

    @contextlib.contextmanager
    def unbroken(self) -> Iterator[None]:
        """Forgets the unfinished segments if a step or a reset raises, because the next step may not follow them."""
        try:
            yield
        except BaseException:
            self.collection.drop()
            raise

    def begin_step(self, actions: np.ndarray, render: Callable[[], Any]) -> None:
        """Starts to predict the reward of encoded actions (N, ...), while the environments take them.

        Args:
            render: returns one rendered picture of each environment; called only if people need to see it.
        """
        pictures = None
        if self.before is not None and self.pictures.n_watched and self.collection.on:
            pictures = self.pictures.take(render)
        if len(actions) != self.n_envs:
            raise UserError(f"step got {len(actions)} actions for {self.n_envs} environments: pass one for each.")
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self.look()
        self._step = self.before, actions, pictures
        self.predicted.begin(self.before, actions)

    def end_step(self, rewards: np.ndarray, done: np.ndarray, valid: np.ndarray) -> np.ndarray | None:
        """Returns the predicted rewards (N,) of the step that was begun, 0 where not valid; None if there are none.

        Args:
            rewards: (N,) the environment's own.
            done: (N,) bool, True where an episode ended.
            valid: (N,) bool, False where the environment ignored the action because it was about to reset.
        """
        observations, actions, pictures = self._step
        self.collection.check_rewards(rewards)
        predicted = self.predicted.end(valid)
        trains = self.settings.train_reward
        if self.background is not None and (self.predicted.copy is not None or not trains):
            self._steps += int(valid.sum())
            self.background.channels.agent_steps.value = self._steps
        self.collection.add(observations, actions, rewards, done, valid, pictures, predicted, self._steps)
        return None if predicted is None else predicted.rewards

    def look(self) -> None:
        """Takes over the newest weights.

        Raises ChildError if a background process has died, or UserError if it could not start; all is closed then.
        """
        if self.refusal is not None:
            raise self.refusal
        if self.background is None:
            return
        self.predicted.wait()
        try:
            self.background.check()
        except (ChildError, UserError):
            self.close()
            raise
        self.predicted.refresh()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the program is ending."""
        return self._closed or (self.background is not None and self.background.closed)

    def check_open(self) -> None:
        """Raises UserError after `close`, and in a process that cannot start others."""
        if self.refusal is not None:
            raise self.refusal
        if self.closed:
            raise UserError(
                "the wrapper was closed: make a new one, which continues with the stored preferences and weights if "
                "prefs_dir and pretrained_reward_predictor_dir name this one's folder."
            )

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for a copy. Raises UserError if processes belong to it."""
        if self.background is not None:
            raise UserError("a wrapper with processes beside it cannot be copied: make a new one where you need it.")
        return vars(self)

    def close(self) -> None:
        """Ends the background processes, which write what they have learned; may be called twice."""
        if self._closed or os.getpid() != self._process:  # a fork of the program must not end the program's processes
            return
        self._closed = True
        try:
            self.predicted.close()
        finally:
            if self.background is not None:
                self.background.close()
