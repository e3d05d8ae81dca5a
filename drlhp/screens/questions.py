"""The pair that a labeller is asked about: claimed, kept, given back, and its answer stored."""

from __future__ import annotations

import time
import uuid

from drlhp.data.comparison import Side
from drlhp.labelling.answers import CLAIM_SECONDS, Lease, Submission
from drlhp.labelling.queue import LabelQueue
from drlhp.screens.marks import NONE, Marks
from drlhp.screens.pace import Pace
from drlhp.screens.playback import Playback

RENEW_SECONDS = 20.0  # less than the shortest lease
IDLE_SECONDS = 180.0  # without a key, after which other labellers may get the pair, as on the page


class Questions:
    """Takes pairs from the label queue for one labeller, one at a time."""

    def __init__(self, queue: LabelQueue, labeller: str, playback: Playback) -> None:
        """
        Args:
            playback: the screen's, which holds the flag and the note of the pair that is shown.
        """
        self._queue, self._labeller, self._playback = queue, labeller, playback
        self.lease: Lease | None = None  # of the pair that waits for an answer
        self.pace = Pace()
        self._marks = Marks(queue.notices, labeller)
        self._kept = NONE  # the mark of the pair, as it is stored
        self._shown_at = 0.0  # by the monotonic clock, like the next two
        self._renew_at, self._claim_at = 0.0, 0.0

    def claim(self) -> Lease | None:
        """Returns a pair to ask about; None if there is none, or if the queue was asked a moment ago."""
        now = time.monotonic()
        if now < self._claim_at:
            return None
        self._claim_at = now + CLAIM_SECONDS
        leases = self._queue.claim(self._labeller)
        return leases[0] if leases else None

    def claim_at_once(self) -> None:
        """Makes the next `claim` ask the queue."""
        self._claim_at = 0.0

    def begin(self, lease: Lease) -> None:
        """Takes note that the pair is shown from now on, and gives it the flag and note that it had before."""
        self.lease = lease
        self._kept = self._playback.flagged, self._playback.note = self._marks.of(lease.comparison_id)
        self._shown_at = time.monotonic()
        self._renew_at = self._shown_at + RENEW_SECONDS

    def keep(self) -> None:
        """Keeps the lease from ending while the labeller is there.

        The answer of a labeller who comes back later is stored all the same, even if somebody else has the pair.
        """
        now = time.monotonic()
        if self.lease is not None and now >= self._renew_at and self._playback.idle_seconds < IDLE_SECONDS:
            self._renew_at = now + RENEW_SECONDS
            self._queue.leases.renew([self.lease.token])

    def remember_marks(self) -> None:
        """Stores the pair's flag and note, if they were changed, until it is shown again."""
        mark = self._playback.flagged, self._playback.note
        if self.lease is not None and mark != self._kept:
            self._kept = mark
            self._marks.keep(self.lease.comparison_id, mark)

    def drop(self) -> None:
        """Forgets the pair, whose lease the next claim returns again if it is still open."""
        self.lease = None
        self.claim_at_once()

    def give_back(self) -> None:
        """Ends the lease, so that another labeller may get the pair."""
        self.remember_marks()
        self.release()
        self.drop()

    def release(self) -> None:
        """Ends the lease in the store."""
        if self.lease is not None:
            self._queue.leases.release([self.lease.token])

    def undo(self) -> Lease | None:
        """Takes back the newest answer and returns its pair, to be shown again; None if there is no answer."""
        newest = self._queue.answers.newest(self._labeller)
        lease = self._queue.answers.undo(self._labeller)
        if lease is None:
            return None
        self.remember_marks()
        if newest is not None:
            self._marks.keep(lease.comparison_id, (newest.flag, newest.note))
        self.pace.undo()
        return lease

    def answer(self, choice: Side) -> bool:
        """Stores the answer to the pair; False if somebody else of the same name has answered it already."""
        assert self.lease is not None
        playback, now, took = self._playback, time.time(), time.monotonic() - self._shown_at
        submission = Submission(
            uuid.uuid4().hex,
            self.lease.token,
            self.lease.comparison_id,
            self._labeller,
            choice,
            now - took,  # the wall clock may jump while somebody looks
            now,
            watched_ms=playback.watched_ms,
            replays=playback.replays,
            speed=playback.speed,
            flag=playback.flagged,
            note=playback.note,
        )
        stored = self._queue.answers.add(submission).status != "conflict"
        self._marks.keep(self.lease.comparison_id, NONE)  # the answer has it
        self.pace.add(took)
        self.drop()
        return stored
