"""The label queue on a real file: nobody is asked twice, and no answer is lost or stored twice."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drlhp.data import schema as pref_schema
from drlhp.data.comparison import Choice, Comparison
from drlhp.data.segment import Segment
from drlhp.data.sqlite_file import SqliteFile
from drlhp.errors import PrefDBError
from drlhp.labelling.answers import Lease, Submission, SubmissionError, flip_of
from drlhp.labelling.notices import FEW_LABELS
from drlhp.labelling.queue import LabelQueue
from pref_db import PrefDB, merge
from tests.support import ROOT
from tests.support.commands import DEADLINE
from tests.support.postgres import make_store
from tests.support.preloaded import PreloadedPopen, run_captured
from tests.support.store import undo_last

ENV_ID, LENGTH = "Test-v0", 3


def segment(seed: int, policy_step: int = 0, steps: int = LENGTH) -> Segment:
    frames = np.random.default_rng(seed).integers(0, 256, (steps + 3, 4, 4), dtype=np.uint8)
    rest = {"stack": 4, "policy_step": policy_step, "seed": seed, "fps": 15.0}
    return Segment(ENV_ID, frames, np.zeros(steps, np.int64), np.zeros(steps, np.float32), **rest)  # type: ignore[arg-type]


def pairs(n: int) -> list[Comparison]:
    """So many pairs of as few segments as that takes."""
    needed = next(k for k in itertools.count(2) if k * (k - 1) // 2 >= n)
    segments = [segment(seed) for seed in range(needed)]
    return [Comparison(a, b, False) for a, b in itertools.islice(itertools.combinations(segments, 2), n)]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path, store_kind: str) -> Path:
    return make_store(tmp_path / "prefs.db", store_kind, ENV_ID, LENGTH)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(path: Path, clock: Clock) -> Iterator[LabelQueue]:
    with contextlib.closing(PrefDB.open(path)) as db:
        yield LabelQueue(db, clock)


NUMBERS = itertools.count()


def submission(lease: Lease, choice: Any = "left", labeller: str = "me", **changes: Any) -> Submission:
    one = Submission(f"c{next(NUMBERS)}", lease.token, lease.comparison_id, labeller, choice, 100.0, 103.0)
    return replace(one, **changes)


def stored(queue: LabelQueue) -> list[tuple[Any, ...]]:
    return queue.db.read("SELECT comparison_id, choice, late FROM answer ORDER BY seq")


# Asking


def test_eight_threads_claim_hundreds_of_queries_and_none_twice(path: Path) -> None:
    with contextlib.closing(PrefDB.open(path)) as db:
        LabelQueue(db).submit(pairs(300))
    claimed: list[list[str]] = [[] for _ in range(8)]

    def work(number: int) -> None:
        with contextlib.closing(PrefDB.open(path)) as db:
            queue = LabelQueue(db)
            while leases := queue.claim(f"labeller {number}", n=3):
                claimed[number] += [lease.comparison_id for lease in leases]
                for lease in leases:
                    assert queue.answers.add(submission(lease, labeller=f"labeller {number}")).status == "stored"

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(itertools.chain(*claimed)) == Counter(pair.id for pair in pairs(300))
    with contextlib.closing(PrefDB.open(path)) as db:
        counts = LabelQueue(db).counts()
    assert (counts.labels, counts.ready, counts.leased) == (300, 0, 0)


def test_the_newest_of_the_highest_priority_is_asked_first_and_a_refresh_keeps_it(queue: LabelQueue) -> None:
    old, new, urgent = pairs(3)
    queue.submit([old], policy_step=1)
    queue.submit([new], policy_step=2)
    queue.submit([urgent], priority=1.0)
    queue.submit([urgent], priority=-1.0)  # the same again changes nothing
    first = queue.claim("me", 2)
    assert [lease.comparison_id for lease in first] == [urgent.id, new.id]
    assert queue.claim("me", 3)[:2] == first
    assert queue.claim("you") == []
    assert {first[0].left, first[0].right} == {urgent.a.id, urgent.b.id} and first[0].steps == LENGTH


def test_sides_are_random_but_fixed_and_are_what_is_stored(queue: LabelQueue) -> None:
    ids = [pair.id for pair in pairs(2000)]
    assert 0.47 < sum(flip_of("me", pair) for pair in ids) / 2000 < 0.53
    assert sum(flip_of("you", pair) == flip_of("me", pair) for pair in ids) in range(900, 1100)
    queue.submit(pairs(100))
    leases = queue.claim("me", 100)
    assert len(leases) == 100 and all(lease.flip == flip_of("me", lease.comparison_id) for lease in leases)
    for lease in leases[:20]:
        queue.answers.add(submission(lease, "left"))
    for row, lease in zip(queue.db.answers(), leases, strict=False):
        assert row.flip == lease.flip == flip_of("me", lease.comparison_id)
        assert (row.a if row.choice == Choice.A else row.b) == lease.left


def test_what_is_passed_on_comes_last_and_goes_to_others(queue: LabelQueue) -> None:
    first, second = pairs(2)
    queue.submit([first], priority=1.0)
    queue.submit([second])
    (lease,) = queue.claim("me")
    queue.leases.release([lease.token])
    (other,) = queue.claim("me")
    assert (lease.comparison_id, other.comparison_id) == (first.id, second.id)
    assert queue.claim("you")[0].comparison_id == first.id
    assert [one.comparison_id for one in queue.claim("me", 3)] == [second.id]


def test_a_lease_that_is_over_goes_to_somebody_else_and_its_answer_is_kept_as_late(
    queue: LabelQueue, clock: Clock
) -> None:
    queue.submit(pairs(1))
    (lease,) = queue.claim("me")
    clock.now += 50
    assert queue.claim("you") == []
    queue.leases.renew([lease.token])
    clock.now += 50
    assert queue.claim("you") == [] and queue.counts().leased == 1
    clock.now += 20
    (theirs,) = queue.claim("you")
    assert theirs.comparison_id == lease.comparison_id
    queue.leases.renew([lease.token])
    assert queue.answers.add(submission(lease, "left")).status == "late"
    assert queue.answers.add(submission(theirs, "right", "you")).status == "stored"
    assert [late for _, _, late in stored(queue)] == [1, 0] and queue.counts().labels == 2


@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_a_clock_that_jumps_neither_loses_an_answer_nor_keeps_a_pair_for_ever(
    queue: LabelQueue, clock: Clock, jump: float
) -> None:
    queue.submit(pairs(2))
    kept, left = queue.claim("me", 2)
    clock.now += jump
    (theirs,) = queue.claim("you")
    assert theirs.comparison_id == kept.comparison_id
    assert queue.answers.add(submission(kept)).status == "late" and queue.counts().labels == 1
    assert queue.claim("you", 2)[1].comparison_id == left.comparison_id


def test_an_answer_from_the_future_is_of_now(queue: LabelQueue, clock: Clock) -> None:
    queue.submit(pairs(1))
    (lease,) = queue.claim("me")
    queue.answers.add(submission(lease, shown_at=clock.now + 3600, answered_at=clock.now + 3604))
    (row,) = queue.answers.history()
    assert (row.shown_at, row.answered_at) == (clock.now - 4, clock.now)


def test_a_pair_is_looked_at_for_no_less_than_nothing_where_the_clock_was_put_back_meanwhile(
    queue: LabelQueue,
) -> None:
    queue.submit(pairs(1))
    (lease,) = queue.claim("me")
    queue.answers.add(submission(lease, shown_at=3700.0, answered_at=104.0))
    (row,) = queue.answers.history()
    assert (row.shown_at, row.answered_at) == (104.0, 104.0)


def test_a_lease_lasts_three_times_the_labellers_own_median(queue: LabelQueue, clock: Clock) -> None:
    queue.submit(pairs(6))
    assert queue.claim("me")[0].expires_at == clock.now + 60
    for seconds, lease in zip((10.0, 40.0, 50.0), queue.claim("me", 3), strict=True):
        queue.answers.add(submission(lease, shown_at=100.0, answered_at=100.0 + seconds))
    assert queue.claim("me")[0].expires_at == clock.now + 120
    assert queue.claim("you")[0].expires_at == clock.now + 60


def test_two_people_are_asked_where_two_are_needed(queue: LabelQueue) -> None:
    queue.submit(pairs(1), need=2)
    mine, theirs = queue.claim("me", 2), queue.claim("you", 2)
    assert [len(mine), len(theirs), len(queue.claim("they"))] == [1, 1, 0]
    queue.answers.add(submission(mine[0]))
    assert queue.claim("me") == [] and queue.counts().leased == 1
    queue.answers.add(submission(theirs[0], labeller="you"))
    assert queue.counts().leased == 0 and queue.claim("they") == []


def test_a_share_of_the_pairs_is_asked_of_two_once_two_label(queue: LabelQueue, clock: Clock) -> None:
    queue.notices.set_setting("overlap_share", "0.5")
    queue.submit(pairs(200))
    for lease in queue.claim("me", 60):
        queue.answers.add(submission(lease, answered_at=clock.now))
    assert not queue.db.read("SELECT 1 FROM query WHERE need > 1"), "nobody else is there"
    while leases := [*queue.claim("me", 10), *queue.claim("you", 10)]:
        for number, lease in enumerate(leases):
            labeller = "me" if number < 10 and lease in queue.claim("me", 10) else "you"
            queue.answers.add(submission(lease, labeller=labeller, answered_at=clock.now))
    twice = [n for _, n in queue.db.read("SELECT comparison_id, count(*) FROM answer GROUP BY 1") if n == 2]
    assert 50 <= len(twice) <= 90
    assert queue.db.read("SELECT count(*) FROM (SELECT DISTINCT comparison_id, labeller FROM answer) AS a") == [
        (queue.db.n_answers(),)
    ]


def test_pairs_are_repeated_with_sides_swapped_and_twenty_pairs_later(queue: LabelQueue) -> None:
    queue.notices.set_setting("repeat_share", "0.1")
    queue.submit(pairs(100))
    asked: list[Lease] = []
    while leases := queue.claim("me", 3):
        asked.append(leases[0])
        assert queue.answers.add(submission(leases[0])).status == "stored"
    repeats = [(n, lease) for n, lease in enumerate(asked) if lease.kind == "repeat"]
    assert len(asked) == 100 + len(repeats) and 7 <= len(repeats) <= 11
    for n, lease in repeats:
        earlier = next(i for i, other in enumerate(asked) if other.comparison_id == lease.comparison_id)
        assert n - earlier > 20 and asked[earlier].left == lease.right
    assert queue.counts().answers == len(asked)


@pytest.mark.of_a_file  # it counts SQLite's instructions
def test_whoever_has_answered_much_waits_no_longer_for_a_repetition(queue: LabelQueue) -> None:
    queue.notices.set_setting("repeat_share", "0.1")
    asked = pairs(1000)
    queue.submit(asked)
    work = [0]  # of SQLite, in thousands of its instructions, for each answer

    def count() -> int:
        work[-1] += 1
        return 0

    assert isinstance(queue.db.store, SqliteFile)
    queue.db.store._connection().set_progress_handler(count, 1000)
    with queue.db.transaction():  # one commit, which alone takes time here
        for _ in asked:
            queue.answers.add(submission(queue.claim("me")[0]))
            work.append(0)
    early, late = max(work[150:250]), max(work[900:1000])
    assert late < 8 * early, "of four times as many answers it takes about four times as much"


def test_an_answer_can_be_changed_while_its_pair_is_asked_again(queue: LabelQueue) -> None:
    queue.notices.set_setting("repeat_share", "0.1")
    queue.submit(pairs(50))
    first: dict[str, int] = {}
    while (lease := queue.claim("me")[0]).kind != "repeat":
        first[lease.comparison_id] = queue.answers.add(submission(lease)).seq
    changed = queue.answers.edit("changed", "me", first[lease.comparison_id], "right")
    assert changed is not None and changed.status == "stored"
    assert queue.claim("me") == [lease] and queue.answers.add(submission(lease)).status == "stored"
    both = [row.choice for row in queue.answers.history("me", limit=100) if row.comparison_id == lease.comparison_id]
    assert both == ["left", "right"]


def test_only_old_queries_that_nobody_saw_are_withdrawn(queue: LabelQueue) -> None:
    seen, answered, old, new = pairs(4)
    for priority, (pair, step) in enumerate(((new, 10), (old, 1), (answered, 1), (seen, 1))):
        queue.submit([pair], policy_step=step, priority=float(priority))
    (_, lease) = queue.claim("me", 2)
    queue.answers.add(submission(lease))
    queue.answers.undo("me")
    assert queue.withdraw(5) == 1 and queue.counts().withdrawn == 1
    queue.submit([old], policy_step=20)
    assert queue.withdraw(5) == 0 and queue.counts().withdrawn == 1
    assert {one.comparison_id for one in queue.claim("me", 9)} == {seen.id, answered.id, new.id}


# Answering


def test_duplicates_and_answers_in_any_order_are_stored_once(queue: LabelQueue) -> None:
    queue.submit(pairs(3))
    sent = [submission(lease, choice) for lease, choice in zip(queue.claim("me", 3), ("left", "equal", "right"))]  # noqa: B905
    receipts = [queue.answers.add(one) for one in (sent[2], sent[0], sent[2], sent[1], sent[0])]
    assert [receipt.status for receipt in receipts] == ["stored", "stored", "known", "stored", "known"]
    assert [receipts[2].choice, receipts[4].choice] == ["right", "left"] and receipts[2].seq == receipts[0].seq
    double = queue.answers.add(replace(sent[0], client_id="another-tab", choice="right"))
    assert (double.status, double.seq, double.choice) == ("conflict", receipts[1].seq, "left")
    assert len(stored(queue)) == 3


def test_a_client_id_that_is_used_again_for_something_else_is_refused_and_not_taken_for_stored(
    queue: LabelQueue,
) -> None:
    queue.submit(pairs(3))
    mine, other = queue.claim("me", 2)
    (theirs,) = queue.claim("you")
    first = queue.answers.add(submission(mine, client_id="1"))
    for again in (
        submission(other, client_id="1"),
        submission(theirs, labeller="you", client_id="1"),
        submission(mine, "right", client_id="1"),
    ):
        with pytest.raises(SubmissionError, match="that of another answer"):
            queue.answers.add(again)
    with pytest.raises(SubmissionError, match="that of another answer"):
        queue.answers.edit("1", "me", first.seq, "right")
    changed = queue.answers.edit("2", "me", first.seq, "right")
    assert changed is not None and queue.answers.edit("2", "me", first.seq, "right") == replace(changed, status="known")
    with pytest.raises(SubmissionError, match="that of another answer"):
        queue.answers.edit("2", "me", first.seq, "equal")
    assert queue.answers.add(submission(mine, client_id="1")) == replace(first, status="known"), "sent once more"


def test_an_answer_can_be_changed_and_a_change_of_what_is_gone_is_a_conflict(queue: LabelQueue) -> None:
    queue.submit(pairs(1))
    (lease,) = queue.claim("me")
    first = queue.answers.add(submission(lease, "left"))
    second = queue.answers.add(submission(lease, "right", supersedes=first.seq, note="looked again", flag=True))
    assert second.status == "stored"
    third = queue.answers.add(submission(lease, "equal", supersedes=first.seq))
    assert (third.status, third.seq) == ("conflict", second.seq)
    (row,) = queue.answers.history()
    assert (row.choice, row.note, row.flag, row.late, row.left) == ("right", "looked again", True, False, lease.left)
    assert queue.answers.history(choice="right") == [row] and queue.answers.history(choice="left") == []
    assert (
        queue.answers.history("me") == [row]
        and queue.answers.history("you") == queue.answers.history(before_seq=row.seq) == []
    )
    with queue.db.transaction() as db:  # as it is in a store that it was merged into
        db.execute("DELETE FROM lease")
    assert queue.answers.history() == [] and queue.answers.history(merged=True) == [row]


@pytest.mark.parametrize("read_between", [False, True])
def test_undo_is_seen_by_the_trainer_whether_or_not_it_had_read_the_answer(
    queue: LabelQueue, read_between: bool
) -> None:
    queue.submit(pairs(2))
    first, second = queue.claim("me", 2)
    held = {}
    with contextlib.closing(PrefDB.open(queue.db.path, read_only=True)) as trainer:
        queue.answers.add(submission(first, "left"))
        last = 0
        if read_between:
            held = {label.seq: label for label in trainer.labels()}
            last = max(held)
        again = queue.answers.undo("me")
        assert again == first and queue.claim("me", 2) == [first, second], "the same pair, the same sides, at once"
        assert queue.answers.undo("you") is None and queue.counts().labels == 0
        queue.answers.add(submission(again, "right"))
        for label in trainer.labels(after=last):
            if label.retracts is not None:
                held.pop(label.retracts, None)
            if label.mu is not None:
                held[label.seq] = label
    (label,) = held.values()
    assert (label.a if label.mu == (1.0, 0.0) else label.b) == first.right


def test_no_more_pairs_are_given_than_labels_are_missing_to_the_goal(queue: LabelQueue) -> None:
    queue.submit(pairs(6))
    queue.notices.set_setting("overlap_share", "1")
    queue.notices.set_setting("goal", "3")
    mine = queue.claim("me", 4)
    assert len(mine) == 3 and queue.claim("Ann", 2) == []
    queue.leases.release([mine[2].token])
    assert len(queue.claim("Ann", 2)) == 1, "what one person gives back another may have"
    for lease in mine[:2]:
        queue.answers.add(submission(lease))
    (hers,) = queue.claim("Ann", 4)
    queue.answers.add(submission(hers, labeller="Ann"))
    assert queue.db.n_labels() == 3 and queue.counts().ready
    assert queue.claim("me") == [] and queue.claim("Ann") == [], "nor second answers, once there are labels enough"
    queue.notices.set_setting("goal", "0")
    assert queue.claim("Ann", 4), "0 is no goal"


def test_undo_goes_back_answer_by_answer(queue: LabelQueue) -> None:
    queue.submit(pairs(3))
    leases = queue.claim("me", 3)
    first, *_ = [queue.answers.add(submission(lease)) for lease in leases]
    queue.answers.edit("changed", "me", first.seq, "right")
    queue.answers.edit("again", "me", queue.answers.history("me", limit=1)[0].seq, "equal")
    assert [queue.answers.undo("me") for _ in range(4)] == [*reversed(leases), None], "what is changed keeps its place"
    assert queue.claim("me", 3) == leases


@pytest.mark.parametrize(
    "change",
    [
        {"choice": "both"},
        {"client_id": ""},
        {"client_id": "a b"},
        {"labeller": ""},
        {"labeller": "a\nb"},
        {"labeller": "x" * 41},
        {"note": "x" * 501},
        {"speed": float("nan")},
        {"replays": -1},
        {"shown_at": float("inf")},
        {"token": "made-up"},
        {"labeller": "you"},
        {"comparison_id": "0" * 64},
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(queue: LabelQueue, change: dict[str, Any]) -> None:
    queue.submit(pairs(1))
    (lease,) = queue.claim("me")
    with pytest.raises(SubmissionError) as caught:
        queue.answers.add(replace(submission(lease), **change))
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
    assert stored(queue) == []


def test_heartbeats_and_settings(queue: LabelQueue, clock: Clock) -> None:
    queue.notices.beat("label", {"step": 3})
    clock.now += 1
    queue.notices.beat("label", {"step": 4})
    assert queue.notices.heartbeats() == {"label": (clock.now, {"step": 4})}
    queue.notices.set_setting("goal", "10")
    queue.notices.set_setting("goal", "20")
    assert queue.notices.setting("goal") == "20" and queue.notices.setting("task") is None


def test_of_several_that_label_one_that_goes_on_is_heard(queue: LabelQueue, path: Path) -> None:
    """One of two helpers leaves, and the run must not take it for both."""
    script = f"""
        from pathlib import Path
        from drlhp.labelling.notices import Notices
        from pref_db import PrefDB
        Notices(PrefDB.open(Path({str(path)!r})), lambda: {queue.clock()}).beat("label", {{}})
    """
    assert not run_captured([sys.executable, "-c", textwrap.dedent(script)], DEADLINE, cwd=ROOT).returncode
    queue.notices.beat("label", {"labellers": ["me"]})
    assert queue.notices.goes_on("label") and queue.is_present("me")
    queue.notices.beat("label", {"ended": "Labelling has ended here."})
    assert queue.notices.goes_on("label") and not queue.is_present("me")


@pytest.mark.parametrize("seconds", [3600, -3600])  # a clock may be put back
def test_what_a_dead_process_said_is_forgotten(queue: LabelQueue, path: Path, clock: Clock, seconds: int) -> None:
    with queue.db.transaction() as db:
        db.execute("INSERT INTO alive VALUES ('run:1', ?, ?)", (clock.now, '{"labellers": ["me"]}'))
    assert queue.notices.goes_on("run") and queue.is_present("me")
    clock.now += seconds
    assert not queue.notices.goes_on("run") and not queue.is_present("me")
    queue.notices.beat("run", {"status": "here"})
    assert queue.notices.heartbeats()["run"][1] == {"status": "here"}
    assert len(queue.db.read("SELECT who FROM alive")) == 1


def test_who_comes_back_to_a_pair_that_nobody_has_taken_keeps_it(queue: LabelQueue, clock: Clock) -> None:
    queue.submit(pairs(1))
    (lease,) = queue.claim("me")
    clock.now += 300
    queue.leases.renew([lease.token])
    assert queue.claim("Ann") == []
    clock.now += 300
    assert len(queue.claim("Ann")) == 1
    queue.leases.renew([lease.token])
    assert queue.counts().leased == 1


def test_answers_from_another_store_are_nobody_who_labels_here(queue: LabelQueue, clock: Clock, tmp_path: Path) -> None:
    with contextlib.closing(PrefDB.create(tmp_path / "other.db", ENV_ID, LENGTH)) as db:
        other = LabelQueue(db, clock)
        other.submit(pairs(1))
        other.answers.add(submission(other.claim("me")[0], answered_at=clock.now))
    merge(queue.db, tmp_path / "other.db")
    queue.notices.set_setting("overlap_share", "1")
    assert not queue.is_active("me")
    queue.submit([Comparison(segment(7), segment(8), False)])
    assert queue.claim("Ann")[0].kind == "normal", "there is no second person to ask"


def test_training_starts_early_with_enough_labels_only(queue: LabelQueue) -> None:
    asked = pairs(FEW_LABELS)
    queue.db.add_answers([(pair, Choice.A) for pair in asked[:-1]], teacher="person")
    with pytest.raises(SubmissionError, match="needs 25 labels"):
        queue.notices.start_now()
    assert queue.notices.labels_to_start(500) == 500
    queue.db.add_answers([(asked[-1], Choice.EQUAL)], teacher="person")
    queue.notices.start_now()
    assert queue.notices.labels_to_start(500) == FEW_LABELS and queue.notices.labels_to_start(10) == 10


# Death and disks

WRITER = """
    import sys
    sys.path[:0] = [{root!r}]
    from tests.labelling.test_queue import *
    queue = LabelQueue(PrefDB.open({path!r}))
    while leases := queue.claim("me", 2):
        receipt = queue.answers.add(submission(leases[0], client_id=leases[0].token))
        print(receipt.seq, leases[0].comparison_id, receipt.status, flush=True)
"""


def test_a_killed_labelling_process_loses_nothing_and_stores_nothing_twice(path: Path) -> None:
    with contextlib.closing(PrefDB.open(path)) as db:
        LabelQueue(db).submit(pairs(300))
    acknowledged: list[list[str]] = []
    for _ in range(4):
        code = textwrap.dedent(WRITER).format(root=str(ROOT), path=str(path))
        with PreloadedPopen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            acknowledged += [writer.stdout.readline().split() for _ in range(15)]
            os.kill(writer.pid, signal.SIGKILL)
            acknowledged += [line.split() for line in writer.stdout if line.endswith("\n")]
    with contextlib.closing(PrefDB.open(path)) as db:
        rows = [[str(row.seq), row.comparison_id] for row in db.answers()]
        queue = LabelQueue(db)
        while leases := queue.claim("me", 10):
            for lease in leases:
                queue.answers.add(submission(lease))
        assert Counter(row.comparison_id for row in db.answers()) == Counter(pair.id for pair in pairs(300))
    assert [row for row in rows if row in [line[:2] for line in acknowledged]] == [line[:2] for line in acknowledged]
    assert {line[2] for line in acknowledged} == {"stored"} and len(rows) <= len(acknowledged) + 4


@pytest.mark.of_a_file
def test_a_full_disk_is_one_sentence_and_what_was_answered_is_kept(queue: LabelQueue) -> None:
    queue.submit(pairs(500))
    assert isinstance(queue.db.store, SqliteFile)
    connection = queue.db.store._connection()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages + 5}")
    n = 0
    with pytest.raises(PrefDBError, match=r"disk is full: free some space .* earlier labels are safe"):
        while n < 500:
            queue.answers.add(submission(queue.claim("me")[0], note="x" * 500))
            n += 1
    connection.execute("PRAGMA max_page_count = 1000000")
    assert 0 < queue.counts().labels == n
    assert queue.answers.add(submission(queue.claim("me")[0])).status == "stored"


# Migration


def old_file(path: Path) -> list[tuple[Any, ...]]:
    """A file of schema version 1 with an answer and its undo, written with that version's statements."""
    new = PrefDB.create(path.with_name("new.db"), ENV_ID, LENGTH)
    new.add_answer(pairs(1)[0], Choice.A, teacher="person")
    new.add_answer(pairs(2)[1], Choice.EQUAL, teacher="person")
    undo_last(new, "person")
    tables = {}
    columns = "seq, client_id, comparison_id, teacher, choice, preferred, shown_left, shown_at, answered_at, supersedes"
    for table, wanted in (("meta", "*"), ("segment", "*"), ("comparison", "*"), ("answer", columns)):
        tables[table] = new.read(f"SELECT {wanted} FROM {table}")
    new.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(pref_schema.VERSION_1)
        for table, rows in tables.items():
            db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        db.commit()
    return tables["answer"]


def test_an_old_file_is_migrated_when_it_is_opened_for_writing(tmp_path: Path) -> None:
    path = tmp_path / "prefs.db"
    rows = old_file(path)
    with contextlib.closing(PrefDB.open(path, read_only=True)) as reader:
        assert reader.version == 1 and reader.n_labels() == 1 and len(list(reader.answers())) == 1
    other = tmp_path / "other.db"
    with contextlib.closing(PrefDB.create(other, ENV_ID, LENGTH)) as merged:
        assert merge(merged, path) == 1
    with contextlib.closing(PrefDB.open(path)) as db:
        assert db.version == pref_schema.SCHEMA_VERSION
        kept = db.read("SELECT seq, client_id, comparison_id, teacher, choice FROM answer")
        assert kept == [row[:5] for row in rows]
        queue = LabelQueue(db)
        queue.submit(pairs(3))
        assert len(queue.claim("me", 9)) == 2, "the answered pair is not asked again"


def test_a_migration_that_is_cut_off_changes_nothing_and_two_at_once_do_it_once(tmp_path: Path) -> None:
    path = tmp_path / "prefs.db"
    old_file(path)
    broken = (pref_schema.VERSION_1, pref_schema.VERSION_2.replace("CREATE TABLE setting", "CREATE NONSENSE"))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(PrefDBError):
        patch.setattr(pref_schema, "VERSIONS", broken)
        PrefDB.open(path)
    with contextlib.closing(PrefDB.open(path, read_only=True)) as reader:
        assert reader.version == 1 and reader.read("SELECT name FROM sqlite_master WHERE name = 'query'") == []
    versions: list[int] = []

    def migrate() -> None:
        with contextlib.closing(PrefDB.open(path)) as db:
            versions.append(db.version)

    threads = [threading.Thread(target=migrate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert versions == [pref_schema.SCHEMA_VERSION] * 4
