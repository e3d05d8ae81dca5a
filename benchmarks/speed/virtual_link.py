"""A Ray cluster of two nodes, of which one is in a network namespace: the system counts what goes over the link."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

SPACE, HERE, THERE = "drlhp-actors", "drlhp-here", "drlhp-there"  # the namespace, and the two ends of the link
LEARNERS, ACTORS = "10.199.77.1", "10.199.77.2"
PORT = 26379
RAY = Path(sys.executable).parent / "ray"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class VirtualLink:
    """Makes the link for a block; needs root."""

    def __init__(self) -> None:
        self.nodes: list[subprocess.Popen[str]] = []
        self.folder = ""

    def __enter__(self) -> VirtualLink:
        _ip("netns", "add", SPACE)
        try:
            _ip("link", "add", HERE, "type", "veth", "peer", "name", THERE)
            _ip("link", "set", THERE, "netns", SPACE)
            _ip("addr", "add", f"{LEARNERS}/24", "dev", HERE)
            _ip("link", "set", HERE, "up")
            for words in (
                ("addr", "add", f"{ACTORS}/24", "dev", THERE),
                ("link", "set", THERE, "up"),
                ("link", "set", "lo", "up"),
            ):
                _ip("-n", SPACE, *words)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        _ip("netns", "del", SPACE)  # which takes the link with it

    def start(self, cores: int) -> dict[str, str]:
        """Starts a node without cores here, and one with cores at the other end; returns who may use them."""
        self.folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "counting-" * 5}
        common = ["--block", "--disable-usage-stats", f"--object-store-memory={200 * 2**20}"]
        head = [
            "--head",
            f"--port={PORT}",
            f"--node-ip-address={LEARNERS}",
            "--num-cpus=0",
            "--include-dashboard=false",
        ]
        self._start([*head, f"--temp-dir={self.folder}", *common], variables)
        node = [f"--address={LEARNERS}:{PORT}", f"--node-ip-address={ACTORS}", f"--num-cpus={cores}"]
        self._start([*node, *common], variables, "ip", "netns", "exec", SPACE)
        return {**variables, "RAY_ADDRESS": f"{LEARNERS}:{PORT}"}

    def _start(self, words: list[str], variables: dict[str, str], *before: str) -> None:
        """Starts a node, and waits until it says that it runs."""
        process = subprocess.Popen(
            [*before, str(RAY), "start", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **variables},
            start_new_session=True,
        )
        self.nodes.append(process)
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if re.search(r"Ray runtime started", line):
                return
        raise RuntimeError("".join(said))

    def counted(self) -> tuple[int, int]:
        """Returns the bytes that have gone to the learner, and from it, with all headers."""
        of = Path("/sys/class/net") / HERE / "statistics"
        return int((of / "rx_bytes").read_text()), int((of / "tx_bytes").read_text())

    def stop(self) -> None:
        """Ends the nodes."""
        for node in reversed(self.nodes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGTERM)
            node.wait()
        self.nodes.clear()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
