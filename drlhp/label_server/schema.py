"""The server's requests and replies: one description checks every request's body and is served as OpenAPI 3.1."""

from __future__ import annotations

import math
import re
from typing import Any

from drlhp.data.comparison import CHOICES

Schema = dict[str, Any]
VERSION = "1"
MAX_BODY = 16 * 1024  # bytes
MAX_LEASES, MAX_PAGE = 8, 100

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
YES_NO: Schema = {"type": "boolean"}
ID: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
TOKEN: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
NICKNAME: Schema = {"type": "string", "minLength": 1, "maxLength": 40}
NOTE: Schema = {"type": "string", "maxLength": 500}
CHOICE: Schema = {"type": "string", "enum": list(CHOICES)}
UNIX: Schema = {"type": "number", "minimum": 0, "maximum": 4e10, "description": "unix seconds, UTC"}
TOKENS: Schema = {"type": "array", "items": TOKEN, "maxItems": MAX_LEASES}


def maybe(schema: Schema) -> Schema:
    """Returns a schema that also allows null."""
    return {**schema, "type": [schema["type"], "null"]}


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """Returns the schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": required | (optional or {}),
        "required": list(required),
        "additionalProperties": False,
    }


def listed(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


ERROR = record({"error": TEXT})
LEASE = record({"token": TOKEN, "comparison_id": ID, "left": ID, "right": ID, "expires_at": UNIX})
STATUS = record(
    {
        "now": UNIX,
        "labels": COUNT,
        "goal": COUNT,
        "initial_labels": {**COUNT, "description": "with which training starts"},
        "may_start": {**YES_NO, "description": "training waits for initial labels, and could do with those there are"},
        "answers": COUNT,
        "ready": COUNT,
        "leased": COUNT,
        "agent_steps": maybe(NUMBER),
        "reason": {**TEXT, "description": "why there may be no pair to show, in one sentence"},
        "trainer": {**TEXT, "description": "what the run was doing when last heard of, and when that was"},
        "trouble": {**TEXT, "description": "what does not work as it should; mostly empty"},
        "ended": {**TEXT, "description": "the last word, when nobody will ask any more; else empty"},
        "episode": maybe(TEXT),
        "task": TEXT,
        "instructions": TEXT,
    }
)
ANSWER_FIELDS = {
    "client_id": TOKEN,
    "token": TOKEN,
    "comparison_id": ID,
    "choice": CHOICE,
    "shown_at": UNIX,
    "answered_at": UNIX,
}
ANSWER_OPTIONS = {
    "watched_ms": {"type": "integer", "minimum": 0, "maximum": 10**9},
    "replays": {"type": "integer", "minimum": 0, "maximum": 10**6},
    "speed": {"type": "number", "minimum": 0.25, "maximum": 4},
    "flag": YES_NO,
    "note": NOTE,
}
RECEIPT = record({"status": {"type": "string", "enum": ["stored", "known", "conflict", "late"]}, "seq": COUNT})
HISTORY_ROW = record(
    {
        "seq": COUNT,
        "comparison_id": ID,
        "left": ID,
        "right": ID,
        "choice": CHOICE,
        "answered_at": UNIX,
        "flag": YES_NO,
        "note": TEXT,
    }
)
QUALITY_ROW = record(
    {
        "labeller": TEXT,
        "answers": COUNT,
        "median_seconds": maybe(NUMBER),
        "p90_seconds": maybe(NUMBER),
        "undone_share": NUMBER,
        "left_rate": maybe(NUMBER),
        "left_low": maybe(NUMBER),
        "left_high": maybe(NUMBER),
        "equal_share": NUMBER,
        "incomparable_share": NUMBER,
        "repeats": COUNT,
        "self_consistency": maybe(NUMBER),
        "error_rate": maybe(NUMBER),
    }
)
CURVE = record({"name": TEXT, "unit": TEXT, "steps": listed(NUMBER), "values": listed(NUMBER)})
ME = record(
    {
        "labeller": maybe(TEXT),
        "owner": YES_NO,
        "now": UNIX,
        "run": TEXT,
        "tour": {**YES_NO, "description": "whether to show me round: I have no answers yet, and the run wants it"},
    }
)

TUNNEL = {**TEXT, "description": "what makes the link work on another computer; empty where it does by itself"}

# path -> method -> (what it does, body, reply); the reply is None if it is not JSON.
ROUTES: dict[str, dict[str, tuple[str, Schema | None, Schema | None]]] = {
    "/api/login": {
        "post": (
            "Exchanges a token for a cookie. Without a name: `me` on this machine, else labeller is null and no "
            "cookie is set.",
            record({"token": {"type": "string", "pattern": "^[0-9a-f]{32}$"}}, {"labeller": NICKNAME}),
            ME,
        )
    },
    "/api/me": {"get": ("Who the cookie says I am.", None, ME)},
    "/api/name": {
        "post": ("Takes another name; with an invitation's cookie: 403.", record({"labeller": NICKNAME}), ME)
    },
    "/api/invite": {
        "post": (
            "A token that lets in this labeller and nobody else; for the owner of the run's token.",
            record({"labeller": NICKNAME}),
            record({"labeller": TEXT, "token": TEXT, "tunnel": TUNNEL}),
        )
    },
    "/api/next": {
        "post": (
            "Leases up to n pairs; those that are open for me come first, with the same tokens.",
            record({"n": {"type": "integer", "minimum": 1, "maximum": MAX_LEASES}}),
            record({"leases": listed(LEASE), "status": STATUS}),
        )
    },
    "/api/answer": {
        "post": (
            "Stores an answer; it is on disk when the reply comes. The same client_id again: `known`. A second answer "
            "to a pair: 409.",
            record(ANSWER_FIELDS, ANSWER_OPTIONS),
            RECEIPT,
        )
    },
    "/api/undo": {
        "post": (
            "Takes back my newest answer, if it is the one named, and leases its pair again, with the flag and note "
            "that the answer had; null: there is none.",
            record({"seq": maybe(COUNT)}),
            record({"lease": {**LEASE, "type": ["object", "null"]}, "flag": YES_NO, "note": TEXT}),
        )
    },
    "/api/release": {
        "post": (
            "Gives leases back; `leaving`: in a few seconds, unless I come back (a page that is loaded again).",
            record({"tokens": TOKENS}, {"leaving": YES_NO}),
            record({"released": COUNT}),
        )
    },
    "/api/renew": {
        "post": ("Holds leases for longer.", record({"tokens": TOKENS}), record({"renewed": COUNT})),
    },
    "/api/edit": {
        "post": (
            "Changes the stored answer `seq`. If it is not my effective one any more: 409.",
            record({"client_id": TOKEN, "seq": COUNT, "choice": CHOICE}, {"flag": YES_NO, "note": NOTE}),
            RECEIPT,
        )
    },
    "/api/start": {
        "post": (
            "Starts training with the labels so far, at least 25, before all initial ones are given.",
            record({}),
            STATUS,
        )
    },
    "/api/status": {"get": ("How far it is, and what is being waited for.", None, STATUS)},
    "/api/events": {"get": ("Server-sent events: the status whenever it changes.", None, None)},
    "/api/clip/{segment}": {
        "get": (
            "All frames of a segment in one lossless WebP picture; X-Frames, X-Width, X-Height and X-Columns say how "
            "they lie in it, X-Fps how many are shown in a second.",
            None,
            None,
        )
    },
    "/api/history": {
        "get": (
            "My answers, newest first; query: choice, flag, before (a seq), limit.",
            None,
            record({"rows": listed(HISTORY_ROW)}),
        )
    },
    "/api/episode": {"get": ("The last full episode as an mp4, if the run has written one.", None, None)},
    "/api/curves": {
        "get": (
            "Curves of the run by agent steps; true rewards only if the run says so (evaluation mode).",
            None,
            record({"curves": listed(CURVE), "true_reward": YES_NO}),
        )
    },
    "/api/quality": {
        "get": (
            "Statistics of the answers.",
            None,
            record({"labellers": listed(QUALITY_ROW), "alpha": maybe(NUMBER), "overlap": COUNT, "answers": COUNT}),
        )
    },
    "/api/export": {"get": ("Every effective answer; to a guest, without others' notes.", None, None)},
    "/openapi.json": {"get": ("This description.", None, {"type": "object"})},
}
KINDS = {
    "/api/events": "text/event-stream",
    "/api/clip/{segment}": "image/webp",
    "/api/episode": "video/mp4",
    "/api/export": "application/jsonl",
}
QUERIES: dict[str, dict[str, Schema]] = {
    "/api/history": {
        "choice": CHOICE,
        "flag": {"type": "string", "enum": ["true"]},
        "before": COUNT,
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE},
    },
    "/api/export": {"format": {"type": "string", "enum": ["jsonl", "csv"]}},
}
OPEN = ("/api/login", "/openapi.json")  # These routes need no cookie.


# These routes refuse with 409, and send the answer that is stored already.
CONFLICTS: dict[str, Schema] = {"/api/answer": RECEIPT, "/api/edit": {"anyOf": [RECEIPT, ERROR]}}


def openapi(cookie_name: str) -> Schema:
    """Returns the OpenAPI 3.1 description of every route, for a server whose cookie has this name."""
    origin = {"description": "the server's own, as a browser sends it", "schema": TEXT}
    paths: dict[str, Schema] = {}
    for path, methods in ROUTES.items():
        for method, (summary, body, reply) in methods.items():
            kind = KINDS.get(path, "application/json")
            content = {kind: {"schema": reply or {"type": "string"}}}
            refused = {"description": "refused, with the reason", "content": {"application/json": {"schema": ERROR}}}
            operation: Schema = {
                "summary": summary,
                "responses": {"200": {"description": "done", "content": content}, "4XX": refused, "5XX": refused},
                "security": [] if path in OPEN else [{"cookie": []}],
                "parameters": [
                    {"name": name, "in": "query", "required": False, "schema": schema}
                    for name, schema in QUERIES.get(path, {}).items()
                ],
            }
            if path in CONFLICTS:
                content = {"application/json": {"schema": CONFLICTS[path]}}
                operation["responses"]["409"] = {
                    "description": "not stored: there is another answer",
                    "content": content,
                }
            if method == "post":
                operation["parameters"].append({"name": "Origin", "in": "header", "required": True, **origin})
            if "{segment}" in path:
                operation["parameters"].append({"name": "segment", "in": "path", "required": True, "schema": ID})
            if body is not None:
                operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
            paths.setdefault(path, {})[method] = operation
    cookie = {"type": "apiKey", "in": "cookie", "name": cookie_name}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Labelling server", "version": VERSION},
        "paths": paths,
        "components": {"securitySchemes": {"cookie": cookie}},
    }


MAX_INTEGER = 2**53  # Larger integers may lose digits in programs that read JSON numbers as floats.
TYPES: dict[str, Any] = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return kind in ("integer", "number") and abs(value) < MAX_INTEGER
    if kind == "number":
        return isinstance(value, float) and math.isfinite(value)
    if kind == "integer":
        return False
    return isinstance(value, TYPES[kind])


def problem(value: Any, schema: Schema, name: str = "body") -> str | None:
    """Returns what is wrong with a value, in one sentence; None if it fits. Checks only the keywords used here."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"{name} must be of type {' or '.join(kinds)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{name} must be one of {', '.join(schema['enum'])}"
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            return f"{name} must be text"  # A lone surrogate can be sent in JSON, but neither stored nor shown.
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf):
            return f"{name} must have {schema.get('minLength', 0)} to {schema.get('maxLength')} characters"
        if "pattern" in schema and not re.fullmatch(schema["pattern"].strip("^$"), value):
            return f"{name} must match {schema['pattern']}"
    if isinstance(value, (int, float)) and not schema.get("minimum", -math.inf) <= value <= schema.get(
        "maximum", math.inf
    ):
        return f"{name} must lie between {schema.get('minimum')} and {schema.get('maximum')}"
    if isinstance(value, list):
        if len(value) > schema.get("maxItems", math.inf):
            return f"{name} must have at most {schema['maxItems']} items"
        problems = (problem(item, schema["items"], f"{name}[{i}]") for i, item in enumerate(value))
        return next((text for text in problems if text), None)
    if isinstance(value, dict) and "properties" in schema:
        return _object_problem(value, schema, name)
    return None


def _object_problem(value: dict[str, Any], schema: Schema, name: str) -> str | None:
    missing = [field for field in schema["required"] if field not in value]
    unknown = [field for field in value if field not in schema["properties"]]
    if missing or unknown:
        return f"{name} lacks {missing[0]}" if missing else f"{name} has an unknown field {unknown[0][:40]!r}"
    problems = (problem(item, schema["properties"][field], field) for field, item in value.items())
    return next((text for text in problems if text), None)
