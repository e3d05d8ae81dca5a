"""Labels as inputs of the reward predictor's networks: pairs of segments, decoded and laid out in one batch."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from drlhp.data.comparison import Label
from drlhp.data.segment import CompressedSegment, Segment
from drlhp.networks.device import to_device


def bootstrap_count(comparison_id: str, member: int) -> int:
    """Returns how often a member's bootstrap holds a label: Poisson(1), the limit of drawing N of N with replacement.

    A hash decides, so the count stays the same as labels arrive one by one, and after a restart.
    """
    digest = hashlib.blake2b(f"{comparison_id}/{member}".encode(), digest_size=8).digest()
    uniform, probability, cumulative, count = (
        int.from_bytes(digest, "big") / 2**64,
        np.exp(-1.0),
        np.exp(-1.0),
        0,
    )
    while uniform > cumulative and count < 10:
        count += 1
        probability /= count
        cumulative += probability
    return count


@dataclass(frozen=True)
class TrainingPair:
    """A label with its two segments, which stay compressed until a batch needs them."""

    label: Label
    a: CompressedSegment
    b: CompressedSegment
    counts: tuple[int, ...]  # how often each member's bootstrap holds it


@dataclass(frozen=True)
class PairBatch:
    """Pairs decoded for one pass: all their steps in a row, because segments may differ in length."""

    observations: Tensor  # (total steps, ...)
    actions: Tensor  # (total steps,) or (total steps, A)
    segment: Tensor  # (total steps,) the step's segment, by its index; pair i has segments 2 i and 2 i + 1
    mu: Tensor  # (B, 2)
    counts: Tensor  # (members, B)
    true_returns: Tensor  # (2, B) of a and of b, over the steps in the batch; for `--reward_target true_return`

    @classmethod
    def decode(
        cls,
        pairs: list[TrainingPair],
        n_frames: int | None,
        crop_steps: int = 0,
        rng: np.random.Generator | None = None,
    ) -> PairBatch:
        """Decodes the pairs.

        Args:
            n_frames: keep only so many of the newest frames of each observation; None: all.
            crop_steps: take a random part of each segment, at most so many steps shorter (`random_crop`).
            rng: draws the parts.
        """
        segments = [stored.decode() for pair in pairs for stored in (pair.a, pair.b)]
        if crop_steps and rng is not None:
            both = zip(segments[0::2], segments[1::2], strict=True)
            segments = [part for a, b in both for part in random_crop(a, b, crop_steps, rng)]
        lengths = torch.tensor([len(segment) for segment in segments])
        return cls(
            observations_of(segments, n_frames),
            torch.from_numpy(np.concatenate([segment.actions for segment in segments])),
            torch.repeat_interleave(torch.arange(len(segments)), lengths),
            torch.tensor([pair.label.mu for pair in pairs], dtype=torch.float32),
            torch.tensor([pair.counts for pair in pairs], dtype=torch.float32).T,
            torch.tensor([float(segment.rewards.sum()) for segment in segments]).view(-1, 2).T,
        )

    def to(self, device: torch.device) -> PairBatch:
        """Returns the same batch on a device."""
        return PairBatch(*(to_device(getattr(self, name), device) for name in self.__dataclass_fields__))

    def returns(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Sums raw rewards (members, total steps) over the segments a and b of each pair, (members, B) each."""
        sums = torch.zeros(len(raw), 2 * len(self.mu), device=raw.device).index_add_(1, self.segment, raw)
        return sums[:, 0::2], sums[:, 1::2]


def observations_of(segments: list[Segment], n_frames: int | None) -> Tensor:
    """Returns (total steps, ...) all segments in a row; pixels with channels last in memory (`readers.converted`)."""
    # All segments: among other pictures of four planes, only some may look like stacks (`SegmentCutter`).
    stacks_of_four = all(segment.observations.ndim == 3 and segment.stack == 4 for segment in segments)
    if n_frames is None and stacks_of_four and sys.byteorder == "little":
        return _stacks_of_four(segments)
    stacked = [segment.stacked() for segment in segments]
    if not segments[0].is_pixels:
        return torch.from_numpy(np.concatenate(stacked))
    newest = slice(None) if n_frames is None else slice(-n_frames, None)
    planes = [np.concatenate([windows[:, i] for windows in stacked]) for i in range(stacked[0].shape[1])[newest]]
    return torch.from_numpy(np.moveaxis(np.stack(planes, -1), -1, 1))


def _stacks_of_four(segments: list[Segment]) -> Tensor:
    """Returns (total steps, 4, H, W), mixed the fastest way: the four pixels of a place are the bytes of one number."""
    lengths = [len(segment) for segment in segments]
    mixed = torch.empty(sum(lengths), *segments[0].observations.shape[1:], dtype=torch.int32)
    for segment, stacks in zip(segments, mixed.split(lengths), strict=True):
        frames = torch.from_numpy(segment.observations).to(torch.int32)
        stacks.copy_(frames[3:])
        for oldest in (2, 1, 0):
            torch.add(frames[oldest : oldest + len(stacks)], stacks, alpha=256, out=stacks)
    return mixed.view(torch.uint8).view(*mixed.shape, 4).permute(0, 3, 1, 2)


def random_crop(a: Segment, b: Segment, crop_steps: int, rng: np.random.Generator) -> tuple[Segment, Segment]:
    """Returns a random part of each segment of a pair; the answer is taken to hold for them (SURF, Park et al. 2022).

    Both lose the same number of steps, uniform from 0 to `crop_steps` or to what the shorter one has, so segments of
    equal length keep an equal length. Each part's start is drawn separately.
    """
    lost = int(rng.integers(min(crop_steps, len(a) - 1, len(b) - 1) + 1))
    start_a, start_b = rng.integers(lost + 1, size=2)
    return a.crop(int(start_a), len(a) - lost), b.crop(int(start_b), len(b) - lost)
