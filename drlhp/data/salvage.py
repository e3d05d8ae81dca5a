"""Copies what is whole of a store, damaged or not, row by row into a new one."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from drlhp.data.damage import ROWS_1, ROWS_2
from drlhp.data.rows import SEGMENT_COLUMNS
from drlhp.data.schema import migrate
from drlhp.data.segment import CompressedSegment
from drlhp.data.sqlite_file import check_kind, connect, explain
from drlhp.errors import PrefDBError

# Each after those that it names. `alive` tells of processes that have ended.
TABLES = ("meta", "segment", "comparison", "answer", "query", "lease", "setting")


def salvage(path: Path, target: Path, newest_seq: int = 0) -> list[str]:
    """Makes a new store of all whole rows of another; returns the rows that are left out, with the reason of each.

    Args:
        newest_seq: answers get later numbers than this one, because somebody has seen answers up to it.

    Raises:
        PrefDBError: it is no store, a newer one, or does not say of which environment it is.
    """
    try:
        with (
            contextlib.closing(connect(path, "mode=ro")) as source,
            contextlib.closing(connect(target, "mode=rwc")) as new,
        ):
            check_kind(source, path)
            migrate(new)
            new.execute("BEGIN")
            left_out = [line for table in TABLES for line in _copy(source, new, table)]
            given = _first(source, "SELECT seq FROM sqlite_sequence WHERE name = 'answer'") or 0
            new.execute("DELETE FROM sqlite_sequence WHERE name = 'answer'")
            new.execute("INSERT INTO sqlite_sequence VALUES ('answer', ?)", (max(newest_seq, given),))
            new.execute("COMMIT")
            new.execute("PRAGMA journal_mode = WAL")
    except sqlite3.Error as error:
        raise explain(path, error) from error
    return left_out


def _first(db: sqlite3.Connection, query: str, values: tuple[object, ...] = ()) -> Any:
    """Returns the first value of a query; None if there is none, or it cannot be read."""
    try:
        row = db.execute(query, values).fetchone()
    except sqlite3.DatabaseError:
        return None
    return row[0] if row else None


def _copy(source: sqlite3.Connection, new: sqlite3.Connection, table: str) -> list[str]:
    """Copies the whole rows of a table; returns a line for each that is left out."""
    known = [row[1] for row in new.execute(f"PRAGMA table_info({table})")]
    columns = [row[1] for row in source.execute(f"PRAGMA table_info({table})") if row[1] in known]
    last = _first(source, f"SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT 1")
    if not columns or not isinstance(last, int):
        is_empty = columns and _first(source, f"SELECT count(*) FROM {table}") == 0
        return [] if is_empty else [f"{table}: no row can be read"]
    left_out = []
    for rowid in range(1, last + 1):
        row = None
        try:
            row = source.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE rowid = ?", (rowid,)).fetchone()
            if row is not None:
                _insert(new, table, columns, rowid, row)
        except (sqlite3.Error, PrefDBError, ValueError) as error:
            told = f" {dict(zip(columns, row, strict=True))}" if row and table == "answer" else ""  # not to be lost
            left_out.append(f"{table} {rowid}: {error}{told}")
    return left_out


def _insert(new: sqlite3.Connection, table: str, columns: list[str], rowid: int, row: tuple) -> None:
    """Inserts a row. Raises sqlite3.Error, PrefDBError or ValueError if it is not whole, or names one that is not."""
    if table == "answer":
        at = columns.index("supersedes")
        if row[at] is not None and _first(new, "SELECT 1 FROM answer WHERE seq = ?", (row[at],)) is None:
            row = (*row[:at], None, *row[at + 1 :])  # what it took back is left out itself
    new.execute("SAVEPOINT one")
    try:
        marks = ", ".join("?" * len(columns))
        new.execute(f"INSERT INTO {table} (rowid, {', '.join(columns)}) VALUES (?, {marks})", (rowid, *row))
        for conditions in (ROWS_1, ROWS_2):
            for source, condition in conditions.items():
                if source.split()[0] == table and _first(
                    new, f"SELECT 1 FROM {source} WHERE {table}.rowid = ? AND ({condition})", (rowid,)
                ):
                    raise ValueError("values that cannot be")
        if table == "segment":
            _check_segment(new, rowid)
    except BaseException:
        new.execute("ROLLBACK TO one")
        raise
    finally:
        new.execute("RELEASE one")


def _check_segment(db: sqlite3.Connection, rowid: int) -> None:
    """Raises DamagedError or ValueError if a stored segment is not what its id says."""
    env_id = _first(db, "SELECT value FROM meta WHERE key = 'env_id'")
    if not isinstance(env_id, str):
        raise PrefDBError("the store does not say of which environment it is")
    row = db.execute(f"SELECT {SEGMENT_COLUMNS} FROM segment WHERE rowid = ?", (rowid,)).fetchone()
    segment_id, length, stack, policy_step, seed, fps, layout, arrays, view = row
    segment = CompressedSegment(env_id, stack, policy_step, seed, fps, layout, arrays).decode(view)
    if not segment.can_have_id(segment_id) or len(segment) != length:
        raise ValueError("a stored segment is damaged")
