"""Trajectory segments, comparisons and labels, and the SQLite file (one per run) that keeps them.

Answers are append-only: an undo or an edit is a new row that supersedes an earlier one, so nothing a person
said is ever lost and a reader that remembers the last `seq` it saw can always catch up.
"""

import contextlib
import json
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from drlhp.data.comparison import Choice, Comparison, Label, is_validation
from drlhp.data.schema import APPLICATION_ID, SCHEMA_VERSION, migrate
from drlhp.data.segment import CompressedSegment, Segment
from drlhp.data.views import STATES_MAGIC, _compress
from drlhp.errors import PrefDBError, UnknownSegmentError

BUSY_SECONDS = 10.0
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for a formula at the start of a cell

SEGMENT_COLUMNS = "id, length, stack, policy_step, seed, fps, layout, arrays, view"
INSERT_SEGMENT = f"INSERT INTO segment ({SEGMENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_COMPARISON = "INSERT INTO comparison (id, segment_a, segment_b) VALUES (?, ?, ?)"
IF_NEW = " ON CONFLICT (id) DO NOTHING"
ANSWER_COLUMNS = "client_id, comparison_id, teacher, choice, preferred, shown_left, shown_at, answered_at, supersedes"
INSERT_ANSWER = f"INSERT INTO answer ({ANSWER_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
# What a labeller's page or terminal tells besides; see label_queue.
LABELLER_COLUMNS = "labeller, lease_token, watched_ms, replays, speed, late, flag, note"
NO_LABELLER = "NULL, NULL, NULL, 0, 1.0, 0, 0, ''"  # the same of a file of schema version 1
INSERT_FULL_ANSWER = f"INSERT INTO answer ({ANSWER_COLUMNS}, {LABELLER_COLUMNS}) VALUES ({', '.join('?' * 17)})"
SELECT_LABEL = """
    SELECT seq, comparison_id, segment_a, segment_b, choice, preferred, supersedes,
        NOT EXISTS (SELECT 1 FROM answer AS newer WHERE newer.supersedes = answer.seq)
    FROM answer JOIN comparison ON comparison.id = comparison_id
"""


def store_path(place: Path) -> Path:
    """The prefs.db of a folder, or that file itself."""
    return place / "prefs.db" if place.is_dir() else place


def spreadsheet_cell(value: Any) -> Any:
    """A value for a spreadsheet, which must not take it for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _segment_row(segment: Segment) -> tuple[object, ...]:
    """The values of SEGMENT_COLUMNS; int() and float() because SQLite would store numpy scalars as blobs."""
    # Widest type first: then every array starts at a multiple of its item size.
    arrays = {"actions": segment.actions, "rewards": segment.rewards, "observations": segment.observations}
    layout = json.dumps({name: [array.dtype.str, array.shape] for name, array in arrays.items()})
    data = _compress(b"".join(array.tobytes() for array in arrays.values()))
    numbers = (len(segment), int(segment.stack), int(segment.policy_step), int(segment.seed))
    return (segment.id, *numbers, float(segment.fps), layout, data, segment.view)


@dataclass(frozen=True)
class AnswerRow:
    """An effective answer as stored; times are unix seconds. `a` and `b` are segment ids."""

    seq: int
    comparison_id: str
    a: str
    b: str
    choice: Choice
    flip: bool
    teacher: str
    shown_at: float | None
    answered_at: float
    _db: "PrefDB" = field(repr=False, compare=False)

    @cached_property
    def comparison(self) -> Comparison:
        """The question with its segments, read from the database when first asked for."""
        return Comparison(self._db.segment(self.a), self._db.segment(self.b), self.flip)


def _mu(choice: str, preferred: str | None, a: str) -> tuple[float, float] | None:
    if choice == "preferred":
        return (1.0, 0.0) if preferred == a else (0.0, 1.0)
    return (0.5, 0.5) if choice == "equal" else None


def _label(row: tuple) -> Label:
    """A Label from a row of SELECT_LABEL."""
    seq, comparison_id, a, b, choice, preferred, supersedes, _ = row
    mu = _mu(choice, preferred, a)
    return Label(seq, comparison_id, a, b, mu, is_validation(comparison_id), supersedes)


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code, 0 if there is none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _explain(path: Path, error: sqlite3.Error) -> PrefDBError:
    """One sentence with the fix for what SQLite reports about the file at `path`."""
    safe = ", earlier labels are safe"
    fixes = {
        sqlite3.SQLITE_FULL: f"cannot grow, the disk is full: free some space and answer again{safe}",
        sqlite3.SQLITE_IOERR: f"cannot be read or written: check the disk and its free space{safe}",
        sqlite3.SQLITE_NOTADB: "is not a preference database: give the prefs.db of a run",
        sqlite3.SQLITE_CORRUPT: "is damaged: restore it from a copy",
        sqlite3.SQLITE_BUSY: "is kept busy by another process: try again, or stop that process",
        sqlite3.SQLITE_READONLY: "cannot be written: check its permissions and its folder's",
        sqlite3.SQLITE_CANTOPEN: "cannot be opened: check permissions, and that no -wal file was left out",
    }
    return PrefDBError(f"{path} {fixes.get(_code(error), f'failed in SQLite ({error}): check the file')}")


def _connect(path: Path, query: str) -> sqlite3.Connection:
    """Connect with every durability setting in place; `query` is the URI's (mode=rw, ...)."""
    uri = f"{path.absolute().as_uri()}?{query}"
    db = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = FULL")  # a committed answer survives a power cut
        db.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        db.close()
        raise
    return db


def _connect_checked(path: Path, query: str) -> sqlite3.Connection:
    """Connect to an existing file. Raises sqlite3.Error, or PrefDBError if it is not ours or is damaged."""
    db = _connect(path, query)
    try:
        if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise PrefDBError(f"{path} is not a preference database: give the prefs.db of a run")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise PrefDBError(f"{path} is from a newer version (schema {version}): update this program")
        if db.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
            raise PrefDBError(f"{path} is damaged: restore it from a copy")
    except BaseException:
        db.close()
        raise
    return db


def _connect_read_only(path: Path) -> sqlite3.Connection:
    try:
        return _connect_checked(path, "mode=ro")
    except sqlite3.OperationalError as error:
        wal = path.with_name(path.name + "-wal")
        # In a folder where SQLite may not create its -shm file only an immutable database can be read. That
        # skips the -wal file, so it is right only where that one holds nothing.
        unwritable = _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        if not unwritable or (wal.exists() and wal.stat().st_size > 0):
            raise
        return _connect_checked(path, "mode=ro&immutable=1")


class PrefDB:
    """The segments, comparisons and answers of one run; use `create` or `open`.

    One object belongs to one thread; several processes may each open the file, and write in turns. Who opens it
    read-only sees every committed answer. Every method raises PrefDBError if the file cannot be read or written, or
    after `close`.
    """

    def __init__(self, path: Path, db: sqlite3.Connection, read_only: bool) -> None:
        self.path = path
        self._db: sqlite3.Connection | None = db
        self._read_only = read_only
        meta = dict(self.read("SELECT key, value FROM meta"))
        self.version = int(self.read("PRAGMA user_version")[0][0])
        self.env_id: str = meta["env_id"]
        self.segment_length = int(meta["segment_length"])

    @classmethod
    def create(cls, path: str | Path, env_id: str, segment_length: int) -> "PrefDB":
        """A new database for segments of at most `segment_length` steps. Never overwrites a file."""
        path = Path(path)
        if path.exists():
            raise PrefDBError(f"{path} already exists: resume that run or choose another run name")
        # Made under another name: a process killed half-way leaves no half-made prefs.db.
        draft = path.with_name(path.name + ".new")
        try:
            draft.unlink(missing_ok=True)
            with contextlib.closing(_connect(draft, "mode=rwc")) as db:
                migrate(db)
                meta = {"env_id": env_id, "segment_length": str(segment_length)}
                db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
                db.execute("PRAGMA journal_mode = WAL")
            os.replace(draft, path)
        except sqlite3.Error as error:
            raise _explain(path, error) from error
        except OSError as error:
            reason = error.strerror
            raise PrefDBError(f"{path} cannot be created ({reason}): choose another folder") from error
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path, *, read_only: bool = False) -> "PrefDB":
        """Open a database. Raises PrefDBError if it is missing, damaged, newer or something else."""
        path = Path(path)
        if not path.is_file():
            raise PrefDBError(f"{path} does not exist: give the folder of a run, or its prefs.db")
        try:
            db = _connect_read_only(path) if read_only else _connect_checked(path, "mode=rw")
            if not read_only:
                migrate(db)
        except sqlite3.Error as error:
            raise _explain(path, error) from error
        return cls(path, db, read_only)

    def close(self) -> None:
        """Fold the write-ahead log into the file, so that it can be copied alone; twice is fine."""
        if self._db is None:
            return
        db, self._db = self._db, None
        if not self._read_only:
            # If the disk is full the log stays beside the file, where the next open finds it.
            with contextlib.suppress(sqlite3.Error):
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()

    def add_answer(
        self,
        comparison: Comparison,
        choice: Choice,
        *,
        teacher: str,
        client_id: str | None = None,
        shown_at: float | None = None,
        answered_at: float | None = None,
        supersedes: int | None = None,
    ) -> Label | None:
        """Store an answer; it is on disk when this returns. Times are unix seconds (answered_at: now).

        supersedes: seq of the answer that this one edits. The same client_id again changes nothing and
        returns the stored answer. Returns None where the trainer has nothing to do (incomparable, no edit).
        """
        with self.transaction() as db:
            times = (shown_at, answered_at)
            seq = self._insert(db, comparison, Choice(choice), teacher, client_id, times, supersedes)
            return self._stored_label(seq)

    def add_answers(self, answers: Sequence[tuple[Comparison, Choice]], *, teacher: str) -> list[Label | None]:
        """Store many answers in one transaction, all or none; results in the same order (see add_answer)."""
        with self.transaction() as db:
            rest = (teacher, None, (None, None), None)
            seqs = [self._insert(db, comparison, Choice(choice), *rest) for comparison, choice in answers]
            return [self._stored_label(seq) for seq in seqs]

    def undo_last(self, teacher: str) -> tuple[Label, Comparison] | None:
        """Take back the teacher's newest effective answer; None if there is none.

        Returns the retraction (mu None, retracts = its seq) and the comparison as it was shown, to ask again.
        """
        with self.transaction() as db:
            newest = "SELECT seq, comparison_id, shown_left FROM effective_answer WHERE teacher = ?"
            row = db.execute(f"{newest} ORDER BY seq DESC LIMIT 1", (teacher,)).fetchone()
            if row is None:
                return None
            undone, comparison_id, left = row
            values = (uuid.uuid4().hex, comparison_id, teacher, "retracted", None, left)
            seq = db.execute(INSERT_ANSWER, (*values, None, time.time(), undone)).lastrowid
            label = _label(self.read(f"{SELECT_LABEL} WHERE seq = ?", (seq,))[0])
            return label, Comparison(self.segment(label.a), self.segment(label.b), flip=left != label.a)

    def labels(self, after: int = 0) -> list[Label]:
        """What a reader that has seen every answer up to seq `after` needs to catch up, in order.

        Effective labels with a greater seq, and the retractions (mu None) of answers that it has seen.
        """
        labels = []
        for row in self.read(f"{SELECT_LABEL} WHERE seq > ? ORDER BY seq", (after,)):
            effective, label = row[-1], _label(row)
            if effective and label.mu is not None:
                labels.append(label)
            elif label.retracts is not None and label.retracts <= after:
                # Also where this row was itself superseded: what it took back stays taken back.
                retraction = (label.seq, label.comparison_id, label.a, label.b, None, label.validation)
                labels.append(Label(*retraction, label.retracts))
        return labels

    def stored_segment(self, segment_id: str) -> CompressedSegment:
        """A segment kept compressed, for holding thousands of them. Raises PrefDBError if it is unknown."""
        columns = "stack, policy_step, seed, fps, layout, arrays"
        rows = self.read(f"SELECT {columns} FROM segment WHERE id = ?", (segment_id,))
        if not rows:
            raise UnknownSegmentError(f"{self.path} has no segment {segment_id}: use the prefs.db of that label")
        return CompressedSegment(self.env_id, *rows[0])

    def segment(self, segment_id: str) -> Segment:
        """A segment with its view clip. Raises PrefDBError if it is unknown."""
        stored = self.stored_segment(segment_id)
        return stored.decode(self.read("SELECT view FROM segment WHERE id = ?", (segment_id,))[0][0])

    def segments(self) -> Iterator[Segment]:
        """Every stored segment, newest last, one in memory at a time."""
        for (segment_id,) in self.read("SELECT id FROM segment ORDER BY number"):
            yield self.segment(segment_id)

    def answers(self) -> Iterator[AnswerRow]:
        """Every effective answer in order, incomparable ones included."""
        columns = "seq, comparison_id, segment_a, segment_b, choice, preferred, shown_left, teacher, shown_at"
        source = "effective_answer JOIN comparison ON comparison.id = comparison_id"
        for row in self.read(f"SELECT {columns}, answered_at FROM {source} ORDER BY seq"):
            seq, comparison_id, a, b, stored, preferred, left, teacher, shown_at, answered_at = row
            choice = Choice("a" if preferred == a else "b") if stored == "preferred" else Choice(stored)
            yield AnswerRow(seq, comparison_id, a, b, choice, left != a, teacher, shown_at, answered_at, self)

    def labellers(self) -> list[tuple[int, str, str, str | None]]:
        """Of every effective answer that gave a label: seq, who gave it, comparison id, preferred segment's id or None.

        A person's nickname, or the name of a teacher that is none.
        """
        who = "coalesce(labeller, teacher)" if self.version > 1 else "teacher"
        columns = f"seq, {who}, comparison_id, preferred"
        return self.read(f"SELECT {columns} FROM effective_answer WHERE choice <> 'incomparable' ORDER BY seq")

    def add_segments(self, segments: Sequence[Segment]) -> None:
        """Stores segments about which nobody was asked, in one commit; those that are there are left alone."""
        with self.transaction() as db:
            for segment in segments:
                self.insert_segment(db, segment)

    def segment_ids(self) -> list[str]:
        """Ids of all stored segments, newest last."""
        return [row[0] for row in self.read("SELECT id FROM segment ORDER BY number")]

    def comparison_ids(self) -> set[str]:
        """Ids of every pair that was ever asked about."""
        return {row[0] for row in self.read("SELECT id FROM comparison")}

    def n_labels(self) -> int:
        """Effective answers that train the predictor."""
        return self.read("SELECT count(*) FROM effective_answer WHERE choice <> 'incomparable'")[0][0]

    def n_answers(self) -> int:
        """Effective answers, incomparable ones included."""
        return self.read("SELECT count(*) FROM effective_answer")[0][0]

    def back_up(self, path: Path) -> None:
        """Copies everything to a new file, as it is at one moment, also while other processes write."""
        try:
            self._connection().execute("VACUUM INTO ?", (str(path),))
            with contextlib.closing(_connect(path, "mode=rw")) as copy:
                copy.execute("PRAGMA journal_mode = WAL")  # which the copy does not take over
        except sqlite3.Error as error:
            raise _explain(path, error) from error

    def merge_from(self, other_path: str | Path) -> int:
        """Copy what another run's database holds, all or nothing; returns how many labels that added.

        Answers get new seqs; those that are here already are left alone. Raises PrefDBError if the other
        database is of another environment or segment length.
        """
        with contextlib.closing(PrefDB.open(other_path, read_only=True)) as other:
            theirs, ours = (f"{db.env_id} segments of {db.segment_length} steps" for db in (other, self))
            if theirs != ours:
                raise PrefDBError(f"{other.path} holds {theirs}, not {ours}: give labels of the same kind")
            before = self.n_labels()
            # Answers first: what they refer to was committed with them, even if that run is still going.
            columns = f"{ANSWER_COLUMNS}, {LABELLER_COLUMNS if other.version >= 2 else NO_LABELLER}"
            answers = other.read(f"SELECT seq, {columns} FROM answer ORDER BY seq")
            comparisons = other.read("SELECT id, segment_a, segment_b FROM comparison")
            with self.transaction() as db:
                for (number,) in other.read("SELECT number FROM segment ORDER BY number"):
                    rows = other.read(f"SELECT {SEGMENT_COLUMNS} FROM segment WHERE number = ?", (number,))
                    db.execute(INSERT_SEGMENT + IF_NEW, rows[0])
                db.executemany(INSERT_COMPARISON + IF_NEW, comparisons)
                self._copy_answers(db, answers)
            return self.n_labels() - before

    @staticmethod
    def _copy_answers(db: sqlite3.Connection, answers: list[tuple]) -> None:
        here = dict(db.execute("SELECT client_id, seq FROM answer"))
        seqs: dict[int | None, int | None] = {None: None}  # their seq -> ours
        for seq, client_id, *values in answers:
            if client_id in here:
                seqs[seq] = here[client_id]
            else:
                supersedes = 7  # its place among the values
                values[supersedes] = seqs[values[supersedes]]
                seqs[seq] = db.execute(INSERT_FULL_ANSWER, (client_id, *values)).lastrowid

    def _insert(
        self,
        db: sqlite3.Connection,
        comparison: Comparison,
        choice: Choice,
        teacher: str,
        client_id: str | None,
        times: tuple[float | None, float | None],
        supersedes: int | None,
    ) -> int:
        """Insert an answer and what it refers to; returns its seq (the stored one for a known client_id)."""
        if client_id is not None:
            known = db.execute("SELECT seq FROM answer WHERE client_id = ?", (client_id,)).fetchone()
            if known:
                return known[0]
        self.insert_comparison(db, comparison)
        a, b = comparison.a.id, comparison.b.id
        if supersedes is not None:
            query = "SELECT 1 FROM effective_answer WHERE seq = ? AND comparison_id = ?"
            if not db.execute(query, (supersedes, comparison.id)).fetchone():
                raise PrefDBError(f"answer {supersedes} is not this pair's current one: edit that one")
        stored, preferred = choice.value, None
        if choice in (Choice.A, Choice.B):
            stored, preferred = "preferred", a if choice == Choice.A else b
        shown_at, answered_at = times
        answered_at = time.time() if answered_at is None else answered_at
        left = b if comparison.flip else a
        values = (client_id or uuid.uuid4().hex, comparison.id, teacher, stored, preferred, left)
        seq = db.execute(INSERT_ANSWER, (*values, shown_at, answered_at, supersedes)).lastrowid
        assert seq is not None
        return seq

    def insert_comparison(self, db: sqlite3.Connection, comparison: Comparison) -> None:
        """Inserts the question and its segments, if they are new, in the caller's transaction."""
        for segment in (comparison.a, comparison.b):
            self.insert_segment(db, segment)
        db.execute(INSERT_COMPARISON + IF_NEW, (comparison.id, comparison.a.id, comparison.b.id))

    def insert_segment(self, db: sqlite3.Connection, segment: Segment) -> None:
        if segment.env_id != self.env_id or len(segment) > self.segment_length:
            theirs, ours = f"{segment.env_id}, {len(segment)} steps", f"{self.env_id}, {self.segment_length}"
            raise PrefDBError(f"{self.path} takes segments of {ours}, not {theirs}: use that run's prefs.db")
        # Looked up first: compressing a segment that is there already would be wasted.
        stored = db.execute("SELECT substr(view, 1, 4) FROM segment WHERE id = ?", (segment.id,)).fetchone()
        if stored is None:
            db.execute(INSERT_SEGMENT, _segment_row(segment))
        elif stored[0] == STATES_MAGIC and segment.is_drawn:
            db.execute("UPDATE segment SET view = ? WHERE id = ?", (segment.view, segment.id))

    def _stored_label(self, seq: int) -> Label | None:
        label = _label(self.read(f"{SELECT_LABEL} WHERE seq = ?", (seq,))[0])
        return None if label.mu is None and label.retracts is None else label

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise PrefDBError(f"{self.path} was closed: open it again")
        return self._db

    def read(self, query: str, values: Sequence[object] = ()) -> list[tuple]:
        """All rows of a query at once: an unfinished statement would keep the write-ahead log from being folded in."""
        try:
            return self._connection().execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise _explain(self.path, error) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit (with fsync) at the end, or leave the file as it was.

        Within another one it is part of that, which commits; or is undone alone, if it fails.

        Results are read inside: an error after the commit would make the caller store the answer again.
        """
        db = self._connection()
        if self._read_only:
            raise PrefDBError(f"{self.path} was opened read-only: open it for writing to add answers")
        is_part = db.in_transaction
        done = False
        try:
            db.execute("SAVEPOINT part" if is_part else "BEGIN IMMEDIATE")
            yield db
            db.execute("RELEASE part" if is_part else "COMMIT")
            done = True
        except sqlite3.Error as error:
            raise _explain(self.path, error) from error
        finally:
            if db.in_transaction and not done:
                with contextlib.suppress(sqlite3.Error):
                    db.execute("ROLLBACK TO part" if is_part else "ROLLBACK")
