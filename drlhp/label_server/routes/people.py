"""Routes about people: logging in, names and invitations."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from drlhp.label_server.requests import Refused
from drlhp.label_server.security import COOKIE_SECONDS, Attempts, Session, is_loopback
from drlhp.label_server.shared import Shared
from drlhp.labelling.answers import check_labeller
from drlhp.labelling.queue import LabelQueue


class People:
    """Lets labellers in, and names them."""

    def __init__(self, shared: Shared) -> None:
        self._shared, self._attempts = shared, Attempts()

    async def post_login(self, request: Request, body: dict[str, Any]) -> Response:
        name = body.get("labeller")
        session = self._shared.sessions.admit(body["token"], name or "")
        if session is None:  # a right token is never blocked: behind a proxy all labellers have one address
            address = request.client.host if request.client else ""
            if self._attempts.blocked(address):
                raise Refused(429, "too many wrong tokens; try again in a minute")
            self._attempts.failed(address)
            raise Refused(403, "that token is wrong: open the link that the run printed")
        if not name and (name := await self._name_of_owner(request)):
            session = Session(name, owner=True)
        return await self._logged_in(request, session) if name else JSONResponse(await self._me(None))

    async def _name_of_owner(self, request: Request) -> str | None:
        """Returns a name for the person who opened the run's own link: the browser's, else that of this machine.

        Returns None if somebody labels by that name already: two people who share a name would see the same pairs.
        """
        shared = self._shared
        known = shared.sessions.read(request.cookies.get(shared.sessions.cookie_name))
        if known is not None and known.owner:
            return known.labeller
        if shared.origin or not is_loopback(shared.host) or shared.labeller in shared.presence.names():
            return None
        active = await shared.queue.call(lambda queue: queue.is_active(shared.labeller), writes=False)
        if active or shared.labeller in shared.presence.names():  # of two who come at once, one is asked for a name
            return None
        shared.presence.seen(shared.labeller)
        return shared.labeller

    async def get_me(self, request: Request, _: None) -> Response:
        return JSONResponse(await self._me(request.state.session))

    async def post_name(self, request: Request, body: dict[str, Any]) -> Response:
        if not request.state.session.owner:
            raise Refused(403, "your link is for one name only")
        shared, name, before = self._shared, body["labeller"], request.state.session.labeller
        if name != before:
            if (
                await shared.queue.call(lambda queue: queue.is_present(name), writes=False)
                or name in shared.presence.names()
            ):
                raise Refused(409, f"somebody labels as {name} now and would see the same pairs; choose another name")
            shared.presence.rename(before, name)
            await shared.beat()
        return await self._logged_in(request, Session(name, owner=True))

    async def post_invite(self, request: Request, body: dict[str, Any]) -> Response:
        if not request.state.session.owner:
            raise Refused(403, "only people with the run's own link may invite")
        check_labeller(body["labeller"])
        token = self._shared.sessions.invitation(body["labeller"])
        return JSONResponse({"labeller": body["labeller"], "token": token, "tunnel": self._shared.tunnel})

    async def _logged_in(self, request: Request, session: Session) -> Response:
        """Returns the reply that sets the session's cookie. Raises SubmissionError for an impossible name."""
        check_labeller(session.labeller)
        response = JSONResponse(await self._me(session))
        name, value = self._shared.sessions.cookie_name, self._shared.sessions.cookie(session)
        encrypted = request.headers.get("origin", "").lower().startswith("https:")
        response.set_cookie(
            name, value, max_age=COOKIE_SECONDS, path="/", httponly=True, samesite="strict", secure=encrypted
        )
        return response

    async def _me(self, session: Session | None) -> dict[str, Any]:
        name, owner = (session.labeller, session.owner) if session else (None, False)
        tour = name is not None and await self._shared.queue.call(lambda queue: _is_new(queue, name), writes=False)
        return {"labeller": name, "owner": owner, "now": time.time(), "run": self._shared.run_dir.name, "tour": tour}


def _is_new(queue: LabelQueue, labeller: str) -> bool:
    """Returns whether a labeller is to be shown round: one without answers, unless the run does without the tour."""
    return queue.notices.setting("tour") != "0" and not queue.answers.history(labeller, limit=1)
