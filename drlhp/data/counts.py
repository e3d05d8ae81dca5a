"""Counts the effective labels and answers of a store, and looks only at what is new since the last time."""

from __future__ import annotations

from drlhp.data.store import Store

# How the numbers have changed since an answer, after the newest answer: those given since then, less those of any time
# that were taken back or replaced since then and not before. It is one statement, so that no answer comes between.
CHANGE = """
    SELECT newest, labels - old_labels, answers - old_answers FROM (
        SELECT coalesce(max(seq), 0) AS newest, count(CASE WHEN choice <> 'retracted' THEN 1 END) AS answers,
            count(CASE WHEN choice NOT IN ('retracted', 'incomparable') THEN 1 END) AS labels
        FROM answer WHERE seq > ?
    ) AS given, (
        SELECT count(*) AS old_answers, count(CASE WHEN choice <> 'incomparable' THEN 1 END) AS old_labels
        FROM answer AS old WHERE choice <> 'retracted'
        AND seq IN (SELECT supersedes FROM answer WHERE seq > ?)
        AND NOT EXISTS (SELECT 1 FROM answer AS other WHERE other.supersedes = old.seq AND other.seq <= ?)
    ) AS taken_back
"""


class Counter:
    """The numbers of labels and answers in a store, for one process and thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen, self._labels, self._answers = 0, 0, 0  # at the answer that was the newest one the last time

    def count(self) -> tuple[int, int]:
        """Returns the numbers of effective labels, and of effective answers, which include incomparable ones."""
        ((newest, more_labels, more_answers),) = self._store.read(CHANGE, (self._seen,) * 3)
        labels, answers = self._labels + more_labels, self._answers + more_answers
        if not self._store.in_transaction:  # which may be undone
            self._seen, self._labels, self._answers = max(newest, self._seen), labels, answers
        return labels, answers
