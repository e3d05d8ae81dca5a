"""How well the predictor predicts answers: on labels that it was trained on, and on those that are held out."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from drlhp.runtime.turns import ProcessorTurns
from drlhp.training.labels import LabelSet
from drlhp.training.learner import Learned, Learner
from reward_predictor import agreement

RECENT_BATCHES = 50  # training batches that the running measurement covers
MEASURED_LABELS = 100  # of the validation labels, the newest


@dataclass(frozen=True)
class Quality:
    """Mean loss, and the share of right answers among those that prefer a segment; NaN while unknown."""

    loss: float = math.nan
    accuracy: float = math.nan

    @classmethod
    def of(cls, losses: list[float], right: int, decisive: int) -> Quality:
        """Returns the quality of predictions with these losses, and so many right answers of so many."""
        known = [loss for loss in losses if not math.isnan(loss)]
        return cls(float(np.mean(known)) if known else math.nan, right / decisive if decisive else math.nan)


class Measurements:
    """The newest quality on validation labels, and the running one on training labels."""

    KEPT = ("validation", "training", "_recent")

    def __init__(self) -> None:
        self.validation, self.training = Quality(), Quality()
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=RECENT_BATCHES)  # loss, right answers, of how many

    def count(self, learned: Learned, mu: Tensor) -> None:
        """Takes in a training batch with answers `mu` (B, 2)."""
        self._recent.append((learned.losses.mean().item(), *agreement(learned.difference.mean(0), mu)))

    @torch.inference_mode()
    def measure(self, learner: Learner, labels: LabelSet, turns: ProcessorTurns) -> None:
        """Measures the average on the newest validation labels, and sums up the newest training batches."""
        losses, right, decisive = list[float](), 0, 0
        pairs, size, quick = (
            labels.validation[-MEASURED_LABELS:],
            labels.config.label_batch_size,
            learner.average.folded(),
        )
        for start in range(0, len(pairs), size):
            part = pairs[start : start + size]
            batch = learner.decoded(part)
            with turns.trainer():
                returns_a, returns_b = batch.returns(quick.predict(batch.observations, batch.actions))
            weighted = learner.losses(batch, returns_a, returns_b) * labels.weights_of(part).to(learner.device)
            losses += weighted.mean(0).tolist()
            answers = agreement(returns_a.mean(0) - returns_b.mean(0), batch.mu)
            right, decisive = right + answers[0], decisive + answers[1]
        self.validation = Quality.of(losses, right, decisive)
        self.training = Quality.of(*_summed(self._recent))

    def points(self, learner: Learner) -> dict[str, float]:
        """Returns a point of each curve of the newest quality, and of each member's, by name."""
        values: dict[str, float] = {}
        for split, quality in (("training", self.training), ("validation", self.validation)):
            values[f"reward_predictor/{split}_loss"] = quality.loss
            values[f"reward_predictor/{split}_accuracy"] = quality.accuracy
        of_members = learner.member_losses(self.validation.loss)
        for name, each in {**of_members, "l2": learner.l2}.items():
            values[f"reward_predictor/{name}"] = float(np.mean(each))
            values |= {f"reward_predictor_members/{name}_{i}": value for i, value in enumerate(each)}
        return values


def _summed(batches: deque[tuple[float, int, int]]) -> tuple[list[float], int, int]:
    """Returns the losses, and the sums of right answers and of those that count."""
    return [loss for loss, _, _ in batches], sum(right for _, right, _ in batches), sum(n for _, _, n in batches)
