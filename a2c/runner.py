"""Runs the policy in its environments: rollouts for the update, segments for the teacher, episode statistics."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from a2c.model import Policy
from channels import Episode
from envs import EnvInfo, PreferenceVecEnv, env_info, make_vec_env
from pref_db import Segment, encode_frames


class Stopwatch:
    """Seconds spent by part, for the speed curves."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start


@dataclass
class Rollout:
    """T steps of N environments; the arrays are overwritten by the next rollout."""

    observations: np.ndarray  # (T + 1, N, ...)
    actions: np.ndarray  # (T, N) int64 or (T, N, A) float32
    log_probs: np.ndarray  # (T, N)
    values: np.ndarray  # (T, N)
    last_values: np.ndarray  # (N,)
    rewards: np.ndarray  # (T, N) true rewards, clipped to [-1, 1] for pixel environments as in the paper
    terminated: np.ndarray  # (T, N)
    truncated: np.ndarray  # (T, N)
    valid: np.ndarray  # (T, N) False where the environment was resetting and ignored the action

    @property
    def n_decisions(self) -> int:
        return int(self.valid.size)

    def flat_observations(self) -> np.ndarray:
        """(T * N, ...) observations on which the policy acted; no copy."""
        acted_on = self.observations[:-1]
        return acted_on.reshape(-1, *acted_on.shape[2:])

    def flat_actions(self) -> np.ndarray:
        """(T * N,) or (T * N, A); no copy."""
        return self.actions.reshape(-1, *self.actions.shape[2:])


class SegmentCutter:
    """Cuts consecutive segments, none of which spans two episodes, from environments 0 .. n - 1.

    What is left at the end of an episode becomes a shorter segment if it has half the length or more.
    """

    def __init__(self, info: EnvInfo, n_envs: int, seed: int) -> None:
        length = info.segment_length
        self.info, self.n_envs, self.seed, self.length = info, n_envs, seed, length
        self.stack = info.observation_shape[0] if info.kind == "pixels" else 1
        if info.kind == "pixels":
            frames: np.ndarray = np.zeros((n_envs, length + self.stack - 1, *info.observation_shape[1:]), np.uint8)
        else:
            frames = np.zeros((n_envs, length, *info.observation_shape), np.float32)
        self.frames = frames
        self.actions = np.zeros(
            (n_envs, length) if info.n_actions else (n_envs, length, info.action_dim or 0),
            np.int64 if info.n_actions else np.float32,
        )
        self.rewards = np.zeros((n_envs, length), np.float32)
        self.member_returns = np.full((n_envs, 1), np.nan, np.float32)  # NaN where a step was not predicted
        self.views: list[list[np.ndarray]] = [[] for _ in range(n_envs)]
        self.filled = np.zeros(n_envs, np.int64)

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
    ) -> list[Segment]:
        """Takes one step of all environments; returns the segments that it completed.

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
            self.frames[acting, at] = observations[acting].reshape(len(acting), *self.frames.shape[2:])
        self.actions[acting, at], self.rewards[acting, at] = actions[acting], rewards[acting]
        if views is not None:
            for i in acting:
                self.views[i].append(views[i])
        self.filled[acting] += 1
        ended = done[:n] | (self.filled == self.length)
        segments = [
            self._segment(int(i), policy_step) for i in np.flatnonzero(ended) if self.filled[i] * 2 >= self.length
        ]
        self.filled[ended] = 0
        for i in np.flatnonzero(ended):
            self.views[i].clear()
        return segments

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


def random_segment(env_id: str, seed: int) -> Segment | None:
    """A segment of random actions, of the form that training has; None where no episode is long enough to cut one."""
    info, env = env_info(env_id), make_vec_env(env_id, 1, seed)
    cutter, resetting = SegmentCutter(info, 1, seed), np.zeros(1, np.bool_)
    env.action_space.seed(seed)
    try:
        observations, _ = env.reset()
        for _ in range(100 * info.segment_length):
            before, actions, valid = observations.copy(), env.action_space.sample(), ~resetting
            observations, rewards, terminated, truncated, _ = env.step(actions)
            resetting = terminated | truncated
            if info.kind == "pixels":
                rewards = np.clip(rewards, -1, 1)
            for segment in cutter.add(before, actions, rewards, resetting, valid, None, None, policy_step=0):
                return segment
        return None
    finally:
        env.close()


class EpisodeRecorder:
    """Keeps what a person would have seen of environment 0, compressed frame by frame, until the episode ends."""

    def __init__(self, fps: float) -> None:
        self.fps, self.frames, self.episode_return = fps, list[bytes](), 0.0

    def add(self, frame: np.ndarray, reward: float, done: bool) -> Episode | None:
        """Takes one step; returns the episode that it ended."""
        self.frames.append(encode_frames(frame[None]))
        self.episode_return += reward
        if not done:
            return None
        episode = Episode(tuple(self.frames), self.episode_return, self.fps)
        self.frames, self.episode_return = [], 0.0
        return episode


def _observation_buffer(n: int, observations: np.ndarray, channels_last: bool) -> np.ndarray:
    """(n, N, ...) for observations of N environments; pixels (n, N, C, H, W) perhaps with C last in memory."""
    if not channels_last:
        return np.empty((n, *observations.shape), observations.dtype)
    n_envs, channels, height, width = observations.shape
    return np.moveaxis(np.empty((n, n_envs, height, width, channels), observations.dtype), -1, 2)


class Runner:
    """Acts in the environments with the policy, one rollout of T steps at a time."""

    def __init__(
        self,
        env: PreferenceVecEnv,
        info: EnvInfo,
        policy: Policy,
        n_steps: int,
        seed: int,
        watch: bool,
        record: bool,
    ) -> None:
        self.env, self.policy, self.n_steps = env, policy, n_steps
        self.clip_rewards = info.kind == "pixels"
        self.watch, self.record = watch, record
        self.cutter = SegmentCutter(info, env.n_watched if watch else env.num_envs, seed)
        self.recorder = EpisodeRecorder(info.fps) if record else None
        self.stopwatch = Stopwatch()
        self.finished_returns: deque[float] = deque(maxlen=100)  # true episode rewards, unclipped
        self.n_episodes = 0
        self._running_returns = np.zeros(env.num_envs, np.float64)
        self._views: list[np.ndarray] = []  # of each step of the rollout, where people watch
        shape = (n_steps, env.num_envs)
        observations, _ = env.reset()
        action_shape = () if info.n_actions else (info.action_dim or 0,)
        self.rollout = Rollout(
            observations=_observation_buffer(n_steps + 1, observations, policy.channels_last),
            actions=np.zeros((*shape, *action_shape), np.int64 if info.n_actions else np.float32),
            log_probs=np.zeros(shape, np.float32),
            values=np.zeros(shape, np.float32),
            last_values=np.zeros(env.num_envs, np.float32),
            rewards=np.zeros(shape, np.float32),
            terminated=np.zeros(shape, np.bool_),
            truncated=np.zeros(shape, np.bool_),
            valid=np.ones(shape, np.bool_),
        )
        self._store(n_steps, observations)
        self._resetting = np.zeros(env.num_envs, np.bool_)

    def collect(self) -> tuple[Rollout, list[Episode]]:
        """Runs T steps from where the last rollout ended; returns it with the recorded episodes that it completed."""
        r, episodes = self.rollout, []
        self._views.clear()
        r.observations[0] = r.observations[-1]
        for t in range(self.n_steps):
            with self.stopwatch.part("policy"):
                r.actions[t], r.log_probs[t], r.values[t] = self.policy.act(r.observations[t])
            views = self.env.watch() if self.watch or self.record else None
            with self.stopwatch.part("environment"):
                observations, rewards, r.terminated[t], r.truncated[t], _ = self.env.step(r.actions[t])
            self._store(t + 1, observations)
            r.valid[t] = ~self._resetting
            r.rewards[t] = np.clip(rewards, -1, 1) if self.clip_rewards else rewards
            self._resetting = r.terminated[t] | r.truncated[t]
            if self.recorder is not None and views is not None and r.valid[t, 0]:
                episode = self.recorder.add(views[0], float(rewards[0]), bool(self._resetting[0]))
                episodes += [episode] if episode else []
            self._count(rewards)
            if self.watch and views is not None:
                self._views.append(views.copy())
        with self.stopwatch.part("policy"):
            r.last_values = self.policy.values(r.observations[-1])
        return r, episodes

    def cut(self, policy_step: int, member_rewards: np.ndarray | None = None) -> list[Segment]:
        """The segments that the rollout completed; to be called once after each `collect`.

        Args:
            policy_step: agent steps taken when the rollout was collected.
            member_rewards: (members, T, N) rewards that the ensemble's members predict for it, if there are any.
        """
        r, segments = self.rollout, list[Segment]()
        with self.stopwatch.part("segments"):
            for t in range(self.n_steps):
                segments += self.cutter.add(
                    r.observations[t],
                    r.actions[t],
                    r.rewards[t],
                    r.terminated[t] | r.truncated[t],
                    r.valid[t],
                    self._views[t] if self.watch else None,
                    None if member_rewards is None else member_rewards[:, t],
                    policy_step,
                )
        return segments

    def _store(self, t: int, observations: np.ndarray) -> None:
        """Keeps the observations of step t; plane by plane, the fastest change of layout."""
        if self.policy.channels_last:
            for plane in range(observations.shape[1]):
                self.rollout.observations[t, :, plane] = observations[:, plane]
        else:
            self.rollout.observations[t] = observations

    def _count(self, rewards: np.ndarray) -> None:
        """Adds up true rewards; `_resetting` says whose episode has just ended."""
        self._running_returns += rewards
        for i in np.flatnonzero(self._resetting):
            self.finished_returns.append(float(self._running_returns[i]))
            self.n_episodes += 1
        self._running_returns[self._resetting] = 0.0
