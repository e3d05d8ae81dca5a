"""Watches the room on the disk that holds the store, so that the last of it is left to the answers."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path

LOOK_SECONDS = 2.0
LEAST_FREE = 200 * 2**20  # bytes on the store's disk: the last ones are for answers, which cannot be made again


def nearly_full(store: Path) -> bool:
    """Returns whether the store's disk has room for answers only."""
    return shutil.disk_usage(store.parent).free < LEAST_FREE


class DiskSpace:
    """Looks now and then whether the store's disk still has room for clips."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.is_full = False  # as it was found last
        self.look_at = -math.inf

    def look(self) -> bool:
        """Returns whether the disk is full; looks at it if the last look was a while ago."""
        now = time.monotonic()
        if now >= self.look_at:
            self.look_at = now + LOOK_SECONDS
            self.is_full = nearly_full(self.store)
        return self.is_full
