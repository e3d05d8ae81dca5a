"""Routes about stored answers: a labeller's own, their quality, and the export of all."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from drlhp.data.spreadsheet import write_table
from drlhp.label_server.shared import Shared
from drlhp.labelling.answer_log import ALL
from drlhp.labelling.answers import HistoryRow
from drlhp.labelling.quality import judged, quality
from drlhp.labelling.queue import LabelQueue

EXPORT_VERSION = 1  # of the page's export, which is for reading; `run.py export` is for moving labels
HISTORY_FIELDS = ("seq", "comparison_id", "left", "right", "choice", "answered_at", "flag", "note")


class History:
    """Shows the answers that are stored."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def get_history(self, request: Request, query: dict[str, Any]) -> Response:
        labeller, limit = request.state.session.labeller, query.get("limit", 24)
        before, flagged = query.get("before"), "flag" in query

        def read(queue: LabelQueue) -> list[HistoryRow]:
            rows = queue.answers.history(
                labeller, choice=query.get("choice"), before_seq=before, limit=ALL if flagged else limit
            )
            return [row for row in rows if row.flag or not flagged][:limit]

        rows = await self._shared.queue.call(read)
        return JSONResponse({"rows": [{name: getattr(row, name) for name in HISTORY_FIELDS} for row in rows]})

    async def get_quality(self, request: Request, _: None) -> Response:
        rows, undone = await self._shared.queue.call(
            lambda queue: (queue.answers.history(merged=True, limit=ALL), queue.answers.undone())
        )
        return JSONResponse(await asyncio.to_thread(quality, judged(rows), undone))

    async def get_export(self, request: Request, query: dict[str, Any]) -> Response:
        rows = await self._shared.queue.call(lambda queue: queue.answers.history(merged=True, limit=ALL))
        records = [{"schema": EXPORT_VERSION, **asdict(row)} for row in reversed(rows)]
        session = request.state.session
        for record in records:
            del record["token"]
            if not session.owner and record["labeller"] != session.labeller:
                record["note"] = ""  # written for whoever runs this, not for the other guests
        if query.get("format") == "csv":
            return Response(_csv(records), media_type="text/csv", headers=_attached("labels.csv"))
        lines = "".join(json.dumps(record) + "\n" for record in records)
        return Response(lines, media_type="application/jsonl", headers=_attached("labels.jsonl"))


def _csv(records: list[dict[str, Any]]) -> str:
    file = io.StringIO()
    write_table(file, list(records[0]) if records else ["seq"], records)
    return file.getvalue()


def _attached(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}
