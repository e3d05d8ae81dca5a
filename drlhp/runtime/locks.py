"""The lock of a run folder, as others see it."""

from __future__ import annotations

import fcntl
from pathlib import Path


def in_use(path: Path) -> bool:
    """Returns whether a run uses the folder now; the lock stays as it is."""
    try:
        with (path / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # closing the file releases it
    except BlockingIOError:
        return True
    except OSError:
        return False  # without a readable lock file the folder is a copy, or somebody else's
    return False
