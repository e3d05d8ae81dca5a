"""Which comparisons were asked, in so little memory that a million of them are no burden."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from drlhp.data.store import Store
from drlhp.runtime.snapshot import restore_kept

DIGITS = 16  # of an id, which are 64 bits: a billion ids share none by chance
AT_ONCE = 50_000  # ids in one answer of the store


class Asked:
    """The ids of comparisons: of those that a store had at first only the beginnings, in order; since then whole."""

    KEPT = ("before", "since")

    def __init__(self, ids: Iterable[str] = ()) -> None:
        """Takes beginnings of ids, or whole ones."""
        self.before = np.sort(np.fromiter((int(id[:DIGITS], 16) for id in ids), np.uint64))
        self.since = set[str]()

    @classmethod
    def read(cls, store: Store) -> Asked:
        """Returns those that were ever asked. Raises PrefDBError."""

        def ids() -> Iterable[str]:
            last = ""
            more = f"SELECT id FROM comparison WHERE id > ? ORDER BY id LIMIT {AT_ONCE}"
            while rows := store.read(more, (last,)):
                yield from (row[0] for row in rows)
                last = rows[-1][0]

        return cls(ids())

    def __contains__(self, id: str) -> bool:
        if id in self.since:
            return True
        beginning = np.uint64(int(id[:DIGITS], 16))
        place = np.searchsorted(self.before, beginning)
        return bool(place < len(self.before) and self.before[place] == beginning)

    def __len__(self) -> int:
        return len(self.before) + len(self.since)

    def add(self, id: str) -> None:
        """Adds one that is asked now."""
        if id not in self:
            self.since.add(id)

    def restore(self, state: dict[str, Any] | list[str]) -> None:
        """Goes back to that moment; earlier versions kept a list of ids."""
        if isinstance(state, list):
            self.before, self.since = Asked(state).before, set()
        else:
            restore_kept(self, state)
