"""Decides how the networks read the observations of a Gymnasium environment: as its screen, or as a vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Tuple
from gymnasium.spaces.utils import flatdim, flatten
from numpy.typing import NDArray

from drlhp.errors import SpaceError
from drlhp.spaces import SMALLEST_PICTURE, Layout, layout_of

from .registry import EnvError

MAX_NUMBERS = 8192  # of a vector that was not one: so many weigh as much as a stack of pictures
FIX_SPACE = "fix its observation_space, or what reset() and step() return"
INSTEAD = "register a version wrapped in gymnasium.wrappers.TransformObservation that returns"


@dataclass(frozen=True)
class Reading:
    """One way to read the observations of a space."""

    env_id: str
    space: gymnasium.Space[Any]  # of what is read: the whole observation, or the part that a key names
    key: str | None
    kind: Literal["pixels", "vector"]
    size: int  # numbers of a vector
    layout: Layout | None = None  # of pictures, and of codes

    def picture(self, observation: Any) -> NDArray[np.uint8]:
        """Returns the screen, (H, W) or (H, W, 3), as bytes. Raises EnvError if it is not of the space."""
        assert self.layout is not None
        channels = self._read(self.layout.brightness, observation)
        return channels[0] if len(channels) == 1 else np.moveaxis(channels, 0, -1)

    def vector(self, observation: Any) -> NDArray[np.float32]:
        """Returns the numbers of an observation, (D,). Raises EnvError if it is not of the space."""
        if self.layout is not None:
            return (self._read(self.layout.planes, observation).reshape(-1) > 0).astype(np.float32)
        if isinstance(self.space, Box):
            return self._array(observation).astype(np.float32).reshape(-1)
        values = np.asarray(flatten(self.space, self._part(observation)), np.float32)
        if values.size != self.size:
            raise EnvError(f"an observation of {self.env_id} has {values.size} values, not {self.size}: {FIX_SPACE}.")
        return values

    def _part(self, observation: Any) -> Any:
        return observation if self.key is None else observation[self.key]

    def _array(self, observation: Any) -> NDArray[Any]:
        """Returns what is read as an array of the space's shape."""
        values = np.asarray(self._part(observation))
        if values.shape != self.space.shape:
            raise EnvError(
                f"an observation of {self.env_id} has shape {values.shape}, not {self.space.shape}: {FIX_SPACE}."
            )
        return values

    def _read(self, how: Any, observation: Any) -> NDArray[np.uint8]:
        try:
            planes: NDArray[np.uint8] = how(self._array(observation)[None])[0]
        except SpaceError as error:
            raise EnvError(f"an observation of {self.env_id} {error}: {FIX_SPACE}.") from error
        return planes


def reading_of(env_id: str, space: gymnasium.Space[Any], key: str | None) -> Reading:
    """Returns how observations of a space are read, or of the part of a Dict that `key` names.

    Raises EnvError if they are neither a screen nor a vector of a fixed number of values.
    """
    if key is not None:
        if not isinstance(space, Dict):
            raise EnvError(f"{env_id} observes {shown(space)}, which has no named parts: leave out --observation_key.")
        if key not in space.spaces:
            raise EnvError(f"{env_id} observes no {key!r}: give --observation_key one of {named(space.spaces)}.")
        space = space[key]
    if isinstance(space, Box):
        return _reading_of_box(env_id, space, key)
    if screens := [name for name, part in _parts(space) if _is_screen(part)]:
        raise EnvError(
            f"{env_id} observes pictures beside other things: choose what the networks read with --observation_key, "
            f"for example --observation_key {screens[0]}."
            if isinstance(space, Dict) and key is None
            else f"{env_id} observes pictures within {shown(space)}: {INSTEAD} one of them."
        )
    try:
        size = flatdim(space)
    except (ValueError, NotImplementedError) as error:  # texts, sequences and graphs
        raise _unreadable(env_id, space, key) from error
    if not 0 < size <= MAX_NUMBERS:
        raise EnvError(f"{env_id} observes {size} numbers in {shown(space)}: {INSTEAD} a vector of 1 to {MAX_NUMBERS}.")
    return Reading(env_id, space, key, "vector", size)


def _reading_of_box(env_id: str, box: Box, key: str | None) -> Reading:
    size = int(np.prod(box.shape))
    if size == 0:
        raise EnvError(f"the observations of {env_id} are empty: {INSTEAD} a vector.")
    if len(box.shape) <= 1:
        return Reading(env_id, box, key, "vector", size)
    if (layout := _layout(box)) is not None and _is_screen(box):
        return Reading(env_id, box, key, "pixels", size, layout)
    codes = layout if layout is not None and layout.n_codes > 2 else None
    if codes is not None:
        size = codes.n_planes * codes.height * codes.width
    if size > MAX_NUMBERS:
        raise EnvError(
            f"{env_id} observes {shown(box)}, but only vectors and pictures of (H, W), (H, W, 1) or (H, W, 3) can be "
            f"read, and matrices of up to {MAX_NUMBERS} numbers: {INSTEAD} one of these."
        )
    return Reading(env_id, box, key, "vector", size, codes)


def _layout(box: Box) -> Layout | None:
    """Returns where the planes of a picture lie in a box, or None if it is none."""
    try:
        return layout_of(box)
    except SpaceError:
        return None


def _is_screen(space: gymnasium.Space[Any]) -> bool:
    """Returns whether observations are one gray or coloured picture, or one black and white plane.

    Colours that each stand for something are no screen: several could have the same gray.
    """
    if not isinstance(space, Box) or len(space.shape) < 2 or (layout := _layout(space)) is None:
        return False
    channels = (1,) if layout.names_things else (1, 3)
    is_large = min(layout.height, layout.width) >= SMALLEST_PICTURE
    return layout.n_stacked == 1 and layout.channels in channels and layout.n_codes <= 2 and is_large


def _parts(space: gymnasium.Space[Any]) -> list[tuple[str, gymnasium.Space[Any]]]:
    """Returns what a Dict or Tuple holds, however deep, each with the name of the outermost part."""
    if isinstance(space, Dict):
        outer = list(space.items())
    elif isinstance(space, Tuple):
        outer = [(str(i), part) for i, part in enumerate(space.spaces)]
    else:
        return [("", space)]
    return [(str(name), inner) for name, part in outer for _, inner in _parts(part)]


def _unreadable(env_id: str, space: gymnasium.Space[Any], key: str | None) -> EnvError:
    """Returns the error for a space without a fixed number of values, which names the parts that have one."""
    if isinstance(space, Dict) and key is None:
        readable = [name for name, part in space.items() if _can_be_read(env_id, part)]
        if readable:
            return EnvError(
                f"{env_id} observes things of no fixed size ({named(set(space) - set(readable))}): choose "
                f"what the networks read with --observation_key ({named(readable)})."
            )
    what = f"{env_id} observes {shown(space)}, which has no fixed number of values"
    return EnvError(f"{what}: {INSTEAD} a vector or a picture.")


def _can_be_read(env_id: str, space: gymnasium.Space[Any]) -> bool:
    try:
        reading_of(env_id, space, None)
    except EnvError:
        return False
    return True


def shown(space: gymnasium.Space[Any]) -> str:
    """Returns a space as messages show it: NumPy aligns its bounds, over several lines if there are many."""
    return " ".join(str(space).split())


def named(names: Any) -> str:
    """Returns the names of a Dict's parts in a row."""
    return ", ".join(map(str, names))
