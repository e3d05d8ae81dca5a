"""What the pool keeps of the segments that it was given."""

from __future__ import annotations

import dataclasses
import queue

import numpy as np

from drlhp.data.candidate import Candidate
from drlhp.queries.pool import UNTRAINED_KEPT, Pool
from tests.support.asking import segment


def candidates(n: int) -> list[Candidate]:
    returns = np.zeros(3, np.float32)
    return [Candidate(dataclasses.replace(segment(seed), policy_step=seed), returns) for seed in range(n)]


def test_the_pool_takes_the_newest_and_knows_those_that_were_asked_about() -> None:
    channel: queue.Queue[Candidate] = queue.Queue()
    pool = Pool(maxlen=4)
    assert not pool.take(channel) and not pool.is_full and pool.oldest_step == 0
    for one in candidates(6):
        channel.put(one)
    assert pool.take(channel) and pool.is_full and pool.oldest_step == 2
    pool.asked_about.add(pool[1].segment.id)
    assert [one.segment.seed for one in pool.unseen()] == [2, 4, 5] and pool.has_unseen_pair
    pool.asked_about |= {pool[0].segment.id, pool[2].segment.id}
    assert [one.segment.seed for one in pool.unseen()] == [5] and not pool.has_unseen_pair


def test_a_few_random_candidates_stay_in_their_order_when_training_begins() -> None:
    pool = Pool(candidates(150), maxlen=150)
    pool.keep_a_few(np.random.default_rng(0))
    kept = [one.segment.seed for one in pool]
    assert len(kept) == UNTRAINED_KEPT and kept == sorted(kept) and kept != list(range(50, 150))
    pool.forget_returns()
    assert [one.segment.seed for one in pool] == kept and {one.member_returns is None for one in pool} == {True}
