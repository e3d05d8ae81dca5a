"""The labelling server as an ASGI application. All state is in prefs.db, so it may be killed at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from drlhp.errors import PrefDBError
from drlhp.label_server.clips import KEEP_CLIPS, Clips
from drlhp.label_server.metrics import metrics
from drlhp.label_server.queue_thread import QueueThread
from drlhp.label_server.requests import Method, handler
from drlhp.label_server.routes.asking import Asking
from drlhp.label_server.routes.films import Films
from drlhp.label_server.routes.history import History
from drlhp.label_server.routes.news import News
from drlhp.label_server.routes.people import People
from drlhp.label_server.schema import ROUTES
from drlhp.label_server.security import Guard, Sessions
from drlhp.label_server.shared import BEAT_SECONDS, Shared
from drlhp.labelling.answers import LABELLER
from drlhp.labelling.queue import LabelQueue

STATIC = Path(__file__).parent / "static"
LOG_BYTES = 2**20  # of web/server.log, some thousand lines
TOPICS = (People, Asking, News, Films, History)  # each handles the routes after which its methods are named


class LabelApp:
    """Joins the routes of all topics to one application, and starts and ends what they share."""

    def __init__(
        self,
        db_path: Path,
        run_dir: Path,
        token: str,
        host: str,
        labeller: str = LABELLER,
        origin: str = "",
        tunnel: str = "",
        framed: bool = False,
    ) -> None:
        """
        Args:
            origin: where a proxy serves the page, such as https://label.example.org; empty without one.
            tunnel: the command that makes the link work on another computer; empty if it works without.
            framed: whether other pages of this machine may show the page in a frame.
        """
        self._db_path = db_path
        self.shared = Shared(run_dir, host, labeller, origin, tunnel, QueueThread(db_path), Sessions(token))
        guard = Middleware(Guard, bound=host, public=urlsplit(origin).netloc, framed=framed)
        self.asgi = Starlette(
            routes=[
                Route("/", _page),
                Route("/metrics", metrics(self.shared)),
                Mount("/static", StaticFiles(directory=STATIC)),
                *self._routes(),
            ],
            middleware=[guard],
            lifespan=self.lifespan,
            exception_handlers={HTTPException: _no_route},
        )

    def stop(self) -> None:
        """Makes the streams of events end, so that the server can stop."""
        self.shared.stopping = True

    def _routes(self) -> list[BaseRoute]:
        """Returns the routes of schema.py, each handled by the topic's method of its name, such as `post_next`."""
        topics = [topic(self.shared) for topic in TOPICS]
        methods: dict[str, Method] = {name: getattr(topic, name) for topic in topics for name in dir(topic)}
        routes: list[BaseRoute] = []
        for path, verbs in ROUTES.items():
            for verb in verbs:
                name = f"{verb}_{path.removeprefix('/api').split('{')[0].strip('/').replace('.json', '')}"
                routes.append(Route(path, handler(self.shared, path, methods[name]), methods=[verb.upper()]))
        return routes

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Opens the store at once, so that a store that cannot be opened ends the server; closes it at the end."""
        shared = self.shared
        shared.clips = await shared.queue.call(self._make_clips)
        beats = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            beats.cancel()
            shared.presence.clear()
            with contextlib.suppress(PrefDBError):
                await shared.beat()
            await shared.queue.close()
            shared.clips.close()

    def _make_clips(self, queue: LabelQueue) -> Clips:
        place = queue.notices.setting("clips_url") or self.shared.run_dir / "web" / "clips"
        return Clips(self._db_path, place, int(queue.notices.setting("keep_clips") or KEEP_CLIPS))

    async def _beat(self) -> None:
        while True:
            try:
                shorten(self.shared.run_dir / "web" / "server.log")
                await self.shared.beat()
                self.shared.troubles.over("beat")
            except (PrefDBError, OSError) as error:  # a full disk, say
                self.shared.troubles.add("beat", str(error))
            await asyncio.sleep(BEAT_SECONDS)


def shorten(log: Path) -> None:
    """Keeps the newest half of a log that has grown too long, because it lies on the disk of the labels."""
    with contextlib.suppress(FileNotFoundError), log.open("rb+") as file:  # its writers append, wherever its end is
        if file.seek(0, os.SEEK_END) > LOG_BYTES:
            file.seek(-LOG_BYTES // 2, os.SEEK_END)
            newest = file.read()
            file.seek(0)
            file.write(newest)
            file.truncate()


async def _page(request: Request) -> Response:
    """Serves the page itself, which holds nothing of the run and so needs no cookie."""
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


def _no_route(request: Request, error: Exception) -> Response:
    """Refuses a path or a method that does not exist like every other request: with a sentence in JSON."""
    assert isinstance(error, HTTPException)
    wrong = "is not here" if error.status_code == 404 else f"takes no {request.method}"
    return JSONResponse({"error": f"{request.url.path[:80]} {wrong}"}, error.status_code, headers=error.headers)
