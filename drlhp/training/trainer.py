"""The process that trains the reward predictor (section 2.2.3 of Christiano et al. 2017)."""

from __future__ import annotations

import copy
import math
import shutil
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drlhp.errors import UserError
from drlhp.labelling.notices import Notices
from drlhp.labelling.reliability import Vote, label_weights
from drlhp.networks import architectures as networks
from drlhp.networks.batches import PairBatch, TrainingPair, bootstrap_count
from drlhp.networks.device import CPU, use_threads
from drlhp.runtime import checkpoint
from drlhp.runtime.channels import Channels, Report
from drlhp.runtime.curves import Curves
from drlhp.runtime.machine import n_cores
from drlhp.runtime.weights import WeightsBoard
from drlhp.training.regularisation import L2_START, BagLosses, adapted, decay
from drlhp.training.rounds import round_of
from pref_db import PrefDB
from reward_predictor import (
    ARCHITECTURE,
    DIVERGED,
    PredictorConfig,
    PredictorInputs,
    RewardPredictor,
    agreement,
    inputs_as_dict,
    preference_loss,
    return_loss,
)

MEASURED_LABELS = 100  # of the validation labels, the newest
PATIENCE_EPOCHS = 5  # pretraining ends when so many epochs
MIN_GAIN = 0.02  # have not brought the validation loss down by this share: the rest is creeping, which costs minutes
AVERAGED_BATCHES = 50
BATCHES_PER_ROUND = 100  # at least, after each round of initial labels
BATCHES_PER_L2_STEP = 50  # about as many as the running losses average over
OBSERVED_PAIRS = 200  # labels whose segments, some 10,000 frames, tell the mean and deviation of each pixel
SETTLING_PAIRS = 16  # labels whose segments give batch norm its statistics, and the reward its zero and scale
# On the mean square of the raw rewards. A segment that is wrong by far costs no more for being wrong by farther (the
# error rate), so nothing else brings back a rare picture's reward that has run away; and one such reward spoils
# the scale of all others.
OUTPUT_PENALTY = 0.03
BACKLOG_BATCHES = 10  # what a trainer that fell behind makes up for beside the last rollout; the rest is let go
REPORT_SECONDS = 1.0


@dataclass(frozen=True)
class Intervals:
    """Training batches between two of what the trainer does besides; `--reward_predictor_ckpt_interval` is a flag."""

    publish: int = 10  # its weights to the policy
    measure: int = 50
    receive: int = 1  # new labels


@dataclass(frozen=True, kw_only=True)
class TrainerSpec:
    """Describes a trainer to the process that runs it."""

    inputs: PredictorInputs
    env_id: str
    config: PredictorConfig
    run_dir: Path
    """Holds the store of labels, and receives checkpoints and curves."""
    board: WeightsBoard | None
    """Carries the weights to the policy; None if no policy uses them."""
    seed: int
    n_initial_prefs: int
    """Labels that pretraining waits for."""
    freeze: bool
    """Finish after pretraining."""
    resume: bool
    """Continue from this run's newest checkpoint, if there is one."""
    improve: bool = False
    """Pretrain on these labels even a predictor that another run has pretrained."""
    device: torch.device = CPU
    n_threads: int = 1
    """CPU threads of the trainer's own process once the policy learns."""
    intervals: Intervals = Intervals()
    rollout_steps: int = 0
    """Agent steps that the policy takes at a time."""
    n_initial_batches: int | None = None
    """End pretraining after these batches, or if frozen not before them; None leaves the end to the loss."""
    make_network: networks.MakeNetwork | None = None
    """Makes a user's own network, in place of those that `config` names."""
    n_initial_rounds: int = 1
    """Rounds of initial labels; after each, what it has taught goes to `query_board`."""
    query_board: WeightsBoard | None = None


class Trainer:
    """Owns the predictor's weights: waits for the initial labels, pretrains, then trains as the policy goes on."""

    def __init__(self, channels: Channels, spec: TrainerSpec) -> None:
        """Reads the store of a run folder."""
        assert channels.bell is not None
        self.bell = channels.bell
        torch.manual_seed(spec.seed)
        inputs, config, device, make_network = spec.inputs, spec.config, spec.device, spec.make_network
        self.inputs, self.intervals, self.n_initial_batches = inputs, spec.intervals, spec.n_initial_batches
        self.env_id, self.config, self.channels, self.board, self.run_dir = (
            spec.env_id,
            config,
            channels,
            spec.board,
            spec.run_dir,
        )
        self.n_initial_prefs, self.freeze, self.rollout_steps = spec.n_initial_prefs, spec.freeze, spec.rollout_steps
        self.n_initial_rounds, self.query_board = spec.n_initial_rounds, spec.query_board
        self._rounds_learned = 0
        self.own_network = make_network is not None
        self.learner = RewardPredictor(inputs, config, device, make_network)
        # The running average of the learner's weights: steadier, so it is what is measured, saved and published.
        self.predictor = copy.deepcopy(self.learner)
        self.adapts_l2 = config.l2 == "adaptive"
        self.l2 = [L2_START if config.l2 == "adaptive" else config.l2] * config.ensemble_size  # of each member
        self.bag_losses = BagLosses(config.ensemble_size).to(device)
        self.optimizer = torch.optim.AdamW(
            self.learner.parameters(),
            lr=config.reward_predictor_learning_rate,
            weight_decay=0.0 if config.l2 == "adaptive" else config.l2,
        )
        self.rng = np.random.default_rng(spec.seed)
        self.db = PrefDB.open(spec.run_dir / "prefs.db", read_only=True)
        self.pairs: dict[int, TrainingPair] = {}  # by the answer's sequence number
        self.weights: dict[int, float] = {}  # of the labels in the loss; empty: each counts 1
        self.last_seq = 0
        self._seq_sampled: int | None = None  # of the newest label that was trained on; None: of what is there at first
        self.batches, self.epochs, self.labels_trained = 0, 0, 0
        self._received_at = 0  # batch
        self._owed, self._steps_seen = 0.0, 0  # labels to train on, by the agent steps taken so far
        self.pretrained = False
        self._save_by = time.monotonic() + checkpoint.MAX_SECONDS
        self.validation = {"loss": float("nan"), "accuracy": float("nan")}
        self.training = {"loss": float("nan"), "accuracy": float("nan")}
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=50)
        self._best: tuple[float, dict[str, Any]] = (float("inf"), {})  # validation loss and weights
        self._gained = (float("inf"), 0)  # validation loss and epoch of the last gain that counted
        self.curves = Curves(self.run_dir, "reward_predictor")
        self._reported = 0.0
        self._load(spec.resume)
        if spec.improve and not self.batches:
            self.pretrained = False

    @property
    def finished(self) -> bool:
        """True once a frozen predictor has nothing left to learn."""
        return self.freeze and self.pretrained

    def step(self) -> bool:
        """Takes in new labels and trains a little; False if there was nothing to do but wait."""
        if not self.pretrained or not self.pairs:
            self._receive()
        worked = False
        if not self.pretrained:
            if self._may_start() and self._split(validation=False):
                self._pretrain_epoch()
                worked = True
            else:
                worked = self._learn_round()
        elif not self.freeze and (n_batches := self._batches_due()):
            with self.channels.turns.trainer():  # for all of them: one rollout of PPO's makes several due
                self._train(n_batches)
            worked = True
        else:
            self._receive()  # though nothing is learned from them now, they are counted
        if self.channels.save.is_set():
            if self.batches:
                path = self.save()
                shutil.copy(path, path.with_name(f"saved-{path.name}"))  # which no newer checkpoint removes
            self.channels.save.clear()
        self._report()
        return worked

    def _train(self, n_batches: int) -> None:
        """So many batches as the policy goes on, and besides what they are the occasion for."""
        for _ in range(n_batches):
            if self.batches - self._received_at >= self.intervals.receive:
                self._receive()
            if self.channels.stop.is_set() or not self.pairs:  # the only label may have been taken back
                return
            self._train_batch(self._sample())
            if self.batches % self.intervals.publish == 0:
                self._publish()
            if self.batches % self.intervals.measure == 0:
                self._measure()
            if self.batches % self.config.reward_predictor_ckpt_interval == 0 or time.monotonic() > self._save_by:
                self.save()
            self._report()

    def _may_start(self) -> bool:
        """Whether the initial labels are there, or those that somebody wants to do with."""
        n = self._n_labels()
        return n >= self.n_initial_prefs or n >= Notices(self.db).labels_to_start(self.n_initial_prefs)

    def _n_labels(self) -> int:
        """Labels that there are, also those for which the buffer has no room."""
        n = len(self.pairs)
        return self.db.n_labels() if n == self.config.label_buffer else n

    def _receive(self) -> None:
        """Catches up with the store if the bell has rung; the disk is the truth, so each label counts once."""
        self._received_at = self.batches
        if self.last_seq and not self.bell.is_set():
            return
        self.bell.clear()  # before reading: a label that is committed meanwhile rings again
        for label in self.db.labels(after=self.last_seq):
            if label.retracts is not None:
                self.pairs.pop(label.retracts, None)
            if label.mu is not None:
                counts = tuple(
                    bootstrap_count(label.comparison_id, i) if self.config.bootstraps else 1
                    for i in range(self.predictor.n_members)
                )
                self.pairs[label.seq] = TrainingPair(
                    label, self.db.stored_segment(label.a), self.db.stored_segment(label.b), counts
                )
            self.last_seq = max(self.last_seq, label.seq)
        for seq in sorted(self.pairs)[: -self.config.label_buffer]:
            del self.pairs[seq]
        if self.config.weigh_labellers:
            self._weigh()

    def _weigh(self) -> None:
        """Estimates anew who is reliable, from all answers that the store has."""
        rows = self.db.labellers()
        votes = [Vote(labeller, pair, preferred) for _, labeller, pair, preferred in rows if preferred is not None]
        self.weights = label_weights({seq: labeller for seq, labeller, _, _ in rows if seq in self.pairs}, votes)

    def _weights(self, pairs: list[TrainingPair]) -> Tensor:
        """(B,) what each label counts."""
        weights = [self.weights.get(pair.label.seq, 1.0) for pair in pairs]
        return torch.tensor(weights, device=self.predictor.device)

    def _split(self, *, validation: bool) -> list[TrainingPair]:
        """The labels of one side of the split; a handful that all fell to validation are trained on all the same."""
        holds_out = self.config.hold_out
        pairs = [pair for pair in self.pairs.values() if (holds_out and pair.label.validation) == validation]
        return pairs if pairs or validation else list(self.pairs.values())

    def _sample(self) -> list[TrainingPair]:
        """A training batch: up to half of it new labels, in turn, so that they soon count; the others at random."""
        train = self._split(validation=False)
        size = min(self.config.label_batch_size, len(train))
        new = [pair for pair in train if self._seq_sampled is not None and pair.label.seq > self._seq_sampled]
        new = new[: (size + 1) // 2]
        self._seq_sampled = new[-1].label.seq if new else train[-1].label.seq
        taken = {pair.label.seq for pair in new}
        others = [pair for pair in train if pair.label.seq not in taken]
        return new + [others[i] for i in self.rng.choice(len(others), size - len(new), replace=False)]

    def _decoded(self, pairs: list[TrainingPair], *, crop_steps: int = 0) -> PairBatch:
        batch = PairBatch.decode(pairs, self.predictor.n_frames, crop_steps, self.rng)
        return batch.to(self.predictor.device)

    def _batches_due(self) -> int:
        """Batches by which training keeps pace with the policy, so that neither starves the other."""
        rate, size = self.config.labels_per_step, self.config.label_batch_size
        steps = self.channels.agent_steps.value
        self._owed += (steps - self._steps_seen) * rate
        self._owed = min(self._owed, BACKLOG_BATCHES * size + self.rollout_steps * rate)
        self._steps_seen = steps
        if not self._split(validation=False):
            return 0
        n_batches = int(self._owed // size)
        self._owed -= n_batches * size
        return n_batches

    def _train_batch(self, pairs: list[TrainingPair]) -> None:
        """One optimiser step; every member learns from its own bootstrap of the pairs."""
        batch = self._decoded(pairs, crop_steps=self.config.crop_steps)
        with self.channels.turns.trainer():
            losses, difference = self._descend(batch, self._weights(pairs))
            self.bag_losses.add(losses, batch.counts)
        self.batches += 1
        self.channels.trained_batches.value = self.batches
        if self.adapts_l2 and self.batches % BATCHES_PER_L2_STEP == 0:
            ratios = self.member_losses()["out_of_bag_ratio"]
            self.l2 = [adapted(l2, ratio) for l2, ratio in zip(self.l2, ratios, strict=True)]
        self.labels_trained += len(pairs)
        self._recent.append((losses.mean().item(), *agreement(difference.mean(0), batch.mu)))

    def _descend(self, batch: PairBatch, weights: Tensor) -> tuple[Tensor, Tensor]:
        """One optimiser step; returns losses and differences of the segments' returns, (members, B) each.

        weights: (B,) what each label counts, about 1 on average so that the learning rate keeps its meaning.
        """
        self.learner.train()
        raw = self.learner(batch.observations, batch.actions)
        returns_a, returns_b = batch.returns(raw)
        losses = self._losses(batch, returns_a, returns_b)  # (members, B)
        loss = (losses * batch.counts * weights).sum(1) / batch.counts.sum(1).clamp(min=1)
        loss = loss + OUTPUT_PENALTY * raw.square().mean(1)
        self.optimizer.zero_grad()
        loss.sum().backward()
        if self.adapts_l2:
            decay(self.learner, self.l2, self.config.reward_predictor_learning_rate)
        self.optimizer.step()
        if not self.learner.is_finite():  # before it is in the average, and so in the policy's rewards
            raise UserError(DIVERGED)
        self._average()
        return losses.detach(), (returns_a - returns_b).detach()

    def _losses(self, batch: PairBatch, returns_a: Tensor, returns_b: Tensor) -> Tensor:
        """(members, B) losses by what the predictor is fitted to."""
        if self.config.reward_target == "true_return":
            return return_loss(returns_a, returns_b, batch.true_returns)
        return preference_loss(returns_a, returns_b, batch.mu, self.config.label_error_rate)

    def member_losses(self) -> dict[str, list[float]]:
        """Each member's loss in and out of its bootstrap, and their ratio; NaN while unknown.

        Without bootstraps each member has all labels: the validation labels stand in for those out of it.
        """
        in_bag, out_of_bag = self.bag_losses.means()
        if not self.config.bootstraps:
            out_of_bag = [self.validation["loss"]] * self.predictor.n_members
        ratio = [outside / inside for inside, outside in zip(in_bag, out_of_bag, strict=True)]
        return {"in_bag_loss": in_bag, "out_of_bag_loss": out_of_bag, "out_of_bag_ratio": ratio}

    @torch.no_grad()
    def _average(self) -> None:
        """Moves the average towards the learner; over fewer batches at the start, when every batch changes much."""
        share = max(1 / AVERAGED_BATCHES, 1 / (1 + 0.2 * self.batches))
        torch._foreach_lerp_(list(self.predictor.parameters()), list(self.learner.parameters()), share)

    @torch.inference_mode()
    def _settle(self) -> None:
        """Readies the average for prediction, of normalised rewards, on some of the labels that it was trained on."""
        if train := self._split(validation=False):
            rng = np.random.default_rng(self.batches)  # of its own: when it is called depends on the clock
            pairs = [train[i] for i in rng.choice(len(train), min(SETTLING_PAIRS, len(train)), replace=False)]
            batch = self._decoded(pairs)
            with self.channels.turns.trainer():
                self.predictor.fit_normaliser(self.predictor.settle_batchnorm(batch.observations, batch.actions))

    def _learn_round(self) -> bool:
        """Learns a little from the rounds of initial labels that are complete, to choose what the next one asks."""
        if self.query_board is None:
            return False
        n_rounds = round_of(self._n_labels(), self.n_initial_prefs, self.n_initial_rounds)
        if n_rounds <= self._rounds_learned or not self._split(validation=False):
            return False
        until = self.batches + BATCHES_PER_ROUND
        while self.batches < until:
            if not self._pass():
                return True
        self._settle()
        self.query_board.publish(self.predictor)
        self._rounds_learned = n_rounds
        return True

    def _pass(self) -> bool:
        """One pass over the training labels; False if the run was stopped meanwhile."""
        train = self._split(validation=False)
        starts_afresh = not self.batches and not self.config.load_reward_predictor_ckpt_dir
        if starts_afresh and self.config.reward_predictor_normalises_pixels:
            self.learner.observe(stored.decode() for pair in train[:OBSERVED_PAIRS] for stored in (pair.a, pair.b))
            self.predictor.load_state_dict(self.learner.state_dict())  # the average has nothing else to average yet
        order = self.rng.permutation(len(train))
        size = self.config.label_batch_size
        for start in range(0, len(order), size):
            if self.channels.stop.is_set():
                return False
            self._train_batch([train[i] for i in order[start : start + size]])
            self._report()
        return True

    def _pretrain_epoch(self) -> None:
        """One pass over the training labels; ends pretraining when the validation loss no longer falls."""
        if not self._pass():
            return
        self.epochs += 1
        self._settle()
        self._measure()
        loss = self.validation["loss"]
        if math.isnan(loss):  # too few labels for a validation set: take all the passes
            loss = -float(self.epochs)
        if loss < self._best[0]:
            self._best = (loss, copy.deepcopy(self.predictor.state_dict()))
        if loss < self._gained[0] - MIN_GAIN * abs(loss):
            self._gained = (loss, self.epochs)
        if self._pretrained_enough():
            for module in (self.predictor, self.learner):
                module.load_state_dict(self._best[1])
            self._start_policy()
        elif time.monotonic() > self._save_by:
            self.save()

    def _pretrained_enough(self) -> bool:
        """Whether pretraining ends with this pass."""
        converged = self.epochs >= self.config.n_initial_epochs or self.epochs - self._gained[1] >= PATIENCE_EPOCHS
        if self.n_initial_batches is None:
            return converged
        return self.batches >= self.n_initial_batches and (converged or not self.freeze)

    def _start_policy(self) -> None:
        """Pretraining is over: the first weights that are published start the policy."""
        self.pretrained, self._best, self._seq_sampled = True, (math.inf, {}), self.last_seq
        self._publish()
        self._measure()
        self.save()

    @torch.inference_mode()
    def _measure(self) -> None:
        """Loss and accuracy of the ensemble on the newest validation labels, and running ones on training labels."""
        measured: list[tuple[float, int, int]] = []
        pairs = self._split(validation=True)[-MEASURED_LABELS:]
        size, quick = self.config.label_batch_size, self.predictor.folded()
        for start in range(0, len(pairs), size):
            batch = self._decoded(pairs[start : start + size])
            with self.channels.turns.trainer():
                returns_a, returns_b = batch.returns(quick.predict(batch.observations, batch.actions))
            losses = self._losses(batch, returns_a, returns_b) * self._weights(pairs[start : start + size])
            measured += [(loss, 0, 0) for loss in losses.mean(0).tolist()]
            measured.append((math.nan, *agreement(returns_a.mean(0) - returns_b.mean(0), batch.mu)))
        self.validation, self.training = _summed(measured), _summed(self._recent)
        self._log()

    def _publish(self) -> None:
        """Hands the weights to the policy."""
        self._settle()
        if self.board is not None:
            self.board.publish(self.predictor)

    def _log(self) -> None:
        """Writes a point of each curve."""
        values: dict[str, float] = {}
        for split, measured in (("training", self.training), ("validation", self.validation)):
            values |= {f"reward_predictor/{split}_{name}": value for name, value in measured.items()}
        for name, of_members in {**self.member_losses(), "l2": self.l2}.items():
            values[f"reward_predictor/{name}"] = float(np.mean(of_members))
            values |= {f"reward_predictor_members/{name}_{i}": value for i, value in enumerate(of_members)}
        values["reward_predictor/labels"] = len(self.pairs)
        values["reward_predictor/labels_trained"] = self.labels_trained
        self.curves.add(values, self.batches)

    def _report(self) -> None:
        now = time.monotonic()
        if now - self._reported < REPORT_SECONDS:
            return
        self._reported = now
        self.channels.reports.put(Report("reward predictor", self.status()))

    def status(self) -> dict[str, float]:
        """Numbers for the progress line and the summary."""
        return {
            "labels": float(len(self.pairs)),
            "epochs": float(self.epochs),
            "max_epochs": float(self.config.n_initial_epochs),
            "batches": float(self.batches),
            "pretrained": float(self.pretrained),
            "training_accuracy": self.training["accuracy"],
            "validation_loss": self.validation["loss"],
            "validation_accuracy": self.validation["accuracy"],
        }

    def save(self) -> Path:
        """Writes a checkpoint of the predictor."""
        self._save_by = time.monotonic() + checkpoint.MAX_SECONDS
        self._settle()
        return checkpoint.save(
            self.run_dir / "reward_predictor",
            self.batches,
            {
                "kind": "reward_predictor",
                "env_id": self.env_id,
                "config": {name: getattr(self.config, name) for name in ARCHITECTURE},
                "inputs": inputs_as_dict(self.inputs),
                "own_network": self.own_network,
                "epochs": self.epochs,
                "pretrained": self.pretrained,
                "best": self._best,
                "gained": self._gained,
                "weights": self.predictor.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "l2": self.l2,
                "bag_losses": self.bag_losses.state_dict(),
                "random": torch.get_rng_state(),
            },
        )

    def _load(self, resume: bool) -> None:
        """Goes on from this run's newest checkpoint, or starts from the predictor of another run."""
        own = self.run_dir / "reward_predictor"
        if resume and checkpoint.list_checkpoints(own):
            path = checkpoint.find(own, "reward_predictor")
        elif self.config.load_reward_predictor_ckpt_dir:
            path = checkpoint.find(Path(self.config.load_reward_predictor_ckpt_dir), "reward_predictor")
        else:
            return
        state = checkpoint.load(path, kind="reward_predictor", env_id=self.env_id)
        for module in (self.predictor, self.learner):
            checkpoint.fill(module, state["weights"], path)
        self.pretrained = state["pretrained"]
        if path.parent == own:
            flags = {name: self.optimizer.param_groups[0][name] for name in ("lr", "weight_decay")}
            self.optimizer.load_state_dict(state["optimizer"])
            self.optimizer.param_groups[0].update(flags)  # those of this start hold, not those of the checkpoint
            if "l2" in state:  # else it is a checkpoint from before there were any
                self.bag_losses.load_state_dict(state["bag_losses"])
                self.l2 = state["l2"] if self.adapts_l2 else self.l2
            self.batches, self.epochs = state["step"], state["epochs"]
            self._best, self._gained = state.get("best", self._best), state.get("gained", self._gained)
            torch.set_rng_state(state["random"])
        else:
            self.save()  # what this run goes on with, wherever the other run is by then
        if self.pretrained and self.board is not None:
            self.board.publish(self.predictor)

    def close(self) -> None:
        """Measures and checkpoints what was learned; the summary of the run is about that."""
        self._receive()
        if self.batches:
            self._settle()
            self._measure()
        self.channels.reports.put(Report("reward predictor", self.status()))
        if self.batches and self.learner.is_finite():  # else the newest checkpoint is what can be gone on with
            self.save()
        self.db.close()
        self.curves.close()


def _summed(measured: Iterable[tuple[float, int, int]]) -> dict[str, float]:
    """Mean loss and share of right answers of measurements (loss or NaN, right answers, answers that count)."""
    rows = list(measured)
    losses = [loss for loss, _, _ in rows if not math.isnan(loss)]
    decisive = sum(n for _, _, n in rows)
    return {
        "loss": float(np.mean(losses)) if losses else math.nan,
        "accuracy": sum(right for _, right, _ in rows) / decisive if decisive else math.nan,
    }


def run_trainer(channels: Channels, spec: TrainerSpec) -> None:
    """Body of the trainer's process: steps until told to stop or done."""
    use_threads(n_cores())  # until the policy starts nobody else computes
    trainer = Trainer(channels, spec)
    try:
        while not channels.stop.is_set() and not trainer.finished:
            if trainer.pretrained:
                use_threads(spec.n_threads)
            if not trainer.step():
                channels.stop.wait(0.02)
    finally:
        trainer.close()
