"""A store of pairs to ask about, a real labelling server in a process of its own, and somebody who talks to it."""

from __future__ import annotations

import http.client
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from drlhp import label_server
from drlhp.data.comparison import Comparison
from drlhp.data.segment import Segment
from drlhp.data.views import encode_frames
from drlhp.label_server import Address, launch, listen, prepare, stop
from drlhp.labelling.queue import LabelQueue
from pref_db import PrefDB
from tests.support.postgres import make_store as new_store
from tests.support.preloaded import PreloadedPopen

ENV_ID, STEPS = "MovingDotNoFrameskip-v0", 25
PATIENCE = 600.0  # seconds; on a machine that does other things


def segment(seed: int, *, colour: bool = True, steps: int = STEPS) -> Segment:
    """A small light that moves over the picture, another way for each seed; in colour it is orange on blue."""
    rng = np.random.default_rng(seed)
    frames = np.zeros((steps + 3, 84, 84), np.uint8)
    (y, x), (dy, dx) = rng.integers(10, 70, 2), rng.integers(-3, 4, 2)
    view = np.zeros((steps, 84, 84, 3), np.uint8)
    view[:] = (30, 40, 90)
    for t in range(steps + 3):
        at = (
            slice(max(0, y + dy * t) % 80, max(0, y + dy * t) % 80 + 6),
            slice((x + dx * t) % 78, (x + dx * t) % 78 + 6),
        )
        frames[t][at] = 255
        if t >= 3:
            view[t - 3][at] = (255, 150, 40)
    return Segment(
        ENV_ID,
        frames,
        rng.integers(0, 5, steps),
        rng.normal(size=steps).astype(np.float32),
        stack=4,
        policy_step=seed,
        seed=seed,
        fps=15.0,
        view=encode_frames(view) if colour else None,
    )


def pairs(n: int, *, first_seed: int = 0, colour: bool = True) -> list[Comparison]:
    """Comparisons of segments that are in no other of them."""
    seeds = range(first_seed, first_seed + 2 * n, 2)
    return [Comparison(segment(i, colour=colour), segment(i + 1, colour=colour), flip=False) for i in seeds]


def make_store(
    folder: Path,
    n: int,
    settings: dict[str, str] | None = None,
    *,
    colour: bool = True,
    kind: str = "sqlite",
    address: str = "",
) -> Path:
    """A run folder's prefs.db with n pairs to ask about, for labellers who know the page and need no tour of it."""
    folder.mkdir(parents=True, exist_ok=True)
    db = PrefDB.open(new_store(folder / "prefs.db", kind, ENV_ID, STEPS, address=address))
    queue = LabelQueue(db)
    queue.submit(pairs(n, colour=colour))
    for key, value in {"goal": str(n), "tour": "0", **(settings or {})}.items():
        queue.notices.set_setting(key, value)
    db.close()
    return folder / "prefs.db"


class Client:
    """Sends JSON with a cookie, as the page does."""

    def __init__(self, address: Address) -> None:
        self.address, self.cookie = address, ""
        self.connection = http.client.HTTPConnection(address.host, address.port, timeout=PATIENCE)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, http.client.HTTPMessage]:
        """Status, body and headers; asks once more on a connection that was closed meanwhile."""
        named = {"Origin": f"http://{self.address.host}:{self.address.port}", "Content-Type": "application/json"}
        sent = {
            **(named if method == "POST" else {}),
            **({"Cookie": self.cookie} if self.cookie else {}),
            **(headers or {}),
        }
        try:
            self.connection.request(method, path, body, sent)
            response = self.connection.getresponse()
        except (ConnectionError, http.client.HTTPException):
            self.connection.close()
            self.connection.request(method, path, body, sent)
            response = self.connection.getresponse()
        data = response.read()
        if cookie := response.headers.get("Set-Cookie"):
            self.cookie = cookie.split(";")[0]
        return response.status, data, response.headers

    def get(self, path: str) -> tuple[int, Any]:
        status, data, _ = self.request("GET", path)
        return status, json.loads(data)

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        status, data, _ = self.request("POST", path, json.dumps(body).encode())
        return status, json.loads(data)

    def next(self, n: int = 1) -> list[dict[str, Any]]:
        status, reply = self.post("/api/next", {"n": n})
        assert status == 200, reply
        return reply["leases"]

    def answer(self, lease: dict[str, Any], choice: str, client_id: str, **fields: Any) -> tuple[int, Any]:
        now = time.time()
        body = {"client_id": client_id, "choice": choice, "shown_at": now - 2, "answered_at": now, **fields}
        return self.post("/api/answer", {**{key: lease[key] for key in ("token", "comparison_id")}, **body})


class Server:
    """A labelling server in a process; it may be killed and started again, and keeps its address.

    fresh: it is of a Python that has imported nothing beforehand.
    """

    def __init__(
        self, folder: Path, host: str = "127.0.0.1", origin: str = "", framed: bool = False, *, fresh: bool = False
    ) -> None:
        self.folder, self.host, self.origin, self.framed, self.fresh = folder, host, origin, framed, fresh
        self._socket = listen(host, 0)
        self.address, self.token = prepare(folder, self._socket)
        self.process: Any = None
        self._clients: list[Client] = []

    def start(self) -> None:
        start = subprocess.Popen if self.fresh else PreloadedPopen
        parts = SimpleNamespace(PIPE=subprocess.PIPE, Popen=start)
        with mock.patch.object(label_server.server, "subprocess", parts):  # its imports take as long as many a test
            self.process = launch(
                self.folder / "prefs.db", self.folder, self._socket, origin=self.origin, framed=self.framed
            )

    def kill(self) -> None:
        self.process.kill()
        stop(self.process)

    def client(self, labeller: str = "me") -> Client:
        """Somebody who is logged in."""
        client = self.anonymous()
        code, reply = client.post("/api/login", {"token": self.token, "labeller": labeller})
        assert code == 200, reply
        return client

    def anonymous(self) -> Client:
        """Somebody who is not."""
        self._clients.append(Client(self.address))
        return self._clients[-1]

    @property
    def link(self) -> str:
        """As the run prints it, with the name of who labels here: a new browser would be asked for another."""
        return f"{self.address.link(self.token)}&n=me"

    def close(self) -> None:
        for client in self._clients:
            client.connection.close()
        if self.process is not None:
            stop(self.process)
        self._socket.close()


@contextmanager
def running(
    folder: Path, host: str = "127.0.0.1", origin: str = "", framed: bool = False, *, fresh: bool = False
) -> Iterator[Server]:
    """A server for the store in this folder, stopped with the block."""
    server = Server(folder, host, origin, framed, fresh=fresh)
    try:
        server.start()
        yield server
    finally:
        server.close()
