"""Decides how many labels to ask for by now: first the initial ones, then more as the policy trains."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from drlhp.data.candidate import Candidate
from drlhp.labelling.notices import Notices
from drlhp.runtime.channels import Channels

# The paper's rate of labels after T steps is c / (T + c). Both of its domains have c = Tmax / 10: 2M of 20M steps on
# MuJoCo, 5M of 50M on Atari (appendix A).
ANNEALING = 10.0
LEFT_OVER = 0.01  # share of the labels that rl-teacher's schedule leaves for after its end

ScheduleName = Literal["paper", "stepped", "exponential", "constant"]


def labels_due(steps: float, max_steps: float, n_initial: int, n_total: int, schedule: ScheduleName = "paper") -> int:
    """Returns how many labels a synthetic teacher should have given after so many agent steps of training.

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


class Rounds(Protocol):
    """Asks the initial labels in rounds, each chosen by what the reward predictor learned from those before."""

    def goal(self, n_labels: int, n_initial: int) -> int:
        """Returns the number of labels at which the present round ends."""

    def judged(self, n_labels: int, n_initial: int) -> bool:
        """Returns whether the pool has been judged for the present round."""

    def judge(self, n_labels: int, n_initial: int, pool: deque[Candidate]) -> bool:
        """Judges some candidates more; returns False while there are no new weights to judge by."""


@dataclass
class LabelSchedule:
    """Counts the labels, and says how many there should be by now, as far as the policy has trained."""

    KEPT = ("n_labels", "n_initial", "rounds")

    channels: Channels
    n_labels: int
    name: ScheduleName
    annealed_over: float
    """Agent steps of policy training over which the labels are spread."""
    goal: int
    """Labels after which nobody is asked any more."""
    n_initial_prefs: int
    """Labels to ask for before the policy trains."""
    to_start: int | None
    """Labels with which training starts, if nobody starts it earlier; None without a trainer."""
    is_paced: bool
    """Ask as the policy trains. People otherwise set their own pace."""
    rounds: Rounds | None
    n_initial: int = field(default=0, init=False)
    """Labels with which training starts, as `read` found it."""

    def read(self, notices: Notices) -> None:
        """Looks whether somebody has started training early."""
        self.n_initial = notices.labels_to_start(self.to_start or 0)

    @property
    def steps(self) -> int:
        """Returns the agent steps that the policy has trained for."""
        steps: int = self.channels.agent_steps.value
        return steps

    @property
    def training(self) -> bool:
        """Returns whether the policy has begun to learn."""
        return self.steps > 0

    @property
    def asks_initial(self) -> bool:
        """Returns whether initial labels are still asked for."""
        return self.n_labels < (self.n_initial_prefs if self.to_start is None else self.n_initial)

    @property
    def is_done(self) -> bool:
        """Returns whether there are all labels."""
        return self.n_labels >= self.goal

    @property
    def is_judged(self) -> bool:
        """Returns whether pairs can be chosen now: always, except between two rounds of the initial labels."""
        rounds = self.rounds
        return rounds is None or not self._asks_in_rounds or rounds.judged(self.n_labels, self.n_initial)

    def judge(self, pool: deque[Candidate]) -> bool:
        """Judges some candidates more for the next round; returns False while there are no new weights to judge by."""
        return self.rounds is not None and self.rounds.judge(self.n_labels, self.n_initial, pool)

    def due(self) -> int:
        """Returns how many labels there should be by now."""
        goal = self.goal
        if self.is_paced:
            started_early = self.n_initial < (self.to_start or 0)
            initial = min(self.n_initial if started_early else self.n_initial_prefs, goal)
            goal = min(goal, labels_due(self.steps, self.annealed_over, initial, goal, self.name))
        if self.rounds is not None and self._asks_in_rounds:
            goal = min(goal, self.rounds.goal(self.n_labels, self.n_initial))
        return goal

    def wanted(self, n_open: int) -> int:
        """Returns how many comparisons more to ask for now, beside those that are open."""
        return max(0, self.due() - self.n_labels - n_open)

    @property
    def _asks_in_rounds(self) -> bool:
        """Returns False once the policy trains: it may with fewer labels, by a loaded predictor or after an undo."""
        return self.asks_initial and not self.training
