"""Several processes that share the policy's work: one leads, each acts in environments of its own.

The other way to use several cores is to split each layer of a network between threads that meet after it. With the
small batches of a policy these meet every few dozen microseconds, and those that sleep must be woken. Here the
processes meet twice per update: each has a share of the environments and of the gradient. Rollout, weights and
gradients lie in memory that all of them see, so that only orders travel.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from a2c.config import PolicyConfig
from drlhp.runtime.start import Context
from envs import EnvInfo

ALIGNMENT = 64  # bytes, a cache line
LEAST_ENVS = 4  # of a process; with fewer, batches are too small to be worth it


def fills_cores(info: EnvInfo, config: PolicyConfig, device: torch.device) -> bool:
    """Whether the policy has work for several cores: convolutions, or the simulation of bodies, on the CPU."""
    convolves = info.kind == "pixels" and config.policy_network != "feature_points"
    return (convolves or info.state_size > 0) and device.type == "cpu"


def crew_size(info: EnvInfo, config: PolicyConfig, device: torch.device, n_cores: int) -> int:
    """How many processes should share the policy's work."""
    return max(1, min(n_cores, config.n_envs // LEAST_ENVS)) if fills_cores(info, config, device) else 1


def share(n: int, size: int, index: int) -> slice:
    """Which of n things a process of a crew has: about as many as each of the others."""
    return slice(n * index // size, n * (index + 1) // size)


class CrewBroken(Exception):
    """Another process of the crew has left, or died."""


@contextlib.contextmanager
def linked() -> Iterator[None]:
    """Raises CrewBroken where a link is used whose other end is gone, and only there: environments, too, have ends."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise CrewBroken("another process of the policy has ended") from error


class Arena:
    """Hands out arrays: of memory that processes share, the same ones to each that asks in the same order.

    Args:
        memory: what to share, of `allocate`; without it every array has memory of its own.
        pinned: memory of its own from which a card reads without a copy in between.
    """

    def __init__(self, memory: Any = None, *, pinned: bool = False) -> None:
        self.memory, self.pinned, self.used = memory, pinned, 0

    def array(self, shape: Sequence[int], dtype: npt.DTypeLike = np.float32) -> np.ndarray:
        """Zeros that nobody else was given."""
        dtype, start = np.dtype(dtype), self.used
        count = math.prod(shape)
        self.used += math.ceil(count * dtype.itemsize / ALIGNMENT) * ALIGNMENT
        if self.pinned:
            there: np.ndarray = torch.zeros(max(1, count * dtype.itemsize), dtype=torch.uint8, pin_memory=True).numpy()
            return there[: count * dtype.itemsize].view(dtype).reshape(shape)
        if self.memory is None:
            return np.zeros(shape, dtype)
        return np.frombuffer(self.memory, dtype, count, start).reshape(shape)

    def tensor(self, like: torch.Tensor) -> torch.Tensor:
        """Memory for a tensor of this form, which lies as dense in memory."""
        values = torch.from_numpy(self.array((like.numel() * like.element_size(),), np.uint8)).view(like.dtype)
        return values.as_strided(like.shape, like.stride())


def allocate(n_bytes: int, context: Context) -> Any:
    """Memory that processes share, to be handed to each when it starts."""
    return context.RawArray(ctypes.c_byte, n_bytes)


class Followers(NamedTuple):
    """The leader's share in the other processes of its crew; none by default."""

    links: Sequence[Connection] = ()  # the leader's end of each
    memory: Any = None  # that all of them share, of `allocate`


NO_FOLLOWERS = Followers()


class Crew:
    """The leader's side: orders to the others, who carry them out beside it. Alone, it orders nobody.

    Args:
        links: to each of the others.
        gradients: where each of the others leaves its share of the gradients, in the order of `Policy.weights`.
    """

    def __init__(self, links: Sequence[Connection] = (), gradients: Sequence[list[torch.Tensor]] = ()) -> None:
        self.links, self.gradients = links, gradients

    @property
    def size(self) -> int:
        """Processes, the leader included."""
        return len(self.links) + 1

    def order(self, task: str, *arguments: Sequence[Any]) -> None:
        """Sends each of the others a method of `Follower` to carry out.

        Args:
            arguments: for each argument of the method its values, one for each process, the leader's first.
        """
        with linked():
            for i, link in enumerate(self.links, start=1):
                link.send((task, tuple(values[i] for values in arguments)))

    def results(self) -> list[Any]:
        """Waits for the others; returns what their methods returned. Raises CrewBroken if one has died."""
        with linked():
            return [link.recv() for link in self.links]

    @contextlib.contextmanager
    def one_thread_each(self) -> Iterator[None]:
        """While the others work, or soon will, the leader computes with one thread, as they do; alone with all it has.

        A second thread looks out for more work for some milliseconds after it has helped, on a core that another
        process is to use.
        """
        n_threads = torch.get_num_threads()
        if self.links:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if self.links:
                torch.set_num_threads(n_threads)

    def close(self) -> None:
        """Sends the others home."""
        for link in self.links:
            link.close()


ALONE = Crew()
