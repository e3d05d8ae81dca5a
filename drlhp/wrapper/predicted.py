"""The rewards that the program's own copy of the reward predictor predicts."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np
import torch

from drlhp.networks.device import use_threads
from drlhp.runtime.machine import n_cores
from reward_predictor import MemberRewards, PredictorCopy

log = logging.getLogger("drlhp")


class StepRewards(NamedTuple):
    """What was predicted for one step of N environments."""

    rewards: np.ndarray
    """(N,), normalised; 0 where the environment ignored the action."""
    of_members: np.ndarray
    """(members, N), not normalised, so that segments can be compared by their sums."""


class PredictedRewards:
    """Predicts the reward of each step while the environments take it.

    Args:
        in_thread: predict in a thread of its own. That pays off for pictures; for a vector, waking the thread would
            take longer than the prediction.
    """

    def __init__(self, *, in_thread: bool) -> None:
        self.copy: PredictorCopy | None = None  # None until there are trained weights
        self.forced_true = False  # the user wants the environment's own reward
        self._in_thread = in_thread
        self._untrained: PredictorCopy | None = None
        self._prediction: Future[MemberRewards] | None = None
        self._pool: ThreadPoolExecutor | None = None

    def follow(self, copy: PredictorCopy) -> None:
        """Takes the rewards from this copy as soon as it finds trained weights on its board."""
        self._untrained = copy

    def refresh(self) -> None:
        """Takes over the newest weights, if there are any."""
        copy = self.copy or self._untrained
        if copy is None or not copy.trained:
            return
        if self.copy is None:
            log.info("The predicted reward replaces the environment's own")
        self.copy = copy
        copy.refresh()

    @property
    def replace_true(self) -> bool:
        """Whether `step` returns the predicted rewards."""
        return self.copy is not None and not self.forced_true

    def begin(self, observations: np.ndarray | None, actions: np.ndarray) -> None:
        """Starts to predict the rewards of these actions, if there are trained weights to predict with.

        Args:
            observations: (N, ...) encoded; None if there is nothing to predict from.
            actions: (N, ...) encoded.
        """
        self._prediction = None
        if self.copy is None or observations is None:
            return
        if self._in_thread:
            self._prediction = self._thread().submit(self.copy.member_rewards, observations, actions)
        else:
            self._prediction = Future()
            self._prediction.set_result(self.copy.member_rewards(observations, actions))

    def end(self, valid: np.ndarray) -> StepRewards | None:
        """Waits for the prediction and returns it; None if there is none.

        Args:
            valid: (N,) bool, False where the environment ignored the action.
        """
        if self._prediction is None:
            return None
        of_members = self._prediction.result()
        return StepRewards(of_members.normalised.mean(0) * valid, of_members.raw)

    def wait(self) -> None:
        """Waits until no thread reads the weights, so that they may be replaced."""
        if self._prediction is not None:
            wait([self._prediction])

    def close(self) -> None:
        """Ends the thread."""
        if self._pool is not None:
            self._pool.shutdown()

    def _thread(self) -> ThreadPoolExecutor:
        """Returns the thread that predicts; it computes with half of the cores, so that the environments have some."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "reward predictor")
            self._pool.submit(use_threads, max(1, n_cores() // 2)).result()
            use_threads(torch.get_num_threads())  # later threads would otherwise take over the new thread's number
        return self._pool
