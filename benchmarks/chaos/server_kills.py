"""Answers to the label server while it is killed: each that it confirmed is stored, and none is stored twice."""

from __future__ import annotations

import contextlib
import http.client
import json
import uuid
from typing import Any

from benchmarks.chaos.cases import Notes, processes
from tests.support.commands import answers
from tests.support.labelling import Client, Server, make_store, running

ANSWERS, KILLS = 200, 1  # of a case
CHOICES = ("left", "right", "equal", "incomparable")
RESENT = 0.1  # share of the answers that are sent again although they were confirmed


class Labeller:
    """Answers every pair, and sends an answer again until it is confirmed, as the page does."""

    def __init__(self, server: Server, notes: Notes, n: int) -> None:
        self.server, self.notes, self.n = server, notes, n
        self.client = server.client()
        self.confirmed: set[str] = set()
        self.kill_at = sorted(notes.rng.sample(range(1, n), KILLS))

    def label(self) -> None:
        """Answers until there is nothing left to answer."""
        while leases := self.asked("/api/next", {"n": 4})["leases"]:
            for lease in leases:
                self.answer(lease)

    def answer(self, lease: dict[str, Any]) -> None:
        client_id = uuid.UUID(int=self.notes.rng.getrandbits(128)).hex
        body = {"client_id": client_id, "choice": self.notes.rng.choice(CHOICES), "shown_at": 1.0, "answered_at": 2.0}
        body |= {name: lease[name] for name in ("token", "comparison_id")}
        if self.kill_at and len(self.confirmed) >= self.kill_at[0]:
            self.kill_at.pop(0)
            self.kill_during(body)
        receipt = self.asked("/api/answer", body)
        if receipt["status"] not in ("stored", "known"):
            self.notes.found(body, f"not stored: {receipt}")
        self.confirmed.add(client_id)
        if self.notes.rng.random() < RESENT and self.asked("/api/answer", body)["status"] != "known":
            self.notes.found(body, "the same answer again was not known")

    def kill_during(self, body: dict[str, Any]) -> None:
        """Sends an answer, kills the server before its reply has come, and starts it again."""
        self.notes.count("kills of the server")
        sender = Client(self.server.address)
        sender.cookie = self.client.cookie
        headers = {"Origin": f"http://{sender.address.host}:{sender.address.port}", "Content-Type": "application/json"}
        sender.connection.request("POST", "/api/answer", json.dumps(body), {**headers, "Cookie": sender.cookie})
        if self.notes.rng.random() < 0.5:  # else it may not even have been read
            with contextlib.suppress(ConnectionError, http.client.HTTPException):
                sender.connection.getresponse()
        self.server.kill()
        sender.connection.close()
        self.server.start()

    def asked(self, path: str, body: dict[str, Any]) -> Any:
        status, reply = self.client.post(path, body)
        if status != 200:
            self.notes.found(f"{path} {body}", f"status {status}: {reply}")
        return reply


def server_kills(number: int, notes: Notes, n: int = ANSWERS) -> None:
    """Answers so many pairs through kills of their server, and compares what it confirmed with what is stored."""
    make_store(notes.folder, n, {"repeat_share": "0", "overlap_share": "0"}, colour=False)
    with running(notes.folder, fresh=True) as server:  # nothing else may be left of it
        labeller = Labeller(server, notes, n)
        labeller.label()
    stored = answers(notes.folder)
    ids = [client_id for client_id, _, _ in stored]
    notes.count("answers", len(labeller.confirmed))
    if lost := labeller.confirmed - set(ids):
        notes.found("answers", f"{len(lost)} of {len(labeller.confirmed)} lost: {sorted(lost)[:5]}")
    pairs = {comparison_id for _, comparison_id, _ in stored}
    if not len(ids) == len(set(ids)) == len(pairs) == n:
        notes.found("answers", f"{n} pairs; {len(ids)} answers, {len(set(ids))} of them different, to {len(pairs)}")
    if left := processes():
        notes.found("the end of the server", f"processes left: {list(left.values())}")
    log = (notes.folder / "web" / "server.log").read_text()
    if log:
        notes.found("the server's log", log)
