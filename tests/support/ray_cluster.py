"""A real Ray cluster of two nodes on this machine, in processes of their own, which end with the test that started it.

python tests/support/ray_cluster.py FOLDER CORES CORES
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GATE = "TEST_GATE"  # the variable that names the file of `allow`
TOKEN = "open-sesame-" * 4


class RayCluster:
    """A cluster that asks for a token.

    Args:
        cores: how many each node says it has; the first node is the head.
    """

    def __init__(self, *cores: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # a socket's path has 107 characters at most
        self.gate = self.folder / "gate"
        with (self.folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(self.folder), *map(str, cores)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, **self.variables(), GATE: str(self.gate)},
            )
        assert self.process.stdout is not None
        told = self.process.stdout.readline()
        assert told, (self.folder / "log").read_text()
        self.told: dict[str, Any] = json.loads(told)

    @classmethod
    def start(cls, *cores: int) -> RayCluster:
        """Starts one; skips the test without Ray, which is not imported here: it reads only once who has a token."""
        if find_spec("ray") is None:
            pytest.skip("needs Ray")
        return cls(*cores)

    def variables(self, token: str = TOKEN) -> dict[str, str]:
        """The environment of who may use it."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}

    def allow(self, n_steps: int) -> None:
        """Lets each environment of the runs take so many steps (tests/support/gated.py)."""
        self.gate.write_text(str(n_steps))

    @property
    def address(self) -> str:
        return str(self.told["address"])

    @property
    def raylets(self) -> list[int]:
        """The ids of the processes that are the nodes."""
        return list(self.told["raylets"])

    def close(self) -> None:
        """Ends all of it."""
        self.process.communicate()  # closes its input, on which it ends
        shutil.rmtree(self.folder, ignore_errors=True)


def serve(folder: str, cores: list[int]) -> None:
    """Starts the nodes, says where they are, and keeps them until nobody wants them any more."""
    import ray._private.utils

    ray._private.utils.write_ray_address = lambda *_, **__: None  # what this machine has noted stays
    from ray.cluster_utils import Cluster

    cluster = Cluster(shutdown_at_exit=False)
    common: dict[str, Any] = {"temp_dir": folder, "object_store_memory": 80 * 2**20}
    # Each process of Ray's own takes seconds to start: none for what nobody here looks at, and no worker in advance.
    common |= {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    head: dict[str, Any] = {"_system_config": {"prestart_worker_first_driver": False}}
    nodes = [cluster.add_node(num_cpus=n, **common, **({} if i else head)) for i, n in enumerate(cores)]
    raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
    print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    from drlhp.runtime.leash import everything_ends_here

    with everything_ends_here():
        serve(sys.argv[1], [int(word) for word in sys.argv[2:]])
    os._exit(0)  # Ray would wait for what has been ended
