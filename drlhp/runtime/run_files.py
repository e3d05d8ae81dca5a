"""The files of a run folder: the columns of progress.csv and evaluations.csv, one writer and one reader for both."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from drlhp.errors import UserError, naming
from drlhp.runtime.regular_files import open_regular

MAX_CONFIG = 2**24  # bytes of config.json, to which each --resume may add ten thousand
POLICIES = ("deterministic", "sampled")  # an evaluation plays both, and writes a row for each
STATISTICS = ("episodes", "mean", "std", "lowest", "highest", "mean_length", "capped")  # of an evaluation's episodes

Row = dict[str, str]


@dataclass(frozen=True)
class RunFile:
    """A table that a run adds rows to while it goes on, and that anybody may read meanwhile."""

    name: str
    columns: tuple[str, ...]
    checked: tuple[str, ...]  # columns that a resumed run reads numbers from
    has_gaps: bool  # whether a checked cell may be empty

    def read(self, folder: Path) -> list[Row]:
        """Returns the whole rows of a run folder's table, by column; none if there is no such file."""
        return read_rows(folder / self.name)

    def read_to_go_on(self, folder: Path) -> list[Row]:
        """Returns the same rows for a run that will add to them.

        Raises:
            UserError: the file is no such table.
        """
        path = folder / self.name
        try:
            names, rows = _read(path, errors="strict")
            if names is not None and not (set(self.checked) <= set(names) and names == self.columns[: len(names)]):
                raise KeyError("a column")  # the next row would stand under other names
            for row in rows:
                for column in self.checked:
                    float(row[column] or ("nan" if self.has_gaps else ""))
        except (KeyError, ValueError, csv.Error) as error:
            raise UserError(f"{path} is damaged; move it away, and the run goes on with a new one.") from error
        return rows

    def cut(self, folder: Path, column: str, beyond: float) -> None:
        """Removes the rows from the first one on whose number exceeds this, because what they tell is lost.

        Needs no room on the disk.
        """
        path, names, at = folder / self.name, list[str](), 0
        if not path.exists():
            return
        for line in path.read_bytes().splitlines(keepends=True):
            cells = next(csv.reader([line.decode(errors="replace")]), [])
            if as_number(dict(zip(names, cells, strict=False)).get(column, "")) > beyond:
                os.truncate(path, at)
                return
            names, at = names or cells, at + len(line)

    def open(self, folder: Path) -> RowWriter:
        """Opens a run folder's table to add rows to it; the caller closes it."""
        return RowWriter(folder / self.name, self.columns)


PROGRESS = RunFile(
    "progress.csv",
    columns=(
        "seconds",
        "steps",
        "steps_per_second",
        "episodes",
        "episode_return",
        "labels",
        "training_accuracy",
        "validation_accuracy",
        "dropped_segments",
        "peak_memory_mb",
        "predicted_reward",  # older files lack this column and those below
        "validation_loss",
        "true_reward_total",  # the sum over all steps of the training
        "batches_due",  # of labels, for the steps of the policy so far
        "batches_trained",
    ),
    checked=("seconds", "steps", "episode_return"),
    has_gaps=True,
)
EVALUATIONS = RunFile(
    "evaluations.csv",
    columns=("seconds", "steps", "labels", "policy", *STATISTICS),
    checked=("steps", *STATISTICS),
    has_gaps=False,
)


class RowWriter:
    """Adds rows to a table, so that readers see each at once; writes the header into a new file.

    A full disk or a crash may have left a part of a row at the end of the file. The writer removes that part, because
    the next row would continue it.
    """

    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self._path = path
        with naming(path), path.open("ab+") as whole:
            whole.seek(0)
            whole.truncate(whole.read().rfind(b"\n") + 1)
        self._file: TextIO = path.open("a", newline="")
        self._csv = csv.DictWriter(self._file, columns, restval="", extrasaction="ignore")
        if not path.stat().st_size:
            with naming(path):
                self._csv.writeheader()
                self._file.flush()

    def append(self, row: Mapping[str, float | str]) -> None:
        """Writes the columns that the row has, and leaves the others empty; numbers get four decimals at most."""
        with naming(self._path):
            self._csv.writerow({column: _rounded(value) for column, value in row.items()})
            self._file.flush()

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._file.close()


def read_rows(path: Path, errors: str = "replace") -> list[Row]:
    """Returns the whole rows of a CSV file by the names in its header; none if there is no file.

    A row that is being written, or that a crash has cut, is left out. A resumed run adds columns that the header of an
    older file lacks; they have no name here.

    Args:
        errors: how to treat bytes that are no text, as `open` names it.
    """
    return _read(path, errors)[1]


def _read(path: Path, errors: str) -> tuple[tuple[str, ...] | None, list[Row]]:
    """Returns the names in the header of a CSV file, None if it has no whole line, and its rows by these names."""
    try:
        with open_regular(path) as file:
            text = file.read().decode(errors=errors)
    except FileNotFoundError:
        return None, []
    lines = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    if not lines:
        return None, []
    names, rows = lines[0], lines[1:]
    return tuple(names), [dict(zip(names, row, strict=False)) for row in rows if len(row) >= max(len(names), 1)]


def as_number(text: str) -> float:
    """Returns the number in a cell; NaN if the cell holds none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _rounded(value: float | str) -> float | str:
    return round(value, 4) if isinstance(value, float) else value
