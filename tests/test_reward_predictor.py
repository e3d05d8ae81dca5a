"""The reward predictor's formulas, and the trainer on a real store of labels."""

import copy
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import checkpoint
import networks
import reward_predictor
from channels import Channels, ProcessorTurns, WeightsBoard, drain, start_context
from label_queue import FEW_LABELS, LabelQueue
from networks import RewardCNN, RewardMLP
from pref_db import Choice, Comparison, Label, PrefDB, Segment, is_validation
from regularisation import L2_START
from reward_predictor import (
    PairBatch,
    PredictorConfig,
    PredictorCopy,
    PredictorCopySpec,
    PredictorInputs,
    RewardPredictor,
    Trainer,
    TrainingPair,
    agreement,
    bootstrap_count,
    preference_loss,
    random_crop,
    return_loss,
)

ROOT = Path(reward_predictor.__file__).parent
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


def pixels(frames: np.ndarray) -> Segment:
    """Frames (T + 3, H, W), of which four make an observation."""
    steps = len(frames) - 3
    return Segment(ENV_ID, frames, np.zeros(steps, np.int64), np.zeros(steps, np.float32), 4, 0, seed=0, fps=15.0)


def comparison(number: int) -> Comparison:
    return Comparison(segment(2 * number), segment(2 * number + 1), flip=False)


def choice(asked: Comparison) -> Choice:
    return Choice.A if asked.a.rewards.sum() > asked.b.rewards.sum() else Choice.B


def answer(db: PrefDB, numbers: range) -> list[Label | None]:
    return db.add_answers([(comparison(n), choice(comparison(n))) for n in numbers], teacher="synthetic")


# Formulas


def test_the_preference_loss_is_the_papers_cross_entropy() -> None:
    returns = [(0.0, 0.0), (1.0, -2.0), (-0.3, 0.4), (50.0, -50.0), (-80.0, 10.0)]
    answers = [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)]
    for mu in answers:
        batch = torch.tensor(returns).T
        losses = preference_loss(batch[0], batch[1], torch.tensor([mu] * len(returns)), 0.1)
        for loss, (a, b) in zip(losses.tolist(), returns, strict=True):
            p_a = 0.9 * math.exp(a) / (math.exp(a) + math.exp(b)) + 0.05
            assert loss == pytest.approx(-(mu[0] * math.log(p_a) + mu[1] * math.log(1 - p_a)), abs=1e-5)


def test_the_preference_loss_is_bounded_and_keeps_its_gradient_finite() -> None:
    differences = torch.tensor([-1e4, -30.0, 0.0, 30.0, 1e4], requires_grad=True)
    loss = preference_loss(differences, torch.zeros(5), torch.tensor([[1.0, 0.0]] * 5), 0.1)
    assert loss.max().item() == pytest.approx(-math.log(0.05), abs=1e-5)
    loss.sum().backward()
    assert differences.grad is not None and differences.grad.isfinite().all()
    differences.grad = None
    unbounded = preference_loss(differences, torch.zeros(5), torch.tensor([[1.0, 0.0]] * 5), 0.0)
    assert unbounded.tolist() == pytest.approx([1e4, 30, math.log(2), 0, 0], abs=1e-4)
    unbounded.sum().backward()
    assert differences.grad is not None and differences.grad.tolist() == pytest.approx([-1, -1, -0.5, 0, 0], abs=1e-4)


def test_stacks_of_four_frames_are_mixed_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    segments = [pixels(rng.integers(256, size=(steps + 3, 6, 5), dtype=np.uint8)) for steps in (4, 1, 7)]
    segments.append(segments[0].crop(1, 2))
    quick = reward_predictor._observations(segments, None)
    monkeypatch.setattr(sys, "byteorder", "big")  # where the quick way would turn the stacks round
    plain = reward_predictor._observations(segments, None)
    assert torch.equal(quick, plain) and quick.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(quick.numpy(), np.concatenate([segment.stacked() for segment in segments]))


def test_the_return_loss_is_the_mean_squared_error_over_both_segments_of_a_pair() -> None:
    predicted = torch.tensor([[[1.0, -2.0], [0.5, 4.0]], [[3.0, 0.0], [-1.0, 2.0]]])  # of a and b: (members, B)
    true = torch.tensor([[2.0, -2.0], [0.0, 1.0]])
    losses = return_loss(predicted[0], predicted[1], true)
    for member in range(2):
        for pair in range(2):
            errors = [float(predicted[side, member, pair] - true[side, pair]) for side in range(2)]
            assert losses[member, pair].item() == pytest.approx((errors[0] ** 2 + errors[1] ** 2) / 2)


def test_agreement_leaves_ties_out() -> None:
    mu = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
    assert agreement(torch.tensor([2.0, -1.0, -3.0, 7.0]), mu) == (2, 3)


def test_bootstrap_counts_are_poisson_and_differ_between_members() -> None:
    counts = np.array([[bootstrap_count(f"id {n}", member) for n in range(4000)] for member in range(2)])
    np.testing.assert_allclose(counts.mean(1), 1, atol=0.06)
    np.testing.assert_allclose(counts.var(1), 1, atol=0.12)
    np.testing.assert_allclose((counts == 0).mean(1), math.exp(-1), atol=0.03)
    assert abs(np.corrcoef(counts)[0, 1]) < 0.06


def test_bootstrap_counts_are_the_same_in_every_process() -> None:
    code = "from reward_predictor import bootstrap_count as b; print([b(f'id {n}', 1) for n in range(20)])"
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str([bootstrap_count(f"id {n}", 1) for n in range(20)])


def test_summed_rewards_of_segments_of_any_length() -> None:
    pairs = []
    segments = [segment(n, steps) for n, steps in enumerate((5, 3, 4, 5, 1, 2))]
    for n in range(0, 6, 2):
        asked = Comparison(segments[n], segments[n + 1], flip=False)
        label = Label(n, asked.id, asked.a.id, asked.b.id, (0.0, 1.0), False)
        pairs.append(TrainingPair(label, Stored(asked.a), Stored(asked.b), (1, 0, n)))  # type: ignore[arg-type]
    batch = PairBatch.decode(pairs, None)
    torch.manual_seed(0)
    predictor = RewardPredictor(VECTORS, SMALL)
    with torch.no_grad():
        sums = batch.returns(predictor(batch.observations, batch.actions))
        for i, member in ((i, member) for i in range(6) for member in range(3)):
            one = predictor(torch.from_numpy(segments[i].observations), torch.from_numpy(segments[i].actions))
            assert sums[i % 2][member, i // 2].item() == pytest.approx(one[member].sum().item(), abs=1e-5)
    assert batch.counts.tolist() == [[1, 1, 1], [0, 0, 0], [0, 2, 4]]
    assert batch.mu.tolist() == [[0, 1]] * 3
    true = [float(made.rewards.sum()) for made in segments]
    np.testing.assert_allclose(batch.true_returns, [true[0::2], true[1::2]], rtol=1e-5)


class Stored:
    """A segment in place of its compressed form."""

    def __init__(self, of: Segment) -> None:
        self.decode = lambda: of


def test_a_random_crop_takes_the_same_number_of_steps_from_both_segments() -> None:
    rng, lost, begins = np.random.default_rng(0), set(), set()
    a, b = segment(0, 9), segment(1, 9)
    for _ in range(300):
        parts = random_crop(a, b, 3, rng)
        starts = []
        for part, whole in zip(parts, (a, b), strict=True):
            start = int(np.flatnonzero(whole.rewards == part.rewards[0])[0])
            assert np.array_equal(part.observations, whole.observations[start : start + len(part)])
            assert np.array_equal(part.actions, whole.actions[start : start + len(part)])
            starts.append(start)
        assert len(parts[0]) == len(parts[1])
        lost.add(9 - len(parts[0]))
        begins.add(tuple(starts))
    assert lost == {0, 1, 2, 3}
    assert begins == {(i, j) for i in range(4) for j in range(4)}  # drawn for each


@pytest.mark.parametrize(("lengths", "most"), [((9, 5), 3), ((9, 3), 2), ((1, 9), 0)])
def test_a_random_crop_leaves_a_short_segment_a_step(lengths: tuple[int, int], most: int) -> None:
    rng, lost = np.random.default_rng(0), set()
    for _ in range(100):
        parts = random_crop(segment(0, lengths[0]), segment(1, lengths[1]), 3, rng)
        both = {length - len(part) for length, part in zip(lengths, parts, strict=True)}
        assert len(both) == 1
        lost |= both
    assert lost == set(range(most + 1))


def test_settled_batch_norm_predicts_what_training_sees() -> None:
    torch.manual_seed(0)
    predictor = RewardPredictor(PredictorInputs("pixels", (4, 84, 84), 6, None), SMALL)
    observations = torch.randint(0, 256, (24, 4, 84, 84), dtype=torch.uint8) // torch.arange(1, 25).view(24, 1, 1, 1)
    actions = torch.zeros(24, dtype=torch.int64)
    with torch.no_grad():
        trained_on = predictor.train()(observations, actions)
        for norm in predictor.modules():
            if isinstance(norm, torch.nn.BatchNorm2d):  # what other weights have left behind
                norm.running_mean.normal_(0, 3)  # type: ignore[union-attr]
        unsettled = predictor.eval()(observations, actions)
        predictor.settle_batchnorm(observations, actions)
        settled = predictor(observations, actions)
    scale = trained_on.std(1).max()
    assert not predictor.training
    assert (settled - trained_on).abs().max() < 0.1 * scale < (unsettled - trained_on).abs().max()


def test_prediction_in_parts_is_that_of_the_whole() -> None:
    predictor = RewardPredictor(
        PredictorInputs("pixels", (4, 84, 84), 6, None), replace(SMALL, reward_predictor_uses_actions=True)
    )
    n = 2 * networks.PICTURES_AT_ONCE + 5
    observations, actions = torch.randint(0, 256, (n, 4, 84, 84), dtype=torch.uint8), torch.randint(0, 6, (n,))
    with torch.no_grad():
        whole = predictor(observations, actions)
        torch.testing.assert_close(
            predictor.predict(observations, actions), whole, atol=1e-2 * float(whole.std()), rtol=0
        )


@pytest.mark.parametrize("batchnorm", [True, False])
def test_a_folded_predictor_predicts_the_same(batchnorm: bool) -> None:
    torch.manual_seed(0)
    inputs = PredictorInputs("pixels", (4, 84, 84), 6, None)
    predictor = RewardPredictor(inputs, replace(SMALL, reward_predictor_uses_actions=True, batchnorm=batchnorm))
    predictor.autocast = False
    for norm in predictor.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):  # far from the identity, as training leaves it
            for values in (norm.weight.data, norm.bias.data, norm.running_mean):
                values.uniform_(-1, 1)  # type: ignore[union-attr]
            norm.running_var.uniform_(0.1, 3)  # type: ignore[union-attr]
    observations, actions = torch.randint(0, 256, (9, 4, 84, 84), dtype=torch.uint8), torch.randint(0, 6, (9,))
    folded, whole = predictor.folded(), predictor.member_rewards(observations, actions)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in folded.modules())
    np.testing.assert_allclose(folded.member_rewards(observations, actions), whole, rtol=1e-4, atol=1e-4 * whole.std())


def test_normalised_rewards_have_zero_mean_and_the_wanted_deviation_for_each_member() -> None:
    torch.manual_seed(0)
    predictor = RewardPredictor(VECTORS, replace(SMALL, reward_std=0.05))
    observations, actions = torch.randn(200, DIMENSIONS), torch.zeros(200, dtype=torch.int64)
    with torch.no_grad():
        raw = predictor(observations, actions) * torch.tensor([[1.0], [20.0], [300.0]]) + 5
    predictor.fit_normaliser(raw)
    normalised = predictor.normalised(raw)
    torch.testing.assert_close(normalised.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normalised.std(1), torch.full((3,), 0.05), atol=1e-4, rtol=0)


def test_the_predicted_reward_averages_members_that_were_normalised_one_by_one() -> None:
    torch.manual_seed(0)
    predictor = RewardPredictor(VECTORS, SMALL)
    observations, actions = np.random.default_rng(0).normal(size=(50, DIMENSIONS)).astype(np.float32), np.zeros(50, int)
    with torch.no_grad():
        predictor.out.weight[1] *= 1000  # a member that is loud must not drown the others
        raw = predictor(torch.from_numpy(observations), torch.from_numpy(actions)).numpy()
    predictor.fit_normaliser(torch.from_numpy(raw))
    normalised = (raw - raw.mean(1, keepdims=True)) / raw.std(1, ddof=1, keepdims=True) * predictor.reward_std
    np.testing.assert_allclose(predictor.reward(observations, actions), normalised.mean(0), atol=1e-5)


@pytest.mark.parametrize("inputs", [PredictorInputs("pixels", (4, 84, 84), 6, None), VECTORS])
def test_dropout_is_for_training_alone(inputs: PredictorInputs) -> None:
    torch.manual_seed(0)
    predictor = RewardPredictor(inputs, replace(SMALL, dropout=0.5))
    shape = (12, *inputs.observation_shape)
    observations = torch.randint(0, 256, shape, dtype=torch.uint8) if inputs.kind == "pixels" else torch.randn(shape)
    actions = torch.zeros(12, dtype=torch.int64)
    with torch.no_grad():
        predictor.train()
        assert not torch.equal(predictor(observations, actions), predictor(observations, actions))
        predictor.eval()
        predictor.settle_batchnorm(observations, actions)
        settled = copy.deepcopy(predictor)
        settled.settle_batchnorm(observations, actions)
    once, again = (predictor.reward(observations, actions) for _ in range(2))
    assert np.array_equal(once, again)
    assert np.array_equal(once, settled.reward(observations, actions))  # nothing is dropped while it settles either


@pytest.mark.parametrize("network", ["cnn", "feature_points"])
def test_a_discrete_action_chooses_its_own_output(network: str) -> None:
    config = replace(SMALL, reward_predictor_network=network, reward_predictor_uses_actions=True)  # type: ignore[arg-type]
    torch.manual_seed(0)
    predictor = RewardPredictor(PredictorInputs("pixels", (4, 84, 84), 3, None), config)
    with torch.no_grad():
        predictor.out.weight.zero_()
        predictor.out.bias.copy_(
            torch.tensor([1.0, 2.0, 3.0]).expand(3, 1, 3) * torch.tensor([1, 10, 100])[:, None, None]
        )
        raw = predictor(torch.zeros(4, 4, 84, 84, dtype=torch.uint8), torch.tensor([2, 0, 1, 2]))
    assert raw.tolist() == [[3, 1, 2, 3], [30, 10, 20, 30], [300, 100, 200, 300]]


@pytest.mark.parametrize("uses", [True, False])
@pytest.mark.parametrize(("n_actions", "action_dim"), [(2, None), (None, 2)])
def test_actions_count_only_where_they_are_asked_for(n_actions: int | None, action_dim: int | None, uses: bool) -> None:
    torch.manual_seed(0)
    inputs = PredictorInputs("vector", (DIMENSIONS,), n_actions, action_dim)
    predictor = RewardPredictor(inputs, replace(SMALL, reward_predictor_uses_actions=uses))
    observations = np.ones((4, DIMENSIONS), np.float32)
    shape, dtype = ((4,), np.int64) if n_actions else ((4, 2), np.float32)
    idle, other = (predictor.reward(observations, np.full(shape, value, dtype)) for value in (0, 1))
    assert np.allclose(idle, other) != uses


# The trainer


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
    ) -> Trainer:
        trainer = Trainer(
            VECTORS,
            ENV_ID,
            config,
            self.channels,
            self.board,
            self.folder,
            seed=0,
            n_initial_prefs=n_initial,
            freeze=freeze,
            resume=resume,
            rollout_steps=rollout_steps,
        )
        self.trainers.append(trainer)
        return trainer

    def tell(self, labels: list[Label | None]) -> None:
        for label in labels:
            self.channels.labels.put(label)

    def close(self) -> None:
        for trainer in self.trainers:
            trainer.close()
        self.db.close()


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    ring = Ring(tmp_path)
    yield ring
    ring.close()


def pretrain(trainer: Trainer) -> None:
    for _ in range(trainer.config.n_initial_epochs + 1):
        if not trainer.pretrained:
            assert trainer.step()
    assert trainer.pretrained


def picture_segment(seed: int) -> Segment:
    """A bright dot on a picture of which each row has a grey of its own."""
    rng = np.random.default_rng(seed)
    frames = np.repeat(np.arange(84, dtype=np.uint8)[:, None], 84, 1)[None].repeat(LENGTH + 3, 0)
    frames[np.arange(LENGTH + 3), rng.integers(84, size=LENGTH + 3), rng.integers(84, size=LENGTH + 3)] = 255
    actions, rewards = rng.integers(0, 2, LENGTH), rng.normal(size=LENGTH).astype(np.float32)
    return Segment(ENV_ID, frames, actions, rewards, stack=4, policy_step=0, seed=seed, fps=30.0)


@pytest.mark.parametrize("normalises", [True, False])
def test_pixels_are_read_relative_to_the_initial_labels_segments(normalises: bool, tmp_path: Path) -> None:
    pairs = [Comparison(picture_segment(2 * n), picture_segment(2 * n + 1), flip=False) for n in range(12)]
    PrefDB.create(tmp_path / "prefs.db", ENV_ID, LENGTH).close()
    db = PrefDB.open(tmp_path / "prefs.db")
    db.add_answers([(pair, choice(pair)) for pair in pairs], teacher="synthetic")
    inputs = PredictorInputs("pixels", (4, 84, 84), 2, None)
    config = replace(SMALL, reward_predictor_normalises_pixels=normalises)
    board = WeightsBoard(RewardPredictor(inputs, config), None)
    channels = Channels.create(synchronous=True, take_turns=False)
    options = {"seed": 0, "n_initial_prefs": 12, "freeze": False, "resume": False}
    trainer = Trainer(inputs, ENV_ID, config, channels, board, tmp_path, **options)  # type: ignore[arg-type]
    pretrain(trainer)
    train(trainer, 2)
    learned = PredictorCopySpec(inputs, config, board).build()
    learned.refresh()
    seen = [p for p in pairs if not is_validation(p.id)]
    frames = np.concatenate([s.observations for p in seen for s in (p.a, p.b)]).astype(np.float64)
    gain = 1 / frames.std(0).clip(0.1 * 255) if normalises else np.full((84, 84), 1 / 255)
    shift = -frames.mean(0) * gain if normalises else np.zeros((84, 84))
    for predictor in (trainer.predictor, trainer.learner, learned.predictor):
        assert isinstance(predictor.body, RewardCNN)
        reader = predictor.body.reader
        np.testing.assert_allclose(reader.gain[0, 2], gain, rtol=1e-5)
        np.testing.assert_allclose(reader.shift[0, 1], shift, rtol=1e-4, atol=1e-5)
    trainer.close()
    db.close()


def test_numbers_of_vectors_are_read_relative_to_the_segments_and_never_cut() -> None:
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(50, 3)) * (4, 1e-5, 1) + (20, 3, 0)).astype(np.float32)
    actions, rewards = np.zeros((50, 1), np.float32), np.zeros(50, np.float32)
    predictor = RewardPredictor(PredictorInputs("vector", (3,), None, 1), SMALL)
    predictor.observe([Segment(ENV_ID, vectors, actions, rewards, stack=1, policy_step=0, seed=0, fps=30.0)])
    assert isinstance(predictor.body, RewardMLP)
    read = predictor.body.reader(torch.from_numpy(vectors)).numpy()
    np.testing.assert_allclose(read, (vectors - vectors.mean(0)) / vectors.std(0).clip(0.01), atol=1e-2)
    far = predictor.body.reader(torch.tensor([[420.0, 3, 0]]))[0, 0]
    assert float(far) == pytest.approx((420 - vectors[:, 0].mean()) / vectors[:, 0].std(), rel=1e-3)


def train(trainer: Trainer, n_batches: int) -> None:
    """So many batches as the policy goes on."""
    goal = trainer.batches + n_batches
    while trainer.batches < goal:
        trainer.channels.agent_steps.value += round(SMALL.label_batch_size / SMALL.labels_per_step)
        assert trainer.step()


def rewards(predict: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Predictions on fixed observations."""
    made = segment(12345)
    return predict(made.observations, made.actions)


@pytest.mark.parametrize("target", ["preferences", "true_return"])
def test_a_predictor_fitted_to_true_returns_knows_their_size_whatever_the_answers(
    ring: Ring, target: Literal["preferences", "true_return"]
) -> None:
    """From answers that all say equal, comparisons teach nothing."""
    asked = [comparison(n) for n in range(80)]
    ring.tell(ring.db.add_answers([(one, Choice.EQUAL) for one in asked], teacher="synthetic"))
    trainer = ring.trainer(replace(SMALL, n_initial_epochs=60, reward_target=target), n_initial=80)
    pretrain(trainer)
    unseen = [segment(1000 + n) for n in range(50)]
    with torch.no_grad():
        predicted = [
            trainer.predictor(torch.from_numpy(s.observations), torch.from_numpy(s.actions)).sum(1).mean().item()
            for s in unseen
        ]
    true = np.array([s.rewards.sum() for s in unseen])
    explained = 1 - np.mean((true - predicted) ** 2) / np.mean(true**2)
    assert (explained > 0.5) == (target == "true_return")


def test_the_trainer_waits_pretrains_and_only_then_publishes(ring: Ring) -> None:
    trainer = ring.trainer(n_initial=10)
    copy = PredictorCopySpec(VECTORS, SMALL, ring.board).build()
    ring.tell(answer(ring.db, range(9)))
    assert not trainer.step() and not trainer.step()
    ring.tell(answer(ring.db, range(9, 10)))
    assert trainer.step() and not trainer.pretrained
    assert copy.refresh() == ring.board.version == 0
    assert trainer.step() and trainer.pretrained and not trainer.finished
    assert copy.refresh() == ring.board.version == 1
    assert np.array_equal(rewards(copy.member_rewards), rewards(trainer.predictor.member_rewards))
    assert trainer.status()["labels"] == 10 and trainer.status()["epochs"] == 2


def test_the_trainer_starts_early_when_somebody_says_so_and_after_a_resume_too(ring: Ring) -> None:
    trainer = ring.trainer(n_initial=500)
    ring.tell(answer(ring.db, range(FEW_LABELS)))
    assert not trainer.step()
    LabelQueue(ring.db).start_now()
    assert trainer.step()
    assert ring.trainer(n_initial=500, resume=True).step()


def test_published_rewards_are_normalised_on_segments_that_were_trained_on(ring: Ring) -> None:
    answer(ring.db, range(reward_predictor.SETTLING_PAIRS))
    trainer = ring.trainer()
    pretrain(trainer)
    copy = PredictorCopySpec(VECTORS, SMALL, ring.board).build()
    copy.refresh()
    learned = [pair for pair in trainer.pairs.values() if not pair.label.validation]
    stored = [segment.decode() for pair in learned for segment in (pair.a, pair.b)]
    raw = copy.predictor(
        torch.from_numpy(np.concatenate([s.observations for s in stored])),
        torch.from_numpy(np.concatenate([s.actions for s in stored])),
    ).detach()
    normalised = copy.predictor.normalised(raw)
    torch.testing.assert_close(normalised.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normalised.std(1), torch.full((3,), SMALL.reward_std), atol=1e-4, rtol=0)


def a_source_and_its_copy(
    inputs: PredictorInputs, monkeypatch: pytest.MonkeyPatch
) -> tuple[RewardPredictor, WeightsBoard, PredictorCopy]:
    """The copy normalises on the newest hundred steps, all of them."""
    monkeypatch.setattr(reward_predictor, "NORMALISER_STEPS", 100)
    monkeypatch.setattr(reward_predictor, "NORMALISER_STRIDE", 1)
    torch.manual_seed(0)
    source = RewardPredictor(inputs, SMALL)
    board = WeightsBoard(source, None)
    return source, board, PredictorCopySpec(inputs, SMALL, board).build()


def test_new_weights_are_normalised_on_the_newest_steps_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the published statistics while there are few steps, then on what the policy has seen last."""
    source, board, copy = a_source_and_its_copy(VECTORS, monkeypatch)
    board.publish(source)
    rng, actions = np.random.default_rng(0), np.zeros(50, np.int64)
    rollouts = [rng.normal(loc=n, size=(50, DIMENSIONS)).astype(np.float32) for n in range(4)]
    for rollout in rollouts:
        copy.refresh()
        assert np.array_equal(copy.member_rewards(rollout.copy(), actions), source.member_rewards(rollout, actions))
    board.publish(source)
    assert copy.refresh() == 2
    newest = torch.from_numpy(np.concatenate(rollouts[2:]))
    normalised = copy.predictor.normalised(copy.predictor(newest, torch.zeros(100, dtype=torch.int64)).detach())
    torch.testing.assert_close(normalised.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normalised.std(1), torch.full((3,), SMALL.reward_std), atol=1e-4, rtol=0)


@pytest.mark.parametrize("inputs", [VECTORS, PredictorInputs("pixels", (4, 84, 84), 2, None)])
def test_rewards_of_vectors_stay_worth_the_same_and_those_of_pixels_are_rescaled(
    inputs: PredictorInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With weights that say the same in another measure, of what the policy saw after the first fit."""
    source, board, copy = a_source_and_its_copy(inputs, monkeypatch)
    rng, actions = np.random.default_rng(0), np.zeros(100, np.int64)

    def seen(scale: float) -> np.ndarray:
        if inputs.kind == "vector":
            return rng.normal(scale=scale, size=(100, *inputs.observation_shape)).astype(np.float32)
        return (scale * rng.integers(64, size=(100, *inputs.observation_shape))).astype(np.uint8)

    board.publish(source)
    copy.refresh()
    copy.member_rewards(seen(1.0), actions)
    board.publish(source)
    copy.refresh()  # the first fit
    wider = seen(3.0)
    before = copy.member_rewards(wider, actions)
    assert before.std(1, ddof=1).min() > 1.5 * SMALL.reward_std
    with torch.no_grad():
        source.out.weight.mul_(2.0)
        source.out.bias.add_(5.0)
    board.publish(source)
    copy.refresh()
    after = copy.member_rewards(wider, actions)
    if inputs.kind == "vector":
        np.testing.assert_allclose(after, before, atol=1e-4)
    else:
        np.testing.assert_allclose(after.mean(1), 0, atol=1e-3)
        np.testing.assert_allclose(after.std(1, ddof=1), SMALL.reward_std, atol=1e-3)


def test_training_keeps_pace_with_the_policy(ring: Ring) -> None:
    """A tenth of a label for each agent step, in batches of 16, without making up for a long absence."""
    answer(ring.db, range(40))
    trainer = ring.trainer()
    pretrain(trainer)
    assert not trainer.step()

    def batches_at(agent_steps: int) -> int:
        before = trainer.batches
        ring.channels.agent_steps.value = agent_steps
        while trainer.step():
            assert trainer.batches < before + 100
        return trainer.batches - before

    assert [batches_at(159), batches_at(160), batches_at(800)] == [0, 1, 4]
    version = ring.board.version
    assert 5 <= batches_at(10_000_000) <= 20
    assert ring.board.version > version


def test_a_label_that_arrives_while_the_policy_learns_is_trained_on_at_once(ring: Ring) -> None:
    """Drawn like the others, one of many would wait for thousands of agent steps."""
    answer(ring.db, range(60))
    trainer = ring.trainer()
    pretrain(trainer)
    seen = list[int]()
    train_batch = trainer._train_batch

    def train_and_tell(pairs: list[TrainingPair]) -> None:
        assert len({pair.label.seq for pair in pairs}) == SMALL.label_batch_size
        seen.extend(pair.label.seq for pair in pairs)
        train_batch(pairs)

    trainer._train_batch = train_and_tell  # type: ignore[method-assign]
    ring.tell(answer(ring.db, range(60, 80)))
    train(trainer, 4)
    new = [seq for seq, pair in trainer.pairs.items() if seq > 60 and not pair.label.validation]
    assert len(new) > SMALL.label_batch_size // 2 and set(new) <= set(seen)
    assert sum(seq <= 60 for seq in seen) >= 4 * SMALL.label_batch_size // 2 - 1, "beside older ones"


def test_the_only_label_may_be_taken_back_while_batches_are_due(ring: Ring) -> None:
    answer(ring.db, range(20))
    trainer = ring.trainer()
    pretrain(trainer)
    train_batch = trainer._train_batch

    def train_and_retract(pairs: list[TrainingPair]) -> None:
        train_batch(pairs)
        trainer.pairs.clear()

    trainer._train_batch = train_and_retract  # type: ignore[method-assign]
    before = trainer.batches
    ring.channels.agent_steps.value += round(5 * SMALL.label_batch_size / SMALL.labels_per_step)
    assert trainer.step() and trainer.batches == before + 1


def test_a_policy_with_large_rollouts_leaves_no_training_undone(ring: Ring) -> None:
    """Turn by turn the trainer does all that came due in the policy's turn, publishing included, not one batch."""
    answer(ring.db, range(40))
    rollout_steps, n_rollouts = round(15 * SMALL.label_batch_size / SMALL.labels_per_step), 10
    trainer = ring.trainer(rollout_steps=rollout_steps)
    pretrain(trainer)
    ring.channels.turns = ProcessorTurns(start_context())
    before, version = trainer.batches, ring.board.version

    def policy() -> None:
        for _ in range(n_rollouts):
            with ring.channels.turns.policy():
                ring.channels.agent_steps.value += rollout_steps
                while not ring.channels.turns._trainer_waits.value:
                    os.sched_yield()

    thread = threading.Thread(target=policy, daemon=True)
    thread.start()
    while thread.is_alive():
        trainer.step()
    while trainer.step():
        pass
    assert trainer.batches - before == 15 * n_rollouts
    assert ring.board.version > version


def test_a_frozen_trainer_is_finished_after_pretraining(ring: Ring) -> None:
    answer(ring.db, range(12))
    trainer = ring.trainer(n_initial=0, freeze=True)
    assert not trainer.finished
    pretrain(trainer)
    assert trainer.finished and ring.board.version == 1
    batches = trainer.batches
    ring.channels.agent_steps.value = 10_000
    assert not trainer.step()
    assert trainer.batches == batches


def test_labels_count_once_whatever_the_queue_says(ring: Ring) -> None:
    first = ring.trainer(n_initial=100)
    labels = answer(ring.db, range(5))
    ring.tell(labels)
    first.step()
    ring.tell(labels)  # told again
    first.step()
    assert sorted(first.pairs) == [1, 2, 3, 4, 5]
    ring.tell(answer(ring.db, range(5, 7)))
    answer(ring.db, range(7, 9))  # on disk, and the queue was lost
    reopened = ring.trainer(n_initial=100, resume=True)
    reopened.step()
    assert sorted(reopened.pairs) == list(range(1, 10))
    ids = [pair.label.comparison_id for pair in reopened.pairs.values()]
    assert sorted(ids) == sorted(comparison(n).id for n in range(9))
    for pair in reopened.pairs.values():
        assert pair.label.validation == is_validation(pair.label.comparison_id)
        assert pair.counts == tuple(bootstrap_count(pair.label.comparison_id, member) for member in range(3))


def test_a_retraction_drops_the_pair_and_an_edit_replaces_it(ring: Ring) -> None:
    trainer = ring.trainer(n_initial=100)
    ring.tell(answer(ring.db, range(4)))
    trainer.step()
    undone = ring.db.undo_last("synthetic")
    assert undone is not None
    edit = ring.db.add_answer(comparison(0), Choice.EQUAL, teacher="synthetic", supersedes=1)
    ring.tell([undone[0], edit])
    trainer.step()
    assert edit is not None and sorted(trainer.pairs) == [2, 3, edit.seq]
    assert trainer.pairs[edit.seq].label.mu == (0.5, 0.5)


def test_only_the_newest_labels_are_kept(ring: Ring) -> None:
    trainer = ring.trainer(replace(SMALL, label_buffer=6), n_initial=100)
    for start in (0, 5, 10):
        ring.tell(answer(ring.db, range(start, start + 5)))
        trainer.step()
    assert sorted(trainer.pairs) == list(range(10, 16))


def test_more_initial_labels_than_are_kept_start_the_training(ring: Ring) -> None:
    trainer = ring.trainer(replace(SMALL, label_buffer=20), n_initial=30)
    for start, begins in ((0, False), (25, True)):
        ring.tell(answer(ring.db, range(start, start + 25)))
        assert trainer.step() == begins


def test_labels_are_taken_in_where_none_is_learned_from(ring: Ring) -> None:
    """Else their queue would fill up, and who hands them over would wait for ever."""
    answer(ring.db, range(20))
    trainer = ring.trainer(replace(SMALL, labels_per_step=0.0))
    pretrain(trainer)
    ring.tell(answer(ring.db, range(20, 25)))
    trainer.step()
    assert len(trainer.pairs) == 25 and not drain(ring.channels.labels)


def test_a_single_predictor_has_no_bootstrap(ring: Ring) -> None:
    answer(ring.db, range(12))
    ring.board = WeightsBoard(RewardPredictor(VECTORS, replace(SMALL, ensemble_size=1)), None)
    trainer = ring.trainer(replace(SMALL, ensemble_size=1), n_initial=100)
    trainer.step()
    assert {pair.counts for pair in trainer.pairs.values()} == {(1,)}


def test_a_resumed_trainer_predicts_the_same_and_goes_on(ring: Ring) -> None:
    answer(ring.db, range(20))
    first = ring.trainer()
    pretrain(first)
    path = first.save()
    second = ring.trainer(resume=True)
    assert second.pretrained and second.batches == first.batches and ring.board.version == 2
    assert np.array_equal(rewards(first.predictor.reward), rewards(second.predictor.reward))
    published = PredictorCopySpec(VECTORS, SMALL, ring.board).build()
    published.refresh()
    assert np.array_equal(rewards(published.member_rewards), rewards(first.predictor.member_rewards))
    ring.channels.agent_steps.value = round(SMALL.label_batch_size / SMALL.labels_per_step)
    assert second.step() and second.batches == first.batches + 1
    state = checkpoint.load(path, kind="reward_predictor", env_id=ENV_ID)
    assert PredictorConfig(**state["config"]).ensemble_size == 3


def test_a_loaded_predictor_starts_the_policy_without_labels(
    ring: Ring, tmp_path_factory: pytest.TempPathFactory
) -> None:
    answer(ring.db, range(20))
    first = ring.trainer()
    pretrain(first)
    first.save()
    other = Ring(tmp_path_factory.mktemp("other"))
    config = replace(SMALL, load_reward_predictor_ckpt_dir=str(ring.folder))
    loaded = other.trainer(config, n_initial=0, freeze=True)
    try:
        assert loaded.finished and other.board.version == 1 and loaded.batches == 0
        assert np.array_equal(rewards(first.predictor.reward), rewards(loaded.predictor.reward))
        with pytest.raises(checkpoint.CheckpointError, match="another network"):
            other.trainer(replace(config, ensemble_size=2))
    finally:
        other.close()


def test_a_reward_that_has_run_away_comes_back(ring: Ring) -> None:
    """Answers alone would leave it there: both segments have it, and what is wrong by far has no gradient."""
    answer(ring.db, range(20))
    trainer = ring.trainer()
    pretrain(trainer)
    with torch.no_grad():
        trainer.learner.get_parameter("out.bias").add_(25)
    before = rewards(trainer.learner.reward).mean()
    train(trainer, 100)
    assert rewards(trainer.learner.reward).mean() < 0.9 * before


def test_the_predictor_learns_what_is_preferred(ring: Ring) -> None:
    answer(ring.db, range(200))
    trainer = ring.trainer(replace(SMALL, n_initial_epochs=15))
    pretrain(trainer)
    assert trainer.validation["accuracy"] > 0.8
    assert trainer.validation["loss"] < 0.55  # always answering "equal" has ln 2 = 0.69
    made = [segment(10_000 + n) for n in range(100)]
    observations, actions = np.concatenate([m.observations for m in made]), np.concatenate([m.actions for m in made])
    true = np.concatenate([m.rewards for m in made])
    assert np.corrcoef(true, trainer.predictor.reward(observations, actions))[0, 1] > 0.8


# Regularisation


def answer_at_random(db: PrefDB, n_labels: int) -> None:
    """Answers from which there is nothing to learn, only to remember."""
    rng = np.random.default_rng(0)
    answers = [(comparison(n), Choice.A if rng.random() < 0.5 else Choice.B) for n in range(n_labels)]
    db.add_answers(answers, teacher="synthetic")


@pytest.mark.parametrize("n_members", [3, 1])
def test_the_l2_of_a_predictor_that_overfits_rises_and_its_weights_shrink(
    tmp_path_factory: pytest.TempPathFactory, n_members: int
) -> None:
    config = replace(SMALL, ensemble_size=n_members, reward_predictor_learning_rate=1e-2)
    norms = {}
    settings: tuple[float | Literal["adaptive"], ...] = (0.0, "adaptive")
    for l2 in settings:
        other = Ring(tmp_path_factory.mktemp("l2"))
        other.board = WeightsBoard(RewardPredictor(VECTORS, config), None)
        answer_at_random(other.db, 40)
        trainer = other.trainer(replace(config, l2=l2))
        pretrain(trainer)
        train(trainer, 200)
        norms[l2] = torch.stack([parameter.norm() for parameter in trainer.learner.parameters()]).norm().item()
        if l2 == 0.0:
            assert trainer.l2 == [0.0] * n_members
            assert min(trainer.member_losses()["out_of_bag_ratio"]) > 2
        else:
            assert min(trainer.l2) > L2_START and len(trainer.l2) == n_members
        if n_members == 1:
            assert trainer.member_losses()["out_of_bag_loss"] == [trainer.validation["loss"]]
        other.close()
    assert norms["adaptive"] < 0.8 * norms[0.0]


def test_an_adaptive_l2_is_saved_and_goes_on_and_a_flag_overrides_it(ring: Ring) -> None:
    answer(ring.db, range(20))
    config = replace(SMALL, l2="adaptive")
    first = ring.trainer(config)
    pretrain(first)
    first.l2 = [0.02, 0.5, 3.0]
    first.save()
    second = ring.trainer(config, resume=True)
    assert second.l2 == first.l2
    assert second.bag_losses.means() == first.bag_losses.means()
    fixed = ring.trainer(replace(config, l2=0.25, reward_predictor_learning_rate=1e-4), resume=True)
    assert fixed.l2 == [0.25] * 3
    settings = fixed.optimizer.param_groups[0]
    assert (settings["weight_decay"], settings["lr"]) == (0.25, 1e-4)


def test_losses_of_the_members_and_l2_are_in_the_events(ring: Ring) -> None:
    answer(ring.db, range(40))
    trainer = ring.trainer()
    pretrain(trainer)
    trainer.close()
    events = EventAccumulator(str(ring.folder / "events" / "reward_predictor")).Reload()
    expected = {**trainer.member_losses(), "l2": [0.01] * 3}
    assert set(expected) == {"in_bag_loss", "out_of_bag_loss", "out_of_bag_ratio", "l2"}
    for name, values in expected.items():
        assert events.Scalars(f"reward_predictor/{name}")[-1].value == pytest.approx(np.mean(values))
        members = [events.Scalars(f"reward_predictor_members/{name}_{i}")[-1].value for i in range(3)]
        assert members == pytest.approx(values)


def test_batches_are_cropped_in_training_alone(ring: Ring) -> None:
    """Never where the predictor is measured, normalised or settled."""
    answer(ring.db, range(40))
    trainer = ring.trainer(replace(SMALL, crop_steps=3))
    seen: dict[str, list[int]] = {"learner": [], "predictor": []}
    for name, steps in seen.items():
        module = getattr(trainer, name)
        module.register_forward_pre_hook(lambda _module, inputs, steps=steps: steps.append(len(inputs[0])))
    pretrain(trainer)
    train(trainer, 20)
    trainer._measure()
    whole = {2 * LENGTH * n_pairs for n_pairs in range(1, 21)}
    assert set(seen["predictor"]) <= whole and len(seen["predictor"]) > 4
    assert min(seen["learner"][-20:]) >= 2 * 16 * (LENGTH - 3)
    assert max(seen["learner"][-20:]) < 2 * 16 * LENGTH
    pairs = list(trainer.pairs.values())[:16]
    cropped, full = trainer._decoded(pairs, crop_steps=3), trainer._decoded(pairs)
    assert torch.equal(cropped.mu, full.mu) and torch.equal(cropped.counts, full.counts)
    assert len(cropped.observations) == len(cropped.actions) == len(cropped.segment) < len(full.observations)
    lengths = cropped.segment.bincount(minlength=32)
    assert torch.equal(lengths[0::2], lengths[1::2]) and lengths.min() >= LENGTH - 3


def test_without_crops_the_generator_stays_as_it_was(ring: Ring) -> None:
    """So that the batches of a run are the same as ever."""
    answer(ring.db, range(20))
    trainer = ring.trainer(n_initial=100)
    trainer.step()
    before = trainer.rng.bit_generator.state
    trainer._decoded(list(trainer.pairs.values()), crop_steps=0)
    assert trainer.rng.bit_generator.state == before
    trainer._decoded(list(trainer.pairs.values()), crop_steps=1)
    assert trainer.rng.bit_generator.state != before
