"""What travels between a learner and actors on other machines: weights there, rollouts back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from a2c.model import Policy, acting
from a2c.runner import Rollout, stack_of
from drlhp.data.views import compress, decompress
from envs import EnvInfo

# The columns (T, N, ...) that only the actor knows, besides the observations.
COLUMNS = ("actions", "log_probs", "values", "true_rewards", "terminated", "truncated", "states")


class Parcel(NamedTuple):
    """A rollout of some environments, or the first observations of their new episodes."""

    content: bytes  # compressed
    size: int  # unpacked
    views: Sequence[bytes] = ()  # of each watched environment, by `encode_view`


def weights_of(policy: Policy) -> list[np.ndarray]:
    """Returns all that a policy acts with; bfloat16 as int16, which NumPy has."""
    found = []
    for tensor in acting(policy, published=True):
        there = tensor.detach().cpu().contiguous()
        found.append((there.view(torch.int16) if there.dtype == torch.bfloat16 else there).numpy())
    return found


@torch.no_grad()
def take_weights(policy: Policy, weights: Sequence[np.ndarray]) -> None:
    """Lets a policy act with these weights; they may be in memory that is only to be read."""
    for tensor, array in zip(acting(policy), weights, strict=True):
        values = torch.from_numpy(array)
        tensor.copy_(values.view(torch.bfloat16) if values.dtype == torch.int16 else values)


def pack_first(observations: np.ndarray) -> Parcel:
    """Packs the observations (N, ...) with which episodes begin."""
    return _packed([observations])


def unpack_first(parcel: Parcel, rollout: Rollout, mine: slice) -> None:
    """Writes what `pack_first` has packed where the next rollout goes on from: the end of the last one."""
    last = rollout.observations[-1]
    last[mine] = _Unpacking(parcel).take(last[mine].shape, last.dtype)


def pack(rollout: Rollout, info: EnvInfo, began: NDArray[np.bool_], views: Sequence[bytes] = ()) -> Parcel:
    """Packs a rollout.

    Of pixels only the newest frames travel, each as its difference from the one before: the others were in the
    observation before. An episode's first observation travels whole.

    Args:
        began: (T, N) the steps that began an episode.
    """
    r = rollout
    parts = [getattr(r, name) for name in COLUMNS] + [r.last_values, r.memory[-1], began]
    if stack_of(info) == 1:
        return _packed([*parts, r.observations[1:]], views)
    newest = np.ascontiguousarray(r.observations[:, :, -1])
    return _packed([*parts, newest[1:] ^ newest[:-1], r.observations[1:, :, :-1][began]], views)


def unpack(parcel: Parcel, rollout: Rollout, mine: slice, info: EnvInfo) -> None:
    """Writes what `pack` has packed to these columns of a rollout, whose first observations are there already."""
    r, unpacking = rollout, _Unpacking(parcel)
    for there in (*(getattr(r, name)[:, mine] for name in COLUMNS), r.last_values[mine], r.memory[-1, mine]):
        there[:] = unpacking.take(there.shape, there.dtype)
    began, seen = unpacking.take(r.valid[:, mine].shape, r.valid.dtype), r.observations[:, mine]
    if stack_of(info) == 1:
        seen[1:] = unpacking.take(seen[1:].shape, seen.dtype)
        return
    moved = unpacking.take((*began.shape, *seen.shape[3:]), seen.dtype)
    older = unpacking.take((int(began.sum()), seen.shape[2] - 1, *seen.shape[3:]), seen.dtype)
    n_seen = 0
    for t, starts in enumerate(began):
        for plane in range(seen.shape[2] - 1):  # plane by plane, because that is fastest with channels last
            seen[t + 1, :, plane] = seen[t, :, plane + 1]
        seen[t + 1, :, -1] = seen[t, :, -1] ^ moved[t]
        if n := int(starts.sum()):
            seen[t + 1, starts, :-1] = older[n_seen : n_seen + n]
            n_seen += n


def _packed(arrays: Sequence[np.ndarray], views: Sequence[bytes] = ()) -> Parcel:
    content = b"".join(array.tobytes() for array in arrays)
    return Parcel(compress(content), len(content), views)


class _Unpacking:
    """Takes arrays from a parcel in the order in which they were packed."""

    def __init__(self, parcel: Parcel) -> None:
        self.content, self.taken = decompress(parcel.content, parcel.size), 0

    def take(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Returns the next array."""
        start, n = self.taken, math.prod(shape)
        self.taken += n * dtype.itemsize
        return np.frombuffer(self.content, dtype, n, start).reshape(shape)
