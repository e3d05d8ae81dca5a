"""Puts a copy of its store into a run folder of run.py, or keeps what is whole of a damaged store."""

from __future__ import annotations

import contextlib
import shlex
import shutil

from commands.config import RunConfig
from commands.resumed import answers_seen, check_own
from commands.run_folder import RunFolder, read_config
from drlhp.cli.restore import places, put_in, tell


def restore_command(arguments: list[str]) -> None:
    """Runs `run.py restore`. Raises UserError and PrefDBError; the run's store is then as it was."""
    run, source = places(arguments)
    settings = RunConfig.from_dict(read_config(run))
    with contextlib.closing(RunFolder(run)) as folder:
        seen = answers_seen(run)
        restored = put_in(run, source, lambda db: check_own(db, source, settings, folder.run_id), seen)
        shutil.rmtree(run / "synchronous", ignore_errors=True)  # snapshots name answers that the copy may lack
    tell(run, restored, seen)
    print(f"Carry on with: python run.py --resume {shlex.quote(str(run))}", flush=True)
