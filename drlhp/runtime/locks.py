"""The lock of a run folder: one process holds it, and others see it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from drlhp.errors import UserError


class FolderLock:
    """Holds a folder for this process: by its file `lock`, and by the folder itself, as long as that is there.

    The file alone could be deleted, and another process would then hold a new one.
    """

    def __init__(self, path: Path) -> None:
        """Raises BlockingIOError if another process holds the folder, and OSError if its `lock` cannot be written."""
        self.path = path
        with contextlib.ExitStack() as failed:
            self._file = failed.enter_context((path / "lock").open("w"))
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._folder = os.open(path, os.O_RDONLY)
            failed.callback(os.close, self._folder)
            try:
                fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise
            except OSError:
                pass  # Network file systems lock no folders.
            self._release = failed.pop_all()

    def check(self) -> None:
        """Raises UserError if the folder was removed or renamed."""
        if not leads_to(self.path, os.fstat(self._folder)):
            raise UserError(
                f"{self.path} was removed or renamed while a run used it, so the run has stopped; give it back its "
                "name, or resume the run by the new one."
            )

    def close(self) -> None:
        """Releases the lock; may be called twice."""
        self._release.close()


def leads_to(path: Path, stat: os.stat_result) -> bool:
    """Returns whether a path leads to the file or folder that `stat` describes."""
    try:
        return os.path.samestat(path.stat(), stat)
    except OSError:
        return False


def in_use(path: Path) -> bool:
    """Returns whether a run uses the folder now; the lock stays as it is."""
    return any(_is_locked(place) for place in (path / "lock", path))


def _is_locked(place: Path) -> bool:
    try:
        opened = os.open(place, os.O_RDONLY)
    except OSError:
        return False  # without a readable lock file the folder is a copy, or somebody else's
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)  # closing the file releases it
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(opened)
    return False
