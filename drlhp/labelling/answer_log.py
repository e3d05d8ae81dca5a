"""The append-only log of what labellers answered: an edit or an undo is a new row that supersedes an earlier one.

Times are unix seconds (UTC).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from drlhp.data.comparison import Choice, Side, choice_of, side_of
from drlhp.data.rows import INSERT_FULL_ANSWER, insert_answer
from drlhp.data.store import Statements, repeated
from drlhp.labelling.answers import PERSON, HistoryRow, Lease, Receipt, Submission, SubmissionError
from drlhp.labelling.leases import Leases
from pref_db import PrefDB

ALL = 2**31  # more answers than there will ever be

ROW = (
    *("seq", "comparison_id", "labeller", "choice", "preferred", "shown_left", "shown_at", "answered_at"),
    *("watched_ms", "replays", "speed", "late", "flag", "note", "lease_token", "supersedes", "segment_a", "segment_b"),
)
SELECT_ROW = f"SELECT {', '.join(ROW)} FROM answer JOIN comparison ON comparison.id = comparison_id"
IS_GIVEN_HERE = "lease_token IN (SELECT token FROM lease)"  # not merged from another store
IS_EFFECTIVE = "choice <> 'retracted' AND NOT EXISTS (SELECT 1 FROM answer AS n WHERE n.supersedes = answer.seq)"
IS_REPEAT = "(SELECT count(*) FROM lease WHERE token = {} AND kind = 'repeat')"
# A labeller's effective answer to the pair of a lease; a repetition of the pair is another question.
CURRENT = f"""
    {SELECT_ROW} WHERE comparison_id = ? AND labeller = ? AND {IS_EFFECTIVE}
    AND {IS_REPEAT.format("answer.lease_token")} = {IS_REPEAT.format("?")}"""


class AnswerLog:
    """The answers of labellers in a store, for one process and thread; every method may raise PrefDBError."""

    def __init__(self, db: PrefDB, clock: Callable[[], float] = time.time) -> None:
        self.db, self.clock, self.leases = db, clock, Leases(db, clock)

    @repeated
    def add(self, submission: Submission) -> Receipt:
        """Stores an answer; it is on disk when this returns. An answer from the future is stored as given now.

        Raises:
            SubmissionError: if a field is out of range, there is no such lease, or another answer has this client_id.
        """
        submission.check()
        now = self.clock()
        ahead = max(0.0, submission.answered_at - now)
        # If the clock was put back while the labeller looked at the pair, the time between would be negative.
        shown_at = min(submission.shown_at, submission.answered_at) - ahead
        submission = replace(submission, shown_at=shown_at, answered_at=submission.answered_at - ahead)
        with self.db.transaction() as db:
            given = db.execute(CURRENT, (submission.comparison_id, submission.labeller, submission.token))
            leases = db.execute(  # `given` is read later: one journey for both
                "SELECT comparison_id, labeller, flip, kind, expires_at, closed_at, segment_a, segment_b, "
                "EXISTS (SELECT 1 FROM answer WHERE client_id = ?) FROM lease "
                "JOIN comparison ON comparison.id = comparison_id WHERE token = ?",
                (submission.client_id, submission.token),
            ).fetchall()
            if not leases or leases[0][-1]:
                one = submission
                about = {"labeller": one.labeller, "lease_token": one.token, "supersedes": one.supersedes}
                known = self._known(one.client_id, one.choice, about)
                if known is not None:
                    return known
            if not leases or leases[0][:2] != (submission.comparison_id, submission.labeller):
                raise SubmissionError("there is no such lease of this labeller for this pair; claim it first.")
            _, _, flip, kind, expires_at, closed_at, a, b, _ = leases[0]
            current = _named(given.fetchall())
            if current is not None and current["seq"] != submission.supersedes:
                return Receipt("conflict", current["seq"], _shown(current))
            if current is None and submission.supersedes is not None:
                raise SubmissionError(f"answer {submission.supersedes} is not current any more; answer the pair anew.")
            late = submission.supersedes is None and (closed_at is not None or expires_at <= now)
            stored, preferred = choice_of(submission.choice, flip=flip).columns(a, b)
            seq = self._insert(db, submission, stored, preferred, b if flip else a, late)
            self.leases.close_answered(submission.labeller, submission.comparison_id, is_repeat=kind == "repeat")
            self._settle(db, submission.comparison_id)
            return Receipt("late" if late else "stored", seq, submission.choice)

    @repeated
    def edit(
        self,
        client_id: str,
        labeller: str,
        seq: int,
        choice: Side,
        *,
        flag: bool | None = None,
        note: str | None = None,
    ) -> Receipt | None:
        """Changes the labeller's own answer `seq`; returns None if that answer is not effective any more.

        Args:
            flag, note: None: unchanged.

        Raises:
            SubmissionError: if a field is out of range, or another answer has this client_id.
        """
        with self.db.transaction():
            known = self._known(client_id, choice, {"labeller": labeller, "supersedes": seq})
            if known is not None:
                return known
            rows = self.history(labeller, before_seq=seq + 1, limit=1)
            if not rows or rows[0].seq != seq:
                return None
            now, row = self.clock(), rows[0]
            # The new row keeps the time for which the labeller looked at the pair before the first answer.
            seconds = 0.0 if row.shown_at is None else row.answered_at - row.shown_at
            about = (client_id, row.token, row.comparison_id, labeller, choice, now - seconds, now)
            looked = (row.watched_ms, row.replays, row.speed)
            said = (row.flag if flag is None else flag, row.note if note is None else note)
            return self.add(Submission(*about, *looked, *said, supersedes=seq))

    def undo(self, labeller: str, client_id: str | None = None) -> Lease | None:
        """Takes the labeller's `newest` answer back; returns its pair's lease, open again, or None without an answer.

        That pair is the labeller's next one, with the same sides.

        client_id: of the caller's choice; a known one changes nothing.
        """
        own_id = client_id or uuid.uuid4().hex  # by which a second try finds what the first one has stored
        return self.db.store.repeated(lambda: self._undo(labeller, own_id))

    def _undo(self, labeller: str, client_id: str) -> Lease | None:
        now = self.clock()
        with self.db.transaction() as db:
            if known := self._row("client_id = ?", (client_id,)):
                return self.leases.get(known["lease_token"])
            row = self.newest(labeller)
            if row is None:
                return None
            blank = Submission(client_id, row.token, row.comparison_id, labeller, "equal", now, now)
            self._insert(db, blank, "retracted", None, row.left, False, supersedes=row.seq)
            self._settle(db, row.comparison_id)
            return self.leases.reopen(row.token)

    def newest(self, labeller: str) -> HistoryRow | None:
        """Returns the answer to the pair that the labeller answered last; an edit of an earlier answer keeps its place.

        Answers that were merged from another store have no lease here, so their pairs cannot be asked again.
        """
        newest = """
            WITH RECURSIVE given(seq, first) AS (
                SELECT seq, seq FROM answer WHERE labeller = ? AND supersedes IS NULL
                UNION ALL SELECT later.seq, first FROM answer AS later JOIN given ON later.supersedes = given.seq
            )
            SELECT seq FROM given JOIN effective_answer USING (seq) JOIN lease ON token = lease_token
            ORDER BY first DESC LIMIT 1"""
        rows = self.db.read(newest, (labeller,))
        return self.history(labeller, before_seq=rows[0][0] + 1, limit=1)[0] if rows else None

    def history(
        self,
        labeller: str | None = None,
        *,
        choice: str | None = None,
        before_seq: int | None = None,
        merged: bool = False,
        limit: int = 50,
    ) -> list[HistoryRow]:
        """Returns effective answers of labellers, newest first: of one labeller, one choice, before a seq, if given.

        Answers that were merged from another store cannot be changed here; only `merged` includes them.
        """
        conditions: list[str] = ["(teacher = ? OR labeller IS NOT NULL)", IS_EFFECTIVE]
        conditions += [] if merged else [IS_GIVEN_HERE]
        values: list[object] = [PERSON]
        if labeller is not None:
            conditions, values = [*conditions, "labeller = ?"], [*values, labeller]
        if choice is not None:
            same = {"left": "preferred = shown_left", "right": "preferred <> shown_left"}
            conditions.append(same.get(choice, "choice = ?"))
            values += [] if choice in same else [choice]
        if before_seq is not None:
            conditions, values = [*conditions, "seq < ?"], [*values, before_seq]
        query = f"{SELECT_ROW} WHERE {' AND '.join(conditions)} ORDER BY seq DESC LIMIT ?"
        return [_history_row(dict(zip(ROW, row, strict=True))) for row in self.db.read(query, (*values, limit))]

    def undone(self) -> dict[str, int]:
        """Returns how many answers each labeller has taken back."""
        taken = "SELECT labeller, count(*) FROM answer WHERE choice = 'retracted' AND labeller IS NOT NULL"
        return dict(self.db.read(f"{taken} GROUP BY labeller"))

    def since(self, time: float, *, by: str | None = None, not_by: str | None = None) -> bool:
        """Returns whether a labeller has answered here since then: this one, or any but that one."""
        who, labeller = ("labeller = ?", by) if by is not None else ("labeller <> ?", not_by)
        answered = f"SELECT 1 FROM answer WHERE {who} AND answered_at > ? AND {IS_GIVEN_HERE} LIMIT 1"
        return bool(self.db.read(answered, (labeller, time)))

    def _known(self, client_id: str, choice: Side, about: Mapping[str, object]) -> Receipt | None:
        """Returns the outcome of an earlier submission with this id; None if there was none.

        Raises:
            SubmissionError: if that was another answer. A sender that counts its answers from 1 at each start would
                otherwise lose those of its second start.
        """
        row = self._row("client_id = ?", (client_id,))
        if row is None:
            return None
        if _shown(row) != choice or any(row[name] != value for name, value in about.items()):
            raise SubmissionError(f"client_id {client_id} is that of another answer; make a new one for each.")
        return Receipt("known", row["seq"], _shown(row))

    def _row(self, where: str, values: tuple) -> dict[str, Any] | None:
        """Returns an answer with the segments of its comparison."""
        return _named(self.db.read(f"{SELECT_ROW} WHERE {where}", values))

    @staticmethod
    def _insert(
        db: Statements,
        submission: Submission,
        stored: str,
        preferred: str | None,
        left: str,
        late: bool,
        *,
        supersedes: int | None = None,
    ) -> int:
        one = submission
        about = (one.client_id, one.comparison_id, one.teacher, stored, preferred, left)
        times = (None if stored == "retracted" else one.shown_at, one.answered_at, supersedes or one.supersedes)
        labeller = (one.labeller, one.token, one.watched_ms, one.replays, one.speed, late, one.flag, one.note)
        return insert_answer(db, INSERT_FULL_ANSWER, (*about, *times, *labeller))

    @staticmethod
    def _settle(db: Statements, comparison_id: str) -> None:
        """Marks a query as done while enough people have answered it, even if it was withdrawn before."""
        labellers = "SELECT count(DISTINCT coalesce(labeller, '')) FROM effective_answer WHERE comparison_id = ?"
        state = f"CASE WHEN ({labellers}) >= need THEN 'done' ELSE 'ready' END"
        db.execute(f"UPDATE query SET state = {state} WHERE comparison_id = ?", (comparison_id, comparison_id))


def _named(rows: Sequence[tuple]) -> dict[str, Any] | None:
    """Returns the first row of a `SELECT_ROW`, if there is one."""
    return dict(zip(ROW, rows[0], strict=True)) if rows else None


def _history_row(row: Mapping[str, Any]) -> HistoryRow:
    return HistoryRow(
        seq=row["seq"],
        comparison_id=row["comparison_id"],
        labeller=row["labeller"] or "",
        choice=_shown(row),
        left=row["shown_left"],
        right=row["segment_b"] if row["shown_left"] == row["segment_a"] else row["segment_a"],
        token=row["lease_token"] or "",
        shown_at=row["shown_at"],
        answered_at=row["answered_at"],
        watched_ms=row["watched_ms"],
        replays=row["replays"],
        speed=row["speed"],
        late=bool(row["late"]),
        flag=bool(row["flag"]),
        note=row["note"],
    )


def _shown(row: Mapping[str, Any]) -> str:
    """Returns the choice of a row as the labeller saw it; `retracted` if it takes an answer back."""
    choice = Choice.of_columns(row["choice"], row["preferred"], row["segment_a"])
    return "retracted" if choice is None else side_of(choice, flip=row["shown_left"] != row["segment_a"])
