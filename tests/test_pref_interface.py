"""Which pairs are asked, who answers, and that every answer is stored and sent on."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from drlhp.data.candidate import Candidate
from drlhp.data.comparison import Choice, Label
from drlhp.data.segment import Segment
from drlhp.labelling.answers import Lease, Submission
from drlhp.labelling.gatherers import PEOPLE_AHEAD, QueueGatherer, SyntheticGatherer
from drlhp.labelling.notices import FEW_LABELS, Notices
from drlhp.labelling.queue import LabelQueue
from drlhp.labelling.teachers import SyntheticTeacher
from drlhp.queries.schedule import labels_due
from drlhp.queries.selection import QuerySelection, informativeness, looks
from drlhp.runtime.channels import SEGMENT_QUEUE_SIZE, Channels
from drlhp.runtime.turns import StopFlag
from drlhp.screens import questions
from drlhp.screens.gatherer import PERSON_AHEAD, PersonGatherer
from drlhp.screens.lines import TerminalLines
from drlhp.screens.pace import LEAST_PACES
from drlhp.screens.playback import Playback
from pref_db import PrefDB
from pref_interface import PrefInterface, PrefsConfig
from tests.support.store import Script

ENV_ID, LENGTH = "Test-v0", 3
PATIENCE_SECONDS = 20


def segment(seed: int, rewards: tuple[float, ...] = (0.0, 1.0, 0.0)) -> Segment:
    """A short clip of small random frames."""
    frames = np.random.default_rng(seed).integers(0, 256, (len(rewards) + 3, 8, 8), dtype=np.uint8)
    actions = np.zeros(len(rewards), np.int64)
    return Segment(ENV_ID, frames, actions, np.array(rewards, np.float32), 4, policy_step=0, seed=seed, fps=15.0)


def step_until(interface: PrefInterface, done: Callable[[], bool]) -> None:
    """Steps until `done`; what is typed arrives through a thread of its own."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, "nothing came of it"
        interface.step()


# The schedule


@pytest.mark.parametrize(("n_initial", "n_total"), [(500, 5500), (0, 700), (250, 500)])
def test_labels_come_at_the_papers_rate(n_initial: int, n_total: int) -> None:
    """The rate falls as c / (T + c) with c = Tmax / 10: 5M of 50M steps (appendix A.2); here it is summed up."""
    max_steps, c, parts = 50e6, 5e6, 20_000
    steps = (np.arange(parts) + 0.5) * max_steps / parts
    share = np.cumsum(c / (steps + c)) / np.sum(c / (steps + c))
    for part in range(999, parts, 1000):
        expected = n_initial + (n_total - n_initial) * share[part]
        assert labels_due((part + 1) * max_steps / parts, max_steps, n_initial, n_total) == pytest.approx(
            expected, abs=1.1
        )


def test_labels_due_start_at_the_initial_ones_and_end_at_all() -> None:
    assert labels_due(0, 1000, 500, 5500) == 500
    assert labels_due(1000, 1000, 500, 5500) == labels_due(5000, 1000, 500, 5500) == 5500
    due = [labels_due(steps, 1000, 500, 5500) for steps in range(1001)]
    assert all(0 <= later - earlier < 60 for earlier, later in itertools.pairwise(due))


def test_the_other_schedules() -> None:
    steps = np.linspace(0, 1000, 11)
    # The paper on Atari: stepped down every 5M of 50M steps, in proportion to 5M / (T + 5M)
    asked = np.array([labels_due(step, 1000, 500, 100_500, "stepped") for step in np.linspace(0, 1000, 21)])
    tenth = (asked[2:] - asked[:-2])[::2]
    assert tenth / tenth[0] == pytest.approx(1 / np.arange(1, 11), abs=1e-4) and (asked[0], asked[-1]) == (500, 100_500)
    assert (asked[1:] - asked[:-1])[::2] == pytest.approx((asked[1:] - asked[:-1])[1::2], abs=2), "even within a tenth"
    due = [labels_due(step, 1000, 500, 1500, "constant") for step in steps]
    assert due == pytest.approx(np.linspace(500, 1500, 11), abs=1)
    due = [labels_due(step, 1000, 250, 1000, "exponential") for step in steps]
    # rl-teacher: n(t) = N (f0 + (1 - f0)(1 - 0.01^(t / T))), here with f0 = 1/4
    assert due == pytest.approx([1000 * (0.25 + 0.75 * (1 - 0.01 ** (step / 1000))) for step in steps], abs=1)


# Which pair is asked


def predicted(seed: int, *member_returns: float) -> Candidate:
    returns = np.array(member_returns, np.float32) if member_returns else None
    return Candidate(segment(seed, (float(seed), 0.0, 0.0)), returns)


def test_disagreement_is_the_variance_of_the_predicted_preference() -> None:
    a, b = predicted(1, 1.0, 2.0, -1.0), predicted(2, 0.0, 0.5, 2.0)
    p = [1 / (1 + math.exp(-difference)) for difference in (1.0, 1.5, -3.0)]
    mean = sum(p) / 3
    assert informativeness(a, b, "disagreement") == pytest.approx(sum((x - mean) ** 2 for x in p) / 3, rel=1e-5)
    entropy = -mean * math.log2(mean) - (1 - mean) * math.log2(1 - mean)
    assert informativeness(a, b, "entropy") == pytest.approx(entropy, rel=1e-5)
    unknown = predicted(3)
    assert informativeness(a, unknown, "disagreement") == informativeness(unknown, b, "entropy") == 0
    far = predicted(4, 1e4, 1e4, 1e4)
    assert informativeness(far, a, "entropy") == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("selection", "candidates"),
    [("random", 10), ("disagreement", 10), ("entropy", 10), ("newest", 10), ("disagreement", 1)],
)
def test_the_pairs_that_the_selection_wants_are_asked(ring: Ring, selection: QuerySelection, candidates: int) -> None:
    """Of 100 segments the ensemble disagrees about the first ten, and cannot tell the next thirty apart."""
    config = PrefsConfig(
        n_initial_prefs=0, max_prefs=40, max_segs=100, query_selection=selection, query_candidates=candidates
    )
    interface = ring.interface(config=config, goal=40)
    for seed in range(100):
        returns = (1e4, 1e4, -1e4) if seed < 10 else (0.0,) * 3 if seed < 40 else (20.0 * seed,) * 3
        interface.pool.append(predicted(seed, *returns))
    interface.step()
    asked = [row.comparison for row in interface.db.answers()]
    assert len(asked) == 40
    among = dict.fromkeys(("disagreement", "entropy", "newest"), 0)
    for pair in asked:
        seeds = (pair.a.seed, pair.b.seed)
        among["disagreement"] += min(seeds) < 10
        among["entropy"] += min(seeds) >= 10 and max(seeds) < 40
        among["newest"] += min(seeds) >= 90
    by_chance = {"disagreement": 8, "entropy": 4, "newest": 1}
    for name, count in among.items():
        if name == selection and candidates > 1:
            assert count > 15, among
        elif selection == "random" or candidates == 1:
            assert count < 2 * by_chance[name], among


@pytest.mark.parametrize(("selection", "least", "most"), [("random", 0, 5), ("k_center", 7, 10)])
def test_k_center_asks_about_what_looks_unlike_all_that_was_asked(
    ring: Ring, selection: QuerySelection, least: int, most: int
) -> None:
    """Of 100 segments 90 are dark, with some noise; the others each have a light in another place."""
    config = PrefsConfig(n_initial_prefs=0, max_prefs=12, max_segs=100, query_selection=selection)
    interface = ring.interface(config=config, goal=12)
    for seed in range(100):
        dark = segment(seed)
        frames = dark.observations // 32
        if seed < 10:
            frames[:, 2 * (seed // 4) : 2 * (seed // 4) + 2, 2 * (seed % 4) : 2 * (seed % 4) + 2] = 255
        interface.pool.append(Candidate(dataclasses.replace(dark, observations=frames)))
    interface.step()
    asked = [row.comparison for row in interface.db.answers()]
    lit = {one.seed for pair in asked for one in (pair.a, pair.b) if one.seed < 10}
    assert len(asked) == 12 and least <= len(lit) <= most


def test_looks_are_of_one_size_whatever_the_segments_length() -> None:
    long, short = (looks(segment(0, (0.0,) * steps)) for steps in (9, 2))
    assert long.shape == short.shape == (5 * 7 * 7,)
    frame = np.zeros((84, 84), np.uint8)
    frame[12:24, :12] = 144
    arrays = (np.stack([frame] * 5), np.zeros(2, np.int64), np.zeros(2, np.float32))
    seen = looks(Segment(ENV_ID, *arrays, stack=4, policy_step=0, seed=0, fps=15.0)).reshape(5, 7, 7)
    assert (seen[:, 1, 0] == 144).all() and seen.sum() == 5 * 144
    vectors = np.arange(8, dtype=np.float32).reshape(4, 2)
    rest = (np.zeros(4, np.int64), np.zeros(4, np.float32))
    assert looks(Segment(ENV_ID, vectors, *rest, stack=1, policy_step=0, seed=0, fps=15.0)).tolist()[-2:] == [6, 7]


class Listener(StopFlag):
    """A bell whose trainer reads the store as soon as it rings."""

    def __init__(self, store: Path) -> None:
        super().__init__(None)
        self.db = PrefDB.open(store, read_only=True)
        self.heard: list[Label] = []
        self._last_seq = 0

    def set(self) -> None:
        new = self.db.labels(after=self._last_seq)
        assert new, "the bell rings once the label is in the store, and only for a new one"
        self.heard += new
        self._last_seq = max(label.seq for label in new)

    def close(self) -> None:
        self.db.close()


class Ring:
    """A store and queues without a trainer; interfaces are closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "prefs.db"
        PrefDB.create(self.path, ENV_ID, LENGTH).close()
        self.channels = Channels.create(synchronous=True, take_turns=False)
        self.channels.bell = self.trainer = Listener(self.path)
        self.interfaces: list[PrefInterface] = []
        self.segments = (segment(seed, (float(seed), 0.0, 0.0)) for seed in itertools.count())

    def interface(
        self,
        gatherer_of: Callable[[PrefDB], Any] = lambda db: SyntheticGatherer(db, SyntheticTeacher()),
        *,
        n_initial: int = 0,
        goal: int = 100,
        max_segs: int = 10,
        annealed_over: float = 0,
        config: PrefsConfig | None = None,
    ) -> PrefInterface:
        db = PrefDB.open(self.path)
        interface = PrefInterface(
            db,
            gatherer_of(db),
            self.channels,
            config or PrefsConfig(n_initial_prefs=n_initial, max_prefs=goal, max_segs=max_segs),
            seed=0,
            goal=goal,
            annealed_over=annealed_over,
        )
        self.interfaces.append(interface)
        return interface

    def act(self, n: int) -> None:
        """What the policy does: new segments."""
        for one in itertools.islice(self.segments, n):
            self.channels.segments.put_nowait(Candidate(one))

    def labels(self) -> list[Label]:
        """What the trainer has read since the last call."""
        heard, self.trainer.heard = self.trainer.heard, []
        return heard

    def close(self) -> None:
        for interface in self.interfaces:
            interface.close()
        self.trainer.close()


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


class FakeWindow:
    """Records what it is to show, and presses what it is told to."""

    def __init__(self) -> None:
        self.presses: deque[list[str]] = deque()
        self.shown: list[tuple[np.ndarray, np.ndarray]] = []
        self.messages: list[str] = []
        self.closed = False
        self.captioned = ""
        self.playback = Playback()

    def caption(self, text: str) -> None:
        assert text
        self.captioned = text

    def show(self, left: np.ndarray, right: np.ndarray, fps: float, caption: str) -> None:
        assert fps == 15.0 and caption
        self.shown.append((left, right))

    def message(self, text: str) -> None:
        self.messages.append(text)

    def tick(self) -> list[str]:
        pressed = self.presses.popleft() if self.presses else []
        return [action for action in pressed if not self.playback.reads(action)]

    def close(self) -> None:
        self.closed = True


class Desk:
    """A person with a window and a terminal, which is a real pipe."""

    def __init__(self, ring: Ring) -> None:
        read_end, write_end = os.pipe()
        self.keyboard, self._stream = os.fdopen(write_end, "w"), os.fdopen(read_end)
        self.window, self.ring = FakeWindow(), ring
        before = set(threading.enumerate())
        lines = TerminalLines(self._stream)
        self.interface = ring.interface(lambda db: PersonGatherer(db, self.window, lines))
        (self._reader,) = set(threading.enumerate()) - before

    @property
    def lease(self) -> Lease | None:
        gatherer: Any = self.interface.gatherer
        return gatherer.person.lease

    @property
    def asked(self) -> Lease:
        assert self.lease is not None
        return self.lease

    def type(self, line: str) -> None:
        print(line, file=self.keyboard, flush=True)

    def ask(self) -> Lease:
        """Goes on until a pair is shown."""
        step_until(self.interface, lambda: self.lease is not None)
        return self.asked

    def answer(self, line: str) -> Lease:
        """Types an answer to the pair that is shown, until it is stored; returns the pair."""
        asked, n_before = self.ask(), self.interface.db.n_answers()
        self.type(line)
        step_until(self.interface, lambda: self.interface.db.n_answers() > n_before)
        return asked

    def choices(self) -> list[Choice]:
        return [row.choice for row in self.interface.db.answers()]

    def close(self) -> None:
        self.keyboard.close()
        self._reader.join(PATIENCE_SECONDS)
        self._stream.close()


@pytest.fixture
def desk(ring: Ring) -> Iterator[Desk]:
    desk = Desk(ring)
    ring.act(8)
    yield desk
    desk.close()


def side(asked: Lease, line: str) -> Choice:
    """Which segment a side shows."""
    return Choice.B if (line == "left") == asked.flip else Choice.A


def test_the_caption_says_the_pace_of_the_newest_answers_and_how_long_the_rest_takes(desk: Desk) -> None:
    def caption() -> str:
        desk.ask()
        desk.interface.step()
        return desk.window.captioned

    assert "per answer" not in caption()
    for _ in range(LEAST_PACES):
        desk.answer("left")
    assert re.search(r"\d\.\d s per answer, \d+ min left", caption())
    desk.type("u")
    step_until(desk.interface, lambda: "min left" not in desk.window.captioned)  # of too few answers nobody can tell
    assert "s per answer" in desk.window.captioned


def test_sides_mean_the_segments_that_are_shown_there(desk: Desk) -> None:
    flips = set()
    for n in range(12):
        line = ("left", "right")[n % 2]
        asked = desk.answer(line)
        left, right = desk.window.shown[-1]
        expected = [desk.interface.db.segment(one).frames() for one in (asked.left, asked.right)]
        assert np.array_equal(left, expected[0]) and np.array_equal(right, expected[1])
        assert desk.choices()[-1] == side(asked, line)
        flips.add((asked.flip, line))
    assert len(flips) == 4 and len(desk.window.shown) == 12


@pytest.mark.parametrize(
    ("line", "choice"),
    [
        *((line, "left") for line in ("l", "L", "left", " Left ")),
        *((line, "right") for line in ("r", "R", "RIGHT")),
        *((line, Choice.EQUAL) for line in ("e", "E", "equal")),
        *((line, Choice.INCOMPARABLE) for line in ("", "   ")),
    ],
)
def test_answers_in_any_case(desk: Desk, line: str, choice: str) -> None:
    asked = desk.answer(line)
    assert desk.choices() == [side(asked, choice) if choice in ("left", "right") else choice]
    labels = desk.ring.labels()
    assert len(labels) == desk.interface.n_labels == (choice != Choice.INCOMPARABLE)


@pytest.mark.parametrize("pressed", ["left", "right", "equal", "incomparable"])
def test_answers_may_be_pressed_in_the_window(desk: Desk, pressed: str) -> None:
    asked = desk.ask()
    desk.window.presses.append([pressed])
    assert desk.interface.step()
    assert desk.choices() == [side(asked, pressed) if pressed in ("left", "right") else pressed]
    assert desk.lease is None


def test_another_word_is_no_answer_and_says_what_is(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    asked = desk.ask()
    desk.type("both")
    desk.answer("e")
    assert desk.choices() == [Choice.EQUAL]
    assert next(desk.interface.db.answers()).comparison_id == asked.comparison_id
    output = capsys.readouterr().out
    assert "'both' is no answer" in output and "L left" in output


def test_undo_takes_the_answer_back_and_asks_the_same_pair_again(desk: Desk) -> None:
    desk.answer("e")
    asked = desk.answer("l")
    put_off = desk.ask()
    first, n_shown = desk.ring.labels()[-1], len(desk.window.shown)
    desk.type("u")
    step_until(desk.interface, lambda: desk.asked.token == asked.token)
    assert desk.interface.n_labels == 1
    assert put_off.comparison_id in desk.interface.gatherer.pending  # it comes again
    (retraction,) = desk.ring.labels()
    assert (retraction.mu, retraction.retracts) == (None, first.seq)
    assert len(desk.window.shown) == n_shown + 1  # it is shown again
    desk.answer("r")
    assert desk.choices() == [Choice.EQUAL, side(asked, "right")]
    (label,) = desk.ring.labels()
    assert first.mu is not None and label.mu == first.mu[::-1]


def test_undo_goes_back_answer_by_answer(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [desk.answer("l") for _ in range(3)]
    for pair in reversed(pairs):
        desk.type("undo")
        step_until(desk.interface, lambda pair=pair: desk.lease is not None and desk.asked.token == pair.token)  # type: ignore[misc]
    assert desk.interface.n_labels == 0 and desk.choices() == []
    desk.type("u")
    output = ""

    def said_so() -> bool:
        nonlocal output
        output += capsys.readouterr().out
        return "no answer to undo" in output

    step_until(desk.interface, said_so)
    assert desk.asked.token == pairs[0].token
    assert [label.retracts for label in desk.ring.labels()] == [None, None, None, 3, 2, 1]


def test_the_end_of_input_ends_labelling_but_not_the_run(desk: Desk) -> None:
    desk.answer("l")
    desk.ask()
    desk.keyboard.close()
    step_until(desk.interface, lambda: desk.interface.ended)
    desk.ring.act(2)
    assert desk.interface.step() and desk.interface.pool[-1].segment.seed == 9
    desk.window.presses.append(["left"])
    assert not desk.interface.step() and desk.interface.n_labels == 1


def test_closing_the_window_ends_labelling(desk: Desk) -> None:
    desk.ask()
    desk.window.presses.append(["close"])
    desk.interface.step()
    assert desk.interface.ended and desk.choices() == []
    desk.interface.close()
    assert desk.window.closed


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


def test_a_person_is_asked_no_more_than_wanted(ring: Ring) -> None:
    desk = Desk(ring)
    try:
        desk.interface.schedule.goal = 2
        assert not desk.interface.step()
        assert "Waiting" in desk.window.messages[-1]
        ring.act(8)
        desk.answer("")  # gives no label, so it does not count
        for line in ("l", "e"):
            desk.answer(line)
        desk.interface.step()
        assert desk.lease is None and desk.interface.n_labels == 2
        assert "no more are asked for" in desk.window.messages[-1]
    finally:
        desk.close()


def test_answers_keep_the_time_for_which_the_pair_was_looked_at(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.time()
    desk.answer("l")
    (row,) = desk.interface.db.answers()
    assert row.teacher == "person" and row.shown_at is not None
    assert start <= row.shown_at <= row.answered_at <= time.time()
    desk.ask()
    clocks = SimpleNamespace(time=lambda: time.time() - 1e6, monotonic=time.monotonic)
    monkeypatch.setattr(questions, "time", clocks)  # the wall clock is put back meanwhile
    desk.answer("l")
    row = list(desk.interface.db.answers())[-1]
    assert row.answered_at < start - 9e5 and row.shown_at is not None
    assert 0 <= row.answered_at - row.shown_at <= time.time() - start + 1


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
