"""Routes about pairs and answers: claiming, answering, undoing, changing, giving back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from drlhp.label_server.requests import Refused
from drlhp.label_server.shared import Shared
from drlhp.labelling.answers import Lease, Receipt, Submission
from drlhp.labelling.queue import LabelQueue


class Asking:
    """Hands out pairs and takes answers."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._releases: set[asyncio.Task[Any]] = set()  # keeps the tasks alive until they are done

    async def post_next(self, request: Request, body: dict[str, Any]) -> Response:
        labeller, unshowable = self._labeller(request), dict(self._shared.unshowable)

        def claim(queue: LabelQueue) -> list[Lease]:
            for segment, why in unshowable.items():
                queue.retire(segment, why)
            return queue.claim(labeller, body["n"])

        if unshowable:
            self._shared.status.outdated()
        leases, status = await asyncio.gather(self._shared.queue.call(claim), self._shared.status.read())
        for segment in unshowable:
            self._shared.unshowable.pop(segment, None)
        return JSONResponse({"leases": [_lease(lease) for lease in leases], "status": status})

    async def post_answer(self, request: Request, body: dict[str, Any]) -> Response:
        submission = Submission(labeller=self._labeller(request), **body)
        return await self._store(lambda queue: queue.answers.add(submission))

    async def post_edit(self, request: Request, body: dict[str, Any]) -> Response:
        labeller = self._labeller(request)

        def edit(queue: LabelQueue) -> Receipt:
            receipt = queue.answers.edit(labeller=labeller, **body)
            if receipt is None:
                raise Refused(409, "that answer has been changed meanwhile")
            return receipt

        return await self._store(edit)

    async def _store(self, submit: Callable[[LabelQueue], Receipt]) -> Response:
        receipt = await self._shared.queue.call(submit)
        self._shared.status.outdated()
        code = 409 if receipt.status == "conflict" else 200
        return JSONResponse({"status": receipt.status, "seq": receipt.seq}, code)

    async def post_undo(self, request: Request, body: dict[str, Any]) -> Response:
        labeller, own_id = self._labeller(request), uuid.uuid4().hex

        def undo(queue: LabelQueue) -> dict[str, Any]:
            newest = queue.answers.newest(labeller)
            if newest and body["seq"] is not None and newest.seq != body["seq"]:
                raise Refused(409, "that is not your newest answer any more")
            lease = queue.answers.undo(labeller, own_id)
            if newest is None or lease is None:
                return {"lease": None, "flag": False, "note": ""}
            return {"lease": _lease(lease), "flag": newest.flag, "note": newest.note}

        reply = await self._shared.queue.call(undo)
        self._shared.status.outdated()
        return JSONResponse(reply)

    async def post_release(self, request: Request, body: dict[str, Any]) -> Response:
        labeller, tokens = self._labeller(request), body["tokens"]
        if body.get("leaving"):
            self._shared.presence.leave(labeller, lambda: self._release(tokens))
        else:
            await self._shared.queue.call(lambda queue: queue.leases.release(tokens))
            self._shared.status.outdated()
        return JSONResponse({"released": len(tokens)})

    def _release(self, tokens: list[str]) -> None:
        task = asyncio.ensure_future(self._shared.queue.call(lambda queue: queue.leases.release(tokens)))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def post_renew(self, request: Request, body: dict[str, Any]) -> Response:
        self._labeller(request)
        await self._shared.queue.call(lambda queue: queue.leases.renew(body["tokens"]))
        return JSONResponse({"renewed": len(body["tokens"])})

    async def post_start(self, request: Request, _: dict[str, Any]) -> Response:
        await self._shared.queue.call(lambda queue: queue.notices.start_now())
        self._shared.status.outdated()
        return JSONResponse(await self._shared.status.read())

    def _labeller(self, request: Request) -> str:
        """Returns the labeller's name; a labeller whose page was just closed has not left after all."""
        labeller: str = request.state.session.labeller
        self._shared.presence.come_back(labeller)
        return labeller


def _lease(lease: Lease) -> dict[str, Any]:
    """Returns what the page may know. Not the kind: people answer differently if they know that a pair is repeated."""
    return {name: getattr(lease, name) for name in ("token", "comparison_id", "left", "right", "expires_at")}
