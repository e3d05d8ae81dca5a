"""Keeps the policy in step with people who label: it waits while too many of their questions are open."""

from __future__ import annotations

from drlhp.runtime.channels import Channels
from pref_db import PrefDB


class PolicyHold:
    """Lets the policy wait while more than a share of what was asked is unanswered.

    Args:
        share: from 0 to 1; None: the policy never waits.
    """

    def __init__(self, db: PrefDB, channels: Channels, share: float | None) -> None:
        self.db, self.channels, self.share = db, channels, share
        self.n_answers = 0
        self.count()

    def count(self) -> None:
        """Counts the answers, which takes a while in a long store, so only if the policy may have to wait for them."""
        if self.share is not None:
            self.n_answers = self.db.n_answers()

    def update(self, n_open: int, *, wants_more: bool) -> None:
        """Holds the policy, or lets it go on, now that so many questions are open."""
        if self.share is None:
            return
        if wants_more and n_open > self.share * (n_open + self.n_answers):
            self.channels.pause.set()
        else:
            self.channels.pause.clear()
