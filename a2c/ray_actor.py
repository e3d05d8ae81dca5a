"""What Ray carries to the nodes of a cluster: an actor, which finds the clone there.

Ray sends this code itself, and a node imports the rest from the clone. So only the standard library is imported here
until the actor has found the clone.
"""

from __future__ import annotations

from typing import Any


class RayActor:
    """A process on a node that carries out the methods of `a2c.remote.RemoteFollower`.

    Args:
        clone: the folder of run.py.
        spec: the arguments of `a2c.remote.spec_of`.
    """

    def __init__(self, clone: str, spec: dict[str, Any]) -> None:
        self.clone, self.spec = clone, spec
        self.follower: Any = None

    def begin(self, seed: int) -> Any:
        """Starts its environments; returns their first observations, or in a sentence why it cannot."""
        import importlib
        import os
        import socket
        import sys

        if not os.path.exists(os.path.join(self.clone, "a2c", "remote.py")):
            return f"{self.clone} is not on {socket.gethostname()}; put the clone under the same path on all nodes."
        if self.clone not in sys.path:
            sys.path.insert(0, self.clone)
        remote: Any = importlib.import_module("a2c.remote")
        self.follower = remote.RemoteFollower(remote.spec_of(**self.spec))
        return self.follower.begin(seed)

    def act(self, *arguments: Any) -> Any:
        """Returns the next rollout of its environments."""
        return self.follower.act(*arguments)
