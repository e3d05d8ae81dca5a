"""What the user can mend."""

import errno

FIXES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space on its disk"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "allow that"),
    **dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG), "give another path"),
}


class UserError(Exception):
    """Something the user can mend; the message is one sentence that says how."""


def reason_of(error: BaseException) -> str:
    """What somebody else's error says, to stand in a sentence: its first line, or its type if it says nothing."""
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__


def told(error: BaseException) -> str:
    """What is told of an error, as one sentence; where the system will not use a file, with the fix."""
    if isinstance(error, OSError) and error.errno in FIXES:
        return f"cannot use {error.filename or 'a file'} ({error.strerror}): {FIXES[error.errno]}."
    sentence = str(error).replace("\n", " ").rstrip(".") or type(error).__name__  # a name may go over two lines
    return sentence if sentence.endswith("?") else f"{sentence}."


class PrefDBError(UserError):
    """Something the user can put right; the message is one sentence with the fix."""


class DamagedError(PrefDBError):
    """A stored segment or clip cannot be read; the rest of the file may be well."""


class UnknownSegmentError(PrefDBError):
    """There is no segment of that id."""


class SpaceError(UserError, ValueError):
    """Observations or actions cannot be used; the message is one sentence that names the space and what would work."""


class ChildError(Exception):
    """A child process died; the message says which and why."""

    def __init__(self, message: str, child_traceback: str = "") -> None:
        super().__init__(message)
        self.child_traceback = child_traceback


# Exceptions whose message is meant for the user as it stands.
USER_ERRORS = (UserError, OSError)
