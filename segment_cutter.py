"""Cuts the steps of environments into segments, of which pairs are asked about."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pref_db import Segment, encode_frames


class SegmentSource(Protocol):
    """What the cutter must know of an environment: `envs.EnvInfo`, or what a wrapper makes of its spaces."""

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
        """None when actions are vectors."""

    @property
    def action_dim(self) -> int | None: ...

    @property
    def segment_length(self) -> int: ...

    @property
    def fps(self) -> float: ...


class SegmentCutter:
    """Cuts consecutive segments, none of which spans two episodes, from environments 0 .. n - 1.

    What is left at the end of an episode becomes a shorter segment if it has half the length or more.
    With `stack` above 1 all but the newest of an observation's frames were in the one before, and are kept once.
    """

    def __init__(self, info: SegmentSource, n_envs: int, seed: int, stack: int) -> None:
        length = info.segment_length
        self.info, self.n_envs, self.seed, self.length, self.stack = info, n_envs, seed, length, stack
        shape, dtype = info.observation_shape, np.uint8 if info.kind == "pixels" else np.float32
        self.frames = np.zeros((n_envs, length + stack - 1, *(shape[1:] if stack > 1 else shape)), dtype)
        self.actions = np.zeros(
            (n_envs, length) if info.n_actions else (n_envs, length, info.action_dim or 0),
            np.int64 if info.n_actions else np.float32,
        )
        self.rewards = np.zeros((n_envs, length), np.float32)
        self.member_returns = np.full((n_envs, 1), np.nan, np.float32)  # NaN where a step was not predicted
        self.views: list[list[np.ndarray]] = [[] for _ in range(n_envs)]
        self.filled = np.zeros(n_envs, np.int64)
        self.n_cut = 0  # segments, wanted or not

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
    ) -> list[Segment]:
        """Takes one step of all environments; returns the segments that it completed, or none if they are not wanted.

        `member_rewards` (members, N) is what each member of the ensemble predicts for it.
        """
        n = self.n_envs
        so_far = np.where(self.filled[:, None] > 0, self.member_returns, np.float32(0))
        step = np.float32(np.nan) if member_rewards is None else member_rewards[:, :n].T
        self.member_returns = np.where(valid[:n, None], so_far + step, self.member_returns)
        acting = np.flatnonzero(valid[:n])
        at = self.filled[acting]
        if self.stack > 1:
            first = acting[at == 0]
            self.frames[first, : self.stack] = observations[first]
            self.frames[acting, at + self.stack - 1] = observations[acting, -1]
        else:
            seen = observations[:n] if len(acting) == n else observations[acting]
            self.frames[acting, at] = seen.reshape(len(acting), *self.frames.shape[2:])
        self.actions[acting, at], self.rewards[acting, at] = actions[acting], rewards[acting]
        if views is not None:
            for i in acting:
                self.views[i].append(views[i])
        self.filled[acting] += 1
        ended = done[:n] | (self.filled == self.length)
        complete = np.flatnonzero(ended & (self.filled * 2 >= self.length))
        self.n_cut += len(complete)
        segments = [self._segment(int(i), policy_step) for i in complete] if wanted else []
        self.filled[ended] = 0
        for i in np.flatnonzero(ended):
            self.views[i].clear()
        return segments

    def forget(self) -> None:
        """Lets go of the steps that are in no segment yet: what comes next does not follow them."""
        self.filled[:] = 0
        for views in self.views:
            views.clear()

    def _segment(self, i: int, policy_step: int) -> Segment:
        length = int(self.filled[i])
        predicted = not np.isnan(self.member_returns[i]).any()
        return Segment(
            env_id=self.info.env_id,
            observations=self.frames[i, : length + self.stack - 1].copy(),
            actions=self.actions[i, :length].copy(),
            rewards=self.rewards[i, :length].copy(),
            stack=self.stack,
            policy_step=policy_step,
            seed=self.seed + i,
            fps=self.info.fps,
            view=encode_frames(np.stack(self.views[i])) if self.views[i] else None,
            member_returns=self.member_returns[i].copy() if predicted else None,
        )
