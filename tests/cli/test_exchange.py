"""Labels out and in again: nothing is lost on the way, nothing damaged or hostile comes in, and nothing half."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from commands.environments import lend_environments
from drlhp import errors
from drlhp.cli.exchange import FIELDS, export_command, export_whole, import_command
from drlhp.cli.segment_files import write_segment
from drlhp.data.comparison import Choice
from drlhp.data.segment import Segment
from drlhp.data.views import VIEW_HEADER, VIEW_MAGIC, encode_frames
from drlhp.errors import UserError
from drlhp.labelling.answers import Submission
from drlhp.labelling.notices import Notices
from drlhp.labelling.queue import LabelQueue
from pref_db import PrefDB
from tests.support import ROOT
from tests.support.commands import small_files
from tests.test_pref_db import ENV_ID, LENGTH, assert_same, pair, pixel_segment


@pytest.fixture(autouse=True)
def environments() -> None:
    """Lets `import` know the environments, as run.py does before its commands."""
    lend_environments()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A store with answers of a teacher and of a person, one undone and one with a note, and an unasked segment."""
    return filled(tmp_path / "run")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of such a store, made once for all tests that damage a copy of it."""
    folder = tmp_path_factory.mktemp("exported")
    export_command([str(filled(folder / "run")), "--output", str(folder / "out")])
    return folder / "out"


def filled(folder: Path) -> Path:
    folder.mkdir()
    with contextlib.closing(PrefDB.create(folder / "prefs.db", ENV_ID, LENGTH)) as db:
        db.add_answer(pair(0), Choice.A, teacher="oracle", answered_at=5.0)
        db.add_answer(pair(1, flip=True), Choice.EQUAL, teacher="oracle", answered_at=6.0)
        queue = LabelQueue(db)
        queue.submit([pair(n) for n in range(2, 6)])
        choices: tuple[Any, ...] = ("left", "right", "incomparable", "left")
        for n, (lease, choice) in enumerate(zip(queue.claim("ann", 4), choices, strict=True)):
            note = '=HYPERLINK("http://example.org")' if n == 0 else ""
            rest = {"watched_ms": 2500, "replays": n, "speed": 0.5, "flag": n == 1, "note": note}
            queue.answers.add(Submission(f"c{n}", lease.token, lease.comparison_id, "ann", choice, 10.0, 12.5, **rest))  # type: ignore[arg-type]
        queue.answers.undo("ann")
        db.add_segments([pixel_segment(99, steps=9)])
    return folder


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("file", ["left_out.txt", "labels.jsonl", "answers.csv", "export.json"])
def test_a_disk_that_is_full_for_one_file_is_named_by_the_folder(run: Path, tmp_path: Path, file: str) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / file).symlink_to("/dev/full")
    with contextlib.closing(PrefDB.open(run / "prefs.db")) as db, db.transaction() as rows:
        rows.execute("UPDATE segment SET arrays = x'00' WHERE id = (SELECT min(id) FROM segment)")  # which is left out
    with pytest.raises(OSError) as failed:
        export_whole(run / "prefs.db", output)
    assert errors.told(failed.value) == f"cannot use {output} (No space left on device): free some space on its disk."


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(5, "Input/output error"), "[Errno 5] Input/output error: 'runs/a'."),
        (BrokenPipeError(32, "cut"), "[Errno 32] cut."),
    ],
)
def test_what_is_about_no_file_names_none(error: OSError, told: str) -> None:
    with pytest.raises(OSError) as failed, errors.naming(Path("runs/a")):
        raise error
    assert errors.told(failed.value) == told


def test_what_is_exported_and_imported_is_the_same(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "a b"
    export_command([str(run), "--output", str(tmp_path / "out")])
    import_command([str(tmp_path / "out"), "--output", str(new)])
    assert f"--load_prefs_dir '{new}'\n" in capsys.readouterr().out
    with (
        contextlib.closing(PrefDB.open(run / "prefs.db", read_only=True)) as before,
        contextlib.closing(PrefDB.open(new / "prefs.db", read_only=True)) as after,
    ):
        assert (after.env_id, after.segment_length, after.n_labels()) == (ENV_ID, LENGTH, 4)
        columns = "client_id, comparison_id, teacher, choice, preferred, shown_left, shown_at, answered_at, labeller"
        query = f"SELECT {columns}, watched_ms, replays, speed, late, flag, note FROM effective_answer ORDER BY seq"
        assert after.read(query) == before.read(query) and after.n_answers() == 5
        assert [(label.a, label.b, label.mu) for label in after.labels()] == [
            (label.a, label.b, label.mu) for label in before.labels()
        ]
        assert sorted(after.segment_ids()) == sorted(before.segment_ids())
        for segment in before.segments():
            assert_same(after.segment(segment.id), segment)
    export_command([str(new), "--output", str(tmp_path / "again")])
    assert rows(tmp_path / "again") == rows(tmp_path / "out") and all(
        row["schema"] == 1 for row in rows(tmp_path / "out")
    )


def test_an_export_that_a_full_disk_ends_can_be_given_again(run: Path, tmp_path: Path) -> None:
    words = [str(run), "--output", str(tmp_path / "out")]
    with small_files(40_000), pytest.raises((OSError, UserError)):
        export_command(words)
    assert not (tmp_path / "out").exists()
    export_command(words)


def test_an_export_holds_a_backup_of_a_store_that_is_in_use(run: Path, tmp_path: Path) -> None:
    columns = "seq, client_id, choice, supersedes, note"
    with contextlib.closing(PrefDB.open(run / "prefs.db")) as db, db.transaction() as writer:
        writer.execute("INSERT INTO setting VALUES ('half', 'written')")
        export_command([str(run), "--output", str(tmp_path / "out")])
        with contextlib.closing(PrefDB.open(tmp_path / "out" / "prefs.db")) as copy:
            assert copy.read(f"SELECT {columns} FROM answer") == db.read(f"SELECT {columns} FROM answer")
            assert sorted(copy.segment_ids()) == sorted(db.segment_ids()) and Notices(copy).setting("half") is None
            assert copy.read("PRAGMA journal_mode") == [("wal",)] and LabelQueue(copy).answers.undo("ann") is not None


def test_a_spreadsheet_takes_no_cell_for_a_formula(run: Path, tmp_path: Path) -> None:
    export_command([str(run), "--output", str(tmp_path / "out")])
    with (tmp_path / "out" / "answers.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert {*table[0]} >= {*FIELDS} and len(table) == 5
    assert [row["note"] for row in table if row["note"]] == ['\'=HYPERLINK("http://example.org")']
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in table for cell in row.values())


def test_a_person_can_read_the_table_of_answers(run: Path, tmp_path: Path) -> None:
    """Dates in ISO 8601, and the answer and the segments by the side on which they were shown."""
    export_command([str(run), "--output", str(tmp_path / "out")])
    with (tmp_path / "out" / "answers.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0])[:6] == ["answered_at", "labeller", "teacher", "answer", "left", "right"]
    assert table[0]["answered_at"] == "1970-01-01T00:00:05.000+00:00" and table[0]["shown_at"] == ""
    for row, told in zip(table, rows(tmp_path / "out"), strict=True):
        for column in ("shown_at", "answered_at"):
            seconds = datetime.fromisoformat(row[column]).timestamp() if row[column] else None
            assert seconds == told[column]
        preferred = {"a": told["a"], "b": told["b"]}.get(told["choice"])
        assert {row["left"], row["right"]} == {told["a"], told["b"]}
        assert (row[row["answer"]] if preferred else row["answer"]) == (preferred or told["choice"])
    assert {row["answer"] for row in table} >= {"left", "right", "equal"}
    assert [(row["left"] == told["b"]) for row, told in zip(table, rows(tmp_path / "out"), strict=True)] == [
        told["flip"] for told in rows(tmp_path / "out")
    ]


def test_neither_an_export_nor_a_reader_leaves_files_of_sqlite_behind(run: Path, tmp_path: Path) -> None:
    export_command([str(run), "--output", str(tmp_path / "out")])
    files = {"prefs.db", "labels.jsonl", "answers.csv", "export.json", "segments"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == files
    assert [path.name for path in run.iterdir()] == ["prefs.db"], "nor beside the store that was read"


def test_a_reader_leaves_the_log_of_a_store_that_others_write(run: Path) -> None:
    with contextlib.closing(PrefDB.open(run / "prefs.db")) as db:
        PrefDB.open(run / "prefs.db", read_only=True).close()
        db.add_answer(pair(7), Choice.A, teacher="oracle", answered_at=7.0)
        log = (run / "prefs.db-wal").read_bytes()
        with contextlib.closing(PrefDB.open(run / "prefs.db", read_only=True)) as other:
            assert other.n_answers() == db.n_answers()
        assert log and (run / "prefs.db-wal").read_bytes() == log


def test_names_of_any_script_are_exported_whatever_the_locale(run: Path, tmp_path: Path) -> None:
    with contextlib.closing(PrefDB.open(run / "prefs.db")) as db:
        queue = LabelQueue(db)
        queue.submit([pair(6)])
        lease = queue.claim("Žofie 佳", 1)[0]
        queue.answers.add(Submission("z", lease.token, lease.comparison_id, "Žofie 佳", "left", 20.0, 21.0))
    ascii_alone = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    line = [sys.executable, str(ROOT / "run.py"), "export", str(run), "--output", str(tmp_path / "out")]
    result = subprocess.run(line, env=ascii_alone, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    with (tmp_path / "out" / "answers.csv").open(newline="", encoding="utf-8") as file:
        assert "Žofie 佳" in {row["labeller"] for row in csv.DictReader(file)}


def test_nothing_is_overwritten(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()  # it may be there, if there is nothing in it
    export_command([str(run), "--output", str(tmp_path / "out")])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "answers.csv").write_text("precious")
    for place in (tmp_path / "out", tmp_path / "mine", run):
        before = sorted(place.rglob("*"))
        with pytest.raises(UserError, match="exists already; give --output another folder"):
            export_command([str(run), "--output", str(place)])
        assert sorted(place.rglob("*")) == before
    file = tmp_path / "mine" / "answers.csv"
    for command, source, place in (
        (import_command, tmp_path / "out", run),
        (import_command, tmp_path / "out", file),
        (import_command, tmp_path / "out", file / "new"),
        (export_command, run, file / "new"),
    ):
        with pytest.raises(UserError, match=r"^[^\n]+; give --output another folder\.$"):
            command([str(source), "--output", str(place)])
    assert file.read_text() == "precious"


def change_row(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        changed = rows(folder)
        changed[-1] |= changes
        (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))

    return change


def append_line(line: str) -> Callable[[Path], None]:
    def append(folder: Path) -> None:
        with (folder / "labels.jsonl").open("a") as file:
            file.write(line + "\n")

    return append


def drop_segment(folder: Path) -> None:
    (folder / "segments" / f"{rows(folder)[0]['a']}.npz").unlink()


def swap_segments(folder: Path) -> None:
    first, second = sorted((folder / "segments").glob("*.npz"))[:2]
    first.write_bytes(second.read_bytes())


def pickled_array(folder: Path) -> None:
    file = sorted((folder / "segments").glob("*.npz"))[0]
    np.savez(file, schema=np.array(1), env_id=np.array(["x", None], dtype=object))


def cut_segment(folder: Path) -> None:
    file = sorted((folder / "segments").glob("*.npz"))[0]
    file.write_bytes(file.read_bytes()[:-20])


def pack_otherwise(folder: Path) -> None:
    """Packs a segment by bzip2, of which Python may unpack gigabytes at once."""
    file = sorted((folder / "segments").glob("*.npz"))[0]
    with zipfile.ZipFile(file) as before:
        contents = {name: before.read(name) for name in before.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_BZIP2) as after:
        for name, data in contents.items():
            after.writestr(name, data)


def change_segment(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = sorted((folder / "segments").glob("*.npz"))[0]
        with np.load(file) as arrays:
            changed = dict(arrays) | changes
        np.savez(file, **changed)

    return change


def clip(*shape: int) -> np.ndarray:
    """A view as a segment's file holds it."""
    return np.frombuffer(encode_frames(np.zeros((*shape, 3), np.uint8)), np.uint8)


def change_export(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "export.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def test_who_is_not_known_to_have_looked_at_imported_pairs_labels_on(run: Path, tmp_path: Path) -> None:
    """Labels of other tools need not say when a pair was shown."""
    out, new = tmp_path / "out", tmp_path / "new"
    export_command([str(run), "--output", str(out)])
    changed = [{**row, "shown_at": None} for row in rows(out)]
    (out / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
    import_command([str(out), "--output", str(new)])
    with contextlib.closing(PrefDB.open(new / "prefs.db")) as db:
        queue = LabelQueue(db)
        queue.submit([pair(9)])
        assert [lease.comparison_id for lease in queue.claim("ann")] == [pair(9).id]


@pytest.mark.parametrize(
    "damage",
    [
        *(change_row(choice="both"), change_row(choice=None), change_row(answered_at="now"), change_row(extra=1)),
        *(change_row(a="0" * 64), change_row(comparison_id="0" * 64), change_row(note="x" * 501), change_row(schema=2)),
        *(change_row(answered_at=1.7e12), change_row(shown_at=1.7e12)),
        *(change_row(client_id="c0"), change_row(speed=float("nan")), change_row(replays=-1), change_row(flip=1)),
        *(append_line("{"), append_line("[]"), append_line("[" * 100_000)),
        *(change_row(note="\ud800"), change_row(labeller="\ud800"), change_row(client_id="\ud800"), append_line("")),
        *(drop_segment, swap_segments, pickled_array, cut_segment, pack_otherwise, change_export(schema=2)),
        *(change_segment(policy_step=np.uint64(2**63)), change_segment(seed=np.uint64(2**63))),
        *(change_segment(view=clip(0, 8, 8)), change_segment(view=clip(9, 0, 8))),
        *(change_export(env_id="\ud800"), change_export(segment_length=True), change_export(segment_length=2**70)),
        lambda folder: (folder / "export.json").write_text("[" * 100_000),
        lambda folder: (folder / "export.json").unlink(),
    ],
)
def test_a_damaged_folder_is_refused_in_a_sentence_and_nothing_is_made(
    exported: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(exported, out)
    damage(out)
    with pytest.raises(UserError) as caught:
        import_command([str(out), "--output", str(tmp_path / "new")])
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value) and str(out) in str(caught.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["export.json", "labels.jsonl", "segments/pipe.npz"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(run: Path, tmp_path: Path, name: str) -> None:
    export_command([str(run), "--output", str(tmp_path / "out")])
    (tmp_path / "out" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "out" / name)
    with pytest.raises(UserError, match=f"{name} is no regular file"):
        import_command([str(tmp_path / "out"), "--output", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["export.json", "labels.jsonl"])
def test_files_of_gigabytes_that_need_no_disk_are_not_read(run: Path, tmp_path: Path, name: str) -> None:
    export_command([str(run), "--output", str(tmp_path / "out")])
    with (tmp_path / "out" / name).open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match=rf"{name} is larger|{name}, line 6: it is too long"):
        import_command([str(tmp_path / "out"), "--output", str(tmp_path / "new")])


def changed(**arrays: np.ndarray) -> Segment:
    """Returns a segment of Pong with other values, and the id of these."""
    return replace(pixel_segment(1000), **arrays)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("segment", "reason"),
    [
        (changed(rewards=np.full(LENGTH, np.nan, np.float32)), "its rewards are not all finite numbers"),
        (changed(rewards=np.full(LENGTH, -np.inf, np.float32)), "its rewards are not all finite numbers"),
        (changed(actions=np.full((LENGTH, 2), np.inf, np.float32)), "its actions are not all finite numbers"),
        (changed(actions=np.full(LENGTH, -1)), f"it holds the action -1, which {ENV_ID} does not have"),
        (changed(actions=np.full(LENGTH, 6)), f"it holds the action 6, which {ENV_ID} does not have"),
        (changed(observations=np.zeros((LENGTH + 3, 0, 0), np.uint8)), "its observations are empty: 28 x 0 x 0"),
        (
            Segment(
                ENV_ID, np.full((9, 4), np.nan, np.float32), np.zeros(9, np.int64), np.zeros(9, np.float32), 1, 0, 0, 15
            ),
            "its observations are not all finite numbers",
        ),
        (changed(observations=np.zeros((LENGTH + 3, 84, 80), np.uint8)), "has other observations or actions than"),
        (changed(actions=np.zeros((LENGTH, 2), np.float32)), "has other observations or actions than"),
    ],
)
def test_values_that_no_environment_gives_are_refused(run: Path, tmp_path: Path, segment: Segment, reason: str) -> None:
    export_command([str(run), "--output", str(tmp_path / "out")])
    write_segment(tmp_path / "out" / "segments", segment)
    with pytest.raises(UserError, match=reason):
        import_command([str(tmp_path / "out"), "--output", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()


def test_a_file_cannot_have_a_module_imported(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`module:id` is an environment's name that Gymnasium imports a module for."""
    (tmp_path / "hacked.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    export_command([str(run), "--output", str(tmp_path / "out")])
    change_export(env_id="hacked:Env-v0")(tmp_path / "out")
    with pytest.raises(UserError, match="unlike export"):
        import_command([str(tmp_path / "out"), "--output", str(tmp_path / "new")])
    assert "hacked" not in sys.modules


def test_a_clip_of_gigabytes_is_refused_by_its_header(run: Path, tmp_path: Path) -> None:
    """A few kilobytes of zstandard can say so."""
    out = tmp_path / "out"
    export_command([str(run), "--output", str(out)])
    packed = zstandard.ZstdCompressor().compressobj(size=3 * 2**30)
    start = packed.compress(bytes(100)) + packed.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    view = VIEW_HEADER.pack(VIEW_MAGIC, 1, 2**15, 2**15) + start
    change_segment(view=np.frombuffer(view, np.uint8))(out)
    with pytest.raises(UserError, match="its clip unpacks to more than a segment can hold"):
        import_command([str(out), "--output", str(tmp_path / "new")])


def test_a_disk_that_fills_up_leaves_no_half_of_a_store(run: Path, tmp_path: Path) -> None:
    """As a limit on the size of files."""
    with contextlib.closing(PrefDB.open(run / "prefs.db")) as db:
        db.add_segments([pixel_segment(n) for n in range(100, 220)])
    export_command([str(run), "--output", str(tmp_path / "out")])
    (tmp_path / "full.py").write_text(
        "import resource, sys\n"
        "from drlhp.cli import exchange\nfrom drlhp import errors\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))\n"
        "try:\n"
        "    exchange.import_command(sys.argv[1:])\n"
        "except errors.PrefDBError:\n"
        "    sys.exit(7)\n"
    )
    command: list[str | Path] = [sys.executable, tmp_path / "full.py", tmp_path / "out", "--output", tmp_path / "new"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    assert not (tmp_path / "new").exists()


def test_a_line_of_labels_ends_with_its_line_feed_alone(run: Path, tmp_path: Path) -> None:
    """Other programs write characters as they are that are the end of a line elsewhere."""
    out = tmp_path / "out"
    export_command([str(run), "--output", str(out)])
    changed = [json.dumps(row | {"note": "one\u2028two\x85"}, ensure_ascii=False) + "\n" for row in rows(out)]
    (out / "labels.jsonl").write_text("".join(changed))
    import_command([str(out), "--output", str(tmp_path / "new")])
    with contextlib.closing(PrefDB.open(tmp_path / "new" / "prefs.db", read_only=True)) as db:
        assert set(db.read("SELECT note FROM answer")) == {("one\u2028two\x85",)}
