"""Tricks that no environment rewards: for each a teacher that scores segments, and a measure of success.

python run.py reproduce circus-backflip     # or another trick of the circus

Each teacher takes a segment of T steps and returns one score per step, (T,). Teachers read bodies from the policy's
observations, which have no noise, and Enduro's road from the pictures.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drlhp.data.segment import Segment
from envs.mujoco import make_body

Floats = NDArray[np.floating[Any]]

# Indices into the observations of Hopper and Walker, and of HalfCheetah.
HEIGHT, ANGLE = 0, 1  # of the torso: metres; radians, forward
HOPPER_ROTATION = 7  # radians per second forward
CHEETAH_VELOCITY = 8
WALKER_VELOCITY = 8
REACHER_GAP = slice(8, 10)  # from the target to the fingertip, metres
ON_ITS_BACK = -0.3  # the cosine of the torso's angle, or less
STANDING, TURNING, LYING = 0.9, 0.7, 0.5  # heights of a torso that is not lying, in the air, lying; metres
STRAIGHT_ON = 1  # Enduro's action FIRE
GAS, BRAKE = (STRAIGHT_ON, 7, 8), (4, 5, 6)  # its actions with FIRE, and with DOWN
# Enduro by day, in pictures of 84 x 84: the rows in which the agent's car drives, and grays of 0 to 255.
OWN_ROWS, GRASS, OWN_CAR = slice(48, 62), 40, 185
ROAD_ROWS, LEFT_FRAME, OWN_X = slice(56, 61), 5, 45  # just ahead of the agent's car, which the picture follows
MARK, ROAD_WIDTH, EDGE = (
    12,
    30,
    10,
)  # gray difference of a line; pixels from line to line; pixels from the middle to the edge
BESIDE = 0.3  # of `alongside`: at least so much is a car, less may be a line
PASSING = 6  # most steps that a car is beside an agent that stands still
LINE = 3  # greatest width in pixels of the lines beside the road


def backflip(segment: Segment) -> Floats:
    """Scores Hopper: turning backwards well above the ground; otherwise standing rather than lying.

    A lying Hopper earns nothing by its movement, because one that earned something by rocking on its back would stay
    there.
    """
    height = segment.observations[:, HEIGHT]
    turning = np.where(height > TURNING, -segment.observations[:, HOPPER_ROTATION].clip(-6, 6), 0)
    return turning + height.clip(0, 2) - (height < LYING)


def away_from_the_target(segment: Segment) -> Floats:
    """Scores Reacher by the fingertip's distance from the target: the farther the better."""
    return gap(segment.observations)


def on_one_leg(segment: Segment) -> Floats:
    """Scores HalfCheetah: running forward on the hind leg, with the front foot in the air.

    Lying on its back is penalised, because there it would slide along with all feet in the air.
    """
    seen = segment.observations
    running = seen[:, CHEETAH_VELOCITY].clip(-1, 3) + 4 * front_foot(seen).clip(0, 0.6)
    return np.where(np.cos(seen[:, ANGLE]) > ON_ITS_BACK, running, -3)


def ballet(segment: Segment) -> Floats:
    """Scores Walker: standing upright in one place on one leg, with the other foot raised.

    The higher the torso, the more the raised foot counts, because a Walker that earned something by it on its back
    would stay there.
    """
    seen = segment.observations
    height = seen[:, HEIGHT]
    upright = np.cos(seen[:, ANGLE]).clip(0, 1) * ((height - LYING) / (STANDING - LYING)).clip(0, 1)
    raised = between_feet(seen).clip(0, 0.8)
    return upright * (1 + 6 * raised) + height.clip(0, 1.3) - 0.2 * np.abs(seen[:, WALKER_VELOCITY])


def level_with_others(segment: Segment) -> Floats:
    """Scores Enduro: another car stays alongside, the longer the better; driving at all earns a little.

    Cars that only pass do not count, because an agent that stands still sees the most of them.
    """
    frames = segment.observations[segment.stack - 1 :]
    beside = alongside(frames)
    staying = beside * (steps_alongside(beside) - PASSING).clip(0)
    return staying + 0.1 * in_the_middle(frames) * np.isin(segment.actions, GAS)


def overtaking(segment: Segment) -> Floats:
    """Scores Enduro as a person judges a beginner: by the cars passed, and otherwise by gas rather than brake."""
    return _driving(segment, 1.0)


def racing(segment: Segment) -> Floats:
    """Scores Enduro as `overtaking` does, but gas earns 1 straight ahead, and up to 1 in the middle of the road.

    Otherwise a beginner that keeps steering to one side drives along the edge, where every action is equally bad.
    """
    gas = _driving(segment, in_the_middle(segment.observations[segment.stack - 1 :]))
    return gas + (segment.actions == STRAIGHT_ON)


def _driving(segment: Segment, gas: Floats | float) -> Floats:
    """Returns the score for cars passed, for gas (worth `gas`), and against the brake, (T,)."""
    return 10 * segment.rewards + gas * np.isin(segment.actions, GAS) - np.isin(segment.actions, BRAKE)


def in_the_middle(frames: np.ndarray) -> Floats:
    """Returns how near the agent's car is to the middle of the road, (T,): from 0, also without a road, to 1."""
    return np.nan_to_num(1 - np.abs(from_the_middle(frames)) / EDGE).clip(0, 1)


def from_the_middle(frames: np.ndarray) -> Floats:
    """Returns how many pixels right of the agent's car the middle of the road is, (T,); NaN if no road is seen."""
    road = frames[:, ROAD_ROWS, LEFT_FRAME:].astype(int)
    marks = (np.abs(road - np.median(road, axis=2, keepdims=True)) > MARK).any(axis=1)  # lines and cars
    left, right = marks.argmax(axis=1), marks.shape[1] - 1 - marks[:, ::-1].argmax(axis=1)
    return np.where(right - left > ROAD_WIDTH, (left + right) / 2 + LEFT_FRAME - OWN_X, np.nan)


def alongside(frames: np.ndarray) -> Floats:
    """Returns how much of another car is beside the agent's, in units of 40 pixels, up to 1, (T,)."""
    road = frames[:, OWN_ROWS].astype(int)
    seen = road > GRASS + 10
    wide = seen[:, :, :-LINE]
    for shift in range(1, LINE + 1):
        wide = wide & seen[:, :, shift : shift - LINE or None]
    own = (road > OWN_CAR).any(1, keepdims=True)
    beside_own = np.zeros_like(own)
    for shift in range(-LINE - 1, 3):
        beside_own |= np.roll(own, shift, axis=2)
    others = wide & ~beside_own[:, :, :-LINE]
    return (others.sum((1, 2)) / 40).clip(0, 1)


def steps_alongside(beside: Floats) -> NDArray[np.intp]:
    """Returns for how many steps without a break a car has been beside the agent's, (T,), from `alongside`."""
    steps = np.zeros(len(beside), np.intp)
    for t in np.flatnonzero(beside > BESIDE):
        steps[t] = 1 + (steps[t - 1] if t else 0)
    return steps


def front_foot(observations: Floats) -> Floats:
    """Returns the height of HalfCheetah's front foot in metres, (T,)."""
    return heights("HalfCheetah-v5", ("ffoot",), observations[:, :8])[:, 0]


def between_feet(observations: Floats) -> Floats:
    """Returns how much higher one foot of Walker is than the other, in metres, (T,)."""
    right, left = heights("Walker2d-v5", ("foot", "foot_left"), observations[:, :8]).T
    return np.abs(right - left)


def gap(observations: Floats) -> Floats:
    """Returns the distance from Reacher's fingertip to its target in metres, (T,)."""
    return np.linalg.norm(observations[:, REACHER_GAP], axis=1)


def heights(gymnasium_id: str, parts: tuple[str, ...], positions: Floats) -> Floats:
    """Returns the heights of parts of a planar body, (T, parts), from all joint positions but the first."""
    import mujoco

    body, data = _simulation(gymnasium_id)
    found = np.zeros((len(positions), len(parts)))
    for t, position in enumerate(positions):
        data.qpos[1:] = position
        mujoco.mj_kinematics(body.model, data)
        found[t] = [data.body(part).xpos[2] for part in parts]
    return found


@cache
def _simulation(gymnasium_id: str) -> Any:
    """Returns a body and a simulation of it, which can be put into any pose."""
    import mujoco

    body = make_body(gymnasium_id)
    return body, mujoco.MjData(body.model)


def count_backflips(angles: Floats, torso_heights: Floats) -> int:
    """Returns how many whole turns backwards of an episode (T,) were flips: turns in the air that ended on the foot.

    In the air means that the torso of an upside-down body is too high for the head to reach the ground. On the foot
    means upright to half a radian, and not lying.

    Args:
        angles: of the torso in radians forward; whole turns add up.
        torso_heights: in metres.
    """
    flips, rolled = 0, False
    stood = round(float(angles[0]) / (2 * np.pi))  # whole turns forward when it last stood on its foot
    for angle, height in zip(angles, torso_heights, strict=True):
        rolled |= bool(np.cos(angle) < 0 and height < TURNING)
        turns = round(float(angle) / (2 * np.pi))
        if height > STANDING and abs(angle - 2 * np.pi * turns) < 0.5:
            flips += 0 if rolled else max(0, stood - turns)
            stood, rolled = turns, False
    return flips


def share_on_one_leg(observations: Floats) -> float:
    """Returns the share of an episode (T, D) in which HalfCheetah ran on one leg.

    It runs at 1 m/s or more, its front foot is 30 cm up or more, and it is not on its back.
    """
    runs = (observations[:, CHEETAH_VELOCITY] > 1) & (np.cos(observations[:, ANGLE]) > ON_ITS_BACK)
    return float((runs & (front_foot(observations) > 0.3)).mean())


def share_in_ballet(observations: Floats, lean: float = 25) -> float:
    """Returns the share of an episode (T, D) in which Walker stood upright, one foot 30 cm or more above the other.

    Args:
        lean: the most degrees from upright.
    """
    upright = (np.cos(observations[:, ANGLE]) > np.cos(np.radians(lean))) & (observations[:, HEIGHT] > 1)
    return float((upright & (between_feet(observations) > 0.3)).mean())


def mean_gap(observations: Floats) -> float:
    """Returns the mean distance from Reacher's fingertip to its target in an episode (T, D), in metres."""
    return float(gap(observations).mean())


def share_alongside(observations: np.ndarray) -> float:
    """Returns the share of an episode (T, 4, 84, 84) of Enduro in which a car had been alongside for 10 steps."""
    return float((steps_alongside(alongside(observations[:, -1])) > 10).mean())
