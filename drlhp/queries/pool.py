"""Keeps the newest segments, from which the pairs to ask about are chosen."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from drlhp.data.candidate import Candidate
from drlhp.runtime.channels import drain

TAKEN_AT_ONCE = 64  # segments, so that people are not kept waiting
UNTRAINED_KEPT = 100  # segments from before the training that stay in the pool when it begins
IN_VAIN = 200  # segments in a row without a new pair after which none is expected; a pool's worth if that is more


class Pool(deque[Candidate]):
    """The newest candidates, at most `maxlen`, and the ids of those that were asked about before training."""

    def __init__(self, candidates: Iterable[Candidate] = (), maxlen: int | None = None) -> None:
        super().__init__(candidates, maxlen)
        self.asked_about = set[str]()
        self.in_vain = 0  # segments taken since the last new pair, or since none was wanted

    def snapshot(self) -> dict[str, Any]:
        """Returns what `restore` takes."""
        asked_about, candidates = sorted(self.asked_about), [one.snapshot() for one in self]
        return {"candidates": candidates, "asked_about": asked_about, "in_vain": self.in_vain}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes the place of the pool that it was."""
        self.clear()
        self.extend(Candidate.of_snapshot(one) for one in state["candidates"])
        self.asked_about, self.in_vain = set(state["asked_about"]), state["in_vain"]

    @property
    def is_full(self) -> bool:
        """Returns whether each new candidate replaces the oldest."""
        return len(self) == self.maxlen

    @property
    def oldest_step(self) -> int:
        """Returns the policy step at which its oldest segment was cut; 0 if there is none."""
        return self[0].segment.policy_step if self else 0

    def take(self, queue: Any) -> bool:
        """Moves candidates from a queue to the pool, without waiting; returns False if there was none."""
        taken = drain(queue, limit=TAKEN_AT_ONCE)
        self.extend(taken)
        self.in_vain += len(taken)
        return bool(taken)

    @property
    def waited_in_vain(self) -> bool:
        """Returns whether so many segments have made no new pair that later ones will not either."""
        return self.in_vain >= max(IN_VAIN, self.maxlen or 0)

    @property
    def n_different(self) -> int:
        """Returns how many segments it holds that differ from each other."""
        return len({one.segment.id for one in self})

    def unseen(self) -> list[Candidate]:
        """Returns the candidates that were not asked about."""
        return list(self._unseen())

    @property
    def has_unseen_pair(self) -> bool:
        """Whether two candidates were not asked about; ends at the second, because ids take time."""
        return len(list(islice(self._unseen(), 2))) == 2

    def _unseen(self) -> Iterator[Candidate]:
        return (one for one in self if one.segment.id not in self.asked_about)

    def keep_a_few(self, rng: np.random.Generator) -> None:
        """Drops all but a random few, because training begins.

        The untrained policy's segments are well covered by the initial labels. They would otherwise be most of what
        is asked about for tens of thousands of steps.
        """
        kept = [self[i] for i in sorted(rng.permutation(len(self))[:UNTRAINED_KEPT])]
        self.clear()
        self.extend(kept)

    def forget_returns(self) -> None:
        """Drops the predictions for all candidates, because the reward predictor has learned since."""
        forgotten = [replace(one, member_returns=None) for one in self]
        self.clear()
        self.extend(forgotten)
