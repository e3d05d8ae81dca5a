"""A web page on which people say which of two clips is better, and its server."""

from drlhp.label_server.clips import KEEP_CLIPS, SheetStore
from drlhp.label_server.security import check_origin, is_loopback
from drlhp.label_server.server import DEFAULT_HOST, DEFAULT_PORT, Address, launch, listen, port_before, prepare, stop

__all__ = [
    "DEFAULT_HOST",
    "DEFAULT_PORT",
    "KEEP_CLIPS",
    "Address",
    "SheetStore",
    "check_origin",
    "is_loopback",
    "launch",
    "listen",
    "port_before",
    "prepare",
    "stop",
]
