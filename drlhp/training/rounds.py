"""Asks the initial labels in rounds: what the predictor learns from one round decides what the next one asks."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from drlhp.data.candidate import Candidate
from reward_predictor import PredictorCopySpec

SEGMENTS_AT_ONCE = 16  # judged in one go, so that people are not kept waiting


def round_of(n_labels: int, n_initial: int, n_rounds: int) -> int:
    """Returns the round, from 0, of the next initial label."""
    return n_labels * n_rounds // n_initial


class InitialRounds:
    """Judges the pool before each round except the first, by the weights that the trainer then publishes.

    Args:
        n_rounds: the number of rounds in which the initial labels are asked.
        spec: describes the predictor, and the board to which the trainer publishes its weights after each round.
    """

    KEPT = ("_predictor", "_version", "_judged", "_n_judged")

    def __init__(self, n_rounds: int, spec: PredictorCopySpec) -> None:
        self.n_rounds = n_rounds
        self._predictor, self._board = spec.build().predictor, spec.board
        self._version = 0  # of the weights fetched
        self._judged = 0  # last round for which the whole pool was judged
        self._n_judged = 0  # candidates judged for the next round

    def goal(self, n_labels: int, n_initial: int) -> int:
        """Returns the number of labels at which the present round ends."""
        return -(-(round_of(n_labels, n_initial, self.n_rounds) + 1) * n_initial // self.n_rounds)

    def judged(self, n_labels: int, n_initial: int) -> bool:
        """Returns whether the pool has been judged for the present round."""
        return round_of(n_labels, n_initial, self.n_rounds) <= self._judged

    def judge(self, n_labels: int, n_initial: int, pool: deque[Candidate]) -> bool:
        """Gives some more candidates each member's predicted sums; returns False while there are no new weights."""
        if not self._n_judged:
            if self._board.version == self._version:
                return False
            self._version = self._board.fetch(self._predictor)
        which = range(self._n_judged, min(self._n_judged + SEGMENTS_AT_ONCE, len(pool)))
        returns = self._predictor.segment_returns([pool[i].segment for i in which])
        for i, of_members in zip(which, returns, strict=True):
            pool[i] = replace(pool[i], member_returns=of_members)
        self._n_judged = which.stop
        if self._n_judged == len(pool):
            self._judged, self._n_judged = round_of(n_labels, n_initial, self.n_rounds), 0
        return True
