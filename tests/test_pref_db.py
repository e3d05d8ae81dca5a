"""The preference database: what it stores comes back, and nothing a person answered is ever lost."""

import contextlib
import io
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drlhp.data import asked
from drlhp.data.asked import Asked
from drlhp.data.comparison import Choice, Comparison, Label, choice_of, is_validation, side_of
from drlhp.data.schema import SCHEMA_VERSION
from drlhp.data.segment import Segment
from drlhp.data.sqlite_file import SqliteFile
from drlhp.data.views import decode_frames, encode_frames
from drlhp.errors import PrefDBError
from drlhp.runtime.snapshot import restored, state_of
from pref_db import PrefDB, merge
from tests.support import ROOT
from tests.support.postgres import make_store
from tests.support.preloaded import PreloadedPopen, run_captured
from tests.support.store import undo_last

ENV_ID = "PongNoFrameskip-v4"
LENGTH = 25


def pixel_segment(seed: int, steps: int = LENGTH, env_id: str = ENV_ID) -> Segment:
    """A segment of sparse random frames: small when compressed, different for each seed."""
    rng = np.random.default_rng(seed)
    frames = np.zeros((steps + 3, 84, 84), np.uint8)
    frames[:, 40, :8] = rng.integers(0, 256, (steps + 3, 8))
    actions, rewards = rng.integers(0, 6, steps), rng.normal(size=steps).astype(np.float32)
    return Segment(env_id, frames, actions, rewards, stack=4, policy_step=seed, seed=seed, fps=15.0)


def vector_segment(seed: int) -> Segment:
    """A segment of full-precision vectors with continuous actions."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(LENGTH, 7)).astype(np.float32)
    actions = rng.normal(size=(LENGTH, 2)).astype(np.float32)
    rewards = rng.normal(size=LENGTH).astype(np.float32)
    return Segment("HalfCheetah-v5", observations, actions, rewards, 1, policy_step=0, seed=seed, fps=20.0)


def pair(seed: int, flip: bool = False) -> Comparison:
    """A comparison of two segments of its own."""
    return Comparison(pixel_segment(2 * seed), pixel_segment(2 * seed + 1), flip)


def answer(db: PrefDB, comparison: Comparison, choice: Choice, supersedes: int | None = None) -> Label:
    """Add a person's answer that has something for the trainer."""
    label = db.add_answer(comparison, choice, teacher="person", supersedes=supersedes)
    assert label is not None
    return label


def undo(db: PrefDB) -> tuple[Label, Comparison]:
    """Undo a person's answer where there is one."""
    undone = undo_last(db, "person")
    assert undone is not None
    return undone


@pytest.fixture
def db(tmp_path: Path, store_kind: str) -> Iterator[PrefDB]:
    with contextlib.closing(PrefDB.open(make_store(tmp_path / "prefs.db", store_kind, ENV_ID, LENGTH))) as database:
        yield database


def assert_same(left: Segment, right: Segment) -> None:
    for name in ("observations", "actions", "rewards"):
        a, b = getattr(left, name), getattr(right, name)
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    for name in ("env_id", "stack", "policy_step", "seed", "fps", "view", "id"):
        assert getattr(left, name) == getattr(right, name), name


def assert_fails_with_a_sentence(path: Path, about: str, *, read_only: bool) -> None:
    with pytest.raises(PrefDBError, match=about) as caught:
        PrefDB.open(path, read_only=read_only)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message and ": " in message


def test_real_atari_segment_round_trips_and_stays_small(db: PrefDB) -> None:
    from ale_py.vector_env import AtariVectorEnv

    envs = AtariVectorEnv("pong", 2)
    observations, _ = envs.reset(seed=1)
    steps = []
    for _ in range(40 + LENGTH):
        steps.append(observations.copy())
        observations, *_ = envs.step(np.array([2, 3]))
    envs.close()
    segments = []
    for i in range(2):
        stacked = np.stack([step[i] for step in steps[40:]])
        actions, rewards = np.full(LENGTH, 2 + i, np.int64), np.zeros(LENGTH, np.float32)
        segment = Segment(ENV_ID, Segment.unique_frames(stacked), actions, rewards, 4, 40, 1, 15.0)
        np.testing.assert_array_equal(segment.stacked(), stacked)
        np.testing.assert_array_equal(segment.frames(), np.repeat(stacked[:, -1, :, :, None], 3, axis=3))
        segments.append(segment)
    assert np.shares_memory(segments[0].stacked(), segments[0].observations)
    db.add_answer(Comparison(segments[0], segments[1], flip=False), Choice.A, teacher="person")
    for segment in segments:
        assert_same(db.segment(segment.id), segment)
        stored = db.stored_segment(segment.id)
        assert len(stored.arrays) < 10_000 and stored.decode().observations.flags.writeable


def test_vectors_and_continuous_actions_round_trip_in_full_precision(tmp_path: Path) -> None:
    a, b = vector_segment(0), vector_segment(1)
    with contextlib.closing(PrefDB.create(tmp_path / "prefs.db", "HalfCheetah-v5", LENGTH)) as db:
        db.add_answer(Comparison(a, b, False), Choice.B, teacher="person")
        assert_same(db.segment(a.id), a)
        assert_same(db.segment(b.id), b)
    np.testing.assert_array_equal(a.stacked(), a.observations)
    with pytest.raises(ValueError, match="no frames to show"):
        a.frames()


def test_pictures_that_share_no_frame_round_trip_and_can_be_cropped(db: PrefDB) -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (2, LENGTH, 3, 84, 84), np.uint8)
    actions, rewards = np.zeros(LENGTH, np.int64), np.zeros(LENGTH, np.float32)
    a, b = (Segment(ENV_ID, planes, actions, rewards, 1, policy_step=0, seed=0, fps=15.0) for planes in pictures)
    db.add_answer(Comparison(a, b, flip=False), Choice.A, teacher="person")
    assert_same(db.segment(a.id), a)
    np.testing.assert_array_equal(a.stacked(), pictures[0])
    np.testing.assert_array_equal(a.crop(3, 5).stacked(), pictures[0, 3:8])
    np.testing.assert_array_equal(b.frames()[..., 0], pictures[1, :, -1])
    with pytest.raises(ValueError, match="stack 1 unless they are frames"):
        Segment(ENV_ID, pictures[0], actions, rewards, 2, policy_step=0, seed=0, fps=15.0)


def test_view_clip_and_numpy_scalars_round_trip(db: PrefDB) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (LENGTH, 21, 16, 3), np.uint8)
    int_like: Any = np.int64(7)
    float_like: Any = np.float32(15)
    a = replace(pixel_segment(0), view=encode_frames(frames), policy_step=int_like, fps=float_like)
    b = pixel_segment(1, steps=9)
    db.add_answer(Comparison(a, b, False), Choice.A, teacher="person")
    assert_same(db.segment(a.id), a)
    np.testing.assert_array_equal(db.segment(a.id).frames(), frames)
    assert [segment.id for segment in db.segments()] == [a.id, b.id]
    assert len(db.segment(b.id)) == 9


def test_a_crop_is_that_part_of_what_the_networks_see() -> None:
    pixels = replace(pixel_segment(0, 20), view=encode_frames(np.zeros((20, 8, 8, 3), np.uint8)))
    for whole in (pixels, vector_segment(0)):
        for start, steps in ((0, len(whole)), (0, 1), (3, 5), (len(whole) - 2, 2)):
            part = whole.crop(start, steps)
            here = slice(start, start + steps)
            assert len(part) == steps and part.view is None
            np.testing.assert_array_equal(part.stacked(), whole.stacked()[here])
            np.testing.assert_array_equal(part.actions, whole.actions[here])
            np.testing.assert_array_equal(part.rewards, whole.rewards[here])
            assert np.shares_memory(part.observations, whole.observations)
            assert (part.id == whole.id) == (steps == len(whole))


def test_damaged_clips_are_refused() -> None:
    good = encode_frames(np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8))
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    huge = good[:4] + b"\xff" * 12 + good[16:]
    for bad in (b"", good[:10], good[:-3], bytes(flipped), huge, b"????" + good[4:]):
        with pytest.raises(PrefDBError, match="restore"):
            decode_frames(bad)


@pytest.mark.parametrize(
    "change",
    [
        {"rewards": np.zeros(LENGTH)},
        {"actions": np.zeros(LENGTH - 1, np.int64)},
        {"observations": np.zeros((LENGTH, 84, 84), np.uint8)},
        {"observations": np.zeros((LENGTH + 3, 4), np.float32)},
    ],
)
def test_wrong_arrays_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected .* received"):
        replace(pixel_segment(0), **change)


def _ids() -> list[str]:
    comparison = pair(3)
    return [comparison.a.id, vector_segment(5).id, comparison.id]


def test_ids_are_the_same_in_another_process_and_depend_on_content_alone() -> None:
    code = "from tests.test_pref_db import _ids; print(*_ids())"  # a Python with other hashes
    assert run_captured([sys.executable, "-c", code], 240, cwd=ROOT).stdout.split() == _ids()
    comparison = pair(3)
    a = comparison.a
    assert replace(a, policy_step=9, view=b"x").id == a.id
    assert replace(a, rewards=a.rewards + 1).id != a.id
    assert Comparison(comparison.b, a, True).id == comparison.id


def test_choices_become_labels(db: PrefDB) -> None:
    answers = [answer(db, pair(i), choice) for i, choice in enumerate((Choice.A, Choice.B, Choice.EQUAL))]
    assert [label.mu for label in answers] == [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)]
    assert db.add_answer(pair(3), Choice.INCOMPARABLE, teacher="person") is None
    assert db.labels() == answers
    assert (answers[0].a, answers[0].b) == (pair(0).a.id, pair(0).b.id)
    assert (db.n_labels(), db.n_answers()) == (3, 4)
    assert [row.choice for row in db.answers()] == list(Choice)


def test_pair_asked_the_other_way_round_means_the_same(db: PrefDB) -> None:
    first = pair(0, flip=True)
    one = db.add_answer(first, Choice.A, teacher="person", answered_at=5.0)
    two = answer(db, Comparison(first.b, first.a, False), Choice.B)
    assert one is not None and two == replace(one, seq=two.seq)
    rows = list(db.answers())
    assert [(row.choice, row.flip) for row in rows] == [(Choice.A, True), (Choice.A, True)]
    assert rows[0].answered_at == 5.0
    assert_same(rows[1].comparison.a, first.a)
    assert db.read("SELECT preferred, shown_left FROM answer") == [(first.a.id, first.b.id)] * 2


def test_it_is_known_which_of_many_pairs_were_asked_however_a_checkpoint_kept_them(
    db: PrefDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked, "IDS_AT_ONCE", 2)  # the store gives them in several parts
    pairs = [pair(seed) for seed in range(8)]
    for one in pairs[:5]:
        answer(db, one, Choice.A)
    known, kept, of_earlier_versions, file = db.asked(), Asked(), Asked(), io.BytesIO()
    for one in (pairs[5], pairs[0]):
        known.add(one.id)
    torch.save(state_of(known), file)
    file.seek(0)
    restored(kept, torch.load(file, weights_only=True))
    restored(of_earlier_versions, sorted(one.id for one in pairs[:6]))
    for found in (known, kept, of_earlier_versions):
        assert [one.id in found for one in pairs] == 6 * [True] + 2 * [False]
        assert len(found) == 6
    odd = Asked(["zz", "", "é" * 40])  # as no version writes them
    assert "zz" in odd and "" in odd and "é" * 40 in odd and "z" not in odd and pairs[0].id not in odd


def test_undo_takes_back_the_newest_of_that_teacher_and_repeats(db: PrefDB) -> None:
    kept = db.add_answer(pair(0), Choice.A, teacher="synthetic")
    first = answer(db, pair(1, flip=True), Choice.B)
    db.add_answer(pair(2), Choice.INCOMPARABLE, teacher="person")
    retraction, asked = undo(db)
    assert (retraction.mu, retraction.retracts, asked.id) == (None, first.seq + 1, pair(2).id)
    retraction, asked = undo(db)
    assert (retraction.retracts, retraction.a, asked.id, asked.flip) == (first.seq, first.a, pair(1).id, True)
    assert undo_last(db, "person") is None
    assert db.labels() == [kept]
    again = answer(db, asked, Choice.A)
    assert db.labels() == [kept, again]


def test_labels_after_a_seq_tell_what_was_taken_back(db: PrefDB) -> None:
    seen = [answer(db, pair(i), Choice.A) for i in range(3)]
    last = seen[-1].seq
    edit = answer(db, pair(0), Choice.B, supersedes=seen[0].seq)
    dropped = answer(db, pair(1), Choice.INCOMPARABLE, supersedes=seen[1].seq)
    assert (edit.mu, edit.retracts) == ((0.0, 1.0), seen[0].seq)
    assert (dropped.mu, dropped.retracts) == (None, seen[1].seq)
    assert db.labels(after=last) == [edit, dropped]
    assert db.labels() == [seen[2], edit]
    # An edit of the edit: a reader that saw only the original must still drop it.
    final = answer(db, pair(0), Choice.EQUAL, supersedes=edit.seq)
    assert db.labels(after=last) == [replace(edit, mu=None), dropped, final]
    assert db.labels(after=final.seq) == []
    assert db.labels() == [seen[2], final]


def replay(labels: list[Label], held: dict[int, Label]) -> None:
    """What a trainer does with labels."""
    for label in labels:
        if label.retracts is not None:
            held.pop(label.retracts, None)
        if label.mu is not None:
            held[label.seq] = label


def test_catching_up_from_any_point_gives_the_same_labels(db: PrefDB) -> None:
    rng = np.random.default_rng(0)
    comparisons = [pair(i) for i in range(4)]
    readers: list[tuple[int, dict[int, Label]]] = [(0, {})]
    for _ in range(60):
        rows = list(db.answers())
        action = rng.integers(3)
        if action == 0 and rows:
            undo_last(db, "person")
        else:
            row = rows[rng.integers(len(rows))] if action == 1 and rows else None
            asked = row.comparison if row else comparisons[rng.integers(4)]
            choice = list(Choice)[rng.integers(4)]
            db.add_answer(asked, choice, teacher="person", supersedes=row.seq if row else None)
        held: dict[int, Label] = {}
        replay(db.labels(), held)
        assert db.n_labels() == len(held), "as counted on from the last time"
        newest = db.read("SELECT max(seq) FROM answer")[0][0]
        readers.append((newest, held))
    final = {label.seq: label for label in db.labels()}
    assert len(final) == db.n_labels() > 0
    for seen, held in readers:
        replay(db.labels(after=seen), held)
        assert held == final


@pytest.mark.parametrize("choice", list(Choice))
@pytest.mark.parametrize("flip", [False, True])
def test_a_choice_survives_each_of_its_forms(choice: Choice, flip: bool) -> None:
    assert choice_of(side_of(choice, flip=flip), flip=flip) == choice
    assert Choice.of_columns(*choice.columns("a's id", "b's id"), "a's id") == choice
    assert Choice.of_columns(*choice.columns("a's id", "b's id"), "b's id") == choice.reversed
    seen = {Choice.A: ("left", "right"), Choice.B: ("right", "left")}.get(choice, (choice.value, choice.value))
    assert (side_of(choice, flip=False), side_of(choice, flip=True)) == seen
    assert Choice.of_columns("retracted", None, "a's id") is None


def test_edit_of_an_answer_that_is_gone_changes_nothing(db: PrefDB) -> None:
    label = answer(db, pair(0), Choice.A)
    undo_last(db, "person")
    for seq in (label.seq, 99):
        with pytest.raises(PrefDBError, match="edit that one"):
            db.add_answer(pair(0), Choice.B, teacher="person", supersedes=seq)
    assert db.n_answers() == 0


def test_same_client_id_is_stored_once(db: PrefDB) -> None:
    first = db.add_answer(pair(0), Choice.A, teacher="person", client_id="c1")
    assert db.add_answer(pair(0), Choice.B, teacher="person", client_id="c1") == first
    assert db.add_answer(pair(0), Choice.B, teacher="person", client_id="c2") != first
    assert db.n_answers() == 2


def test_add_answers_is_all_or_nothing(db: PrefDB) -> None:
    good = [(pair(i), Choice.A) for i in range(3)]
    foreign = Comparison(pixel_segment(0, env_id="Other"), pixel_segment(1, env_id="Other"), False)
    too_long = Comparison(pixel_segment(0, steps=26), pixel_segment(1), False)
    for bad in (foreign, too_long):
        with pytest.raises(PrefDBError, match="takes segments of"):
            db.add_answers([*good, (bad, Choice.A)], teacher="synthetic")
        assert db.n_answers() == 0 and not list(db.segments())
    labels = db.add_answers([*good, (pair(3), Choice.INCOMPARABLE)], teacher="synthetic")
    assert labels == [*db.labels(), None] and len(labels) == 4


def test_answers_cannot_be_changed_even_by_other_tools(db: PrefDB) -> None:
    db.add_answer(pair(0), Choice.A, teacher="person")
    for statement in ("UPDATE answer SET teacher = 'x'", "DELETE FROM answer"):
        with pytest.raises(PrefDBError, match="append-only"), db.transaction() as other_tool:
            other_tool.execute(statement)
    assert [row.teacher for row in db.answers()] == ["person"]


WRITER = """
    import sys
    sys.path[:0] = [{root!r}, {tests!r}]
    from test_pref_db import *
    db = PrefDB.open({path!r})
    for i in range(10_000):
        label = answer(db, pair(i), Choice.A)
        print(label.seq, label.comparison_id, flush=True)
"""


def start_writer(path: Path, prelude: str = "") -> subprocess.Popen[str]:
    code = textwrap.dedent(WRITER).format(root=str(ROOT), tests=str(ROOT / "tests"), path=str(path))
    command = [sys.executable, "-c", prelude + code]
    return PreloadedPopen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_every_acknowledged_answer_survives_sigkill_and_is_seen_meanwhile(db: PrefDB) -> None:
    path = db.path
    db.close()
    with start_writer(path) as writer:
        assert writer.stdout is not None
        try:
            acknowledged = [writer.stdout.readline().split() for _ in range(20)]
            with contextlib.closing(PrefDB.open(path, read_only=True)) as reader:
                seen = reader.labels()
                acknowledged.append(writer.stdout.readline().split())
                later = reader.labels(after=seen[-1].seq)
                assert len(seen) >= 20 and len(seen) + len(later) >= 21
                assert reader.segment(seen[0].a).id == pair(0).a.id
        finally:
            os.kill(writer.pid, signal.SIGKILL)
        acknowledged += [line.split() for line in writer.stdout if line.endswith("\n")]
    with contextlib.closing(PrefDB.open(path)) as reopened:
        stored = [[str(label.seq), label.comparison_id] for label in reopened.labels()]
        assert stored[: len(acknowledged)] == acknowledged
        assert answer(reopened, pair(10_001), Choice.B).seq > len(stored)


@pytest.mark.of_a_file
def test_full_disk_is_one_sentence_and_keeps_earlier_labels(db: PrefDB) -> None:
    path = db.path
    db.close()
    # SIGXFSZ is ignored by Python, so a write past the limit fails as on a full disk.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))\n"
    with start_writer(path, limit) as writer:
        out, err = writer.communicate(timeout=20)
    acknowledged = len(out.splitlines())
    assert writer.returncode == 1 and acknowledged > 3
    last = err.strip().splitlines()[-1]
    assert last.startswith("drlhp.errors.PrefDBError") and "free" in last and "earlier labels are safe" in last
    with contextlib.closing(PrefDB.open(path)) as reopened:
        assert reopened.n_labels() == acknowledged


@pytest.mark.of_a_file
def test_writer_goes_on_when_there_is_space_again(db: PrefDB) -> None:
    assert isinstance(db.store, SqliteFile)
    connection = db.store._connection()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 40}")
    stored = 0
    with pytest.raises(PrefDBError, match=r"disk is full: free some space .* earlier labels are safe"):
        for stored in range(1000):
            db.add_answer(pair(stored), Choice.A, teacher="person")
    assert db.n_labels() == stored > 0
    connection.execute("PRAGMA max_page_count = 1000000")
    assert answer(db, pair(stored), Choice.A).seq == stored + 1


@pytest.mark.of_a_file
@pytest.mark.parametrize("read_only", [False, True])
def test_what_cannot_be_opened_is_told_in_one_sentence(db: PrefDB, tmp_path: Path, read_only: bool) -> None:
    db.add_answers([(pair(i), Choice.A) for i in range(30)], teacher="synthetic")
    db.close()
    good = db.path.read_bytes()
    bad = tmp_path / "bad.db"
    assert_fails_with_a_sentence(bad, "does not exist", read_only=read_only)
    for content in (b"", b"hello " * 1000):
        bad.write_bytes(content)
        assert_fails_with_a_sentence(bad, "is not a preference database", read_only=read_only)
    half = len(good) // 2
    junk = np.random.default_rng(0).bytes(half)
    for content in (good[:50], good[:half], good[:4096] + junk + good[4096 + half :], good[:half] + junk):
        bad.write_bytes(content)
        assert_fails_with_a_sentence(bad, "is damaged: restore", read_only=read_only)


@pytest.mark.of_a_file
def test_an_index_that_lacks_a_row_is_damage(db: PrefDB) -> None:
    """By such an index nothing is stored twice."""
    answer(db, pair(0), Choice.A)
    assert isinstance(db.store, SqliteFile)
    connection = db.store._connection()
    connection.execute("PRAGMA writable_schema = ON")
    of_comparisons = "(SELECT rootpage FROM sqlite_master WHERE name = 'comparison')"
    connection.execute(
        f"UPDATE sqlite_master SET rootpage = {of_comparisons} WHERE type = 'index' AND tbl_name = 'answer'"
    )
    connection.commit()
    db.close()
    assert_fails_with_a_sentence(db.path, "is damaged: restore", read_only=True)


@pytest.mark.of_a_file
@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("DELETE FROM meta WHERE key = 'env_id'", "no env_id in meta"),
        ("UPDATE meta SET value = '' WHERE key = 'env_id'", "no env_id in meta"),
        ("UPDATE meta SET value = 'three' WHERE key = 'segment_length'", "no segment_length in meta"),
        ("UPDATE segment SET fps = 0 WHERE number = 1", "row 1 of segment"),
        ("UPDATE segment SET fps = 'fast' WHERE number = 1", "row 1 of segment"),
        ("UPDATE segment SET stack = 'x' WHERE number = 2", "row 2 of segment"),
        ("UPDATE segment SET arrays = 'text' WHERE number = 2", "row 2 of segment"),
        ("DELETE FROM segment WHERE number = 1", "names one that is missing in segment"),
        ("DELETE FROM comparison", "names one that is missing in comparison"),
        ("UPDATE comparison SET segment_b = segment_a", "of comparison"),
        ("INSERT INTO alive VALUES ('run:1', 1.0, 'no JSON')", "of alive"),
        ("DROP TABLE query", "no such table: query"),
        ("UPDATE meta SET value = CAST(x'ff' AS TEXT) WHERE key = 'env_id'", "Could not decode to UTF-8"),
    ],
)
@pytest.mark.parametrize("read_only", [False, True])
def test_rows_that_no_run_has_written_are_damage(db: PrefDB, statement: str, what: str, read_only: bool) -> None:
    db.add_answers([(pair(i), Choice.A) for i in range(2)], teacher="synthetic")
    db.close()
    with contextlib.closing(sqlite3.connect(db.path)) as raw:
        raw.execute(statement)
        raw.commit()
    assert_fails_with_a_sentence(db.path, "is damaged: restore", read_only=read_only)
    with pytest.raises(PrefDBError) as raised:
        PrefDB.open(db.path, read_only=read_only)
    assert what in str(raised.value)


@pytest.mark.of_a_file
def test_other_databases_and_newer_schemas_are_refused(db: PrefDB, tmp_path: Path) -> None:
    db.close()
    with contextlib.closing(sqlite3.connect(db.path)) as raw:
        raw.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    assert_fails_with_a_sentence(db.path, "newer version", read_only=False)
    foreign = tmp_path / "foreign.db"
    with contextlib.closing(sqlite3.connect(foreign)) as raw:
        raw.execute("CREATE TABLE t (x)")
    assert_fails_with_a_sentence(foreign, "is not a preference database", read_only=True)


@pytest.mark.of_a_file
def test_create_never_overwrites(db: PrefDB, tmp_path: Path) -> None:
    db.add_answer(pair(0), Choice.A, teacher="person")
    with pytest.raises(PrefDBError, match="already exists: resume"):
        PrefDB.create(db.path, ENV_ID, LENGTH)
    with pytest.raises(PrefDBError, match=r"cannot be opened: check"):
        PrefDB.create(tmp_path / "no" / "prefs.db", ENV_ID, LENGTH)
    assert db.n_labels() == 1


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that any user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name) / "copy"


@pytest.mark.of_a_file
def test_closed_file_can_be_copied_alone_and_read_in_a_read_only_folder(db: PrefDB, public_folder: Path) -> None:
    folder = public_folder
    with contextlib.closing(PrefDB.open(db.path, read_only=True)):  # keeps the -wal file in being
        db.add_answer(pair(0), Choice.A, teacher="person")
        db.close()
        db.close()
        folder.mkdir()
        (folder / "prefs.db").write_bytes(db.path.read_bytes())
    with pytest.raises(PrefDBError, match="was closed"):
        db.labels()
    folder.chmod(0o555)
    (folder / "prefs.db").chmod(0o444)
    # Permissions do not bind root, so the reader gives that up once its imports are done.
    code = f"""
        import os, sys
        sys.path.insert(0, {str(ROOT)!r})
        from pref_db import PrefDB
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        db = PrefDB.open({str(folder / "prefs.db")!r}, read_only=True)
        print(db.n_labels(), len(list(db.segments())))
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("1 2\n", "")
    assert os.listdir(folder) == ["prefs.db"]


@pytest.mark.of_a_file
def test_reader_in_the_middle_of_a_query_does_not_hold_up_an_answer(db: PrefDB) -> None:
    db.add_answer(pair(0), Choice.A, teacher="person")
    with contextlib.closing(sqlite3.connect(db.path, isolation_level=None)) as other_tool:
        other_tool.execute("BEGIN")
        other_tool.execute("SELECT count(*) FROM answer").fetchone()
        db.add_answer(pair(1), Choice.A, teacher="person")
        assert other_tool.execute("SELECT count(*) FROM answer").fetchone() == (1,)
        other_tool.execute("COMMIT")
        assert other_tool.execute("SELECT count(*) FROM answer").fetchone() == (2,)


@pytest.mark.of_a_file
def test_opening_a_store_twice_leaves_the_locks_that_keep_other_processes_from_its_log(db: PrefDB) -> None:
    """Else the last of them to close would remove the log, and with it each later answer."""
    db.add_answer(pair(0), Choice.A, teacher="person")
    PrefDB.open(db.path, read_only=True).close()
    PrefDB.open(db.path).close()
    visit = f"from pref_db import PrefDB; PrefDB.open({str(db.path)!r}).close()"
    subprocess.run([sys.executable, "-c", visit], cwd=ROOT, check=True)
    db.add_answer(pair(1), Choice.A, teacher="person")
    count = (
        f"import sqlite3; print(*sqlite3.connect({str(db.path)!r}).execute('SELECT count(*) FROM answer').fetchone())"
    )
    seen = subprocess.run([sys.executable, "-c", count], check=True, capture_output=True, text=True)
    assert seen.stdout == "2\n"


def test_read_only_refuses_to_write(db: PrefDB) -> None:
    with (
        contextlib.closing(PrefDB.open(db.path, read_only=True)) as reader,
        pytest.raises(PrefDBError, match="read-only"),
    ):
        reader.add_answer(pair(0), Choice.A, teacher="person")


def test_merge_copies_labels_with_their_history_once(db: PrefDB, tmp_path: Path) -> None:
    shared = answer(db, pair(0), Choice.A)
    with contextlib.closing(PrefDB.create(tmp_path / "other.db", ENV_ID, LENGTH)) as other:
        other.add_answer(Comparison(pair(0).b, pair(0).a, True), Choice.A, teacher="person")
        edited = answer(other, pair(1), Choice.A)
        other.add_answer(pair(1), Choice.B, teacher="person", supersedes=edited.seq)
        other.add_answer(pair(2), Choice.EQUAL, teacher="person")
        undo_last(other, "person")
        other.add_answer(pair(3), Choice.INCOMPARABLE, teacher="person")
        assert merge(db, other.path) == 2  # while the other run still has it open
        assert merge(db, other.path) == 0
    merged = db.labels()
    assert [label.mu for label in merged] == [(1.0, 0.0), (0.0, 1.0), (0.0, 1.0)]
    assert merged[1].comparison_id == shared.comparison_id and merged[1].a == shared.a
    assert db.n_answers() == 4
    assert {segment.id for segment in db.segments()} == {pixel_segment(i).id for i in range(8)}


@pytest.mark.parametrize(("env_id", "length"), [("Other-v0", LENGTH), (ENV_ID, 10)])
def test_merge_of_another_kind_is_refused(db: PrefDB, tmp_path: Path, env_id: str, length: int) -> None:
    PrefDB.create(tmp_path / "other.db", env_id, length).close()
    with pytest.raises(PrefDBError, match=rf"holds {env_id} segments of {length} steps, not"):
        merge(db, tmp_path / "other.db")


def test_validation_split_is_a_fifth_and_never_changes(db: PrefDB) -> None:
    ids = [f"{i:064x}" for i in range(2000)]
    share = sum(map(is_validation, ids)) / len(ids)
    assert 0.17 < share < 0.23
    # Literal values: a changed rule would move labels between the sets of existing runs.
    assert [i for i in range(20) if is_validation(ids[i])] == [4, 9, 10, 11, 16]
    label = answer(db, pair(0), Choice.A)
    assert label.validation == is_validation(label.comparison_id)


def test_unknown_or_damaged_segment_is_told(db: PrefDB) -> None:
    label = answer(db, pair(0), Choice.A)
    with pytest.raises(PrefDBError, match="has no segment"):
        db.segment("nothing")
    stored = db.stored_segment(label.a)
    damaged = bytearray(stored.arrays)
    damaged[len(damaged) // 2] ^= 1
    for bad in ({"arrays": bytes(damaged)}, {"layout": "{}"}, {"layout": stored.layout.replace("28", "999")}):
        with pytest.raises(PrefDBError, match=r"damaged|wrong size"):
            replace(stored, **bad).decode()


@pytest.mark.of_a_file
@pytest.mark.parametrize("is_replaced", [False, True])
def test_answers_of_a_store_that_was_removed_or_replaced_are_saved(
    db: PrefDB, tmp_path: Path, is_replaced: bool
) -> None:
    answer(db, pair(0), Choice.A)
    for suffix in ("", "-wal", "-shm"):
        db.path.with_name(f"prefs.db{suffix}").unlink()
    if is_replaced:
        PrefDB.create(db.path, ENV_ID, LENGTH).close()
    for _ in range(2):  # the second time nothing more is saved
        with pytest.raises(PrefDBError, match=r"removed or replaced .* put .*saved.* in its place"):
            answer(db, pair(1), Choice.A)
    (saved,) = tmp_path.glob("prefs-saved-*.db")
    with contextlib.closing(PrefDB.open(saved, read_only=True)) as copy:
        assert copy.n_labels() == 2, "with the answer after which it was noticed"
    assert db.path.exists() == is_replaced


def test_a_store_whose_folder_is_gone_makes_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    with contextlib.closing(PrefDB.create(folder / "prefs.db", ENV_ID, LENGTH)) as db:
        folder.rename(tmp_path / "b")
        with pytest.raises(PrefDBError, match="its folder was removed or renamed"):
            answer(db, pair(0), Choice.A)
    assert not folder.exists()
    with contextlib.closing(PrefDB.open(tmp_path / "b" / "prefs.db")) as db:
        assert db.n_labels() == 1


def test_hidden_answers_are_seen_again_one_by_one_and_never_stored_twice(db: PrefDB) -> None:
    """As a run that went back to an earlier moment needs it; another reader of the same store shares its horizon."""
    asked = [(pair(n), Choice.A if n % 2 else Choice.INCOMPARABLE) for n in range(6)]
    db.add_answers(asked, teacher="oracle")
    stored = db.read("SELECT * FROM answer")
    with contextlib.closing(PrefDB.open(db.path, read_only=True)) as reader:
        reader.horizon = db.horizon
        db.horizon.move(2, db.newest_seq())
        assert [label.seq for label in reader.labels()] == [2] and db.n_labels() == 1
        assert [row.seq for row in db.answers()] == [1, 2] and [row[0] for row in db.labellers()] == [2]
        db.add_answers(asked[2:4], teacher="oracle")
        assert [label.seq for label in reader.labels(after=2)] == [4] and db.read("SELECT * FROM answer") == stored
        new = (pair(9), Choice.B)  # which the run did not ask about the last time
        db.add_answers([new, asked[4]], teacher="oracle")
        assert [label.seq for label in reader.labels(after=4)] == [6, 7], "then none is hidden any more"
        assert not db.horizon.hides and db.read("SELECT * FROM answer")[:6] == stored
