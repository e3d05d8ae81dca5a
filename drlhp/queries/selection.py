"""The query strategies that draw one pair at a time: each decides which two segments of the pool to ask about."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, Protocol

import numpy as np

from drlhp.data.asked import Asked
from drlhp.data.candidate import Candidate
from drlhp.data.comparison import Comparison
from drlhp.data.segment import Segment
from drlhp.labelling.gatherers import Answered
from drlhp.queries.pool import Pool

NEWEST_SHARE = 0.1  # share of the pool that counts as the newest policy's
# `k_center` compares so many moments of a segment, each as so many squares down and across.
MOMENTS, SQUARES = 5, 7
CENTRES = 1000  # newest pairs asked, from which `k_center` keeps its distance
TRIES = 50  # pairs drawn to find one that was not asked yet

Measure = Literal["disagreement", "entropy"]
QuerySelection = Literal["random", "disagreement", "entropy", "newest", "k_center", "ordering"]
Pair = tuple[Candidate, Candidate]


def informativeness(a: Candidate, b: Candidate, measure: Measure) -> float:
    """Returns how much the answer about two segments should tell, by the ensemble's predictions when they were cut.

    `disagreement`: the variance over the members of the probability that a is preferred (section 2.2.4); `entropy`:
    that of the answer by their mean, in bits. It is 0 if a segment was cut before there was a predictor.
    """
    if a.member_returns is None or b.member_returns is None:
        return 0.0
    difference = (a.member_returns - b.member_returns).astype(float)
    p = 1 / (1 + np.exp(-difference.clip(-50, 50)))
    if measure == "disagreement":
        return float(p.var())
    mean = float(np.clip(p.mean(), 1e-12, 1 - 1e-12))
    return -mean * math.log2(mean) - (1 - mean) * math.log2(1 - mean)


def looks(segment: Segment) -> np.ndarray:
    """Returns (K,) float32: a few moments of a segment, for pictures the means of their squares, else the vectors."""
    moments = np.linspace(0, len(segment) - 1, MOMENTS).round().astype(int)
    seen = segment.observations[moments].astype(np.float32)
    if not segment.is_pixels:
        return seen.ravel()
    if seen.ndim == 4:
        seen = seen.mean(1)
    for axis in (1, 2):
        edges = np.linspace(0, seen.shape[axis], SQUARES + 1).astype(int)
        sums = np.add.reduceat(seen, edges[:-1], axis)
        seen = sums / np.diff(edges).clip(1).reshape((-1, 1) if axis == 1 else -1)
    return seen.ravel().astype(np.float32)


class QueryStrategy(Protocol):
    """Draws pairs to ask about."""

    def draw(self, pool: Sequence[Candidate], unseen: Sequence[Candidate]) -> Pair:
        """Returns two candidates of the pool; those that were not asked about, if any are given, may go first."""

    def note(self, pair: Pair) -> None:
        """Takes notice that this pair is asked."""


class Random:
    """Draws any two candidates; any two of the unseen, as long as there are two."""

    KEPT: tuple[str, ...] = ()

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def draw(self, pool: Sequence[Candidate], unseen: Sequence[Candidate]) -> Pair:
        return self.two_of(unseen) if len(unseen) >= 2 else self.choose(pool)

    def choose(self, pool: Sequence[Candidate]) -> Pair:
        """Returns the two candidates of the pool to ask about if none are unseen."""
        return self.two_of(pool)

    def two_of(self, among: Sequence[Candidate]) -> Pair:
        """Returns any two of these."""
        i, j = self.rng.choice(len(among), 2, replace=False)
        return among[i], among[j]

    def note(self, pair: Pair) -> None: ...


class Newest(Random):
    """Chooses any two of the newest tenth of the pool."""

    def choose(self, pool: Sequence[Candidate]) -> Pair:
        n = max(2, round(NEWEST_SHARE * len(pool)))
        return self.two_of(list(itertools.islice(pool, len(pool) - n, None)))


class Ensemble(Random):
    """Draws several pairs, and chooses the one whose answer would tell the ensemble most.

    Args:
        n_candidates: the pairs drawn.
        measure: by how much its members disagree about the answer, or how unsure they are of it together.
    """

    def __init__(self, rng: np.random.Generator, n_candidates: int, measure: Measure) -> None:
        super().__init__(rng)
        self.n_candidates, self.measure = n_candidates, measure

    def choose(self, pool: Sequence[Candidate]) -> Pair:
        pairs = [self.two_of(pool) for _ in range(self.n_candidates)]
        return max(pairs, key=lambda pair: informativeness(pair[0], pair[1], self.measure))


class KCenter(Random):
    """Draws several pairs, and chooses the one that looks least like the newest pairs asked (B-Pref's greedy k-center).

    Args:
        n_candidates: the pairs drawn.
    """

    KEPT = ("_centres",)

    def __init__(self, rng: np.random.Generator, n_candidates: int) -> None:
        super().__init__(rng)
        self.n_candidates = n_candidates
        self._centres: deque[np.ndarray] = deque(maxlen=2 * CENTRES)  # each pair asked, both ways round

    def draw(self, pool: Sequence[Candidate], unseen: Sequence[Candidate]) -> Pair:
        """Returns two candidates of the pool; the unseen have no priority, because their looks decide already."""
        return self.choose(pool)

    def choose(self, pool: Sequence[Candidate]) -> Pair:
        return max([self.two_of(pool) for _ in range(self.n_candidates)], key=self._distance)

    def note(self, pair: Pair) -> None:
        both = [looks(one.segment) for one in pair]
        self._centres += [np.concatenate(both), np.concatenate(both[::-1])]

    def _distance(self, pair: Pair) -> float:
        """Returns how unlike the most similar of the pairs asked this one looks."""
        if not self._centres:
            return 0.0
        wanted = np.concatenate([looks(one.segment) for one in pair])
        return float(np.square(np.stack(self._centres) - wanted).sum(1).min())


def strategy_of(selection: QuerySelection, n_candidates: int, rng: np.random.Generator) -> QueryStrategy:
    """Returns the strategy of this name; `ordering` has none, because it does not draw its pairs."""
    if selection == "disagreement" or selection == "entropy":
        return Ensemble(rng, n_candidates, selection)
    if selection == "k_center":
        return KCenter(rng, n_candidates)
    return Newest(rng) if selection == "newest" else Random(rng)


class Queries(Protocol):
    """Chooses the comparisons to ask."""

    asked: Asked
    """Which comparisons were asked."""
    all_asked: bool
    """Nothing new could be asked of the pool the last time."""

    def choose(
        self, pool: Pool, pending: Collection[str], n: int, *, initial: bool = False, oldest: int = 0
    ) -> list[Comparison]:
        """Returns up to n comparisons that were not asked before.

        Args:
            pending: ids of the comparisons that are open.
            initial: whether the policy's training waits for these.
            oldest: policy step; segments from before may be too old to be asked about.
        """

    def learn(self, answered: Iterable[Answered]) -> None:
        """Takes in what was answered or taken back."""


class DrawnQueries:
    """Chooses comparisons by drawing pairs until one was not asked before.

    Args:
        asked: which comparisons were asked before; those that are chosen are added.
    """

    KEPT = ("asked", "all_asked", "strategy")

    def __init__(self, asked: Asked, strategy: QueryStrategy, rng: np.random.Generator) -> None:
        self.asked, self.strategy, self.rng = asked, strategy, rng
        self.all_asked = False

    def choose(
        self, pool: Pool, pending: Collection[str], n: int, *, initial: bool = False, oldest: int = 0
    ) -> list[Comparison]:
        """Returns up to n comparisons, with their sides chosen at random."""
        if len(pool) < 2:
            return []
        searches = iter(lambda: self._next(pool, initial=initial), None)  # once one fails, the others would too
        return list(itertools.islice(searches, max(n, 0)))  # below 0 if more are open than wanted

    def learn(self, answered: Iterable[Answered]) -> None: ...

    def _next(self, pool: Pool, *, initial: bool) -> Comparison | None:
        """Returns a comparison that was not asked before; None if none was found.

        An initial one is of segments in no other pair, as long as there are any and no predictor to choose by. The
        initial labels are then about as many segments as possible, and no segment is in both a training label and a
        validation label.
        """
        unseen = pool.unseen() if initial and pool[0].member_returns is None else ()
        for attempt in range(TRIES):
            a, b = self.strategy.draw(pool, unseen if attempt < TRIES // 2 else ())
            comparison = Comparison(a.segment, b.segment, flip=bool(self.rng.integers(2)))
            if comparison.a.id != comparison.b.id and comparison.id not in self.asked:
                self.asked.add(comparison.id)
                self.all_asked = False
                if initial:
                    pool.asked_about |= {comparison.a.id, comparison.b.id}
                self.strategy.note((a, b))
                return comparison
        self.all_asked = True
        return None
