"""The store: segments, comparisons and answers of one run, in a SQLite file or a PostgreSQL database.

Answers are append-only: an undo or an edit is a new row that supersedes an earlier one. So nothing that a person said
is lost, and a reader that remembers the last `seq` it saw can always catch up.
"""

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from drlhp.data.asked import Asked
from drlhp.data.comparison import Answer, Choice, Comparison, Label
from drlhp.data.counts import Counter
from drlhp.data.horizon import Horizon
from drlhp.data.rows import (
    ANSWER_COLUMNS,
    IF_NEW,
    INSERT_ANSWER,
    INSERT_COMPARISON,
    INSERT_FULL_ANSWER,
    INSERT_SEGMENT,
    LABELLER_COLUMNS,
    NO_LABELLER,
    SEGMENT_COLUMNS,
    SELECT_LABEL,
    answer_row,
    insert_answer,
    label_of,
    segment_row,
)
from drlhp.data.segment import CompressedSegment, Segment
from drlhp.data.sqlite_file import SqliteFile
from drlhp.data.store import Statements, Store, link_of, repeated
from drlhp.data.views import STATES_MAGIC
from drlhp.errors import PrefDBError, UnknownSegmentError


def store_path(place: Path) -> Path:
    """Returns the prefs.db of a folder, or that file itself."""
    return place / "prefs.db" if place.is_dir() else place


@dataclass(frozen=True, kw_only=True)
class AnswerRow(Answer):
    """An effective answer as stored."""

    seq: int
    _db: "PrefDB" = field(repr=False, compare=False)

    @cached_property
    def comparison(self) -> Comparison:
        """Returns the question with its segments, which are read at the first use."""
        return Comparison(self._db.segment(self.a), self._db.segment(self.b), self.flip)


def _known(db: Statements, comparison: Comparison, client_id: str, horizon: Horizon) -> int | None:
    """Returns the seq of a known client_id, or of an answer to the comparison that is still hidden; None if none is."""
    (seq,) = db.execute("SELECT min(seq) FROM answer WHERE client_id = ?", (client_id,)).fetchone()
    if seq is None and horizon.hides:
        query = "SELECT min(seq) FROM answer WHERE comparison_id = ? AND seq > ?"
        (seq,) = db.execute(query, (comparison.id, horizon.seq)).fetchone()
    return None if seq is None else int(seq)


def _effective_answer(db: "PrefDB", row: tuple) -> AnswerRow:
    """Returns the answer of a row: seq, the comparison's segments, ANSWER_COLUMNS and LABELLER_COLUMNS."""
    seq, a, b, client_id, comparison_id, teacher, stored, preferred, left, shown_at, answered_at, _, *rest = row
    labeller, _, watched_ms, replays, speed, late, flag, note = rest
    choice = Choice.of_columns(stored, preferred, a)
    assert choice is not None, "a retraction is no effective answer"
    return AnswerRow(
        seq=seq,
        client_id=client_id,
        comparison_id=comparison_id,
        a=a,
        b=b,
        choice=choice,
        flip=left != a,
        teacher=teacher,
        shown_at=shown_at,
        answered_at=answered_at,
        labeller=labeller,
        watched_ms=watched_ms,
        replays=replays,
        speed=speed,
        late=bool(late),
        flag=bool(flag),
        note=note,
        _db=db,
    )


class PrefDB:
    """The segments, comparisons and answers of one run; use `create` or `open`.

    One object belongs to one thread; several processes may each open the store, and write in turns. A reader sees every
    committed answer. Every method raises PrefDBError if the store cannot be read or written, or after `close`.
    """

    def __init__(self, store: Store) -> None:
        self.store, self.path, self.version = store, store.path, store.version
        self.read, self.transaction, self.close = store.read, store.transaction, store.close
        self.back_up, self.check_place, self.last_seq_given = store.back_up, store.check_place, store.last_seq_given
        meta = dict(self.read("SELECT key, value FROM meta"))
        self.env_id: str = meta["env_id"]
        self.segment_length = int(meta["segment_length"])
        self.run_id: str = meta.get("run_id", "")  # of the run that made it; "" in older stores, and in those of no run
        self.horizon = Horizon()
        self._counter = Counter(store)

    @classmethod
    def create(cls, path: str | Path, env_id: str, segment_length: int, run_id: str = "") -> "PrefDB":
        """Creates a file for segments of at most `segment_length` steps; never overwrites one.

        Args:
            run_id: names the run that resumes with this store, and with no other one.
        """
        meta = {"env_id": env_id, "segment_length": str(segment_length), "run_id": run_id}
        return cls(SqliteFile.create(Path(path), meta))

    @classmethod
    def open(cls, path: str | Path, *, read_only: bool = False, patience: float | None = None) -> "PrefDB":
        """Opens a file, or the database that a link leads to.

        Args:
            patience: seconds to wait for a database that does not answer any more; None: a minute.

        Raises:
            PrefDBError: it is missing, damaged, newer or something else, or cannot be reached.
        """
        path = Path(path)
        if not path.is_file():
            raise PrefDBError(f"{path} does not exist: give the folder of a run, or its prefs.db")
        if (address := link_of(path)) is None:
            return cls(SqliteFile.open(path, read_only=read_only))
        from drlhp.data.postgres import PATIENCE, PostgresSchema  # only who uses it needs its package

        return cls(PostgresSchema.open(path, address, read_only=read_only, patience=patience or PATIENCE))

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
        """Stores an answer; it is on disk when this returns. Times are unix seconds (answered_at: None means now).

        Args:
            client_id: of the sender's choice; a known one changes nothing, and the stored answer is returned.
            supersedes: seq of the answer that this one edits.

        Returns None if the trainer has nothing to do, because an incomparable answer edits nothing.
        """
        own_id = client_id or uuid.uuid4().hex  # by which a second try finds what the first one has stored

        def add() -> Label | None:
            with self.transaction() as db:
                times = (shown_at, answered_at)
                seq = self._insert(db, comparison, Choice(choice), teacher, own_id, times, supersedes)
                return self._stored_label(seq)

        return self.store.repeated(add)

    def add_answers(self, answers: Sequence[tuple[Comparison, Choice]], *, teacher: str) -> list[Label | None]:
        """Stores many answers in one transaction, all or none; returns what `add_answer` does, in the same order."""
        own_ids = [uuid.uuid4().hex for _ in answers]  # by which a second try finds what the first one has stored

        def add() -> list[Label | None]:
            with self.transaction() as db:
                named, times = zip(answers, own_ids, strict=True), (None, None)
                seqs = [self._insert(db, one, Choice(by), teacher, own_id, times, None) for (one, by), own_id in named]
                if self.horizon.hides:
                    self.horizon.move(max([self.horizon.seq, *seqs]), self.newest_seq())
                return [self._stored_label(seq) for seq in seqs]

        return self.store.repeated(add)

    def add_exported(self, answers: Iterable[Answer]) -> None:
        """Stores effective answers of another store, all or none; their segments are stored already."""
        with self.transaction() as db:
            for answer in answers:
                db.execute(INSERT_COMPARISON + IF_NEW, (answer.comparison_id, answer.a, answer.b))
                db.execute(INSERT_FULL_ANSWER, answer_row(answer))

    def labels(self, after: int = 0) -> list[Label]:
        """Returns, in order, what a reader that has seen every answer up to seq `after` needs to catch up.

        These are the effective labels with a greater seq, and retractions (mu None) of answers that it has seen.
        """
        labels = []
        for row in self.read(f"{SELECT_LABEL} WHERE seq > ? AND seq <= ? ORDER BY seq", (after, self.horizon.seq)):
            effective, label = row[-1], label_of(row)
            if effective and label.mu is not None:
                labels.append(label)
            elif label.retracts is not None and label.retracts <= after:
                # Even if this row was superseded itself, the answer that it took back stays taken back.
                retraction = (label.seq, label.comparison_id, label.a, label.b, None, label.validation)
                labels.append(Label(*retraction, label.retracts))
        return labels

    def stored_segment(self, segment_id: str) -> CompressedSegment:
        """Returns a segment that stays compressed in memory. Raises PrefDBError if it is unknown."""
        columns = "stack, policy_step, seed, fps, layout, arrays"
        rows = self.read(f"SELECT {columns} FROM segment WHERE id = ?", (segment_id,))
        if not rows:
            raise UnknownSegmentError(f"{self.path} has no segment {segment_id}: use the prefs.db of that label")
        return CompressedSegment(self.env_id, *rows[0])

    def segment(self, segment_id: str) -> Segment:
        """Returns a segment with its view clip. Raises PrefDBError if it is unknown."""
        stored = self.stored_segment(segment_id)
        segment = stored.decode(self.read("SELECT view FROM segment WHERE id = ?", (segment_id,))[0][0])
        return replace(segment, given_id=segment_id)

    def segments(self) -> Iterator[Segment]:
        """Yields every stored segment, newest last, one in memory at a time."""
        for (segment_id,) in self.read("SELECT id FROM segment ORDER BY number"):
            yield self.segment(segment_id)

    def answers(self) -> Iterator[AnswerRow]:
        """Yields every effective answer in order, incomparable ones included."""
        source = "effective_answer JOIN comparison ON comparison.id = comparison_id"
        columns = f"segment_a, segment_b, {ANSWER_COLUMNS}, {LABELLER_COLUMNS if self.version > 1 else NO_LABELLER}"
        for row in self.read(f"SELECT seq, {columns} FROM {source} WHERE seq <= ? ORDER BY seq", (self.horizon.seq,)):
            yield _effective_answer(self, row)

    def newest_seq(self) -> int:
        """Returns the seq of the newest row of answers; 0 if there is none."""
        return self.read("SELECT coalesce(max(seq), 0) FROM answer")[0][0]

    def changes(self, after: int) -> list[tuple[int, str, Choice | None]]:
        """Returns seq, comparison id and choice of every row after that seq; a retraction has the choice None."""
        columns = "seq, comparison_id, choice, preferred, segment_a"
        source = "answer JOIN comparison ON id = comparison_id"
        rows = self.read(f"SELECT {columns} FROM {source} WHERE seq > ? ORDER BY seq", (after,))
        return [(seq, comparison_id, Choice.of_columns(*stored)) for seq, comparison_id, *stored in rows]

    def has_preference(self) -> bool:
        """Returns whether any answer prefers one of its segments."""
        return bool(self.read("SELECT 1 FROM answer WHERE preferred IS NOT NULL LIMIT 1"))

    def labellers(self) -> list[tuple[int, str, str, str | None]]:
        """Returns seq, labeller, comparison id and preferred segment's id (or None) of every effective label.

        The labeller is a person's nickname or a synthetic teacher's name.
        """
        who = "coalesce(labeller, teacher)" if self.version > 1 else "teacher"
        columns = f"seq, {who}, comparison_id, preferred"
        query = f"SELECT {columns} FROM effective_answer WHERE choice <> 'incomparable' AND seq <= ? ORDER BY seq"
        return self.read(query, (self.horizon.seq,))

    @repeated
    def add_segments(self, segments: Sequence[Segment]) -> None:
        """Stores segments without asking about them, in one commit; stored segments stay as they are."""
        with self.transaction() as db:
            for segment in segments:
                self.insert_segment(db, segment)

    def segment_ids(self) -> list[str]:
        """Returns the ids of all stored segments, newest last."""
        return [row[0] for row in self.read("SELECT id FROM segment ORDER BY number")]

    def policy_step(self, segment_id: str) -> int:
        """Returns how many agent steps the policy had taken when the segment was cut."""
        return self.read("SELECT policy_step FROM segment WHERE id = ?", (segment_id,))[0][0]

    def pair(self, comparison_id: str) -> tuple[str, str]:
        """Returns the ids of a comparison's segments, as the pair was first asked."""
        a, b = self.read("SELECT segment_a, segment_b FROM comparison WHERE id = ?", (comparison_id,))[0]
        return a, b

    def asked(self) -> Asked:
        """Returns which comparisons were ever asked."""
        return Asked.read(self.store)

    def n_labels(self) -> int:
        """Returns how many effective answers train the predictor."""
        if self.horizon.hides:
            query = "SELECT count(*) FROM effective_answer WHERE choice <> 'incomparable' AND seq <= ?"
            return self.read(query, (self.horizon.seq,))[0][0]
        return self._counter.count()[0]

    def n_answers(self) -> int:
        """Returns how many effective answers there are, incomparable ones included."""
        return self._counter.count()[1]

    def _insert(
        self,
        db: Statements,
        comparison: Comparison,
        choice: Choice,
        teacher: str,
        client_id: str,
        times: tuple[float | None, float | None],
        supersedes: int | None,
    ) -> int:
        """Inserts an answer with its comparison and segments; returns its seq, or a known client_id's."""
        if (known := _known(db, comparison, client_id, self.horizon)) is not None:
            return known
        self.insert_comparison(db, comparison)
        a, b = comparison.a.id, comparison.b.id
        if supersedes is not None:
            query = "SELECT 1 FROM effective_answer WHERE seq = ? AND comparison_id = ?"
            if not db.execute(query, (supersedes, comparison.id)).fetchone():
                raise PrefDBError(f"answer {supersedes} is not this pair's current one: edit that one")
        shown_at, answered_at = times
        answered_at = time.time() if answered_at is None else answered_at
        left = b if comparison.flip else a
        values = (client_id, comparison.id, teacher, *choice.columns(a, b), left)
        return insert_answer(db, INSERT_ANSWER, (*values, shown_at, answered_at, supersedes))

    def insert_comparison(self, db: Statements, comparison: Comparison) -> None:
        """Inserts the question and its segments, if they are new, in the caller's transaction."""
        for segment in (comparison.a, comparison.b):
            self.insert_segment(db, segment)
        db.execute(INSERT_COMPARISON + IF_NEW, (comparison.id, comparison.a.id, comparison.b.id))

    def insert_segment(self, db: Statements, segment: Segment) -> None:
        """Inserts a segment, or the drawn clip that a stored one lacks, in the caller's transaction."""
        if segment.env_id != self.env_id or len(segment) > self.segment_length:
            theirs, ours = f"{segment.env_id}, {len(segment)} steps", f"{self.env_id}, {self.segment_length}"
            raise PrefDBError(f"{self.path} takes segments of {ours}, not {theirs}: use that run's prefs.db")
        # Looked up first, because compressing a segment that is stored already would be wasted.
        stored = db.execute("SELECT substr(view, 1, 4) FROM segment WHERE id = ?", (segment.id,)).fetchone()
        if stored is None:
            db.execute(INSERT_SEGMENT, segment_row(segment))
        elif stored[0] == STATES_MAGIC and segment.is_drawn:
            db.execute("UPDATE segment SET view = ? WHERE id = ?", (segment.view, segment.id))

    def _stored_label(self, seq: int) -> Label | None:
        label = label_of(self.read(f"{SELECT_LABEL} WHERE seq = ?", (seq,))[0])
        return None if label.mu is None and label.retracts is None else label


def merge(into: PrefDB, other_path: str | Path) -> int:
    """Copies another run's database into this one, all or nothing; returns how many labels that added.

    Answers get new seqs; answers that are stored already stay as they are. Raises PrefDBError if the other database is
    of another environment or segment length.
    """
    with contextlib.closing(PrefDB.open(other_path, read_only=True)) as other:
        theirs, ours = (f"{db.env_id} segments of {db.segment_length} steps" for db in (other, into))
        if theirs != ours:
            raise PrefDBError(f"{other.path} holds {theirs}, not {ours}: give labels of the same kind")
        before = into.n_labels()
        # Answers first: their comparisons and segments were committed with them, even if that run still goes on.
        columns = f"{ANSWER_COLUMNS}, {LABELLER_COLUMNS if other.version > 1 else NO_LABELLER}"
        answers = other.read(f"SELECT seq, {columns} FROM answer ORDER BY seq")
        comparisons = other.read("SELECT id, segment_a, segment_b FROM comparison")
        with into.transaction() as db:
            for (number,) in other.read("SELECT number FROM segment ORDER BY number"):
                rows = other.read(f"SELECT {SEGMENT_COLUMNS} FROM segment WHERE number = ?", (number,))
                db.execute(INSERT_SEGMENT + IF_NEW, rows[0])
            db.executemany(INSERT_COMPARISON + IF_NEW, comparisons)
            _copy_answers(db, answers)
        return into.n_labels() - before


def _copy_answers(db: Statements, answers: list[tuple]) -> None:
    """Inserts rows of another store, seq first, with new seqs."""
    here = dict(db.execute("SELECT client_id, seq FROM answer"))
    seqs: dict[int | None, int | None] = {None: None}  # their seq -> ours
    for seq, client_id, *values in answers:
        if client_id in here:
            seqs[seq] = here[client_id]
        else:
            supersedes = 7  # its place among the values
            values[supersedes] = seqs[values[supersedes]]
            seqs[seq] = insert_answer(db, INSERT_FULL_ANSWER, (client_id, *values))
