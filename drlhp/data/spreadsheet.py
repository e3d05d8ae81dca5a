"""Tables for spreadsheets, that people read: dates instead of seconds, and no cell that would be run as a formula."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet takes a cell that starts with one of these for a formula


def write_table(file: TextIO, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes rows as CSV. Unix seconds in a column whose name ends in `_at` become ISO 8601 dates in UTC."""
    writer = csv.writer(file)
    writer.writerow(columns)
    writer.writerows([_cell(name, row[name]) for name in columns] for row in rows)


def _cell(name: str, value: Any) -> Any:
    if name.endswith("_at") and value is not None:
        return _date(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _date(seconds: float) -> str | float:
    """Returns a time as 2026-11-28T10:15:00.250+00:00; the number itself if no calendar has it."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return seconds
