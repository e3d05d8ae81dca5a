"""Every route's way in and out: the session, a body or query that fits its schema, and errors as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from drlhp.errors import PrefDBError
from drlhp.label_server.schema import MAX_BODY, OPEN, QUERIES, ROUTES, problem
from drlhp.label_server.shared import Shared
from drlhp.labelling.answers import SubmissionError

log = logging.getLogger("label_server")

BODY_SECONDS = 10.0  # for a request's body to arrive

Method = Callable[[Request, Any], Awaitable[Response]]


class Refused(Exception):
    """A request that the server answers with this status and sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def handler(shared: Shared, path: str, method: Method) -> Callable[[Request], Awaitable[Response]]:
    """Returns a Starlette endpoint that checks the request, calls the route's method and answers errors as JSON.

    The method finds the session in `request.state.session` (None if the route is open), and gets the checked body,
    or the checked query, or None.
    """

    async def handle(request: Request) -> Response:
        try:
            _admit(shared, request, path)
            argument: Any = None
            body_schema = ROUTES[path][request.method.lower().replace("head", "get")][1]
            if body_schema is not None:
                argument = await _body(request, body_schema)
            elif path in QUERIES:
                argument = _query(request, path)
            response = await method(request, argument)
            shared.troubles.over(path)
            return response
        except Refused as error:
            return JSONResponse({"error": str(error)}, error.status)
        except SubmissionError as error:
            return JSONResponse({"error": str(error)}, 422)
        except (PrefDBError, OSError) as error:
            return JSONResponse({"error": str(error)}, 503)
        except Exception as error:  # a bug: labellers can report this sentence, and the log has the traceback
            log.exception("%s failed", path)
            sentence = f"{path} failed ({type(error).__name__}: {error}); see web/server.log"
            shared.troubles.add(path, sentence)
            return JSONResponse({"error": sentence}, 500)

    return handle


def _admit(shared: Shared, request: Request, path: str) -> None:
    """Puts the session into `request.state`. Raises Refused if the route needs one and the request has none."""
    request.state.session = None
    if path in OPEN:
        return
    session = shared.sessions.read(request.cookies.get(shared.sessions.cookie_name))
    if session is None:
        raise Refused(401, "open the link that the run printed; it ends in #t= and a token")
    shared.presence.seen(session.labeller)
    request.state.session = session


async def _body(request: Request, schema: dict[str, Any]) -> dict[str, Any]:
    data = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                data += chunk
                if len(data) > MAX_BODY:
                    raise Refused(413, f"send {MAX_BODY} bytes or fewer")
        value = json.loads(data)
    except TimeoutError:
        raise Refused(408, "the body took too long to arrive") from None
    except (ValueError, RecursionError):
        raise Refused(400, "the body is no JSON") from None
    if wrong := problem(value, schema):
        raise Refused(422, wrong)
    return value


def _query(request: Request, path: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in request.query_params.items():
        schema = QUERIES[path].get(name)
        if schema is None:
            raise Refused(422, f"there is no parameter {name[:40]!r}")
        values[name] = int(text) if schema["type"] == "integer" and text.isdecimal() and len(text) < 16 else text
        if wrong := problem(values[name], schema, name):
            raise Refused(422, wrong)
    return values
