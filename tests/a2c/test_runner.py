"""Rollouts and segments of a scripted environment that remembers all that it showed and was told."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from a2c.crew import Arena
from a2c.model import Policy
from a2c.runner import Rollout, Runner, random_segment
from drlhp.data.candidate import Candidate
from drlhp.data.segment import Segment
from drlhp.data.views import decode_frames
from drlhp.runtime.channels import Episode
from envs import EnvInfo, PreferenceVecEnv, make_vec_env
from examples.dot_left import to_the_left

STACK, SIDE, LENGTH = 4, 8, 6
REWARDS = (3.0, -2.5, 0.25, 0.0, 1.5)


@dataclass
class Shown:
    """One step of one environment: what was seen, what was done, what came of it."""

    observation: np.ndarray
    view: int  # grey value of the colour frame
    action: np.ndarray
    reward: float
    resetting: bool
    done: bool


class ScriptedVecEnv(PreferenceVecEnv):
    """Environment i plays episodes of `lengths[i]` steps in turn, which end by death and by time alternately.

    Every frame, number or view tells its environment and its time. Observations share one array that the next step
    overwrites, as an environment may.
    """

    def __init__(self, info: EnvInfo, lengths: list[list[int]], n_watched: int = 0) -> None:
        super().__init__(info, len(lengths), seed=0, n_watched=n_watched)
        self.lengths = lengths
        self.shown: list[list[Shown]] = [[] for _ in lengths]
        self._observations = np.zeros(self.observation_space.shape or (), self.observation_space.dtype)
        self._episode = np.zeros(len(lengths), np.int64)
        self._step = np.zeros(len(lengths), np.int64)
        self._done = np.zeros(len(lengths), np.bool_)

    def code(self, i: int) -> int:
        """A number from 1 to 255 for what environment i shows now."""
        return int(1 + (83 * i + 29 * self._episode[i] + 3 * self._step[i]) % 255)

    def _show(self, i: int) -> None:
        """Draws environment i; at the start of an episode the older frames are black."""
        if self.info.kind == "vector":
            self._observations[i] = (i, self._episode[i], self._step[i])
            return
        older = self._observations[i, 1:].copy() if self._step[i] else 0
        self._observations[i, :-1], self._observations[i, -1] = older, self.code(i)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        for i in range(self.num_envs):
            self._show(i)
        return self._observations, {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        rewards = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), np.bool_)
        for i, action in enumerate(actions):
            resetting, before, view = bool(self._done[i]), self._observations[i].copy(), self.code(i)
            if resetting:
                self._episode[i], self._step[i] = self._episode[i] + 1, 0
            else:
                rewards[i] = REWARDS[(self._step[i] + i) % len(REWARDS)]
                self._step[i] += 1
            lengths = self.lengths[i]
            self._done[i] = self._step[i] == lengths[self._episode[i] % len(lengths)]
            (terminated if self._episode[i] % 2 == 0 else truncated)[i] = self._done[i]
            self._show(i)
            self.shown[i].append(
                Shown(before, view, np.array(action), float(rewards[i]), resetting, bool(self._done[i]))
            )
        return self._observations, rewards, terminated, truncated, {}

    def watch(self) -> np.ndarray:
        codes = np.array([self.code(i) for i in range(self.n_watched)], np.uint8)
        return np.broadcast_to(codes[:, None, None, None], (self.n_watched, 5, 4, 3))


def env_info(kind: str = "pixels", n_actions: int | None = 5) -> EnvInfo:
    action_dim = None if n_actions else 2
    if kind == "pixels":
        shape = (STACK, SIDE, SIDE)
        return EnvInfo("Test-v0", "pixels", shape, n_actions, action_dim, LENGTH, 15.0, 4, (), None, ("a",) * 5, {})
    bounds = None if n_actions else ((-0.5, -0.5), (0.5, np.inf))
    return EnvInfo("Test-v0", "vector", (3,), n_actions, action_dim, LENGTH, 20.0, 1, (), None, (), {}, 0, bounds)


LENGTHS = [[13], [2, 3, 9, 6], [200], [7, 8]]


def make_runner(env: ScriptedVecEnv, network: str, n_steps: int = 5, *, seed: int = 0, **options: Any) -> Runner:
    """A runner of this process alone."""
    policy = Policy(env.info, network)
    rollout = Rollout.allocate(env.info, n_steps, env.num_envs, Arena(), policy.channels_last)
    return Runner([env], env.info, policy, rollout, seed, **{"watch": False, "record": False, **options})


def play(
    info: EnvInfo,
    *,
    n_steps: int = 5,
    rollouts: int = 12,
    n_watched: int = 0,
    watch: bool = False,
    record: bool = False,
    end_penalty: float = 0.0,
) -> tuple[ScriptedVecEnv, Runner, list[Segment], list[Episode]]:
    torch.manual_seed(0)
    env = ScriptedVecEnv(info, LENGTHS, n_watched)
    options: dict[str, Any] = {"watch": watch, "record": record, "end_penalty": end_penalty}
    runner = make_runner(env, "feature_points", n_steps, seed=100, **options)
    segments: list[Segment] = []
    episodes: list[Episode] = []
    for number in range(rollouts):
        _, new_episodes = runner.collect()
        segments += [one.segment for one in runner.cut(policy_step=number)]
        episodes += new_episodes
    return env, runner, segments, episodes


def episodes_of(shown: list[Shown]) -> list[list[Shown]]:
    """The steps of each episode, without the reset steps; the last may be unfinished."""
    episodes: list[list[Shown]] = [[]]
    for step in shown:
        if step.resetting:
            episodes.append([])
        else:
            episodes[-1].append(step)
    return episodes


def expected_segments(shown: list[Shown]) -> list[list[Shown]]:
    """Pieces of the full length, and of what a finished episode leaves over, those of half the length or more."""
    pieces = []
    for episode in episodes_of(shown):
        for start in range(0, len(episode), LENGTH):
            piece = episode[start : start + LENGTH]
            if len(piece) == LENGTH or (piece[-1].done and len(piece) * 2 >= LENGTH):
                pieces.append(piece)
    return pieces


@pytest.mark.parametrize(("kind", "n_actions"), [("pixels", 5), ("vector", 5), ("vector", None)])
def test_segments_hold_what_was_seen_done_and_earned(kind: str, n_actions: int | None) -> None:
    info = env_info(kind, n_actions)
    env, _, segments, _ = play(info)
    kinds = set()
    for i, shown in enumerate(env.shown):
        mine = [segment for segment in segments if segment.seed == 100 + i]
        expected = expected_segments(shown)
        assert [len(segment) for segment in mine] == [len(piece) for piece in expected]
        for segment, piece in zip(mine, expected, strict=True):
            assert np.array_equal(segment.stacked(), [step.observation for step in piece])
            actions = np.array([step.action for step in piece])
            if n_actions is None:  # as the environment carries them out
                actions[:, 0], actions[:, 1] = actions[:, 0].clip(-0.5, 0.5), actions[:, 1].clip(min=-0.5)
            assert np.array_equal(segment.actions, actions)
            rewards = np.array([step.reward for step in piece], np.float32)
            assert np.array_equal(segment.rewards, rewards.clip(-1, 1) if kind == "pixels" else rewards)
            assert (segment.env_id, segment.fps, segment.view) == (info.env_id, info.fps, None)
            kinds.add(len(segment))
    assert kinds >= {3, 6} and 1 not in kinds and 2 not in kinds


def test_a_teachers_penalty_is_on_the_last_step_of_a_game_and_in_segments_alone() -> None:
    """Every second episode of the scripted environment runs out of time, which is nobody's fault."""
    info = env_info("vector", 5)
    env, runner, segments, _ = play(info, rollouts=60, end_penalty=2.0)
    plain_env, plain, _, _ = play(info, rollouts=60)
    n_penalties = 0
    for i, shown in enumerate(env.shown):
        over = {id(episode[-1]) for episode in episodes_of(shown)[::2] if episode and episode[-1].done}
        pieces = expected_segments(shown)
        for segment, piece in zip([s for s in segments if s.seed == 100 + i], pieces, strict=True):
            expected = [step.reward - (2 if id(step) in over else 0) for step in piece]
            assert segment.rewards.tolist() == expected
            n_penalties += sum(id(step) in over for step in piece)
        assert [step.reward for step in shown] == [step.reward for step in plain_env.shown[i]]
    assert n_penalties > 3
    assert list(runner.finished_returns) == list(plain.finished_returns)
    assert np.array_equal(runner.rollout.rewards, plain.rollout.rewards)


def test_segments_carry_what_each_member_predicted_for_them() -> None:
    """The third rollout alone is without predictions: a segment that touches it has none."""
    info, members, n_steps = env_info(), 2, 5
    env = ScriptedVecEnv(info, LENGTHS)
    runner = make_runner(env, "feature_points", n_steps, seed=100)
    predictions = np.random.default_rng(0).normal(size=(12, members, n_steps, len(LENGTHS))).astype(np.float32)
    candidates: list[Candidate] = []
    for number, predicted in enumerate(predictions):
        runner.collect()
        candidates += runner.cut(number, None if number == 2 else predicted)
    predictions[2] = np.nan
    with_and_without = set()
    for i, shown in enumerate(env.shown):
        of_step = dict(zip(map(id, shown), predictions[..., i].transpose(0, 2, 1).reshape(-1, members), strict=True))
        mine = [one for one in candidates if one.segment.seed == 100 + i]
        for one, piece in zip(mine, expected_segments(shown), strict=True):
            expected = sum(of_step[id(step)] for step in piece)
            with_and_without.add(one.member_returns is None)
            if one.member_returns is None:
                assert np.isnan(expected).all()
            else:
                np.testing.assert_allclose(one.member_returns, expected, rtol=1e-5)
    assert with_and_without == {True, False}


def test_segments_say_when_they_were_cut() -> None:
    _, _, segments, _ = play(env_info(), n_steps=LENGTH, rollouts=4)
    endless = [segment.policy_step for segment in segments if segment.seed == 102]
    assert endless == [0, 1, 2, 3]


def test_a_segments_frames_are_kept_once_and_stay_as_they_were() -> None:
    _, runner, segments, _ = play(env_info())
    ids = [segment.id for segment in segments]
    assert all(len(segment.observations) == len(segment) + STACK - 1 for segment in segments)
    assert len(set(ids)) == len(ids)
    copies = [(s.observations.copy(), s.actions.copy(), s.rewards.copy()) for s in segments]
    runner.collect()
    runner.cut(99)
    for segment, copy in zip(segments, copies, strict=True):
        for array, before in zip((segment.observations, segment.actions, segment.rewards), copy, strict=True):
            assert np.array_equal(array, before)


def test_watched_environments_alone_give_segments_with_the_view_of_each_step() -> None:
    env, _, segments, _ = play(env_info(), n_watched=2, watch=True)
    assert {segment.seed for segment in segments} == {100, 101}
    for i in range(2):
        mine = [segment for segment in segments if segment.seed == 100 + i]
        for segment, piece in zip(mine, expected_segments(env.shown[i]), strict=True):
            assert segment.view is not None
            frames = decode_frames(segment.view)
            assert frames.shape == (len(piece), 5, 4, 3)
            assert frames[:, 0, 0, 0].tolist() == [step.view for step in piece]
            assert np.array_equal(segment.frames(), frames)


def test_recording_keeps_every_frame_of_the_first_environments_episodes() -> None:
    """With nobody to label, all environments still give segments, without views."""
    env, _, segments, episodes = play(env_info(), n_watched=1, record=True)
    finished = [episode for episode in episodes_of(env.shown[0]) if episode and episode[-1].done]
    assert len(episodes) == len(finished) >= 3
    for episode, steps in zip(episodes, finished, strict=True):
        assert [int(decode_frames(frame)[0, 0, 0, 0]) for frame in episode.frames] == [step.view for step in steps]
        assert episode.episode_return == pytest.approx(sum(step.reward for step in steps))
        assert episode.fps == 15.0
    assert {segment.seed for segment in segments} == {100, 101, 102, 103}
    assert all(segment.view is None for segment in segments)


def test_true_returns_of_finished_episodes_are_not_clipped() -> None:
    env, runner, _, _ = play(env_info())
    finished = [e for shown in env.shown for e in episodes_of(shown) if e and e[-1].done]
    returns = [sum(step.reward for step in episode) for episode in finished]
    assert sorted(runner.finished_returns) == pytest.approx(sorted(returns))
    assert runner.n_episodes == len(returns)
    steps = [step for shown in env.shown for episode in episodes_of(shown) for step in episode]
    assert runner.true_reward_total == pytest.approx(sum(step.reward for step in steps))
    assert max(abs(value) for value in returns) > 5


def snapshot(rollout: Rollout) -> dict[str, np.ndarray]:
    """A rollout's arrays, which the next rollout overwrites, copied."""
    return {name: array.copy() for name, array in vars(rollout).items()}


def test_rollouts_follow_each_other_without_a_gap() -> None:
    info = env_info()
    torch.manual_seed(0)
    env = ScriptedVecEnv(info, LENGTHS)
    runner = make_runner(env, "feature_points")
    rollouts = [snapshot(runner.collect()[0]) for _ in range(6)]
    for before, after in itertools.pairwise(rollouts):
        assert np.array_equal(before["observations"][-1], after["observations"][0])
        np.testing.assert_allclose(before["last_values"], after["values"][0], atol=1e-6)

    def joined(name: str) -> np.ndarray:
        return np.concatenate([rollout[name][:5] for rollout in rollouts])

    for i, shown in enumerate(env.shown):
        assert np.array_equal(joined("observations")[:, i], [step.observation for step in shown])
        assert np.array_equal(joined("actions")[:, i], [step.action for step in shown])
        assert np.array_equal(joined("rewards")[:, i], np.clip([step.reward for step in shown], -1, 1))
        assert np.array_equal(joined("valid")[:, i], [not step.resetting for step in shown])
        assert np.array_equal((joined("terminated") | joined("truncated"))[:, i], [step.done for step in shown])
    assert joined("terminated").any() and joined("truncated").any() and not joined("valid").all()


def test_flat_arrays_go_step_by_step_through_all_environments() -> None:
    info = env_info("vector", None)
    env = ScriptedVecEnv(info, LENGTHS)
    runner = make_runner(env, "nature")
    rollout, _ = runner.collect()
    assert rollout.n_decisions == 20
    assert rollout.flat_observations().shape == (20, 3) and rollout.flat_actions().shape == (20, 2)
    assert np.array_equal(rollout.flat_observations()[7], env.shown[3][1].observation)
    assert np.array_equal(rollout.flat_actions()[7], env.shown[3][1].action)


def test_a_random_segment_is_cut_as_in_training() -> None:
    """Each observation is from before its action: the moving dot goes where it is sent next."""
    segment = random_segment("MovingDotNoFrameskip-v0", seed=0, clip_steps=25)
    assert segment is not None and len(segment) == 25 and len(set(segment.actions)) == 5
    actions, moved = segment.actions[:-1], to_the_left(segment)[:-1]
    assert (moved[actions == 4] > 1).all() and (moved[actions == 2] < -1).all()
    assert np.abs(moved[(actions != 4) & (actions != 2)]).max() < 0.6  # a picture is the maximum of its last two frames
    assert set(segment.rewards) <= {-1.0, 0.0, 1.0}


def test_actions_of_a_random_segment_are_within_their_bounds() -> None:
    """As in training; else a teacher that counts on that is refused before the run."""
    segment = random_segment("Hopper-v1", seed=0, clip_steps=60)
    assert segment is not None and np.abs(segment.actions).max() == 1


@pytest.mark.slow
def test_environments_in_two_groups_play_what_one_group_of_them_does() -> None:
    env_id, n_steps, rollouts = "PongNoFrameskip-v4", 6, []
    for sizes in ([4], [2, 2]):
        torch.manual_seed(0)
        envs = [make_vec_env(env_id, size, 7 + i * size) for i, size in enumerate(sizes)]
        info, policy = envs[0].info, Policy(envs[0].info, "nature")
        rollout = Rollout.allocate(info, n_steps, 4, Arena(), policy.channels_last)
        runner = Runner(envs, info, policy, rollout, 0, watch=False, record=False)
        for _ in range(4):
            runner.collect()
        rollouts.append(rollout)
        for env in envs:
            env.close()
    one, two = rollouts
    assert len(np.unique(one.actions)) > 1 and not np.array_equal(one.observations[:, 0], one.observations[:, 2])
    for name in ("observations", "actions", "true_rewards", "terminated"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    np.testing.assert_allclose(one.values, two.values, atol=0.02)  # sums of other shapes, perhaps in bfloat16
    np.testing.assert_allclose(one.last_values, two.last_values, atol=0.02)
