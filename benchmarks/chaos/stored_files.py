"""Stored files, cut off at some place or with one bit changed.

Each command that reads them has to work, or to say in a sentence what is wrong.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from benchmarks.chaos.cases import Notes
from benchmarks.chaos.commands import called, complaint
from benchmarks.chaos.runs import GOAL, check_labels, made, no_curves
from drlhp.labelling.notices import Notices
from pref_db import PrefDB
from tests.support.commands import answers

PLACES = 100  # in each file
RUN, EXPORT, NEW = "run", "export", "new"
# Without evaluations: that saves a tenth of the time of the attack, and the same files are read.
CURVES = (f"{RUN}/progress.csv", f"{RUN}/evaluations.csv", f"{RUN}/config.json")  # what the curves are drawn from
RESUME = (
    *("--resume", RUN, "--million_timesteps", "0.00042", "--max_prefs", "14"),
    *("--eval_interval_million_timesteps", "0"),
)
REPORT = ("report", RUN, "--output", NEW)
LABEL = ("label", RUN, "--teacher", "oracle", "--max_prefs", "14")
OUT = ("export", RUN, "--output", NEW)
IN = ("import", EXPORT, "--output", NEW)
# The commands among which the damages of a file are shared out, by the beginning of its path; the last row is for all
# other files. A report takes four seconds, so it has a tenth of those that it reads. What no command reads is tried
# with quick ones.
READERS = {
    f"{RUN}/prefs.db": (RESUME, LABEL, OUT, LABEL, OUT),
    **dict.fromkeys((f"{RUN}/log.txt", f"{RUN}/curves.png", f"{RUN}/events/"), (LABEL, OUT, LABEL, OUT, RESUME)),
    **dict.fromkeys(CURVES, (*(RESUME,) * 9, REPORT)),
    f"{EXPORT}/": (IN,),
    "": (RESUME,),
}


class StoredFiles:
    """Damages the files of one small run, which is made once, in `with StoredFiles.of_a_run()`."""

    def __init__(self, source: Path, places: int) -> None:
        self.source, self.places = source, places
        files = {path: path.stat().st_size for path in sorted(source.rglob("*")) if path.is_file()}
        files = {path: size for path, size in files.items() if path.name != "prefs.db-shm"}  # SQLite makes it anew.
        # Exported segments are alike, and so are checkpoints: the newest stands for all.
        newest = {(path.parent, path.suffix): path for path in files if path.suffix in (".npz", ".pt")}
        self.files = [
            path.relative_to(source).as_posix()
            for path, size in files.items()
            if size and path == newest.get((path.parent, path.suffix), path)
        ]

    @classmethod
    @contextmanager
    def of_a_run(cls, places: int = PLACES) -> Iterator[StoredFiles]:
        with tempfile.TemporaryDirectory(prefix="chaos-") as name:
            source = Path(name)
            folder = made(source)
            db = PrefDB.open(folder / "prefs.db")
            Notices(db).set_setting("goal", str(GOAL))
            shutil.copytree(folder, source / RUN)  # with a `-wal`, as if the run had been killed
            db.close()
            ended = called("export", str(source / RUN), "--output", str(source / EXPORT))
            assert ended.status == 0, ended.output
            shutil.rmtree(folder)
            yield cls(source, places)

    @property
    def n_cases(self) -> int:
        return len(self.files) * self.places

    def __call__(self, number: int, notes: Notes) -> None:
        """Damages one file at one place, and carries out one of the commands that read it."""
        file, at = self.files[number // self.places], number % self.places
        readers = next(readers for begin, readers in READERS.items() if file.startswith(begin))
        words = readers[at // 2 % len(readers)]
        for part in (RUN, EXPORT):
            shutil.copytree(self.source / part, part)
        before = answers(Path(RUN))
        did = f"{damage(Path(file), notes, cut=at % 2 == 0)}; {' '.join(words)}"
        notes.count("damaged files")
        with no_curves() if file not in CURVES else nullcontext():
            ended = called(*words)
        notes.count(f"exit status {ended.status}")
        if wrong := complaint(ended):
            notes.found(did, wrong)
        if not file.startswith(f"{RUN}/prefs.db"):
            check_labels(before, Path(RUN), notes, did)


def damage(path: Path, notes: Notes, *, cut: bool) -> str:
    """Cuts a file off, or changes one bit of it; returns what was done."""
    data = bytearray(path.read_bytes())
    at, bit = notes.rng.randrange(len(data)), notes.rng.randrange(8)
    if cut:
        path.write_bytes(data[:at])
        return f"{path} cut off after {at} of {len(data)} bytes"
    data[at] ^= 1 << bit
    path.write_bytes(data)
    return f"{path}, {len(data)} bytes: bit {bit} of byte {at} changed"
