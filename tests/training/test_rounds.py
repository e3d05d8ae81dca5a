"""Initial labels in rounds: what the predictor has learned from one chooses what the next asks."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from drlhp.data.candidate import Candidate
from drlhp.labelling.gatherers import SyntheticGatherer
from drlhp.labelling.notices import Notices
from drlhp.labelling.teachers import SyntheticTeacher
from drlhp.queries.selection import informativeness
from drlhp.runtime import checkpoint
from drlhp.runtime.weights import WeightsBoard
from drlhp.training.rounds import InitialRounds, round_of
from drlhp.training.trainer import BATCHES_PER_ROUND
from pref_db import PrefDB
from pref_interface import PrefInterface, PrefsConfig
from reward_predictor import PredictorCopySpec, RewardPredictor
from tests.support.commands import BRIEF_PPO, UNEVALUATED, answers, here
from tests.support.ring import SMALL, VECTORS, Ring, answer, segment

CONFIG = PrefsConfig(n_initial_prefs=40, n_initial_rounds=4, max_segs=100, query_candidates=100)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    with closing(Ring(tmp_path)) as ring:
        yield ring


class Rounds:
    """An interface that asks a synthetic teacher in rounds, and a trainer, on the store of a ring."""

    def __init__(self, ring: Ring, *, resume: bool = False, label_buffer: int = 3000) -> None:
        self.ring, self.db = ring, PrefDB.open(ring.folder / "prefs.db")
        self.board = WeightsBoard(RewardPredictor(VECTORS, SMALL), None)
        self.rounds = InitialRounds(CONFIG.n_initial_rounds, PredictorCopySpec(VECTORS, SMALL, self.board))
        gatherer = SyntheticGatherer(self.db, SyntheticTeacher())
        self.interface = PrefInterface(
            self.db, gatherer, ring.channels, CONFIG, seed=0, goal=40, annealed_over=1000, rounds=self.rounds
        )
        self.trainer = ring.trainer(
            replace(SMALL, label_buffer=label_buffer),
            n_initial=40,
            resume=resume,
            n_initial_rounds=CONFIG.n_initial_rounds,
            query_board=self.board,
        )
        for number in range(CONFIG.max_segs):
            ring.channels.segments.put(Candidate(segment(number)))
            self.interface.step()

    def ask(self) -> int:
        """Steps the interface until it has nothing to do; returns the labels that there are then."""
        while self.interface.step():
            pass
        return self.interface.n_labels

    def close(self) -> None:
        self.interface.close()


def test_each_round_waits_for_what_the_last_one_has_taught(ring: Ring) -> None:
    with closing(Rounds(ring)) as rounds:
        for n_labels in (10, 20, 30):
            assert rounds.ask() == n_labels == rounds.ask()
            assert f"what {n_labels} labels have taught" in rounds.interface.status.line()
            assert rounds.trainer.step() and not rounds.trainer.step(), "once for each round"
            assert ring.board.version == 0, "the policy does not start on it"
        while rounds.interface.n_labels < 40:
            rounds.interface.step()
            assert "every pair was asked" not in rounds.interface.status.line()
        while not rounds.trainer.pretrained:
            rounds.trainer.step()
        assert ring.board.version == 1 and rounds.board.version == 3


def test_the_next_round_is_about_what_the_members_disagree_on(ring: Ring) -> None:
    with closing(Rounds(ring)) as rounds:
        rounds.ask()
        rounds.trainer.step()
        rounds.ask()
        pool = {one.segment.id: one for one in rounds.interface.pool}
        raw = rounds.trainer.predictor.predict(
            torch.from_numpy(np.concatenate([one.segment.observations for one in pool.values()])),
            torch.from_numpy(np.concatenate([one.segment.actions for one in pool.values()])),
        )
        sums = raw.detach().view(3, len(pool), -1).sum(2).T.numpy()
        found = np.stack([one.member_returns for one in pool.values() if one.member_returns is not None])
        assert found == pytest.approx(sums, abs=1e-4), "the whole pool is judged by these weights"
        asked = [(pool[label.a], pool[label.b]) for label in rounds.db.labels()]
        chosen = np.mean([informativeness(a, b, "disagreement") for a, b in asked[10:]])
        usual = [informativeness(a, b, "disagreement") for a in pool.values() for b in pool.values() if a is not b]
        assert chosen > np.percentile(usual, 90)


def test_a_run_that_was_stopped_between_two_rounds_goes_on(ring: Ring) -> None:
    with closing(Rounds(ring)) as rounds:
        rounds.ask()
        rounds.trainer.step()
        assert rounds.ask() == 20
        rounds.trainer.save()
    with closing(Rounds(ring, resume=True)) as again:
        assert again.ask() == 20
        assert again.trainer.step() and again.ask() == 30


def test_who_starts_the_training_early_is_not_held_up_by_rounds(ring: Ring) -> None:
    with closing(Rounds(ring)) as rounds:
        for _ in range(2):
            rounds.ask()
            rounds.trainer.step()
        assert rounds.ask() == 30
        Notices(rounds.db).start_now()
        while not rounds.trainer.pretrained:
            assert rounds.trainer.step()
        ring.channels.agent_steps.value = 500
        assert rounds.ask() > 30, "the others come as the policy trains"


def test_a_policy_that_trains_already_gets_its_labels_without_rounds(ring: Ring) -> None:
    """As with a predictor that was loaded, which learns nothing between the rounds."""
    with closing(Rounds(ring)) as rounds:
        assert rounds.ask() == 10
        ring.channels.agent_steps.value = 500
        assert rounds.ask() == 40
        assert {one.member_returns is None for one in rounds.interface.pool} == {True}


def test_a_buffer_for_fewer_labels_holds_no_round_up(ring: Ring) -> None:
    with closing(Rounds(ring, label_buffer=15)) as rounds:
        for n_labels in (10, 20, 30):
            assert rounds.ask() == n_labels and rounds.trainer.step()
        assert rounds.ask() == 40


def test_clips_are_judged_when_all_are_there(ring: Ring) -> None:
    with closing(Rounds(ring)) as rounds:
        rounds.ask()
        rounds.trainer.step()
        for _ in range(5):
            rounds.interface.pool.pop()
        assert not rounds.interface.step() and rounds.ask() == 10
        for number in range(200, 205):
            ring.channels.segments.put(Candidate(segment(number)))
        assert rounds.ask() == 20
        assert all(one.member_returns is not None for one in rounds.interface.pool)


def test_a_run_asks_in_rounds_and_trains_on_all_labels(tmp_path: Path) -> None:
    flags = ("--n_initial_prefs", "30", "--max_prefs", "30", "--n_initial_rounds", "3", "--max_segs", "70")
    members = ("--ensemble_size", "3", "--query_selection", "disagreement", "--no_bootstrap", "--no_hold_out")
    short = ("--n_initial_epochs", "1", "--million_timesteps", "0.0005", *UNEVALUATED, *BRIEF_PPO)
    words = ("train_policy_with_preferences", "CartPole-v1", "--synthetic_prefs", *flags, *members, *short)
    result = here(tmp_path, *words, "--n_envs", "1", "--run_name", "a")
    assert len(answers(tmp_path / "a")) == 30 and "validation accuracy" not in result.stdout
    state = checkpoint.load(
        checkpoint.find(tmp_path / "a", "reward_predictor"), kind="reward_predictor", env_id="CartPole-v1"
    )
    assert state["step"] > 2 * BATCHES_PER_ROUND, "it has learned between the rounds"


@pytest.mark.parametrize(("n_initial", "n_rounds"), [(100, 5), (25, 4), (7, 7), (10, 1)])
def test_rounds_share_the_initial_labels_evenly(n_initial: int, n_rounds: int) -> None:
    board = WeightsBoard(RewardPredictor(VECTORS, SMALL), None)
    rounds = InitialRounds(n_rounds, PredictorCopySpec(VECTORS, SMALL, board))
    sizes = np.bincount([round_of(n, n_initial, n_rounds) for n in range(n_initial)])
    assert len(sizes) == n_rounds and np.ptp(sizes) <= 1
    ends = {rounds.goal(n, n_initial) for n in range(n_initial)}
    assert ends == set(np.cumsum(sizes)), "each ends where the next begins"


def test_with_nothing_held_out_all_labels_are_trained_on(ring: Ring) -> None:
    answer(ring.db, range(40))
    usual = ring.trainer(n_initial=40)
    assert usual.step() and usual.pace.labels_trained < 40
    trainer = ring.trainer(replace(SMALL, hold_out=False), n_initial=40)
    assert trainer.step() and trainer.pace.labels_trained == 40
    assert np.isnan(trainer.measurements.validation.accuracy)


def test_without_bootstraps_each_member_learns_from_all_labels(ring: Ring) -> None:
    answer(ring.db, range(20))
    trainer = ring.trainer(replace(SMALL, bootstrap=False), n_initial=20)
    while not trainer.pretrained:
        trainer.step()
    assert {pair.counts for pair in trainer.labels.pairs.values()} == {(1, 1, 1)}
    loss = trainer.measurements.validation.loss
    assert trainer.learner.member_losses(loss)["out_of_bag_loss"] == [loss] * 3
    raw = trainer.predictor.predict(torch.from_numpy(segment(1).observations), torch.from_numpy(segment(1).actions))
    assert (raw[0] - raw[1]).abs().max() > 1e-4, "they differ by their starts"
