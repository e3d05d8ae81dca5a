"""The objects that all routes of the labelling server share."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drlhp.label_server import status as status_module
from drlhp.label_server.clips import Clips
from drlhp.label_server.presence import Presence
from drlhp.label_server.queue_thread import QueueThread
from drlhp.label_server.security import Sessions
from drlhp.labelling.queue import LabelQueue

STATUS_SECONDS = 1.0  # between readings of the status while pages wait
BEAT_SECONDS = 5.0  # between signs of life, in the store and to a page that hears no news


class Troubles:
    """The parts of the server that fail now, by name; empty if all is well."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}  # name of the thing whose last try failed -> why
        self.clips: Clips | None = None  # which report their own trouble

    def add(self, name: str, why: str) -> None:
        self._reasons[name] = why

    def over(self, name: str) -> None:
        self._reasons.pop(name, None)

    def words(self) -> str:
        """Returns each reason once, for the page; empty if all is well."""
        reasons = (self.clips.trouble if self.clips else "", *self._reasons.values())
        return "; ".join(dict.fromkeys(why for why in reasons if why))


class LiveStatus:
    """The status for the pages, read from the store at most once a second unless something was done."""

    def __init__(self, queue: QueueThread, run_dir: Path, troubles: Troubles) -> None:
        self._queue, self._run_dir, self._troubles = queue, run_dir, troubles
        self._newest: tuple[float, dict[str, Any]] = (-math.inf, {})
        self._waiting: asyncio.Task[dict[str, Any]] | None = None  # a reading that has not begun

    async def read(self) -> dict[str, Any]:
        """Returns the status; see STATUS in schema.py. Raises PrefDBError.

        All who ask before a reading begins share it.
        """
        at, status = self._newest
        if time.monotonic() - at < STATUS_SECONDS:
            return status
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = asyncio.create_task(self._read())
        return await asyncio.shield(waiting)

    async def _read(self) -> dict[str, Any]:
        def begin(queue: LabelQueue) -> dict[str, Any]:
            self._waiting = None
            return status_module.status(queue, self._run_dir, time.time())

        try:
            status = await self._queue.call(begin, writes=False)
        finally:
            if self._waiting is asyncio.current_task():  # it failed before it began
                self._waiting = None
        status["trouble"] = "; ".join(why for why in (status["trouble"], self._troubles.words()) if why)
        self._newest = (time.monotonic(), status)
        return status

    def outdated(self) -> None:
        """Makes the next `read` read the store, because something was done."""
        self._newest = (-math.inf, {})


@dataclass
class Shared:
    """The things that the handlers of all topics use."""

    run_dir: Path
    host: str  # the address that the server listens at
    labeller: str  # the name of the person at this machine
    origin: str  # where a proxy serves the page; empty without a proxy
    tunnel: str  # the command that makes the link work on another computer; empty if it works without
    queue: QueueThread
    sessions: Sessions
    presence: Presence = field(default_factory=Presence)
    troubles: Troubles = field(default_factory=Troubles)
    unshowable: dict[str, str] = field(default_factory=dict)  # segments to retire at the next claim -> why
    stopping: bool = False

    def __post_init__(self) -> None:
        self.status = LiveStatus(self.queue, self.run_dir, self.troubles)

    async def beat(self) -> None:
        """Stores a sign of life: who labels here, and what fails. Raises PrefDBError."""
        word = {"trouble": self.troubles.words(), "labellers": self.presence.names()}
        await self.queue.call(lambda queue: queue.notices.beat("server", word))

    @property
    def clips(self) -> Clips:
        assert self.troubles.clips is not None, "the server has not started yet"
        return self.troubles.clips

    @clips.setter
    def clips(self, clips: Clips) -> None:
        self.troubles.clips = clips
