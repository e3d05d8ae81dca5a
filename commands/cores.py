"""Shares the cores of a machine between the runs that Ray starts on it: Ray counts cores, and assigns none."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def cores_for(n: int) -> Iterator[list[int]]:
    """Yields n of the cores that this process may use, and holds them for the block; none if it cannot be pinned.

    A core that is held is taken again only if none is free, as if Ray was told of more cores than there are.
    """
    usable = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
    with contextlib.ExitStack() as held:
        taken: list[int] = []
        for layer in itertools.count():
            for core in usable:
                if len(taken) < n and core not in taken and _hold(f"{core}-{layer}", held):
                    taken.append(core)
            if len(taken) == min(n, len(usable)):
                break
        yield taken


def _hold(name: str, held: contextlib.ExitStack) -> bool:
    """Returns whether nobody has this name; the system frees it, which no file has, with the process that holds it."""
    name_of_socket = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    try:
        name_of_socket.bind(f"\0drlhp-core-{name}")
    except OSError:
        return False
    return True
