"""The circus's teachers prefer their trick to the ordinary thing, in poses and motions whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from drlhp.data.segment import Segment
from envs import env_info, make_vec_env
from examples import circus


def segment(env_id: str, observations: np.ndarray) -> Segment:
    info = env_info(env_id)
    assert observations.shape[1:] == info.observation_shape
    steps, actions = len(observations), info.action_dim
    assert actions is not None
    return Segment(
        env_id,
        observations.astype(np.float32),
        np.zeros((steps, actions), np.float32),
        np.zeros(steps, np.float32),
        stack=1,
        policy_step=0,
        seed=0,
        fps=20.0,
    )


def poses(env_id: str, **values: float) -> Segment:
    """Five steps in one pose: numbers of the observation by place, such as o1=0.5."""
    observations = np.zeros((5, *env_info(env_id).observation_shape))
    for place, value in values.items():
        observations[:, int(place[1:])] = value
    return segment(env_id, observations)


STANDING = {"o0": 1.25}
FRONT_FOOT_UP = {"o0": 0.1, "o1": -0.9}
ONE_FOOT_UP = {**STANDING, "o2": -1.2, "o3": -0.5}


# The poses are made in the test: here, each process that collects tests would start MuJoCo for them.
@pytest.mark.parametrize(
    ("teacher", "env_id", "trick", "ordinary"),
    [
        (circus.backflip, "Hopper-v1", {"o0": 1.5, "o7": -6}, {**STANDING, "o5": 2}),
        (circus.backflip, "Hopper-v1", {"o0": 1.5, "o7": -6}, {"o0": 1.5, "o7": 6}),
        (circus.backflip, "Hopper-v1", {"o0": 1.5, "o7": -6}, {"o0": 0.2, "o7": -6}),
        (circus.away_from_the_target, "Reacher-v1", {"o8": 0.2, "o9": 0.2}, {"o8": 0.01}),
        (circus.on_one_leg, "HalfCheetah-v1", {**FRONT_FOOT_UP, "o8": 2}, {"o8": 2}),
        (circus.on_one_leg, "HalfCheetah-v1", {**FRONT_FOOT_UP, "o8": 2}, {"o0": 0.1, "o1": 0.9}),
        (circus.on_one_leg, "HalfCheetah-v1", FRONT_FOOT_UP, {"o0": -0.4, "o1": 3.1, "o8": 2}),
        (circus.ballet, "Walker-v1", ONE_FOOT_UP, STANDING),
        (circus.ballet, "Walker-v1", ONE_FOOT_UP, {**STANDING, "o8": 3}),
        (circus.ballet, "Walker-v1", {**STANDING, "o2": -1.2}, {"o0": 0.2, "o1": 1.5, "o2": -1.2}),
    ],
)
def test_a_trick_is_worth_more(
    teacher: Callable[[Segment], np.ndarray], env_id: str, trick: dict[str, float], ordinary: dict[str, float]
) -> None:
    better, worse = poses(env_id, **trick), poses(env_id, **ordinary)
    assert teacher(better).shape == (5,)
    assert teacher(better).sum() > teacher(worse).sum() + 0.5


def test_a_foot_in_the_air_is_no_ballet_on_the_back() -> None:
    on_its_back = {"o0": 0.2, "o1": -1.5}
    lying, foot_up = (poses("Walker-v1", **on_its_back, **leg) for leg in ({}, {"o2": -1.2, "o3": -0.5}))
    assert circus.between_feet(foot_up.observations).min() > 1 > 0.1 > circus.between_feet(lying.observations).max()
    assert circus.ballet(foot_up).sum() < circus.ballet(lying).sum() + 0.5


def test_only_whole_turns_backwards_that_end_on_the_foot_are_backflips() -> None:
    turn = np.linspace(0, -2 * np.pi, 40)
    up = np.full(40, 1.3)
    assert circus.count_backflips(turn, up) == 1
    assert circus.count_backflips(np.concatenate([turn, turn - 2 * np.pi]), np.tile(up, 2)) == 2
    assert circus.count_backflips(-turn, up) == 0, "forwards"
    assert circus.count_backflips(np.concatenate([turn[:25], turn[24::-1]]), np.full(50, 1.3)) == 0, "half and back"
    assert circus.count_backflips(turn, np.linspace(1.3, 0.2, 40)) == 0, "it lies"
    roll = np.where(np.cos(turn) < 0, 0.3, 1.3)
    assert circus.count_backflips(turn, roll) == 0, "over its back on the ground"
    assert circus.count_backflips(np.concatenate([turn, turn - 2 * np.pi]), np.concatenate([roll, up])) == 1
    slow = np.linspace(0, -2 * np.pi, 400)  # it stands for a while as it begins, and when it has come round
    assert circus.count_backflips(slow, np.full(400, 1.3)) == 1


def test_cars_passed_count_before_gas_and_gas_before_the_brake() -> None:
    def driven(actions: list[int], rewards: list[float]) -> float:
        pictures, n = np.zeros((len(actions), 84, 84), np.uint8), np.array(actions, np.int64)
        shown = Segment("EnduroNoFrameskip-v4", pictures, n, np.array(rewards, np.float32), 1, 0, 0, 15.0)
        return float(circus.overtaking(shown).sum())

    names = env_info("EnduroNoFrameskip-v4").action_names
    gas, brake, nothing = names.index("LEFTFIRE"), names.index("DOWNRIGHT"), names.index("NOOP")
    scores = [
        driven([action] * 3, [0, passed, 0]) for action, passed in ((brake, 1), (gas, 0), (nothing, 0), (brake, 0))
    ]
    assert scores == sorted(scores, reverse=True) and len(set(scores)) == 4


def pictures_of(env_id: str, action: int, steps: int, **options: bool) -> np.ndarray:
    """The newest picture before each step of somebody who always does the same, (steps, 84, 84)."""
    with closing(make_vec_env(env_id, 1, seed=3, n_threads=1, **options)) as env:
        pictures = [env.reset()[0][0, -1].copy()]
        pictures += [env.step(np.array([action]))[0][0, -1].copy() for _ in range(steps - 1)]
    return np.array(pictures)


def test_gas_counts_in_the_middle_of_the_road() -> None:
    """On a real road: who keeps to one side with the gas down ends at its edge, and either edge is as far away."""
    env_id = "ALE/Enduro-v5"
    names = env_info(env_id).action_names
    gas, right, left, brake = (names.index(name) for name in ("FIRE", "RIGHTFIRE", "LEFTFIRE", "DOWN"))

    def driven(action: int) -> Segment:
        shown = pictures_of(env_id, action, 100, whole_games=True)[-25:]
        return Segment(env_id, shown, np.full(25, gas), np.zeros(25, np.float32), 1, 0, 0, 15.0)

    middle, edges = driven(gas), [driven(right), driven(left)]
    assert circus.in_the_middle(middle.observations).mean() > 0.7
    assert max(circus.in_the_middle(edge.observations).max() for edge in edges) < 0.2
    one, other = (circus.from_the_middle(edge.observations).mean() for edge in edges)
    assert one < -8 and other > 8 and abs(one + other) < 2
    assert circus.racing(middle).sum() > circus.racing(edges[0]).sum() + 10
    passed, braked = replace(edges[0], rewards=np.ones(25, np.float32)), replace(middle, actions=np.full(25, brake))
    assert circus.racing(passed).sum() > circus.racing(middle).sum() > 0 > circus.racing(braked).sum()
    steered = replace(middle, actions=np.full(25, right))
    assert circus.racing(middle).sum() > circus.racing(steered).sum() > circus.racing(braked).sum()


def test_a_car_is_alongside_where_people_see_one() -> None:
    """On a real road: there are colours beside the own car, which is white, in the pictures that people get."""
    env_id, pictures, views = "EnduroNoFrameskip-v4", [], []
    with closing(make_vec_env(env_id, 1, seed=3, n_watched=1, n_threads=1)) as env:
        pictures.append(env.reset()[0][0, -1].copy())
        views.append(env.watch()[0].copy())
        for step in range(400):
            pictures.append(env.step(np.array([1 if step // 20 % 2 == 0 else 0]))[0][0, -1].copy())
            views.append(env.watch()[0].copy())
    n = len(pictures)
    shown = Segment(env_id, np.array(pictures), np.zeros(n, np.int64), np.zeros(n, np.float32), 1, 0, 0, 15.0)
    scores = circus.alongside(shown.observations)
    rows = np.array(views)[:, 128:152, 10:].astype(int)
    red, green, blue = np.moveaxis(rows, -1, 0)
    coloured = ((blue > 60) | (red > 100)) & ~((red == green) & (green == blue))
    share = coloured.mean((1, 2))
    assert (scores > 0.6).sum() > 5 and (scores == 0).sum() > 100
    assert share[scores > 0.6].min() > 0.02 and share[scores == 0].mean() < 0.005
    assert circus.steps_alongside(scores).max() > 3


def test_staying_alongside_counts_and_being_passed_does_not() -> None:
    beside = np.array([0, 1, 0, 1, 1, 0.2, 1, 0.5, 1])
    assert circus.steps_alongside(beside).tolist() == [0, 1, 0, 1, 2, 0, 1, 2, 3]
    env_id, n = "EnduroNoFrameskip-v4", 300
    passed = Segment(env_id, pictures_of(env_id, 0, n), np.zeros(n, np.int64), np.zeros(n, np.float32), 1, 0, 0, 15.0)
    scores = circus.alongside(passed.observations)  # it stands, and they pass it
    assert (scores > circus.BESIDE).sum() > 50 and circus.level_with_others(passed).max() == 0
    met = int(scores.argmax())  # as if the car that is beside it now stayed there
    stays = replace(passed, observations=np.repeat(passed.observations[met : met + 1], n, axis=0))
    assert circus.level_with_others(stays)[-1] > circus.level_with_others(stays)[20] > 0


def test_an_agents_tricks_are_measured() -> None:
    """A share is of the steps at which all that the trick asks for is so."""

    def both(first: Segment, second: Segment) -> np.ndarray:
        return np.concatenate([first.observations, second.observations])

    running, slow = poses("HalfCheetah-v1", **FRONT_FOOT_UP, o8=2), poses("HalfCheetah-v1", **FRONT_FOOT_UP, o8=0.5)
    assert circus.share_on_one_leg(both(running, slow)) == 0.5
    assert circus.share_on_one_leg(both(running, poses("HalfCheetah-v1", o0=-0.1, o8=2))) == 0.5, "its foot is down"
    assert circus.share_on_one_leg(both(running, poses("HalfCheetah-v1", o0=-0.4, o1=3.1, o8=2))) == 0.5, "on its back"
    raised = poses("Walker-v1", **ONE_FOOT_UP)
    assert circus.share_in_ballet(both(raised, poses("Walker-v1", **STANDING))) == 0.5, "both feet are down"
    assert circus.share_in_ballet(both(raised, poses("Walker-v1", **ONE_FOOT_UP | {"o0": 0.3}))) == 0.5, "it lies"
    assert circus.share_in_ballet(both(raised, poses("Walker-v1", **ONE_FOOT_UP | {"o1": 1}))) == 0.5, "it leans"
    tilted = both(poses("Walker-v1", **ONE_FOOT_UP | {"o1": 0.6}), poses("Walker-v1", **ONE_FOOT_UP | {"o1": 1}))
    assert (circus.share_in_ballet(tilted), circus.share_in_ballet(tilted, lean=40)) == (0, 0.5)
    near, far = poses("Reacher-v1", o8=0.03, o9=0.04), poses("Reacher-v1", o8=0.15)
    assert circus.mean_gap(both(near, far)) == pytest.approx(0.1)
