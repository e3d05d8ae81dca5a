"""A run gets a copy of its store back whatever lies there, and what is whole of a damaged one is kept."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from commands.run_folder import RunFolder
from pref_db import PrefDB
from tests.support.commands import DOT, SYNC, TINY, UNEVALUATED, answers, here, refused

pytestmark = pytest.mark.xdist_group("restore")  # what they share is made once


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "a")


def change(store: Path, statement: str) -> None:
    """Changes a store with plain SQLite."""
    with closing(sqlite3.connect(store)) as raw:
        raw.execute(statement)
        raw.commit()


def resume(run: Path) -> str:
    return here(None, "--resume", str(run), "--million_timesteps", "0.0007", *UNEVALUATED).stdout


def test_a_good_copy_beside_an_old_log_of_writes_is_restored(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    shutil.copy(run / "prefs.db", copy)
    with closing(sqlite3.connect(run / "prefs.db", isolation_level=None)) as other:
        other.execute("UPDATE segment SET seed = seed + 1")
        other.execute("CREATE TABLE other (x)")
        log_of_writes = (run / "prefs.db-wal").read_bytes()
    shutil.copy(copy, run / "prefs.db")
    (run / "prefs.db-wal").write_bytes(log_of_writes)
    before = answers_of(copy)
    printed = here(None, "restore", str(run), str(copy)).stdout
    assert f"20 answers in {run / 'prefs.db'}" in printed and "damaged" not in printed
    assert not (run / "prefs.db-wal").exists() and answers(run) == before
    assert len(list(run.glob("prefs-replaced-*.db*"))) >= 2, "the old files are kept"
    resume(run)


def answers_of(store: Path) -> list[tuple[str, str, str]]:
    with closing(sqlite3.connect(store)) as db:
        return db.execute("SELECT client_id, comparison_id, choice FROM answer ORDER BY seq").fetchall()


def test_a_copy_that_lacks_the_newest_answers_is_resumed_once_it_is_restored(run: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    older.mkdir()
    with closing(PrefDB.open(run / "prefs.db")) as db:
        db.back_up(older / "prefs.db")
    change(older / "prefs.db", "DROP TRIGGER answer_no_delete")
    change(older / "prefs.db", "DELETE FROM answer WHERE seq > 15")
    change(older / "prefs.db", "UPDATE sqlite_sequence SET seq = 15")
    shutil.copy(older / "prefs.db", run / "prefs.db")
    assert f"python run.py restore {run} {run}" in refused(tmp_path, "--resume", str(run))
    assert "The run had seen 5 more" in here(None, "restore", str(run), str(older)).stdout
    resume(run)
    with closing(PrefDB.open(run / "prefs.db")) as db:
        assert [seq for seq, *_ in db.changes(after=15)] == [21, 22, 23, 24, 25], "their numbers are not given again"


@pytest.mark.parametrize(
    "statement",
    ["UPDATE segment SET arrays = x'00' WHERE number = 3", "DELETE FROM segment WHERE number = 3"],
)
def test_one_damaged_segment_costs_its_own_answers_alone(run: Path, tmp_path: Path, statement: str) -> None:
    change(run / "prefs.db", statement)
    output = tmp_path / "out"
    printed = here(None, "export", str(run), "--output", str(output)).stdout
    assert "are not exported" in printed and f"{output / 'left_out.txt'} lists them" in printed
    left_out = (output / "left_out.txt").read_text()
    assert "answer" in left_out
    here(None, "import", str(output), "--output", str(tmp_path / "new"))
    assert 15 <= len(answers(tmp_path / "new")) < 20

    assert "damaged rows are left out" in here(None, "restore", str(run), str(run)).stdout
    kept = len(answers(run))
    assert kept == len(answers(tmp_path / "new"))
    resume(run)


def test_a_run_goes_on_without_the_labels_of_a_damaged_segment(run: Path) -> None:
    change(run / "prefs.db", "UPDATE segment SET arrays = x'00' WHERE number = 3")
    printed = resume(run)
    assert "is left out, because one of its clips is damaged" in printed and "Finished" in printed


def test_what_cannot_be_restored_changes_nothing(run: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.name.startswith("prefs.db")}
    other = tmp_path / "other.db"
    PrefDB.create(other, DOT, 15, "another run").close()
    (tmp_path / "none.db").write_bytes(b"none" * 100)
    for source, expected in (
        (other, "is the store of another run"),
        (tmp_path / "none.db", "is not a preference database"),
        (tmp_path / "nowhere", "does not exist"),
    ):
        result = here(None, "restore", str(run), str(source), status=2)
        assert expected in result.stderr and "Traceback" not in result.stderr
    with contextlib.closing(RunFolder(run)):
        assert "is in use" in here(None, "restore", str(run), str(run), status=2).stderr
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.name.startswith("prefs.db")} == before


def test_segments_that_a_function_was_asked_about_are_whole_too(tmp_path: Path) -> None:
    """Their ids are without the true rewards, so these are the only contents that may change."""
    run, teacher = tmp_path / "a", "examples.dot_left:to_the_left"
    here(tmp_path, "gather_initial_prefs", DOT, "--teacher", teacher, "--run_name", "a", *TINY, SYNC)
    before = answers(run)
    assert "damaged" not in here(None, "restore", str(run), str(run)).stdout
    assert answers(run) == before and len(before) == 12


def test_a_segment_with_the_contents_of_another_is_damaged(run: Path, tmp_path: Path) -> None:
    other = "SELECT arrays FROM segment WHERE number = 4"
    change(run / "prefs.db", f"UPDATE segment SET arrays = ({other}) WHERE number = 3")
    printed = here(None, "export", str(run), "--output", str(tmp_path / "out")).stdout
    assert "are not exported" in printed
    assert "segment 3: a stored segment is damaged" in (tmp_path / "out" / "left_out.txt").read_text()
