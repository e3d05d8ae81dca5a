"""Fits the ensemble to batches of labels: the optimiser's step, L2, and the running average of the weights."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drlhp.data.segment import Segment
from drlhp.errors import UserError
from drlhp.networks import architectures as networks
from drlhp.networks.batches import PairBatch, TrainingPair
from drlhp.networks.device import CPU
from drlhp.networks.optimizers import UncompiledAdamW
from drlhp.runtime import checkpoint
from drlhp.training.regularisation import L2_START, BagLosses, adapted, decay
from reward_predictor import (
    DIVERGED,
    PredictorConfig,
    PredictorInputs,
    RewardPredictor,
    preference_loss,
    return_loss,
)

AVERAGED_BATCHES = 50
BATCHES_PER_L2_STEP = 50  # about as many as the running losses average over
# On the mean square of the raw rewards. A segment that is wrong by far costs no more for being wrong by farther (the
# error rate), so nothing else brings back a rare picture's reward that has run away; and one such reward spoils
# the scale of all others.
OUTPUT_PENALTY = 0.03


class Learned(NamedTuple):
    """The results of one training batch, (members, B) each, from before the optimiser's step."""

    losses: Tensor
    difference: Tensor
    """The predicted return of segment a less that of segment b."""


class Learner:
    """The ensemble in training, and the running average of its weights.

    The average is steadier, so it is what is measured, saved and published.
    """

    KEPT = ("rng", "ensemble", "average", "optimizer", "l2", "bag_losses", "batches")

    def __init__(
        self,
        inputs: PredictorInputs,
        config: PredictorConfig,
        rng: np.random.Generator,
        device: torch.device = CPU,
        make_network: networks.MakeNetwork | None = None,
    ) -> None:
        """`rng` crops the segments; `make_network` takes the place of the networks that the config names."""
        self.config, self.rng, self.device = config, rng, device
        self.ensemble = RewardPredictor(inputs, config, device, make_network)
        self.average = copy.deepcopy(self.ensemble)
        self.batches = 0
        self.adapts_l2 = config.l2 == "adaptive"
        self.l2 = [L2_START if config.l2 == "adaptive" else config.l2] * config.ensemble_size  # of each member
        self.bag_losses = BagLosses(config.ensemble_size).to(device)
        self.optimizer = UncompiledAdamW(
            self.ensemble.parameters(),
            lr=config.reward_predictor_learning_rate,
            weight_decay=0.0 if config.l2 == "adaptive" else config.l2,
        )

    def decoded(self, pairs: list[TrainingPair], *, crop_steps: int = 0) -> PairBatch:
        """Returns the pairs as one batch on the device, randomly cropped by `crop_steps` at most."""
        return PairBatch.decode(pairs, self.average.n_frames, crop_steps, self.rng).to(self.device)

    def observe(self, segments: Iterable[Segment]) -> None:
        """Normalises the observations by these segments; to be called before the first batch."""
        self.ensemble.observe(segments)
        self.average.load_state_dict(self.ensemble.state_dict())  # there is nothing else to average yet

    def learn(self, batch: PairBatch, weights: Tensor) -> Learned:
        """Takes one optimiser step; every member learns from its own bootstrap of the pairs.

        Args:
            weights: (B,) how much each label counts, about 1 on average so that the learning rate keeps its meaning.

        Raises:
            UserError: the training diverged.
        """
        self.ensemble.train()
        raw = self.ensemble(batch.observations, batch.actions)
        returns_a, returns_b = batch.returns(raw)
        losses = self.losses(batch, returns_a, returns_b)  # (members, B)
        loss = (losses * batch.counts * weights.to(self.device)).sum(1) / batch.counts.sum(1).clamp(min=1)
        loss = loss + OUTPUT_PENALTY * raw.square().mean(1)
        if self.config.reward_l1:
            loss = loss + self.config.reward_l1 * raw.abs().mean(1)
        self.optimizer.zero_grad()
        loss.sum().backward()
        if self.adapts_l2:
            decay(self.ensemble, self.l2, self.config.reward_predictor_learning_rate)
        self.optimizer.step()
        if not self.ensemble.is_finite():  # before it is in the average, and so in the policy's rewards
            raise UserError(DIVERGED)
        self._move_average()
        self.bag_losses.add(losses.detach(), batch.counts)
        self.batches += 1
        return Learned(losses.detach(), (returns_a - returns_b).detach())

    def losses(self, batch: PairBatch, returns_a: Tensor, returns_b: Tensor) -> Tensor:
        """Returns (members, B) losses, by `--reward_target`."""
        if self.config.reward_target == "true_return":
            return return_loss(returns_a, returns_b, batch.true_returns)
        return preference_loss(returns_a, returns_b, batch.mu, self.config.label_error_rate)

    @torch.no_grad()
    def _move_average(self) -> None:
        """Moves the average towards the ensemble; over fewer batches at the start, when every batch changes much."""
        share = max(1 / AVERAGED_BATCHES, 1 / (1 + 0.2 * self.batches))
        torch._foreach_lerp_(list(self.average.parameters()), list(self.ensemble.parameters()), share)

    def member_losses(self, validation_loss: float) -> dict[str, list[float]]:
        """Returns each member's loss in and out of its bootstrap, and their ratio; NaN while unknown.

        Without bootstraps each member has all labels, so the validation labels stand in for those out of it.
        """
        in_bag, out_of_bag = self.bag_losses.means()
        if not self.config.bootstraps:
            out_of_bag = [validation_loss] * self.average.n_members
        ratio = [outside / inside for inside, outside in zip(in_bag, out_of_bag, strict=True)]
        return {"in_bag_loss": in_bag, "out_of_bag_loss": out_of_bag, "out_of_bag_ratio": ratio}

    def adapt_l2(self, validation_loss: float) -> None:
        """Moves each member's L2 coefficient by how much the member overfits, every `BATCHES_PER_L2_STEP`."""
        if self.adapts_l2 and self.batches % BATCHES_PER_L2_STEP == 0:
            ratios = self.member_losses(validation_loss)["out_of_bag_ratio"]
            self.l2 = [adapted(l2, ratio) for l2, ratio in zip(self.l2, ratios, strict=True)]

    @torch.inference_mode()
    def settle(self, batch: PairBatch) -> None:
        """Fits the average's batch norm and normaliser to these labels, so that it predicts normalised rewards."""
        self.average.fit_normaliser(self.average.settle_batchnorm(batch.observations, batch.actions))

    def take(self, weights: dict[str, Any], path: Path | None = None) -> None:
        """Loads weights into the ensemble and its average; raises CheckpointError if those of `path` do not fit."""
        for module in (self.average, self.ensemble):
            if path is None:
                module.load_state_dict(weights)
            else:
                checkpoint.fill(module, weights, path)

    def state(self) -> dict[str, Any]:
        """Returns the entries of a checkpoint."""
        return {
            "weights": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "l2": self.l2,
            "bag_losses": self.bag_losses.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continues from a checkpoint of this run, whose weights are loaded, with the settings of this start."""
        settings = {name: self.optimizer.param_groups[0][name] for name in ("lr", "weight_decay")}
        checkpoint.fill_optimizer(self.optimizer, state["optimizer"])
        self.optimizer.param_groups[0].update(settings)
        if "l2" in state:  # older checkpoints have none
            self.bag_losses.load_state_dict(state["bag_losses"])
            self.l2 = state["l2"] if self.adapts_l2 else self.l2
        self.batches = state["step"]
