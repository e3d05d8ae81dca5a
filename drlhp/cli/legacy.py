"""Reads the stores of mrahtz's learning-from-human-preferences: train.pkl.gz and val.pkl.gz.

A process of its own converts them to the form that `export` writes, which is then checked like any other: it has
little memory, so that a hostile file cannot take that of the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from drlhp.cli.program import ATARI_FPS, program
from drlhp.errors import UserError

LEGACY_FILES = ("train.pkl.gz", "val.pkl.gz")


@contextlib.contextmanager
def converted(files: list[Path], env_id: str) -> Iterator[Path]:
    """Yields a folder with the files' labels and segments as `export` writes them; it is deleted afterwards.

    Raises:
        UserError: a file cannot be read, or the environment shows no pictures.
    """
    info = program().info_of(env_id)
    if info is not None and info.kind != "pixels":
        raise UserError(f"{files[0]} holds pictures, and {env_id} shows none; give the --env_id of what was played.")
    facts = {"env_id": env_id, "fps": info.fps if info else ATARI_FPS, "n_actions": info.n_actions if info else None}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "drlhp.cli.legacy_store", json.dumps(facts), folder, *map(os.path.abspath, files)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=Path(__file__).parents[2],  # the folder that holds `drlhp`
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # each of NumPy's threads would take some of the memory
        )
        last = (done.stderr.decode(errors="replace").splitlines() or [f"status {done.returncode}"])[-1]
        if done.returncode == 2:
            raise UserError(last)
        if done.returncode:
            raise UserError(f"{files[0].parent} cannot be read as a store of labels ({last}); nothing was imported.")
        yield Path(folder)
