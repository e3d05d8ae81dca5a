"""Several processes that share the policy's work: one leads, each acts in environments of its own.

The other way to use several cores is to split each layer of a network between threads that meet after it. With the
small batches of a policy they meet every few dozen microseconds, and sleeping threads have to be woken. Here the
processes meet twice per update: each has a share of the environments and of the gradient. All of them share the memory
of rollout, weights and gradients, so that only orders travel.
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
from numpy.typing import NDArray

from a2c.config import PolicyConfig
from drlhp.runtime.start import Context
from envs import EnvInfo

ALIGNMENT = 64  # bytes, a cache line
LEAST_ENVS = 4  # per process; with fewer, batches are too small to be worth a process


def fills_cores(info: EnvInfo, config: PolicyConfig, device: torch.device) -> bool:
    """Returns whether the policy can use several cores: for convolutions or the simulation of bodies, on the CPU."""
    convolves = info.kind == "pixels" and config.policy_network != "feature_points"
    if config.algo == "sac":  # which takes little of its time to act, and computes updates in one process
        return False
    return (convolves or info.state_size > 0) and device.type == "cpu"


def crew_size(info: EnvInfo, config: PolicyConfig, device: torch.device, n_cores: int) -> int:
    """Returns how many processes should share the policy's work."""
    return max(1, min(n_cores, config.n_envs // LEAST_ENVS)) if fills_cores(info, config, device) else 1


def share(n: int, size: int, index: int) -> slice:
    """Returns a process's share of n things: about as many as each of the others has."""
    return slice(n * index // size, n * (index + 1) // size)


class CrewBroken(Exception):
    """Another process of the crew has left, or died."""


@contextlib.contextmanager
def linked() -> Iterator[None]:
    """Raises CrewBroken if the other end of a link is gone; use it around links alone, not around environments."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise CrewBroken("another process of the policy has ended") from error


class Arena:
    """Hands out arrays in shared memory: processes that ask in the same order get the same arrays.

    Args:
        memory: the shared memory, of `allocate`; without it every array has memory of its own.
        pinned: arrays have memory of their own that a GPU reads directly.
    """

    def __init__(self, memory: Any = None, *, pinned: bool = False) -> None:
        self.memory, self.pinned, self.used = memory, pinned, 0

    def array(self, shape: Sequence[int], dtype: npt.DTypeLike = np.float32) -> np.ndarray:
        """Returns zeros in memory that no other array has."""
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
        """Returns memory for a tensor of this shape, type and layout, which must be dense."""
        values = torch.from_numpy(self.array((like.numel() * like.element_size(),), np.uint8)).view(like.dtype)
        return values.as_strided(like.shape, like.stride())


def allocate(n_bytes: int, context: Context) -> Any:
    """Returns memory to share, which each process is given when it starts."""
    return context.RawArray(ctypes.c_byte, n_bytes)


class Followers(NamedTuple):
    """The leader's share in the other processes of its crew; none by default."""

    links: Sequence[Connection] = ()  # the leader's end of each
    memory: Any = None  # that all of them share, of `allocate`

    def close(self) -> None:
        """Closes the links in this process, when the leader has them."""
        for link in self.links:
            link.close()


NO_FOLLOWERS = Followers()


class Cluster(NamedTuple):
    """Where the actors are if not on this machine, and how many."""

    on: str  # `ray`, or ray://HOST:PORT
    n_actors: int


class Found(NamedTuple):
    """What the leader cannot see in the rollout after the others have acted; nothing if they run on its machine."""

    views: Sequence[np.ndarray] = ()  # (n_watched, H, W, 3) of each step, if people watch and the leader does not act
    anew: NDArray[np.bool_] | None = None  # (N,) whose environments were replaced before the rollout, by new ones


class Crew:
    """The leader's side of a crew: sends orders to the other processes, if there are any.

    Args:
        links: one to each other process.
        gradients: the shared memory of each other process's share of the gradients, in the order of `Policy.weights`.
    """

    n_watched = 0  # environments whose frames people see, if the leader has none

    def __init__(self, links: Sequence[Connection] = (), gradients: Sequence[list[torch.Tensor]] = ()) -> None:
        self.links, self.gradients = links, gradients

    @property
    def size(self) -> int:
        """The number of processes, the leader included."""
        return len(self.links) + 1

    def order(self, task: str, *arguments: Sequence[Any]) -> None:
        """Orders each other process to carry out a method of `Follower`.

        Args:
            arguments: for each argument of the method, one value for each process, the leader's first.
        """
        with linked():
            for i, link in enumerate(self.links, start=1):
                link.send((task, tuple(values[i] for values in arguments)))

    def results(self) -> list[Any]:
        """Waits for the others and returns their methods' results. Raises CrewBroken if one has died."""
        with linked():
            return [link.recv() for link in self.links]

    def begin(self, seed: int) -> None:
        """Lets the others start their environments; environment i of the rollout has the seed `seed + i`."""
        self.order("begin", [seed] * self.size)

    def act(self, given_up: NDArray[np.bool_] | None) -> None:
        """Lets the others fill their columns of the rollout; the episodes (N,) that are given up end at its start."""
        self.order("act", [given_up] * self.size)

    def wait(self) -> Found:
        """Waits until the others have begun or acted. Raises CrewBroken if one has died."""
        self.results()
        return Found()

    @contextlib.contextmanager
    def one_thread_each(self) -> Iterator[None]:
        """Lets the leader compute with one thread while the others work; alone, with all it has.

        After its work a second thread busy-waits for some milliseconds on a core that another process needs.
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
        """Ends the others."""
        for link in self.links:
            link.close()


ALONE = Crew()
