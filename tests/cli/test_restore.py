"""The installed program puts stores right that wrappers have made, without a clone of this project."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from drlhp.cli import library_command, program
from drlhp.data.comparison import Choice
from drlhp.errors import UserError
from drlhp.runtime.locks import FolderLock
from pref_db import PrefDB
from tests.support.commands import answers
from tests.test_pref_db import ENV_ID, LENGTH, pair


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wrapper's folder with three answers, in the folder where wrappers make theirs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "_programs", [program.Program()])
    folder = Path("drlhp_logs/20261128-101500")
    folder.mkdir(parents=True)
    with contextlib.closing(PrefDB.create(folder / "prefs.db", ENV_ID, LENGTH)) as db:
        for n in range(3):
            db.add_answer(pair(n), Choice.A, teacher="oracle", answered_at=5.0 + n)
    return folder


def test_what_is_whole_of_a_damaged_store_is_kept(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(sqlite3.connect(run / "prefs.db")) as raw:
        raw.execute("UPDATE segment SET arrays = x'00' WHERE number = 1")
        raw.commit()
    assert library_command(["restore", run.name, run.name]) == 0
    printed = capsys.readouterr().out
    assert f"2 answers in {run}/prefs.db" in printed and "damaged rows are left out" in printed
    assert len(answers(run)) == 2 and list(run.glob("prefs-replaced-*.db")), "the damaged store is kept"
    assert library_command(["label", run.name, "--teacher", "oracle", "--max_prefs", "3"]) == 0


def test_a_copy_is_put_back(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library_command(["export", run.name, "--output", "copy"])
    before = answers(run)
    (run / "prefs.db").write_bytes(b"lost" * 1000)
    assert library_command(["restore", run.name, "copy"]) == 0
    assert answers(run) == before and "left out" not in capsys.readouterr().out


def test_a_store_in_use_and_one_of_other_clips_stay_apart(run: Path) -> None:
    before = (run / "prefs.db").read_bytes()
    for user in (FolderLock(run), PrefDB.open(run / "prefs.db"), PrefDB.open(run / "prefs.db", read_only=True)):
        with contextlib.closing(user), pytest.raises(UserError, match="is in use by another process"):
            library_command(["restore", run.name, run.name])
    PrefDB.create(Path("other.db"), ENV_ID, LENGTH + 1).close()
    with pytest.raises(UserError, match=f"other.db holds {ENV_ID} clips of {LENGTH + 1} steps, and .* give a copy"):
        library_command(["restore", run.name, "other.db"])
    with pytest.raises(UserError, match="there does not exist; give a copy"):
        library_command(["restore", run.name, "there"])
    shutil.copy("other.db", "alone.db")
    with pytest.raises(UserError, match="nowhere is no folder; give the folder of a run"):
        library_command(["restore", "nowhere", "alone.db"])
    assert (run / "prefs.db").read_bytes() == before
