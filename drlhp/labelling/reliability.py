"""Estimates how reliable each labeller is, and how much their labels count in the loss.

It uses only pairs with several answers. The better segment of a pair is unknown, so it is estimated together with each
labeller's error rate (Dawid and Skene 1979, "Maximum likelihood estimation of observer
error-rates using the EM algorithm"; here with one error rate per labeller, the one-coin model).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

EM_ROUNDS = 100
CONVERGED = 1e-6  # change of an error rate between rounds
START = 0.1  # an error rate while nothing is known
# The prior for weights: one wrong answer in ten. So a few unlucky answers do not silence a labeller, and a labeller who
# shares no pair with others has a weight too.
PRIOR_WRONG, PRIOR_VOTES = 1.0, 10.0


class Vote(NamedTuple):
    """A decisive answer."""

    labeller: str
    comparison_id: str
    preferred: str  # the same word for the same segment, on whichever side it was shown


def shared_votes(votes: Sequence[Vote]) -> list[list[Vote]]:
    """Returns the votes of each pair with several; two votes of one labeller count as two."""
    by_pair: dict[str, list[Vote]] = defaultdict(list)
    for vote in votes:
        by_pair[vote.comparison_id].append(vote)
    return [one for one in by_pair.values() if len(one) > 1]


def error_rates(shared: Sequence[Sequence[Vote]], *, wrong: float = 0.0, votes: float = 0.0) -> dict[str, float]:
    """Returns how often each labeller is wrong about any pair, by expectation maximisation from 10 %.

    Either segment of a pair is as likely to be the better one beforehand.

    Args:
        shared: from `shared_votes`.
        wrong, votes: the prior: each labeller was wrong in this many of this many more votes.
    """
    given = Counter(vote.labeller for one in shared for vote in one)
    rates = dict.fromkeys(given, START)
    for _ in range(EM_ROUNDS):
        expected: dict[str, float] = dict.fromkeys(given, wrong)
        for one in shared:
            reference = one[0].preferred
            logit = 0.0  # of the reference being the better one
            for vote in one:
                logit += log_odds(rates[vote.labeller]) * (1 if vote.preferred == reference else -1)
            p = 1 / (1 + math.exp(-max(-500.0, min(500.0, logit))))
            for vote in one:
                expected[vote.labeller] += 1 - p if vote.preferred == reference else p
        before, rates = rates, {name: expected[name] / (n + votes) for name, n in given.items()}
        if all(abs(rates[name] - before[name]) < CONVERGED for name in rates):
            break
    return rates


def log_odds(rate: float) -> float:
    """Returns ln((1 - e) / e) for an error rate e, and 0 if e is a half or more.

    This is the best weight of a vote among others (Nitzan and Paroush 1982, "Optimal decision rules in uncertain
    dichotomous choice situations").
    """
    rate = min(max(rate, 1e-6), 0.5)
    return math.log((1 - rate) / rate)


def label_weights(labellers: Mapping[int, str], votes: Sequence[Vote]) -> dict[int, float]:
    """Returns the weight of each label: the log odds of its labeller, scaled so that the mean over all labels is 1.

    If no pair has several answers, all weights are 1.

    Args:
        labellers: the labeller of each label, by the label's sequence number.
        votes: all decisive answers, also those of labels that are not among these.
    """
    rates = error_rates(shared_votes(votes), wrong=PRIOR_WRONG, votes=PRIOR_VOTES)
    unknown = PRIOR_WRONG / PRIOR_VOTES
    odds = {seq: log_odds(rates.get(labeller, unknown)) for seq, labeller in labellers.items()}
    total = sum(odds.values())
    return {seq: len(odds) * one / total if total > 0 else 1.0 for seq, one in odds.items()}
