"""Who is reliable, against a literal computation; and that a predictor learns more when it knows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from drlhp.data.comparison import Comparison, Side
from drlhp.labelling.answers import Submission
from drlhp.labelling.queue import LabelQueue
from drlhp.labelling.reliability import Vote, error_rates, label_weights, shared_votes
from pref_db import PrefDB
from tests.support.ring import SMALL, Ring, comparison, predicted_reward, pretrain, segment


def literal_error_rates(votes: list[Vote], wrong: float, n: float, rounds: int) -> dict[str, float]:
    """One-coin EM with probabilities, and not their logarithms, multiplied out over both segments of each pair."""
    rates = {vote.labeller: 0.1 for vote in votes}
    for _ in range(rounds):
        blame, given = dict.fromkeys(rates, wrong), dict.fromkeys(rates, n)
        for pair in {vote.comparison_id for vote in votes}:
            of_pair = [vote for vote in votes if vote.comparison_id == pair]
            likelihood = {
                better: math.prod(
                    1 - rates[v.labeller] if v.preferred == better else rates[v.labeller] for v in of_pair
                )
                for better in ("a", "b")
            }
            for vote in of_pair:
                other = {"a": "b", "b": "a"}[vote.preferred]
                blame[vote.labeller] += likelihood[other] / sum(likelihood.values())
                given[vote.labeller] += 1
        rates = {name: blame[name] / given[name] for name in rates}
    return rates


@pytest.mark.parametrize(("wrong", "n"), [(0.0, 0.0), (1.0, 10.0)])
def test_error_rates_are_those_of_a_literal_computation(wrong: float, n: float) -> None:
    rng = np.random.default_rng(0)
    rates = {"careful": 0.05, "usual": 0.15, "hasty": 0.35}
    votes = [
        Vote(name, str(pair), "b" if rng.random() < rate else "a")
        for pair in range(60)
        for name, rate in rates.items()
        if rng.random() < 0.8
    ]
    several = {pair for pair in range(60) if sum(vote.comparison_id == str(pair) for vote in votes) > 1}
    expected = literal_error_rates([vote for vote in votes if int(vote.comparison_id) in several], wrong, n, 100)
    assert error_rates(shared_votes(votes), wrong=wrong, votes=n) == pytest.approx(expected, abs=1e-4)


def test_weights_are_log_odds_with_a_mean_of_one() -> None:
    rng = np.random.default_rng(0)
    rates = {"good": 0.05, "fair": 0.2, "against": 0.95, "also good": 0.05}
    votes = [
        Vote(name, str(pair), "b" if rng.random() < rate else "a")
        for pair in range(400)
        for name, rate in rates.items()
    ]
    labellers = dict(enumerate([*rates, "unknown", "unknown"]))
    weights = label_weights(labellers, votes)
    found = error_rates(shared_votes(votes), wrong=1, votes=10)
    odds = [math.log((1 - e) / e) for e in (found["good"], found["fair"])] + [0.0]
    odds += [math.log((1 - found["also good"]) / found["also good"]), math.log(9), math.log(9)]
    assert [weights[i] for i in range(6)] == pytest.approx([6 * one / sum(odds) for one in odds])
    assert np.mean(list(weights.values())) == pytest.approx(1)


@pytest.mark.parametrize("votes", [[], [Vote("a", "1", "x"), Vote("b", "2", "x"), Vote("b", "3", "y")]])
def test_without_overlap_all_labels_count_the_same(votes: list[Vote]) -> None:
    assert label_weights({1: "a", 2: "b", 7: "c"}, votes) == {1: 1, 2: 1, 7: 1}


GOOD, AGAINST = 0.05, 0.95  # error rates


def people_answer(db: PrefDB, n: int, seed: int) -> None:
    """Half of the pairs are answered by d, who says the opposite of what is right, the others by a, b and c.

    Every third pair is answered by another of the four as well.
    """
    rng, queue = np.random.default_rng(seed), LabelQueue(db)
    for number in range(n):
        asked: Comparison = comparison(number)
        first = "d" if rng.random() < 0.5 else str(rng.choice(["a", "b", "c"]))
        askees = [first, *([str(rng.choice(sorted({*"abcd"} - {first})))] if number % 3 == 0 else [])]
        queue.submit([asked], need=len(askees))
        better = asked.a if asked.a.rewards.sum() > asked.b.rewards.sum() else asked.b
        for name in askees:
            (lease,) = queue.claim(name)
            is_wrong = rng.random() < (AGAINST if name == "d" else GOOD)
            choice: Side = "left" if (lease.left == better.id) != is_wrong else "right"
            queue.answers.add(Submission(f"{name}-{number}", lease.token, asked.id, name, choice, 1.0, 2.0))


def accuracy(folder: Path, seed: int, weighs: bool) -> float:
    """On held-out pairs, of a predictor that learned from these people's labels."""
    folder.mkdir()
    ring = Ring(folder)
    people_answer(ring.db, 200, seed)
    trainer = ring.trainer(replace(SMALL, n_initial_epochs=8, weigh_labellers=weighs))
    pretrain(trainer)
    assert (
        (np.mean(list(trainer.labels.weights.values())) == pytest.approx(1)) if weighs else not trainer.labels.weights
    )
    held_out = [segment(50_000 + i) for i in range(1000)]
    true = np.array([one.rewards.sum() for one in held_out])
    observations = np.concatenate([one.observations for one in held_out])
    actions = np.concatenate([one.actions for one in held_out])
    found = predicted_reward(trainer.predictor, observations, actions).reshape(len(held_out), -1).sum(1)
    ring.close()
    return float(np.mean((found[0::2] > found[1::2]) == (true[0::2] > true[1::2])))


@pytest.mark.slow
def test_a_predictor_that_weighs_labellers_is_right_more_often(tmp_path: Path) -> None:
    with_weights = accuracy(tmp_path / "with", seed=0, weighs=True)
    without = accuracy(tmp_path / "without", seed=0, weighs=False)
    assert with_weights > 0.75 and with_weights > without + 0.05, (with_weights, without)
