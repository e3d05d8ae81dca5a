"""The labelling server as it runs: every route and field, answers that survive it, and who may talk to it."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import csv
import http.client
import io
import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from starlette.responses import Response
from uvicorn.protocols.http import h11_impl

from drlhp.label_server import Address, requests, security
from drlhp.label_server.app import LOG_BYTES, LabelApp, shorten
from drlhp.label_server.clips import Clips, encode_sheet, fitted
from drlhp.label_server.schema import ROUTES, problem
from drlhp.label_server.security import Attempts, Sessions, TimedProtocol, host_allowed, own_names, run_token
from drlhp.label_server.status import curves, status
from drlhp.labelling.answers import Submission
from drlhp.labelling.gatherers import QueueGatherer
from drlhp.labelling.notices import Notices
from drlhp.labelling.queue import LabelQueue
from drlhp.screens.gatherer import PersonGatherer
from drlhp.screens.screen import NoScreen
from examples import label_over_http
from pref_db import PrefDB
from tests.support import ROOT
from tests.support.labelling import Client, Server, make_store, running, segment

GETS = [path for path, methods in ROUTES.items() if "get" in methods]


pytestmark = pytest.mark.xdist_group("label_server")  # what they share is made once


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests that leave each other alone: each takes a labeller's name of its own."""
    with served(tmp_path_factory.mktemp("run"), "sqlite") as found:
        yield found


@pytest.fixture(scope="module")
def server_of_postgres(tmp_path_factory: pytest.TempPathFactory, shared_postgres: object) -> Iterator[Server]:
    """The same for a store in PostgreSQL."""
    with served(tmp_path_factory.mktemp("run"), "postgres") as found:
        yield found


@pytest.fixture
def either(store_kind: str, request: pytest.FixtureRequest) -> Server:
    """One of both, for the tests in which the store matters."""
    found: Server = request.getfixturevalue("server" if store_kind == "sqlite" else "server_of_postgres")
    return found


@contextlib.contextmanager
def served(folder: Path, kind: str) -> Iterator[Server]:
    settings = {"task": "Keep <b>left</b>", "repeat_share": "0", "true_reward": "0"}
    make_store(folder, 60, settings, kind=kind)
    (folder / "web").mkdir()
    (folder / "web" / "episode.mp4").write_bytes(b"not really a film")
    (folder / "progress.csv").write_text("steps,labels,episode_return\n0,1,-21\n100,2,-20\n")
    with running(folder) as found:
        yield found


def stored(folder: Path) -> list[tuple[Any, ...]]:
    """Every row that labelling may change."""
    db = PrefDB.open(folder / "prefs.db", read_only=True)
    with contextlib.closing(db):
        return [row for table in ("answer", "query", "lease", "setting") for row in db.read(f"SELECT * FROM {table}")]


def test_every_route_gives_what_the_description_says(either: Server) -> None:
    client = either.client("route")
    code, description = client.get("/openapi.json")
    assert code == 200 and set(description["paths"]) == set(ROUTES)
    first, second, third = client.next(3)
    replies: dict[tuple[str, str], tuple[int, Any]] = {
        ("post", "/api/answer"): client.answer(first, "left", "route-1", flag=True, note="odd", watched_ms=5),
        ("post", "/api/next"): client.post("/api/next", {"n": 2}),
        ("post", "/api/renew"): client.post("/api/renew", {"tokens": [second["token"]]}),
        ("post", "/api/release"): client.post("/api/release", {"tokens": [third["token"]]}),
        ("post", "/api/login"): client.post("/api/login", {"token": either.token, "labeller": "route"}),
        ("post", "/api/name"): client.post("/api/name", {"labeller": "route"}),
        ("post", "/api/invite"): client.post("/api/invite", {"labeller": "guest"}),
    }
    seq = replies["post", "/api/answer"][1]["seq"]
    edit = {"client_id": "route-2", "seq": seq, "choice": "right"}
    replies["post", "/api/edit"] = client.post("/api/edit", edit)
    for path in ("/api/me", "/api/status", "/api/history", "/api/curves", "/api/quality", "/openapi.json"):
        replies["get", path] = client.get(path)
    replies["post", "/api/undo"] = client.post("/api/undo", {"seq": None})
    other_kinds = {("get", path) for path in ("/api/events", "/api/clip/{segment}", "/api/episode", "/api/export")}
    other_kinds.add(("post", "/api/start"))  # has a test of its own
    assert set(replies) | other_kinds == {(m, path) for path, methods in ROUTES.items() for m in methods}
    for (method, path), (code, reply) in replies.items():
        operation = description["paths"][path][method]["responses"]["200"]
        schema = operation["content"]["application/json"]["schema"]
        assert code == 200 and problem(reply, schema) is None, (path, code, reply, problem(reply, schema))
    assert replies["get", "/api/history"][1]["rows"][0]["note"] == "odd"
    client.answer(client.next()[0], "equal", "route-3")
    for path, kind in (("/api/export", "jsonl"), ("/api/export?format=csv", "csv"), ("/api/episode", "mp4")):
        code, data, headers = client.request("GET", path)
        assert code == 200 and data and headers["Content-Type"].split(";")[0].endswith(kind)


def test_a_clip_is_every_frame_without_loss_and_may_be_kept_for_ever(server: Server) -> None:
    client = server.client("clip")
    lease = client.next()[0]
    code, data, headers = client.request("GET", f"/api/clip/{lease['left']}")
    assert code == 200 and headers["Content-Type"] == "image/webp" and "immutable" in headers["Cache-Control"]
    db = PrefDB.open(server.folder / "prefs.db", read_only=True)
    frames = db.segment(lease["left"]).frames()
    db.close()
    n, width, height, columns = (int(headers[f"X-{name}"]) for name in ("Frames", "Width", "Height", "Columns"))
    assert (n, height, width) == frames.shape[:3] and float(headers["X-Fps"]) == 15
    (server.folder / "sheet.webp").write_bytes(data)
    sheet = np.asarray(Image.open(server.folder / "sheet.webp").convert("RGB"))
    for i, frame in enumerate(frames):
        y, x = i // columns * height, i % columns * width
        assert np.array_equal(sheet[y : y + height, x : x + width], frame), i


def test_long_clips_have_several_rows_and_grey_ones_are_shown_grey() -> None:
    frames = np.random.default_rng(0).integers(0, 255, (60, 210, 160, 3)).astype(np.uint8)
    _, columns = encode_sheet(frames)
    assert columns == 25
    with pytest.raises(ValueError, match="do not fit"):
        encode_sheet(np.zeros((1000, 210, 160, 3), np.uint8))
    large = frames[:, :, :].repeat(4, axis=1).repeat(4, axis=2)
    small = fitted(large)  # without a loss where they were only magnified
    assert np.array_equal(small, frames.repeat(2, axis=1).repeat(2, axis=2)) and fitted(frames) is frames
    encode_sheet(fitted(np.zeros((1000, 210, 160, 3), np.uint8)))
    grey = segment(1, colour=False).frames()
    assert (grey[..., 0] == grey[..., 1]).all()


def test_refresh_keeps_the_pairs_and_nobody_is_given_anothers(either: Server) -> None:
    one, other = either.client("one"), either.client("other")
    first = one.next(3)
    assert [lease["token"] for lease in either.client("one").next(3)] == [lease["token"] for lease in first]
    theirs = {lease["comparison_id"] for lease in other.next(3)}
    assert theirs.isdisjoint(lease["comparison_id"] for lease in first)


def test_answers_are_stored_once(either: Server) -> None:
    client = either.client("once")
    lease = client.next()[0]
    assert client.answer(lease, "left", "once-1")[1]["status"] == "stored"
    code, receipt = client.answer(lease, "left", "once-1")
    assert (code, receipt["status"]) == (200, "known")
    code, receipt = client.answer(lease, "right", "once-2")
    assert (code, receipt["status"]) == (409, "conflict")
    description = client.get("/openapi.json")[1]
    refused = description["paths"]["/api/answer"]["post"]["responses"]["409"]
    assert problem(receipt, refused["content"]["application/json"]["schema"]) is None
    assert description["components"]["securitySchemes"]["cookie"]["name"] == client.cookie.split("=")[0]
    rows = client.get("/api/history")[1]["rows"]
    assert [(row["choice"], row["left"]) for row in rows] == [("left", lease["left"])]


def test_what_comes_together_is_committed_together_and_fails_alone(tmp_path: Path, store_kind: str) -> None:
    app = LabelApp(make_store(tmp_path, 1, kind=store_kind), tmp_path, "token", "127.0.0.1")
    asked = threading.Event()

    def fails(queue: LabelQueue) -> None:
        with queue.db.transaction() as db:
            db.execute("INSERT INTO setting VALUES ('half', 'done')")
            raise ValueError("of this one alone")

    def breaks(queue: LabelQueue) -> None:
        queue.db.close()

    async def together(*calls: Callable[[LabelQueue], Any]) -> list[Any]:
        asked.clear()
        first = asyncio.ensure_future(app.shared.queue.call(lambda queue: asked.wait()))
        others = [asyncio.ensure_future(app.shared.queue.call(call)) for call in calls]
        await asyncio.sleep(0)  # each has got as far as waiting for the queue
        asked.set()
        return (await asyncio.gather(first, *others, return_exceptions=True))[1:]

    async def everything() -> None:
        async with app.lifespan(app.asgi):
            found = await together(lambda q: q.notices.set_setting("a", "1"), fails, lambda q: q.claim("me"))
            assert found[0] is None and str(found[1]) == "of this one alone" and len(found[2]) == 1
            with contextlib.closing(PrefDB.open(tmp_path / "prefs.db", read_only=True)) as db:
                assert (Notices(db).setting("a"), Notices(db).setting("half")) == ("1", None)
            stored, _, leases = await together(
                lambda q: q.notices.set_setting("b", "2"), breaks, lambda q: q.claim("me")
            )
            assert all(isinstance(one, Exception) for one in (stored, leases)), "nobody is told that it was stored"
        with contextlib.closing(PrefDB.open(tmp_path / "prefs.db", read_only=True)) as db:
            assert Notices(db).setting("b") is None

    asyncio.run(everything())


def test_undo_takes_back_the_answer_that_was_meant(either: Server) -> None:
    client = either.client("undo")
    first, second = client.next(2)
    seq = client.answer(first, "left", "undo-1")[1]["seq"]
    newest = client.answer(second, "equal", "undo-2", flag=True, note="odd")[1]["seq"]
    assert client.post("/api/undo", {"seq": seq})[0] == 409, "a try that is repeated must not undo another answer"
    reply = client.post("/api/undo", {"seq": newest})[1]
    lease = reply["lease"]
    assert (reply["flag"], reply["note"]) == (True, "odd")
    assert {key: lease[key] for key in ("token", "left", "right")} == {k: second[k] for k in ("token", "left", "right")}
    assert client.next()[0]["token"] == second["token"], "the pair is first again"
    assert client.post("/api/undo", {"seq": None})[1]["lease"]["token"] == first["token"]
    assert client.post("/api/undo", {"seq": None})[1]["lease"] is None


def test_edit_changes_ones_own_effective_answer_only(either: Server) -> None:
    client = either.client("edit")
    seq = client.answer(client.next()[0], "left", "edit-1", flag=True, note="n")[1]["seq"]
    code, receipt = client.post("/api/edit", {"client_id": "edit-2", "seq": seq, "choice": "equal"})
    assert code == 200 and receipt["status"] == "stored"
    again = client.post("/api/edit", {"client_id": "edit-2", "seq": seq, "choice": "equal"})
    assert again == (200, receipt | {"status": "known"}), "its reply was lost, and it is sent once more"
    row = client.get("/api/history")[1]["rows"][0]
    assert (row["seq"], row["choice"], row["flag"], row["note"]) == (receipt["seq"], "equal", True, "n")
    assert client.post("/api/edit", {"client_id": "edit-3", "seq": seq, "choice": "left"})[0] == 409, (
        "no longer effective"
    )
    other = either.client("edit other")
    assert other.post("/api/edit", {"client_id": "edit-4", "seq": row["seq"], "choice": "left"})[0] == 409
    assert len(client.get("/api/history?choice=equal")[1]["rows"]) == 1
    assert client.get("/api/history?choice=left")[1]["rows"] == []
    assert len(client.get("/api/history?flag=true")[1]["rows"]) == 1


def test_leaving_gives_the_pairs_back_but_not_to_a_page_that_is_loaded_again(tmp_path: Path) -> None:
    make_store(tmp_path, 2)
    with running(tmp_path) as server:
        one, other = server.client("one"), server.client("other")
        held = one.next(2)
        tokens = [lease["token"] for lease in held]
        one.post("/api/release", {"tokens": tokens, "leaving": True})
        assert [lease["token"] for lease in one.next(2)] == tokens, "a reload keeps them"
        one.post("/api/release", {"tokens": tokens, "leaving": True})
        deadline = time.monotonic() + 60
        while not (given := other.next(2)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert {lease["comparison_id"] for lease in given} == {lease["comparison_id"] for lease in held}


def test_answers_and_cookies_survive_the_servers_death(tmp_path: Path, store_kind: str) -> None:
    make_store(tmp_path, 10, kind=store_kind)
    with running(tmp_path) as server:
        client = server.client("kill")
        leases = client.next(4)
        client.answer(leases[0], "left", "kill-1")
        server.kill()
        server.start()
        assert client.answer(leases[0], "left", "kill-1")[1]["status"] == "known"
        assert client.answer(leases[1], "right", "kill-2")[1]["status"] == "stored"
        assert [lease["token"] for lease in client.next(2)] == [lease["token"] for lease in leases[2:]]


def test_events_tell_of_new_labels(server: Server) -> None:
    client, listener = server.client("events"), server.client("listener")
    connection = http.client.HTTPConnection(server.address.host, server.address.port, timeout=60)
    connection.request("GET", "/api/events", headers={"Cookie": listener.cookie})
    response = connection.getresponse()
    assert response.headers["Content-Type"].startswith("text/event-stream")

    def statuses() -> Iterator[dict[str, Any]]:
        for line in response:
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    stream = statuses()
    before = next(stream)["labels"]
    client.answer(client.next()[0], "left", "events-1")
    assert any(status["labels"] == before + 1 for status in stream)
    connection.close()


def test_who_asks_for_the_head_of_the_events_can_ask_on(server: Server) -> None:
    client = server.client("head")
    connection = http.client.HTTPConnection(server.address.host, server.address.port, timeout=20)
    for method, path in (("HEAD", "/api/events"), ("GET", "/api/me")):  # the next on one connection waits for the first
        connection.request(method, path, headers={"Cookie": client.cookie})
        response = connection.getresponse()
        assert response.status == 200
        last = response.read()
    assert json.loads(last)["labeller"] == "head"
    connection.close()


def test_the_server_needs_nothing_of_the_run() -> None:
    """It is a small process beside the training, and the library's without it."""
    program = (
        "import sys, drlhp.label_server.app, drlhp.label_server.server;"
        "print(*{'torch', 'gymnasium', 'envs', 'a2c', 'run', 'drlhp.runtime.processes'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == ""


class EagerScreen(NoScreen):
    """Somebody at it takes every left clip."""

    def tick(self) -> list[str]:
        return ["left"]


def test_a_pair_that_one_of_two_people_has_answered_is_waited_for_no_more(tmp_path: Path) -> None:
    with contextlib.closing(PrefDB.open(make_store(tmp_path, 2, {"goal": "4"}))) as db:
        run = QueueGatherer(db)
        with db.transaction() as cursor:
            cursor.execute("UPDATE query SET need = 2")
        lease, _ = run.queue.claim("ann", 2)
        now = time.time()
        run.queue.answers.add(Submission("one", lease.token, lease.comparison_id, "ann", "left", now, now))
        assert [one.comparison_id for one in run.drain()] == [lease.comparison_id]
        assert len(run.pending) == 1 and lease.comparison_id not in run.pending
        assert lease.comparison_id in {other.comparison_id for other in run.queue.claim("bob", 2)}


def test_a_clip_that_cannot_be_shown_is_asked_of_nobody_at_a_screen(tmp_path: Path) -> None:
    with contextlib.closing(PrefDB.open(make_store(tmp_path, 1))) as db:
        with db.transaction() as cursor:
            cursor.execute("UPDATE segment SET view = x'00'")
        gatherer = PersonGatherer(db, EagerScreen())
        assert len(gatherer.pending) == 1
        gatherer.person.step()
        gatherer.tell("", {})
        assert not gatherer.pending and not gatherer.person.ended


def test_a_program_labels_over_http_as_the_page_about_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "http_api.md").read_text()
    told = set(re.findall(r"^\| `(GET|POST) (\S+)` \|", page, re.MULTILINE))
    assert told == {(method.upper(), path) for path, methods in ROUTES.items() for method in methods}
    path = make_store(tmp_path, 4)
    with running(tmp_path) as server:
        label_over_http.main(server.address.link(server.token))
    assert capsys.readouterr().out.startswith("4 of 4 labels. All 4 labels have been given.")
    with contextlib.closing(PrefDB.open(path, read_only=True)) as db:
        rows = LabelQueue(db).answers.history("a program")
        for row in rows:
            left, right = (label_over_http.movement(db.segment(one).frames()) for one in (row.left, row.right))
            assert row.choice == ("equal" if left == right else "left" if left > right else "right")
    assert len(rows) == 4


# Security


def test_the_token_is_its_owners_alone(tmp_path: Path) -> None:
    token = run_token(tmp_path)
    assert len(token) == 32 and run_token(tmp_path) == token
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    os.chmod(tmp_path / "token", 0o644)
    run_token(tmp_path)
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600, "a copied folder is mended"


def test_prometheus_reads_the_numbers_with_the_runs_token_alone(tmp_path: Path) -> None:
    make_store(tmp_path, 60)
    with running(tmp_path) as server:
        client = server.client()
        client.answer(client.next()[0], "left", "one")
        client.post("/api/next", {"n": 2})
        invited = client.post("/api/invite", {"labeller": "Ada"})[1]["token"]
        for secret in ("", "Bearer", f"Bearer {'0' * 32}", f"Bearer {invited}", f"Basic {server.token}"):
            code, body, headers = client.request("GET", "/metrics", headers={"Authorization": secret})
            assert code == 401 and b"drlhp_" not in body and headers["WWW-Authenticate"] == "Bearer"
        bearer = {"Authorization": f"Bearer {server.token}"}
        code, body, _ = server.anonymous().request("GET", "/metrics", headers=bearer)
    families = text_string_to_metric_families(body.decode())
    values = {sample.name: sample.value for family in families for sample in family.samples}
    assert code == 200 and values.pop("drlhp_labellers") <= 1, "none if the page was silent for a few seconds"
    assert values == {
        **{"drlhp_labels": 1, "drlhp_goal": 60, "drlhp_ready": 57, "drlhp_leased": 2, "drlhp_answers": 1},
        "drlhp_troubles": 0,
    }


def test_the_cookie_cannot_be_read_by_scripts_or_sent_by_other_pages(server: Server) -> None:
    body = json.dumps({"token": server.token, "labeller": "cookie"}).encode()
    _, _, headers = server.anonymous().request("POST", "/api/login", body)
    attributes = {part.strip().lower() for part in headers["Set-Cookie"].split(";")}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert server.token not in headers["Set-Cookie"]


@pytest.mark.parametrize("path", GETS)
def test_without_a_cookie_nothing_is_told(server: Server, path: str) -> None:
    path = path.replace("{segment}", "0" * 64)
    anonymous = server.anonymous()
    expected = 200 if path == "/openapi.json" else 401
    assert anonymous.request("GET", path)[0] == expected
    anonymous.cookie = f"{Sessions(server.token).cookie_name}=MW1l.{'0' * 64}"
    assert anonymous.request("GET", path)[0] == expected, "a cookie that we have not signed"


@pytest.mark.parametrize("path", [p for p, methods in ROUTES.items() if "post" in methods and p != "/api/login"])
def test_without_a_cookie_nothing_is_done(server: Server, path: str) -> None:
    assert server.anonymous().post(path, {})[0] == 401


def test_an_invitation_is_for_one_name(server: Server) -> None:
    owner = server.client("owner")
    token = owner.post("/api/invite", {"labeller": "Ann"})[1]["token"]
    guest = server.anonymous()
    assert guest.post("/api/login", {"token": token, "labeller": "Bob"})[0] == 403
    assert guest.post("/api/login", {"token": token, "labeller": "Ann"})[0] == 200
    assert guest.get("/api/me")[1]["labeller"] == "Ann"
    assert guest.post("/api/name", {"labeller": "Bob"})[0] == 403
    assert guest.post("/api/invite", {"labeller": "Bob"})[0] == 403


def test_a_guest_exports_every_answer_but_only_their_own_notes(either: Server) -> None:
    owner, guest = either.client("noting owner"), either.anonymous()
    token = owner.post("/api/invite", {"labeller": "noting guest"})[1]["token"]
    guest.post("/api/login", {"token": token, "labeller": "noting guest"})
    owner.answer(owner.next()[0], "left", "noting-1", note="for me")
    guest.answer(guest.next()[0], "left", "noting-2", note="for you")
    notes = []
    for client in (owner, guest):
        rows = [json.loads(line) for line in client.request("GET", "/api/export")[1].splitlines()]
        notes.append({row["labeller"]: row["note"] for row in rows if row["labeller"].startswith("noting")})
    assert notes[0] == {"noting owner": "for me", "noting guest": "for you"}
    assert notes[1] == {"noting owner": "", "noting guest": "for you"}


def test_who_comes_when_too_many_are_connected_is_refused_in_json() -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(h11_impl.service_unavailable({"type": "http"}, None, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 503 and (b"content-type", b"application/json") in sent[0]["headers"]
    assert json.loads(sent[1]["body"]) == {"error": "too many are connected; try again"}


def test_the_servers_log_keeps_its_newest_part(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    shorten(log)
    with log.open("ab", buffering=0) as file:
        file.write(b"old\n" * (LOG_BYTES // 4))
        shorten(log)
        assert log.stat().st_size == LOG_BYTES
        file.write(b"new\n")
        shorten(log)
        file.write(b"newest\n")
    assert log.stat().st_size == LOG_BYTES // 2 + 7 and log.read_bytes().endswith(b"old\nnew\nnewest\n")


def test_nobody_takes_a_name_by_which_somebody_is_there(server: Server) -> None:
    ann, bob = server.client("Ann"), server.client("Bob")
    ann.get("/api/me")  # and has no pairs yet
    status, reply = bob.post("/api/name", {"labeller": "Ann"})
    assert status == 409 and "Ann" in reply["error"]
    assert ann.post("/api/name", {"labeller": "Ann"})[0] == 200, "it is hers"
    assert bob.post("/api/name", {"labeller": "Bea"})[0] == 200
    assert bob.post("/api/name", {"labeller": "Bob"})[0] == 200, "and back"
    with contextlib.closing(PrefDB.open(server.folder / "prefs.db")) as db:
        queue = LabelQueue(db)
        assert queue.is_present("Bob"), "so that who labels at a terminal takes another"
        queue.notices.beat("label", {"labellers": ["helper"]})
        assert bob.post("/api/name", {"labeller": "helper"})[0] == 409, "they are at a terminal"
        queue.notices.beat("label", {"ended": "Labelling has ended here."})


def test_a_name_is_asked_for_where_others_can_come_in(server: Server, tmp_path: Path) -> None:
    make_store(tmp_path, 1)
    with running(tmp_path, host="0.0.0.0") as wide:
        client = wide.anonymous()
        _, reply = client.post("/api/login", {"token": wide.token})
        assert reply["labeller"] is None and not client.cookie


def test_two_people_who_open_the_link_go_by_different_names(tmp_path: Path) -> None:
    """The second one sits at another computer, at the end of a tunnel; with one name they would share each pair."""
    make_store(tmp_path, 4)
    with running(tmp_path) as server:
        here, there, again = (server.anonymous() for _ in range(3))

        def opens(client: Client, **named: str) -> str | None:
            return client.post("/api/login", {"token": server.token, **named})[1]["labeller"]

        assert opens(here) == "me"
        assert opens(there) is None and not there.cookie, "though nobody has seen a pair yet"
        lease = here.next()[0]
        assert opens(there, labeller="Ann") == "Ann" and there.next()[0]["comparison_id"] != lease["comparison_id"]
        assert (opens(here), opens(there)) == ("me", "Ann"), "a browser that opens it again is who it was"
        here.answer(lease, "left", "two-1")
        assert opens(again) is None, "on a break, perhaps"
        assert opens(again, labeller="me") == "me", "who knows better is believed"


def test_after_ten_wrong_tokens_no_more_are_tried_but_the_right_one_is_good(tmp_path: Path) -> None:
    """Behind a proxy all have one address."""
    make_store(tmp_path, 1)
    with running(tmp_path) as server:
        client, inside = server.anonymous(), server.client("inside")
        codes = [client.post("/api/login", {"token": "0" * 32})[0] for _ in range(10)]
        assert codes == [403] * 10
        assert client.post("/api/login", {"token": "0" * 32})[0] == 429
        assert client.post("/api/login", {"token": server.token})[0] == 200
        assert inside.get("/api/me")[0] == 200, "who is in stays in"
    clock = [0.0]
    attempts = Attempts(lambda: clock[0])
    for _ in range(10):
        attempts.failed("a")
    assert attempts.blocked("a") and not attempts.blocked("b")
    clock[0] = 61
    assert not attempts.blocked("a")


@pytest.mark.parametrize(
    ("host", "bound", "allowed"),
    [
        ("127.0.0.1:8765", "127.0.0.1", True),
        ("localhost:9", "127.0.0.1", True),
        ("[::1]:8765", "127.0.0.1", True),
        ("evil.example", "127.0.0.1", False),
        ("10.0.0.5:8765", "127.0.0.1", False),
        ("10.0.0.5:8765", "0.0.0.0", True),
        ("evil.example:8765", "0.0.0.0", False),
        ("labels.example", "labels.example", True),
        ("", "127.0.0.1", False),
    ],
)
def test_hosts(host: str, bound: str, allowed: bool) -> None:
    assert host_allowed(host, bound, own_names(bound)) is allowed


def test_other_names_and_pages_are_refused(server: Server) -> None:
    client = server.client("guard")
    assert client.request("GET", "/api/me", headers={"Host": "evil.example"})[0] == 400
    body = b'{"n": 1}'
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "http://[", ""):
        assert client.request("POST", "/api/next", body, {"Origin": origin})[0] == 403, origin
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert client.request("POST", "/api/next", body, {"Content-Type": kind})[0] == 415
    assert (
        client.request("GET", "/", headers={"Origin": "http://evil.example"})[2]["Access-Control-Allow-Origin"] is None
    )


def test_a_proxy_that_was_named_may_pass_requests_on(tmp_path: Path) -> None:
    """By either name; whoever comes through it is asked theirs, and the cookie stays on encrypted connections."""
    make_store(tmp_path, 1)
    with running(tmp_path, origin="https://label.example.org") as server:
        login = json.dumps({"token": server.token}).encode()
        for host in ("label.example.org", "127.0.0.1"):
            headers = {"Host": host, "Origin": "https://label.example.org"}
            status, data, _ = server.anonymous().request("POST", "/api/login", login, headers)
            assert (status, json.loads(data)["labeller"]) == (200, None)
            named = json.dumps({"token": server.token, "labeller": "Ann"}).encode()
            status, _, reply = server.anonymous().request("POST", "/api/login", named, headers)
            assert status == 200 and "; Secure" in str(reply["Set-Cookie"])
        for headers in (
            {"Host": "label.example.org", "Origin": "https://evil.example"},
            {"Host": "evil.example", "Origin": "https://label.example.org"},
            {"Host": "evil.example", "Origin": "https://evil.example"},
        ):
            assert server.anonymous().request("POST", "/api/login", login, headers)[0] in (400, 403), headers
        server.client("me")  # without the proxy all is as before


def test_every_reply_has_the_headers(server: Server) -> None:
    client = server.client("headers")
    for path in ("/", "/static/main.js", "/api/me", "/nowhere", "/api/clip/x"):
        _, _, headers = client.request("GET", path)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"], path


def test_what_is_not_there_is_refused_in_a_sentence_too(server: Server) -> None:
    client = server.client("lost")
    for method, path, code in (("GET", "/nowhere", 404), ("POST", "/api/status", 405), ("GET", "/static/x.js", 404)):
        found, data, headers = client.request(method, path, None if method == "GET" else b"{}")
        assert (found, headers["Content-Type"]) == (code, "application/json")
        assert path in json.loads(data)["error"]


def test_bodies_are_bounded_and_checked(server: Server) -> None:
    client = server.client("bodies")
    lease = client.next()[0]
    assert client.request("POST", "/api/next", b" " * 20_000)[0] == 413
    for body in (
        b"",
        b"{",
        b"[]",
        b'{"n": 0}',
        b'{"n": 9}',
        b'{"n": true}',
        b'{"n": 1, "x": 1}',
        b"[" * 5000,
        b'{"n": 1%s}' % (b"0" * 400),
    ):
        assert client.request("POST", "/api/next", body)[0] in (400, 422), body[:20]
    wrong: dict[str, Any]
    for wrong in (
        {"choice": "both"}, {"note": "x" * 501}, {"speed": 100}, {"speed": float("nan")}, {"watched_ms": -1},
        {"shown_at": 1e300}, {"token": "a" * 65}, {"comparison_id": "../token"}, {"client_id": "a b"}, {"replays": 0.5},
        {"note": "\ud800"},
    ):  # fmt: skip
        fields = {**lease, "choice": "left", "client_id": "bodies-1", **wrong}
        sent = {key: fields[key] for key in ("token", "comparison_id", "choice", "client_id", *wrong)}
        assert client.post("/api/answer", {"shown_at": 1.0, "answered_at": 2.0, **sent})[0] == 422, wrong
    assert client.get("/api/history")[1]["rows"] == []
    assert client.answer({**lease, "token": "0" * 32}, "left", "bodies-2")[0] == 422, "no such lease"
    for name in ("", "x" * 41, "a\nb", "   ", "\ud800"):
        assert client.post("/api/name", {"labeller": name})[0] == 422


HOSTILE = ("x'); DROP TABLE answer; --", "<script>alert(1)</script>", '" OR 1=1 --', "../../prefs.db", "%s{0}${HOME}")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_nickname_is_text_and_nothing_else(server: Server, name: str) -> None:
    client, other = server.client(name), server.client("a neighbour")
    kept = other.answer(other.next()[0], "equal", f"neighbour-{HOSTILE.index(name)}")[1]["seq"]
    assert client.answer(client.next()[0], "left", f"hostile-{HOSTILE.index(name)}")[1]["status"] == "stored"
    assert client.get("/api/me")[1]["labeller"] == name
    assert [row["choice"] for row in client.get("/api/history")[1]["rows"]] == ["left"]
    assert kept in {row["seq"] for row in other.get("/api/history")[1]["rows"]}, "it touches nobody else's"
    assert any(json.loads(line)["labeller"] == name for line in client.request("GET", "/api/export")[1].splitlines())


@pytest.mark.parametrize("name", ["x" * 10_000, "a\0b", "a\x1b[2J", "a\r\nSet-Cookie: b=c", "\u202eevil", "\t"])
def test_a_nickname_that_is_no_name_is_refused_wherever_it_is_given(server: Server, name: str) -> None:
    client, before = server.client("namer"), stored(server.folder)
    for path, body in (("/api/login", {"token": server.token}), ("/api/name", {}), ("/api/invite", {})):
        assert client.post(path, {**body, "labeller": name})[0] == 422, path
    assert stored(server.folder) == before and client.get("/api/me")[1]["labeller"] == "namer"


def test_where_somebody_sits_is_written_nowhere(tmp_path: Path) -> None:
    """No address of a labeller is in the store or a log, whatever they do right or wrong."""
    make_store(tmp_path, 2)
    with running(tmp_path, host="0.0.0.0") as server:
        client = Client(Address("127.0.0.1", server.address.port))
        client.connection = http.client.HTTPConnection(
            "127.0.0.1", server.address.port, timeout=60, source_address=("127.9.8.7", 0)
        )
        for token, code in (("0" * 32, 403), (server.token, 200)):
            assert client.post("/api/login", {"token": token, "labeller": "Ann"})[0] == code
        client.answer(client.next()[0], "left", "where-1", note="n")
        assert client.request("GET", "/nowhere")[0] == 404 and client.post("/api/answer", {})[0] == 422
        assert client.request("GET", f"/api/clip/{'0' * 64}", headers={"X-Forwarded-For": "127.9.8.7"})[0] == 404
        with socket.create_connection(("127.0.0.1", server.address.port), 60, ("127.9.8.7", 0)) as rude:
            rude.sendall(b"\0 no HTTP\r\n\r\n")
            assert b" 400 " in rude.recv(4096)
        client.connection.close()
    contents = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {"prefs.db", "server.log"} <= contents.keys()
    assert not [name for name, data in contents.items() if b"127.9.8.7" in data or bytes((127, 9, 8, 7)) in data]


def test_reading_changes_nothing(server: Server) -> None:
    client = server.client("reader")
    lease = server.client("writer").next()[0]
    before = stored(server.folder)
    for path in GETS:
        if path != "/api/events":
            client.request("GET", path.replace("{segment}", lease["left"]))
        for method in ("POST", "PUT", "DELETE"):
            assert client.request(method, path, b"{}")[0] in (401, 403, 405, 422) or "post" in ROUTES[path]
    for path in ROUTES:
        if "get" not in ROUTES[path]:
            assert client.request("GET", path)[0] == 405
    assert stored(server.folder) == before


def test_a_clip_that_cannot_be_shown_is_asked_of_nobody_from_the_next_claim_on(tmp_path: Path) -> None:
    make_store(tmp_path, 2)
    with contextlib.closing(PrefDB.open(tmp_path / "prefs.db")) as db:
        with running(tmp_path) as server:
            client = server.client()
            lease = client.next()[0]
            with db.transaction() as cursor:
                cursor.execute("UPDATE segment SET view = x'00' WHERE id = ?", (lease["left"],))
            before = stored(tmp_path)
            assert client.get(f"/api/clip/{lease['left']}")[0] == 422
            assert stored(tmp_path) == before, "a GET changes nothing"
            (other,) = client.next()
            assert other["comparison_id"] != lease["comparison_id"]
        ((retired,),) = db.read("SELECT comparison_id FROM query WHERE state = 'withdrawn'")
        assert retired == lease["comparison_id"]


def test_no_file_but_the_pages_own_is_served(server: Server) -> None:
    client = server.client("paths")
    for path in (
        "/api/clip/../../web/token", "/api/clip/..%2f..%2ftoken", "/api/clip/%00", "/api/clip//etc/passwd",
        f"/api/clip/{'0' * 63}%0a", f"/api/clip/{'0' * 64}", "/static/../app.py", "/static/..%2fapp.py",
        "/static//etc/passwd", "/static/%00", "/static/", "/static",
    ):  # fmt: skip
        status, data, _ = client.request("GET", path)
        assert status in (307, 404, 400) and b"import" not in data and b"root:" not in data, (path, status)


@contextlib.contextmanager
def in_this_process(folder: Path) -> Iterator[int]:
    """A server in a thread, so that its patience can be shortened; gives its port."""
    app = LabelApp(folder / "prefs.db", folder, "0" * 32, "127.0.0.1")
    server = uvicorn.Server(uvicorn.Config(app.asgi, http=TimedProtocol, log_config=None, timeout_graceful_shutdown=1))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            yield bound.getsockname()[1]
        finally:
            app.stop()
            server.should_exit = True
            thread.join()


def test_who_dawdles_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path, 1)
    monkeypatch.setattr(security, "HEADER_SECONDS", 0.2)
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.2)
    with in_this_process(tmp_path) as port:
        head = "POST /api/login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
        for sent, reply in (
            (head, b""),
            (f"{head}Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{{", b"408"),
        ):
            connection = socket.create_connection(("127.0.0.1", port), timeout=60)
            connection.sendall(sent.encode())
            received = b""
            while chunk := connection.recv(4096):
                received += chunk
            assert reply in received and (reply or not received)
            connection.close()


def test_nothing_that_is_read_is_ever_run() -> None:
    """No eval, no exec, no pickle but through the import's own unpickler, and checkpoints as weights only."""
    found = []
    folders = [(ROOT / folder).rglob("*.py") for folder in ("a2c", "commands", "drlhp", "envs")]
    for path in chain(ROOT.glob("*.py"), *folders):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            name, given = ast.unparse(call.func), {word.arg: ast.unparse(word.value) for word in call.keywords}
            runs = name in ("eval", "exec", "compile", "pickle.load", "pickle.loads", "os.system")
            careless = name == "torch.load" and given.get("weights_only") != "True"
            if runs or careless or given.get("allow_pickle") == "True" or given.get("shell") == "True":
                found.append(f"{path.name}:{call.lineno} {name}")
    assert not found


def test_cells_that_a_spreadsheet_would_run_are_escaped(server: Server) -> None:
    client = server.client("=HYPERLINK(1)")
    client.answer(client.next()[0], "left", "csv-1", note="@SUM(A1)")
    table = client.request("GET", "/api/export?format=csv")[1].decode()
    assert "'=HYPERLINK(1)" in table and "'@SUM(A1)" in table and ",=HYPERLINK" not in table
    lines = client.request("GET", "/api/export")[1].decode().splitlines()
    for row, line in zip(csv.DictReader(io.StringIO(table)), map(json.loads, lines), strict=True):
        assert row["choice"] == line["choice"] and row["choice"] in ("left", "right", "equal", "incomparable")
        seconds = datetime.fromisoformat(row["answered_at"]).timestamp()
        assert abs(seconds - line["answered_at"]) < 0.001, "a date for people, seconds for programs"
    assert any(json.loads(line)["labeller"] == "=HYPERLINK(1)" for line in lines)
    assert not any("token" in json.loads(line) for line in lines)


# What is said while there is nothing to show


def test_training_is_started_early(tmp_path: Path, store_kind: str) -> None:
    make_store(tmp_path, 27, {"initial_labels": "26", "goal": "27"}, kind=store_kind)
    with running(tmp_path) as server:
        client = server.client()
        code, reply = client.post("/api/start", {})
        assert code == 422 and "needs 25 labels" in reply["error"]
        while not client.get("/api/status")[1]["may_start"]:
            lease = client.next()[0]
            assert client.answer(lease, "equal", lease["token"])[0] == 200
        assert client.get("/api/status")[1]["labels"] == 25
        code, reply = client.post("/api/start", {})
        assert code == 200 and problem(reply, ROUTES["/api/start"]["post"][2] or {}) is None
        assert (reply["initial_labels"], reply["may_start"]) == (25, False)


def test_what_fails_in_the_server_is_told_until_it_works_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = LabelApp(tmp_path / "prefs.db", tmp_path, "0" * 32, "127.0.0.1")
    app.shared.clips = Clips(tmp_path / "prefs.db", tmp_path / "clips", 1)
    works = False

    async def method(request: Request, _: None) -> Response:
        return Response() if works else Response(1 / 0)

    handle = requests.handler(app.shared, "/openapi.json", method)
    scope = {"type": "http", "method": "GET", "path": "/openapi.json", "headers": []}
    assert asyncio.run(handle(Request(scope))).status_code == 500  # type: ignore[arg-type]
    assert "/openapi.json failed (ZeroDivisionError" in app.shared.troubles.words() and "Traceback" in caplog.text
    works = True
    assert asyncio.run(handle(Request(scope))).status_code == 200  # type: ignore[arg-type]
    assert app.shared.troubles.words() == ""
    app.shared.clips.close()


def test_the_true_reward_is_shown_in_evaluation_mode_only(server: Server, tmp_path: Path) -> None:
    client = server.client("curves")
    assert [curve["name"] for curve in client.get("/api/curves")[1]["curves"]] == ["Labels"]
    (tmp_path / "progress.csv").write_text("steps,labels,episode_return\n0,1,-21\n100,2,-20\n200,3\n300,nan,half a ro")
    names = [curve["name"] for curve in curves(tmp_path, true_reward=True)]
    assert names == ["Labels", "True return"]


def test_the_reason_why_there_is_no_pair(tmp_path: Path) -> None:
    make_store(tmp_path, 1, {"goal": "5"})
    clock = [1000.0]
    with contextlib.closing(PrefDB.open(tmp_path / "prefs.db")) as db:
        queue = LabelQueue(db, clock=lambda: clock[0])

        def reason() -> str:
            return status(queue, tmp_path, clock[0])["reason"]

        assert reason() == ""
        lease = queue.claim("a")[0]
        assert "with other people" in reason()
        queue.notices.beat("run", {"status": "Waiting for clips from the agent (1 of 2)"})
        queue.leases.release([lease.token])
        queue.withdraw(10**9)
        with db.transaction() as connection:
            connection.execute("UPDATE query SET state = 'withdrawn'")
        assert reason() == "Waiting for clips from the agent (1 of 2)"
        queue.notices.beat("label", {"status": "Label 3 of 9"})
        assert reason() == "Waiting for clips from the agent (1 of 2)", "while the run goes on, it knows better"
        clock[0] += 1
        queue.notices.beat("run", {"ended": "Labelling has ended."})
        assert reason() == "Labelling has ended."
        clock[0] += 1
        queue.notices.beat("label", {"status": "Label 4 of 9"})
        assert reason() == "Label 4 of 9"
        clock[0] += 1
        queue.notices.beat("run", {})
        clock[0] += 42
        assert "last heard of 42 seconds ago" in reason() and "kept" in reason()
        queue.notices.set_setting("goal", "0")
        assert "42 seconds" in reason()


def test_training_that_goes_on_waits_for_no_labels_after_an_undo(tmp_path: Path) -> None:
    make_store(tmp_path, 1, {"initial_labels": "500"})
    with contextlib.closing(PrefDB.open(tmp_path / "prefs.db")) as db:
        queue = LabelQueue(db)
        for steps, initial in ((0, 500), (1000, 0)):
            queue.notices.beat("run", {"agent_steps": steps})
            assert status(queue, tmp_path, time.time())["initial_labels"] == initial
