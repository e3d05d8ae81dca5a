"""The queue in prefs.db that all processes share: which pairs people are asked about, and in which order.

The run submits comparisons. A page's server, a window or a terminal claims them for a labeller, who holds each on lease
until it is answered; the answers are labels like any other. Any of these processes may die, restart or be absent.
Times are unix seconds (UTC).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence

from drlhp.data.comparison import Comparison
from drlhp.data.store import Statements, repeated
from drlhp.labelling.answer_log import AnswerLog
from drlhp.labelling.answers import Counts, Lease, check_labeller, flip_of
from drlhp.labelling.leases import SHOWN, SHOWN_COLUMNS, Leases, NextPair
from drlhp.labelling.notices import Notices, number_of, select_settings, share_of
from pref_db import PrefDB

REPEAT_AFTER = 20  # pairs that lie between a pair and its repetition
QUERY_COLUMNS = "comparison_id, kind, need, priority, reason, policy_step, state, created_at"
# Ends a condition that holds for nearly all rows: PostgreSQL then tries it on one row after the other, in the order in
# which they are asked, and does not join all of them first.
AT_ONCE = "LIMIT 1 OFFSET 0"
COUNTED_EVERY = 20  # claims, after which the labels since then are remembered and not counted again each time
ACTIVE_SECONDS = 600.0  # a labeller who answered since then counts as active


class LabelQueue:
    """The queue, for one process and thread, with the leases, answers and notices beside it in the store.

    Every method may raise PrefDBError. The queue reads two settings, both 0 unless set. `repeat_share`: this share of a
    labeller's pairs is asked again at least 20 pairs later, with the sides swapped. `overlap_share`: this share of the
    pairs is asked of two people, once two people label.
    """

    def __init__(self, db: PrefDB, clock: Callable[[], float] = time.time) -> None:
        self.db, self.clock = db, clock
        self._n_claims = 0
        self.leases, self.answers, self.notices = Leases(db, clock), AnswerLog(db, clock), Notices(db, clock)

    @repeated
    def submit(
        self,
        comparisons: Sequence[Comparison],
        *,
        need: int = 1,
        priority: float = 0.0,
        policy_step: int | None = None,
    ) -> None:
        """Stores questions with their segments in one commit; a question that is stored already stays as it is.

        policy_step: agent steps that the policy had taken; None: when the newer segment was cut.
        """
        values = "(?, 'normal', ?, ?, '', ?, 'ready', ?)"
        insert = f"INSERT INTO query ({QUERY_COLUMNS}) VALUES {values} ON CONFLICT DO NOTHING"
        with self.db.transaction() as db:
            for comparison in comparisons:
                self.db.insert_comparison(db, comparison)
                newest = max(comparison.a.policy_step, comparison.b.policy_step)
                step = int(newest if policy_step is None else policy_step)
                db.execute(insert, (comparison.id, int(need), float(priority), step, self.clock()))

    @repeated
    def withdraw(self, older_than_policy_step: int) -> int:
        """Takes back the questions from before that agent step that nobody has seen; returns how many."""
        seen = "SELECT 1 FROM lease WHERE lease.comparison_id = query.comparison_id"
        answered = "SELECT 1 FROM answer WHERE answer.comparison_id = query.comparison_id"
        old = f"policy_step < ? AND NOT EXISTS ({seen}) AND NOT EXISTS ({answered})"
        with self.db.transaction() as db:
            return self._take_back(db, old, older_than_policy_step)

    @repeated
    def retire(self, segment_id: str, reason: str) -> int:
        """Takes back the open questions about a segment that cannot be shown; returns how many."""
        about = "comparison_id IN (SELECT id FROM comparison WHERE ? IN (segment_a, segment_b))"
        close = f"UPDATE lease SET closed_at = ? WHERE closed_at IS NULL AND {about}"
        with self.db.transaction() as db:
            db.execute(close, (self.clock(), segment_id))
            return self._take_back(db, about, segment_id, reason)

    @staticmethod
    def _take_back(db: Statements, condition: str, value: object, reason: str | None = None) -> int:
        """Withdraws the ready questions that meet a condition of one value; returns how many. None keeps the reason."""
        ready = f"state = 'ready' AND {condition}"
        # Counted before, because Red Hat 9 has a SQLite that does not know RETURNING.
        ((n,),) = db.execute(f"SELECT count(*) FROM query WHERE {ready}", (value,)).fetchall()
        db.execute(f"UPDATE query SET state = 'withdrawn', reason = coalesce(?, reason) WHERE {ready}", (reason, value))
        return int(n)

    @repeated
    def claim(self, labeller: str, n: int = 1) -> list[Lease]:
        """Leases up to n pairs to this labeller: first those on lease already, oldest first, then the best ready ones.

        The best pair has the highest priority, then the newest policy. Pairs that the labeller gave back come last. If
        there is a goal, no more pairs are leased than labels are missing to it.
        """
        check_labeller(labeller)
        if self._n_claims % COUNTED_EVERY == 0:
            self.db.n_labels()  # in a transaction, which may be undone, none of those counted are remembered
        self._n_claims += 1
        with self.db.transaction() as db:
            self.leases.close_expired()
            asked = db.execute(*select_settings("goal", "repeat_share", "overlap_share"))
            tokens, seconds = self.leases.renew_oldest(labeller, n)
            settings = dict(asked.fetchall())  # they came with what `renew_oldest` has read: one journey for both
            goal, overlap_share = number_of(settings.get("goal")), share_of(settings.get("overlap_share"))
            repeat_share = share_of(settings.get("repeat_share"))
            leases = [self.leases.get(token) for token in tokens]
            while len(leases) < n and not self._enough(goal):
                pair = self._repeat(labeller, repeat_share, len(leases)) or self._best(db, labeller, overlap_share)
                if pair is None:
                    break
                leases.append(self.leases.grant(labeller, seconds, pair))
            return leases

    def unanswered(self) -> set[str]:
        """Returns the ids of the open comparisons without an effective answer.

        A pair that is still asked of a second person has its label already.
        """
        answered = f"SELECT 1 FROM effective_answer AS a WHERE a.comparison_id = query.comparison_id {AT_ONCE}"
        unanswered = f"SELECT comparison_id FROM query WHERE state = 'ready' AND NOT EXISTS ({answered})"
        return {row[0] for row in self.db.read(unanswered)}

    def newest_pairs(self) -> list[tuple[bool, str, str]]:
        """Returns whether it is still asked, and the two segment ids, of every comparison: newest answers first."""
        return self.db.read(
            "SELECT comparison.id IN (SELECT comparison_id FROM query WHERE state = 'ready'), segment_a, segment_b "
            "FROM comparison LEFT JOIN answer ON answer.comparison_id = comparison.id "
            "GROUP BY comparison.id ORDER BY coalesce(max(seq), 0) DESC"
        )

    def is_present(self, labeller: str) -> bool:
        """Returns whether this name is in use: a process names it, or the labeller has pairs on lease."""
        return labeller in self.notices.labellers() or self.leases.holds(labeller)

    def is_active(self, labeller: str) -> bool:
        """Returns whether the labeller is present or answered in the last minutes."""
        return self.is_present(labeller) or self.answers.since(self.clock() - ACTIVE_SECONDS, by=labeller)

    def counts(self) -> Counts:
        """Returns how far the labelling is."""
        leased = "SELECT comparison_id FROM lease WHERE closed_at IS NULL AND expires_at > ?"
        state = f"CASE WHEN state = 'ready' AND comparison_id IN ({leased}) THEN 'leased' ELSE state END"
        open_ones = f"SELECT {state} AS s, count(*) FROM query WHERE state IN ('ready', 'withdrawn') GROUP BY s"
        states = dict(self.db.read(open_ones, (self.clock(),)))
        free = [states.get(state, 0) for state in ("ready", "leased", "withdrawn")]
        return Counts(self.db.n_labels(), self.db.n_answers(), *free)

    def _enough(self, goal: int) -> bool:
        """Returns whether the goal is reached once the pairs on lease are answered; there is none if it is 0."""
        return 0 < goal <= self.db.n_labels() + self.leases.n_open()

    def _best(self, db: Statements, labeller: str, overlap_share: float) -> NextPair | None:
        """Returns the ready pair that is next for this labeller."""
        mine = "SELECT 1 FROM {} AS m WHERE m.comparison_id = query.comparison_id AND m.labeller = ? {}"
        # A labeller who has it on lease or has answered it counts once; late answers may be more than needed.
        taken = """
            SELECT count(*) FROM (
                SELECT labeller FROM lease WHERE comparison_id = query.comparison_id AND closed_at IS NULL
                UNION SELECT coalesce(labeller, '') FROM effective_answer WHERE comparison_id = query.comparison_id
            ) AS labellers"""
        # Looked up first, because it costs least: nearly all pairs before the next one are on somebody's screen.
        leased = "SELECT comparison_id FROM lease WHERE closed_at IS NULL"
        answered = mine.format("effective_answer", AT_ONCE)
        never, not_now = mine.format("lease", AT_ONCE), mine.format("lease", f"AND m.closed_at IS NULL {AT_ONCE}")
        free = f"state = 'ready' AND (need > 1 OR comparison_id NOT IN ({leased})) AND NOT EXISTS ({answered})"
        free += f" AND need > ({taken})"
        order = "ORDER BY priority DESC, policy_step DESC, rowid LIMIT 1"
        for had in (never, not_now):  # pairs that the labeller never had come first
            best = f"SELECT comparison_id, kind, need FROM query WHERE {free} AND NOT EXISTS ({had}) {order}"
            select = f"SELECT comparison_id, kind, need, {SHOWN_COLUMNS} FROM ({best}) AS best {SHOWN}"
            for comparison_id, kind, need, *shown in self.db.read(select, (labeller, labeller)):
                if kind == "normal" and need == 1 and self._to_overlap(labeller, comparison_id, overlap_share):
                    kind = "overlap"
                    db.execute("UPDATE query SET kind = ?, need = 2 WHERE comparison_id = ?", (kind, comparison_id))
                return NextPair(comparison_id, flip_of(labeller, comparison_id), kind, tuple(shown))
        return None

    def _to_overlap(self, labeller: str, comparison_id: str, share: float) -> bool:
        """Returns whether to ask a second person: the pair's id decides, if another person labels too."""
        if zlib.crc32(comparison_id.encode()) >= share * 2**32:
            return False
        return self.answers.since(self.clock() - ACTIVE_SECONDS, not_by=labeller)

    def _repeat(self, labeller: str, share: float, ahead: int) -> NextPair | None:
        """Returns a pair to ask this labeller again with the sides swapped, if it is time.

        ahead: pairs that the labeller has on lease before it.
        """
        if share <= 0:
            return None
        count = "SELECT count(*), count(CASE WHEN kind = 'repeat' THEN 1 END) FROM lease WHERE labeller = ?"
        ((n_leases, n_repeats),) = self.db.read(count, (labeller,))
        if n_repeats >= int(share * (n_leases + 1)):
            return None
        # The oldest pair that was not repeated and lies 20 pairs back; pairs ahead of the repetition count as well.
        again = "SELECT 1 FROM lease AS r WHERE r.comparison_id = lease.comparison_id AND r.labeller = lease.labeller"
        newest = "SELECT seq FROM effective_answer WHERE labeller = ? ORDER BY seq DESC LIMIT 1 OFFSET ?"
        answered = (
            "SELECT lease.comparison_id, flip FROM effective_answer AS answer JOIN lease ON token = lease_token "
            "WHERE answer.labeller = ? AND kind <> 'repeat' "
            f"AND NOT EXISTS ({again} AND r.kind = 'repeat') AND answer.seq <= ({newest}) ORDER BY answer.seq LIMIT 1"
        )
        select = f"SELECT comparison_id, flip, {SHOWN_COLUMNS} FROM ({answered}) AS answered {SHOWN}"
        rows = self.db.read(select, (labeller, labeller, max(REPEAT_AFTER - ahead, 0)))
        return NextPair(rows[0][0], not rows[0][1], "repeat", rows[0][2:]) if rows else None
