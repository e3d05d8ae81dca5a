"""Stretches the policy's unit of continuous actions to an environment's box, if that is far from [-1, 1]."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drlhp.spaces import WIDEST_RANGE
from envs import EnvInfo

# A policy begins with actions of mean 0 and a standard deviation of 0.37, and reaches these bounds by itself. All of
# MuJoCo's bodies have such boxes (from 0.4 to 3), so their actions, results and checkpoints are what they were.
NEAREST, FARTHEST = 0.25, 4.0


class ActionBox(nn.Module):
    """Maps [-1, 1] to a box; values beyond stay beyond, for the environment to clip.

    Its numbers are in the policy's checkpoints. Older checkpoints have none: their policies act in the environment's
    units, and go on so.
    """

    scale: Tensor  # (A,)
    offset: Tensor  # (A,)

    def __init__(self, scale: Tensor, offset: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("offset", offset)

    def forward(self, unit: Tensor) -> Tensor:
        """Returns the environment's actions (..., A) for the policy's."""
        return unit * self.scale + self.offset

    def unit_of(self, actions: Tensor) -> Tensor:
        """Returns the policy's actions (..., A) for the environment's."""
        return (actions - self.offset) / self.scale

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state_dict.setdefault(f"{prefix}scale", torch.ones_like(self.scale))
        state_dict.setdefault(f"{prefix}offset", torch.zeros_like(self.offset))
        super()._load_from_state_dict(state_dict, prefix, *args)


def action_box(info: EnvInfo) -> ActionBox | None:
    """Returns the box that the policy's actions are stretched to; None if it is near [-1, 1], or has no bounds.

    A dimension without two bounds stays as it is.
    """
    if info.action_bounds is None:
        return None
    low, high = np.array(info.action_bounds)
    with np.errstate(invalid="ignore"):
        bounded = np.isfinite(low) & np.isfinite(high) & (high - low <= WIDEST_RANGE)
    near = (low >= -FARTHEST) & (low <= -NEAREST) & (high >= NEAREST) & (high <= FARTHEST)
    if (near | ~bounded).all():
        return None
    scale, offset = np.ones(len(low)), np.zeros(len(low))
    scale[bounded], offset[bounded] = (high - low)[bounded] / 2, (high + low)[bounded] / 2
    scale[scale == 0] = 1.0  # of a dimension with one value
    return ActionBox(torch.tensor(scale, dtype=torch.float32), torch.tensor(offset, dtype=torch.float32))
