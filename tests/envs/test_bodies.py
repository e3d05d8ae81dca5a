"""MuJoCo: rl-teacher's tasks against simulator state, Gymnasium's own environments against themselves."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from a2c.crew import Arena
from a2c.model import Policy
from a2c.runner import Rollout, Runner
from drlhp.data.comparison import Choice, Comparison
from drlhp.data.segment import Segment
from drlhp.data.views import decode_frames, decode_view, draw_with, encode_view
from drlhp.labelling.drawing import Drawing
from envs import EnvError, draw_states, env_info, make_env, make_vec_env
from envs.bodies import TASKS
from pref_db import PrefDB
from tests.support import ROOT
from tests.support.commands import one_sentence, run

# Rewards as rl-teacher published them: of a Gymnasium environment just after a step, its forward velocity, the action.
Formula = Callable[[Any, float, np.ndarray], float]


def hopper(body: Any, velocity: float, action: np.ndarray) -> float:
    base = velocity + 1.0 - 1e-3 * np.square(action).sum()
    return base + (body.data.qpos[1] - 1) + 1e-3 * np.square(action).sum()


def walker(body: Any, velocity: float, action: np.ndarray) -> float:
    base = velocity + 1.0 - 1e-3 * np.square(action).sum()
    return base + (body.data.qpos[1] - 2.0) + 1e-3 * np.square(action).sum()


def double_pendulum(body: Any, velocity: float, action: np.ndarray) -> float:
    x, _, z = body.data.site_xpos[0]
    _, v1, v2 = body.data.qvel
    return 10 - (0.01 * x**2 + (z - 2) ** 2) - (1e-3 * v1**2 + 5e-3 * v2**2) + 10 * (z - 1)


FORMULAS: dict[str, Formula] = {
    "Hopper-v1": hopper,
    "Walker-v1": walker,
    "HalfCheetah-v1": lambda body, velocity, action: velocity,
    "Swimmer-v1": lambda body, velocity, action: velocity,
    "Ant-v1": lambda body, velocity, action: velocity + (body.data.qpos[2] - 1.2),
    "Reacher-v1": lambda body, velocity, action: (
        -float(np.linalg.norm(body.get_body_com("fingertip") - body.get_body_com("target")))
    ),
    "InvertedPendulum-v1": lambda body, velocity, action: 1 - body.data.qpos[1] ** 2,
    "InvertedDoublePendulum-v1": double_pendulum,
}


@pytest.mark.parametrize("env_id", FORMULAS)
def test_tasks_observe_what_the_bodies_do_and_reward_by_the_published_formulas(env_id: str) -> None:
    """Beside Gymnasium's environment of the same body, given the same seeds and actions, across an episode's end."""
    task, rng = TASKS[env_id], np.random.default_rng(0)
    body: Any = gymnasium.make(task.gymnasium_id, disable_env_checker=True).unwrapped
    seconds, steps = body.dt, 2 * task.horizon + 3 if task.horizon <= 50 else 60
    with closing(make_vec_env(env_id, 2, seed=7)) as env:
        observations, _ = env.reset()
        expected = body.reset(seed=8)[0]  # of environment 1
        np.testing.assert_array_equal(observations[1], expected.astype(np.float32))
        done = False
        for step in range(1, steps):
            actions = rng.normal(0, 1, (2, body.model.nu)).astype(np.float32)
            observations, rewards, terminated, truncated, _ = env.step(actions)
            if done:
                expected, reward = body.reset()[0], 0.0
            else:
                x = body.data.qpos[0]
                clipped = actions[1].clip(*body.model.actuator_ctrlrange.T).astype(np.float32)
                expected = body.step(clipped)[0]
                reward = FORMULAS[env_id](body, (body.data.qpos[0] - x) / seconds, clipped)
            np.testing.assert_array_equal(observations[1], expected.astype(np.float32))
            assert rewards[1] == pytest.approx(reward, rel=1e-6, abs=1e-6) and rewards.dtype == np.float32
            assert not terminated.any(), "these tasks never end early"
            done = bool(truncated[1])
            assert done == (step % (task.horizon + 1) == task.horizon)


def test_training_shows_every_moment_of_an_episode_at_once() -> None:
    """Of five environments each is a fifth of an episode ahead of the next; after its first every one lasts as long."""
    info = env_info("Reacher")
    rollout = Rollout.allocate(info, 110, 5, Arena(), channels_last=False)
    with closing(make_vec_env("Reacher", 5, seed=0)) as env:
        Runner([env], info, Policy(info, "nature"), rollout, 0, watch=False, record=False).collect()
        ends = [np.flatnonzero(rollout.truncated[:, i]).tolist() for i in range(5)]
        assert ends == [[49, 100], [39, 90], [29, 80], [19, 70], [9, 60]]
        env.reset()
        assert not any(env.step(np.zeros((5, 2), np.float32))[3].any() for _ in range(49)), "only if asked to"


def test_tasks_are_known_by_name() -> None:
    assert env_info("Hopper") == env_info("Hopper-v1") and env_info("Hopper").env_id == "Hopper-v1"
    clips = {env_id: (env_info(env_id).segment_length, env_info(env_id).max_episode_frames) for env_id in TASKS}
    assert clips == {  # 1.5 s at the published speeds, which agrees with the paper's 15 to 60 steps
        "ShortHopper-v1": (60, 200),
        "Hopper-v1": (60, 1000),
        "ShortWalker-v1": (45, 200),
        "Walker-v1": (45, 1000),
        "ShortHalfCheetah-v1": (30, 200),
        "HalfCheetah-v1": (30, 1000),
        "Swimmer-v1": (60, 1000),
        "Ant-v1": (30, 1000),
        "ShortReacher-v1": (15, 20),
        "Reacher-v1": (15, 50),
        "InvertedPendulum-v1": (15, 25),
        "InvertedDoublePendulum-v1": (15, 50),
    }
    for ant, deviation in (("Ant", 0.1), ("Ant-v5", 0.2)):
        tuned = env_info(ant).tuned
        settings = [tuned[name] for name in ("init_noise_std", "ent_coef", "lr", "gae_lambda")]
        assert settings == [deviation, 0, 2e-4, 0.97]
    assert env_info("Swimmer").tuned["ent_coef"] == 0.05 and "ent_coef" not in env_info("Hopper").tuned
    with pytest.raises(EnvError, match="ShortHopper-v1"):
        env_info("ShortHoper")
    for unknown in ("hopper", "Hopper-v3"):  # of which Gymnasium knows only that it has left
        with pytest.raises(EnvError, match=f"called '{unknown}': try (?=.*Hopper-v1, )(?=.*Hopper-v5, )"):
            env_info(unknown)
    with pytest.raises(EnvError, match="make_vec_env"):
        make_env("Hopper")


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Reacher-v5"])
def test_unmodified_bodies_are_gymnasiums_own(env_id: str) -> None:
    rng, ends = np.random.default_rng(0), 0
    plain = gymnasium.wrappers.ClipAction(gymnasium.make(env_id))
    with closing(make_vec_env(env_id, 2, seed=3)) as env:
        observations, _ = env.reset()
        np.testing.assert_array_equal(observations[1], plain.reset(seed=4)[0].astype(np.float32))
        done = False
        for _ in range(150):
            actions = rng.normal(0, 2, (2, env_info(env_id).action_dim or 0)).astype(np.float32)
            observations, rewards, terminated, truncated, _ = env.step(actions)
            expected = (plain.reset()[0], 0.0, False, False) if done else plain.step(actions[1])[:4]
            np.testing.assert_array_equal(observations[1], expected[0].astype(np.float32))
            assert rewards[1] == pytest.approx(expected[1]) and (terminated[1], truncated[1]) == expected[2:]
            done = bool(terminated[1] or truncated[1])
            ends += done
    assert ends >= 2


def test_a_body_in_wrappers_is_what_these_make_of_it() -> None:
    wrappers = gymnasium.wrappers
    gymnasium.register(
        "Wrapped-v0",
        entry_point=gymnasium.spec("Hopper-v5").entry_point,
        max_episode_steps=100,
        additional_wrappers=(
            wrappers.TimeAwareObservation.wrapper_spec(),
            wrappers.TransformReward.wrapper_spec(func=twice),
        ),
    )
    plain = gymnasium.make("Hopper-v5")
    plain.reset(seed=0)
    with closing(make_vec_env("Wrapped-v0", 1, seed=0)) as env:
        env.reset()
        observations, rewards, *_ = env.step(np.zeros((1, 3), np.float32))
    seen, reward, *_ = plain.step(np.zeros(3, np.float32))
    np.testing.assert_allclose(observations[0], [*seen, 1], rtol=1e-6)
    assert rewards[0] == pytest.approx(2 * float(reward))


def twice(reward: float) -> float:
    return 2 * reward


def segments(env_id: str, n_steps: int) -> list[Segment]:
    """Of two environments in which an untrained policy acts, with an episode of the first kept as it goes."""
    info = replace(env_info(env_id), segment_length=10)
    policy = Policy(info, "nature")
    rollout = Rollout.allocate(info, n_steps, 2, Arena(), policy.channels_last)
    with closing(make_vec_env(env_id, 2, seed=0)) as env:
        runner = Runner([env], info, policy, rollout, 0, watch=True, record=False)
        _, found = runner.collect(), [one.segment for one in runner.cut(policy_step=0)]
        np.testing.assert_array_equal(decode_view(found[0].view or b""), rollout.states[:10, 0])
        runner.collect()  # which overwrites the rollout's arrays, but not what the segments hold
        np.testing.assert_array_equal(found[0].observations[0, :2], np.cos(decode_view(found[0].view or b"")[0, :2]))
        return found


def test_a_clip_is_drawn_from_states_when_it_is_asked_about_and_stored_so(tmp_path: Path) -> None:
    a, b = segments("Reacher", 10)
    assert not a.is_drawn and len(a.view or b"") < 2000
    draw_with(draw_states)
    try:
        frames = a.frames()
    except EnvError as error:
        pytest.skip(str(error))
    assert frames.shape == (10, 240, 240, 3) and frames.std() > 10
    assert not np.array_equal(frames[0], frames[-1]) and not np.array_equal(frames, b.frames())
    np.testing.assert_array_equal(frames, a.frames())
    PrefDB.create(tmp_path / "prefs.db", "Reacher-v1", 10).close()
    with closing(PrefDB.open(tmp_path / "prefs.db")) as db:
        db.add_segments([a, b])
        assert db.segment(a.id).view == a.view, "nothing is drawn before anybody asks"
        pair = Comparison(db.segment(a.id), db.segment(b.id), flip=False).drawn()
        assert pair.is_drawn and pair.a.id == a.id
        db.add_answers([(pair, Choice.A)], teacher="human")
        np.testing.assert_array_equal(decode_frames(db.segment(a.id).view or b""), frames)
        db.add_segments([a])
        assert db.segment(a.id).is_drawn, "what was drawn stays"


def test_bodies_drawn_in_turn_look_as_each_does_alone() -> None:
    """A renderer's context stays current until another is made so, and two bodies' share their numbers of buffers."""
    states = {
        task: np.random.default_rng(0).normal(0, 0.3, (2, n)).astype(np.float32)
        for task, n in (("Ant", 29), ("Reacher", 8))
    }
    try:
        first = {task: draw_states(f"{task}-v1", states[task]) for task in states}
    except EnvError as error:
        pytest.skip(str(error))
    for task in [*states, *states]:
        np.testing.assert_array_equal(draw_states(f"{task}-v1", states[task]), first[task])


def test_a_pair_that_cannot_be_drawn_is_left_out_with_its_reason() -> None:
    a, b = segments("Reacher", 10)
    draw_with(draw_states)
    drawing = Drawing()
    with closing(drawing):
        drawing.begin(Comparison(a, replace(b, view=encode_view(np.zeros((10, 3), np.float32))), flip=False))
        assert drawing.status() == "Drawing 2 clips"
        wait([*drawing.open.values()])
        assert drawing.done() == [] and not drawing.open
        assert drawing.status().startswith("A pair was left out: ")
        whole = Comparison(replace(a, view=None), replace(b, view=None), flip=False)
        drawing.begin(whole)
        assert drawing.done() == [whole], "there is nothing to draw"


@pytest.mark.parametrize("task", ["Hopper", "Walker", "HalfCheetah", "Swimmer", "Ant"])
def test_a_body_that_gets_far_stays_in_the_picture_on_the_floor(task: str) -> None:
    """People see as much of it, and of the floor's pattern, far away as at the start."""
    with closing(make_vec_env(f"{task}-v1", 1, seed=0)) as env:
        env.reset()
        states = np.repeat(env.states, 3, axis=0)
    states[1:, 0] += 50.0, 400.0  # the latter a whole number of patterns
    try:
        frames = draw_states(f"{task}-v1", states).astype(int)
    except EnvError as error:
        pytest.skip(str(error))
    redder = frames[..., 0] > frames[..., 2] + 30  # than the floor is anywhere
    light = (frames.min(-1) > 120) & ~redder  # fields of the floor, of which the others are dark
    for at_start, *far in (redder.sum((1, 2)), light.sum((1, 2))):
        assert at_start > 200 and all(0.8 < seen / at_start < 1.25 for seen in far)
    assert np.abs(frames[2] - frames[0]).mean() < 1, "the same pattern in the same place"


@pytest.mark.skipif(find_spec("triton") is None, reason="needs PyTorch for CUDA, whose compiler clashes with Mesa's")
def test_a_process_that_has_drawn_a_body_can_make_an_optimiser() -> None:
    program = """
import numpy as np, torch
from a2c.model import Policy
from envs import draw_states
draw_states("Hopper-v1", np.zeros((1, 12), np.float32))
torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
"""
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_states_of_another_body_are_refused_in_one_sentence() -> None:
    with pytest.raises(EnvError, match=r"^Reacher-v1 is drawn from states of 8 numbers, not of 12: [^\n]+\.$"):
        draw_states("Reacher", np.zeros((3, 12), np.float32))


def test_people_are_not_asked_about_bodies_that_cannot_be_drawn(tmp_path: Path) -> None:
    words = ("train_policy_with_preferences", "Reacher", "--ui", "terminal")
    result = run(tmp_path, *words, status=2, MUJOCO_GL="glfw", DISPLAY="", WAYLAND_DISPLAY="")
    message = one_sentence(result.stderr)
    assert message.startswith("run.py: Reacher-v1 cannot be drawn (") and "apt-get install libegl1" in message


def test_a_renderer_that_is_not_there_is_named_also_where_nothing_is_drawn(tmp_path: Path) -> None:
    words = ("train_policy_with_original_rewards", "Reacher", "--million_timesteps", "0.001")
    message = one_sentence(run(tmp_path, *words, status=2, MUJOCO_GL="none").stderr)
    assert message.startswith("run.py: MuJoCo does not start with MUJOCO_GL=none (") and "unset it" in message


def test_an_episode_that_is_begun_anew_is_not_given_up() -> None:
    env = make_vec_env("Reacher", 2, seed=0)
    env.reset()
    env.end_episodes(np.array([True, False]))
    env.reset()
    assert not env.step(np.zeros((2, 2), np.float32))[3].any()
    env.end_episodes(np.array([True, False]))
    assert env.step(np.zeros((2, 2), np.float32))[3].tolist() == [True, False]
    env.close()
