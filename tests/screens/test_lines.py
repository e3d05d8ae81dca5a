"""A person answers by lines in the terminal and keys in the window."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from drlhp.data.comparison import Choice
from drlhp.screens import person, questions
from drlhp.screens.pace import LEAST_PACES
from tests.support.asking import Desk, Ring, side, step_until


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    ring = Ring(tmp_path)
    yield ring
    ring.close()


@pytest.fixture
def desk(ring: Ring) -> Iterator[Desk]:
    desk = Desk(ring)
    ring.act(8)
    yield desk
    desk.close()


def test_the_caption_says_the_pace_of_the_newest_answers_and_how_long_the_rest_takes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(person, "TOLD_SECONDS", 0.0)

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
