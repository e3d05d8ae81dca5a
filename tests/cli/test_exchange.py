"""Labels out and in again: nothing is lost on the way, nothing damaged or hostile comes in, and nothing half."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import os
import pickle
import pickletools
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from commands.environments import lend_environments
from drlhp.cli.exchange import FIELDS, export_command, import_command
from drlhp.data.comparison import Choice, Comparison
from drlhp.data.views import VIEW_HEADER, VIEW_MAGIC, encode_frames
from drlhp.errors import UserError
from drlhp.labelling.answers import Submission
from drlhp.labelling.notices import Notices
from drlhp.labelling.queue import LabelQueue
from pref_db import PrefDB
from tests.support import ROOT
from tests.test_pref_db import ENV_ID, LENGTH, assert_same, pair, pixel_segment

PONG = "PongNoFrameskip-v4"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A store with answers of a teacher and of a person, one undone and one with a note, and an unasked segment."""
    folder = tmp_path / "run"
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
    assert list(table[0]) == list(FIELDS) and len(table) == 5
    assert [row["note"] for row in table if row["note"]] == ['\'=HYPERLINK("http://example.org")']
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in table for cell in row.values())


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
        *(drop_segment, swap_segments, pickled_array, cut_segment, change_export(schema=2)),
        *(change_segment(policy_step=np.uint64(2**63)), change_segment(seed=np.uint64(2**63))),
        *(change_segment(view=clip(0, 8, 8)), change_segment(view=clip(9, 0, 8))),
        *(change_export(env_id="\ud800"), change_export(segment_length=True), change_export(segment_length=2**70)),
        lambda folder: (folder / "export.json").write_text("[" * 100_000),
        lambda folder: (folder / "export.json").unlink(),
    ],
)
def test_a_damaged_folder_is_refused_in_a_sentence_and_nothing_is_made(
    run: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    out = tmp_path / "out"
    export_command([str(run), "--output", str(out)])
    damage(out)
    with pytest.raises(UserError) as caught:
        import_command([str(out), "--output", str(tmp_path / "new")])
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value) and str(out) in str(caught.value)
    assert not (tmp_path / "new").exists()


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
        db.add_segments([pixel_segment(n) for n in range(100, 400)])
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


# The original project's files


@pytest.fixture(autouse=True)
def environments() -> None:
    """Lets `import` know the environments, as run.py does before its commands."""
    lend_environments()


class FakePrefDB:
    """Pickled under the name of the original's class, with its attributes."""

    def __init__(self, maxlen: int) -> None:
        self.segments: dict[int, Any] = {}
        self.seg_refs: dict[int, int] = {}
        self.prefs: list[tuple[int, int, Any]] = []
        self.maxlen = maxlen


@pytest.fixture
def original(monkeypatch: pytest.MonkeyPatch) -> type:
    """The class as the original's module had it, for the pickler to name."""
    module = types.ModuleType("pref_db")
    kind = type("PrefDB", (FakePrefDB,), {"__module__": "pref_db"})
    module.PrefDB = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pref_db", module)
    return kind


def stacked(seed: int, steps: int = 25) -> np.ndarray:
    """(T, 84, 84, 4), each the newest four of T + 3 frames."""
    frames = np.random.default_rng(seed).integers(0, 256, (steps + 3, 84, 84), dtype=np.uint8)
    return np.stack([frames[t : t + 4].transpose(1, 2, 0) for t in range(steps)])


@pytest.mark.parametrize("protocol", [3, 4, 5])  # 3 is what the original wrote
def test_the_originals_pickles_are_imported(tmp_path: Path, original: type, protocol: int) -> None:
    train, val = original(10), original(10)
    for key in range(4):
        train.segments[key] = list(stacked(key))  # a list of frames, as the original kept them
    train.prefs = [(0, 1, (1.0, 0.0)), (1, 2, (0.0, 1.0)), (3, 3, (1.0, 0.0))]
    val.segments = {7: stacked(7), 8: stacked(8)}
    val.prefs = [(8, 7, (0.5, 0.5))]
    for name, stored in (("train.pkl.gz", train), ("val.pkl.gz", val)):
        with gzip.open(tmp_path / name, "wb") as file:
            pickle.dump(stored, file, protocol=protocol)
    with pytest.raises(UserError, match="add --env_id"):
        import_command([str(tmp_path), "--output", str(tmp_path / "new")])
    with pytest.raises(UserError, match="holds pictures, and CartPole-v1 shows none"):
        import_command([str(tmp_path), "--output", str(tmp_path / "new"), "--env_id", "CartPole-v1"])
    import_command([str(tmp_path), "--output", str(tmp_path / "new"), "--env_id", PONG])
    with contextlib.closing(PrefDB.open(tmp_path / "new" / "prefs.db")) as db:
        labels = db.labels()
        assert [label.mu for label in labels] == [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)]
        assert (db.env_id, db.segment_length, len(db.segment_ids())) == (PONG, 25, 5)
        shown = db.segment(labels[0].a).stacked()
        np.testing.assert_array_equal(shown, stacked(0).transpose(0, 3, 1, 2))
        assert db.segment(labels[2].a).fps == 15.0


class Hostile:
    """Runs a command when it is loaded by an ordinary unpickler."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.arguments


@pytest.mark.parametrize(
    "hostile",
    [
        Hostile(os.system, "touch hacked"),
        Hostile(eval, "open('hacked', 'w')"),
        Hostile(getattr, "", "join"),
        Hostile(np.load, "x"),
        Hostile(np.ndarray, (10**12,)),
        Hostile(np.dtype, "O"),
        np.array([{}, None], dtype=object),
        {"not": "a store"},
        Comparison,
    ],
)
def test_hostile_pickles_are_refused_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(hostile)
    assert list(pickletools.genops(data))
    for name in ("train.pkl.gz", "val.pkl.gz"):
        with gzip.open(tmp_path / name, "wb") as file:
            file.write(data)
    with pytest.raises(UserError, match=r"is no store of labels \(.*; nothing was imported"):
        import_command([str(tmp_path), "--output", str(tmp_path / "new"), "--env_id", PONG])
    assert not (tmp_path / "hacked").exists() and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "content", [b"", b"no gzip", *(gzip.compress(data, mtime=0) for data in (b"", b"junk", b"\x80"))]
)
def test_what_is_no_pickle_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train.pkl.gz").write_bytes(content)
    with pytest.raises(UserError, match="is no store of labels"):
        import_command([str(tmp_path), "--output", str(tmp_path / "new"), "--env_id", PONG])
    assert not (tmp_path / "new").exists()
