"""Exports labels from a store, and imports them into a new one: JSON lines and NumPy arrays, without pickles.

`export` writes a folder that `import` reads; `import` also reads the pickles of the original project (legacy.py).
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from drlhp.cli.arguments import read_arguments
from drlhp.cli.legacy import LEGACY_FILES, converted
from drlhp.cli.program import program
from drlhp.cli.runs import find_run
from drlhp.cli.segment_files import EXCHANGE_VERSION, form_of, read_segment, write_segment
from drlhp.data.comparison import Answer, Choice, Comparison, side_of
from drlhp.data.salvage import salvage
from drlhp.data.segment import Segment
from drlhp.data.spreadsheet import write_table
from drlhp.errors import DamagedError, DamagedStoreError, PrefDBError, UserError, naming
from drlhp.labelling.answers import MAX_NICKNAME, MAX_NOTE
from drlhp.runtime.regular_files import open_regular, read_regular
from pref_db import PrefDB, store_path

LAST_SECOND = 4e10  # This is in the year 3237. A later time is mostly in milliseconds, and cannot be shown as a date.
MAX_ABOUT = 2**16  # bytes of export.json
MAX_LINE = 2**16  # bytes of a line of labels.jsonl; the longest note has 500 characters
MAX_ENV_ID = 200  # characters
# Fields of labels.jsonl, and the types of their values. `a` and `b` are segment ids; `choice` names one by its letter.
FIELDS: dict[str, tuple[type, ...]] = {
    **{"schema": (int,), "client_id": (str,), "comparison_id": (str,), "a": (str,), "b": (str,), "choice": (str,)},
    **{"flip": (bool,), "teacher": (str,), "labeller": (str, type(None)), "shown_at": (float, int, type(None))},
    **{"answered_at": (float, int), "watched_ms": (int, type(None)), "replays": (int,), "speed": (float, int)},
    **{"late": (bool,), "flag": (bool,), "note": (str,)},
}
# Columns of answers.csv: first what a person looks for, with the answer and the segments as the labeller saw them.
FIRST = ("answered_at", "labeller", "teacher", "answer", "left", "right", "note")
COLUMNS = (*FIRST, *(name for name in FIELDS if name not in FIRST))


@dataclass(frozen=True)
class ExportConfig:
    """Write the labels of a store for other tools."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run folder, or another folder with a prefs.db in it."""
    output: str
    """Folder to make: labels.jsonl, answers.csv for a spreadsheet, an npz file for each segment, and prefs.db, a
    backup of the store."""


@dataclass(frozen=True)
class ImportConfig:
    """Make a new store of what `export` wrote, or of train.pkl.gz and val.pkl.gz of the original project."""

    folder: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DIR")]
    """Folder with labels.jsonl, or with train.pkl.gz and val.pkl.gz."""
    output: str
    """Folder for the new prefs.db, which `--load_prefs_dir` takes."""
    env_id: str | None = None
    """Environment of the pickles, which do not say it."""
    store: str | None = None
    """Address of a PostgreSQL database for the labels, postgresql://USER@HOST/DATABASE?schema=NAME, in place of a file;
    the new prefs.db leads to it."""


def export_command(arguments: list[str]) -> None:
    """Runs `export`. Raises UserError and PrefDBError."""
    needs = {"run": "RUN", "output": "--output"}
    config = read_arguments(ExportConfig, "export", arguments, needs=needs, example="RUN --output labels")
    store, output = store_path(find_run(config.run)), Path(config.output)
    left_out: list[str] = []
    _check_new(output)
    try:
        with contextlib.closing(PrefDB.open(store, read_only=True)) as db:
            n_answers, n_segments = export(db, output)
    except (DamagedStoreError, DamagedError):
        shutil.rmtree(output, ignore_errors=True)  # what was made of it before the damage was found
        left_out, n_answers, n_segments = export_whole(store, output)
    except (OSError, PrefDBError):  # on a full disk: with space, the same command can be given again
        shutil.rmtree(output, ignore_errors=True)
        raise
    if left_out:
        file = output / "left_out.txt"
        print(f"{store} is damaged: {len(left_out)} rows are not exported, {file} lists them.", flush=True)
    print(f"{n_answers} answers and {n_segments} segments written to {config.output}", flush=True)


def import_command(arguments: list[str]) -> None:
    """Runs `import`. Raises UserError and PrefDBError."""
    needs = {"folder": "DIR", "output": "--output"}
    config = read_arguments(ImportConfig, "import", arguments, needs=needs, example="labels --output RUN")
    folder, target = Path(config.folder), Path(config.output)
    if (target / "prefs.db").exists():
        raise UserError(f"{target} holds a prefs.db already; give --output another folder.")
    if config.store is not None:
        from drlhp.data.postgres_copy import check_free  # only who uses it needs its package

        check_free(target / "prefs.db", config.store)
    legacy = [folder / name for name in LEGACY_FILES if (folder / name).exists()]
    if legacy and not (folder / "labels.jsonl").exists():
        if config.env_id is None:
            raise UserError(f"{legacy[0]} does not say of which environment it is; add --env_id.")
        with converted(legacy, config.env_id) as exported:
            n_labels = import_folder(exported, target, config.store)
    else:
        n_labels = import_folder(folder, target, config.store)
    place = shlex.quote(config.output)
    print(f"{n_labels} labels in {target / 'prefs.db'}. Train on them with --load_prefs_dir {place}", flush=True)


def export(db: PrefDB, output: Path) -> tuple[int, int]:
    """Writes a copy of the store, and all its effective answers and segments; returns the numbers of these two.

    Raises UserError if the folder holds something or cannot be made.
    """
    _check_new(output)
    _make_folder(output / "segments")
    db.back_up(output / "prefs.db")
    # A run may change `db`.
    with naming(output), contextlib.closing(PrefDB.open(output / "prefs.db", read_only=True)) as copy:
        return _export_files(copy, output)


def export_whole(store: Path, output: Path) -> tuple[list[str], int, int]:
    """Writes what is whole of a damaged store, and left_out.txt; returns its lines, and the numbers of `export`.

    Raises what `export` does, and PrefDBError if nothing can be read.
    """
    _make_folder(output / "segments")
    left_out = salvage(store, output / "prefs.db")
    with naming(output), contextlib.closing(PrefDB.open(output / "prefs.db", read_only=True)) as copy:
        (output / "left_out.txt").write_text("".join(f"{line}\n" for line in left_out), encoding="utf-8")
        return left_out, *_export_files(copy, output)


def _check_new(output: Path) -> None:
    """Raises UserError if the folder that --output names holds something."""
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise UserError(f"{output} exists already; give --output another folder.")


def _make_folder(folder: Path) -> None:
    """Makes the folder that --output names. Raises UserError if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {folder} ({error.strerror}); give --output another folder.") from error


def _export_files(db: PrefDB, output: Path) -> tuple[int, int]:
    for segment_id in db.segment_ids():
        segment = db.segment(segment_id)
        if not segment.can_have_id(segment_id):  # the answers would name one that is missing
            raise DamagedError(f"segment {segment_id} is damaged")
        write_segment(output / "segments", segment)
    rows = list(_rows(db))
    with (output / "labels.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    with (output / "answers.csv").open("w", newline="", encoding="utf-8") as table:
        write_table(table, COLUMNS, (row | _as_seen(row) for row in rows))
    about = {"schema": EXCHANGE_VERSION, "env_id": db.env_id, "segment_length": db.segment_length}
    n_segments = len(db.segment_ids())
    # This file comes last, so that a folder without it is known to be incomplete.
    (output / "export.json").write_text(json.dumps({**about, "answers": len(rows), "segments": n_segments}) + "\n")
    return len(rows), n_segments


def _rows(db: PrefDB) -> Iterator[dict[str, Any]]:
    """Yields the effective answers as rows of labels.jsonl."""
    for row in db.answers():
        yield {
            "schema": EXCHANGE_VERSION,
            "client_id": row.client_id,
            "comparison_id": row.comparison_id,
            "a": row.a,
            "b": row.b,
            "choice": row.choice.value,
            "flip": row.flip,
            "teacher": row.teacher,
            "labeller": row.labeller,
            "shown_at": row.shown_at,
            "answered_at": row.answered_at,
            "watched_ms": row.watched_ms,
            "replays": row.replays,
            "speed": row.speed,
            "late": row.late,
            "flag": row.flag,
            "note": row.note,
        }


def _as_seen(row: dict[str, Any]) -> dict[str, str]:
    """Returns the answer of a row, and the ids of the segments, by the sides on which the labeller saw them."""
    left, right = (row["b"], row["a"]) if row["flip"] else (row["a"], row["b"])
    return {"answer": side_of(Choice(row["choice"]), flip=row["flip"]), "left": left, "right": right}


def import_folder(folder: Path, target: Path, address: str | None = None) -> int:
    """Makes a new store from an exported folder; returns its number of labels. All files are checked beforehand.

    address: of a PostgreSQL database for it; None: it is a file.

    Raises UserError that says what is wrong, and in which file.
    """
    env_id, length = _about(folder / "export.json")
    files, n_actions = sorted((folder / "segments").glob("*.npz")), _n_actions(env_id)
    forms = set()
    for file in files:
        segment = read_segment(file, n_actions)
        if segment.env_id != env_id or len(segment) > length:
            raise UserError(f"{file} is of {segment.env_id}, {len(segment)} steps, unlike export.json; export again.")
        forms.add(form_of(segment))
        if len(forms) > 1:
            raise UserError(f"{file} has other observations or actions than {files[0].name}; import them apart.")
    ids = {file.stem for file in files}
    rows = _load_rows(folder / "labels.jsonl", ids)
    segments = (read_segment(file, n_actions) for file in files)
    return _make_store(target, (env_id, length), segments, rows, address)


def _about(file: Path) -> tuple[str, int]:
    """Returns the environment and the length of clips in export.json. Raises UserError."""
    try:
        about = json.loads(read_regular(file, MAX_ABOUT))
        env_id, length = about["env_id"], about["segment_length"]
        known = about["schema"] == EXCHANGE_VERSION and isinstance(env_id, str) and type(length) is int
        if known and not (_is_text(env_id) and len(env_id) <= MAX_ENV_ID and 0 < length < 2**53):
            raise ValueError("env_id or segment_length")
    except (FileNotFoundError, NotADirectoryError):
        exported = f"`{program().name} export`"
        raise UserError(f"{file.parent} has no export.json; give a folder that {exported} has finished.") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{file} cannot be read ({error}); export again.") from error
    if not known:
        raise UserError(f"{file} is of a schema other than {EXCHANGE_VERSION}; update this program.")
    return env_id, length


def _n_actions(env_id: str) -> int | None:
    """Returns the environment's number of discrete actions; None if it has none, or is not known here."""
    if ":" in env_id:  # The name of a module, which would be imported: that is up to the user, not to a file.
        return None
    try:
        info = program().info_of(env_id)
    except UserError:
        return None
    return info.n_actions if info else None


def _load_rows(file: Path, segment_ids: set[str]) -> list[dict[str, Any]]:
    """Returns the rows of labels.jsonl. Raises UserError at the first invalid row."""
    rows: list[dict[str, Any]] = []
    client_ids: set[str] = set()
    try:
        with open_regular(file) as opened:
            for number, line in enumerate(iter(lambda: opened.readline(MAX_LINE), b""), start=1):
                row = _load_row(line, segment_ids, client_ids)
                if isinstance(row, str):
                    raise UserError(f"{file}, line {number}: {row}; nothing was imported.")
                client_ids.add(row["client_id"])
                rows.append(row)
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error}); export again.") from error
    return rows


def _load_row(line: bytes, segment_ids: set[str], client_ids: set[str]) -> dict[str, Any] | str:
    """Returns the row in a line of labels.jsonl, or what is wrong with it."""
    if len(line) == MAX_LINE:
        return "it is too long"
    try:
        row = json.loads(line, parse_constant=lambda word: word)  # NaN and Infinity stay text, which is refused.
        return _wrong(row, segment_ids, client_ids) or row
    except (ValueError, RecursionError) as error:
        return f"it is no JSON ({error})"


def _is_text(value: str) -> bool:
    """Returns whether a string can be stored, since JSON can also hold lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wrong(row: Any, segment_ids: set[str], client_ids: set[str]) -> str | None:
    """Returns what is wrong with a row of labels.jsonl; None if nothing is."""
    if not isinstance(row, dict) or set(row) != set(FIELDS):
        return f"expected the fields {', '.join(FIELDS)}"
    for name, types in FIELDS.items():
        value = row[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            return f"{name} cannot be {value!r:.40}"
        if isinstance(value, str) and not _is_text(value):
            return f"{name} is no text"
        if isinstance(value, int | float) and not 0 <= value < 2**53:
            return f"{name} is out of range"
        if name.endswith("_at") and isinstance(value, int | float) and value > LAST_SECOND:
            return f"{name} must be in seconds since 1970"
    checks = {
        f"schema {row['schema']} is not {EXCHANGE_VERSION}": row["schema"] == EXCHANGE_VERSION,
        f"choice cannot be {row['choice']!r:.40}": row["choice"] in list(Choice),
        "a or b is no segment of this folder": {row["a"], row["b"]} <= segment_ids and row["a"] != row["b"],
        "comparison_id is not that of a and b": row["comparison_id"] == Comparison.id_of(row["a"], row["b"]),
        "client_id occurs twice or is too long": row["client_id"] not in client_ids and 0 < len(row["client_id"]) <= 64,
        "note, labeller or teacher is too long": len(row["note"]) <= MAX_NOTE
        and len(row["labeller"] or "") <= MAX_NICKNAME
        and len(row["teacher"]) <= 200,
    }
    return next((sentence for sentence, holds in checks.items() if not holds), None)


def _answer(row: dict[str, Any]) -> Answer:
    """Returns the answer of a checked row of labels.jsonl."""
    fields = {name: value for name, value in row.items() if name != "schema"}
    return Answer(**{**fields, "choice": Choice(row["choice"])})


def _make_store(
    target: Path, form: tuple[str, int], segments: Iterable[Segment], rows: list[dict[str, Any]], address: str | None
) -> int:
    """Makes a new store of these segments and answers, or none if that fails; returns its number of labels."""
    is_new, place = not target.exists(), target / "prefs.db"
    _make_folder(target)
    db = PrefDB.create(place if address is None else target / "prefs.db.imported", *form)
    try:
        with db.transaction():
            for segment in segments:
                db.add_segments([segment])
            db.add_exported(_answer(row) for row in rows)
        n_labels = db.n_labels()
        if address is not None:
            from drlhp.data.postgres_copy import make  # only who uses it needs its package

            db.close()
            make(place, address, db.path)
            _remove(db.path)
        return n_labels
    except BaseException:
        db.close()
        _remove(db.path)
        if is_new:
            target.rmdir()
        raise
    finally:
        db.close()


def _remove(store: Path) -> None:
    """Removes a closed SQLite file, and what lies beside it."""
    for suffix in ("", "-wal", "-shm"):
        store.with_name(store.name + suffix).unlink(missing_ok=True)
