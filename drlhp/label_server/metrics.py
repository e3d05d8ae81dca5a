"""The labelling's numbers for Prometheus, at /metrics, for whoever has the run's token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from drlhp.errors import PrefDBError, UserError
from drlhp.label_server.shared import Shared
from drlhp.runtime.metrics import Number, check_package, exposition

GAUGES = {
    "labels": "Labels in the store",
    "goal": "Labels that the run asks for, 0 if it has no goal",
    "ready": "Pairs that wait for somebody",
    "leased": "Pairs that somebody looks at",
    "answers": "Answers in the store, with those that are no labels",
}


def metrics(shared: Shared) -> Callable[[Request], Awaitable[Response]]:
    """Returns the endpoint; it wants the header `Authorization: Bearer TOKEN`, because Prometheus keeps no cookies."""

    async def handle(request: Request) -> Response:
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        session = shared.sessions.admit(secret.strip(), shared.labeller) if scheme.lower() == "bearer" else None
        if session is None or not session.owner:
            sentence = "send the token of the run's folder as `Authorization: Bearer TOKEN`"
            return JSONResponse({"error": sentence}, 401, headers={"WWW-Authenticate": "Bearer"})
        try:
            check_package()
            status = await shared.status.read()
        except UserError as error:
            return JSONResponse({"error": str(error)}, 501)
        except (PrefDBError, OSError) as error:
            return JSONResponse({"error": str(error)}, 503)
        from prometheus_client import CONTENT_TYPE_LATEST  # only who asks for metrics needs its package

        return Response(exposition(_numbers(shared, status)), media_type=CONTENT_TYPE_LATEST)

    return handle


def _numbers(shared: Shared, status: dict[str, Any]) -> Iterator[Number]:
    for name, meaning in GAUGES.items():
        yield Number("gauge", name, meaning, status[name])
    yield Number("gauge", "labellers", "People whose pages are open", len(shared.presence.names()))
    yield Number("gauge", "troubles", "1 if a part of the server fails now", float(bool(status["trouble"])))
    if status["agent_steps"] is not None:
        yield Number("counter", "agent_steps", "Agent steps that the policy has taken", status["agent_steps"])
