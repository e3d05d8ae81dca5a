"""The query strategy `ordering`: compared segments stand in one order, in which each new one is given its place.

A segment is compared with the one in the middle of the places that it may have, then with the middle of the half that
the answer leaves. So about log2 n questions rank each of n segments, as in a balanced search tree. The order is a
function of the answers alone: they may come late, in any sequence and from several people, and a resumed run reads them
from its store. After rl-teacher-atari, which keeps its segments in a red-black tree.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from drlhp.data.asked import Asked
from drlhp.data.candidate import Candidate
from drlhp.data.comparison import Choice, Comparison
from drlhp.data.segment import Segment
from drlhp.labelling.gatherers import Answered
from drlhp.runtime.snapshot import restore_kept
from pref_db import PrefDB

MAX_INCOMPARABLE = 2  # answers of that kind after which a segment is given up


class Ordering:
    """The ids of at most `limit` segments in groups of equals, worst first, as far as the answers tell.

    An answer that contradicts the place given to a segment by earlier ones changes nothing.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.groups: list[list[str]] = []
        self._rank: dict[str, int] = {}  # segment -> index of its group
        # Segment that was asked about, oldest first -> the others it was compared with, and the answers if it is A.
        self._answers: dict[str, dict[str, Choice]] = {}

    def __contains__(self, segment: str) -> bool:
        return segment in self._rank

    def was_answered(self, a: str, b: str) -> bool:
        """Returns whether this pair's answer is known."""
        return b in self._answers.get(a, ())

    def learn(self, a: str, b: str, choice: Choice) -> None:
        """Takes in an answer. It may give one of the two its place, and then others."""
        self._answers.setdefault(a, {})[b] = choice
        self._answers.setdefault(b, {})[a] = choice.reversed
        if not self.groups and choice != Choice.INCOMPARABLE:
            self._insert(b, 0, is_new_group=True)
        self._place([a, b])
        while len(self._answers) > self.limit:
            self._forget(next(iter(self._answers)))

    def given_up(self, segment: str) -> bool:
        """Returns whether people could not compare it too often."""
        answers = self._answers.get(segment, {}).values()
        return sum(choice == Choice.INCOMPARABLE for choice in answers) >= MAX_INCOMPARABLE

    def unplaced(self) -> Iterator[str]:
        """Yields the segments without a place that were compared with some in the order, oldest first."""
        for segment, answers in self._answers.items():
            if segment not in self._rank and any(other in self._rank for other in answers):
                yield segment

    def opponents(self, segment: str) -> Iterator[str]:
        """Yields the segments to compare one with, best first: from the middle of its possible places outwards."""
        self._place([segment])  # what stood between its neighbours may have been forgotten
        if segment in self._rank:
            return
        low, high = self._bounds(segment)
        middle = (low + high) // 2
        for rank in sorted(range(low + 1, high), key=lambda rank: abs(rank - middle)):
            yield from self.groups[rank]

    def _bounds(self, segment: str) -> tuple[int, int]:
        """Returns the groups between which it belongs (-1 and their number at the ends); twice its equals' own."""
        low, high = -1, len(self.groups)
        for other, choice in self._answers.get(segment, {}).items():
            rank = self._rank.get(other)
            if rank is None or not low < rank < high or choice == Choice.INCOMPARABLE:
                continue
            if choice == Choice.EQUAL:
                return rank, rank
            low, high = (rank, high) if choice == Choice.A else (low, rank)
        return low, high

    def _place(self, segments: Sequence[str]) -> None:
        """Gives their places to those whose answers tell them, then to those that were compared with them."""
        waiting = list(segments)
        while waiting:
            segment = waiting.pop()
            if segment in self._rank or not self.groups:
                continue
            low, high = self._bounds(segment)
            if high - low <= 1:
                self._insert(segment, high, is_new_group=high > low)
                waiting += self._answers.get(segment, ())

    def _insert(self, segment: str, rank: int, *, is_new_group: bool) -> None:
        if is_new_group:
            self.groups.insert(rank, [])
        self.groups[rank].append(segment)
        self._number()

    def _forget(self, segment: str) -> None:
        for other in self._answers.pop(segment):
            del self._answers[other][segment]
        if segment in self._rank:
            group = self.groups[self._rank[segment]]
            group.remove(segment)
            if not group:
                self.groups.remove(group)
            self._number()

    def _number(self) -> None:
        self._rank = {segment: rank for rank, group in enumerate(self.groups) for segment in group}


class OrderingQueries:
    """Chooses the comparisons that give segments their places; several segments are on their way at once.

    Args:
        asked: which comparisons were asked before; those that are chosen are added.
        limit: segments that the order holds.
    """

    KEPT = ("asked", "all_asked", "_open")

    def __init__(self, db: PrefDB, asked: Asked, limit: int, rng: np.random.Generator) -> None:
        self.db, self.asked, self.limit, self.rng = db, asked, limit, rng
        self.all_asked = False
        self._open: dict[str, str] = {}  # comparison id -> the segment that waits for its answer
        self.order = self._read()

    def learn(self, answered: Iterable[Answered]) -> None:
        """Takes in what was answered or taken back."""
        for one in answered:
            a, b = self._pair(one.comparison_id)
            if one.choice is None or self.order.was_answered(a, b):
                self.order = self._read()
            else:
                self.order.learn(a, b, one.choice)

    def restore(self, state: dict[str, Any]) -> None:
        """Goes back to that moment; the order is read from the answers that the store then shows."""
        restore_kept(self, state)
        self.order = self._read()

    def choose(
        self, pool: Iterable[Candidate], pending: Collection[str], n: int, *, initial: bool = False, oldest: int = 0
    ) -> list[Comparison]:
        """Returns up to n comparisons that were not asked before: of segments on their way, then of any in the pool.

        Args:
            pending: ids of the comparisons that are open, whose segments wait.
            initial: makes no difference, because each segment is new to the order until it has its place.
            oldest: policy step; older segments are given up on their way, but others are compared with them.
        """
        chosen = self._choose([candidate.segment for candidate in pool], pending, n, oldest) if n > 0 else []
        self.all_asked = n > 0 and not chosen and not pending
        return chosen

    def _choose(self, segments: list[Segment], pending: Collection[str], n: int, oldest: int) -> list[Comparison]:
        self._open = {id: self._open.get(id) or self._pair(id)[0] for id in pending}
        if not self.order.groups:  # the first answer gives the order its beginning
            n = 0 if pending else 1
        waiting, chosen = set(self._open.values()), list[Comparison]()
        in_pool = {segments[i].id: segments[i] for i in self.rng.permutation(len(segments))}
        for segment in itertools.chain(list(self.order.unplaced()), in_pool):
            if len(chosen) == n:
                break
            if segment in waiting or segment in self.order or self.order.given_up(segment):
                continue
            if segment not in in_pool and self._policy_step(segment) < oldest:
                continue
            others = self.order.opponents(segment) if self.order.groups else iter(in_pool)
            comparison_of = functools.partial(Comparison.id_of, segment)
            other = next((one for one in others if one != segment and comparison_of(one) not in self.asked), None)
            if other is not None:
                a, b = (in_pool.get(id) or self.db.segment(id) for id in (segment, other))
                chosen.append(Comparison(a, b, flip=bool(self.rng.integers(2))))
                waiting.add(segment)
                self._open[chosen[-1].id] = segment
                self.asked.add(chosen[-1].id)
        return chosen

    def _read(self) -> Ordering:
        """Returns the order by the answers in the store; if there are several about one pair, the newest counts."""
        newest = {row.comparison_id: (row.a, row.b, row.choice) for row in self.db.answers()}
        order = Ordering(self.limit)
        for a, b, choice in newest.values():
            order.learn(a, b, choice)
        return order

    def _policy_step(self, segment: str) -> int:
        return self.db.policy_step(segment)

    def _pair(self, comparison_id: str) -> tuple[str, str]:
        """Returns the ids of a stored comparison's segments, the one that waits for its place first."""
        return self.db.pair(comparison_id)
