"""The first step of every network: raw observations become numbers of a suitable scale."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def converted(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts uint8 (B, C, H, W) to `dtype`, channels last in memory, which convolutions on a CPU read fastest.

    Pixels cost least if they are laid out so already (`a2c.runner.Rollout`, `drlhp.networks.batches.PairBatch`). Others
    are copied plane by plane, which is faster than PyTorch's own change of layout.
    """
    if not pixels.is_contiguous(memory_format=torch.channels_last):
        planes = pixels.new_empty(len(pixels), *pixels.shape[2:], pixels.shape[1])
        for i in range(pixels.shape[1]):
            planes[..., i] = pixels[:, i]
        pixels = planes.permute(0, 3, 1, 2)
    return pixels.to(dtype)


class Statistics(nn.Module):
    """Mean and standard deviation of each pixel, or of each number of a vector, over the values that were added."""

    count: Tensor
    total: Tensor
    squares: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        for name in ("total", "squares"):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    def add(self, values: Tensor) -> None:
        """Adds frames (N, H, W) of pixels from 0 to 255, or vectors (N, D)."""
        values = values.to(self.total.device)
        # In float32, sums of whole pixels are nearly exact, and quick; sums of vectors would not be exact.
        values = values.float() if values.dtype == torch.uint8 else values.double()
        self.count += len(values)
        self.total += values.sum(0)
        self.squares += values.square().sum(0)

    def mean_and_std(self) -> tuple[Tensor, Tensor]:
        """Returns both in the shape of one frame or vector."""
        mean = self.total / self.count
        return mean, (self.squares / self.count - mean.square()).clamp(min=0).sqrt()


class PixelReader(nn.Module):
    """uint8 (B, C, H, W) -> numbers for convolutions: from 0 to 1, or relative to a mean after `normalise`.

    Most of a picture never changes, and drowns the few pixels that do, such as Pong's ball. Relative to the mean
    picture, only those are left.
    """

    least_std = 0.1  # of a pixel's range; pixels that seldom change would otherwise weigh too much
    shift: Tensor
    gain: Tensor

    def __init__(self, n_channels: int, height: int = 84, width: int = 84) -> None:
        super().__init__()
        shape = (1, n_channels, height, width)
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("gain", torch.full(shape, 1 / 255))

    def forward(self, pixels: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
        return torch.addcmul(self.shift.to(dtype), converted(pixels, dtype), self.gain.to(dtype), out=out)

    @torch.no_grad()
    def normalise(self, mean: Tensor, std: Tensor) -> None:
        """Reads each pixel relative to its mean from now on, in standard deviations; both (H, W), of 0 to 255."""
        gain = 1 / std.clamp(min=255 * self.least_std)
        self.gain.copy_(gain.expand_as(self.gain))
        self.shift.copy_((-mean * gain).expand_as(self.shift))


class VectorReader(nn.Module):
    """float32 (B, D) -> each number relative to its mean, in standard deviations, after `normalise`.

    Args:
        limit: numbers are clipped to so many standard deviations from the mean.
    """

    least_std = 1e-2  # in metres, radians and seconds; numbers that hardly change would otherwise weigh too much
    shift: Tensor
    gain: Tensor

    def __init__(self, n_inputs: int, limit: float = math.inf) -> None:
        super().__init__()
        self.limit = limit
        self.register_buffer("shift", torch.zeros(n_inputs))
        self.register_buffer("gain", torch.ones(n_inputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, x.float(), self.gain).clamp(-self.limit, self.limit)

    @torch.no_grad()
    def normalise(self, mean: Tensor, std: Tensor) -> None:
        """Reads each number relative to its mean from now on, in standard deviations; both (D,)."""
        gain = 1 / std.clamp(min=self.least_std)
        self.gain.copy_(gain)
        self.shift.copy_(-mean * gain)
