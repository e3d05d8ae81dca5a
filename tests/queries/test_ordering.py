"""Segments are ranked by as few questions as a binary search takes, whatever happens to the answers."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drlhp.data.candidate import Candidate
from drlhp.data.comparison import Choice, Comparison
from drlhp.labelling.answers import Lease, Submission
from drlhp.labelling.gatherers import QueueGatherer, SyntheticGatherer
from drlhp.labelling.queue import LabelQueue
from drlhp.labelling.teachers import SyntheticTeacher
from drlhp.queries.ordering import MAX_INCOMPARABLE, Ordering, OrderingQueries
from pref_db import PrefDB
from pref_interface import PrefInterface, PrefsConfig
from tests.support.asking import Ring, segment, step_until

# The order itself


def answer(a: float, b: float) -> Choice:
    return Choice.EQUAL if a == b else Choice.A if a > b else Choice.B


def rank(values: Mapping[str, float], limit: int = 10**6) -> tuple[Ordering, list[int]]:
    """The order of these segments, asked about one after the other, and how many questions each but the first took."""
    order, (first, *rest) = Ordering(limit), values
    questions = []
    for one in rest:
        n = 0
        while one not in order:
            other = next(order.opponents(one), first)
            order.learn(one, other, answer(values[one], values[other]))
            n += 1
        questions.append(n)
    return order, questions


@pytest.mark.parametrize("n", [2, 10, 100, 300])
def test_each_of_n_segments_takes_log2_n_questions(n: int) -> None:
    values = {f"{i}": value for i, value in enumerate(random.Random(0).sample(range(n), n))}
    order, questions = rank(values)
    assert [values[one] for (one,) in order.groups] == sorted(values.values())
    for before, asked in enumerate(questions, start=1):
        assert asked <= math.ceil(math.log2(before + 1)), before
    assert sum(questions) <= n * math.log2(n)


def test_equals_share_a_place_and_cost_no_more_than_their_number_of_places() -> None:
    values = {f"{i}": float(i % 4) for i in random.Random(0).sample(range(40), 40)}
    order, questions = rank(values)
    assert [sorted({values[one] for one in group}) for group in order.groups] == [[0.0], [1.0], [2.0], [3.0]]
    assert sum(len(group) for group in order.groups) == 40 and max(questions) <= 3  # ceil(log2(4 + 1))


def test_an_answer_that_contradicts_the_order_changes_nothing() -> None:
    order, _ = rank({"worst": 0, "middle": 1, "best": 2})
    order.learn("best", "worst", Choice.B)
    order.learn("new", "best", Choice.A)
    order.learn("newer", "best", Choice.A)
    order.learn("newer", "worst", Choice.B)  # it is above the best by the answer before
    order.learn("newer", "new", Choice.A)
    assert order.groups == [["worst"], ["middle"], ["best"], ["new"], ["newer"]]


def test_the_newest_alone_are_held() -> None:
    values = {f"{i}": float(value) for i, value in enumerate(random.Random(0).sample(range(200), 200))}
    order, questions = rank(values, limit=20)
    held = [one for group in order.groups for one in group]
    assert sorted(held) == sorted(f"{i}" for i in range(180, 200))
    assert [values[one] for one in held] == sorted(values[one] for one in held)
    assert max(questions) <= 6  # ceil(log2(20 + 1)), and one more where whom it was compared with was forgotten


# Asked by a run


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    with contextlib.closing(Ring(tmp_path)) as ring:
        yield ring


def interface(ring: Ring, gatherer_of: Callable[[PrefDB], Any], goal: int, max_segs: int) -> PrefInterface:
    config = PrefsConfig(n_initial_prefs=goal, max_prefs=goal, max_segs=max_segs, query_selection="ordering")
    return ring.interface(gatherer_of, config=config, goal=goal)


def queries(made: PrefInterface) -> OrderingQueries:
    assert isinstance(made.queries, OrderingQueries)
    return made.queries


def returns_in_order(made: PrefInterface) -> list[list[float]]:
    """The true returns of each group, which are the segments' seeds."""
    return [[float(made.db.segment(one).rewards.sum()) for one in group] for group in queries(made).order.groups]


def test_a_synthetic_teacher_ranks_the_pool_and_many_are_on_their_way_at_once(ring: Ring) -> None:
    n = 60
    made = interface(ring, lambda db: SyntheticGatherer(db, SyntheticTeacher()), goal=10_000, max_segs=n)
    for _ in range(2):
        ring.act(n // 2)
        made.step()
    step_until(made, lambda: len(queries(made).order.groups) == n)
    assert returns_in_order(made) == [[float(seed)] for seed in range(n)]
    rows = list(made.db.answers())
    assert max(Counter(row.a for row in rows).values()) <= 3 * math.log2(n)
    assert len(rows) <= 1.5 * n * math.log2(n)  # a little more than one by one: many meet the same few at first
    assert len({row.comparison_id for row in rows}) == len(rows) == len(ring.labels())
    for _ in range(3):
        made.step()
    assert made.db.n_answers() == len(rows), "there was nothing left to ask"
    ring.act(5)
    for _ in range(3):
        made.step()
    assert made.db.n_answers() > len(rows), "new segments are taken in, though the pool was full"


class People:
    """Several who label the run's queue, whose better segment is that of the higher seed."""

    def __init__(self, ring: Ring) -> None:
        self.db = PrefDB.open(ring.path)
        self.queue, self.n = LabelQueue(self.db), 0

    def claim(self, labeller: str, n: int = 1) -> list[Lease]:
        return self.queue.claim(labeller, n)

    def answer(self, lease: Lease, labeller: str, choice: Any = None, supersedes: int | None = None) -> int:
        left, right = (self.db.segment(side).rewards.sum() for side in (lease.left, lease.right))
        choice = choice or ("left" if left > right else "right")
        self.n += 1
        given = (lease.token, lease.comparison_id, labeller, choice, 1.0, 2.0)
        return self.queue.answers.add(Submission(f"{self.n}", *given, supersedes=supersedes)).seq

    def answer_all(self, made: PrefInterface) -> None:
        """Until nothing is asked any more."""
        for _ in range(2):
            made.step()
        while leases := self.claim("ann", 5):
            for lease in leases:
                self.answer(lease, "ann")
            for _ in range(2):
                made.step()


@pytest.fixture
def people(ring: Ring) -> Iterator[People]:
    made = People(ring)
    yield made
    made.db.close()


def test_answers_may_come_late_from_several_people_and_be_taken_back_or_edited(ring: Ring, people: People) -> None:
    made = interface(ring, QueueGatherer, goal=1000, max_segs=20)
    ring.act(20)
    made.step()
    (first,) = people.claim("ann")
    assert len(made.gatherer.pending) == 1, "the first answer gives the order its beginning"
    people.answer(first, "ann")
    for _ in range(2):
        made.step()
    assert len(made.gatherer.pending) == 18, "each of the others is on its way at once"
    late, wrong, *others = people.claim("ben", 6)
    for lease in reversed(others):
        people.answer(lease, "ben")
    left, right = (people.db.segment(side).rewards.sum() for side in (wrong.left, wrong.right))
    mistake = people.answer(wrong, "ben", "right" if left > right else "left")
    made.step()
    people.answer(wrong, "ben", supersedes=mistake)
    people.answer(late, "ben", "equal")
    made.step()
    people.answer_all(made)
    assert [one for group in returns_in_order(made) for one in group if len(group) == 1] == sorted(
        one for group in returns_in_order(made) for one in group if len(group) == 1
    )
    taken_back = people.queue.answers.undo("ben")
    assert taken_back is not None and taken_back.comparison_id == late.comparison_id
    made.step()
    assert made.gatherer.pending == {late.comparison_id}, "it waits for that answer alone"
    people.answer(late, "ben")
    people.answer_all(made)
    assert returns_in_order(made) == [[float(seed)] for seed in range(20)]
    (asked,) = made.db.read("SELECT count(*), count(DISTINCT comparison_id) FROM query")[0:1]
    assert asked[0] == asked[1] <= 1.5 * 20 * math.log2(20)


def test_a_resumed_run_has_the_same_order_and_asks_nothing_again(ring: Ring, people: People) -> None:
    made = interface(ring, QueueGatherer, goal=1000, max_segs=12)
    ring.act(12)
    for _ in range(4):
        made.step()
        for lease in people.claim("ann", 3):
            people.answer(lease, "ann")
        made.step()
    made.step()
    resumed = interface(ring, QueueGatherer, goal=1000, max_segs=12)
    assert queries(resumed).order.groups == queries(made).order.groups and len(queries(made).order.groups) > 2
    for one in made.pool:
        ring.channels.segments.put(one)
    pending = set(made.gatherer.pending)
    resumed.step()
    assert resumed.gatherer.pending == pending, "those who waited for an answer still wait for it"
    people.answer_all(resumed)
    assert returns_in_order(resumed) == [[float(seed)] for seed in range(12)]


def test_what_cannot_be_compared_is_asked_about_once_more_and_then_given_up(ring: Ring, people: People) -> None:
    made = interface(ring, QueueGatherer, goal=1000, max_segs=8)
    ring.act(8)
    unclear = segment(5, (5.0, 0.0, 0.0)).id
    asked = 0
    for _ in range(60):
        made.step()
        for lease in people.claim("ann", 8):
            is_unclear = unclear in (lease.left, lease.right)
            asked += is_unclear
            people.answer(lease, "ann", "incomparable" if is_unclear else None)
    assert asked == MAX_INCOMPARABLE
    assert returns_in_order(made) == [[float(seed)] for seed in range(8) if seed != 5]


def test_segments_that_are_too_old_are_given_up_on_their_way(ring: Ring) -> None:
    db = PrefDB.open(ring.path)
    old, *pool = (dataclasses.replace(segment(seed), policy_step=10 * seed) for seed in range(6))
    db.add_answer(Comparison(pool[1], pool[0], flip=False), Choice.A, teacher="t")
    db.add_answer(Comparison(pool[2], pool[1], flip=False), Choice.A, teacher="t")
    db.add_answer(Comparison(old, pool[2], flip=False), Choice.B, teacher="t")
    made = OrderingQueries(db, db.asked(), 100, np.random.default_rng(0))
    assert {pair.a.seed for pair in made.choose([*map(Candidate, pool)], (), 10, oldest=10)} == {4, 5}
    made = OrderingQueries(db, db.asked(), 100, np.random.default_rng(0))
    assert {pair.a.seed for pair in made.choose([*map(Candidate, pool)], (), 10)} == {0, 4, 5}
    db.close()
