"""Fuzzed requests to every route of the label server, in this process, as a server passes them on (ASGI).

A reply may refuse with a sentence. It may not fail (5xx), differ from what /openapi.json promises, or lose an answer.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import time
import uuid
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from benchmarks.chaos.cases import Notes
from drlhp.label_server.app import LabelApp
from drlhp.label_server.schema import CONFLICTS, ERROR, MAX_BODY, QUERIES, ROUTES, problem
from drlhp.label_server.security import HEADERS
from tests.support.commands import answers
from tests.support.labelling import make_store

REQUESTS = 100  # of a case, which has a server and a store of its own
AT_ONCE = 4
PAIRS = 12
TOKEN = "0123456789abcdef" * 2
HOST = "127.0.0.1"
REPLY_SECONDS = 20.0
PRINTABLE = "".join(map(chr, range(33, 127)))
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "NONSENSE", "get")
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, 2**53, 2**63, 2**64, -(2**63), 10**400, "", " ", "a", "é", "\0"),
    *(
        "\ud800",
        "\u202e",
        "x" * 41,
        "x" * 501,
        "f" * 64,
        "F" * 64,
        "0" * 32,
        "../../x",
        "<b>",
        "' OR 1=1 --",
        "🦊" * 40,
    ),
    *([], {}, [[]], [None], {"a": {}}, ["a"] * 9, [TOKEN] * 8, "left", "retracted", "me", "\r\nSet-Cookie: a=b", "0me"),
)
RAW = (
    *(
        b"",
        b"{",
        b"null",
        b"[]",
        b'"a"',
        b"NaN",
        b"{}",
        b'{"n": NaN}',
        b'{"n": Infinity}',
        b'{"n": 1e999}',
        b"\xff\xfe",
    ),
    *(
        b"\x00",
        b'{"n": 1, "n": 2}',
        b"[" * 9000,
        b'{"a":' * 3000,
        b"1" * 5000,
        b" " * (MAX_BODY + 1),
        b'{"n":1}x',
        b"\xef\xbb\xbf{}",
    ),
)


class Reply(NamedTuple):
    """A reply's status, headers and body; None as status if there was none."""

    status: int | None
    headers: dict[str, str]
    body: bytes


class Request(NamedTuple):
    """A request as bytes, and the route that it is meant for."""

    route: str
    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def __str__(self) -> str:
        shown = [(name, value[:60]) for name, value in self.headers if name not in (b"host", b"content-length")]
        return f"{self.method} {self.path[:200]}?{self.query[:200]!r} {shown} {self.body[:400]!r}"


class Somebody:
    """Makes requests, knowing the leases, answers and clips that the server has told of."""

    def __init__(self, app: LabelApp, rng: random.Random) -> None:
        self.app, self.rng = app, rng
        self.cookie = ""
        self.leases: list[dict[str, Any]] = []
        self.seqs: list[int] = [1]
        self.stored: set[str] = set()  # client ids of answers that the server said were stored

    def request(self) -> Request:
        """Returns a request to a random route: a valid one, or one that is wrong in some way."""
        rng = self.rng
        route = rng.choice((*ROUTES, *("/api/next", "/api/answer", "/api/answer", "/api/edit")))
        method = rng.choice(tuple(ROUTES[route])).upper()
        schema = ROUTES[route][method.lower()][1]
        body = b"" if schema is None else self.body(route, schema)
        path, query = route.replace("{segment}", self.segment()), self.query(route)
        cookie, origin, host, kind = self.cookie, f"http://{HOST}", HOST, "application/json"
        match rng.randrange(24):
            case 0:
                method = rng.choice(METHODS)
            case 1:
                path = rng.choice(
                    (path + "/", path.upper(), "/api/" + odd_text(rng), path + odd_text(rng), "//" + path)
                )
            case 2:
                cookie = rng.choice(
                    ("", cookie[:-1], cookie + "0", "labels=1", "=", ";;", cookie.replace("=", "=é"), "a" * 9000)
                )
            case 3:
                origin = rng.choice(
                    ("", "null", "http://evil.example", f"http://{HOST}.evil.example", "http://[", odd_text(rng))
                )
            case 4:
                host = rng.choice(("", "evil.example", "[", "127.0.0.1:99999", "127.0.0.1:a", "[::1]", odd_text(rng)))
            case 5:
                kind = rng.choice(
                    ("", "text/plain", "application/json; charset=utf-16", "multipart/form-data", odd_text(rng))
                )
            case 6:
                body = rng.choice(RAW)
        named = {
            "host": host,
            "content-type": kind,
            "origin": origin,
            "cookie": cookie,
            "content-length": str(len(body)),
        }
        headers = [(name.encode(), latin(value)) for name, value in named.items() if value]
        return Request(route, method, path, query, headers, body)

    def segment(self) -> str:
        known = [lease[side] for lease in self.leases for side in ("left", "right")]
        return self.rng.choice(known) if known and self.rng.random() < 0.7 else odd_text(self.rng)

    def query(self, route: str) -> bytes:
        rng, parts = self.rng, []
        for name, schema in QUERIES.get(route, {}).items():
            if rng.random() < 0.4:
                parts.append(f"{name}={quote(str(sample(schema, rng)))}")
        if rng.random() < 0.2:
            parts.append(
                rng.choice(
                    (
                        "limit=0",
                        "limit=1e3",
                        "limit=٣",
                        "before=-1",
                        "before=" + "9" * 30,
                        "format=",
                        "flag",
                        "&&=",
                        "%ff%zz=%00",
                        "choice=" + odd_text(rng),
                    )
                )
            )
        return quote("&".join(parts), safe=PRINTABLE).encode()  # as all that arrives is ASCII

    def body(self, route: str, schema: dict[str, Any]) -> bytes:
        """Returns a body that fits the schema, or nearly fits."""
        rng = self.rng
        value = sample(schema, rng)
        self.make_sense(route, value)
        if rng.random() < 0.4:
            spoil(value, rng)
        return json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")

    def make_sense(self, route: str, value: dict[str, Any]) -> None:
        """Puts in what only this server's own replies tell, so that the request passes further than the schema."""
        now = time.time()
        if route == "/api/login":
            value["token"] = self.rng.choice((TOKEN, TOKEN, value["token"]))
        if "client_id" in value:
            value["client_id"] = self.rng.choice(
                (uuid.UUID(int=self.rng.getrandbits(128)).hex, *sorted(self.stored)[:1])
            )
        if "comparison_id" in value and self.leases:
            lease = self.rng.choice(self.leases)
            value |= {name: lease[name] for name in ("token", "comparison_id")}
            value |= {"shown_at": now - 2, "answered_at": now}
        if "tokens" in value and self.leases:
            value["tokens"] = [self.rng.choice(self.leases)["token"] for _ in value["tokens"]]
        if "seq" in value and value["seq"] is not None:
            value["seq"] = self.rng.choice((*self.seqs, value["seq"]))

    def hear(self, request: Request, reply: Reply) -> None:
        """Learns from a reply."""
        if cookie := reply.headers.get("set-cookie"):
            self.cookie = cookie.split(";")[0]
        if reply.status != 200 or request.method != "POST":
            return
        told = json.loads(reply.body)
        if request.route == "/api/next":
            self.leases = (self.leases + told["leases"])[-20:]
        elif request.route == "/api/answer" and told["status"] in ("stored", "known"):
            self.stored.add(json.loads(request.body)["client_id"])
            self.seqs = [*self.seqs, told["seq"]][-20:]


def odd_text(rng: random.Random) -> str:
    """Returns a text that is hard to swallow, as it may stand in a path or header."""
    texts = (
        "%00",
        "%ff",
        "..%2f..%2fprefs.db",
        "../../prefs.db",
        "a" * 3000,
        "%zz",
        "é",
        "\x7f",
        " ",
        ";",
        "{segment}",
        "0" * 64,
        "f" * 63,
    )
    return rng.choice(texts)


def latin(text: str) -> bytes:
    return text.encode("latin-1", "replace")


def sample(schema: dict[str, Any], rng: random.Random) -> Any:
    """Returns a value that fits a schema of the server's."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema["type"] if isinstance(schema["type"], str) else rng.choice(schema["type"])
    if kind == "object":
        names = [name for name in schema["properties"] if name in schema["required"] or rng.random() < 0.5]
        return {name: sample(schema["properties"][name], rng) for name in names}
    if kind == "array":
        return [sample(schema["items"], rng) for _ in range(rng.randint(0, min(3, schema.get("maxItems", 3))))]
    if kind == "string":
        if "64}" in schema.get("pattern", "") and "0-9a-f" in schema["pattern"]:
            return f"{rng.getrandbits(256):064x}"
        if "pattern" in schema:
            return f"{rng.getrandbits(128):032x}"
        return rng.choice(("a", "Ann", "éß", "🦊", "x" * min(40, schema.get("maxLength", 40)), "<b>&", "=1+1"))
    low, high = schema.get("minimum", 0), schema.get("maximum", 10**9)
    return {
        "integer": lambda: rng.choice((low, high, rng.randint(low, high))),
        "number": lambda: rng.choice((low, high, rng.uniform(low, high))),
        "boolean": lambda: rng.random() < 0.5,
        "null": lambda: None,
    }[kind]()


def spoil(value: dict[str, Any], rng: random.Random) -> None:
    """Makes one thing of a body wrong: a field is odd, missing, or one too many."""
    name = rng.choice((*value, "more"))
    match rng.randrange(4):
        case 0:
            value.pop(name, None)
        case 1:
            value[rng.choice(("more", "__proto__", "é" * 50, ""))] = rng.choice(ODD)
        case _:
            value[name] = copy.deepcopy(rng.choice(ODD))


async def send(app: LabelApp, request: Request) -> Reply:
    """Passes a request to the app as uvicorn does; leaves a stream of events after its first part."""
    sent, heard, done = False, list[dict[str, Any]](), asyncio.Event()
    scope = {
        **{"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "scheme": "http"},
        **{"method": request.method, "path": unquote_to_bytes(request.path).decode("utf-8", "replace")},
        **{
            "raw_path": request.path.encode(),
            "query_string": request.query,
            "root_path": "",
            "headers": request.headers,
        },
        **{"client": (HOST, 1), "server": (HOST, 80)},
    }

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": request.body, "more_body": False}
        await done.wait()
        return {"type": "http.disconnect"}

    async def hear(message: dict[str, Any]) -> None:
        heard.append(message)
        if message["type"] == "http.response.body" and (request.route == "/api/events" or not message.get("more_body")):
            done.set()

    await asyncio.wait_for(app.asgi(scope, receive, hear), REPLY_SECONDS)  # type: ignore[arg-type]
    if not heard:
        return Reply(None, {}, b"")
    headers = {name.decode().lower(): value.decode("latin-1") for name, value in heard[0]["headers"]}
    return Reply(heard[0]["status"], headers, b"".join(part.get("body", b"") for part in heard[1:]))


def complaint(request: Request, reply: Reply) -> str:
    """Returns how a reply breaks the server's own description, empty if it does not."""
    if reply.status is None:
        return "no reply"
    if reply.status >= 500:
        return f"status {reply.status}: {reply.body[:500]!r}"
    if missing := [name for name in HEADERS if name.lower() not in reply.headers]:
        return f"status {reply.status} without the header {missing[0]}"
    if request.method == "HEAD" or reply.status < 200 or 300 <= reply.status < 400:
        return ""
    verbs = ROUTES[request.route]
    as_described = request.path == request.route and request.method.lower() in verbs
    wanted = verbs[request.method.lower()][2] if as_described and reply.status == 200 else None
    if reply.status >= 400:
        wanted = ERROR
    if wanted is None or "properties" not in wanted:
        return ""
    try:
        value = json.loads(reply.body)
    except ValueError:
        return f"status {reply.status} without JSON: {reply.body[:200]!r}"
    if reply.status == 409 and request.route in CONFLICTS and "error" not in value:
        return ""
    wrong = problem(value, wanted)
    return f"status {reply.status}, but its {wrong}: {reply.body[:300]!r}" if wrong else ""


def routes(number: int, notes: Notes) -> None:
    """Sends a hundred requests, a few at a time, to a server of its own; then compares its replies with its store."""
    make_store(notes.folder, PAIRS, colour=False)
    app = LabelApp(notes.folder / "prefs.db", notes.folder, TOKEN, HOST)
    asyncio.run(_send_all(app, notes))


async def _send_all(app: LabelApp, notes: Notes) -> None:
    somebody, asked = Somebody(app, notes.rng), set[str]()
    login = json.dumps({"token": TOKEN, "labeller": "me"}).encode()
    headers = [(b"host", HOST.encode()), (b"origin", f"http://{HOST}".encode()), (b"content-type", b"application/json")]
    async with app.lifespan(app.asgi):
        first = Request("/api/login", "POST", "/api/login", b"", headers, login)
        somebody.hear(first, await send(app, first))
        for _ in range(REQUESTS // AT_ONCE):
            batch = [somebody.request() for _ in range(AT_ONCE)]
            replies = await asyncio.gather(*(send(app, request) for request in batch), return_exceptions=True)
            for request, reply in zip(batch, replies, strict=True):
                notes.count("requests")
                asked.add(request.route)
                if isinstance(reply, BaseException):
                    notes.found(request, f"raised {type(reply).__name__}: {reply}")
                    continue
                notes.count(f"replies {reply.status}")
                if wrong := complaint(request, reply):
                    notes.found(request, wrong)
                somebody.hear(request, reply)
    _check_store(notes, somebody.stored)


def _check_store(notes: Notes, said_stored: set[str]) -> None:
    """Compares the answers that the server said were stored with those that are."""
    ids = [client_id for client_id, _, _ in answers(notes.folder)]
    notes.count("answers that were said to be stored", len(said_stored))
    if lost := said_stored - set(ids):
        notes.found("answers", f"lost: {sorted(lost)}")
    if len(ids) != len(set(ids)):
        notes.found("answers", "stored twice")
