"""A run folder with labels about made-up segments, and trainers on it."""

from pathlib import Path

import numpy as np
from torch import Tensor

from drlhp.data.comparison import Choice, Comparison, Label
from drlhp.data.segment import Segment
from drlhp.runtime.channels import Channels
from drlhp.runtime.weights import WeightsBoard
from drlhp.training.trainer import Trainer, TrainerSpec
from pref_db import PrefDB
from reward_predictor import PredictorConfig, PredictorInputs, RewardPredictor

ENV_ID, LENGTH, DIMENSIONS = "Test-v0", 5, 3
VECTORS = PredictorInputs("vector", (DIMENSIONS,), 2, None)
SMALL = PredictorConfig(
    reward_predictor_learning_rate=3e-3,
    dropout=0.0,
    n_initial_epochs=2,
    labels_per_step=0.1,
    label_batch_size=16,
)


def segment(seed: int, steps: int = LENGTH) -> Segment:
    """Random vectors, of which the first number is the true reward."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(steps, DIMENSIONS)).astype(np.float32)
    actions, rewards = rng.integers(0, 2, steps), observations[:, 0].copy()
    return Segment(ENV_ID, observations, actions, rewards, stack=1, policy_step=0, seed=seed, fps=30.0)


def comparison(number: int) -> Comparison:
    return Comparison(segment(2 * number), segment(2 * number + 1), flip=False)


def choice(asked: Comparison) -> Choice:
    return Choice.A if asked.a.rewards.sum() > asked.b.rewards.sum() else Choice.B


def predicted_reward(
    predictor: RewardPredictor, observations: np.ndarray | Tensor, actions: np.ndarray | Tensor
) -> np.ndarray:
    """The predicted reward (B,): the mean of the normalised members."""
    mean: np.ndarray = predictor.normalised(predictor.member_rewards(observations, actions)).mean(0)
    return mean


def answer(db: PrefDB, numbers: range) -> list[Label | None]:
    return db.add_answers([(comparison(n), choice(comparison(n))) for n in numbers], teacher="synthetic")


class Ring:
    """A run folder with a store, the queues, and trainers that are closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = PrefDB.create(folder / "prefs.db", ENV_ID, LENGTH)
        self.channels = Channels.create(synchronous=True, take_turns=False)
        self.board = WeightsBoard(RewardPredictor(VECTORS, SMALL), None)
        self.trainers: list[Trainer] = []

    def trainer(
        self,
        config: PredictorConfig = SMALL,
        *,
        n_initial: int = 10,
        freeze: bool = False,
        resume: bool = False,
        rollout_steps: int = 0,
        n_initial_rounds: int = 1,
        query_board: WeightsBoard | None = None,
    ) -> Trainer:
        spec = TrainerSpec(
            inputs=VECTORS,
            env_id=ENV_ID,
            config=config,
            board=self.board,
            run_dir=self.folder,
            seed=0,
            n_initial_prefs=n_initial,
            freeze=freeze,
            resume=resume,
            rollout_steps=rollout_steps,
            n_initial_rounds=n_initial_rounds,
            query_board=query_board,
        )
        trainer = Trainer(self.channels, spec)
        self.trainers.append(trainer)
        return trainer

    def tell(self, labels: list[Label | None]) -> None:
        """Rings for the trainer, as the preference interface does once these labels are in the store."""
        if labels and self.channels.bell is not None:
            self.channels.bell.set()

    def close(self) -> None:
        for trainer in self.trainers:
            trainer.close()
        self.db.close()


def pretrain(trainer: Trainer) -> None:
    for _ in range(trainer.spec.config.n_initial_epochs + 1):
        if not trainer.pretrained:
            assert trainer.step()
    assert trainer.pretrained
