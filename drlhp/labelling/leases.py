"""Leases: which labeller has which pair before them, and until when.

Times are unix seconds (UTC).
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from drlhp.data.store import Statements, repeated
from drlhp.labelling.answers import Lease
from pref_db import PrefDB

MIN_LEASE_SECONDS, MAX_LEASE_SECONDS = 60.0, 600.0
LEASE_MEDIANS = 3.0  # a lease lasts this many times the labeller's own median time
MEDIAN_OVER = 50  # newest answers of the labeller
# What is shown of a pair, joined to any rows that have its comparison_id.
SHOWN_COLUMNS = "a.id, b.id, a.fps, a.length, b.length"
SHOWN = (
    "JOIN comparison ON comparison.id = comparison_id "
    "JOIN segment AS a ON a.id = segment_a JOIN segment AS b ON b.id = segment_b"
)
LEASE_COLUMNS = "token, comparison_id, labeller, flip, kind, granted_at, expires_at"


class NextPair(NamedTuple):
    """The pair that a labeller is asked about next; `flip`: its second segment is on the left."""

    comparison_id: str
    flip: bool
    kind: str
    shown: tuple[Any, ...]  # SHOWN_COLUMNS


class Leases:
    """The leases in a store, for one process and thread; every method may raise PrefDBError."""

    def __init__(self, db: PrefDB, clock: Callable[[], float] = time.time) -> None:
        self.db, self.clock = db, clock

    def grant(self, labeller: str, seconds: float, pair: NextPair) -> Lease:
        """Leases a pair to a labeller for so many seconds."""
        now = self.clock()
        lease = self._lease(uuid.uuid4().hex, pair.comparison_id, pair.flip, pair.kind, now + seconds, *pair.shown)
        row = (lease.token, lease.comparison_id, labeller, lease.flip, lease.kind, now, lease.expires_at)
        with self.db.transaction() as db:
            db.execute(f"INSERT INTO lease ({LEASE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return lease

    def get(self, token: str) -> Lease:
        """Returns the lease with this token, which must exist."""
        columns = f"comparison_id, flip, kind, expires_at, {SHOWN_COLUMNS}"
        return self._lease(token, *self.db.read(f"SELECT {columns} FROM lease {SHOWN} WHERE token = ?", (token,))[0])

    def _lease(
        self,
        token: str,
        comparison_id: str,
        flip: bool,
        kind: str,
        expires_at: float,
        a: str,
        b: str,
        fps: float,
        *lengths: int,
    ) -> Lease:
        left, right = (b, a) if flip else (a, b)
        return Lease(token, comparison_id, left, right, bool(flip), kind, expires_at, self.db.env_id, fps, max(lengths))

    @repeated
    def renew_oldest(self, labeller: str, n: int) -> tuple[list[str], float]:
        """Lets the n oldest open leases of the labeller begin anew; returns their tokens, and a lease's seconds."""
        with self.db.transaction() as db:
            own = "SELECT token FROM lease WHERE labeller = ? AND closed_at IS NULL ORDER BY number LIMIT ?"
            rows = db.execute(own, (labeller, n))  # read after `_seconds` has asked its own: one journey for both
            seconds = self._seconds(db, labeller)
            tokens, expires_at = [token for (token,) in rows.fetchall()], self.clock() + seconds
            db.executemany("UPDATE lease SET expires_at = ? WHERE token = ?", [(expires_at, token) for token in tokens])
        return tokens, seconds

    @repeated
    def renew(self, tokens: Sequence[str]) -> None:
        """Extends leases that are still open, even if expired."""
        live = "SELECT labeller FROM lease WHERE token = ? AND closed_at IS NULL"
        with self.db.transaction() as db:
            for token in tokens:
                if rows := self.db.read(live, (token,)):
                    expires_at = self.clock() + self._seconds(db, rows[0][0])
                    db.execute("UPDATE lease SET expires_at = ? WHERE token = ?", (expires_at, token))

    @repeated
    def reopen(self, token: str) -> Lease:
        """Opens a lease whose answer was taken back; returns it."""
        with self.db.transaction() as db:
            labeller = self.db.read("SELECT labeller FROM lease WHERE token = ?", (token,))[0][0]
            expires_at = self.clock() + self._seconds(db, labeller)
            db.execute("UPDATE lease SET closed_at = NULL, expires_at = ? WHERE token = ?", (expires_at, token))
            return self.get(token)

    @repeated
    def release(self, tokens: Sequence[str]) -> None:
        """Gives pairs back unanswered."""
        close = "UPDATE lease SET closed_at = ? WHERE token = ? AND closed_at IS NULL"
        with self.db.transaction() as db:
            db.executemany(close, [(self.clock(), token) for token in tokens])

    @repeated
    def close_expired(self) -> None:
        """Closes the leases that have expired."""
        now = self.clock()
        # A lease that ends too far ahead is closed too: the clock was put back, and it would last forever.
        over = "closed_at IS NULL AND (expires_at <= ? OR expires_at > ?)"
        with self.db.transaction() as db:
            db.execute(f"UPDATE lease SET closed_at = ? WHERE {over}", (now, now, now + MAX_LEASE_SECONDS))

    @repeated
    def close_answered(self, labeller: str, comparison_id: str, *, is_repeat: bool) -> None:
        """Closes the labeller's leases of a pair; its repetition is another question."""
        same = "kind = 'repeat'" if is_repeat else "kind <> 'repeat'"
        own = f"comparison_id = ? AND labeller = ? AND closed_at IS NULL AND {same}"
        with self.db.transaction() as db:
            db.execute(f"UPDATE lease SET closed_at = ? WHERE {own}", (self.clock(), comparison_id, labeller))

    def n_open(self) -> int:
        """Returns how many leases are open, expired ones included."""
        return self.db.read("SELECT count(*) FROM lease WHERE closed_at IS NULL")[0][0]

    def holds(self, labeller: str) -> bool:
        """Returns whether the labeller has a pair before them."""
        leased = "SELECT 1 FROM lease WHERE labeller = ? AND closed_at IS NULL AND expires_at > ? LIMIT 1"
        return bool(self.db.read(leased, (labeller, self.clock())))

    def is_asking(self) -> bool:
        """Returns whether any labeller has a pair before them; others may have answered that pair already."""
        leased = "SELECT 1 FROM lease WHERE closed_at IS NULL AND expires_at > ? LIMIT 1"
        return bool(self.db.read(leased, (self.clock(),)))

    @staticmethod
    def _seconds(db: Statements, labeller: str) -> float:
        """Returns how long a lease of this labeller lasts."""
        times = db.execute(
            "SELECT answered_at - shown_at FROM answer WHERE labeller = ? AND choice <> 'retracted' "
            "AND shown_at IS NOT NULL ORDER BY seq DESC LIMIT ?",  # labels of other tools may lack that time
            (labeller, MEDIAN_OVER),
        ).fetchall()
        median = statistics.median(seconds for (seconds,) in times) if times else 0.0
        return min(max(MIN_LEASE_SECONDS, LEASE_MEDIANS * median), MAX_LEASE_SECONDS)
