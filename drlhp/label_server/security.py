"""Decides who may use the server: one token per run, a signed cookie per labeller, and checks of every request."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http import h11_impl
from uvicorn.protocols.http.h11_impl import H11Protocol

TOKEN_FORM = re.compile("[0-9a-f]{32}")  # 128 bits
COOKIE_SECONDS = 30 * 24 * 3600
MAX_FAILURES, FAILURE_SECONDS, MAX_ADDRESSES = 10, 60.0, 1000
HEADER_SECONDS = 10.0  # A connection is closed if a request's header takes longer to arrive.
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FRAMED_BY = "http://localhost:* http://127.0.0.1:*"  # a notebook of this machine, if the page may stand in a frame


def run_token(folder: Path) -> str:
    """Returns the run's token, 128 bits in hex. The first call makes it, in a file that only its owner may read."""
    path = folder / "token"
    if not path.exists():
        draft = path.with_name(f"token.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_hex(16))
        try:
            os.link(draft, path)  # The file appears whole or not at all. The first of two servers wins.
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    os.chmod(path, 0o600)
    token = path.read_text().strip()
    if not TOKEN_FORM.fullmatch(token):
        raise OSError(f"{path} holds no token: delete it, and another is made")
    return token


def labeller_token(token: str, labeller: str) -> str:
    """Returns a token that lets in this labeller and nobody else, 128 bits in hex."""
    return _signature(token, f"labeller:{labeller}")[:32]


def _signature(token: str, text: str) -> str:
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class Session:
    """The labeller that sent a request. The owner has the run's own token, may take any name and may invite others."""

    labeller: str
    owner: bool


class Sessions:
    """Exchanges tokens for cookies. Nothing is stored, because a cookie is a name signed with the run's token."""

    def __init__(self, token: str) -> None:
        self._token = token
        # Browsers send a cookie to every port of a machine, so each run on it needs a cookie name of its own.
        self.cookie_name = f"labels_{hashlib.sha256(token.encode()).hexdigest()[:12]}"

    def admit(self, secret: str, labeller: str) -> Session | None:
        """Returns the session that the token gives to this labeller; None if the token is wrong."""
        if hmac.compare_digest(secret.encode(), self._token.encode()):
            return Session(labeller, owner=True)
        if hmac.compare_digest(secret.encode(), labeller_token(self._token, labeller).encode()):
            return Session(labeller, owner=False)
        return None

    def invitation(self, labeller: str) -> str:
        """Returns the token that lets in this labeller only."""
        return labeller_token(self._token, labeller)

    def cookie(self, session: Session) -> str:
        """Returns the value of the session's cookie."""
        name = f"{int(session.owner)}{session.labeller}"
        text = base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")
        return f"{text}.{_signature(self._token, f'cookie:{name}')}"

    def read(self, cookie: str | None) -> Session | None:
        """Returns the session of a cookie; None if the run's token did not sign it."""
        text, _, signature = (cookie or "").partition(".")
        try:
            name = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
        except ValueError:
            return None
        if not name or not hmac.compare_digest(signature.encode(), _signature(self._token, f"cookie:{name}").encode()):
            return None
        return Session(name[1:], owner=name[0] == "1")


class Attempts:
    """Counts wrong tokens by address. An address is blocked if it sent ten of them within the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._failures = clock, dict[str, deque[float]]()

    def blocked(self, address: str) -> bool:
        failures = self._failures.get(address, deque())
        while failures and failures[0] < self._clock() - FAILURE_SECONDS:
            failures.popleft()
        if not failures:
            self._failures.pop(address, None)
        return len(failures) >= MAX_FAILURES

    def failed(self, address: str) -> None:
        if len(self._failures) >= MAX_ADDRESSES:
            self._failures.pop(next(iter(self._failures)))
        self._failures.setdefault(address, deque()).append(self._clock())


def own_names(bound: str) -> set[str]:
    """Returns this machine's names, or none if only it can reach the server; may wait for a DNS look-up."""
    return set() if is_loopback(bound) else {socket.gethostname().lower(), socket.getfqdn().lower()}


def host_allowed(header: str, bound: str, names: Collection[str]) -> bool:
    """Returns whether a request may name this host. Other domains that point here (DNS rebinding) are refused."""
    name = (urlsplit(f"//{header}").hostname or "").lower()
    if name in ("localhost", bound.lower()):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name in names
    return address.is_loopback or not is_loopback(bound)


def check_origin(origin: str) -> None:
    """Raises ValueError unless this is what a browser sends as Origin: http or https, a host, perhaps a port."""
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or not parts.hostname or origin != f"{parts.scheme}://{parts.netloc}":
        raise ValueError("name it as https://HOST or https://HOST:PORT, with nothing behind it")
    if parts.port == {"http": 80, "https": 443}[parts.scheme]:
        raise ValueError(f"leave out :{parts.port}, as browsers do")


def is_loopback(host: str) -> bool:
    """Returns whether a server bound to this host can only be reached from this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Checks every request's Host and every POST's Origin and content type, and adds headers to every reply (ASGI)."""

    def __init__(self, app: ASGIApp, bound: str, public: str = "", framed: bool = False) -> None:
        """Wraps an app whose server is bound to a host.

        Args:
            public: host and port of the proxy that passes requests on, as browsers name them; empty without a proxy.
            framed: whether other pages of this machine may show the page in a frame.
        """
        self._headers = dict(HEADERS)
        if framed:
            policy = HEADERS["Content-Security-Policy"]
            self._headers["Content-Security-Policy"] = policy.replace(
                "frame-ancestors 'none'", f"frame-ancestors {FRAMED_BY}"
            )
        self._app, self._bound, self._names, self._public = app, bound, own_names(bound), public.lower()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        app = self._app if refusal is None else JSONResponse({"error": refusal[1]}, refusal[0])
        await app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        try:
            allowed = host_allowed(host, self._bound, self._names) or host == (self._public or None)
        except ValueError:
            allowed = False
        if not allowed:
            return 400, "this server does not go by that name: use the address that was printed"
        if scope["method"] in ("GET", "HEAD"):
            return None
        try:
            origin = urlsplit(headers.get("origin", "")).netloc.lower()
        except ValueError:
            origin = ""
        if not origin or origin not in (host, self._public):
            return 403, "only this server's own page may send this"
        if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            return 415, "send JSON"
        return None


async def busy(scope: Any, receive: Any, send: Any) -> None:
    """Refuses a request beyond the number of connections, as JSON like every other refusal."""
    refusal = JSONResponse({"error": "too many are connected; try again"}, 503, headers={"Connection": "close"})
    await refusal(scope, receive, send)


h11_impl.service_unavailable = busy  # uvicorn's own is plain text


class TimedProtocol(H11Protocol):
    """Closes a connection if a request's header takes too long to arrive."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def _await_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
