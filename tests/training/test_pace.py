"""How many batches are due for the policy's steps, and who waits for whom."""

from dataclasses import replace

from drlhp.training.pace import BACKLOG_BATCHES, Pace
from reward_predictor import PredictorConfig

CONFIG = PredictorConfig(labels_per_step=0.1, label_batch_size=10)  # a batch for each 100 steps
ROLLOUT = 200
MOST = BACKLOG_BATCHES + 2  # batches
FEW = 30  # labels


def pace(*, policy_waits: bool = True) -> Pace:
    return Pace(CONFIG, ROLLOUT, policy_waits=policy_waits)


def test_everything_that_is_due_is_trained_however_late_the_trainer_looks() -> None:
    late, punctual = pace(), pace()
    late.follow(100_000, FEW)
    assert late.behind and late.take_batches() == 1000 and not late.behind
    taken = 0
    for steps in range(70, 100_001, 70):
        punctual.follow(steps, FEW)
        assert not punctual.behind
        taken += punctual.take_batches()
    punctual.follow(100_000, FEW)
    assert taken + punctual.take_batches() == 1000 and round(punctual.due) == late.due == 1000


def test_a_policy_waits_only_for_more_than_the_backlog() -> None:
    following = pace()
    following.follow(100 * MOST, FEW)
    assert not following.behind
    following.follow(100 * MOST + 1, FEW)
    assert following.behind


def test_what_a_program_that_cannot_wait_makes_due_is_let_go_but_counted() -> None:
    following = pace(policy_waits=False)
    following.follow(100_000, FEW)
    assert not following.behind and following.due == 1000 and following.take_batches() == MOST


def test_without_labels_nothing_is_due() -> None:
    following = pace()
    following.follow(100_000, 0)
    assert not following.due and not following.take_batches()
    following.follow(100_100, FEW)
    assert following.take_batches() == 1


def test_a_resumed_run_owes_what_its_checkpoint_owed_and_nothing_twice() -> None:
    before, after = pace(), pace()
    before.follow(1050, FEW)
    assert before.take_batches() == 10
    after.load(before.state())
    after.follow(900, FEW)  # the policy's checkpoint is older
    assert after.take_batches() == 0
    after.follow(1100, FEW)
    assert after.take_batches() == 1 and after.due == 11


def test_a_checkpoint_that_says_nothing_of_steps_owes_none_of_those_before_it() -> None:
    after = pace()
    after.load({})
    after.follow(0, FEW)  # the policy is not there yet
    after.follow(5_000_000, FEW)
    assert not after.due
    after.follow(5_000_100, FEW)
    assert after.take_batches() == 1


def test_no_more_passes_over_the_labels_are_due_than_wanted_until_new_labels_come() -> None:
    following = Pace(replace(CONFIG, label_passes=4), ROLLOUT, policy_waits=True)
    following.labels_trained = 40  # in pretraining
    following.follow(100_000, FEW)
    assert following.take_batches() == following.due == 4 * FEW / 10 - 4
    following.labels_trained += 80
    assert not following.room(FEW) and following.room(FEW + 5) == 4 * 5
    resumed = Pace(replace(CONFIG, label_passes=4), ROLLOUT, policy_waits=True)
    resumed.load(following.state())
    resumed.follow(100_000, FEW)
    resumed.follow(200_000, FEW + 5)
    assert resumed.take_batches() == 2
