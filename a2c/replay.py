"""The steps that an off-policy learner learns from again and again."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from a2c.runner import Rollout
from drlhp.networks.device import to_device
from envs import EnvInfo


@dataclass(frozen=True)
class Transitions:
    """B steps, each with what came of it."""

    observations: Tensor  # (B, D)
    actions: Tensor  # (B, A)
    rewards: Tensor  # (B,)
    following: Tensor  # (B, D) observations after the step
    goes_on: Tensor  # (B,) float32; 0 if the step ended the task, after which nothing is won; 1 if time ran out

    def split(self, n: int) -> list[Transitions]:
        """Returns n parts of about as many steps each."""
        return [Transitions(*parts) for parts in zip(*(c.tensor_split(n) for c in self.columns()), strict=True)]

    def to(self, device: torch.device) -> Transitions:
        """Returns the same steps on a device."""
        return Transitions(*(to_device(column.numpy(), device) for column in self.columns()))

    def columns(self) -> list[Tensor]:
        """Returns the fields in their order."""
        return [getattr(self, field.name) for field in fields(self)]

    def rewarded(self, rewards: Tensor) -> Transitions:
        """Returns the same steps with other rewards (B,)."""
        return replace(self, rewards=rewards)


class Replay:
    """The newest steps of N environments, in main memory.

    A row holds one step of all environments. Each observation is there once: the next row's follows a step.

    Args:
        capacity: steps of all environments together.
    """

    def __init__(self, info: EnvInfo, n_envs: int, capacity: int) -> None:
        self.n_envs, self.n_rows = n_envs, max(2, capacity // n_envs)
        shape = (self.n_rows, n_envs)
        self._rows = {
            "observations": torch.zeros(*shape, *info.observation_shape),
            "actions": torch.zeros(*shape, info.action_dim or 0),
            "rewards": torch.zeros(shape),
            "terminated": torch.zeros(shape, dtype=torch.bool),
            "valid": torch.zeros(shape, dtype=torch.bool),
        }
        self._end, self._filled = 0, 0  # the row that the next step goes to; rows of whole steps before it

    def __len__(self) -> int:
        return self._filled * self.n_envs

    def snapshot(self) -> dict[str, Any]:
        """Returns what `restore` takes: the rows that are filled, and the observations after them."""
        rows = (self._end - self._filled + torch.arange(self._filled + 1)) % self.n_rows
        return {name: column[rows] for name, column in self._rows.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over the steps of a replay for as many environments."""
        for name, column in self._rows.items():
            column[: len(state[name])] = state[name]
        self._end = self._filled = len(state["rewards"]) - 1

    def add(self, rollout: Rollout, rewards: Tensor) -> None:
        """Adds a rollout with these rewards (T, N); the oldest steps make room for it."""
        rows = (self._end + torch.arange(len(rewards) + 1)) % self.n_rows
        self._rows["observations"][rows] = torch.from_numpy(rollout.observations)
        for name in ("actions", "terminated", "valid"):
            self._rows[name][rows[:-1]] = torch.from_numpy(getattr(rollout, name))
        self._rows["rewards"][rows[:-1]] = rewards
        self._end, self._filled = int(rows[-1]), min(self._filled + len(rewards), self.n_rows - 1)

    def draw(self, n: int) -> Transitions:
        """Returns n steps, drawn with replacement, less those that turn out to be the resets of environments."""
        rows = (self._end - 1 - torch.randint(self._filled, (n,))) % self.n_rows
        flat = {name: column.flatten(0, 1) for name, column in self._rows.items()}
        at = rows * self.n_envs + torch.randint(self.n_envs, (n,))
        at = at[flat["valid"][at]]
        after = (at + self.n_envs) % len(flat["valid"])
        return Transitions(
            flat["observations"][at],
            flat["actions"][at],
            flat["rewards"][at],
            flat["observations"][after],
            (~flat["terminated"][at]).float(),
        )
