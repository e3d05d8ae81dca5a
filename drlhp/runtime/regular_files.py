"""Reads files that anybody may have put in place: regular files only, and no more bytes than asked for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from drlhp.errors import UserError


def open_regular(path: Path) -> BinaryIO:
    """Opens a file to read its bytes. A pipe or a device in its place could be waited for, or read, for ever.

    Raises:
        UserError: it is no regular file.
        OSError: it cannot be opened, or is a folder.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without the flag a pipe that nobody writes to blocks
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise UserError(f"{path} is no regular file; put the file itself, or a copy, in its place.")


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Returns the contents of a regular file.

    Raises:
        UserError: it is no regular file, or larger.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise UserError(f"{path} is larger than {most_bytes:,} bytes; put the file that belongs there in its place.")
    return data
