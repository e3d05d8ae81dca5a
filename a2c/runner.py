"""Runs the policy in its environments: rollouts for the update, segments for the teacher, episode statistics."""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a2c.acting import ActingPolicy
from a2c.crew import ALONE, Arena, Crew
from a2c.history import History
from a2c.recorder import EpisodeRecorder
from drlhp.data.candidate import Candidate
from drlhp.data.cutter import SegmentCutter
from drlhp.data.segment import Segment
from drlhp.runtime.channels import Episode
from drlhp.runtime.pulse import doing
from drlhp.runtime.snapshot import kept_of, restore_kept, state_of, value_of
from envs import EnvError, EnvInfo, PreferenceVecEnv, env_info, make_vec_env

log = logging.getLogger("run")


class Stopwatch:
    """Adds up the seconds that each part takes, for the speed curves."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        with doing(f"the part '{name}' of a step"):
            yield
        self.seconds[name] += time.perf_counter() - start


@dataclass
class Rollout:
    """T steps of N environments; the arrays are overwritten by the next rollout."""

    observations: np.ndarray  # (T + 1, N, ...)
    noise: np.ndarray  # (T, N, A) for Policy.act
    actions: np.ndarray  # (T, N) int64 or (T, N, A) float32
    log_probs: np.ndarray  # (T, N)
    values: np.ndarray  # (T, N)
    last_values: np.ndarray  # (N,)
    true_rewards: np.ndarray  # (T, N) the environment's own
    rewards: np.ndarray  # (T, N) of these, for pixel environments clipped to [-1, 1] as in the paper
    terminated: np.ndarray  # (T, N)
    truncated: np.ndarray  # (T, N)
    valid: np.ndarray  # (T, N) False where the environment was resetting and ignored the action
    advantages: np.ndarray  # (T, N) by the rewards that the policy learns from
    returns: np.ndarray  # (T, N) likewise
    memory: np.ndarray  # (T + 1, N, M) of a recurrent policy before each step and after the last; M is 0 for any other
    states: np.ndarray  # (T, N, S) what clips of MuJoCo's bodies are drawn from; S is 0 for anything else

    @classmethod
    def allocate(
        cls, info: EnvInfo, n_steps: int, n_envs: int, arena: Arena, channels_last: bool, memory_size: int = 0
    ) -> Rollout:
        """Zeros; pixels (T + 1, N, C, H, W) perhaps with C last in memory."""
        if channels_last:
            channels, *size = info.observation_shape
            pixels = arena.array((n_steps + 1, n_envs, *size, channels), np.uint8)
            observations = np.moveaxis(pixels, -1, 2)
        else:
            dtype = np.uint8 if info.kind == "pixels" else np.float32
            observations = arena.array((n_steps + 1, n_envs, *info.observation_shape), dtype)
        shape, n_heads = (n_steps, n_envs), info.n_actions or info.action_dim or 0
        return cls(
            observations=observations,
            noise=arena.array((*shape, n_heads)),
            actions=arena.array(shape, np.int64) if info.n_actions else arena.array((*shape, n_heads)),
            log_probs=arena.array(shape),
            values=arena.array(shape),
            last_values=arena.array((n_envs,)),
            true_rewards=arena.array(shape),
            rewards=arena.array(shape),
            terminated=arena.array(shape, np.bool_),
            truncated=arena.array(shape, np.bool_),
            valid=arena.array(shape, np.bool_),
            advantages=arena.array(shape),
            returns=arena.array(shape),
            memory=arena.array((n_steps + 1, n_envs, memory_size)),
            states=arena.array((*shape, info.state_size)),
        )

    @property
    def n_decisions(self) -> int:
        return int(self.valid.size)

    def flat_observations(self) -> np.ndarray:
        """Returns the observations (T * N, ...) on which the policy acted, without a copy."""
        acted_on = self.observations[:-1]
        return acted_on.reshape(-1, *acted_on.shape[2:])

    def flat_actions(self) -> np.ndarray:
        """Returns the actions (T * N,) or (T * N, A), without a copy."""
        return self.actions.reshape(-1, *self.actions.shape[2:])


def stack_of(info: EnvInfo) -> int:
    """Returns the frames of an observation; all but the newest were in the one before."""
    return info.observation_shape[0] if info.kind == "pixels" else 1


def random_segment(env_id: str, seed: int, clip_steps: int) -> Segment | None:
    """Returns a segment of random actions as training cuts it; None if no episode is long enough for one."""
    info, env = replace(env_info(env_id), segment_length=clip_steps), make_vec_env(env_id, 1, seed)
    cutter, resetting = SegmentCutter(info, 1, seed, stack_of(info)), np.zeros(1, np.bool_)
    env.action_space.seed(seed)
    try:
        observations, _ = env.reset()
        for _ in range(100 * info.segment_length):
            before, valid = observations.copy(), ~resetting
            actions = info.carried_out(env.action_space.sample())
            observations, rewards, terminated, truncated, _ = env.step(actions)
            resetting = terminated | truncated
            if info.kind == "pixels":
                rewards = np.clip(rewards, -1, 1)
            for candidate in cutter.add(before, actions, rewards, resetting, valid, None, None, policy_step=0):
                return candidate.segment
        return None
    finally:
        env.close()


class Actor:
    """Acts with the policy in environments that are some of a rollout's columns.

    A step goes on by itself from `send` until `see` waits for its end. So two actors of one process can take turns:
    while one decides, the environments of the other are at work.

    Args:
        phases: (n,) shares of an episode of bodies that are over at the start; by default by the column.
    """

    def __init__(
        self,
        env: PreferenceVecEnv,
        mine: slice,
        policy: ActingPolicy,
        rollout: Rollout,
        phases: np.ndarray | None = None,
    ) -> None:
        self.env, self.mine, self.policy, self.rollout = env, mine, policy, rollout
        self.views: list[np.ndarray] = []  # colour frames of each step, if people watch
        options = None
        if env.info.state_size:
            # If all bodies' episodes last equally long, all would otherwise stay at the same moment of theirs forever.
            # A rollout, which is only a part of an episode, would show the policy nothing else.
            n_envs = rollout.rewards.shape[1]
            options = {"elapsed": np.arange(n_envs)[mine] / n_envs if phases is None else phases}
        self._store(-1, env.reset(options=options)[0])

    def begin(self, given_up: NDArray[np.bool_] | None) -> None:
        """Goes on from where the last rollout ended, and ends the episodes (N,) that are given up."""
        r, mine, self.views = self.rollout, self.mine, []
        if given_up is not None:
            self.env.end_episodes(given_up[mine])
        r.observations[0, mine], r.memory[0, mine] = r.observations[-1, mine], r.memory[-1, mine]

    def act(self, t: int) -> None:
        """Decides on step t."""
        r, mine = self.rollout, self.mine
        memory = r.memory[t, mine].copy()
        acted = self.policy.act(r.observations[t, mine], r.noise[t, mine], memory, step=t)
        r.actions[t, mine], r.log_probs[t, mine], r.values[t, mine] = acted
        # The step after an episode's last one resets; index -1 still holds the last step of the rollout before.
        memory[r.terminated[t - 1, mine] | r.truncated[t - 1, mine]] = 0.0
        r.memory[t + 1, mine] = memory

    def send(self, t: int, *, watch: bool) -> None:
        """Lets the environments begin step t; keeps what people see before it, for bodies the states to draw."""
        r, mine = self.rollout, self.mine
        if r.states.shape[-1]:
            r.states[t, mine] = self.env.states
        elif watch:
            self.views.append(self.env.watch().copy())
        self.env.send(r.actions[t, mine])

    def see(self, t: int) -> None:
        """Waits for the end of step t."""
        r, mine = self.rollout, self.mine
        observations, rewards, terminated, truncated, _ = self.env.recv()
        r.true_rewards[t, mine], r.terminated[t, mine], r.truncated[t, mine] = rewards, terminated, truncated
        self._store(t + 1, observations)

    def end(self) -> None:
        """Values the last observations."""
        last, memory = self.rollout.observations[-1, self.mine], self.rollout.memory[-1, self.mine]
        self.rollout.last_values[self.mine] = self.policy.values(last, memory)

    def _store(self, t: int, observations: np.ndarray) -> None:
        """Keeps the observations of step t, plane by plane because that changes the layout fastest."""
        if self.policy.channels_last:
            for plane in range(observations.shape[1]):
                self.rollout.observations[t, self.mine, plane] = observations[:, plane]
        else:
            self.rollout.observations[t, self.mine] = observations


def act_in_turns(
    actors: Sequence[Actor],
    given_up: NDArray[np.bool_] | None = None,
    *,
    watch: bool = False,
    stopwatch: Stopwatch | None = None,
) -> None:
    """Fills the columns of all actors, from where the last rollout ended; the first may keep what people watch.

    Episodes that are given up, (N,) of all environments of the rollout, end with its first step.
    """
    stopwatch = stopwatch or Stopwatch()
    for actor in actors:
        actor.begin(given_up)
    for t in range(len(actors[0].rollout.rewards)):
        for i, actor in enumerate(actors):
            if t:
                with stopwatch.part("environment"):
                    actor.see(t - 1)
            with stopwatch.part("policy"):
                actor.act(t)
            with stopwatch.part("environment"):
                actor.send(t, watch=watch and i == 0)
    for actor in actors:
        with stopwatch.part("environment"):
            actor.see(t)
        with stopwatch.part("policy"):
            actor.end()


class Runner:
    """Runs the policy in all environments, one rollout of T steps at a time.

    Args:
        envs: the environments of this process, in one or several groups that take turns (`Actor`). They are the first
            of all, and people watch some of the first ones. None if the crew has all.
        rollout: columns for the environments of all processes; the crew fills the others.
        watch: keep colour frames for the segments.
        record: keep whole episodes of environment 0.
        end_penalty: taken off the true reward of the step that ends a game, in segments alone.
        judged_by_reward: the teacher is the true reward, so segments that differ in it alone are different.
        remembers: keep all actions, so that a snapshot can be restored.
    """

    KEPT = (
        *("cutter", "recorder", "finished_returns", "n_episodes", "true_reward_total"),
        *("_running_returns", "_views", "_resetting"),
    )

    def __init__(
        self,
        envs: Sequence[PreferenceVecEnv],
        info: EnvInfo,
        policy: ActingPolicy,
        rollout: Rollout,
        seed: int,
        watch: bool,
        record: bool,
        crew: Crew = ALONE,
        end_penalty: float = 0.0,
        judged_by_reward: bool = True,
        remembers: bool = False,
    ) -> None:
        self.info, self.policy, self.rollout, self.crew = info, policy, rollout, crew
        self.end_penalty = np.float32(end_penalty)
        ends = accumulate(env.num_envs for env in envs)
        columns = (slice(end - env.num_envs, end) for env, end in zip(envs, ends, strict=True))
        self.actors = [Actor(env, mine, policy, rollout) for env, mine in zip(envs, columns, strict=True)]
        self.stopwatch = Stopwatch()  # of this process; the others take as long
        self.clip_rewards = info.kind == "pixels"
        self.draws_later = info.state_size > 0  # so people may be asked about any environment
        self.watch, self.record = watch and not self.draws_later, record
        self.n_steps, n_envs = rollout.rewards.shape
        n_watched = envs[0].n_watched if envs else crew.n_watched
        n_cut_from = n_watched if self.watch else n_envs
        self.cutter = SegmentCutter(info, n_cut_from, seed, stack_of(info), by_reward=judged_by_reward)
        self.recorder = EpisodeRecorder(info.env_id, info.fps) if record else None
        self.finished_returns: deque[float] = deque(maxlen=100)  # true episode rewards, unclipped
        self.n_episodes, self.true_reward_total = 0, 0.0
        # NaN if the first episode began in its middle (`Actor`): it is not counted.
        self._first_returns = np.where(np.arange(n_envs) * bool(info.state_size) > 0, np.nan, 0.0)
        self._running_returns = self._first_returns.copy()
        self._views: list[np.ndarray] = []  # of each step of the rollout, if people watch
        self._resetting = np.zeros(n_envs, np.bool_)
        self.history = History(info, self.n_steps) if remembers else None

    def snapshot(self) -> dict[str, Any]:
        """Returns what `restore` takes: all that the next rollout depends on, besides the policy."""
        r, history = self.rollout, self.history
        last = (r.observations[-1], r.memory[-1], r.terminated[-1], r.truncated[-1])
        return {"kept": kept_of(self), "last": state_of(last), "history": state_of(history)}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from there in new environments, which must have the same seeds."""
        assert self.history is not None
        r = self.rollout
        restore_kept(self, state["kept"])
        r.observations[-1], r.memory[-1], r.terminated[-1], r.truncated[-1] = value_of(state["last"])
        played = self.history.play(state["history"], [(actor.env, actor.mine) for actor in self.actors])
        if played is not None and not np.array_equal(played, r.observations[-1]):
            log.warning(
                "%s does not repeat itself, so this run will not be as if it had never stopped", self.info.env_id
            )
            r.observations[-1] = played

    def collect(self, given_up: NDArray[np.bool_] | None = None) -> tuple[Rollout, list[Episode]]:
        """Runs T steps from where the last rollout ended; returns it with the recorded episodes that it completed.

        Episodes that are given up, (N,), end with its first step.
        Raises EnvError for observations that would turn all weights into NaN.
        """
        r = self.rollout
        with self.crew.one_thread_each():
            r.noise[:] = self.policy.noise(*r.rewards.shape)
            self.crew.act(given_up)
            if self.actors:
                act_in_turns(self.actors, given_up, watch=self.watch or self.record, stopwatch=self.stopwatch)
        found = self.crew.wait()
        if found.anew is not None and found.anew.any():
            self._begin_anew(found.anew)
        if self.history is not None:
            self.history.add(r.actions, given_up)
        if self.info.kind == "vector" and not np.isfinite(r.observations).all():
            raise EnvError(f"an observation of {self.info.env_id} holds NaN or infinity: fix the environment.")
        done = r.terminated | r.truncated
        r.valid[0], r.valid[1:] = ~self._resetting, ~done[:-1]
        r.true_rewards[np.isinf(r.true_rewards)] = np.nan  # of which all sums are NaN, without a warning
        r.rewards[:] = r.true_rewards.clip(-1, 1) if self.clip_rewards else r.true_rewards
        views = self.actors[0].views if self.actors else list(found.views)
        episodes = self._recorded(views)
        self._count(done)
        self._views = list(r.states.copy()) if self.draws_later else views if self.watch else []
        self._resetting = done[-1]
        return r, episodes

    def _begin_anew(self, which: NDArray[np.bool_]) -> None:
        """Forgets the unfinished episodes (N,) of environments that were lost, and replaced by new ones."""
        self.cutter.forget(which)
        self._running_returns[which], self._resetting[which] = self._first_returns[which], False
        if self.recorder is not None and which[0]:
            self.recorder = EpisodeRecorder(self.info.env_id, self.info.fps)

    def _recorded(self, views: list[np.ndarray]) -> list[Episode]:
        """Returns the episodes of environment 0 that the rollout completed, if they are recorded."""
        r, recorder = self.rollout, self.recorder
        if recorder is None:
            return []
        done = r.terminated[:, 0] | r.truncated[:, 0]
        steps = zip(r.states if self.draws_later else views, r.true_rewards[:, 0], done, r.valid[:, 0], strict=True)
        ended = [recorder.add(view[0], float(reward), bool(end)) for view, reward, end, valid in steps if valid]
        return [episode for episode in ended if episode]

    def cut(self, policy_step: int, member_rewards: np.ndarray | None = None) -> list[Candidate]:
        """Returns the segments that the rollout completed; call it once after each `collect`.

        Args:
            policy_step: agent steps taken when the rollout was collected.
            member_rewards: (members, T, N) rewards that the ensemble's members predict for it, if there are any.
        """
        r, candidates = self.rollout, list[Candidate]()
        actions = self.info.carried_out(r.actions)
        with self.stopwatch.part("segments"):
            for t in range(self.n_steps):
                candidates += self.cutter.add(
                    r.observations[t],
                    actions[t],
                    r.rewards[t] - self.end_penalty * r.terminated[t],
                    r.terminated[t] | r.truncated[t],
                    r.valid[t],
                    self._views[t] if self._views else None,
                    None if member_rewards is None else member_rewards[:, t],
                    policy_step,
                )
        return candidates

    def _count(self, done: np.ndarray) -> None:
        """Adds up the true rewards of the rollout's episodes; `done` (T, N) says where one ended."""
        self.true_reward_total += float(self.rollout.true_rewards.sum(dtype=np.float64))
        for rewards, ended in zip(self.rollout.true_rewards, done, strict=True):
            self._running_returns += rewards
            for i in np.flatnonzero(ended & ~np.isnan(self._running_returns)):
                self.finished_returns.append(float(self._running_returns[i]))
                self.n_episodes += 1
            self._running_returns[ended] = 0.0
