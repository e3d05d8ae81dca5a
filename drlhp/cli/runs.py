"""Finding the run that a person names on a command line."""

from __future__ import annotations

import os
from pathlib import Path

from drlhp.cli.program import program
from drlhp.errors import UserError

MARKS = ("config.json", "prefs.db", "policy", "reward_predictor")  # a folder with one of them is a run's
N_NAMED = 5  # runs that an error names


def find_run(name: str | Path, log_dir: str | Path | None = None) -> Path:
    """Returns the path that `name` is, or that it has in the log_dir if it is none itself; it may not exist.

    Args:
        log_dir: by default the one in which the program makes its runs.

    Raises:
        UserError: the path is a folder of runs, of which one is wanted.
    """
    place, folder = Path(name), Path(log_dir or program().log_dir)
    if not os.path.exists(place) and os.path.exists(folder / place):
        place = folder / place
    if held := runs_in(place):
        some = ", ".join(str(path) for path in held[:N_NAMED]) + (", ..." if len(held) > N_NAMED else "")
        raise UserError(f"{place} is no run, but holds some; give one of them: {some}.")
    return place


def runs_in(folder: Path) -> list[Path]:
    """Returns the run folders in a folder, newest first; none if the folder is a run itself."""
    if not folder.is_dir() or _is_run(folder):
        return []
    return sorted(filter(_is_run, folder.iterdir()), key=os.path.getmtime, reverse=True)


def _is_run(folder: Path) -> bool:
    return any(os.path.exists(folder / name) for name in MARKS)
