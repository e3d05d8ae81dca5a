"""The inputs of the reward predictor's networks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol


class Inputs(Protocol):
    """A description of an environment, or of the inputs themselves."""

    @property
    def kind(self) -> Literal["pixels", "vector"]: ...
    @property
    def observation_shape(self) -> tuple[int, ...]: ...
    @property
    def n_actions(self) -> int | None: ...
    @property
    def action_dim(self) -> int | None: ...


@dataclass(frozen=True)
class PredictorInputs:
    """Inputs of the networks: the shape of an observation and the size of an action."""

    kind: Literal["pixels", "vector"]
    observation_shape: tuple[int, ...]
    n_actions: int | None
    action_dim: int | None

    @classmethod
    def of(cls, env: Inputs) -> PredictorInputs:
        """Returns the inputs that an environment of this description gives."""
        return cls(env.kind, env.observation_shape, env.n_actions, env.action_dim)

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values, for the checkpoint of a predictor that was trained on them."""
        return {**asdict(self), "observation_shape": list(self.observation_shape)}
