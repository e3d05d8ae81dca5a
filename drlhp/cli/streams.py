"""Makes a command's standard streams safe: closed streams, a lost terminal, and characters that cannot be encoded."""

from __future__ import annotations

import io
import os
import sys


def hang_up(*_: object) -> None:
    """Acts like Ctrl-C and discards all further output, because the terminal is gone, as after a lost SSH session."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    raise KeyboardInterrupt


def prepare_streams() -> None:
    """Connects closed streams to the null device, and replaces characters that a stream cannot encode or decode."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
