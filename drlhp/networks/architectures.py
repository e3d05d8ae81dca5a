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
from drlhp.networks.convolutions import FilteredPixels, KnownResult
from drlhp.networks.readers import PixelReader, VectorReader

# PyTorch for CUDA loads Triton with the first optimiser. If Mesa has drawn before (clips of bodies, the window), the
# compilers of both in one process end it with a segmentation fault, so Triton is loaded first.
with contextlib.suppress(ImportError):  # PyTorch for CPUs has none
    importlib.import_module("triton")

MakeNetwork = Callable[[tuple[int, ...]], nn.Module]  # called with the shape of an observation; see `OwnNetwork`
PICTURES_AT_ONCE = 128  # that a CPU takes through all layers, so that the cache holds a layer's result for the next one
PICTURES_TO_TRANSPOSE = 32  # at most, for which `NatureCNN` computes its last layer transposed


class EnsembleLinear(nn.Module):
    """One linear layer for each member: (B, inputs) or (members, B, inputs) -> (members, B, outputs).

    It computes in the type of its input.
    """

    def __init__(self, n_members: int, n_inputs: int, n_outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(n_inputs)
        self.weight = nn.Parameter(torch.empty(n_members, n_inputs, n_outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(n_members, 1, n_outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias.to(x.dtype), x.expand(len(self.weight), -1, -1), self.weight.to(x.dtype))


def orthogonal_(layer: nn.Module, gain: float) -> None:
    """Sets orthogonal weights and zero biases, the usual initialisation of actor-critic networks."""
    assert isinstance(layer, (nn.Linear, nn.Conv2d))
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class NatureCNN(nn.Module):
    """The convolutional network of Mnih et al. 2015, the paper's policy network on Atari (appendix A.2).

    Shape: uint8 (B, 4, 84, 84) -> (B, 512).
    """

    n_features = 512
    sizes = ((32, 20, 20), (64, 9, 9), (64, 7, 7), (n_features,))  # of each layer's result for one picture

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
        """Computes the features; without gradients, it can leave each layer's result in `kept`, made by `room`."""
        x = self.reader(pixels, self.conv1.weight.dtype, None if kept is None else kept[0])
        for i, layer in enumerate((self.conv1, self.conv2, self.conv3, self.fc), start=1):
            x = self._linear(x.flatten(1)) if layer is self.fc else layer(x)
            x = F.relu(x) if kept is None else torch.clamp_min(x, 0, out=kept[i])
        return x

    def _linear(self, x: Tensor) -> Tensor:
        """Applies `fc`; to a few pictures by the transposed product, which avoids a copy of all weights."""
        if torch.is_grad_enabled() or len(x) > PICTURES_TO_TRANSPOSE:
            return F.linear(x, self.fc.weight, self.fc.bias)
        return torch.addmm(self.fc.bias[:, None], self.fc.weight, x.t()).t()

    def room(self, *shape: int) -> list[Tensor]:
        """Returns memory for what `forward` computes from so many pictures: their numbers and each layer's result."""
        like = self.conv1.weight
        found = []
        for size in (self.reader.gain.shape[1:], *self.sizes):
            channels_last = like.new_empty(*shape, *size[1:], size[0])
            found.append(channels_last.movedim(-1, len(shape)))
        return found

    def recalled(self, kept: Sequence[Tensor]) -> Tensor:
        """Returns the features (B, 512) that `forward` left in `kept`, with its gradients but without its time."""
        x = kept[0]
        for layer, result in zip((self.conv1, self.conv2, self.conv3), kept[1:4], strict=True):
            x = KnownResult.apply(x, layer.weight, layer.bias, layer.stride, result)
        features: Tensor = KnownResult.apply(x.flatten(1), self.fc.weight, self.fc.bias, (), kept[4])
        return features


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
            # In place, because the first of these takes 100 MB in training.
            x = self.dropout(F.leaky_relu(norm(x), 0.01, inplace=True))
        x = x.reshape(len(x), self.n_members, -1).transpose(0, 1)  # (members, B, 784)
        return F.leaky_relu(self.fc(x), 0.01)

    def _filtered(self, pixels: Tensor, dtype: torch.dtype) -> Tensor:
        """Applies the first convolution, the largest.

        On a CPU without bfloat16, float32 is faster; the other layers are trained in bfloat16 to save memory.
        """
        conv = self.convs[0]
        assert isinstance(conv, nn.Conv2d)
        if not pixels.is_cpu or device.cpu_has_bf16():
            filtered: Tensor = conv(self.reader(pixels, dtype))
            return filtered
        with torch.autocast("cpu", enabled=False):
            filtered = FilteredPixels.apply(pixels, conv.weight, conv.bias, self.reader, conv.stride[0], dtype)
        return filtered

    def fold(self) -> None:
        """Merges batch norm into the convolutions for good: the predictions stay the same, training is over."""
        self.eval()
        for i, norm in enumerate(self.norms):
            if isinstance(norm, nn.BatchNorm2d):
                conv = self.convs[i]
                assert isinstance(conv, nn.Conv2d)
                self.convs[i], self.norms[i] = fuse_conv_bn_eval(conv, norm), nn.Identity()


class FeaturePoints(nn.Module):
    """The positions at which eight learned filters respond in the picture, then two layers of 64 on those positions.

    A spatial expectation after Levine et al. 2016 and Finn et al. 2016 (deep spatial autoencoders). Squared,
    mean-subtracted responses replace their softmax: they do not depend on the picture's contrast, so the positions can
    be read before a temperature is learned. It sees only the newest frame, and suits tasks in which the positions of
    things matter; it learns those from far fewer labels than convolutions do.

    Shape: uint8 (B, C, H, W) -> (members, B, 64).
    """

    n_features = 64
    n_frames = 1  # of the stack, the newest
    n_points = 8
    scale: Tensor  # ()

    def __init__(self, n_members: int = 1) -> None:
        super().__init__()
        self.n_members = n_members
        self.filters = nn.Conv2d(1, self.n_points * n_members, 3, stride=2, padding=1, bias=False)
        self.fc1 = EnsembleLinear(n_members, 2 * self.n_points, 64)
        self.fc2 = EnsembleLinear(n_members, 64, self.n_features)
        # Positions are enlarged, so that two places near each other can mean different things. Enlarged by 4 instead of
        # 8, the moving dot was learned less well from 40 labels. Enlarged by 8, its policy needs a larger entropy bonus
        # (envs/tuned.py): else its most likely actions stop short of the centre.
        self.register_buffer("scale", torch.tensor(8.0))

    def forward(self, pixels: Tensor) -> Tensor:
        # In parts that fit the cache, which is faster.
        points = torch.cat([self._points(part) for part in pixels[:, -1:].split(PICTURES_AT_ONCE)], 1)
        return torch.tanh(self.fc2(torch.tanh(self.fc1(self.scale * points))))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state_dict.setdefault(f"{prefix}scale", torch.tensor(4.0))  # older checkpoints name no scale, and had this one
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _points(self, pixels: Tensor) -> Tensor:
        """(B, 1, H, W) -> (members, B, 2 * points): the position of each filter's response, from -1 to 1."""
        # Means of 2x2 pixels; in those of 4x4, some steps of the moving dot changed nothing.
        x = halved(pixels) / 255  # (B, 1, 42, 42)
        maps = self.filters(x)  # (B, members * points, 21, 21)
        weight = (maps - maps.mean((2, 3), keepdim=True)).relu().square()
        by_row, by_column = weight.sum(3), weight.sum(2)
        total = by_row.sum(2) + 1e-8
        rows = by_row @ torch.linspace(-1, 1, maps.shape[2], device=maps.device) / total  # (B, members * points)
        columns = by_column @ torch.linspace(-1, 1, maps.shape[3], device=maps.device) / total
        return torch.stack([rows, columns], 2).reshape(len(x), self.n_members, -1).transpose(0, 1)


def halved(pixels: Tensor) -> Tensor:
    """Uint8 (B, C, H, W) -> float32 (B, C, H // 2, W // 2): what `avg_pool2d` returns, sooner on a CPU."""
    pairs = pixels[:, :, :-1:2].short() + pixels[:, :, 1::2]
    return (pairs[..., :-1:2] + pairs[..., 1::2]).float() / 4


class RewardMLP(nn.Module):
    """Two hidden layers of 64, leaky ReLU of slope 0.01, for vector observations (paper, appendix A.1).

    Shape: float32 (B, D) -> (members, B, 64).
    """

    n_features = 64

    def __init__(self, n_inputs: int, n_members: int, *, dropout: float) -> None:
        super().__init__()
        # No limit: a policy that gets better sees numbers far beyond those in the first labels.
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
        make: makes a network, given the shape of an observation. The network turns float32 observations (B, ...),
            pictures from 0 to 1 or vectors, into features (B, F); a linear layer turns these into rewards.

    Shape: uint8 (B, C, H, W) or float32 (B, D) -> (members, B, F).

    Raises:
        UserError: `make` returned something else than a network, or its network returns no features.
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
            for member in self.members:  # every member, because this gives lazy layers their weights
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
    """Two hidden layers of 64 tanh units each for the actor and the critic, the usual network for vector observations.

    The two share nothing, because values and actions need different features.
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
