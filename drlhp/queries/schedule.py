"""TODO."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    pass  # takes PyTorch, which whoever has no rounds can do without


# The paper's rate of labels after T steps is c / (T + c). Both of its domains have c = Tmax / 10: 2M of 20M steps on
# MuJoCo, 5M of 50M on Atari (appendix A).
ANNEALING = 10.0


LEFT_OVER = 0.01  # of the labels, at the end of rl-teacher's schedule


LabelSchedule = Literal["paper", "stepped", "exponential", "constant"]


def labels_due(steps: float, max_steps: float, n_initial: int, n_total: int, schedule: LabelSchedule = "paper") -> int:
    """How many labels a synthetic teacher should have given after so many agent steps of training.

    With x the share of the training that is over, the share of the later labels is
    `paper` (appendix A.1, its rate summed up): ln(1 + 10 x) / ln(1 + 10);
    `stepped` (appendix A.2): in each tenth of the training its rate at the beginning of that tenth;
    `exponential` (rl-teacher): 1 - 0.01^x;
    `constant`: x.
    """
    if max_steps <= 0:
        return n_total
    x = min(steps / max_steps, 1.0)
    if schedule == "paper":
        share = math.log1p(ANNEALING * x) / math.log1p(ANNEALING)
    elif schedule == "stepped":
        rates = 1 / (1 + np.arange(ANNEALING))
        share = float(np.interp(ANNEALING * x, np.arange(ANNEALING + 1), np.cumsum([0, *rates]) / rates.sum()))
    else:
        share = 1 - LEFT_OVER**x if schedule == "exponential" else x
    return n_initial + int((n_total - n_initial) * share)
