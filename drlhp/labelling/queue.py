"""What people are asked, in what order, and who looks at what now: the queue in prefs.db that all processes share.

The run submits comparisons; a page's server, a window or a terminal claims them for a labeller, who has each on lease
until it is answered; the answers are labels like any other. Any of these processes may die, restart or be absent.
Times are unix seconds (UTC).
"""

from __future__ import annotations

import shutil
import sqlite3
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from drlhp.data.comparison import Comparison
from drlhp.labelling.answers import (
    PERSON,
    Choice,
    Counts,
    HistoryRow,
    Lease,
    Receipt,
    Submission,
    SubmissionError,
    check_labeller,
    flip_of,
)
from drlhp.labelling.notices import Notices
from pref_db import INSERT_FULL_ANSWER, PrefDB

MIN_LEASE_SECONDS, MAX_LEASE_SECONDS = 60.0, 600.0
LEASE_MEDIANS = 3.0  # a lease lasts so many times the labeller's own median time
MEDIAN_OVER = 50  # newest answers of the labeller
REPEAT_AFTER = 20  # pairs that lie between a pair and its repetition
ACTIVE_SECONDS = 600.0  # who answered since then counts as one who labels now
ALL = 2**31  # more answers than there will ever be
LEAST_FREE = 200 * 2**20  # bytes on the store's disk: the last ones are for answers, which cannot be made again

ROW = (
    *("seq", "comparison_id", "labeller", "choice", "preferred", "shown_left", "shown_at", "answered_at"),
    *("watched_ms", "replays", "speed", "late", "flag", "note", "lease_token", "supersedes", "segment_a", "segment_b"),
)
SELECT_ROW = f"SELECT {', '.join(ROW)} FROM answer JOIN comparison ON comparison.id = comparison_id"
IS_GIVEN_HERE = "lease_token IN (SELECT token FROM lease)"  # and not merged from another store
IS_EFFECTIVE = "choice <> 'retracted' AND NOT EXISTS (SELECT 1 FROM answer AS n WHERE n.supersedes = answer.seq)"


def nearly_full(store: Path) -> bool:
    """Whether the store's disk has no room left but for answers."""
    return shutil.disk_usage(store.parent).free < LEAST_FREE


class LabelQueue:
    """The queue in one process and thread; every method may raise PrefDBError.

    Settings it reads: `repeat_share` and `overlap_share`, both 0 unless set. Of a labeller's pairs the first is asked
    again at least 20 pairs later, sides swapped; of the pairs the second is asked of two people, once two are there.
    """

    def __init__(self, db: PrefDB, clock: Callable[[], float] = time.time) -> None:
        self.db, self.clock, self.notices = db, clock, Notices(db, clock)

    def submit(
        self,
        comparisons: Sequence[Comparison],
        *,
        need: int = 1,
        priority: float = 0.0,
        policy_step: int | None = None,
    ) -> None:
        """Stores questions with their segments in one commit; one that is there already is left as it is.

        policy_step: agent steps that the policy had taken; None: when the newer segment was cut.
        """
        insert = "INSERT INTO query VALUES (?, 'normal', ?, ?, '', ?, 'ready', ?) ON CONFLICT DO NOTHING"
        with self.db.transaction() as db:
            for comparison in comparisons:
                self.db.insert_comparison(db, comparison)
                newest = max(comparison.a.policy_step, comparison.b.policy_step)
                step = int(newest if policy_step is None else policy_step)
                db.execute(insert, (comparison.id, int(need), float(priority), step, self.clock()))

    def withdraw(self, older_than_policy_step: int) -> int:
        """Takes back the questions of before that agent step that nobody has seen; returns how many."""
        seen = "SELECT 1 FROM lease WHERE lease.comparison_id = query.comparison_id"
        answered = "SELECT 1 FROM answer WHERE answer.comparison_id = query.comparison_id"
        old = f"state = 'ready' AND policy_step < ? AND NOT EXISTS ({seen}) AND NOT EXISTS ({answered})"
        with self.db.transaction() as db:
            return db.execute(f"UPDATE query SET state = 'withdrawn' WHERE {old}", (older_than_policy_step,)).rowcount

    def retire(self, segment_id: str, reason: str) -> int:
        """Takes back the open questions about a segment that nobody can see; returns how many."""
        about = "SELECT id FROM comparison WHERE ? IN (segment_a, segment_b)"
        with self.db.transaction() as db:
            close = f"UPDATE lease SET closed_at = ? WHERE closed_at IS NULL AND comparison_id IN ({about})"
            db.execute(close, (self.clock(), segment_id))
            retire = (
                f"UPDATE query SET state = 'withdrawn', reason = ? WHERE state = 'ready' AND comparison_id IN ({about})"
            )
            return db.execute(retire, (reason, segment_id)).rowcount

    def claim(self, labeller: str, n: int = 1) -> list[Lease]:
        """Up to n pairs for this labeller: first those on lease already, oldest first, then the best that are ready.

        Best: the highest priority, then the newest policy. What the labeller gave back comes last. No more than labels
        are missing to the goal, if there is one.
        """
        check_labeller(labeller)
        now = self.clock()
        with self.db.transaction() as db:
            # Also those that end too far ahead: the clock was put back, and they would last for ever.
            over = "closed_at IS NULL AND (expires_at <= ? OR expires_at > ?)"
            db.execute(f"UPDATE lease SET closed_at = ? WHERE {over}", (now, now, now + MAX_LEASE_SECONDS))
            own = "SELECT token FROM lease WHERE labeller = ? AND closed_at IS NULL ORDER BY number LIMIT ?"
            tokens = [token for (token,) in db.execute(own, (labeller, n))]
            expires_at = now + self._lease_seconds(db, labeller)
            db.executemany("UPDATE lease SET expires_at = ? WHERE token = ?", [(expires_at, t) for t in tokens])
            while len(tokens) < n and not self._enough(db):
                chosen = self._repeat(db, labeller, len(tokens)) or self._best(db, labeller)
                if chosen is None:
                    break
                comparison_id, flip, kind = chosen
                token = uuid.uuid4().hex
                row = (token, comparison_id, labeller, flip, kind, now, expires_at)
                columns = "token, comparison_id, labeller, flip, kind, granted_at, expires_at"
                db.execute(f"INSERT INTO lease ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
                tokens.append(token)
            return [self._lease(db, token) for token in tokens]

    def renew(self, tokens: Sequence[str]) -> None:
        """Puts off the end of those leases of which nobody has claimed the pair since they were over, if they were."""
        now = self.clock()
        with self.db.transaction() as db:
            for token in tokens:
                live = "token = ? AND closed_at IS NULL"
                row = db.execute(f"SELECT labeller FROM lease WHERE {live}", (token,)).fetchone()
                if row:
                    expires_at = now + self._lease_seconds(db, row[0])
                    db.execute("UPDATE lease SET expires_at = ? WHERE token = ?", (expires_at, token))

    def release(self, tokens: Sequence[str]) -> None:
        """Gives pairs back unanswered."""
        close = "UPDATE lease SET closed_at = ? WHERE token = ? AND closed_at IS NULL"
        with self.db.transaction() as db:
            db.executemany(close, [(self.clock(), token) for token in tokens])

    def answer(self, submission: Submission) -> Receipt:
        """Stores an answer; it is on disk when this returns. One of a clock that goes ahead is of now.

        Raises:
            SubmissionError: a field is out of range, there is no such lease, or another answer has this client_id.
        """
        submission.check()
        now = self.clock()
        ahead = max(0.0, submission.answered_at - now)
        # A clock that was put back while the pair was looked at would make that shorter than nothing.
        shown_at = min(submission.shown_at, submission.answered_at) - ahead
        submission = replace(submission, shown_at=shown_at, answered_at=submission.answered_at - ahead)
        with self.db.transaction() as db:
            about = {"labeller": submission.labeller, "lease_token": submission.token}
            known = self._known(db, submission.client_id, {**about, "supersedes": submission.supersedes})
            if known is not None:
                return known
            lease = db.execute(
                "SELECT comparison_id, labeller, flip, kind, expires_at, closed_at, segment_a, segment_b FROM lease "
                "JOIN comparison ON comparison.id = comparison_id WHERE token = ?",
                (submission.token,),
            ).fetchone()
            if lease is None or lease[:2] != (submission.comparison_id, submission.labeller):
                raise SubmissionError("there is no such lease of this labeller for this pair; claim it first.")
            _, _, flip, kind, expires_at, closed_at, a, b = lease
            current = self._current(db, submission.comparison_id, submission.labeller, kind)
            if current is not None and current["seq"] != submission.supersedes:
                return Receipt("conflict", current["seq"], _side(current))
            if current is None and submission.supersedes is not None:
                raise SubmissionError(f"answer {submission.supersedes} is not current any more; answer the pair anew.")
            late = submission.supersedes is None and (closed_at is not None or expires_at <= now)
            left, right = (b, a) if flip else (a, b)
            stored, preferred = submission.choice, {"left": left, "right": right}.get(submission.choice)
            seq = self._insert(db, submission, "preferred" if preferred else stored, preferred, left, late)
            own = "comparison_id = ? AND labeller = ? AND closed_at IS NULL AND (kind = 'repeat') = ?"
            ids = (submission.comparison_id, submission.labeller, kind == "repeat")  # which is another question
            db.execute(f"UPDATE lease SET closed_at = ? WHERE {own}", (now, *ids))
            self._settle(db, submission.comparison_id)
            return Receipt("late" if late else "stored", seq, submission.choice)

    def edit(
        self,
        client_id: str,
        labeller: str,
        seq: int,
        choice: Choice,
        *,
        flag: bool | None = None,
        note: str | None = None,
    ) -> Receipt | None:
        """Changes the labeller's own answer `seq`; None if that is not effective any more.

        Args:
            flag, note: None: as they are.

        Raises SubmissionError if a field is out of range, or another answer has this client_id.
        """
        with self.db.transaction() as db:
            known = self._known(db, client_id, {"labeller": labeller, "supersedes": seq})
            if known is not None:
                return known
            rows = self.history(labeller, before_seq=seq + 1, limit=1)
            if not rows or rows[0].seq != seq:
                return None
            now, row = self.clock(), rows[0]
            # How long the pair was looked at is told of the first answer, not of what was made of it later.
            seconds = 0.0 if row.shown_at is None else row.answered_at - row.shown_at
            about = (client_id, row.token, row.comparison_id, labeller, choice, now - seconds, now)
            looked = (row.watched_ms, row.replays, row.speed)
            said = (row.flag if flag is None else flag, row.note if note is None else note)
            return self.answer(Submission(*about, *looked, *said, supersedes=seq))

    def undo(self, labeller: str) -> Lease | None:
        """Takes the labeller's `newest` answer back; its pair is on lease again, first in line, sides kept.

        None if there is nothing to take back.
        """
        now = self.clock()
        with self.db.transaction() as db:
            row = self.newest(labeller)
            if row is None:
                return None
            blank = Submission(uuid.uuid4().hex, row.token, row.comparison_id, labeller, "equal", now, now)
            self._insert(db, blank, "retracted", None, row.left, False, supersedes=row.seq)
            self._settle(db, row.comparison_id)
            expires_at = now + self._lease_seconds(db, labeller)
            reopen = "UPDATE lease SET closed_at = NULL, expires_at = ? WHERE token = ?"
            db.execute(reopen, (expires_at, row.token))
            return self._lease(db, row.token)

    def newest(self, labeller: str) -> HistoryRow | None:
        """The labeller's answer to the pair that they answered last: a change of an earlier answer keeps its place.

        Answers that were merged from another store have no lease here, so that they cannot be asked again.
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
        """Effective answers of labellers, newest first; of one labeller, of one choice, from before a seq, if given.

        Those that were merged from another store, which cannot be changed here, are left out unless `merged`.
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
        """How many answers each labeller has taken back."""
        taken = "SELECT labeller, count(*) FROM answer WHERE choice = 'retracted' AND labeller IS NOT NULL"
        return dict(self.db.read(f"{taken} GROUP BY labeller"))

    def is_present(self, labeller: str) -> bool:
        """Whether somebody is there by this name: a process says so, or they have pairs before them."""
        leased = "SELECT 1 FROM lease WHERE labeller = ? AND closed_at IS NULL AND expires_at > ? LIMIT 1"
        return labeller in self.notices.labellers() or bool(self.db.read(leased, (labeller, self.clock())))

    def is_active(self, labeller: str) -> bool:
        """Whether somebody labels by this name now: is present, or answered some minutes ago."""
        answered = f"SELECT 1 FROM answer WHERE labeller = ? AND answered_at > ? AND {IS_GIVEN_HERE} LIMIT 1"
        return self.is_present(labeller) or bool(self.db.read(answered, (labeller, self.clock() - ACTIVE_SECONDS)))

    def counts(self) -> Counts:
        """How far the labelling is."""
        now = self.clock()
        leased = (
            "SELECT 1 FROM lease WHERE comparison_id = query.comparison_id AND closed_at IS NULL AND expires_at > ?"
        )
        states = dict(
            self.db.read(
                f"SELECT CASE WHEN state = 'ready' AND EXISTS ({leased}) THEN 'leased' ELSE state END AS s, count(*) "
                "FROM query GROUP BY s",
                (now,),
            )
        )
        free = [states.get(state, 0) for state in ("ready", "leased", "withdrawn")]
        return Counts(self.db.n_labels(), self.db.n_answers(), *free)

    def is_asking(self) -> bool:
        """Whether somebody has a pair before them, which others may have answered already."""
        return bool(
            self.db.read("SELECT 1 FROM lease WHERE closed_at IS NULL AND expires_at > ? LIMIT 1", (self.clock(),))
        )

    def _enough(self, db: sqlite3.Connection) -> bool:
        """Whether the goal is reached with the pairs that are before somebody."""
        goal = self.notices.number("goal")
        (open_leases,) = db.execute("SELECT count(*) FROM lease WHERE closed_at IS NULL").fetchone()
        return 0 < goal <= self.db.n_labels() + open_leases

    def _best(self, db: sqlite3.Connection, labeller: str) -> tuple[str, bool, str] | None:
        """The ready query that is next for this labeller: id, flip, kind."""
        mine = "SELECT 1 FROM {} AS m WHERE m.comparison_id = query.comparison_id AND m.labeller = ?"
        # Whoever has it on lease or has answered it counts once; people who answer late may be more than needed.
        taken = """
            SELECT count(*) FROM (
                SELECT labeller FROM lease WHERE comparison_id = query.comparison_id AND closed_at IS NULL
                UNION SELECT coalesce(labeller, '') FROM effective_answer WHERE comparison_id = query.comparison_id
            )"""
        answered, leased = mine.format("effective_answer"), mine.format("lease")
        free = f"state = 'ready' AND need > ({taken}) AND NOT EXISTS ({answered})"
        order = "ORDER BY priority DESC, policy_step DESC LIMIT 1"
        for had in (leased, f"{leased} AND m.closed_at IS NULL"):  # first what the labeller never had
            select = f"SELECT comparison_id, kind, need FROM query WHERE {free} AND NOT EXISTS ({had}) {order}"
            row = db.execute(select, (labeller, labeller)).fetchone()
            if row is not None:
                comparison_id, kind, need = row
                if kind == "normal" and need == 1 and self._to_overlap(db, labeller, comparison_id):
                    kind = "overlap"
                    db.execute("UPDATE query SET kind = ?, need = 2 WHERE comparison_id = ?", (kind, comparison_id))
                return comparison_id, flip_of(labeller, comparison_id), kind
        return None

    def _to_overlap(self, db: sqlite3.Connection, labeller: str, comparison_id: str) -> bool:
        """Whether a second person should be asked: by the pair's id, where somebody else labels too."""
        share = self.notices.share("overlap_share")
        if int(comparison_id[:8], 16) >= share * 2**32:
            return False
        others = f"SELECT 1 FROM answer WHERE labeller <> ? AND answered_at > ? AND {IS_GIVEN_HERE} LIMIT 1"
        return db.execute(others, (labeller, self.clock() - ACTIVE_SECONDS)).fetchone() is not None

    def _repeat(self, db: sqlite3.Connection, labeller: str, ahead: int) -> tuple[str, bool, str] | None:
        """A pair to ask this labeller again, if it is time: id, the other flip, kind."""
        share = self.notices.share("repeat_share")
        if share <= 0:
            return None
        count = "SELECT count(*), coalesce(sum(kind = 'repeat'), 0) FROM lease WHERE labeller = ?"
        n_leases, n_repeats = db.execute(count, (labeller,)).fetchone()
        if n_repeats >= int(share * (n_leases + 1)):
            return None
        # Of the pairs that lie 20 answers back the oldest that was not repeated; pairs ahead of it count as well.
        again = "SELECT 1 FROM lease AS r WHERE r.comparison_id = lease.comparison_id AND r.labeller = lease.labeller"
        newest = "SELECT seq FROM effective_answer WHERE labeller = ?1 ORDER BY seq DESC LIMIT 1 OFFSET max(?2, 0)"
        row = db.execute(
            "SELECT lease.comparison_id, flip FROM effective_answer AS answer JOIN lease ON token = lease_token "
            "WHERE answer.labeller = ?1 AND kind <> 'repeat' "
            f"AND NOT EXISTS ({again} AND r.kind = 'repeat') AND answer.seq <= ({newest}) ORDER BY answer.seq LIMIT 1",
            (labeller, REPEAT_AFTER - ahead),
        ).fetchone()
        return None if row is None else (row[0], not row[1], "repeat")

    def _lease_seconds(self, db: sqlite3.Connection, labeller: str) -> float:
        times = db.execute(
            "SELECT answered_at - shown_at FROM answer WHERE labeller = ? AND choice <> 'retracted' "
            "AND shown_at IS NOT NULL ORDER BY seq DESC LIMIT ?",  # other tools' labels may not tell it
            (labeller, MEDIAN_OVER),
        ).fetchall()
        median = statistics.median(seconds for (seconds,) in times) if times else 0.0
        return min(max(MIN_LEASE_SECONDS, LEASE_MEDIANS * median), MAX_LEASE_SECONDS)

    def _lease(self, db: sqlite3.Connection, token: str) -> Lease:
        comparison_id, flip, kind, expires_at, a, b, fps, steps = db.execute(
            "SELECT comparison_id, flip, kind, expires_at, a.id, b.id, a.fps, max(a.length, b.length) FROM lease "
            "JOIN comparison ON comparison.id = comparison_id JOIN segment AS a ON a.id = segment_a "
            "JOIN segment AS b ON b.id = segment_b WHERE token = ?",
            (token,),
        ).fetchone()
        left, right = (b, a) if flip else (a, b)
        return Lease(token, comparison_id, left, right, bool(flip), kind, expires_at, self.db.env_id, fps, steps)

    def _known(self, db: sqlite3.Connection, client_id: str, about: dict[str, object]) -> Receipt | None:
        """What became of the submission with this id, if there was one, which must have been the same one.

        Raises SubmissionError if not: who counts their answers from 1 at each start would lose those of the second.
        """
        row = self._row(db, "client_id = ?", (client_id,))
        if row is None:
            return None
        if any(row[name] != value for name, value in about.items()):
            raise SubmissionError(f"client_id {client_id} is that of another answer; make a new one for each.")
        return Receipt("known", row["seq"], _side(row))

    def _current(self, db: sqlite3.Connection, comparison_id: str, labeller: str, kind: str) -> dict | None:
        """The labeller's effective answer to the pair, where a repetition is another question."""
        again = "lease_token IN (SELECT token FROM lease WHERE kind = 'repeat')"
        same = again if kind == "repeat" else f"NOT {again}"
        where = f"comparison_id = ? AND labeller = ? AND {IS_EFFECTIVE} AND {same}"
        return self._row(db, where, (comparison_id, labeller))

    @staticmethod
    def _row(db: sqlite3.Connection, where: str, values: tuple) -> dict | None:
        """An answer with its comparison's segments."""
        row = db.execute(f"{SELECT_ROW} WHERE {where}", values).fetchone()
        return None if row is None else dict(zip(ROW, row, strict=True))

    @staticmethod
    def _insert(
        db: sqlite3.Connection,
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
        seq = db.execute(INSERT_FULL_ANSWER, (*about, *times, *labeller)).lastrowid
        assert seq is not None
        return seq

    @staticmethod
    def _settle(db: sqlite3.Connection, comparison_id: str) -> None:
        """A query is done while enough people have answered it; what was withdrawn and answered late is, too."""
        labellers = "SELECT count(DISTINCT coalesce(labeller, '')) FROM effective_answer WHERE comparison_id = ?1"
        state = f"CASE WHEN ({labellers}) >= need THEN 'done' ELSE 'ready' END"
        db.execute(f"UPDATE query SET state = {state} WHERE comparison_id = ?1", (comparison_id,))


def _history_row(row: dict) -> HistoryRow:
    return HistoryRow(
        seq=row["seq"],
        comparison_id=row["comparison_id"],
        labeller=row["labeller"] or "",
        choice=_side(row),
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


def _side(row: dict) -> str:
    """The choice of a row as the side that was shown: left, right, equal, incomparable or retracted."""
    if row["choice"] != "preferred":
        return str(row["choice"])
    return "left" if row["preferred"] == row["shown_left"] else "right"
