"""The process that trains the reward predictor (section 2.2.3 of Christiano et al. 2017)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

import numpy as np
import torch

from drlhp.errors import naming
from drlhp.labelling.notices import Notices
from drlhp.networks import architectures as networks
from drlhp.networks.batches import TrainingPair
from drlhp.networks.device import CPU, use_threads
from drlhp.runtime.channels import Channels, Report
from drlhp.runtime.curves import Curves
from drlhp.runtime.machine import n_cores
from drlhp.runtime.pulse import doing
from drlhp.runtime.weights import WeightsBoard
from drlhp.training.checkpoints import PART, Checkpoints
from drlhp.training.gallery import Gallery
from drlhp.training.labels import LabelSet
from drlhp.training.learner import Learner
from drlhp.training.measurements import Measurements
from drlhp.training.pace import Pace
from drlhp.training.pretraining import Pretraining
from drlhp.training.rounds import round_of
from pref_db import PrefDB
from reward_predictor import PredictorConfig, PredictorInputs, RewardPredictor

BATCHES_PER_ROUND = 100  # at least, after each round of initial labels
OBSERVED_PAIRS = 200  # labels whose segments, some 10,000 frames, give the mean and standard deviation of each pixel
SETTLING_PAIRS = 16  # labels whose segments give batch norm its statistics, and the reward its zero and scale
REPORT_SECONDS = 1.0


class Stage(Enum):
    """The stages of a trainer."""

    PRETRAINING = auto()  # waits for the initial labels, then learns from them
    FOLLOWING = auto()  # learns as the policy goes on
    FINISHED = auto()  # frozen: learns nothing more


@dataclass(frozen=True)
class Intervals:
    """Training batches between two events; those between checkpoints are in the config."""

    publish: int = 10  # the weights go to the policy
    measure: int = 50
    receive: int = 1  # new labels are read


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
    policy_waits: bool = True
    """Whether the policy waits while the trainer is behind (`Channels.behind`)."""
    n_initial_batches: int | None = None
    """End pretraining after these batches, or if frozen not before them; None leaves the end to the loss."""
    make_network: networks.MakeNetwork | None = None
    """Makes a user's own network, in place of those that `config` names."""
    n_initial_rounds: int = 1
    """Rounds of initial labels; after each, what it has taught goes to `query_board`."""
    query_board: WeightsBoard | None = None
    run_id: str = ""
    """Goes into the checkpoints, which no other run resumes from."""


class Trainer:
    """Owns the predictor's weights: waits for the initial labels, pretrains, then trains as the policy goes on."""

    KEPT = (
        *("learner", "labels", "pretraining", "pace", "measurements"),
        *("stage", "_rounds_learned", "_received_at"),
    )

    def __init__(self, channels: Channels, spec: TrainerSpec) -> None:
        """Reads the store of a run folder."""
        assert channels.bell is not None, "a run with a trainer has a bell"
        torch.manual_seed(spec.seed)
        rng = np.random.default_rng(spec.seed)
        self.spec, self.config, self.channels = spec, spec.config, channels
        self.learner = Learner(spec.inputs, spec.config, rng, spec.device, spec.make_network)
        self.db = PrefDB.open(spec.run_dir / "prefs.db", read_only=True)
        self.labels = LabelSet(self.db, channels.bell, spec.config, rng)
        self.pretraining = Pretraining(spec.config.initial_passes, spec.n_initial_batches, freeze=spec.freeze)
        self.pace = Pace(spec.config, spec.rollout_steps, policy_waits=spec.policy_waits)
        self.checkpoints = Checkpoints(spec, self.learner, self.pretraining, self.pace)
        self.measurements = Measurements()
        self.curves = Curves(spec.run_dir, PART)
        self.gallery = Gallery(self.db, self.curves)
        self.stage = Stage.PRETRAINING
        self._rounds_learned = self._received_at = 0  # the latter is a batch
        self._reported = 0.0
        self._load()
        if spec.improve and not self.learner.batches:
            self.stage = Stage.PRETRAINING

    @property
    def predictor(self) -> RewardPredictor:
        """The predictor that is measured, saved and published."""
        return self.learner.average

    @property
    def pretrained(self) -> bool:
        return self.stage is not Stage.PRETRAINING

    @property
    def finished(self) -> bool:
        """True once a frozen predictor has nothing left to learn."""
        return self.stage is Stage.FINISHED

    def step(self) -> bool:
        """Takes in new labels and trains a little; returns False if there was nothing to do but wait."""
        worked = False
        if self.stage is Stage.PRETRAINING:
            worked = self._pretrain()
        elif self.stage is Stage.FOLLOWING:
            worked = self._follow()
        else:
            self._receive()  # the labels are still counted
        if self.channels.save.is_set():
            if self.learner.batches:
                self.checkpoints.keep(self.save())
            self.channels.save.clear()
        self._report()
        return worked

    def _pretrain(self) -> bool:
        """Makes a pass over the initial labels once they are there; before that, learns from complete rounds."""
        self._receive()
        if not self.labels.pairs:
            return False
        if not self._may_start():
            return self._learn_round()
        if self._pass():
            self._settle()
            self._measure()
            self.pretraining.count(self.predictor, self.measurements.validation.loss)
            if self.pretraining.is_over(self.learner.batches):
                self._start_policy()
            elif self.checkpoints.due:
                self.save()
        return True

    def _follow(self) -> bool:
        """Trains on the batches that the policy's steps have made due."""
        if not self.labels.pairs:
            self._receive()
        self.pace.follow(self.channels.agent_steps.value, len(self.labels.training))
        if self.pace.behind:
            self.channels.behind.set()
        if not (n_batches := self.pace.take_batches()):
            self._receive()  # though nothing is learned from the labels now, they are counted
            return False
        with self.channels.turns.trainer():  # for all batches: one rollout of PPO makes several due
            self._train(n_batches)
        self.channels.behind.clear()
        return True

    def _train(self, n_batches: int) -> None:
        """Trains on so many batches; publishes, measures and saves at its intervals."""
        intervals = self.spec.intervals
        for _ in range(n_batches):
            if self.learner.batches - self._received_at >= intervals.receive:
                self._receive()
            if self.channels.stop.is_set() or not self.labels.pairs:  # the only label may have been taken back
                return
            self._train_batch(self.labels.sample())
            self.pace.trained += 1
            batches = self.learner.batches
            if batches % intervals.publish == 0:
                self._publish()
            if batches % intervals.measure == 0:
                self._measure()
            if batches % self.config.reward_predictor_ckpt_interval == 0 or self.checkpoints.due:
                self.save()
            self._report()

    def _receive(self) -> None:
        """Catches up with the store."""
        self._received_at = self.learner.batches
        self.labels.receive()

    def _may_start(self) -> bool:
        """Returns whether there are enough initial labels, or as many as a labeller wants to start with."""
        n, goal = self.labels.n_stored, self.spec.n_initial_prefs
        return n >= goal or n >= Notices(self.db).labels_to_start(goal)

    def _train_batch(self, pairs: list[TrainingPair]) -> None:
        """Takes one optimiser step, and counts it."""
        with doing("the decoding of a batch"):
            batch = self.learner.decoded(pairs, crop_steps=self.config.crop_steps)
        with doing("a batch of labels"), self.channels.turns.trainer():
            learned = self.learner.learn(batch, self.labels.weights_of(pairs))
        self.channels.trained_batches.value = self.learner.batches
        self.learner.adapt_l2(self.measurements.validation.loss)
        self.pace.labels_trained += len(pairs)
        self.measurements.count(learned, batch.mu)

    def _pass(self) -> bool:
        """Trains on every training label once; returns False if the run was stopped meanwhile."""
        starts_afresh = not self.learner.batches and not self.config.load_reward_predictor_ckpt_dir
        if starts_afresh and self.config.reward_predictor_normalises_pixels:
            first = self.labels.training[:OBSERVED_PAIRS]
            self.learner.observe(stored.decode() for pair in first for stored in (pair.a, pair.b))
        for pairs in self.labels.batches():
            if self.channels.stop.is_set():
                return False
            self._train_batch(pairs)
            self._report()
        return True

    def _learn_round(self) -> bool:
        """Learns a little from the rounds of initial labels that are complete, to choose what the next one asks."""
        board, spec = self.spec.query_board, self.spec
        if board is None:
            return False
        n_rounds = round_of(self.labels.n_stored, spec.n_initial_prefs, spec.n_initial_rounds)
        if n_rounds <= self._rounds_learned:
            return False
        until = self.learner.batches + BATCHES_PER_ROUND
        while self.learner.batches < until and self.pace.room(len(self.labels.training)):
            if not self._pass():
                return True
        self._settle()
        board.publish(self.predictor)
        self._rounds_learned = n_rounds
        return True

    def _start_policy(self) -> None:
        """Ends pretraining with the best weights; because they are the first to be published, the policy starts."""
        self.learner.take(self.pretraining.take_best())
        self.stage = self._stage_after_pretraining
        self.labels.treat_next_as_new()
        self._publish()
        self._measure()
        self.save()

    @property
    def _stage_after_pretraining(self) -> Stage:
        return Stage.FINISHED if self.spec.freeze else Stage.FOLLOWING

    def _settle(self) -> None:
        """Readies the average for prediction, on some of the labels that it was trained on."""
        rng = np.random.default_rng(self.learner.batches)  # its own: the clock decides when this is called
        if pairs := self.labels.some(SETTLING_PAIRS, rng):
            batch = self.learner.decoded(pairs)
            with self.channels.turns.trainer():
                self.learner.settle(batch)

    def _publish(self) -> None:
        """Hands the weights to the policy."""
        self._settle()
        if self.spec.board is not None:
            self.spec.board.publish(self.predictor)
        self.labels.published()

    def _measure(self) -> None:
        """Measures the predictor, and writes a point of each curve."""
        self.measurements.measure(self.learner, self.labels, self.channels.turns)
        counts = {"labels": float(len(self.labels.pairs)), "labels_trained": float(self.pace.labels_trained)}
        values = {f"reward_predictor/{name}": value for name, value in counts.items()}
        self.curves.add(values | self.measurements.points(self.learner), self.learner.batches)
        self.gallery.show(self.labels.pairs, self.labels.n_stored)

    def _report(self) -> None:
        """Sends the main process the status, about once a second."""
        now = time.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            self.channels.reports.put(Report("reward predictor", self.status()))

    def status(self) -> dict[str, float]:
        """Returns the numbers for the progress line and the summary."""
        return {
            "labels": float(len(self.labels.pairs)),
            "epochs": float(self.pretraining.epochs),
            "ends_at_epoch": float(self.pretraining.ends_at),
            "batches": float(self.learner.batches),
            "batches_due": self.pace.due,
            "batches_trained": float(self.pace.trained),
            "pretrained": float(self.pretrained),
            "training_accuracy": self.measurements.training.accuracy,
            "validation_loss": self.measurements.validation.loss,
            "validation_accuracy": self.measurements.validation.accuracy,
            "label_lag_seconds": self.labels.lag_seconds,
        }

    def save(self) -> Path:
        """Writes a checkpoint of the predictor, and returns its path."""
        self._settle()
        return self.checkpoints.save(pretrained=self.pretrained, newest_seq=self.labels.newest_seq)

    def _load(self) -> None:
        """Continues from this run's newest checkpoint, or starts from the predictor of another run."""
        path = self.checkpoints.find()
        if path is None:
            return
        if self.checkpoints.load(path):
            self.stage = self._stage_after_pretraining
        if not self.checkpoints.is_own(path):
            self.save()  # so that this run has a copy, whatever becomes of the other run
        if self.pretrained and self.spec.board is not None:
            self.spec.board.publish(self.predictor)

    def close(self) -> None:
        """Measures and checkpoints what was learned, for the summary of the run."""
        self._receive()
        if self.learner.batches:
            self._settle()
            self._measure()
        self.channels.reports.put(Report("reward predictor", self.status()))
        is_there = self.spec.run_dir.is_dir()  # else the main process says that it is gone
        if self.learner.batches and is_there and self.learner.ensemble.is_finite():  # else an older one can continue
            self.save()
        self.db.close()
        self.curves.close()


def run_trainer(channels: Channels, spec: TrainerSpec) -> None:
    """Runs the trainer in a process of its own, until it is told to stop or has nothing left to learn."""
    use_threads(n_cores())  # until the policy starts, no other process computes
    trainer = Trainer(channels, spec)
    try:
        while not channels.stop.is_set() and not trainer.finished:
            if trainer.pretrained:
                use_threads(spec.n_threads)
            with doing("a step of the training"), naming(spec.run_dir):
                if not trainer.step():
                    channels.stop.wait(max(0.02, trainer.db.store.look_seconds))
    finally:
        trainer.close()
