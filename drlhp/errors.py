"""Errors that the user can fix, each with a message of one sentence that says how."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

FIXES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space on its disk"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "allow that"),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG), "give another path"),
}


class UserError(Exception):
    """An error that the user can fix; the message is one sentence that says how."""


def reason_of(error: BaseException) -> str:
    """Returns the first line of a foreign error's message, or its type if it has none, for use within a sentence.

    A note of ours about it follows.
    """
    reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
    return ", ".join([reason, *getattr(error, "__notes__", ())[:1]])


def told(error: BaseException) -> str:
    """Returns an error's message as one sentence, with the fix if the system refuses a file."""
    if isinstance(error, OSError) and error.errno in FIXES:
        return f"cannot use {error.filename or 'a file'} ({error.strerror}): {FIXES[error.errno]}."
    sentence = str(error).replace("\n", " ").rstrip(".") or type(error).__name__  # a file name may contain a line break
    return sentence if sentence.endswith("?") else f"{sentence}."


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Names this file in what the system refuses within the block; a failed write names none by itself."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, ConnectionError):  # which is about no file
            error.filename = error.filename or str(path)
        raise


class PrefDBError(UserError):
    """The store fails in a way that the user can fix; the message is one sentence with the fix."""


class LostConnectionError(PrefDBError):
    """The connection to the store was lost; what was not committed has to begin again."""


class DamagedStoreError(PrefDBError):
    """The store itself is damaged, or rows of it are missing; what is whole can be salvaged."""


class DamagedError(PrefDBError):
    """A stored segment or clip cannot be read; the rest of the file may be intact."""


class UnknownSegmentError(PrefDBError):
    """No segment with that id is stored."""


class SpaceError(UserError, ValueError):
    """Observations or actions cannot be used; the message is one sentence that names the space and what would work."""


class ArgumentError(UserError, TypeError):
    """A wrapper has no such argument; the message names the nearest one."""


class WorkerError(UserError):
    """A worker of a vector environment cannot start the wrapper's processes."""


class ChildError(Exception):
    """A child process died; the message says which and why."""

    def __init__(self, message: str, child_traceback: str = "") -> None:
        super().__init__(message)
        self.child_traceback = child_traceback


# Exceptions whose message is meant for the user as it stands.
USER_ERRORS = (UserError, OSError)
