"""A custom reward network, for `HumanPreferencesEnvWrapper(env, reward_predictor_network=Waves)`."""

from __future__ import annotations

import torch
from torch import nn


class Waves(nn.Module):
    """Random Fourier features of a vector, followed by a trained layer."""

    frequencies: torch.Tensor

    def __init__(self, observation_shape: tuple[int, ...]) -> None:
        super().__init__()
        (n_inputs,) = observation_shape
        self.register_buffer("frequencies", torch.randn(n_inputs, 64))
        self.mix = nn.Linear(64, 32)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        waves = torch.sin(observations @ self.frequencies)  # (B, 64)
        return torch.relu(self.mix(waves))  # (B, 32) features; a linear layer turns them into the reward of each action
