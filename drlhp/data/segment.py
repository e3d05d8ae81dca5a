"""Trajectory segments, in memory and compressed."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from drlhp.data.views import STATES_MAGIC, decompress, encode_frames, shown
from drlhp.errors import DamagedError


@dataclass(frozen=True, eq=False)
class Segment:
    """A trajectory segment of T agent steps.

    Shapes: observations (T + stack - 1, H, W) uint8, the unique frames once, or with stack 1 (T, C, H, W) uint8
    pictures that share no frame, or (T, D) float32 vectors; actions (T,) int64 or (T, A) float32; rewards (T,)
    float32. Raises ValueError on anything else.
    The arrays must not be changed afterwards: `id` depends on them.
    """

    env_id: str
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray  # true rewards: only synthetic teachers and the reports may read them
    stack: int
    policy_step: int  # agent steps taken when it was cut
    seed: int
    fps: float  # real-time agent steps per second, for showing it
    view: bytes | None = None  # for people: a colour clip, or the states that one can be drawn from; see encode_view
    given_id: str | None = None  # its id, if that is not the one of all three arrays (`content_id`)

    def __post_init__(self) -> None:
        steps = len(self.rewards)
        forms: dict[str, list[tuple[type, int, int]]] = {
            "observations": [
                (np.uint8, 3, steps + self.stack - 1),
                (np.uint8, 4, steps),
                (np.float32, 2, steps),
            ],
            "actions": [(np.int64, 1, steps), (np.float32, 2, steps)],
            "rewards": [(np.float32, 1, steps)],
        }
        for name, allowed in forms.items():
            array = getattr(self, name)
            if (array.dtype, array.ndim, len(array)) not in allowed:
                expected = " or ".join(f"{np.dtype(d)} with {n} axes, length {k}" for d, n, k in allowed)
                raise ValueError(f"{name}: expected {expected}; received {array.dtype} {array.shape}")
        if steps < 1 or self.stack < 1 or (self.stack > 1 and self.observations.ndim != 3):
            raise ValueError(f"expected steps, and stack 1 unless they are frames; received {steps=}, {self.stack=}")

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def is_pixels(self) -> bool:
        """Returns whether the observations are frames rather than vectors."""
        return self.observations.dtype == np.uint8

    def can_have_id(self, segment_id: str) -> bool:
        """Returns whether an id is that of these arrays, with or without the true rewards."""
        return segment_id in (self.content_id(), self.content_id(of_rewards=False))

    @cached_property
    def id(self) -> str:
        """Returns the content id, the same in every process."""
        return self.given_id or self.content_id()

    def content_id(self, *, of_rewards: bool = True) -> str:
        """Returns sha256 (hex) over env id, observations, actions, and perhaps the true rewards.

        Ids decide by chance which labels are held out, and which each member learns from. So if people answer, or a
        function that is not the true reward, ids are without the rewards: these then change nothing at all.
        """
        digest = hashlib.sha256(self.env_id.encode() + b"\n")
        for array in (self.observations, self.actions, *([self.rewards] if of_rewards else [])):
            digest.update(f"{array.dtype.str}{array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def stacked(self) -> np.ndarray:
        """Returns the networks' input: a read-only view (T, stack or C, H, W) uint8, or (T, D) float32."""
        if self.observations.ndim != 3:
            return self.observations
        windows = np.lib.stride_tricks.sliding_window_view(self.observations, self.stack, axis=0)
        return np.moveaxis(windows, -1, 1)

    def crop(self, start: int, steps: int) -> Segment:
        """Returns the `steps` steps from `start` on: views of this segment's arrays, no copies, and no view clip."""
        end = start + steps
        return replace(
            self,
            observations=self.observations[start : end + self.stack - 1],
            actions=self.actions[start:end],
            rewards=self.rewards[start:end],
            view=None,
            given_id=None,
        )

    def frames(self) -> np.ndarray:
        """Returns what people see, (T, H, W, 3) uint8: the view clip, or else the newest grey frame of each step.

        Raises ValueError for a vector segment without a view clip, PrefDBError for a damaged clip, and what the
        drawer raises if a clip must be drawn.
        """
        if self.view is not None:
            return shown(self.view, self.env_id)
        if not self.is_pixels:
            raise ValueError(f"a segment of {self.env_id} has no frames to show: record it with a view clip")
        return np.repeat(self.stacked()[:, -1, :, :, None], 3, axis=3)

    @property
    def is_drawn(self) -> bool:
        """Returns whether the clip is stored, and need not be drawn from states."""
        return self.view is None or not self.view.startswith(STATES_MAGIC)

    def drawn(self) -> Segment:
        """Returns the same segment with its clip drawn; raises what the drawer does."""
        return self if self.is_drawn else replace(self, view=encode_frames(self.frames()))

    @staticmethod
    def unique_frames(stacked: np.ndarray) -> np.ndarray:
        """Undoes frame stacking: (T, stack, H, W) -> (T + stack - 1, H, W)."""
        return np.concatenate([stacked[0], stacked[1:, -1]])


@dataclass(frozen=True, slots=True)
class CompressedSegment:
    """A stored segment kept compressed in memory, without its view clip."""

    env_id: str
    stack: int
    policy_step: int
    seed: int
    fps: float
    layout: str
    arrays: bytes

    def decode(self, view: bytes | None = None) -> Segment:
        """Returns the segment, with writable arrays of its own. Raises PrefDBError if the bytes are damaged."""
        try:
            names = json.loads(self.layout)
            layout = {name: (np.dtype(dtype), tuple(shape)) for name, (dtype, shape) in names.items()}
            raw = decompress(self.arrays, sum(d.itemsize * math.prod(shape) for d, shape in layout.values()))
            arrays, offset = {}, 0
            for name, (dtype, shape) in layout.items():
                arrays[name] = np.frombuffer(raw, dtype, math.prod(shape), offset).reshape(shape)
                offset += arrays[name].nbytes
            rest = (self.stack, self.policy_step, self.seed, self.fps, view)
            return Segment(self.env_id, arrays["observations"], arrays["actions"], arrays["rewards"], *rest)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedError("a stored segment is damaged: restore prefs.db from a copy") from error
