"""Pictures for people: what the environments render, or else what they observe."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from drlhp.errors import UserError, reason_of
from drlhp.wrapper.spaces import ObservationEncoder

SMALL_WORLD = "<mujoco><worldbody><geom size='1'/></worldbody></mujoco>"
N_WATCHED = 2  # environments whose pictures are kept for people


def check_mujoco_draws(env_id: str) -> None:
    """Draws a ball as Gymnasium's MuJoCo environments draw theirs; raises UserError if nothing can be drawn."""
    import mujoco
    from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer

    world = mujoco.MjModel.from_xml_string(SMALL_WORLD)
    try:
        with warnings.catch_warnings():  # GLFW's warnings repeat the error below
            warnings.simplefilter("ignore")
            viewer = OffScreenViewer(world, mujoco.MjData(world), 64, 64)
            viewer.render("rgb_array")
            viewer.close()
    except Exception as error:  # a renderer may raise anything
        raise cannot_draw(env_id, error) from error


def cannot_draw(env_id: str, error: Exception) -> UserError:
    """Returns the error for environments that people cannot watch."""
    return UserError(
        f"{env_id} cannot be drawn for people ({reason_of(error)}): fix its render(), or if MuJoCo has no display, set "
        "MUJOCO_GL to egl or osmesa before the program starts."
    )


class Pictures:
    """Takes a picture of the first environments before each of their steps.

    Args:
        n_watched: how many environments; 0 if no people are asked.
        can_render: the environments render; if not, people see the observations.
        zoom: how much observations are magnified.
    """

    def __init__(
        self, env_id: str, observations: ObservationEncoder, *, n_watched: int, can_render: bool, zoom: int
    ) -> None:
        self.env_id, self.observations = env_id, observations
        self.n_watched, self.can_render, self.zoom = n_watched, can_render, zoom
        self._observed: np.ndarray | Sequence[Any] = []
        self._shape: tuple[int, ...] = ()  # of the pictures that the environments render

    def observe(self, observations: np.ndarray | Sequence[Any]) -> None:
        """Copies the observations that people may see next, because the agent may write into what it is given."""
        shows_observations = self.n_watched > 0 and not self.can_render
        self._observed = deepcopy(observations[: self.n_watched]) if shows_observations else []

    def take(self, render: Callable[[], Any]) -> np.ndarray:
        """Returns a picture of each watched environment as it is now, (n_watched, H, W, 3) uint8.

        Args:
            render: returns one rendered picture of each environment.

        Raises UserError if the environments cannot render.
        """
        if not self.can_render:
            return np.stack([self.observations.view(observation, self.zoom) for observation in self._observed])
        try:
            frames = render()
        except Exception as error:  # a renderer may raise anything
            raise cannot_draw(self.env_id, error) from error
        return self.checked([frames[i] for i in range(self.n_watched)])

    def checked(self, frames: Sequence[Any]) -> np.ndarray:
        """Returns copies of rendered frames, (n, H, W, 3) uint8. Raises UserError if one is no picture."""
        pictures = []
        for frame in frames:
            picture = np.array(frame)  # some environments render the next picture into the same memory
            if picture.ndim == 3 and picture.shape[2] == 4:
                picture = picture[:, :, :3]
            elif picture.ndim == 2 or picture.shape[2:] == (1,):
                picture = np.repeat(picture.reshape(*picture.shape[:2], 1), 3, axis=2)
            self._shape = self._shape or picture.shape
            if picture.dtype != np.uint8 or picture.shape[2:] != (3,) or picture.shape != self._shape:
                raise UserError(
                    f"people cannot be shown what render() of {self.env_id} returned ({picture.dtype} of shape "
                    f"{np.shape(frame)}): let it return pictures (H, W, 3) of uint8, all of one size."
                )
            pictures.append(picture)
        return np.stack(pictures)
