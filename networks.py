"""Network bodies shared by the policy and the reward predictor: observation batch in, feature vector out.

Every body takes raw observations (uint8 pixels or float32 vectors), scales them itself, and names its output
width `n_features`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def cpu_has_bf16() -> bool:
    """True where the processor multiplies bfloat16 natively; elsewhere bfloat16 is emulated and slower than float32."""
    return any(torch.cpu.get_capabilities().get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def scale_pixels(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 (B, C, H, W) in 0..255 -> `dtype` in 0..1, channels last in memory."""
    return pixels.to(dtype=dtype, memory_format=torch.channels_last).mul_(1 / 255)


def orthogonal_(layer: nn.Module, gain: float) -> None:
    """Orthogonal weights and zero biases, the field's initialisation for actor-critic networks."""
    assert isinstance(layer, (nn.Linear, nn.Conv2d))
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class NatureCNN(nn.Module):
    """The convolutional network of Mnih et al. 2015, the paper's policy network on Atari (appendix A.2).

    Shape: uint8 (B, 4, 84, 84) -> (B, 512).
    """

    n_features = 512

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_channels, 32, 8, stride=4)
        self.conv2 = nn.Conv2d(32, 64, 4, stride=2)
        self.conv3 = nn.Conv2d(64, 64, 3, stride=1)
        self.fc = nn.Linear(64 * 7 * 7, self.n_features)
        for layer in (self.conv1, self.conv2, self.conv3, self.fc):
            orthogonal_(layer, math.sqrt(2))

    def forward(self, pixels: Tensor) -> Tensor:
        x = scale_pixels(pixels, self.conv1.weight.dtype)  # (B, 4, 84, 84)
        x = F.relu(self.conv1(x))  # (B, 32, 20, 20)
        x = F.relu(self.conv2(x))  # (B, 64, 9, 9)
        x = F.relu(self.conv3(x))  # (B, 64, 7, 7)
        return F.relu(self.fc(x.flatten(1)))


class RewardCNN(nn.Module):
    """The paper's reward network on Atari: four convolutions of 16 filters, then 64 units (appendix A.2).

    Batch norm and dropout apply to every convolution, leaky ReLU of slope 0.01 throughout.
    Shape: uint8 (B, 4, 84, 84) -> (B, 64).
    """

    n_features = 64

    def __init__(self, n_channels: int, *, batchnorm: bool, dropout: float) -> None:
        super().__init__()
        shapes = ((n_channels, 7, 3), (16, 5, 2), (16, 3, 1), (16, 3, 1))  # inputs, kernel, stride
        self.convs = nn.ModuleList(nn.Conv2d(c, 16, k, stride=s, bias=not batchnorm) for c, k, s in shapes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) if batchnorm else nn.Identity() for _ in shapes)
        self.dropout = nn.Dropout2d(dropout)
        self.fc = nn.Linear(16 * 7 * 7, self.n_features)

    def forward(self, pixels: Tensor) -> Tensor:
        x = scale_pixels(pixels, self.convs[0].weight.dtype)  # type: ignore[arg-type]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = self.dropout(F.leaky_relu(norm(conv(x)), 0.01))  # 26x26, 11x11, 9x9, 7x7
        return F.leaky_relu(self.fc(x.flatten(1)), 0.01)


class MLP(nn.Module):
    """Two hidden layers of 64 for vector observations, as the paper's reward network on MuJoCo (appendix A.1).

    Shape: float32 (B, D) -> (B, 64).
    """

    n_features = 64

    def __init__(self, n_inputs: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(n_inputs, 64)
        self.fc2 = nn.Linear(64, 64)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(F.leaky_relu(self.fc1(x.float()), 0.01))
        return self.dropout(F.leaky_relu(self.fc2(x), 0.01))
