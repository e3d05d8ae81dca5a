"""Which labellers have the page open, and which have just left it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from drlhp.labelling.notices import SILENT_SECONDS

GRACE_SECONDS = 5.0  # between a page's end and the release of its pairs: a reload comes sooner


class Presence:
    """Knows by name when each labeller's page was last heard of; one object per server."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}  # name -> when the page was last heard of, by the monotonic clock
        self._leaving: dict[str, asyncio.TimerHandle] = {}

    def seen(self, labeller: str) -> None:
        self._seen[labeller] = time.monotonic()

    def names(self) -> list[str]:
        """Returns the labellers whose pages were heard of in the last few seconds."""
        soon = time.monotonic() - SILENT_SECONDS
        self._seen = {name: at for name, at in self._seen.items() if at > soon}
        return sorted(self._seen)

    def rename(self, before: str, name: str) -> None:
        """Moves a labeller to another name, so that somebody else may take the old one."""
        self._seen[name] = self._seen.pop(before, time.monotonic())

    def leave(self, labeller: str, release: Callable[[], None]) -> None:
        """Calls `release` in a few seconds, unless the labeller comes back before."""

        def left() -> None:
            self._leaving.pop(labeller, None)
            self._seen.pop(labeller, None)
            release()

        self._leaving[labeller] = asyncio.get_running_loop().call_later(GRACE_SECONDS, left)

    def come_back(self, labeller: str) -> None:
        """Cancels the labeller's leaving: the page was only loaded again."""
        timer = self._leaving.pop(labeller, None)
        if timer is not None:
            timer.cancel()

    def clear(self) -> None:
        """Forgets everybody, because the server stops."""
        for timer in self._leaving.values():
            timer.cancel()
        self._seen.clear()
