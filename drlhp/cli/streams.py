"""TODO."""

from __future__ import annotations

import io
import os
import sys


def hang_up(*_: object) -> None:
    """The terminal is gone, as when an SSH session is cut off: a Ctrl-C after which nothing can be said any more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    raise KeyboardInterrupt


def prepare_streams() -> None:
    """Lets a stream that was closed lead nowhere, and letters that one cannot take come as question marks."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
