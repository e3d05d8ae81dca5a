"""The labels that the trainer has read from the store."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drlhp.data.comparison import Label
from drlhp.data.rows import seq_before_newest
from drlhp.errors import DamagedError
from drlhp.labelling.reliability import Vote, label_weights
from drlhp.networks.batches import TrainingPair, bootstrap_count
from drlhp.runtime.turns import StopFlag
from pref_db import PrefDB
from reward_predictor import PredictorConfig

log = logging.getLogger("run")


class LabelSet:
    """The newest labels of the store, `label_buffer` at most: split, weighed and sampled for training.

    Args:
        bell: says that the store has new labels.
        rng: draws the batches.
    """

    def __init__(self, db: PrefDB, bell: StopFlag, config: PredictorConfig, rng: np.random.Generator) -> None:
        self.db, self.bell, self.config, self.rng = db, bell, config, rng
        self.pairs: dict[int, TrainingPair] = {}  # by the answer's sequence number
        self.weights: dict[int, float] = {}  # of the labels in the loss; empty: each counts 1
        self.newest_seq = 0  # of the answers that were read
        self._seq_sampled: int | None = None  # the newest label that was sampled; None: no label counts as new yet
        self._came_at = dict[int, float]()  # when each label was received that the policy's weights know nothing of
        self.lag_seconds = math.nan  # from the last label's coming until the policy got weights that know it

    def receive(self) -> None:
        """Catches up with the store if the bell has rung; the disk is the truth, so each label counts once."""
        if self.newest_seq and not self.bell.is_set():
            return
        self.bell.clear()  # before reading: a label that is committed meanwhile rings again
        for label in self.db.labels(after=seq_before_newest(self.db, self.config.label_buffer, self.newest_seq)):
            if label.retracts is not None:
                self.pairs.pop(label.retracts, None)
            if label.mu is not None:
                self.add(label)
                if (pair := self.pairs.get(label.seq)) and self._teaches(pair):
                    self._came_at[label.seq] = time.monotonic()
            self.newest_seq = max(self.newest_seq, label.seq)
        for seq in sorted(self.pairs)[: -self.config.label_buffer]:
            del self.pairs[seq]
        if self.config.weigh_labellers:
            self._weigh()

    def add(self, label: Label) -> None:
        """Reads the label's two segments, and decides which members learn from it; if one is damaged, none does."""
        try:
            a, b = self.db.stored_segment(label.a), self.db.stored_segment(label.b)
            a.decode(), b.decode()
        except DamagedError as error:
            log.warning("label %d is left out: %s", label.seq, error)
            print(f"Label {label.seq} is left out, because one of its clips is damaged.", flush=True)
            return
        members = range(self.config.ensemble_size)
        counts = tuple(bootstrap_count(label.comparison_id, i) if self.config.bootstraps else 1 for i in members)
        self.pairs[label.seq] = TrainingPair(label, a, b, counts)

    def _weigh(self) -> None:
        """Estimates again how reliable each labeller is, from all answers in the store."""
        rows = self.db.labellers()
        votes = [Vote(labeller, pair, preferred) for _, labeller, pair, preferred in rows if preferred is not None]
        self.weights = label_weights({seq: labeller for seq, labeller, _, _ in rows if seq in self.pairs}, votes)

    def snapshot(self) -> dict[str, Any]:
        """Returns what `restore` takes: the labels by their sequence numbers, because the store holds them."""
        sampled = self._seq_sampled
        return {"seqs": list(self.pairs), "weights": self.weights, "last_seq": self.newest_seq, "seq_sampled": sampled}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes back to the labels of that moment; later ones are received again."""
        self.pairs, seqs = {}, set(state["seqs"])
        for label in self.db.labels(after=min(seqs, default=state["last_seq"]) - 1):
            if label.seq in seqs:
                self.add(label)
        self.weights, self.newest_seq, self._seq_sampled = state["weights"], state["last_seq"], state["seq_sampled"]

    @property
    def n_stored(self) -> int:
        """The number of labels in the store, also of those for which the buffer has no room."""
        n = len(self.pairs)
        return self.db.n_labels() if n == self.config.label_buffer else n

    def weights_of(self, pairs: list[TrainingPair]) -> Tensor:
        """Returns (B,) how much each label counts."""
        return torch.tensor([self.weights.get(pair.label.seq, 1.0) for pair in pairs])

    @property
    def training(self) -> list[TrainingPair]:
        """The labels to train on: those that teach some member, or all if none does."""
        pairs = [pair for pair in self.pairs.values() if self._teaches(pair)]
        return pairs or list(self.pairs.values())

    def _teaches(self, pair: TrainingPair) -> bool:
        """Returns whether a label is not held out, and some member's bootstrap holds it."""
        return any(pair.counts) and not (self.config.hold_out and pair.label.validation)

    @property
    def validation(self) -> list[TrainingPair]:
        """The labels that are held out of the training."""
        return [pair for pair in self.pairs.values() if self.config.hold_out and pair.label.validation]

    def some(self, n: int, rng: np.random.Generator) -> list[TrainingPair]:
        """Draws so many training labels, or all if there are fewer."""
        pairs = self.training
        return [pairs[i] for i in rng.choice(len(pairs), min(n, len(pairs)), replace=False)] if pairs else []

    def batches(self) -> Iterator[list[TrainingPair]]:
        """Yields all training labels once, in random order."""
        pairs, size = self.training, self.config.label_batch_size
        order = self.rng.permutation(len(pairs))
        for start in range(0, len(order), size):
            yield [pairs[i] for i in order[start : start + size]]

    def published(self) -> None:
        """Measures the lag of the labels that were sampled since the last time, as the policy gets what they taught."""
        known = [seq for seq in self._came_at if self._seq_sampled is not None and seq <= self._seq_sampled]
        for seq in known:
            self.lag_seconds = time.monotonic() - self._came_at.pop(seq)

    def treat_next_as_new(self) -> None:
        """Lets the labels that arrive from now on come first in `sample`."""
        self._seq_sampled = self.newest_seq

    def sample(self) -> list[TrainingPair]:
        """Draws a training batch: up to half of it new labels in turn, so that they soon count; the rest at random."""
        training = self.training
        size = min(self.config.label_batch_size, len(training))
        new = [pair for pair in training if self._seq_sampled is not None and pair.label.seq > self._seq_sampled]
        new = new[: (size + 1) // 2]
        self._seq_sampled = new[-1].label.seq if new else training[-1].label.seq
        taken = {pair.label.seq for pair in new}
        others = [pair for pair in training if pair.label.seq not in taken]
        return new + [others[i] for i in self.rng.choice(len(others), size - len(new), replace=False)]
