"""Routes that serve pictures: the clips of a pair, and the last full episode."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from drlhp.errors import DamagedError, UnknownSegmentError
from drlhp.label_server.requests import Refused
from drlhp.label_server.schema import ID, problem
from drlhp.label_server.shared import Shared
from drlhp.label_server.status import EPISODE

FOREVER = {"Cache-Control": "private, max-age=31536000, immutable"}  # a segment's id is a hash of its contents


class Films:
    """Serves clips and episodes."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def get_clip(self, request: Request, _: None) -> Response:
        segment = request.path_params["segment"]
        if wrong := problem(segment, ID, "segment"):
            raise Refused(404, wrong)
        clips = self._shared.clips
        try:
            sheet = await asyncio.get_running_loop().run_in_executor(clips.pool, clips.sheet, segment)
        except (ValueError, DamagedError) as error:
            self._shared.unshowable[segment] = str(error)
            raise Refused(422, str(error)) from error
        except UnknownSegmentError as error:
            raise Refused(404, str(error)) from error
        headers = dict(FOREVER)
        for name in ("frames", "width", "height", "columns", "fps"):
            headers[f"X-{name.title()}"] = f"{getattr(sheet, name):g}"
        return Response(sheet.data, media_type="image/webp", headers=headers)

    async def get_episode(self, request: Request, _: None) -> Response:
        path = self._shared.run_dir / EPISODE
        if not path.exists():
            raise Refused(404, "the run has not written an episode yet")
        return FileResponse(path, media_type="video/mp4")
