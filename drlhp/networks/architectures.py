"""Network bodies of the policy and the reward predictor: raw observations in, features out.

Every body scales its observations itself (uint8 pixels or float32 vectors) and names its output width `n_features`.
Those that the reward predictor uses hold a whole ensemble: its members stand side by side in the channels of each
layer, so that three cost little more than one, and the output is (members, B, n_features).
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from drlhp.errors import UserError
from drlhp.networks import device

# PyTorch for CUDA loads Triton with the first optimiser. Where Mesa has drawn before that, as clips of bodies and the
# window do without a card's own OpenGL, the two compilers of code in one process end it with a segmentation fault.
with contextlib.suppress(ImportError):  # PyTorch for processors has none
    importlib.import_module("triton")

MakeNetwork = Callable[[tuple[int, ...]], nn.Module]  # of the shape of an observation; see `OwnNetwork`
# Pictures that a processor takes through all layers at once: what one layer leaves is in the cache for the next.
PICTURES_AT_ONCE = 128
PICTURES_TO_TURN = 32
PICTURES_TO_FILTER = 32  # and through the first convolution of a reward network, for its gradient too


def converted(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 (B, C, H, W) -> `dtype`, channels last in memory, which convolutions on a CPU read fastest.

    Pixels that lie so already (`a2c.runner.Rollout`, `reward_predictor.PairBatch`) cost least; the others are copied
    plane by plane, which is faster than PyTorch's own change of layout.
    """
    if not pixels.is_contiguous(memory_format=torch.channels_last):
        planes = pixels.new_empty(len(pixels), *pixels.shape[2:], pixels.shape[1])
        for i in range(pixels.shape[1]):
            planes[..., i] = pixels[:, i]
        pixels = planes.permute(0, 3, 1, 2)
    return pixels.to(dtype)


class Statistics(nn.Module):
    """Mean and deviation of each pixel, or of each number of a vector, over what was added."""

    count: Tensor
    total: Tensor
    squares: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        for name in ("total", "squares"):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    def add(self, values: Tensor) -> None:
        """Takes in frames (N, H, W) of pixels from 0 to 255, or vectors (N, D)."""
        values = values.to(self.total.device)
        # Sums of whole pixels are as good as exact in float32, and quick; those of vectors would not be.
        values = values.float() if values.dtype == torch.uint8 else values.double()
        self.count += len(values)
        self.total += values.sum(0)
        self.squares += values.square().sum(0)

    def mean_and_std(self) -> tuple[Tensor, Tensor]:
        """Each in the shape of one frame or vector."""
        mean = self.total / self.count
        return mean, (self.squares / self.count - mean.square()).clamp(min=0).sqrt()


class EnsembleLinear(nn.Module):
    """One linear layer for each member: (B, inputs) or (members, B, inputs) -> (members, B, outputs)."""

    def __init__(self, n_members: int, n_inputs: int, n_outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(n_inputs)
        self.weight = nn.Parameter(torch.empty(n_members, n_inputs, n_outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(n_members, 1, n_outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x.expand(len(self.weight), -1, -1), self.weight)


def orthogonal_(layer: nn.Module, gain: float) -> None:
    """Orthogonal weights and zero biases, the field's initialisation for actor-critic networks."""
    assert isinstance(layer, (nn.Linear, nn.Conv2d))
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class PixelReader(nn.Module):
    """uint8 (B, C, H, W) -> numbers for convolutions: from 0 to 1, or once `normalise` was called relative to a mean.

    Most of a picture never changes. Read as it is, it drowns the few pixels that do, such as Pong's ball; relative to
    the mean picture they are all that is left.
    """

    least_std = 0.1  # of the range of a pixel; those that seldom change would weigh too much
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
        """From now on reads each pixel relative to its mean, in units of its deviation; both (H, W), of 0 to 255."""
        gain = 1 / std.clamp(min=255 * self.least_std)
        self.gain.copy_(gain.expand_as(self.gain))
        self.shift.copy_((-mean * gain).expand_as(self.shift))


class VectorReader(nn.Module):
    """float32 (B, D) -> the same in units of each number's deviation from its mean, once `normalise` was called.

    Args:
        limit: whatever is farther than so many deviations from the mean counts as just so far.
    """

    least_std = 1e-2  # of numbers in metres, radians and seconds; those that hardly change would weigh too much
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
        """From now on reads each number relative to its mean, in units of its deviation; both (D,)."""
        gain = 1 / std.clamp(min=self.least_std)
        self.gain.copy_(gain)
        self.shift.copy_(-mean * gain)


class _Known(torch.autograd.Function):
    """relu(layer(x)) of a convolution or a linear layer where the result is known, so that only gradients are computed.

    They are, bit for bit, those that the layer itself would have given.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: tuple[int, ...], result: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, result)
        ctx.stride = stride
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, result = ctx.saved_tensors
        gradient = torch.ops.aten.threshold_backward(gradients[0], result, 0)
        if weight.dim() == 2:
            return gradient @ weight, gradient.t() @ x, gradient.sum(0), None, None
        shape = ([len(weight)], ctx.stride, [0, 0], [1, 1], False, [0, 0], 1)
        wanted = [ctx.needs_input_grad[0], True, True]
        return (*torch.ops.aten.convolution_backward(gradient, x, weight, *shape, wanted), None, None)


class NatureCNN(nn.Module):
    """The convolutional network of Mnih et al. 2015, the paper's policy network on Atari (appendix A.2).

    Shape: uint8 (B, 4, 84, 84) -> (B, 512).
    """

    n_features = 512
    sizes = ((32, 20, 20), (64, 9, 9), (64, 7, 7), (n_features,))  # of what the layers make of one picture

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.reader = PixelReader(n_channels)
        self.conv1 = nn.Conv2d(n_channels, 32, 8, stride=4)
        self.conv2 = nn.Conv2d(32, 64, 4, stride=2)
        self.conv3 = nn.Conv2d(64, 64, 3, stride=1)
        self.fc = nn.Linear(64 * 7 * 7, self.n_features)
        for layer in (self.conv1, self.conv2, self.conv3, self.fc):
            orthogonal_(layer, math.sqrt(2))
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, pixels: Tensor, kept: Sequence[Tensor] | None = None) -> Tensor:
        """Without gradients it can leave in `kept`, of `room`, what it computes on the way."""
        x = self.reader(pixels, self.conv1.weight.dtype, None if kept is None else kept[0])
        for i, layer in enumerate((self.conv1, self.conv2, self.conv3, self.fc), start=1):
            x = self._linear(x.flatten(1)) if layer is self.fc else layer(x)
            x = F.relu(x) if kept is None else torch.clamp_min(x, 0, out=kept[i])
        return x

    def _linear(self, x: Tensor) -> Tensor:
        """What `fc` gives; of a few pictures by the product turned round, which spares a copy of all weights."""
        if torch.is_grad_enabled() or len(x) > PICTURES_TO_TURN:
            return F.linear(x, self.fc.weight, self.fc.bias)
        return torch.addmm(self.fc.bias[:, None], self.fc.weight, x.t()).t()

    def room(self, *shape: int) -> list[Tensor]:
        """Memory for what `forward` computes of so many pictures: their numbers and the results of each layer."""
        like = self.conv1.weight
        found = []
        for size in (self.reader.gain.shape[1:], *self.sizes):
            channels_last = like.new_empty(*shape, *size[1:], size[0])
            found.append(channels_last.movedim(-1, len(shape)))
        return found

    def recalled(self, kept: Sequence[Tensor]) -> Tensor:
        """What `forward` left in `kept`, (B, 512), with the gradients of that pass but without its time."""
        x = kept[0]
        for layer, result in zip((self.conv1, self.conv2, self.conv3), kept[1:4], strict=True):
            x = _Known.apply(x, layer.weight, layer.bias, layer.stride, result)
        features: Tensor = _Known.apply(x.flatten(1), self.fc.weight, self.fc.bias, (), kept[4])
        return features


class _Filtered(torch.autograd.Function):
    """A convolution of pixels as a reader reads them, of which nothing is kept for the gradient but the pixels.

    In parts that fit the cache with what they are read into.
    """

    @staticmethod
    def forward(
        ctx: Any,
        pixels: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        reader: PixelReader,
        stride: int,
        out: torch.dtype,
    ) -> Tensor:
        ctx.save_for_backward(pixels, weight)
        ctx.reader, ctx.stride, ctx.has_bias = reader, stride, bias is not None
        size = [(whole - part) // stride + 1 for whole, part in zip(pixels.shape[2:], weight.shape[2:], strict=True)]
        shape = (len(pixels), len(weight), *size)
        filtered = torch.empty(shape, dtype=out, memory_format=torch.channels_last)
        for start in range(0, len(pixels), PICTURES_TO_FILTER):
            rows = slice(start, start + PICTURES_TO_FILTER)
            filtered[rows] = F.conv2d(reader(pixels[rows], weight.dtype), weight, bias, stride)
        return filtered

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        pixels, weight = ctx.saved_tensors
        shape = ([ctx.stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, [False, True, ctx.has_bias])
        sums = [torch.zeros_like(weight), weight.new_zeros(len(weight))]
        for part, gradient in zip(*(x.split(PICTURES_TO_FILTER) for x in (pixels, gradients[0])), strict=True):
            read, gradient = ctx.reader(part, weight.dtype), gradient.to(weight.dtype)
            found = torch.ops.aten.convolution_backward(gradient, read, weight, [len(weight)], *shape)[1:]
            for total, share in zip(sums, found, strict=True):
                if share is not None:
                    total += share
        return None, sums[0], sums[1] if ctx.has_bias else None, None, None, None


class RewardCNN(nn.Module):
    """The paper's reward network on Atari: four convolutions of 16 filters, then 64 units (appendix A.2).

    Batch norm and dropout apply to every convolution, leaky ReLU of slope 0.01 throughout.
    Shape: uint8 (B, C, 84, 84) -> (members, B, 64).
    """

    n_features = 64

    def __init__(self, n_channels: int, n_members: int, *, batchnorm: bool, dropout: float) -> None:
        super().__init__()
        self.n_members, width = n_members, 16 * n_members
        self.reader = PixelReader(n_channels)
        shapes = ((n_channels, 7, 3), (width, 5, 2), (width, 3, 1), (width, 3, 1))  # inputs, kernel, stride
        self.convs = nn.ModuleList(
            # All members read the same picture; from then on each has filters of its own.
            nn.Conv2d(c, width, k, stride=s, bias=not batchnorm, groups=1 if i == 0 else n_members)
            for i, (c, k, s) in enumerate(shapes)
        )
        # Momentum 1: the statistics kept for prediction are those of the last batch, see `settle_batchnorm`.
        self.norms = nn.ModuleList(nn.BatchNorm2d(width, momentum=1.0) if batchnorm else nn.Identity() for _ in shapes)
        self.dropout = nn.Dropout(dropout)
        self.fc = EnsembleLinear(n_members, 16 * 7 * 7, self.n_features)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, pixels: Tensor) -> Tensor:
        kind = pixels.device.type
        casts = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if casts else self.fc.weight.dtype
        x = self._filtered(pixels, dtype)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = x if i == 0 else conv(x)  # (B, 16 * members, ...) 26, 11, 9, 7
            # In place, for the first of these takes 100 MB in training.
            x = self.dropout(F.leaky_relu(norm(x), 0.01, inplace=True))
        x = x.reshape(len(x), self.n_members, -1).transpose(0, 1)  # (members, B, 784)
        return F.leaky_relu(self.fc(x), 0.01)

    def _filtered(self, pixels: Tensor, dtype: torch.dtype) -> Tensor:
        """The first convolution, the greatest.

        A processor computes it in float32 wherever that is quicker, though the rest is trained in bfloat16, for memory.
        """
        conv = self.convs[0]
        assert isinstance(conv, nn.Conv2d)
        if not pixels.is_cpu or device.cpu_has_bf16():
            filtered: Tensor = conv(self.reader(pixels, dtype))
            return filtered
        with torch.autocast("cpu", enabled=False):
            filtered = _Filtered.apply(pixels, conv.weight, conv.bias, self.reader, conv.stride[0], dtype)
        return filtered

    def fold(self) -> None:
        """Makes batch norm a part of the convolutions, for good: it then computes the same, for prediction alone."""
        self.eval()
        for i, norm in enumerate(self.norms):
            if isinstance(norm, nn.BatchNorm2d):
                conv = self.convs[i]
                assert isinstance(conv, nn.Conv2d)
                self.convs[i], self.norms[i] = fuse_conv_bn_eval(conv, norm), nn.Identity()


class FeaturePoints(nn.Module):
    """Where in the picture each of eight learned filters responds, then two layers of 64 on those positions.

    A spatial expectation after Levine et al. 2016 and Finn et al. 2016 (deep spatial autoencoders). Squared,
    mean-subtracted responses take the place of their softmax: they do not depend on the picture's contrast, so the
    positions can be read before any temperature is learned. It sees the newest frame alone, and suits tasks in which
    what matters is where things are; it learns those from far fewer labels than convolutions do.

    Shape: uint8 (B, C, H, W) -> (members, B, 64).
    """

    n_features = 64
    n_frames = 1  # of the stack, the newest
    n_points = 8
    pool = 4  # pixels averaged before the filters, which see 3x3 of the averages

    def __init__(self, n_members: int = 1, *, stride: int = 1) -> None:
        super().__init__()
        self.n_members = n_members
        self.conv = nn.Conv2d(1, self.n_points * n_members, 3, stride=stride, padding=1, bias=False)
        self.fc1 = EnsembleLinear(n_members, 2 * self.n_points, 64)
        self.fc2 = EnsembleLinear(n_members, 64, self.n_features)

    def forward(self, pixels: Tensor) -> Tensor:
        # In parts that fit the cache, which is faster.
        points = torch.cat([self._points(part) for part in pixels[:, -1:].split(PICTURES_AT_ONCE)], 1)
        return torch.tanh(self.fc2(torch.tanh(self.fc1(points))))

    def _points(self, pixels: Tensor) -> Tensor:
        """(B, 1, H, W) -> (members, B, 2 * points): where each filter responds, from -1 to 1."""
        x = F.avg_pool2d(pixels.float(), self.pool) / 255  # (B, 1, 21, 21)
        maps = self.conv(x)  # (B, members * points, 21, 21)
        weight = (maps - maps.mean((2, 3), keepdim=True)).relu().square()
        by_row, by_column = weight.sum(3), weight.sum(2)
        total = by_row.sum(2) + 1e-8
        rows = by_row @ torch.linspace(-1, 1, maps.shape[2], device=maps.device) / total  # (B, members * points)
        columns = by_column @ torch.linspace(-1, 1, maps.shape[3], device=maps.device) / total
        return torch.stack([rows, columns], 2).reshape(len(x), self.n_members, -1).transpose(0, 1)


class RewardMLP(nn.Module):
    """Two hidden layers of 64, leaky ReLU of slope 0.01, for vector observations (paper, appendix A.1).

    Shape: float32 (B, D) -> (members, B, 64).
    """

    n_features = 64

    def __init__(self, n_inputs: int, n_members: int, *, dropout: float) -> None:
        super().__init__()
        # No limit: a policy that gets better gets far beyond what the first labels were about.
        self.reader = VectorReader(n_inputs)
        self.fc1 = EnsembleLinear(n_members, n_inputs, 64)
        self.fc2 = EnsembleLinear(n_members, 64, self.n_features)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(F.leaky_relu(self.fc1(self.reader(x)), 0.01))
        return self.dropout(F.leaky_relu(self.fc2(x), 0.01))


class OwnNetwork(nn.Module):
    """Networks that a user of the library wrote, one for each member.

    Args:
        make: makes a network of the shape of an observation. It turns observations (B, ...), pictures of 0 to 1 or
            vectors, float32, into features (B, F), of which a linear layer makes the reward of each action.

    Shape: uint8 (B, C, H, W) or float32 (B, D) -> (members, B, F).

    Raises UserError if what it makes is no network, or gives no features.
    """

    def __init__(self, make: MakeNetwork, observation_shape: tuple[int, ...], n_members: int) -> None:
        super().__init__()
        members = [make(observation_shape) for _ in range(n_members)]
        if not isinstance(members[0], nn.Module):
            raise UserError(f"reward_predictor_network made {members[0]!r}: let it make a torch module.")
        self.members = nn.ModuleList(members)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = 1.0  # the statistics of the last batch, see `settle_batchnorm`
        with torch.no_grad():
            for member in self.members:  # each of them: lazy layers get their weights by it
                features = member.eval()(torch.zeros(2, *observation_shape))
        if features.dim() != 2 or len(features) != 2:
            raise UserError(
                f"reward_predictor_network made a network that turns observations (2, {observation_shape}) into "
                f"{tuple(features.shape)}: let it turn (B, ...) into features (B, F)."
            )
        self.n_features = features.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
        return torch.stack([member(x) for member in self.members])


class PolicyMLP(nn.Module):
    """Two hidden layers of 64 tanh units for the actor and two for the critic, the field's for vector observations.

    The two share nothing: what an action is worth and which one to take ask for different features.
    Shape: float32 (B, D) -> (2, B, 64), the actor's first.
    """

    n_features = 64

    def __init__(self, n_inputs: int) -> None:
        super().__init__()
        self.reader = VectorReader(n_inputs, limit=10)
        self.fc1, self.fc2 = EnsembleLinear(2, n_inputs, 64), EnsembleLinear(2, 64, self.n_features)
        for layer in (self.fc1, self.fc2):
            for weight in layer.weight.data:
                nn.init.orthogonal_(weight, math.sqrt(2))
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.fc2(torch.tanh(self.fc1(self.reader(x)))))
