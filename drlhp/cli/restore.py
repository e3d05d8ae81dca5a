"""Puts a copy of its store into a run's folder, or keeps what is whole of a damaged store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from drlhp.cli.arguments import read_arguments
from drlhp.cli.runs import find_run
from drlhp.data.salvage import salvage
from drlhp.data.sqlite_file import is_open_elsewhere
from drlhp.data.store import link_of
from drlhp.errors import PrefDBError, UserError
from drlhp.runtime.locks import in_use
from pref_db import PrefDB, store_path


@dataclass(frozen=True)
class RestoreConfig:
    """Put a copy of a run's store into the run, without damaged rows; the old store is moved aside."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FROM")]
    """The copy: a store of this run, or a folder with one, such as `export` writes. If this is RUN itself, the
    undamaged rows of its store are kept."""


@dataclass(frozen=True)
class Restored:
    """The outcome of a restoration."""

    left_out: list[str]  # a line for each row that was damaged
    n_answers: int
    newest: int  # number of the newest answer
    kept: Path | None  # the store that was there before


def restore_command(arguments: list[str]) -> None:
    """Runs `drlhp restore`. Raises UserError and PrefDBError; the run's store is then as it was."""
    run, source = places(arguments)
    store = run / "prefs.db"
    if not run.is_dir():
        raise UserError(f"{run} is no folder; give the folder of a run.")
    if in_use(run) or is_open_elsewhere(store):
        raise UserError(f"{run} is in use by another process; wait until that has ended, or stop it.")
    tell(run, put_in(run, source, lambda db: _check_same_kind(db, source, store)))


def places(arguments: list[str]) -> tuple[Path, Path]:
    """Returns the run's folder and the store to take, from the words of the command. Raises UserError."""
    needs = {"run": "RUN", "source": "FROM"}
    config = read_arguments(RestoreConfig, "restore", arguments, needs=needs, example="RUN copy/prefs.db")
    run, source = find_run(config.run), store_path(find_run(config.source))
    for place in (source, run / "prefs.db"):
        if place.is_file() and (address := link_of(place)):
            raise UserError(f"{place} leads to {address}; restore that with the programs of PostgreSQL (pg_restore).")
    if not source.is_file():
        raise UserError(f"{source} does not exist; give a copy of the run's prefs.db, or {run} to keep what is whole.")
    return run, source


def put_in(run: Path, source: Path, check: Callable[[PrefDB], None], seen: int = 0) -> Restored:
    """Puts the whole rows of a store into a run's folder, which nobody else uses; keeps the old store.

    Args:
        check: raises an error if the new store is not of this run.
        seen: number of an answer that the run has seen; new answers get later numbers.
    """
    draft = run / "prefs.db.restored"
    draft.unlink(missing_ok=True)
    try:
        left_out = salvage(source, draft, newest_seq=seen)
        with contextlib.closing(PrefDB.open(draft)) as db:
            check(db)
            n_answers, newest = db.n_answers(), db.newest_seq()
    except BaseException:
        for suffix in ("", "-wal", "-shm"):
            draft.with_name(draft.name + suffix).unlink(missing_ok=True)
        raise
    kept = _move_aside(run / "prefs.db")
    draft.replace(run / "prefs.db")
    return Restored(left_out, n_answers, newest, kept)


def tell(run: Path, restored: Restored, seen: int = 0) -> None:
    """Prints what the run has now, and what is lost."""
    print(f"{restored.n_answers} answers in {run / 'prefs.db'}.", flush=True)
    if restored.newest < seen:
        print(f"The run had seen {seen - restored.newest} more, which are not in the copy.", flush=True)
    if restored.left_out:
        file = run / "prefs-left-out.txt"
        file.write_text("".join(f"{line}\n" for line in restored.left_out), encoding="utf-8")
        print(f"{len(restored.left_out)} damaged rows are left out; {file} lists them.", flush=True)
    if restored.kept:
        print(f"The store that was there is kept as {restored.kept}.", flush=True)


def _check_same_kind(db: PrefDB, source: Path, store: Path) -> None:
    """Raises PrefDBError if a store is of other clips than the one that it replaces, as far as that can be read."""
    with contextlib.suppress(PrefDBError):
        with contextlib.closing(PrefDB.open(store, read_only=True)) as old:
            theirs, ours = (db.env_id, db.segment_length), (old.env_id, old.segment_length)
        if theirs != ours:
            held, own = (f"{env_id} clips of {steps} steps" for env_id, steps in (theirs, ours))
            raise UserError(f"{source} holds {held}, and {store} {own}; give a copy of the same.")


def _move_aside(store: Path) -> Path | None:
    """Renames a store with its log of writes, which would damage any other; returns the new name if there was one."""
    kept = store.with_name(f"prefs-replaced-{time.time_ns()}.db")
    found = [suffix for suffix in ("", "-wal", "-shm") if store.with_name(store.name + suffix).exists()]
    for suffix in found:
        store.with_name(store.name + suffix).rename(kept.with_name(kept.name + suffix))
    return kept if found else None
