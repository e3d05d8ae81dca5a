"""rl-teacher's continuous-control tasks: each body's observations, reward and start.

The paper reports results on these tasks (section 3.1.1, appendix A.1); the rewards are those that its co-author
published with rl-teacher. No episode ends early, because an end would give the task away. Torque costs nothing, because
nobody sees it. The bodies, their starts and what they observe are those of Gymnasium's environments, version 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Moment:
    """The state of N simulations; observations and rewards are functions of it."""

    values: Floats  # (N, nq + nv + what is sensed)
    nq: int
    nv: int

    @property
    def qpos(self) -> Floats:
        """Returns the positions of the joints, (N, nq)."""
        return self.values[:, : self.nq]

    @property
    def qvel(self) -> Floats:
        """Returns the velocities of the joints, (N, nv)."""
        return self.values[:, self.nq : self.nq + self.nv]

    @property
    def sensed(self) -> Floats:
        """Returns the numbers that `Task.senses` adds, (N, any)."""
        return self.values[:, self.nq + self.nv :]


Observe = Callable[[Moment], Floats]  # -> (N, D)
Reward = Callable[[Moment, Moment, float], Floats]  # before, after, seconds between them -> (N,)
Start = Callable[[np.random.Generator, Floats, int], tuple[Floats, Floats]]  # qpos0, nv -> qpos, qvel


@dataclass(frozen=True)
class Task:
    """One task; a step is a decision of the agent's."""

    gymnasium_id: str  # has the same body and number of simulation steps per step
    observe: Observe
    reward: Reward
    start: Start
    fps: float  # people see it in slow motion
    horizon: int  # steps of an episode
    senses: Callable[[Any], list[Floats]] = lambda data: []  # 1-D views of a simulation's data
    feels_contacts: bool = False  # whether `senses` needs the forces of contacts, which are an extra computation


def all_but(hidden: int, speed_limit: float = np.inf) -> Observe:
    """Observes positions except the first ones (the place on the ground), and velocities up to a limit."""

    def observe(now: Moment) -> Floats:
        return np.concatenate([now.qpos[:, hidden:], now.qvel.clip(-speed_limit, speed_limit)], 1)

    return observe


def observe_ant(now: Moment) -> Floats:
    """Returns positions except the place on the ground, velocities, and each part's contact forces, clipped at 1."""
    return np.concatenate([now.qpos[:, 2:], now.qvel, now.sensed.clip(-1, 1)], 1)


def finger_to_target(now: Moment) -> Floats:
    """Returns the way from the target to Reacher's fingertip, (N, 2), metres; `sensed` holds both places."""
    return now.sensed[:, :2] - now.sensed[:, 2:]


def observe_reacher(now: Moment) -> Floats:
    """Returns both angles, the target's place, both angular speeds, and the way from the target to the finger."""
    angles = now.qpos[:, :2]
    return np.concatenate([np.cos(angles), np.sin(angles), now.qpos[:, 2:], now.qvel[:, :2], finger_to_target(now)], 1)


def observe_double_pendulum(now: Moment) -> Floats:
    """Returns the cart's place, both angles' sines and cosines, speeds, and the force of the cart's rail."""
    angles = now.qpos[:, 1:]
    limited = [now.qvel.clip(-10, 10), now.sensed[:, 2:].clip(-10, 10)]
    return np.concatenate([now.qpos[:, :1], np.sin(angles), np.cos(angles), *limited], 1)


def forward(before: Moment, now: Moment, seconds: float) -> Floats:
    """Returns the forward velocity in metres per second, (N,)."""
    return (now.qpos[:, 0] - before.qpos[:, 0]) / seconds


def upright(height_axis: int, height: float, alive: float) -> Reward:
    """Returns a reward for forward velocity, for being alive (a constant), and for the torso's height above `height`.

    Gymnasium's reward subtracts 1e-3 times the squared torques and rl-teacher adds them again, so neither is here.
    """

    def reward(before: Moment, now: Moment, seconds: float) -> Floats:
        return forward(before, now, seconds) + alive + (now.qpos[:, height_axis] - height)

    return reward


def reach(before: Moment, now: Moment, seconds: float) -> Floats:
    """Returns minus the distance of the fingertip from the target."""
    return -np.linalg.norm(finger_to_target(now), axis=1)


def balance(before: Moment, now: Moment, seconds: float) -> Floats:
    """Returns 1 for being alive, minus the squared angle of the pole."""
    return 1 - now.qpos[:, 1] ** 2


def balance_double(before: Moment, now: Moment, seconds: float) -> Floats:
    """Returns Gymnasium's reward of a pole that never falls, plus 10 for each metre of its tip above the first."""
    x, height = now.sensed[:, 0], now.sensed[:, 1]
    speed_1, speed_2 = now.qvel[:, 1], now.qvel[:, 2]
    distance_penalty = 0.01 * x**2 + (height - 2) ** 2
    velocity_penalty = 1e-3 * speed_1**2 + 5e-3 * speed_2**2
    return 10 - distance_penalty - velocity_penalty + 10 * (height - 1)


def near_rest(noise: float, *, normal_velocities: bool = False) -> Start:
    """Starts in the model's pose with uniform noise; velocities get uniform noise too, or normal noise."""

    def start(rng: np.random.Generator, qpos0: Floats, nv: int) -> tuple[Floats, Floats]:
        qpos = qpos0 + rng.uniform(-noise, noise, len(qpos0))
        qvel = noise * rng.standard_normal(nv) if normal_velocities else rng.uniform(-noise, noise, nv)
        return qpos, qvel

    return start


def start_reacher(rng: np.random.Generator, qpos0: Floats, nv: int) -> tuple[Floats, Floats]:
    """Starts with the arm near its pose; the target, the last two positions, is anywhere within 0.2 m."""
    qpos = rng.uniform(-0.1, 0.1, len(qpos0)) + qpos0
    while np.linalg.norm(target := rng.uniform(-0.2, 0.2, 2)) >= 0.2:
        pass
    qpos[-2:] = target
    qvel = rng.uniform(-0.005, 0.005, nv)
    qvel[-2:] = 0
    return qpos, qvel


def finger_and_target(data: Any) -> list[Floats]:
    """Returns the places of Reacher's fingertip and target, x and y each."""
    return [data.body(name).xpos[:2] for name in ("fingertip", "target")]


def tip_and_rail(data: Any) -> list[Floats]:
    """Returns the place of the double pendulum's tip, x and z, and the force of the cart's rail."""
    return [data.site_xpos[0, ::2], data.qfrc_constraint[:1]]


def contact_forces(data: Any) -> list[Floats]:
    """Returns force and torque of contacts on each part of a body, the ground excepted."""
    return [data.cfrc_ext[1:].reshape(-1)]


HOPPER = Task("Hopper-v5", all_but(1, 10), upright(1, 1.0, alive=1), near_rest(5e-3), fps=40, horizon=1000)
WALKER = Task("Walker2d-v5", all_but(1, 10), upright(1, 2.0, alive=1), near_rest(5e-3), fps=30, horizon=1000)
CHEETAH = Task("HalfCheetah-v5", all_but(1), forward, near_rest(0.1, normal_velocities=True), fps=20, horizon=1000)
SWIMMER = Task("Swimmer-v5", all_but(2), forward, near_rest(0.1), fps=40, horizon=1000)
ANT = Task(
    "Ant-v5",
    observe_ant,
    upright(2, 1.2, alive=0),
    near_rest(0.1, normal_velocities=True),
    fps=20,
    horizon=1000,
    senses=contact_forces,
    feels_contacts=True,
)
REACHER = Task("Reacher-v5", observe_reacher, reach, start_reacher, fps=10, horizon=50, senses=finger_and_target)
PENDULUM = Task("InvertedPendulum-v5", all_but(0), balance, near_rest(0.01), fps=10, horizon=25)
DOUBLE_PENDULUM = Task(
    "InvertedDoublePendulum-v5",
    observe_double_pendulum,
    balance_double,
    near_rest(0.1, normal_velocities=True),
    fps=10,
    horizon=50,
    senses=tip_and_rail,
)
SHORT = 200  # steps of an episode of the tasks named Short...; ShortReacher has 20
TASKS = {
    "ShortHopper-v1": replace(HOPPER, horizon=SHORT),
    "Hopper-v1": HOPPER,
    "ShortWalker-v1": replace(WALKER, horizon=SHORT),
    "Walker-v1": WALKER,
    "ShortHalfCheetah-v1": replace(CHEETAH, horizon=SHORT),
    "HalfCheetah-v1": CHEETAH,
    "Swimmer-v1": SWIMMER,
    "Ant-v1": ANT,
    "ShortReacher-v1": replace(REACHER, horizon=20),
    "Reacher-v1": REACHER,
    "InvertedPendulum-v1": PENDULUM,
    "InvertedDoublePendulum-v1": DOUBLE_PENDULUM,
}


def task_id(name: str) -> str:
    """Returns the id of a task that may lack its version, such as Hopper; any other name stays as it is."""
    return f"{name}-v1" if f"{name}-v1" in TASKS else name
