"""The labelling server's routes. All state is in prefs.db, so it may be killed and started again at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from drlhp.errors import DamagedError, PrefDBError, UnknownSegmentError
from drlhp.label_server import status as status_module
from drlhp.label_server.clips import KEEP_CLIPS, Clips
from drlhp.label_server.schema import MAX_BODY, OPEN, QUERIES, ROUTES, openapi, problem
from drlhp.label_server.security import COOKIE_SECONDS, Attempts, Guard, Session, Sessions, is_loopback
from drlhp.labelling.answers import LABELLER, HistoryRow, Lease, Receipt, Submission, SubmissionError, check_labeller
from drlhp.labelling.notices import SILENT_SECONDS
from drlhp.labelling.quality import judged, quality
from drlhp.labelling.queue import ALL, LabelQueue
from pref_db import PrefDB, spreadsheet_cell

log = logging.getLogger("label_server")

STATIC = Path(__file__).parent / "static"
EXPORT_VERSION = 1  # of what the page exports, which is for reading; `run.py export` is for moving
BODY_SECONDS = 10.0  # for a request's body to arrive
GRACE_SECONDS = 5.0  # after a page was left, before its pairs are given back: a reload comes sooner
STATUS_SECONDS = 1.0  # between looks at the store for those who wait
BEAT_SECONDS = 5.0

T = TypeVar("T")


class Refused(Exception):
    """A request that is answered with this status and sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class LabelApp:
    """What the routes share: the queue, which one thread owns, the clips, and who is logged in."""

    def __init__(
        self,
        db_path: Path,
        run_dir: Path,
        token: str,
        host: str,
        labeller: str = LABELLER,
        origin: str = "",
        tunnel: str = "",
    ) -> None:
        """
        Args:
            origin: where a proxy serves the page, such as https://label.example.org; empty without one.
            tunnel: what lets other computers reach the server; empty where they do without.
        """
        self.run_dir, self.host, self.labeller, self.origin, self.tunnel = run_dir, host, labeller, origin, tunnel
        self.sessions, self.attempts = Sessions(token), Attempts()
        self.stopping = False
        self._db_path = db_path
        self.clips: Clips
        self._queue: LabelQueue | None = None
        # What is to be done in the queue's thread.
        self._calls: deque[tuple[Callable[[LabelQueue], Any], asyncio.Future[Any]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="queue")
        self._leaving: dict[str, asyncio.TimerHandle] = {}
        self._seen: dict[str, float] = {}  # when those who label were last heard of
        self._status: tuple[float, dict[str, Any]] = (-math.inf, {})
        self._unshowable: dict[str, str] = {}  # segments of which nobody will be asked from the next claim on: why
        self._failures: dict[str, str] = {}  # of what failed, when last done, that should not: why
        self._tasks: set[asyncio.Task[Any]] = set()
        routes: list[BaseRoute] = [Route("/", self.page), Mount("/static", StaticFiles(directory=STATIC))]
        for path, methods in ROUTES.items():
            for method in methods:
                name = f"{method}_{path.removeprefix('/api').split('{')[0].strip('/').replace('.json', '')}"
                routes.append(Route(path, self._handler(path, getattr(self, name)), methods=[method.upper()]))
        guard = Middleware(Guard, bound=host, public=urlsplit(origin).netloc)
        self.asgi = Starlette(
            routes=routes, middleware=[guard], lifespan=self._lifespan, exception_handlers={HTTPException: _no_route}
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        # Opens the store now: what is wrong with it ends the server.
        self.clips = await self._in_queue(self._make_clips)
        beats = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            beats.cancel()
            for timer in self._leaving.values():
                timer.cancel()
            self._seen.clear()
            with contextlib.suppress(PrefDBError):
                await self._say()
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close_queue)
            self._thread.shutdown()
            self.clips.close()

    def _make_clips(self, queue: LabelQueue) -> Clips:
        place = queue.notices.setting("clips_url") or self.run_dir / "web" / "clips"
        return Clips(self._db_path, place, int(queue.notices.setting("keep_clips") or KEEP_CLIPS))

    async def _beat(self) -> None:
        while True:
            try:
                await self._say()
                self._failures.pop("beat", None)
            except PrefDBError as error:  # a full disk, say
                self._failures["beat"] = str(error)
            await asyncio.sleep(BEAT_SECONDS)

    async def _say(self) -> None:
        word = {"trouble": self.trouble, "labellers": self._present()}
        await self._in_queue(lambda queue: queue.notices.beat("server", word))

    @property
    def trouble(self) -> str:
        """What does not work as it should, in words; mostly empty."""
        return "; ".join(dict.fromkeys(why for why in (self.clips.trouble, *self._failures.values()) if why))

    async def _in_queue(self, call: Callable[[LabelQueue], T]) -> T:
        """Does something with the queue in the one thread that may; raises PrefDBError."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._calls.append((call, done))
        await loop.run_in_executor(self._thread, self._do_calls, loop)
        return await done

    def _do_calls(self, loop: asyncio.AbstractEventLoop) -> None:
        """Does all that has been asked for by now, with one commit: each would wait for the disk.

        What fails is undone alone and told to who asked for it; where the commit fails, nothing was done for anybody.
        """
        calls = []
        while self._calls:
            calls.append(self._calls.popleft())
        results: list[tuple[Any, Exception | None]] = []
        try:
            self._queue = self._queue or LabelQueue(PrefDB.open(self._db_path))
            with self._queue.db.transaction() if len(calls) > 1 else contextlib.nullcontext():
                for call, _ in calls:
                    try:
                        results.append((call(self._queue), None))
                    except Exception as error:
                        results.append((None, error))
        except Exception as error:
            results = [(None, error)] * len(calls)
        for (_, done), (result, failure) in zip(calls, results, strict=True):
            loop.call_soon_threadsafe(_tell, done, result, failure)

    def _close_queue(self) -> None:
        if self._queue is not None:
            self._queue.db.close()

    def _handler(
        self, path: str, method: Callable[[Request, Any], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """The route's method, given the session (or None where none is needed) and a body that fits its schema."""

        async def handle(request: Request) -> Response:
            try:
                request.state.session = self._session(request, path)
                argument: Any = None
                body_schema = ROUTES[path][request.method.lower().replace("head", "get")][1]
                if body_schema is not None:
                    argument = await self._body(request, body_schema)
                elif path in QUERIES:
                    argument = self._query(request, path)
                response = await method(request, argument)
                self._failures.pop(path, None)
                return response
            except Refused as error:
                return JSONResponse({"error": str(error)}, error.status)
            except SubmissionError as error:
                return JSONResponse({"error": str(error)}, 422)
            except (PrefDBError, OSError) as error:
                return JSONResponse({"error": str(error)}, 503)
            except Exception as error:  # a mistake of ours: who labels can tell of it, and the log says where
                log.exception("%s failed", path)
                self._failures[path] = f"{path} failed ({type(error).__name__}: {error}); see web/server.log"
                return JSONResponse({"error": self._failures[path]}, 500)

        return handle

    def _session(self, request: Request, path: str) -> Session | None:
        if path in OPEN:
            return None
        session = self.sessions.read(request.cookies.get(self.sessions.cookie_name))
        if session is None:
            raise Refused(401, "open the link that the run printed; it ends in #t= and a token")
        self._seen[session.labeller] = time.monotonic()
        return session

    @staticmethod
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

    @staticmethod
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

    async def page(self, request: Request) -> Response:
        """The page itself holds nothing of the run, so it needs no cookie."""
        return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    # Who is there

    async def post_login(self, request: Request, body: dict[str, Any]) -> Response:
        name = body.get("labeller")
        session = self.sessions.admit(body["token"], name or "")
        if session is None:  # behind a proxy all have one address: who has the right token is let in all the same
            address = request.client.host if request.client else ""
            if self.attempts.blocked(address):
                raise Refused(429, "too many wrong tokens; try again in a minute")
            self.attempts.failed(address)
            raise Refused(403, "that token is wrong: open the link that the run printed")
        if not name and (name := await self._name_of(request)):
            session = Session(name, owner=True)
        return self._logged_in(request, session) if name else JSONResponse(self._me(None))

    async def _name_of(self, request: Request) -> str | None:
        """The name of who has opened the run's own link: the browser's, else that of this machine's labeller.

        None where somebody labels by that name already: two people who share it would see the same pairs.
        """
        known = self.sessions.read(request.cookies.get(self.sessions.cookie_name))
        if known is not None and known.owner:
            return known.labeller
        if self.origin or not is_loopback(self.host) or self.labeller in self._present():
            return None
        active = await self._in_queue(lambda queue: queue.is_active(self.labeller))
        if active or self.labeller in self._present():  # of two at once one is asked
            return None
        self._seen[self.labeller] = time.monotonic()
        return self.labeller

    def _present(self) -> list[str]:
        """Those whose pages have been heard of just now."""
        soon = time.monotonic() - SILENT_SECONDS
        self._seen = {name: at for name, at in self._seen.items() if at > soon}
        return sorted(self._seen)

    async def get_me(self, request: Request, _: None) -> Response:
        return JSONResponse(self._me(request.state.session))

    async def post_name(self, request: Request, body: dict[str, Any]) -> Response:
        if not request.state.session.owner:
            raise Refused(403, "your link is for one name only")
        name, before = body["labeller"], request.state.session.labeller
        if name != before:
            if await self._in_queue(lambda queue: queue.is_present(name)) or name in self._present():
                raise Refused(409, f"somebody labels as {name} now, who would be shown the same pairs; choose another")
            self._seen[name] = self._seen.pop(before, time.monotonic())  # which may be taken again
            await self._say()
        return self._logged_in(request, Session(name, owner=True))

    async def post_invite(self, request: Request, body: dict[str, Any]) -> Response:
        if not request.state.session.owner:
            raise Refused(403, "only who has the run's own link may invite")
        check_labeller(body["labeller"])
        token = self.sessions.invitation(body["labeller"])
        return JSONResponse({"labeller": body["labeller"], "token": token, "tunnel": self.tunnel})

    def _logged_in(self, request: Request, session: Session) -> Response:
        check_labeller(session.labeller)
        response = JSONResponse(self._me(session))
        name, value = self.sessions.cookie_name, self.sessions.cookie(session)
        encrypted = request.headers.get("origin", "").lower().startswith("https:")
        response.set_cookie(
            name, value, max_age=COOKIE_SECONDS, path="/", httponly=True, samesite="strict", secure=encrypted
        )
        return response

    def _me(self, session: Session | None) -> dict[str, Any]:
        name, owner = (session.labeller, session.owner) if session else (None, False)
        return {"labeller": name, "owner": owner, "now": time.time(), "run": self.run_dir.name}

    # Pairs and answers

    async def post_next(self, request: Request, body: dict[str, Any]) -> Response:
        labeller = self._here(request)

        def claim(queue: LabelQueue) -> list[Lease]:
            for segment, why in [*self._unshowable.items()]:
                queue.retire(segment, why)
                self._unshowable.pop(segment, None)
            return queue.claim(labeller, body["n"])

        if self._unshowable:
            self._look_anew()
        leases = await self._in_queue(claim)
        return JSONResponse({"leases": [_lease(lease) for lease in leases], "status": await self._current_status()})

    async def post_answer(self, request: Request, body: dict[str, Any]) -> Response:
        submission = Submission(labeller=self._here(request), **body)
        return await self._reply(lambda queue: queue.answer(submission))

    async def _reply(self, submit: Callable[[LabelQueue], Receipt]) -> Response:
        receipt = await self._in_queue(submit)
        self._look_anew()
        code = 409 if receipt.status == "conflict" else 200
        return JSONResponse({"status": receipt.status, "seq": receipt.seq}, code)

    async def post_undo(self, request: Request, body: dict[str, Any]) -> Response:
        labeller = self._here(request)

        def undo(queue: LabelQueue) -> dict[str, Any]:
            newest = queue.newest(labeller)
            if newest and body["seq"] is not None and newest.seq != body["seq"]:
                raise Refused(409, "that is not your newest answer any more")
            lease = queue.undo(labeller)
            if newest is None or lease is None:
                return {"lease": None, "flag": False, "note": ""}
            return {"lease": _lease(lease), "flag": newest.flag, "note": newest.note}

        reply = await self._in_queue(undo)
        self._look_anew()
        return JSONResponse(reply)

    async def post_release(self, request: Request, body: dict[str, Any]) -> Response:
        labeller, tokens = self._here(request), body["tokens"]
        if body.get("leaving"):
            loop = asyncio.get_running_loop()
            self._leaving[labeller] = loop.call_later(GRACE_SECONDS, self._release_later, labeller, tokens)
        else:
            await self._in_queue(lambda queue: queue.release(tokens))
            self._look_anew()
        return JSONResponse({"released": len(tokens)})

    def _release_later(self, labeller: str, tokens: list[str]) -> None:
        self._leaving.pop(labeller, None)
        self._seen.pop(labeller, None)
        task = asyncio.ensure_future(self._in_queue(lambda queue: queue.release(tokens)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def post_renew(self, request: Request, body: dict[str, Any]) -> Response:
        self._here(request)
        await self._in_queue(lambda queue: queue.renew(body["tokens"]))
        return JSONResponse({"renewed": len(body["tokens"])})

    async def post_edit(self, request: Request, body: dict[str, Any]) -> Response:
        labeller = self._here(request)

        def edit(queue: LabelQueue) -> Receipt:
            receipt = queue.edit(labeller=labeller, **body)
            if receipt is None:
                raise Refused(409, "that answer has been changed meanwhile")
            return receipt

        return await self._reply(edit)

    async def post_start(self, request: Request, _: dict[str, Any]) -> Response:
        await self._in_queue(lambda queue: queue.notices.start_now())
        self._look_anew()
        return JSONResponse(await self._current_status())

    def _here(self, request: Request) -> str:
        """The labeller, who has not left after all, if a page was closed just now."""
        labeller = request.state.session.labeller
        timer = self._leaving.pop(labeller, None)
        if timer is not None:
            timer.cancel()
        return labeller

    # What there is to see

    async def _current_status(self) -> dict[str, Any]:
        """The status, read again when it is a second old or something was done."""
        at, status = self._status
        if time.monotonic() - at >= STATUS_SECONDS:
            status = await self._in_queue(lambda queue: status_module.status(queue, self.run_dir, time.time()))
            status["trouble"] = "; ".join(why for why in (status["trouble"], self.trouble) if why)
            self._status = (time.monotonic(), status)
        return status

    def _look_anew(self) -> None:
        """Something was done: the next status is read, however young the last one is."""
        self._status = (-math.inf, {})

    async def get_status(self, request: Request, _: None) -> Response:
        return JSONResponse(await self._current_status())

    async def get_events(self, request: Request, _: None) -> Response:
        # A HEAD has no body, which would go on for ever all the same.
        events = self._events(request.state.session.labeller) if request.method == "GET" else ()
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(self, labeller: str) -> AsyncIterator[str]:
        shown, said_at = None, 0.0
        yield "retry: 1000\n\n"
        while not self.stopping:
            self._seen[labeller] = time.monotonic()
            try:
                status = await self._current_status()
            except PrefDBError:
                return  # the page polls, and is told the reason
            seen = {name: value for name, value in status.items() if name != "now"}
            if seen != shown:
                shown, said_at = seen, time.monotonic()
                yield f"data: {json.dumps(status)}\n\n"
            elif time.monotonic() - said_at > BEAT_SECONDS:
                said_at = time.monotonic()
                yield ": still here\n\n"
            await asyncio.sleep(STATUS_SECONDS)
        self._look_anew()
        yield f"data: {json.dumps(await self._current_status())}\n\n"  # the last word: perhaps that all is done

    async def get_clip(self, request: Request, _: None) -> Response:
        segment = request.path_params["segment"]
        if wrong := problem(segment, {"type": "string", "pattern": "^[0-9a-f]{64}$"}, "segment"):
            raise Refused(404, wrong)
        loop = asyncio.get_running_loop()
        try:
            sheet = await loop.run_in_executor(self.clips.pool, self.clips.sheet, segment)
        except (ValueError, DamagedError) as error:
            self._unshowable[segment] = str(error)
            raise Refused(422, str(error)) from error
        except UnknownSegmentError as error:
            raise Refused(404, str(error)) from error
        headers = {"Cache-Control": "private, max-age=31536000, immutable"}
        for name in ("frames", "width", "height", "columns", "fps"):
            headers[f"X-{name.title()}"] = f"{getattr(sheet, name):g}"
        return Response(sheet.data, media_type="image/webp", headers=headers)

    async def get_history(self, request: Request, query: dict[str, Any]) -> Response:
        labeller, limit = request.state.session.labeller, query.get("limit", 24)
        before = query.get("before")

        def read(queue: LabelQueue) -> list[HistoryRow]:
            rows = queue.history(
                labeller, choice=query.get("choice"), before_seq=before, limit=ALL if flagged else limit
            )
            return [row for row in rows if row.flag or not flagged][:limit]

        flagged = "flag" in query
        rows = await self._in_queue(read)
        names = ("seq", "comparison_id", "left", "right", "choice", "answered_at", "flag", "note")
        return JSONResponse({"rows": [{name: getattr(row, name) for name in names} for row in rows]})

    async def get_episode(self, request: Request, _: None) -> Response:
        path = self.run_dir / status_module.EPISODE
        if not path.exists():
            raise Refused(404, "the run has not written an episode yet")
        return FileResponse(path, media_type="video/mp4")

    async def get_curves(self, request: Request, _: None) -> Response:
        true_reward = await self._in_queue(lambda queue: queue.notices.setting("true_reward") == "1")
        curves = await asyncio.to_thread(status_module.curves, self.run_dir, true_reward)
        return JSONResponse({"curves": curves, "true_reward": true_reward})

    async def get_quality(self, request: Request, _: None) -> Response:
        rows, undone = await self._in_queue(lambda queue: (queue.history(merged=True, limit=ALL), queue.undone()))
        return JSONResponse(await asyncio.to_thread(quality, judged(rows), undone))

    async def get_export(self, request: Request, query: dict[str, Any]) -> Response:
        rows = await self._in_queue(lambda queue: queue.history(merged=True, limit=ALL))
        records = [{"schema": EXPORT_VERSION, **asdict(row)} for row in reversed(rows)]
        for record in records:
            del record["token"]
        if query.get("format") == "csv":
            return Response(_csv(records), media_type="text/csv", headers=_attached("labels.csv"))
        lines = "".join(json.dumps(record) + "\n" for record in records)
        return Response(lines, media_type="application/jsonl", headers=_attached("labels.jsonl"))

    async def get_openapi(self, request: Request, _: None) -> Response:
        return JSONResponse(openapi(self.sessions.cookie_name))


def _no_route(request: Request, error: Exception) -> Response:
    """What is not there or not asked that way is refused like all else."""
    assert isinstance(error, HTTPException)
    wrong = "is not here" if error.status_code == 404 else f"takes no {request.method}"
    return JSONResponse({"error": f"{request.url.path[:80]} {wrong}"}, error.status_code, headers=error.headers)


def _tell(done: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    if done.cancelled():  # who asked has gone
        return
    if failure is None:
        done.set_result(result)
    else:
        done.set_exception(failure)


def _lease(lease: Lease) -> dict[str, Any]:
    """What the page is told: not the kind, for who knows that a pair is a repetition answers it otherwise."""
    return {name: getattr(lease, name) for name in ("token", "comparison_id", "left", "right", "expires_at")}


def _csv(records: list[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]) if records else ["seq"])
    writer.writeheader()
    writer.writerows({name: spreadsheet_cell(value) for name, value in record.items()} for record in records)
    return file.getvalue()


def _attached(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}
