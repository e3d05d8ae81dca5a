"""The store of a training run: made once, with the labels to start from."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from commands.config import RunConfig
from drlhp.cli.label import give_task
from drlhp.errors import UserError
from pref_db import PrefDB, merge, store_path


def prepare_store(config: RunConfig, path: Path, run_id: str) -> int:
    """Makes the run's store unless it is there, as on --resume; returns the number of its labels."""
    if not path.exists():
        _make(config, path, run_id)
    with contextlib.closing(PrefDB.open(path, read_only=True)) as db:
        return db.n_labels()


def _make(config: RunConfig, path: Path, run_id: str) -> None:
    """Makes a store that holds the labels of --load_prefs_dir.

    It is made elsewhere first, also for --store: a run that stops or fails meanwhile is then resumed with all labels,
    not with none.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as draft:
        made = PrefDB.create(Path(draft) / path.name, config.env_id, config.prefs.clip_steps, run_id)
        with contextlib.closing(made) as db:
            if config.prefs.load_prefs_dir:
                place = Path(config.prefs.load_prefs_dir)
                n_loaded = merge(db, store_path(place))
                print(f"{n_loaded} labels loaded from {place}", flush=True)
            give_task(db)
        if config.store:
            from drlhp.data.postgres_copy import make  # only who uses it needs its package

            make(path, config.store, db.path)
            return
        log_of_writes = db.path.with_name(f"{path.name}-wal")
        if log_of_writes.exists() and log_of_writes.stat().st_size:  # it holds what the file had no room for
            raise UserError(f"{path} cannot be made, the disk is full: free some space and resume the run.")
        db.path.replace(path)
