"""Routes about the run: its status, as one reply or as events, its curves, and the server's own description."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from drlhp.errors import PrefDBError
from drlhp.label_server import status as status_module
from drlhp.label_server.schema import openapi
from drlhp.label_server.shared import BEAT_SECONDS, STATUS_SECONDS, Shared


class News:
    """Reports how the labelling and the training go."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def get_status(self, request: Request, _: None) -> Response:
        return JSONResponse(await self._shared.status.read())

    async def get_events(self, request: Request, _: None) -> Response:
        # The reply to a HEAD has no body: the stream of events would go on forever all the same.
        events = self._events(request.state.session.labeller) if request.method == "GET" else ()
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(self, labeller: str) -> AsyncIterator[str]:
        shown, said_at = None, 0.0
        yield "retry: 1000\n\n"
        while not self._shared.stopping:
            self._shared.presence.seen(labeller)
            try:
                status = await self._shared.status.read()
            except PrefDBError:
                return  # the page then polls, and gets the reason
            seen = {name: value for name, value in status.items() if name != "now"}
            if seen != shown:
                shown, said_at = seen, time.monotonic()
                yield f"data: {json.dumps(status)}\n\n"
            elif time.monotonic() - said_at > BEAT_SECONDS:
                said_at = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(STATUS_SECONDS)
        self._shared.status.outdated()
        yield f"data: {json.dumps(await self._shared.status.read())}\n\n"  # the last status: perhaps that all is done

    async def get_curves(self, request: Request, _: None) -> Response:
        true_reward = await self._shared.queue.call(
            lambda queue: queue.notices.setting("true_reward") == "1", writes=False
        )
        curves = await asyncio.to_thread(status_module.curves, self._shared.run_dir, true_reward)
        return JSONResponse({"curves": curves, "true_reward": true_reward})

    async def get_openapi(self, request: Request, _: None) -> Response:
        return JSONResponse(openapi(self._shared.sessions.cookie_name))
