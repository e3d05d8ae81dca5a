"""What Ray carries to the nodes of a cluster: the start of a run there, and the board that collects what runs say.

Ray sends this code itself, and a node imports the rest from the clone on the shared storage. So only the standard
library is imported here until a task has found the clone.
"""

from __future__ import annotations

from typing import Any


class Board:
    """An actor with the newest line of each run, and where it runs."""

    def __init__(self) -> None:
        self.latest: dict[str, tuple[str, str]] = {}

    def tell(self, run: str, node: str, line: str) -> None:
        """Takes a line."""
        self.latest[run] = node, line

    def read(self) -> dict[str, tuple[str, str]]:
        """Returns node and line of each run that has said something."""
        return self.latest


def carry_out_on_node(clone: str, spec: dict[str, Any], board: Any) -> tuple[int, list[str]]:
    """Carries out a run on this node; returns its exit status, and its last lines.

    Args:
        clone: the folder of run.py.
        spec: the arguments of `commands.on_node.NodeRun`.
        board: the handle of the `Board`.
    """
    import importlib
    import os
    import socket
    import sys

    node = socket.gethostname()
    if not os.path.exists(os.path.join(clone, "commands", "on_node.py")):
        return 2, [f"{clone} is not on {node}; put the clone on storage that all nodes share, under the same path."]
    if clone not in sys.path:
        sys.path.insert(0, clone)
    run: Any = importlib.import_module("commands.on_node").NodeRun(**spec)
    return run.carry_out(lambda line: board.tell.remote(spec["name"], node, line))
