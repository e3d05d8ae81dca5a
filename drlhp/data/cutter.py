"""Cuts the steps of environments into segments; pairs of segments are then compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from drlhp.data.candidate import Candidate
from drlhp.data.segment import Segment
from drlhp.data.views import encode_view


class SegmentSource(Protocol):
    """An environment as its segments record it: `envs.EnvInfo`, or a wrapper's `WrappedEnv`."""

    @property
    def env_id(self) -> str: ...

    @property
    def kind(self) -> str:
        """`pixels` or `vector`."""

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """(C, H, W) or (D,)."""

    @property
    def n_actions(self) -> int | None:
        """None if actions are vectors."""

    @property
    def action_dim(self) -> int | None: ...

    @property
    def segment_length(self) -> int: ...

    @property
    def fps(self) -> float: ...


class SegmentCutter:
    """Cuts consecutive segments from environments 0 .. n - 1; none spans two episodes.

    The last steps of an episode become a shorter segment if they are at least half as many as a whole one has.
    With `stack` above 1, an observation repeats the frames of the one before, except the oldest; each is kept once.
    Unless the true reward answers about the segments (`by_reward`), their ids do not depend on it.
    """

    KEPT = (
        *("frames", "actions", "rewards", "n_taken", "before_first", "member_returns", "views", "filled"),
        *("n_cut", "n_episodes"),
    )

    def __init__(self, info: SegmentSource, n_envs: int, seed: int, stack: int, *, by_reward: bool = True) -> None:
        length = info.segment_length
        self.info, self.n_envs, self.seed, self.length, self.stack = info, n_envs, seed, length, stack
        self.by_reward = by_reward
        shape, dtype = info.observation_shape, np.uint8 if info.kind == "pixels" else np.float32
        # Ring buffers of the newest steps of all environments: a step is written in one piece, over the oldest.
        self.frames = np.zeros((length, n_envs, *(shape[1:] if stack > 1 else shape)), dtype)
        self.actions = np.zeros(
            (length, n_envs) if info.n_actions else (length, n_envs, info.action_dim or 0),
            np.int64 if info.n_actions else np.float32,
        )
        self.rewards = np.zeros((length, n_envs), np.float32)
        self.n_taken = 0  # steps so far
        # The older frames of a segment's first observation.
        self.before_first = np.zeros((n_envs, stack - 1, *shape[1:]), dtype)
        self.member_returns = np.full((n_envs, 1), np.nan, np.float32)  # NaN if a step was not predicted
        self.views: list[list[np.ndarray]] = [[] for _ in range(n_envs)]
        self.filled = np.zeros(n_envs, np.int64)  # newest steps that are in no segment yet
        self.n_cut, self.n_episodes = 0, 0  # segments, even if dropped; ended episodes

    def add(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        done: np.ndarray,
        valid: np.ndarray,
        views: np.ndarray | None,
        member_rewards: np.ndarray | None,
        policy_step: int,
        wanted: bool = True,
    ) -> list[Candidate]:
        """Takes one step of all environments and returns the segments that it completed, none if not wanted.

        Args:
            member_rewards: (members, N) the reward that each member of the ensemble predicts for the step.
        """
        n, row = self.n_envs, self.n_taken % self.length
        valid = valid[:n]
        so_far = np.where(self.filled[:, None] > 0, self.member_returns, np.float32(0))
        step = np.float32(np.nan) if member_rewards is None else member_rewards[:, :n].T
        self.member_returns = np.where(valid[:, None], so_far + step, self.member_returns)
        if self.stack > 1:
            first = np.flatnonzero(valid & (self.filled == 0))
            self.before_first[first] = observations[first, :-1]
        self.frames[row] = observations[:n, -1] if self.stack > 1 else observations[:n]
        self.actions[row], self.rewards[row] = actions[:n], rewards[:n]
        self.n_taken += 1
        if views is not None:
            for i in np.flatnonzero(valid):
                self.views[i].append(views[i])
        self.filled += valid
        ended, complete = self._ended(done[:n])
        candidates = [self._candidate(int(i), policy_step) for i in complete] if wanted else []
        self.filled[ended] = 0
        for i in ended:
            self.views[i].clear()
        return candidates

    def count(self, done: np.ndarray, valid: np.ndarray) -> None:
        """Takes one step of all environments and counts the segments, without making them."""
        self.filled += valid[: self.n_envs]
        ended, _ = self._ended(done[: self.n_envs])
        self.filled[ended] = 0

    def _ended(self, done: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the environments whose segment ends with this step, and those whose segment is long enough."""
        ended = np.flatnonzero(done | (self.filled == self.length))
        complete = ended[self.filled[ended] * 2 >= self.length]
        self.n_cut += len(complete)
        self.n_episodes += int(done.sum())
        return ended, complete

    def forget(self, which: np.ndarray | None = None) -> None:
        """Drops the steps that are in no segment yet, because the next step will not follow them.

        Args:
            which: (N,) bool, the environments whose steps to drop; None for all.
        """
        here = np.ones(self.n_envs, np.bool_) if which is None else which[: self.n_envs]
        self.filled[here] = 0
        for i in np.flatnonzero(here):
            self.views[i].clear()

    def _candidate(self, i: int, policy_step: int) -> Candidate:
        """Returns the segment of environment i that ends with the newest step."""
        rows = np.arange(self.n_taken - self.filled[i], self.n_taken) % self.length
        frames, stack = self.frames[rows, i], self.stack
        if stack > 1:
            frames = np.concatenate([self.before_first[i], frames])
        elif frames.ndim == 4 and frames.shape[1] > 1 and np.array_equal(frames[1:, :-1], frames[:-1, 1:]):
            # The environment itself stacks frames, because each picture repeats the last one shifted by one plane. Each
            # frame is kept once.
            frames, stack = Segment.unique_frames(frames), frames.shape[1]
        segment = Segment(
            env_id=self.info.env_id,
            observations=frames,
            actions=self.actions[rows, i],
            rewards=self.rewards[rows, i],
            stack=stack,
            policy_step=policy_step,
            seed=self.seed + i,
            fps=self.info.fps,
            view=encode_view(np.stack(self.views[i])) if self.views[i] else None,
        )
        if not self.by_reward:
            segment = replace(segment, given_id=segment.content_id(of_rewards=False))
        predicted = not np.isnan(self.member_returns[i]).any()
        return Candidate(segment, self.member_returns[i].copy() if predicted else None)
