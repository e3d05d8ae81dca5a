"""Segments out of the steps of the wrapped environments, for the preference interface."""

from __future__ import annotations

import numpy as np

from drlhp.data.cutter import SegmentCutter
from drlhp.errors import UserError
from drlhp.runtime.channels import Channels, offer
from drlhp.wrapper.description import WrappedEnv
from drlhp.wrapper.predicted import StepRewards
from drlhp.wrapper.settings import Settings

SHORT_EPISODES = 50  # if none of so many episodes gave a segment, none ever will


class SegmentCollection:
    """Cuts segments and offers them to the preference interface; drops them while it has no time for them.

    Args:
        n_envs: how many environments give segments, the first ones.
        channels: None if no process runs.
    """

    def __init__(self, settings: Settings, env: WrappedEnv, n_envs: int, channels: Channels | None) -> None:
        self.settings, self.env = settings, env
        self.on = True
        self._channels = channels if settings.collect_prefs else None
        self._cutter = SegmentCutter(env, n_envs, settings.seed, stack=1, by_reward=settings.synthetic_prefs)
        self._episodes_in_vain = 0

    @property
    def n_segments(self) -> int:
        """How many segments were cut, those that were dropped among them."""
        return self._cutter.n_cut

    def add(
        self,
        observations: np.ndarray | None,
        actions: np.ndarray,
        rewards: np.ndarray,
        done: np.ndarray,
        valid: np.ndarray,
        pictures: np.ndarray | None,
        predicted: StepRewards | None,
        policy_step: int,
    ) -> None:
        """Takes one step of the environments, if segments are collected.

        Raises UserError once it is clear that no episode is long enough for a segment.
        """
        if not self.on:
            return
        if self._channels is None:  # nobody will ever be asked about a segment
            self._cutter.count(done, valid)
        elif observations is not None:
            queue = self._channels.segments
            # No segment is made while nobody has time for it, or once nobody will be asked about it.
            wanted = not queue.full() and self._channels.n_labels.value < self.settings.max_prefs_in_db
            of_members = None if predicted is None else predicted.of_members
            true = rewards.astype(np.float32)
            for candidate in self._cutter.add(
                observations, actions, true, done, valid, pictures, of_members, policy_step, wanted
            ):
                offer(queue, candidate)
            self._check_length(int((done & valid)[: self._cutter.n_envs].sum()))

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Raises UserError if a synthetic teacher could not compare segments by these true rewards."""
        asks_teacher = self._channels is not None and self.settings.synthetic_prefs
        if self.on and asks_teacher and not np.isfinite(rewards).all():
            raise UserError(
                f"{self.env.env_id} returned a reward of {rewards[~np.isfinite(rewards)][0]}, by which segments "
                "cannot be compared: fix its reward, or let people answer (synthetic_prefs=False)."
            )

    def forget(self, which: np.ndarray | None = None) -> None:
        """Forgets the unfinished segments of environments that were reset. `which`: (N,) bool; None: all.

        Raises UserError once it is clear that no episode is long enough for a segment.
        """
        ended = self._cutter.filled > 0
        if which is not None:
            ended &= which[: self._cutter.n_envs]
        self._cutter.forget(which)
        if self.on and self._channels is not None:
            self._check_length(int(ended.sum()))

    def switch(self, on: bool) -> None:
        """Starts or stops the collection; no segment spans that moment."""
        self.on = on
        self.drop()

    def drop(self) -> None:
        """Forgets all unfinished segments, because what follows does not continue them."""
        self._cutter.forget()

    def _check_length(self, n_ended: int) -> None:
        """Raises UserError once too many episodes have ended without a segment."""
        if self._cutter.n_cut:
            return
        self._episodes_in_vain += n_ended
        if self._episodes_in_vain >= SHORT_EPISODES:
            raise UserError(
                f"none of {self._episodes_in_vain} episodes of {self.env.env_id} lasted for half of segment_length "
                f"{self.settings.segment_length}: choose a shorter one."
            )
