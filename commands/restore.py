"""Puts a copy of its store into a run folder, or keeps what is whole of a damaged store."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from commands.config import RunConfig
from commands.resumed import answers_seen, check_own
from commands.run_folder import RunFolder, read_config
from drlhp.cli.arguments import read_arguments
from drlhp.cli.runs import find_run
from drlhp.data.salvage import salvage
from drlhp.errors import UserError
from pref_db import PrefDB, store_path


@dataclass(frozen=True)
class RestoreConfig:
    """Put a copy of its store into a run, with nothing of the old one beside it, and without what is damaged."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FROM")]
    """The copy: a store of this run, or a folder with one, such as `export` writes. With RUN itself, what is whole of
    its store is kept."""


def restore_command(arguments: list[str]) -> None:
    """Runs `restore`. Raises UserError and PrefDBError; the run's store is then as it was."""
    needs = {"run": "RUN", "source": "FROM"}
    config = read_arguments(RestoreConfig, "restore", arguments, needs=needs, example="RUN copy/prefs.db")
    run, source = find_run(config.run), store_path(find_run(config.source))
    settings = RunConfig.from_dict(read_config(run))
    if not source.is_file():
        raise UserError(f"{source} does not exist; give a copy of the run's prefs.db, or {run} to keep what is whole.")
    with contextlib.closing(RunFolder(run)) as folder:
        draft = run / "prefs.db.restored"
        draft.unlink(missing_ok=True)
        try:
            seen = answers_seen(run)
            left_out = salvage(source, draft, newest_seq=seen)
            with contextlib.closing(PrefDB.open(draft)) as db:
                check_own(db, source, settings, folder.run_id)
                n_answers, newest = db.n_answers(), db.newest_seq()
        except BaseException:
            for suffix in ("", "-wal", "-shm"):
                draft.with_name(draft.name + suffix).unlink(missing_ok=True)
            raise
        kept = _move_aside(run / "prefs.db")
        draft.replace(run / "prefs.db")
        shutil.rmtree(run / "synchronous", ignore_errors=True)  # snapshots name answers that the copy may lack
    _tell(run, left_out, n_answers, newest, seen)
    if kept:
        print(f"The store that was there is kept as {kept}.", flush=True)


def _move_aside(store: Path) -> Path | None:
    """Renames a store with its log of writes, which would damage any other; returns the new name if there was one."""
    kept = store.with_name(f"prefs-replaced-{time.time_ns()}.db")
    found = [suffix for suffix in ("", "-wal", "-shm") if store.with_name(store.name + suffix).exists()]
    for suffix in found:
        store.with_name(store.name + suffix).rename(kept.with_name(kept.name + suffix))
    return kept if found else None


def _tell(run: Path, left_out: list[str], n_answers: int, newest: int, seen: int) -> None:
    """Prints what the run has now, and what is lost."""
    print(f"{n_answers} answers in {run / 'prefs.db'}.", flush=True)
    if newest < seen:
        print(f"The run had seen {seen - newest} more, which are not in the copy.", flush=True)
    if left_out:
        (run / "prefs-left-out.txt").write_text("".join(f"{line}\n" for line in left_out), encoding="utf-8")
        print(f"{len(left_out)} damaged rows are left out; {run / 'prefs-left-out.txt'} lists them.", flush=True)
    print(f"Carry on with: python run.py --resume {shlex.quote(str(run))}", flush=True)
