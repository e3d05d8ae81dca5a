"""`reproduce NAME --grid FILE`: a sweep, as a plain file of flags with their values."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands.config import settings
from commands.config_file import read_yaml, training_flags, words_of
from commands.experiments import EXPERIMENTS
from commands.flags import parse
from drlhp.errors import UserError

MOST_ROWS = 1000
LONGEST_NAME = 120  # a folder's name has 255 bytes at most, and the experiment and the seed are in it too
EXAMPLE = "write a flag with its values on each line, such as `lr: [0.0001, 0.0005]`."
# Flags that each run of an experiment has already, and what says them.
TAKEN = {
    "seed": "--seeds gives the number of seeds",
    "run_name": "runs are named by what differs",
    "log_dir": "--log_dir of the command is for all runs",
}


@dataclass(frozen=True)
class Row:
    """Flags that replace those of an experiment.

    Args:
        name: what the runs' names say of it; empty if the row replaces nothing.
        words: the flags.
    """

    name: str
    words: tuple[str, ...]


def read_grid(path: Path, experiment: str) -> list[Row]:
    """Returns the rows of a grid: all combinations of a mapping's values, or the mappings of a list as they stand.

    Raises:
        UserError: the file cannot be read, or one of its rows cannot be carried out, or two of them are the same.
    """
    found = _rows(path, read_yaml(path, f"give --grid a YAML or JSON file: {EXAMPLE}", EXAMPLE))
    flags = training_flags()
    texts, rows = list[str](), list[tuple[str, ...]]()
    for number, row in enumerate(found, start=1):
        for name in row:
            if name in TAKEN:
                raise UserError(f"{path} sets {name}, and {TAKEN[name]}; remove it.")
        text = _text(row)
        texts.append(text if len(text) <= LONGEST_NAME else f"row{number}")
        rows.append(tuple(word for name, value in row.items() for word in words_of(path, name, value, flags)))
    _check(path, EXPERIMENTS[experiment].command, found, rows)
    return [
        Row(text if texts.count(text) == 1 else f"row{number}", words)
        for number, (text, words) in enumerate(zip(texts, rows, strict=True), start=1)
    ]


def _rows(path: Path, data: Any) -> list[dict[str, Any]]:
    """Returns the flags of each row."""
    if isinstance(data, dict) and data:
        columns = {name: value if isinstance(value, list) else [value] for name, value in data.items()}
        for name, values in columns.items():
            if not values:
                raise UserError(f"{path} gives {name} no value; give it some, such as `{name}: [1, 2]`.")
        products = itertools.islice(itertools.product(*columns.values()), MOST_ROWS + 1)
        rows = [dict(zip(columns, values, strict=True)) for values in products]
    else:
        rows = data if isinstance(data, list) else []
    if not rows or not all(isinstance(row, dict) and all(isinstance(name, str) for name in row) for row in rows):
        raise UserError(f"{path} holds no grid; {EXAMPLE}")
    if len(rows) > MOST_ROWS:
        raise UserError(f"{path} has more than {MOST_ROWS:,} rows; give fewer values.")
    return rows


def _text(row: dict[str, Any]) -> str:
    """Returns what differs, as a part of a folder's name."""
    values = {name: str(value).lower() if isinstance(value, bool) else value for name, value in row.items()}
    return re.sub(r"[^\w.+=-]+", "_", "-".join(f"{name}={value}" for name, value in values.items()))


def _check(
    path: Path, command: tuple[str, ...], rows: Sequence[dict[str, Any]], words: Sequence[tuple[str, ...]]
) -> None:
    """Raises UserError if a row is no valid command, or makes the same runs as an earlier one."""
    seen: list[dict[str, Any]] = []
    for number, (row, flags) in enumerate(zip(rows, words, strict=True), start=1):
        made = _settings(path, [*command, *flags], number)
        if not made:
            of_each = zip(row, flags, strict=True)
            name = next(name for name, word in of_each if not _settings(path, [*command, word], number))
            raise UserError(
                f"{path} sets {name} to {row[name]!r:.40}, which --{name} does not take; "
                f"`python run.py {command[0]} {command[1]} --help` says what it takes."
            )
        if made in seen:
            raise UserError(f"rows {seen.index(made) + 1} and {number} of {path} are the same runs; remove one.")
        seen.append(made)


def _settings(path: Path, words: list[str], number: int) -> dict[str, Any]:
    """Returns the settings of a command; none if it has a value that its flag does not take.

    Raises UserError if the settings do not go together.
    """
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            return settings(parse(words).as_dict())
        except SystemExit:
            return {}
        except UserError as error:
            raise UserError(f"row {number} of {path} cannot work: {error}") from error
