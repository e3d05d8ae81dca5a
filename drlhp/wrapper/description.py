"""What the wrappers know about the environments that they wrap."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium

from reward_predictor import PredictorInputs

DEFAULT_FPS = 30.0


@dataclass(frozen=True)
class EnvDescription:
    """The environments of one wrapper in Gymnasium's terms; all of them are alike."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    n_envs: int
    env_id: str
    fps: float
    max_episode_steps: int | None
    can_render: bool
    """They were made with `render_mode="rgb_array"`."""
    uses_mujoco: bool = False

    @classmethod
    def create(
        cls,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        n_envs: int,
        *,
        spec: Any,
        name: str,
        metadata: Any,
        render_mode: str | None,
    ) -> EnvDescription:
        """Returns the description of environments with that `spec`.

        Without one, they are called by the name that `metadata` have, as PettingZoo's do, or else `name`.
        """
        about = metadata if isinstance(metadata, Mapping) else {}
        return cls(
            observation_space,
            action_space,
            n_envs,
            env_id=getattr(spec, "id", None) or about.get("name") or name,
            fps=about.get("render_fps") or DEFAULT_FPS,
            max_episode_steps=getattr(spec, "max_episode_steps", None),
            can_render=render_mode == "rgb_array",
            uses_mujoco=_uses_mujoco(spec),
        )


def _uses_mujoco(spec: Any) -> bool:
    """Returns whether the class of an environment, or one that it derives from, is defined with MuJoCo at hand."""
    made_by = spec.entry_point if spec else None
    if isinstance(made_by, str):
        module, _, name = made_by.partition(":")
        made_by = getattr(sys.modules.get(module), name, None)
    bases = made_by.__mro__ if isinstance(made_by, type) else ()
    return any(hasattr(sys.modules.get(base.__module__), "mujoco") for base in bases)


@dataclass(frozen=True)
class WrappedEnv:
    """A wrapped environment as its segments record it (a `drlhp.data.cutter.SegmentSource`)."""

    env_id: str
    kind: Literal["pixels", "vector"]
    observation_shape: tuple[int, ...]
    n_actions: int | None
    action_dim: int | None
    segment_length: int
    fps: float

    @property
    def inputs(self) -> PredictorInputs:
        """The observations and actions that the reward predictor reads."""
        return PredictorInputs.of(self)
