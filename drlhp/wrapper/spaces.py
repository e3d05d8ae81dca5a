"""Encodes observations as pictures or vectors, and actions, for the reward predictor."""

from __future__ import annotations

import colorsys
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatdim, flatten
from gymnasium.vector.utils import iterate
from torch.nn import functional as F

from drlhp.errors import SpaceError, reason_of
from drlhp.spaces import Layout, layout_of
from drlhp.wrapper.intake import as_numpy, numbers, without_tensors

PICTURE = 84  # side of the pictures that the reward networks read, in pixels
MAX_SHOWN = 960  # pixels; people see no larger side, so that two pictures fit beside each other on a screen
Transform = Callable[[Any], Any]


class ObservationEncoder:
    """Encodes an environment's observations for the reward predictor.

    Pictures (kind "pixels") become uint8 (N, C, 84, 84): all channels of all stacked frames, those of the newest frame
    last. Everything else becomes float32 (N, D) (kind "vector"). `drlhp.spaces` says what is a picture.

    Args:
        space: the observation space of one environment.
        transform: makes one picture or one vector of an observation, for spaces that hold several.
        channels: channels of one picture; if stacked pictures have so many, people see the newest in its colours.
        gray: replace the colours by their mean, for a network that reads one plane.

    Raises SpaceError if the observations are neither pictures nor vectors.
    """

    def __init__(
        self,
        space: gymnasium.Space[Any],
        transform: Transform | None = None,
        *,
        channels: int = 3,
        gray: bool = False,
    ) -> None:
        self.space, self.transform, self.channels = space, transform, channels
        self.kind: Literal["pixels", "vector"]
        self.shape: tuple[int, ...]  # of one encoded observation
        self._form = space  # the space of transformed observations
        if transform is not None:
            self._form = self._transformed_space(transform)
        self.takes_arrays = transform is None and isinstance(space, Box)
        self._layout = self._layout_of(self._form, gray=gray)
        if self._layout is not None:
            planes = self._layout.n_planes
            self._is_gray = gray and channels > 1 and planes % channels == 0 and not self._layout.names_things
            self.kind, self.shape = "pixels", (planes // channels if self._is_gray else planes, PICTURE, PICTURE)
        elif isinstance(self._form, (Box, Discrete, MultiBinary, MultiDiscrete)):
            self.kind, self.shape = "vector", (flatdim(self._form),)
            if self.shape == (0,):
                raise SpaceError(f"the observations of {space} are empty: the reward predictor has nothing to read.")
        else:
            raise SpaceError(
                f"the observations of {space} hold neither one picture nor one vector: pass obs_transform_func, a "
                "function that makes a picture or a vector of an observation."
            )

    def encode(self, observations: np.ndarray | Sequence[Any]) -> np.ndarray:
        """Returns N observations encoded, (N, *shape); perhaps in the same memory.

        Args:
            observations: an array of them if `takes_arrays`, else a sequence.

        Raises SpaceError if one is not of the space, or holds NaN or infinity.
        """
        return self._encoded(self.checked(observations))

    def kept(self, checked: np.ndarray) -> np.ndarray:
        """Encodes what `checked` returned into new memory, because an environment may reuse the old."""
        encoded = self._encoded(checked)
        return encoded.copy() if np.may_share_memory(encoded, checked) else encoded

    def _encoded(self, checked: np.ndarray) -> np.ndarray:
        if self._layout is None:
            return checked.reshape(len(checked), -1)
        return self._resized(self._planes(checked, self._layout.planes))

    def checked(self, observations: np.ndarray | Sequence[Any]) -> np.ndarray:
        """Returns N observations transformed but not yet encoded, (N, ...): vectors float32, pictures unchanged.

        Raises SpaceError if one is not of the space, or holds NaN or infinity.
        """
        if self.transform is not None:
            observations = [self.transform(observation) for observation in observations]
        try:
            if self.transform is None and not self.takes_arrays:
                observations = [flatten(self._form, without_tensors(observation)) for observation in observations]
            values = numbers(observations)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise SpaceError(
                f"an observation is not of {self.space} ({reason_of(error)}): fix the environment, or "
                "obs_transform_func."
            ) from error
        of_form = self.takes_arrays or self.transform is not None
        if values.shape[1:] != (self._form.shape if of_form else self.shape):
            raise self._other_shape(values)
        if self.kind == "vector":
            with np.errstate(over="ignore"):  # values too large for float32 become infinite
                values = values.astype(np.float32, copy=False)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise SpaceError(f"an observation of {self.space} holds NaN or infinity: fix the environment.")
        return values

    def view(self, observation: Any, zoom: int) -> np.ndarray:
        """Returns one observation of kind "pixels" for people, magnified up to MAX_SHOWN: (H, W, 3) uint8."""
        layout, n = self._layout, self.channels
        assert layout is not None
        zoom = max(1, min(zoom, MAX_SHOWN // max(layout.height, layout.width)))
        values = self.checked(observation[None] if self.takes_arrays else [observation])
        planes = self._planes(values, layout.brightness)[0]
        if layout.names_things and layout.channels not in (1, n):
            shown = in_colours(planes[-layout.channels :])
        elif n in (3, 4) and len(planes) % n == 0:  # a fourth channel is depth or opacity
            shown = np.moveaxis(planes[-n:][:3], 0, -1)
        else:
            shown = np.repeat(planes[-1][..., None], 3, axis=-1)
        return shown.repeat(zoom, axis=0).repeat(zoom, axis=1)

    def _transformed_space(self, transform: Transform) -> Box:
        """Returns the space of transformed observations, by the example of one."""
        example = copy.deepcopy(self.space).sample()
        made = transform(example)
        for part, value in parts_of(self.space, example):
            if made is value and isinstance(part, Box) and np.dtype(part.dtype).kind in "biu":
                return part  # its bounds say what its integers are
        sample = as_numpy(made)
        if sample.dtype.kind not in "biuf":
            raise SpaceError(
                f"obs_transform_func made {type(sample).__name__} of {sample.dtype} from an observation of "
                f"{self.space}: let it return an array of numbers."
            )
        if sample.dtype == np.uint8:
            return Box(0, 255, sample.shape, np.uint8)
        bound = math.inf if sample.ndim < 2 else 1.0
        return Box(-bound if sample.ndim < 2 else 0.0, bound, sample.shape, np.float32)

    def _layout_of(self, space: gymnasium.Space[Any], *, gray: bool) -> Layout | None:
        """Returns how pictures lie in observations of the space; None if these are no pictures."""
        if not isinstance(space, Box) or len(space.shape) < 2:
            return None
        try:
            layout = layout_of(space)
        except SpaceError as error:
            raise SpaceError(
                f"the observations of {self.space} {error}: pass an obs_transform_func that returns pictures (H, W), "
                "(H, W, C) or (C, H, W) of uint8 or of 0 to 1, or flattens them to a vector."
            ) from error
        if gray and layout is not None and layout.names_things and layout.n_planes > 1:
            raise SpaceError(
                f"the observations of {self.space} have {layout.n_planes} planes, of which feature_points reads one: "
                "choose reward_predictor_network='cnn'."
            )
        return layout

    def _planes(self, values: np.ndarray, read: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Returns checked pictures (N, ...) as the layout reads them, (N, C, H, W) uint8."""
        try:
            return read(values)
        except SpaceError as error:
            raise SpaceError(
                f"a picture of {self.space} {error}: pass an obs_transform_func that scales it to 0 to 1."
            ) from error

    def _resized(self, planes: np.ndarray) -> np.ndarray:
        """Returns pictures (N, planes, H, W) uint8 as (N, C, 84, 84); each new pixel is the mean of those under it."""
        if self._is_gray:
            by_colour = planes.reshape(len(planes), -1, self.channels, *planes.shape[2:])
            planes = np.rint(by_colour.mean(2, dtype=np.float32)).astype(np.uint8)
        if planes.shape[2:] == (PICTURE, PICTURE):
            return planes
        pixels = torch.from_numpy(np.ascontiguousarray(planes)).float()
        return F.adaptive_avg_pool2d(pixels, PICTURE).round().byte().numpy()

    def _other_shape(self, values: np.ndarray) -> SpaceError:
        """Returns the error for observations of another shape than the space's."""
        return SpaceError(
            f"an observation of shape {values.shape[1:]} came from an environment of {self.space}: fix its "
            "observation_space, or obs_transform_func."
        )


def parts_of(space: gymnasium.Space[Any], value: Any) -> Iterator[tuple[gymnasium.Space[Any], Any]]:
    """Yields what a Dict or Tuple holds, however deep, with its part of the value; else the space itself."""
    if isinstance(space, (Dict, Tuple)):
        for key, part in space.items() if isinstance(space, Dict) else enumerate(space.spaces):
            yield from parts_of(part, value[key])
    else:
        yield space, value


def in_colours(planes: np.ndarray) -> np.ndarray:
    """Returns black and white planes (C, H, W) as one picture (H, W, 3), each plane in a colour of its own."""
    hues = np.array([colorsys.hsv_to_rgb(i / len(planes), 1, 1) for i in range(len(planes))])
    return np.rint((planes[..., None] * hues[:, None, None]).max(0)).astype(np.uint8)


def may_be_of(space: gymnasium.Space[Any], actions: np.ndarray | Sequence[Any]) -> bool:
    """Returns whether the space has each choice in these actions.

    Gymnasium flattens other choices without an error, as if they were choices of something else.
    """
    if isinstance(space, Dict):
        return all(may_be_of(part, [action[name] for action in actions]) for name, part in space.items())
    if isinstance(space, Tuple):
        return all(may_be_of(part, [action[i] for action in actions]) for i, part in enumerate(space.spaces))
    first: Any
    n: Any
    if isinstance(space, MultiBinary):
        first, n = 0, 2
    elif isinstance(space, Discrete):
        first, n = space.start, space.n
    elif isinstance(space, MultiDiscrete):
        first, n = space.start, space.nvec
    else:
        return True
    choices = np.asarray(actions, np.int64).reshape(len(actions), *(space.shape or ())) - first
    return bool((choices >= 0).all() and (choices < n).all())


class ActionEncoder:
    """Encodes actions for the reward predictor: int64 (N,) if they are Discrete, else float32 (N, A).

    Raises SpaceError for a space whose actions have no fixed number of values.
    """

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self.space = space
        self.n_actions = int(space.n) if isinstance(space, Discrete) else None
        self.takes_arrays = isinstance(space, (Box, Discrete))
        try:
            self.action_dim = None if self.n_actions else flatdim(space)
        except (ValueError, NotImplementedError) as error:
            raise SpaceError(
                f"the actions of {space} have no fixed number of values: wrap the environment in "
                "gymnasium.wrappers.TransformAction with a space of fixed size."
            ) from error

    def encode(self, actions: np.ndarray | Sequence[Any]) -> np.ndarray:
        """Returns N actions encoded, (N,) or (N, A), in new memory.

        Args:
            actions: an array of them if `takes_arrays`, else a sequence.

        Raises SpaceError if the space cannot have one, or if one holds NaN or infinity. Values beyond the bounds of a
        Box are left to the environment.
        """
        encoded: np.ndarray
        try:
            if isinstance(self.space, Discrete):
                encoded = as_numpy(actions).astype(np.int64).reshape(-1) - int(self.space.start)
                belong = bool(((encoded >= 0) & (encoded < self.space.n)).all())
            else:
                actions = as_numpy(actions) if self.takes_arrays else [without_tensors(action) for action in actions]
                each = actions if self.takes_arrays else [flatten(self.space, action) for action in actions]
                encoded = np.array(each, np.float32).reshape(len(actions), -1)
                belong = encoded.shape[1] == self.action_dim and may_be_of(self.space, actions)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise self._other_action(actions) from error
        if not belong:
            raise self._other_action(actions)
        if not self.n_actions and not np.isfinite(encoded).all():
            raise SpaceError(f"an action of {self.space} holds NaN or infinity: fix the policy.")
        return encoded

    def _other_action(self, actions: Any) -> SpaceError:
        """Returns the error for actions that the space does not have."""
        shown = " ".join(str(actions).split())
        return SpaceError(f"among the actions {shown} is one that {self.space} does not have: fix the policy.")

    def may_have_made(self, encoded: np.ndarray) -> bool:
        """Returns whether encoded actions may come from this space."""
        if self.n_actions is None:
            return encoded.shape[1:] == (self.action_dim,)
        return encoded.ndim == 1 and bool((encoded < self.n_actions).all())


def one_by_one(
    encoder: ObservationEncoder | ActionEncoder, batched: gymnasium.Space[Any], values: Any
) -> np.ndarray | Sequence[Any]:
    """Returns a batch of observations or actions, of the `batched` space, in the form that the encoder takes."""
    return as_numpy(values) if encoder.takes_arrays else list(iterate(batched, values))
