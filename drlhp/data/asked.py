"""Which comparisons were asked, in so little memory that a million of them are no burden."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from drlhp.data.store import Store
from drlhp.runtime.snapshot import state_of, value_of

BEGINNING = 16  # characters of an id, which are 64 bits of a hash: a billion ids share none by chance
IDS_AT_ONCE = 50_000  # in one answer of the store


class Asked:
    """The ids of comparisons: of those that a store had at first only the beginnings, in order; since then whole."""

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self.before = np.sort(np.fromiter(map(_beginning, ids), f"S{BEGINNING}"))
        self.since = set[str]()

    @classmethod
    def read(cls, store: Store) -> Asked:
        """Returns those that were ever asked. Raises PrefDBError."""

        def ids() -> Iterable[str]:
            last = ""
            more = f"SELECT id FROM comparison WHERE id > ? ORDER BY id LIMIT {IDS_AT_ONCE}"
            while rows := store.read(more, (last,)):
                yield from (row[0] for row in rows)
                last = rows[-1][0]

        return cls(ids())

    def __contains__(self, id: str) -> bool:
        if id in self.since:
            return True
        beginning = np.array(_beginning(id), self.before.dtype)
        place = np.searchsorted(self.before, beginning)
        return bool(place < len(self.before) and self.before[place] == beginning)

    def __len__(self) -> int:
        return len(self.before) + len(self.since)

    def add(self, id: str) -> None:
        """Adds one that is asked now."""
        if id not in self:
            self.since.add(id)

    def snapshot(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {"before": state_of(self.before.tobytes()), "since": sorted(self.since)}

    def restore(self, state: dict[str, Any] | list[str]) -> None:
        """Goes back to that moment; earlier versions kept a list of ids."""
        if isinstance(state, list):
            self.before, self.since = Asked(state).before, set()
        else:
            self.before = np.frombuffer(value_of(state["before"]), self.before.dtype)
            self.since = set(state["since"])


def _beginning(id: str) -> bytes:
    return id.encode()[:BEGINNING]
