"""The passes over the initial labels, before the policy starts."""

from __future__ import annotations

import copy
import math
from typing import Any

from torch import nn

PATIENCE_EPOCHS = 5  # pretraining ends if so many epochs
MIN_GAIN = 0.03  # have not lowered the validation loss by this share; smaller gains cost minutes


class Pretraining:
    """Remembers the best weights, and decides when more passes over the initial labels are not worth their time.

    Args:
        max_epochs: passes after which the training has converged in any case.
        n_batches: end after these batches, or if the predictor is frozen not before them; None leaves it to the loss.
    """

    KEPT = ("epochs", "_best", "_gained")

    def __init__(self, max_epochs: int, n_batches: int | None, *, freeze: bool) -> None:
        self.max_epochs, self.n_batches, self.freeze = max_epochs, n_batches, freeze
        self.epochs = 0
        self._best: tuple[float, dict[str, Any]] = (math.inf, {})  # validation loss and weights
        self._gained = (math.inf, 0)  # validation loss and epoch of the last gain that counted

    def count(self, module: nn.Module, loss: float) -> None:
        """Counts one pass, after which the module has this validation loss; NaN if there are no validation labels."""
        self.epochs += 1
        if math.isnan(loss):  # then every pass counts as a gain, and pretraining takes all of them
            loss = -float(self.epochs)
        if loss < self._best[0]:
            self._best = (loss, copy.deepcopy(module.state_dict()))
        if loss < self._gained[0] - MIN_GAIN * abs(loss):
            self._gained = (loss, self.epochs)

    def is_over(self, n_batches: int) -> bool:
        """Returns whether pretraining is over, given the number of batches in all passes so far."""
        converged = self.epochs >= self.ends_at
        if self.n_batches is None:
            return converged
        return n_batches >= self.n_batches and (converged or not self.freeze)

    @property
    def ends_at(self) -> int:
        """Returns the pass after which pretraining will be over, unless a pass before it brings a gain that counts."""
        return min(self.max_epochs, self._gained[1] + PATIENCE_EPOCHS)

    def take_best(self) -> dict[str, Any]:
        """Returns the weights with the lowest validation loss, and forgets them."""
        weights, self._best = self._best[1], (math.inf, {})
        return weights

    def state(self) -> dict[str, Any]:
        """Returns the entries of a checkpoint."""
        return {"epochs": self.epochs, "best": self._best, "gained": self._gained}

    def load(self, state: dict[str, Any]) -> None:
        """Continues from a checkpoint; the oldest ones have no best weights."""
        self.epochs = state["epochs"]
        self._best, self._gained = state.get("best", self._best), state.get("gained", self._gained)
