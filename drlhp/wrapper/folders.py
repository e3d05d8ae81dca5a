"""The folders that wrappers write, and finding the preferences and predictors in them."""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path

from drlhp.errors import UserError
from drlhp.runtime import checkpoint
from pref_db import PrefDB


def new_folder(log_dir: Path) -> Path:
    """Makes and returns `log_dir`/DATE-TIME, with a number appended if that name is taken.

    Raises UserError if it cannot be made.
    """
    name = datetime.now().strftime("%Y%m%d-%H%M%S")
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000):
            path = log_dir / (name if number == 1 else f"{name}-{number:04d}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise UserError(f"cannot make a folder in {log_dir} ({error.strerror}): choose another log_dir.") from error
    raise UserError(f"{log_dir} is full of folders called {name}: choose another log_dir.")


def preferences(place: Path) -> Path:
    """Returns a store: `place` itself, the prefs.db in it, or that of the newest run folder in it that has labels.

    Raises PrefDBError if one of the stores cannot be read.
    """
    if place.is_file() or (place / "prefs.db").exists():
        return place if place.is_file() else place / "prefs.db"
    found = sorted(place.glob("*/prefs.db"))
    for path in reversed(found):
        with contextlib.closing(PrefDB.open(path, read_only=True)) as db:
            if db.n_labels():
                return path
    return found[-1] if found else place / "prefs.db"


def predictor_checkpoint(place: Path) -> Path:
    """Returns the newest checkpoint of a run, or of the newest run in a log_dir that has one.

    Raises CheckpointError if there is none.
    """
    runs = sorted(path.parent for path in place.glob("*/reward_predictor") if checkpoint.list_checkpoints(path))
    return checkpoint.find(runs[-1] if runs else place, "reward_predictor")
