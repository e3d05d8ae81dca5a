"""Which pairs are asked, who answers, and that every answer is stored and sent on."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drlhp.data.candidate import Candidate
from drlhp.data.comparison import Choice
from drlhp.labelling.answers import Submission
from drlhp.labelling.gatherers import PEOPLE_AHEAD, QueueGatherer, SyntheticGatherer
from drlhp.labelling.notices import FEW_LABELS, Notices
from drlhp.labelling.queue import LabelQueue
from drlhp.queries.schedule import labels_due
from drlhp.runtime.channels import SEGMENT_QUEUE_SIZE
from drlhp.runtime.turns import StopFlag
from drlhp.screens.gatherer import PERSON_AHEAD, PersonGatherer
from pref_db import PrefDB
from pref_interface import PrefsConfig
from tests.support.asking import FakeWindow, Ring, segment, step_until
from tests.support.store import Script


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    ring = Ring(tmp_path)
    yield ring
    ring.close()


def test_initial_labels_wait_for_a_full_pool_and_the_rest_for_training(ring: Ring) -> None:
    interface = ring.interface(n_initial=20, goal=40, annealed_over=1000)
    ring.act(9)
    interface.step()
    assert not interface.step() and interface.n_labels == 0
    ring.act(1)
    step_until(interface, lambda: interface.n_labels >= 20)
    ring.act(4)
    assert not interface.step() and interface.n_labels == 20
    assert ring.channels.segments.qsize() == 4  # the full queue tells the policy that there is nothing to do
    ring.channels.agent_steps.value = 100
    step_until(interface, lambda: interface.n_labels == labels_due(100, 1000, 20, 40))
    ring.channels.agent_steps.value = 5000
    step_until(interface, lambda: interface.n_labels == 40)
    assert not interface.step() and interface.n_labels == 40


def test_every_answer_is_stored_and_sent_once_in_order(ring: Ring) -> None:
    interface = ring.interface(n_initial=30, goal=30)
    ring.act(10)
    step_until(interface, lambda: interface.n_labels == 30)
    sent = ring.labels()
    assert sent == interface.db.labels()
    assert [label.seq for label in sent] == list(range(1, 31))
    for row in interface.db.answers():
        assert row.choice == (Choice.A if row.comparison.a.seed > row.comparison.b.seed else Choice.B)


def test_no_pair_is_asked_twice_even_after_a_restart(ring: Ring) -> None:
    """All 45 pairs of 10 segments, in two runs."""
    first = ring.interface(n_initial=25, goal=25)
    ring.act(10)
    step_until(first, lambda: first.n_labels == 25)
    second = ring.interface(n_initial=60, goal=60)
    assert second.n_labels == 25
    for one in first.pool:
        ring.channels.segments.put(one)
    step_until(second, lambda: second.n_labels == 45)
    assert not second.step()
    ids = [row.comparison_id for row in second.db.answers()]
    assert len(ids) == len(set(ids)) == 45


def test_what_somebody_has_labelled_since_a_run_ended_counts_when_it_goes_on(ring: Ring) -> None:
    """Also if it goes on exactly, for which it hides what it is to be told again."""
    first = ring.interface(n_initial=20, goal=20)
    ring.act(10)
    step_until(first, lambda: first.n_labels == 20)
    ended, more = first.snapshot(), ring.interface(n_initial=25, goal=25)
    for one in first.pool:
        ring.channels.segments.put(one)
    step_until(more, lambda: more.n_labels == 25)
    again = ring.interface(n_initial=20, goal=20)
    again.restore(ended)
    ring.labels()
    ring.trainer._last_seq = 20  # as the trainer goes back too
    assert again.n_labels == 20
    again.step()
    assert again.n_labels == ring.channels.n_labels.value == 25 and len(ring.labels()) == 5


def test_when_every_pair_was_asked_new_segments_are_taken(ring: Ring) -> None:
    """Three segments make three pairs; the fourth label needs another segment, also before training."""
    interface = ring.interface(n_initial=4, goal=4, max_segs=3)
    ring.act(3)
    step_until(interface, lambda: interface.n_labels == 3)
    ring.act(3)
    for _ in range(5):
        interface.step()
    assert interface.n_labels == 4


def test_initial_labels_are_about_as_many_segments_as_there_are(ring: Ring) -> None:
    """No segment of a validation label is in a training label then, from which the predictor would know it."""
    interface = ring.interface(n_initial=10, goal=12, max_segs=20)
    ring.act(20)
    step_until(interface, lambda: interface.n_labels == 12)
    seeds = [one.seed for row in interface.db.answers() for one in (row.comparison.a, row.comparison.b)]
    assert len(set(seeds[:20])) == 20 and len(seeds) == 24


def test_labels_that_are_only_gathered_wait_for_a_full_pool_too(ring: Ring) -> None:
    ring.channels.bell = None
    interface = ring.interface(n_initial=10, goal=10, max_segs=20)
    ring.act(19)
    interface.step()
    assert not interface.step() and interface.n_labels == 0
    assert interface.clips() == "19/20 (labels wait for all)"
    ring.act(1)
    step_until(interface, lambda: interface.n_labels == 10)
    assert interface.clips() == "20/20"
    about = {one.id for row in interface.db.answers() for one in (row.comparison.a, row.comparison.b)}
    assert len(about) == 20


def test_people_are_not_asked_about_the_first_clips_over_and_over(ring: Ring) -> None:
    """They are asked before the pool is full, about clips that are in no other question."""
    interface = ring.interface(QueueGatherer, n_initial=20, goal=20, max_segs=30)
    for n_clips, n_pairs in ((7, 3), (8, 4), (29, 14)):
        ring.act(n_clips - len(interface.pool))
        interface.step()
        pairs = interface.db.read("SELECT segment_a, segment_b FROM comparison")
        assert len(pairs) == n_pairs == len({one for pair in pairs for one in pair}) / 2
    ring.act(1)
    step_until(interface, lambda: len(interface.gatherer.pending) == 20)


def test_most_segments_of_the_untrained_policy_leave_when_training_begins(ring: Ring) -> None:
    interface = ring.interface(n_initial=5, goal=50, max_segs=150, annealed_over=1000)
    for _ in range(5):  # the queue is shorter
        ring.act(30)
        interface.step()
    step_until(interface, lambda: interface.n_labels == 5)
    assert len(interface.pool) == 150
    ring.channels.agent_steps.value = 100
    ring.act(3)
    step_until(interface, lambda: interface.n_labels > 5)
    assert [one.segment.seed for one in interface.pool][-3:] == [150, 151, 152] and len(interface.pool) == 103
    ring.act(30)
    interface.step()
    assert len(interface.pool) == 133, "once"


def test_the_same_segment_twice_makes_no_pair(ring: Ring) -> None:
    interface = ring.interface(n_initial=1, goal=5, max_segs=2)
    for _ in range(2):
        ring.channels.segments.put(Candidate(segment(3)))
    for _ in range(5):
        interface.step()
    assert interface.n_labels == 0 and len(interface.pool) == 2


def test_either_segment_may_be_on_either_side(ring: Ring) -> None:
    interface = ring.interface(n_initial=300, goal=300, max_segs=30)
    ring.act(30)
    step_until(interface, lambda: interface.n_labels == 300)
    rows = list(interface.db.answers())
    assert 100 < sum(row.flip for row in rows) < 200
    assert 60 < sum(row.flip for row in rows if row.choice == Choice.A) < 240  # the flip does not tell the answer
    assert len({row.a for row in rows} | {row.b for row in rows}) == 30


def test_the_pool_holds_the_newest_segments(ring: Ring) -> None:
    interface = ring.interface(goal=0, max_segs=10)
    ring.channels.agent_steps.value = 1
    for _ in range(2):
        ring.act(SEGMENT_QUEUE_SIZE)
        interface.step()
    assert [one.segment.seed for one in interface.pool] == list(
        range(2 * SEGMENT_QUEUE_SIZE - 10, 2 * SEGMENT_QUEUE_SIZE)
    )


def test_a_slow_trainer_keeps_nobody_waiting_and_all_labels_are_in_the_store(ring: Ring) -> None:
    ring.channels.bell = StopFlag(None)
    interface = ring.interface(n_initial=30, goal=30)
    ring.act(10)
    step_until(interface, lambda: interface.n_labels == 30)
    assert ring.channels.bell.is_set(), "so that it looks into the store"
    assert len(interface.db.labels()) == 30


def test_labels_are_gathered_where_there_is_no_trainer(ring: Ring) -> None:
    ring.channels.bell = None
    interface = ring.interface(n_initial=5, goal=5)
    ring.act(10)
    step_until(interface, lambda: interface.n_labels == 5)
    assert interface.db.n_labels() == 5


# A person


@pytest.mark.parametrize(
    ("n_labels", "said"),
    [(5, "training waits for 20 labels more, which `python run.py label"), (25, "training goes on")],
)
def test_who_leaves_before_the_training_begins_lets_it_begin_if_it_can(
    ring: Ring, n_labels: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = FakeWindow()
    interface = ring.interface(lambda db: PersonGatherer(db, screen), n_initial=500, goal=600)
    ring.act(30)
    while interface.n_labels < n_labels:
        screen.presses.append(["equal"])
        interface.step()
    screen.presses.append(["close"])
    step_until(interface, lambda: interface.ended)
    interface.step()
    assert said in capsys.readouterr().out and said in interface.status.line()
    assert Notices(interface.db).labels_to_start(500) == (25 if n_labels >= 25 else 500)


def test_training_that_goes_on_is_not_said_to_start_after_an_undo(ring: Ring) -> None:
    screen = FakeWindow()
    interface = ring.interface(lambda db: PersonGatherer(db, screen), n_initial=500, goal=600)
    ring.act(30)
    step_until(interface, lambda: bool(interface.gatherer.pending))
    assert "before training starts" in interface.status.line()
    ring.channels.agent_steps.value = 1000
    assert interface.status.line() == "Label 1 of 600"


def test_the_last_of_a_disk_is_left_to_the_answers(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, real = FakeWindow(), shutil.disk_usage(ring.path.parent)
    interface = ring.interface(lambda db: PersonGatherer(db, screen), n_initial=50, goal=60)
    ring.act(30)
    step_until(interface, lambda: bool(screen.shown))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=100 * 2**20))
    interface.disk.look_at = -math.inf  # time goes by
    while interface.gatherer.pending:
        screen.presses.append(["left"])
        interface.step()
    assert interface.n_labels == PERSON_AHEAD and "nearly full" in interface.status.line()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: real._replace(free=300 * 2**20))
    interface.disk.look_at = -math.inf
    step_until(interface, lambda: bool(interface.gatherer.pending))


def test_while_somebody_labels_beside_the_run_it_asks_on_when_its_own_labeller_has_left(ring: Ring) -> None:
    screen = FakeWindow()
    interface = ring.interface(lambda db: PersonGatherer(db, screen), n_initial=500, goal=600)
    helper = LabelQueue(interface.db)
    ring.act(30)
    step_until(interface, lambda: bool(screen.shown))
    screen.presses.append(["close"])
    step_until(interface, lambda: interface.ended)
    for _ in range(2 * PERSON_AHEAD):
        helper.notices.beat("label", {"status": "Label 1"})
        interface._told = interface.gatherer._told_at = -math.inf  # type: ignore[attr-defined]  # time goes by
        interface.step()
        step_until(interface, lambda: bool(helper.counts().ready))
        (lease,) = helper.claim("helper")
        helper.answers.add(Submission(lease.token, lease.token, lease.comparison_id, "helper", "left", 1.0, 2.0))
    step_until(interface, lambda: interface.n_labels == 2 * PERSON_AHEAD)
    helper.notices.beat("label", {"status": "over", "ended": "over"})
    interface._told = interface.gatherer._told_at = -math.inf  # type: ignore[attr-defined]
    step_until(interface, lambda: interface.ended)


@pytest.mark.parametrize("n_decided", [0, 1])
def test_labels_that_are_all_ties_are_told_of_once(
    n_decided: int, ring: Ring, capsys: pytest.CaptureFixture[str]
) -> None:
    ring.segments = (segment(seed, (float(seed < n_decided), 0.0, 0.0)) for seed in itertools.count())
    interface = ring.interface(goal=FEW_LABELS + 10)
    ring.act(10)
    step_until(interface, lambda: interface.n_labels == FEW_LABELS + 10)
    warnings = capsys.readouterr().out.count("labels so far call both clips equal")
    decided = sum(label.mu != (0.5, 0.5) for label in ring.labels())
    assert warnings == (0 if decided else 1) and bool(decided) == bool(n_decided)


def test_training_is_started_early_by_a_second_press(ring: Ring, capsys: pytest.CaptureFixture[str]) -> None:
    screen = FakeWindow()
    interface = ring.interface(lambda db: PersonGatherer(db, screen), n_initial=500, goal=600)
    ring.act(30)
    step_until(interface, lambda: bool(screen.shown))
    queue = LabelQueue(interface.db)
    for presses in (["start"], ["start"]):
        screen.presses.append(presses)
        interface.step()
    assert "Not yet: training needs 25 labels" in capsys.readouterr().out and "500 before" in interface.status.line()
    while interface.n_labels < 25:
        screen.presses.append(["equal"])
        interface.step()
    step_until(interface, lambda: interface.gatherer.person.lease is not None)  # type: ignore[attr-defined]
    for presses in (["start"], ["left"], ["start"]):
        screen.presses.append(presses)
        interface.step()
    assert interface.n_labels == 25 and queue.notices.labels_to_start(500) == 500, "an answer in between takes it back"
    screen.presses.append(["start"])
    step_until(interface, lambda: "before" not in interface.status.line())
    assert queue.notices.labels_to_start(500) == 25 and ring.interface(n_initial=500).schedule.n_initial == 25


# Asynchronous answers and what the policy waits for


def test_answers_from_another_process_arrive_by_id_in_any_order(ring: Ring) -> None:
    interface = ring.interface(QueueGatherer, goal=4)
    ring.act(8)
    interface.step()
    assert len(interface.gatherer.pending) == 4 and not interface.step()
    with contextlib.closing(PrefDB.open(ring.path)) as db:
        page = LabelQueue(db)
        leases = page.claim("ann", 4)
        choices: dict[str, Any] = {}
        given: tuple[Any, ...] = ("left", "incomparable", "equal", "right")
        for lease, choice in zip(reversed(leases), given, strict=True):
            token = lease.token
            page.answers.add(Submission(token, token, lease.comparison_id, "ann", choice, 1.0, 2.0))
            choices[lease.comparison_id] = choice
        taken_back = page.answers.undo("ann")
    assert taken_back is not None
    for _ in range(2):
        interface.step()
    assert taken_back.comparison_id in interface.gatherer.pending and interface.n_labels == 2
    assert len(interface.gatherer.pending) == 2, "one was taken back, one gave no label and another is asked"
    labels = ring.labels()
    assert [choices[label.comparison_id] for label in labels] == ["left", "equal"]
    assert labels == interface.db.labels()
    again = ring.interface(QueueGatherer, goal=4)
    assert again.gatherer.pending == interface.gatherer.pending and again.n_labels == 2


def test_a_script_answers_what_is_asked_until_it_ends(ring: Ring) -> None:
    choices = [Choice.A, Choice.EQUAL, Choice.INCOMPARABLE, Choice.B]
    interface = ring.interface(lambda db: SyntheticGatherer(db, Script(choices)), n_initial=10, goal=10)
    ring.act(10)
    for _ in range(5):
        interface.step()
    rows = list(interface.db.answers())
    assert [row.choice for row in rows] == choices and {row.teacher for row in rows} == {"script"}
    assert interface.n_labels == 3 and interface.gatherer.pending


def test_questions_about_clips_that_have_left_the_pool_are_withdrawn_unless_somebody_saw_them(ring: Ring) -> None:
    interface = ring.interface(QueueGatherer, goal=30, max_segs=4)
    for step in range(4):
        ring.channels.segments.put(Candidate(dataclasses.replace(segment(step), policy_step=step)))
    interface.step()
    old = set(interface.gatherer.pending)
    with contextlib.closing(PrefDB.open(ring.path)) as db:
        (seen,) = LabelQueue(db).claim("ann")
    ring.channels.agent_steps.value = 1
    for step in range(10, 15):
        ring.channels.segments.put(Candidate(dataclasses.replace(segment(step), policy_step=step)))
    step_until(interface, lambda: len(old & set(interface.gatherer.pending)) == 1)
    assert seen.comparison_id in interface.gatherer.pending and len(old) == 6


@pytest.mark.parametrize(
    ("wait", "n_initial", "to_start"),
    [
        ("initial", 500, 500),
        ("initial", 10, 10),
        ("never", 500, 25),
        ("never", 10, 10),
        (0.0, 500, 500),
        (0.25, 500, 375),
        (1.0, 500, 25),
    ],
)
def test_labels_before_the_policy_starts(wait: Any, n_initial: int, to_start: int) -> None:
    assert PrefsConfig(wait_for_labels=wait, n_initial_prefs=n_initial).labels_to_start() == to_start


@pytest.mark.parametrize("wait", ["never", "initial", 0.0, 0.25, 1.0])
def test_the_policy_waits_while_too_many_questions_are_open(ring: Ring, wait: Any) -> None:
    config = PrefsConfig(n_initial_prefs=10, max_prefs=110, max_segs=40, wait_for_labels=wait)
    interface = ring.interface(QueueGatherer, config=config, goal=110, annealed_over=1000)
    ring.act(30)
    page = LabelQueue(PrefDB.open(ring.path))

    def answer(n: int) -> None:
        for lease in page.claim("ann", n):
            page.answers.add(Submission(lease.token, lease.token, lease.comparison_id, "ann", "left", 1.0, 2.0))

    interface.step()
    answer(10)
    interface.step()
    assert not ring.channels.pause.is_set() or wait == 0.0
    ring.channels.agent_steps.value = 100  # due by the paper's schedule: 10 + 100 * ln(2) / ln(11)
    interface.step()
    n_open = len(interface.gatherer.pending)
    assert n_open == (28 if isinstance(wait, float) else PEOPLE_AHEAD)
    assert ring.channels.pause.is_set() == (wait in (0.0, 0.25)), "28 of 38 are open"
    answer(19)
    interface.step()
    assert ring.channels.pause.is_set() == (wait == 0.0), "9 of 38 are open"
    answer(9)
    interface.step()
    assert not ring.channels.pause.is_set()
    page.db.close()
