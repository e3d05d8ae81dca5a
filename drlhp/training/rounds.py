"""The initial labels in rounds: what the predictor learns from one round chooses what is asked in the next."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from drlhp.data.candidate import Candidate
from reward_predictor import PredictorCopySpec

SEGMENTS_AT_ONCE = 16  # that are judged before people are listened to again


def round_of(n_labels: int, n_initial: int, n_rounds: int) -> int:
    """The round, from 0, to which the next initial label belongs, when there are so many."""
    return n_labels * n_rounds // n_initial


class InitialRounds:
    """Judges the pool before each round but the first, by the weights that the trainer has then published.

    Args:
        n_rounds: in which the initial labels are asked.
        spec: of the predictor, and of the board on which the trainer shows what it has learned from each round.
    """

    def __init__(self, n_rounds: int, spec: PredictorCopySpec) -> None:
        self.n_rounds = n_rounds
        self._predictor, self._board = spec.build().predictor, spec.board
        self._version = 0  # of the weights
        self._judged = 0  # the round for which the pool was judged last
        self._n_judged = 0  # segments, for the next one

    def goal(self, n_labels: int, n_initial: int) -> int:
        """Labels with which the present round ends."""
        return -(-(round_of(n_labels, n_initial, self.n_rounds) + 1) * n_initial // self.n_rounds)

    def judged(self, n_labels: int, n_initial: int) -> bool:
        """Whether the pool has been judged for the present round."""
        return round_of(n_labels, n_initial, self.n_rounds) <= self._judged

    def judge(self, n_labels: int, n_initial: int, pool: deque[Candidate]) -> bool:
        """Gives some segments more the sums of what each member now predicts; False while there are no new weights."""
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
