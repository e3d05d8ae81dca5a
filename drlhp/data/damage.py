"""Finds rows that no program of ours wrote: to SQLite a text may stand for a number, and a row name what is gone."""

from __future__ import annotations

import sqlite3

SQL_LOGIC_ERROR = sqlite3.SQLITE_ERROR  # a table or a column is missing

# Conditions of damaged rows, by table, of each version of the schema. SQLite itself has checked NOT NULL and CHECK.
ROWS_1 = {
    "meta": "typeof(key) <> 'text' OR typeof(value) <> 'text'",
    "segment": (
        "typeof(id) <> 'text' OR typeof(length) <> 'integer' OR length < 1 OR typeof(stack) <> 'integer' OR stack < 1 "
        "OR typeof(policy_step) <> 'integer' OR typeof(seed) <> 'integer' OR typeof(fps) <> 'real' "
        "OR NOT (fps > 0 AND fps < 9e999) OR typeof(layout) <> 'text' OR typeof(arrays) <> 'blob' "
        "OR typeof(view) NOT IN ('blob', 'null')"
    ),
    "comparison": "typeof(id) <> 'text' OR segment_a = segment_b",
    "answer": (
        "typeof(client_id) <> 'text' OR typeof(teacher) <> 'text' OR typeof(shown_at) NOT IN ('real', 'null') "
        "OR typeof(answered_at) <> 'real' OR abs(answered_at) = 9e999 OR abs(shown_at) = 9e999"
    ),
    "answer JOIN comparison ON comparison.id = comparison_id": (
        "shown_left NOT IN (segment_a, segment_b) OR preferred NOT IN (segment_a, segment_b)"
    ),
}
ROWS_2 = {
    "answer": (
        "typeof(labeller) NOT IN ('text', 'null') OR typeof(watched_ms) NOT IN ('integer', 'null') "
        "OR typeof(replays) <> 'integer' OR typeof(speed) <> 'real' OR typeof(late) <> 'integer' "
        "OR typeof(flag) <> 'integer' OR typeof(note) <> 'text'"
    ),
    "query": (
        "typeof(need) <> 'integer' OR typeof(priority) <> 'real' OR typeof(reason) <> 'text' "
        "OR typeof(policy_step) <> 'integer' OR typeof(created_at) <> 'real'"
    ),
    "lease": (
        "typeof(token) <> 'text' OR typeof(labeller) <> 'text' OR typeof(flip) <> 'integer' OR typeof(kind) <> 'text' "
        "OR typeof(granted_at) <> 'real' OR typeof(expires_at) <> 'real' OR typeof(closed_at) NOT IN ('real', 'null')"
    ),
    "alive": "typeof(who) <> 'text' OR typeof(at) <> 'real' OR NOT json_valid(state)",
    "setting": "typeof(key) <> 'text' OR typeof(value) <> 'text'",
}


def damage(db: sqlite3.Connection, version: int) -> str | None:
    """Returns what is wrong with the rows of a store of this version of the schema; None if nothing is.

    Raises sqlite3.Error.
    """
    try:
        return _wrong_meta(db) or _wrong_rows(db, version) or _missing_rows(db)
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", SQL_LOGIC_ERROR) & 0xFF != SQL_LOGIC_ERROR:  # none: a text is not UTF-8
            raise
        return str(error)


def _wrong_meta(db: sqlite3.Connection) -> str | None:
    """Returns which key of `meta` is missing or holds something else than it should."""
    meta = dict(db.execute("SELECT key, value FROM meta"))
    if not isinstance(meta.get("env_id"), str) or not meta["env_id"]:
        return "no env_id in meta"
    length = meta.get("segment_length")
    if not (isinstance(length, str) and length.isascii() and length.isdigit() and 0 < len(length) < 16 and int(length)):
        return "no segment_length in meta"
    return None


def _wrong_rows(db: sqlite3.Connection, version: int) -> str | None:
    """Returns which table has a row whose values cannot be."""
    for rows in (ROWS_1, ROWS_2)[:version]:
        for source, condition in rows.items():
            table = source.split()[0]
            found = db.execute(f"SELECT {table}.rowid FROM {source} WHERE {condition} LIMIT 1").fetchone()
            if found is not None:
                return f"values that cannot be in row {found[0]} of {table}"
    return None


def _missing_rows(db: sqlite3.Connection) -> str | None:
    """Returns which row names one that is not there."""
    found = db.execute("PRAGMA foreign_key_check").fetchone()
    return None if found is None else f"row {found[1]} of {found[0]} names one that is missing in {found[2]}"
