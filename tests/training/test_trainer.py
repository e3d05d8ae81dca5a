"""The trainer on a real store of labels."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drlhp.data.comparison import Choice, Comparison, is_validation
from drlhp.data.segment import CompressedSegment, Segment
from drlhp.errors import UserError
from drlhp.labelling.notices import FEW_LABELS, Notices
from drlhp.networks.architectures import RewardCNN
from drlhp.networks.batches import TrainingPair, bootstrap_count
from drlhp.runtime import checkpoint
from drlhp.runtime.channels import Channels
from drlhp.runtime.start import start_context
from drlhp.runtime.turns import ProcessorTurns
from drlhp.runtime.weights import WeightsBoard
from drlhp.training import trainer as trainer_module
from drlhp.training.regularisation import L2_START
from drlhp.training.trainer import Trainer, TrainerSpec
from pref_db import PrefDB
from reward_predictor import PredictorConfig, PredictorCopy, PredictorCopySpec, PredictorInputs, RewardPredictor
from tests.support.ring import (
    ENV_ID,
    LENGTH,
    SMALL,
    VECTORS,
    Ring,
    answer,
    choice,
    comparison,
    predicted_reward,
    pretrain,
    segment,
)
from tests.support.store import undo_last


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    ring = Ring(tmp_path)
    yield ring
    ring.close()


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
    spec = TrainerSpec(
        inputs=inputs,
        env_id=ENV_ID,
        config=config,
        board=board,
        run_dir=tmp_path,
        seed=0,
        n_initial_prefs=12,
        freeze=False,
        resume=False,
    )
    trainer = Trainer(channels, spec)
    pretrain(trainer)
    train(trainer, 2)
    learned = PredictorCopySpec(inputs, config, board).build()
    learned.refresh()
    seen = [p for p in pairs if not is_validation(p.id)]
    frames = np.concatenate([s.observations for p in seen for s in (p.a, p.b)]).astype(np.float64)
    gain = 1 / frames.std(0).clip(0.1 * 255) if normalises else np.full((84, 84), 1 / 255)
    shift = -frames.mean(0) * gain if normalises else np.zeros((84, 84))
    for predictor in (trainer.predictor, trainer.learner.ensemble, learned.predictor):
        assert isinstance(predictor.body, RewardCNN)
        reader = predictor.body.reader
        np.testing.assert_allclose(reader.gain[0, 2], gain, rtol=1e-5)
        np.testing.assert_allclose(reader.shift[0, 1], shift, rtol=1e-4, atol=1e-5)
    trainer.close()
    db.close()


def train(trainer: Trainer, n_batches: int) -> None:
    """So many batches as the policy goes on."""
    goal = trainer.learner.batches + n_batches
    while trainer.learner.batches < goal:
        trainer.channels.agent_steps.value += round(SMALL.label_batch_size / SMALL.labels_per_step)
        assert trainer.step()


def rewards(predictor: RewardPredictor | PredictorCopy) -> np.ndarray:
    """(members, B) normalised rewards of fixed observations."""
    made = segment(12345)
    if isinstance(predictor, PredictorCopy):
        return predictor.member_rewards(made.observations, made.actions).normalised
    return predictor.normalised(predictor.member_rewards(made.observations, made.actions))


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
    assert np.array_equal(rewards(copy), rewards(trainer.predictor))
    assert trainer.status()["labels"] == 10 and trainer.status()["epochs"] == 2


def test_the_trainer_starts_early_when_somebody_says_so_and_after_a_resume_too(ring: Ring) -> None:
    trainer = ring.trainer(n_initial=500)
    ring.tell(answer(ring.db, range(FEW_LABELS)))
    assert not trainer.step()
    Notices(ring.db).start_now()
    assert trainer.step()
    assert ring.trainer(n_initial=500, resume=True).step()


def test_published_rewards_are_normalised_on_segments_that_were_trained_on(ring: Ring) -> None:
    answer(ring.db, range(trainer_module.SETTLING_PAIRS))
    trainer = ring.trainer()
    pretrain(trainer)
    copy = PredictorCopySpec(VECTORS, SMALL, ring.board).build()
    copy.refresh()
    learned = [pair for pair in trainer.labels.pairs.values() if not pair.label.validation]
    stored = [segment.decode() for pair in learned for segment in (pair.a, pair.b)]
    raw = copy.predictor(
        torch.from_numpy(np.concatenate([s.observations for s in stored])),
        torch.from_numpy(np.concatenate([s.actions for s in stored])),
    ).detach()
    normalised = torch.from_numpy(copy.predictor.normalised(raw.numpy()))
    torch.testing.assert_close(normalised.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normalised.std(1), torch.full((3,), SMALL.reward_std), atol=1e-4, rtol=0)


def test_training_keeps_pace_with_the_policy(ring: Ring) -> None:
    """A tenth of a label for each agent step, in batches of 16."""
    answer(ring.db, range(40))
    trainer = ring.trainer()
    pretrain(trainer)
    assert not trainer.step()

    def batches_at(agent_steps: int) -> int:
        before = trainer.learner.batches
        ring.channels.agent_steps.value = agent_steps
        while trainer.step():
            assert trainer.learner.batches < before + 100
        return trainer.learner.batches - before

    assert [batches_at(159), batches_at(160), batches_at(800)] == [0, 1, 4]
    version = ring.board.version
    assert batches_at(8_000) == 45
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
    new = [seq for seq, pair in trainer.labels.pairs.items() if seq > 60 and not pair.label.validation]
    assert len(new) > SMALL.label_batch_size // 2 and set(new) <= set(seen)
    assert sum(seq <= 60 for seq in seen) >= 4 * SMALL.label_batch_size // 2 - 1, "beside older ones"


def test_the_only_label_may_be_taken_back_while_batches_are_due(ring: Ring) -> None:
    answer(ring.db, range(20))
    trainer = ring.trainer()
    pretrain(trainer)
    train_batch = trainer._train_batch

    def train_and_retract(pairs: list[TrainingPair]) -> None:
        train_batch(pairs)
        trainer.labels.pairs.clear()

    trainer._train_batch = train_and_retract  # type: ignore[method-assign]
    before = trainer.learner.batches
    ring.channels.agent_steps.value += round(5 * SMALL.label_batch_size / SMALL.labels_per_step)
    assert trainer.step() and trainer.learner.batches == before + 1


def test_a_policy_with_large_rollouts_leaves_no_training_undone(ring: Ring) -> None:
    """Turn by turn the trainer does all that came due in the policy's turn, publishing included, not one batch."""
    answer(ring.db, range(40))
    rollout_steps, n_rollouts = round(15 * SMALL.label_batch_size / SMALL.labels_per_step), 10
    trainer = ring.trainer(rollout_steps=rollout_steps)
    pretrain(trainer)
    ring.channels.turns = ProcessorTurns(start_context(), ring.channels.stop)
    before, version = trainer.learner.batches, ring.board.version

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
    assert trainer.learner.batches - before == 15 * n_rollouts
    assert ring.board.version > version


def test_the_policy_waits_until_a_late_trainer_has_made_up_for_all_that_is_due(ring: Ring) -> None:
    answer(ring.db, range(40))
    trainer = ring.trainer()
    pretrain(trainer)
    before, waited, train_batch = trainer.learner.batches, list[bool](), trainer._train_batch

    def watched(pairs: list[TrainingPair]) -> None:
        waited.append(ring.channels.behind.is_set())
        train_batch(pairs)

    trainer._train_batch = watched  # type: ignore[method-assign]
    ring.channels.agent_steps.value += round(100 * SMALL.label_batch_size / SMALL.labels_per_step)
    assert trainer.step() and trainer.learner.batches - before == 100
    assert all(waited) and not ring.channels.behind.is_set()
    status = trainer.status()
    assert (status["batches_due"], status["batches_trained"]) == (100, 100)
    trainer.save()
    resumed = ring.trainer(resume=True)
    assert not resumed.step() and resumed.status()["batches_trained"] == 100


def test_a_frozen_trainer_is_finished_after_pretraining(ring: Ring) -> None:
    answer(ring.db, range(12))
    trainer = ring.trainer(n_initial=0, freeze=True)
    assert not trainer.finished
    pretrain(trainer)
    assert trainer.finished and ring.board.version == 1
    batches = trainer.learner.batches
    ring.channels.agent_steps.value = 10_000
    assert not trainer.step()
    assert trainer.learner.batches == batches


def test_labels_count_once_however_often_the_bell_rings(ring: Ring) -> None:
    first = ring.trainer(n_initial=100)
    labels = answer(ring.db, range(5))
    ring.tell(labels)
    first.step()
    ring.tell(labels)  # told again
    first.step()
    assert sorted(first.labels.pairs) == [1, 2, 3, 4, 5]
    ring.tell(answer(ring.db, range(5, 7)))
    answer(ring.db, range(7, 9))  # on disk, and the bell was lost
    reopened = ring.trainer(n_initial=100, resume=True)
    reopened.step()
    assert sorted(reopened.labels.pairs) == list(range(1, 10))
    ids = [pair.label.comparison_id for pair in reopened.labels.pairs.values()]
    assert sorted(ids) == sorted(comparison(n).id for n in range(9))
    for pair in reopened.labels.pairs.values():
        assert pair.label.validation == is_validation(pair.label.comparison_id)
        assert pair.counts == tuple(bootstrap_count(pair.label.comparison_id, member) for member in range(3))


def test_a_retraction_drops_the_pair_and_an_edit_replaces_it(ring: Ring) -> None:
    trainer = ring.trainer(n_initial=100)
    ring.tell(answer(ring.db, range(4)))
    trainer.step()
    undone = undo_last(ring.db, "synthetic")
    assert undone is not None
    edit = ring.db.add_answer(comparison(0), Choice.EQUAL, teacher="synthetic", supersedes=1)
    ring.tell([undone[0], edit])
    trainer.step()
    assert edit is not None and sorted(trainer.labels.pairs) == [2, 3, edit.seq]
    assert trainer.labels.pairs[edit.seq].label.mu == (0.5, 0.5)


def test_only_the_newest_labels_are_kept(ring: Ring) -> None:
    trainer = ring.trainer(replace(SMALL, label_buffer=6), n_initial=100)
    for start in (0, 5, 10):
        ring.tell(answer(ring.db, range(start, start + 5)))
        trainer.step()
    assert sorted(trainer.labels.pairs) == list(range(10, 16))


def test_of_a_long_store_no_more_is_read_than_is_kept(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(ring.db, range(30))
    trainer, read = ring.trainer(replace(SMALL, label_buffer=6), n_initial=100), list[str]()
    stored_segment = trainer.labels.db.stored_segment

    def counted(segment_id: str) -> CompressedSegment:
        read.append(segment_id)
        return stored_segment(segment_id)

    monkeypatch.setattr(trainer.labels.db, "stored_segment", counted)
    trainer.labels.receive()
    kept = trainer.labels.snapshot()
    assert kept["seqs"] == list(range(25, 31)) and len(read) == 12
    read.clear()
    trainer.labels.restore(kept)
    assert trainer.labels.snapshot() == kept and len(read) == 12


def test_more_initial_labels_than_are_kept_start_the_training(ring: Ring) -> None:
    trainer = ring.trainer(replace(SMALL, label_buffer=20), n_initial=30)
    for start, begins in ((0, False), (25, True)):
        ring.tell(answer(ring.db, range(start, start + 25)))
        assert trainer.step() == begins


def test_labels_are_taken_in_where_none_is_learned_from(ring: Ring) -> None:
    """The bell rings once for many."""
    answer(ring.db, range(20))
    trainer = ring.trainer(replace(SMALL, labels_per_step=0.0))
    pretrain(trainer)
    ring.tell(answer(ring.db, range(20, 25)))
    trainer.step()
    assert ring.channels.bell is not None and not ring.channels.bell.is_set()
    assert len(trainer.labels.pairs) == 25
    ring.tell(answer(ring.db, range(25, 30))[:1])
    trainer.step()
    assert len(trainer.labels.pairs) == 30


def test_a_single_predictor_has_no_bootstrap(ring: Ring) -> None:
    answer(ring.db, range(12))
    ring.board = WeightsBoard(RewardPredictor(VECTORS, replace(SMALL, ensemble_size=1)), None)
    trainer = ring.trainer(replace(SMALL, ensemble_size=1), n_initial=100)
    trainer.step()
    assert {pair.counts for pair in trainer.labels.pairs.values()} == {(1,)}


def test_a_label_that_is_in_no_bootstrap_costs_no_training(ring: Ring) -> None:
    answer(ring.db, range(80))
    trainer = ring.trainer()
    trained = set[int]()
    train_batch = trainer._train_batch

    def train_and_tell(pairs: list[TrainingPair]) -> None:
        trained.update(pair.label.seq for pair in pairs)
        train_batch(pairs)

    trainer._train_batch = train_and_tell  # type: ignore[method-assign]
    pretrain(trainer)
    train(trainer, 20)
    not_held_out = {seq: pair for seq, pair in trainer.labels.pairs.items() if not pair.label.validation}
    assert any(not any(pair.counts) for pair in not_held_out.values()), "about one in twenty"
    assert trained == {seq for seq, pair in not_held_out.items() if any(pair.counts)}


def test_a_resumed_trainer_predicts_the_same_and_goes_on(ring: Ring) -> None:
    answer(ring.db, range(20))
    first = ring.trainer()
    pretrain(first)
    path = first.save()
    second = ring.trainer(resume=True)
    assert second.pretrained and second.learner.batches == first.learner.batches and ring.board.version == 2
    assert np.array_equal(rewards(first.predictor), rewards(second.predictor))
    published = PredictorCopySpec(VECTORS, SMALL, ring.board).build()
    published.refresh()
    assert np.array_equal(rewards(published), rewards(first.predictor))
    ring.channels.agent_steps.value = round(SMALL.label_batch_size / SMALL.labels_per_step)
    assert second.step() and second.learner.batches == first.learner.batches + 1
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
        assert loaded.finished and other.board.version == 1 and loaded.learner.batches == 0
        assert np.array_equal(rewards(first.predictor), rewards(loaded.predictor))
        gone = replace(SMALL, load_reward_predictor_ckpt_dir=str(ring.folder / "moved"))
        resumed = other.trainer(gone, n_initial=0, freeze=True, resume=True)
        assert np.array_equal(rewards(first.predictor), rewards(resumed.predictor)), "it has its own copy"
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
        trainer.learner.ensemble.get_parameter("out.bias").add_(25)
    before = rewards(trainer.learner.ensemble).mean()
    train(trainer, 100)
    assert rewards(trainer.learner.ensemble).mean() < 0.9 * before


def test_a_training_that_diverges_ends_and_leaves_the_last_predictor_that_predicts(ring: Ring) -> None:
    answer(ring.db, range(20))
    pretrain(first := ring.trainer())
    first.save()
    diverging = ring.trainer(replace(SMALL, reward_predictor_learning_rate=1e30), resume=True)
    with pytest.raises(UserError, match="diverged"):
        train(diverging, 100)
    diverging.close()
    ring.trainers.remove(diverging)
    resumed = ring.trainer(resume=True)
    assert np.array_equal(rewards(resumed.predictor), rewards(first.predictor))
    train(resumed, 10)
    assert resumed.learner.batches == first.learner.batches + 10


def test_the_predictor_learns_what_is_preferred(ring: Ring) -> None:
    answer(ring.db, range(200))
    trainer = ring.trainer(replace(SMALL, n_initial_epochs=15))
    pretrain(trainer)
    assert trainer.measurements.validation.accuracy > 0.8
    assert trainer.measurements.validation.loss < 0.55  # always answering "equal" has ln 2 = 0.69
    made = [segment(10_000 + n) for n in range(100)]
    observations, actions = np.concatenate([m.observations for m in made]), np.concatenate([m.actions for m in made])
    true = np.concatenate([m.rewards for m in made])
    assert np.corrcoef(true, predicted_reward(trainer.predictor, observations, actions))[0, 1] > 0.8


def rare_event(seed: int) -> Segment:
    """Returns random vectors; a step is rewarded if its first number is large."""
    made = segment(seed)
    return replace(made, rewards=(made.rewards > 1.5).astype(np.float32))


def test_with_an_l1_penalty_the_steps_between_rare_events_earn_less(ring: Ring) -> None:
    pairs = [Comparison(rare_event(2 * n), rare_event(2 * n + 1), flip=False) for n in range(150)]
    ties = [pair.a.rewards.sum() == pair.b.rewards.sum() for pair in pairs]
    answers = [Choice.EQUAL if tie else choice(pair) for pair, tie in zip(pairs, ties, strict=True)]
    ring.db.add_answers(list(zip(pairs, answers, strict=True)), teacher="synthetic")
    test = [rare_event(10_000 + n) for n in range(50)]
    observations, actions = (np.concatenate([getattr(one, of) for one in test]) for of in ("observations", "actions"))
    event = np.concatenate([one.rewards for one in test]) > 0
    noise = []
    for weight in (0.0, 0.3):
        torch.manual_seed(0)
        trainer = ring.trainer(replace(SMALL, n_initial_epochs=15, hold_out=False, reward_l1=weight))
        pretrain(trainer)
        reward = predicted_reward(trainer.predictor, observations, actions)
        assert reward[event].mean() > reward[~event].mean()
        noise.append(reward[~event].std() / (reward[event].mean() - reward[~event].mean()))
    assert noise[1] < 0.8 * noise[0]


def answer_at_random(db: PrefDB, n_labels: int) -> None:
    """Answers from which there is nothing to learn, only to remember."""
    rng = np.random.default_rng(0)
    answers = [(comparison(n), Choice.A if rng.random() < 0.5 else Choice.B) for n in range(n_labels)]
    db.add_answers(answers, teacher="synthetic")


@pytest.mark.slow
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
        norms[l2] = torch.stack([parameter.norm() for parameter in trainer.learner.ensemble.parameters()]).norm().item()
        if l2 == 0.0:
            assert trainer.learner.l2 == [0.0] * n_members
            assert min(trainer.learner.member_losses(trainer.measurements.validation.loss)["out_of_bag_ratio"]) > 2
        else:
            assert min(trainer.learner.l2) > L2_START and len(trainer.learner.l2) == n_members
        if n_members == 1:
            assert trainer.learner.member_losses(trainer.measurements.validation.loss)["out_of_bag_loss"] == [
                trainer.measurements.validation.loss
            ]
        other.close()
    assert norms["adaptive"] < 0.8 * norms[0.0]


def test_an_adaptive_l2_is_saved_and_goes_on_and_a_flag_overrides_it(ring: Ring) -> None:
    answer(ring.db, range(20))
    config = replace(SMALL, l2="adaptive")
    first = ring.trainer(config)
    pretrain(first)
    first.learner.l2 = [0.02, 0.5, 3.0]
    first.save()
    second = ring.trainer(config, resume=True)
    assert second.learner.l2 == first.learner.l2
    assert second.learner.bag_losses.means() == first.learner.bag_losses.means()
    fixed = ring.trainer(replace(config, l2=0.25, reward_predictor_learning_rate=1e-4), resume=True)
    assert fixed.learner.l2 == [0.25] * 3
    settings = fixed.learner.optimizer.param_groups[0]
    assert (settings["weight_decay"], settings["lr"]) == (0.25, 1e-4)


def test_losses_of_the_members_and_l2_are_in_the_events(ring: Ring) -> None:
    answer(ring.db, range(40))
    trainer = ring.trainer()
    pretrain(trainer)
    trainer.close()
    events = EventAccumulator(str(ring.folder / "events" / "reward_predictor")).Reload()
    expected = {**trainer.learner.member_losses(trainer.measurements.validation.loss), "l2": [0.01] * 3}
    assert set(expected) == {"in_bag_loss", "out_of_bag_loss", "out_of_bag_ratio", "l2"}
    for name, values in expected.items():
        assert events.Scalars(f"reward_predictor/{name}")[-1].value == pytest.approx(np.mean(values))
        members = [events.Scalars(f"reward_predictor_members/{name}_{i}")[-1].value for i in range(3)]
        assert members == pytest.approx(values)


def test_batches_are_cropped_in_training_alone(ring: Ring) -> None:
    """Never where the predictor is measured, normalised or settled."""
    answer(ring.db, range(40))
    trainer = ring.trainer(replace(SMALL, crop_steps=3))
    seen: dict[str, list[int]] = {"ensemble": [], "average": []}
    for name, steps in seen.items():
        module = getattr(trainer.learner, name)
        module.register_forward_pre_hook(lambda _module, inputs, steps=steps: steps.append(len(inputs[0])))
    pretrain(trainer)
    train(trainer, 20)
    trainer._measure()
    whole = {2 * LENGTH * n_pairs for n_pairs in range(1, 21)}
    assert set(seen["average"]) <= whole and len(seen["average"]) > 4
    assert min(seen["ensemble"][-20:]) >= 2 * 16 * (LENGTH - 3)
    assert max(seen["ensemble"][-20:]) < 2 * 16 * LENGTH
    pairs = list(trainer.labels.pairs.values())[:16]
    cropped, full = trainer.learner.decoded(pairs, crop_steps=3), trainer.learner.decoded(pairs)
    assert torch.equal(cropped.mu, full.mu) and torch.equal(cropped.counts, full.counts)
    assert len(cropped.observations) == len(cropped.actions) == len(cropped.segment) < len(full.observations)
    lengths = cropped.segment.bincount(minlength=32)
    assert torch.equal(lengths[0::2], lengths[1::2]) and lengths.min() >= LENGTH - 3


def test_without_crops_the_generator_stays_as_it_was(ring: Ring) -> None:
    """So that the batches of a run are the same as ever."""
    answer(ring.db, range(20))
    trainer = ring.trainer(n_initial=100)
    trainer.step()
    before = trainer.learner.rng.bit_generator.state
    trainer.learner.decoded(list(trainer.labels.pairs.values()), crop_steps=0)
    assert trainer.learner.rng.bit_generator.state == before
    trainer.learner.decoded(list(trainer.labels.pairs.values()), crop_steps=1)
    assert trainer.learner.rng.bit_generator.state != before
