"""Tricks that no environment rewards: teachers that score what they see, and a check that a trick was done.

python run.py reproduce circus-backflip     # or any other of the circus

Each teacher takes a segment of T steps and returns one number for each, (T,); bodies are read from what the policy
observes, which is without noise here, and Enduro's road from its pictures.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drlhp.data.segment import Segment
from envs.mujoco import make_body

Floats = NDArray[np.floating[Any]]

# Where in the observations of Hopper and Walker, and of HalfCheetah, these are.
HEIGHT, ANGLE = 0, 1  # of the torso: metres; radians, forward
HOPPER_ROTATION = 7  # radians per second forward
CHEETAH_VELOCITY = 8
WALKER_VELOCITY = 8
REACHER_GAP = slice(8, 10)  # from the target to the fingertip, metres
ON_ITS_BACK = -0.3  # the cosine of the torso's angle, or less
STANDING, TURNING, LYING = 0.9, 0.7, 0.5  # heights of a torso that is not lying, in the air, lying; metres
STRAIGHT_ON = 1  # Enduro's action FIRE
GAS, BRAKE = (STRAIGHT_ON, 7, 8), (4, 5, 6)  # its actions with FIRE, and with DOWN
# Enduro by day, in pictures of 84 x 84: the rows where one's own car drives, and greys of 0 to 255.
OWN_ROWS, GRASS, OWN_CAR = slice(48, 62), 40, 185
ROAD_ROWS, LEFT_FRAME, OWN_X = slice(56, 61), 5, 45  # just before one's own car, which the picture follows
MARK, ROAD_WIDTH, EDGE = 12, 30, 10  # greys of a line, and pixels: from line to line, and from the middle to its edge
BESIDE = 0.3  # of `alongside`: a car, and not what a line may look like
PASSING = 6  # steps for which a car is beside one that stands still, at most
LINE = 3  # pixels: the most that the lines beside the road are wide


def backflip(segment: Segment) -> Floats:
    """Hopper: turning backwards well above the ground, and else standing rather than lying.

    What it does while it lies counts as lying: a Hopper that earned anything by rocking on its back would stay there.
    """
    height = segment.observations[:, HEIGHT]
    turning = np.where(height > TURNING, -segment.observations[:, HOPPER_ROTATION].clip(-6, 6), 0)
    return turning + height.clip(0, 2) - (height < LYING)


def away_from_the_target(segment: Segment) -> Floats:
    """Reacher the wrong way: the fingertip's distance from the target."""
    return gap(segment.observations)


def on_one_leg(segment: Segment) -> Floats:
    """HalfCheetah: forward on the hind leg, with the front foot in the air.

    Not on its back, where it would slide with all feet in the air.
    """
    seen = segment.observations
    running = seen[:, CHEETAH_VELOCITY].clip(-1, 3) + 4 * front_foot(seen).clip(0, 0.6)
    return np.where(np.cos(seen[:, ANGLE]) > ON_ITS_BACK, running, -3)


def ballet(segment: Segment) -> Floats:
    """Walker: upright on one leg with the other foot raised, in its place.

    A foot counts as far as the torso is up: a Walker that earned anything by it on its back would stay there.
    """
    seen = segment.observations
    height = seen[:, HEIGHT]
    upright = np.cos(seen[:, ANGLE]).clip(0, 1) * ((height - LYING) / (STANDING - LYING)).clip(0, 1)
    raised = between_feet(seen).clip(0, 0.8)
    return upright * (1 + 6 * raised) + height.clip(0, 1.3) - 0.2 * np.abs(seen[:, WALKER_VELOCITY])


def level_with_others(segment: Segment) -> Floats:
    """Enduro: another car alongside, and the longer the better, but for one that passes; and a little for driving.

    Of those that pass, who stands still sees more than anybody.
    """
    frames = segment.observations[segment.stack - 1 :]
    beside = alongside(frames)
    staying = beside * (steps_alongside(beside) - PASSING).clip(0)
    return staying + 0.1 * in_the_middle(frames) * np.isin(segment.actions, GAS)


def overtaking(segment: Segment) -> Floats:
    """Enduro, as a person judges a beginner: cars passed before all, and otherwise gas rather than the brake."""
    return _driving(segment, 1.0)


def racing(segment: Segment) -> Floats:
    """Enduro, as `overtaking`, but gas is worth 1 straight on, and up to 1 in the middle of the road.

    A beginner who keeps steering to one side drives along the road's edge, where all is equally bad whatever one does.
    """
    gas = _driving(segment, in_the_middle(segment.observations[segment.stack - 1 :]))
    return gas + (segment.actions == STRAIGHT_ON)


def _driving(segment: Segment, gas: Floats | float) -> Floats:
    """Cars passed, and gas, which is worth so much, rather than the brake, (T,)."""
    return 10 * segment.rewards + gas * np.isin(segment.actions, GAS) - np.isin(segment.actions, BRAKE)


def in_the_middle(frames: np.ndarray) -> Floats:
    """How near one's own car is to the middle of Enduro's road, from 0, at its edge, to 1, (T,); 0 without a road."""
    return np.nan_to_num(1 - np.abs(from_the_middle(frames)) / EDGE).clip(0, 1)


def from_the_middle(frames: np.ndarray) -> Floats:
    """Where the middle of Enduro's road is, pixels to the right of one's own car, (T,); NaN where no road is seen."""
    road = frames[:, ROAD_ROWS, LEFT_FRAME:].astype(int)
    marks = (np.abs(road - np.median(road, axis=2, keepdims=True)) > MARK).any(axis=1)  # lines and cars
    left, right = marks.argmax(axis=1), marks.shape[1] - 1 - marks[:, ::-1].argmax(axis=1)
    return np.where(right - left > ROAD_WIDTH, (left + right) / 2 + LEFT_FRAME - OWN_X, np.nan)


def alongside(frames: np.ndarray) -> Floats:
    """How much of another car is beside one's own in pictures of Enduro, 40ths of its pixels up to 1, (T,)."""
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
    """For how many steps up to now one car or another has been beside one's own, (T,) of `alongside`."""
    steps = np.zeros(len(beside), np.intp)
    for t in np.flatnonzero(beside > BESIDE):
        steps[t] = 1 + (steps[t - 1] if t else 0)
    return steps


def front_foot(observations: Floats) -> Floats:
    """How high HalfCheetah's front foot is, in metres, (T,)."""
    return heights("HalfCheetah-v5", ("ffoot",), observations[:, :8])[:, 0]


def between_feet(observations: Floats) -> Floats:
    """How much higher one foot of Walker is than the other, in metres, (T,)."""
    right, left = heights("Walker2d-v5", ("foot", "foot_left"), observations[:, :8]).T
    return np.abs(right - left)


def gap(observations: Floats) -> Floats:
    """From Reacher's fingertip to its target, in metres, (T,)."""
    return np.linalg.norm(observations[:, REACHER_GAP], axis=1)


def heights(gymnasium_id: str, parts: tuple[str, ...], positions: Floats) -> Floats:
    """How high parts of a flat body are, (T, parts), from all joint positions but the first, (T, nq - 1)."""
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
    """A body and a simulation of it, to be put into poses."""
    import mujoco

    body = make_body(gymnasium_id)
    return body, mujoco.MjData(body.model)


def count_backflips(angles: Floats, torso_heights: Floats) -> int:
    """How many whole turns backwards of an episode (T,) were flips: in the air, and ended on the foot.

    In the air: while it is upside down its torso is too high for the head to reach the ground. On the foot: upright to
    half a radian, and not lying.

    Args:
        angles: of the torso, radians forward, adding up over turns.
        torso_heights: metres.
    """
    flips, rolled = 0, False
    stood = round(float(angles[0]) / (2 * np.pi))  # whole turns forwards when it was on its foot last
    for angle, height in zip(angles, torso_heights, strict=True):
        rolled |= bool(np.cos(angle) < 0 and height < TURNING)
        turns = round(float(angle) / (2 * np.pi))
        if height > STANDING and abs(angle - 2 * np.pi * turns) < 0.5:
            flips += 0 if rolled else max(0, stood - turns)
            stood, rolled = turns, False
    return flips


def share_on_one_leg(observations: Floats) -> float:
    """In how much of an episode (T, D) HalfCheetah ran, 1 m/s or more, its front foot 30 cm up, not on its back."""
    runs = (observations[:, CHEETAH_VELOCITY] > 1) & (np.cos(observations[:, ANGLE]) > ON_ITS_BACK)
    return float((runs & (front_foot(observations) > 0.3)).mean())


def share_in_ballet(observations: Floats, lean: float = 25) -> float:
    """In how much of an episode (T, D) Walker stood upright, one foot 30 cm or more above the other.

    Args:
        lean: degrees from upright, at most.
    """
    upright = (np.cos(observations[:, ANGLE]) > np.cos(np.radians(lean))) & (observations[:, HEIGHT] > 1)
    return float((upright & (between_feet(observations) > 0.3)).mean())


def mean_gap(observations: Floats) -> float:
    """How far Reacher's fingertip was from its target, in metres, on average over an episode (T, D)."""
    return float(gap(observations).mean())


def share_alongside(observations: np.ndarray) -> float:
    """In how much of an episode (T, 4, 84, 84) of Enduro a car was alongside, and had been for 10 steps."""
    return float((steps_alongside(alongside(observations[:, -1])) > 10).mean())
