"""Windows on a real X server, pressed with real keys and looked at by screenshot."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drlhp.labelling import notices
from drlhp.labelling.queue import LabelQueue
from drlhp.pictures import CHOSEN, TEXT, TRACK
from drlhp.screens import canvas
from drlhp.screens import window as viewer
from drlhp.screens.episode_window import EpisodeWindow
from drlhp.screens.gatherer import PersonGatherer
from drlhp.screens.lines import TerminalLines
from drlhp.screens.person import Mode, Person
from drlhp.screens.playback import loop_index
from drlhp.screens.window import AnswerWindow, ClipWindow
from pref_db import PrefDB
from tests.support import ROOT
from tests.support.display import focus, screenshot, xdotool
from tests.support.labelling import make_store

RED, GREEN, BLUE = (200, 30, 40), (40, 190, 60), (30, 60, 210)


def clip(n_frames: int, colour: tuple[int, int, int], size: tuple[int, int] = (84, 84)) -> np.ndarray:
    """A read-only clip of one colour, so that writing to it would fail."""
    frames = np.full((n_frames, *size, 3), colour, dtype=np.uint8)
    frames.flags.writeable = False
    return frames


def numbered(n_frames: int, channel: int) -> np.ndarray:
    """A clip whose frame i has 100 + 5 i in one channel and nothing in the others."""
    frames = np.zeros((n_frames, 84, 84, 3), dtype=np.uint8)
    frames[..., channel] = (100 + 5 * np.arange(n_frames))[:, None, None]
    return frames


def box(picture: np.ndarray, colour: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Left, top, right and bottom (exclusive) of the pixels of a colour."""
    ys, xs = np.nonzero((picture == np.array(colour, dtype=np.uint8)).all(axis=-1))
    assert len(xs), f"no pixel of {colour} on the screen"
    return xs.min(), ys.min(), xs.max() + 1, ys.max() + 1


def tick_until(window: AnswerWindow | ClipWindow | EpisodeWindow, done: Callable[[list[str]], bool]) -> list[str]:
    """Ticks until what was pressed so far satisfies `done`; fails after 20 s."""
    pressed: list[str] = []
    deadline = time.monotonic() + 20
    while not done(pressed):
        assert time.monotonic() < deadline, f"nothing came of it; pressed so far: {pressed}"
        pressed += window.tick()
    return pressed


@pytest.fixture
def window(display: str) -> Iterator[ClipWindow]:
    window = ClipWindow()
    focus("Which clip is better")
    yield window
    window.close()


@pytest.fixture
def no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "GUARD_SECONDS", 0.0)


@pytest.mark.window
@pytest.mark.parametrize("size", [(84, 84), (210, 160), (83, 51)])
def test_clips_are_side_by_side_in_whole_multiples_of_their_size(window: ClipWindow, size: tuple[int, int]) -> None:
    window.show(clip(5, RED, size), clip(5, BLUE, size), 15, "Label 1 of 20")
    window.tick()
    picture = screenshot()
    left, right = box(picture, RED), box(picture, BLUE)
    assert left[2] < right[0] and left[1] == right[1]
    for x0, y0, x1, y1 in (left, right):
        scale = (x1 - x0) // size[1]
        assert scale >= 2 and (x1 - x0, y1 - y0) == (scale * size[1], scale * size[0])
        assert (picture[y0:y1, x0:x1] == picture[y0, x0]).all()  # no blurred edge, no hole


@pytest.mark.window
def test_the_question_and_the_task_are_shown_under_the_clips(window: ClipWindow) -> None:
    window.playback.task = "Keep the dot in the middle."
    window.show(clip(5, RED), clip(5, BLUE), 15, "Label 1 of 20")
    shown = window._canvas._labels["task"].text
    assert shown == "Which clip is better? Keep the dot in the middle."
    window.playback.keys_line = "keys of an earlier answer"
    window.show(clip(5, RED), clip(5, BLUE), 15, "Answer 1 of 1")
    assert window._canvas._labels["task"].text == "Keep the dot in the middle."


@pytest.mark.window
def test_a_picture_is_upright_and_its_pixels_are_sharp(window: ClipWindow) -> None:
    frame = np.random.default_rng(0).integers(0, 256, (1, 21, 13, 3), dtype=np.uint8)
    frame[0, 0, 0], frame[0, -1, -1] = (255, 0, 255), (255, 0, 254)
    window.show(frame, clip(1, GREEN, (21, 13)), 15, "")
    picture = screenshot()
    x0, y0, _, _ = box(picture, (255, 0, 255))
    _, _, x1, y1 = box(picture, (255, 0, 254))
    scale = (x1 - x0) // 13
    assert np.array_equal(picture[y0:y1:scale, x0:x1:scale], frame[0])
    assert np.array_equal(picture[y0 + scale - 1 : y1 : scale, x0 + scale - 1 : x1 : scale], frame[0])


@pytest.mark.window
def test_clips_run_frame_by_frame_together_and_the_shorter_holds_its_last_frame(window: ClipWindow) -> None:
    window.show(numbered(25, 0), numbered(10, 2), 15, "Label 1 of 20")
    seen: set[int] = set()
    deadline = time.monotonic() + 60
    while len(seen) < 6 or max(seen) < 12 or min(seen) > 8:
        assert time.monotonic() < deadline, f"saw only frames {seen}"
        window.tick()
        picture = screenshot().astype(int)
        only_red = (picture[..., 0] >= 100) & (picture[..., 1:] == 0).all(axis=-1)
        only_blue = (picture[..., 2] >= 100) & (picture[..., :2] == 0).all(axis=-1)
        left, right = set(picture[only_red][:, 0]), set(picture[only_blue][:, 2])
        assert len(left) == len(right) == 1
        index = (left.pop() - 100) // 5
        assert (right.pop() - 100) // 5 == min(index, 9)
        seen.add(index)


def test_a_loop_runs_at_real_speed_and_holds_at_the_seam() -> None:
    at = [loop_index(t, 30, 15.0, 0.2) for t in (0.0, 0.5, 1.01, 1.99, 2.01, 2.19, 2.21, 2.71)]
    assert at == [0, 7, 15, 29, 29, 29, 0, 7]


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
@pytest.mark.parametrize(
    ("keys", "action"),
    [
        ("l Left", "left"),
        ("r Right", "right"),
        ("e Up", "equal"),
        ("Return KP_Enter Down", "incomparable"),
        ("u BackSpace", "undo"),
        ("s", "skip"),
        ("f", "flag"),
        ("g", "gallery"),
        ("q", "quality"),
        ("p", "break"),
        ("Escape", "escape"),
    ],
)
def test_keys(window: ClipWindow, keys: str, action: str) -> None:
    window.show(clip(5, RED), clip(5, BLUE), 15, "")
    xdotool("key", *keys.split())
    assert tick_until(window, lambda pressed: len(pressed) >= len(keys.split())) == [action] * len(keys.split())


def red_frame(window: ClipWindow) -> int:
    """Which frame of a `numbered` clip in red is on the screen."""
    window.tick()
    picture = screenshot().astype(int)
    (value,) = set(picture[(picture[..., 0] >= 100) & (picture[..., 1:] == 0).all(axis=-1)][:, 0])
    return (value - 100) // 5


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
def test_clips_are_paused_stepped_slowed_and_played_again(window: ClipWindow) -> None:
    now, playback = [0.0], window.playback
    playback.clock = lambda: now[0]
    window.show(numbered(25, 0), numbered(25, 2), 10, "")
    now[0] += 0.55
    assert red_frame(window) == 5
    xdotool("key", "space")
    tick_until(window, lambda _: playback.paused)
    now[0] += 1
    assert red_frame(window) == 5, "it stands still"
    xdotool("key", "period", "period", "comma", "comma", "comma")
    tick_until(window, lambda _: playback.index() == 4)
    assert red_frame(window) == 4
    xdotool("key", "space", "bracketright")
    tick_until(window, lambda _: playback.speed == 2)
    now[0] += 0.3
    assert red_frame(window) == 10, "six frames on at twice the speed"
    xdotool("key", "Home")
    tick_until(window, lambda _: playback.replays == 1)
    assert red_frame(window) == 0
    xdotool("key", "bracketleft", "bracketleft", "bracketleft", "bracketleft", "bracketleft")
    tick_until(window, lambda _: playback.speed == 0.25)
    window.show(numbered(25, 0), numbered(25, 2), 10, "the next pair")
    now[0] += 1.01
    assert red_frame(window) == 2 and playback.replays == 0, "the speed is kept"


@pytest.fixture
def person(window: ClipWindow, tmp_path: Path) -> Iterator[Person]:
    """Somebody who labels three pairs in the window."""
    with contextlib.closing(PrefDB.open(make_store(tmp_path, 3))) as db:
        person = Person(LabelQueue(db), window, None, "me")
        step_until(person, lambda: person.lease is not None)
        yield person
        person.close()


def step_until(person: Person, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline
        person.step()


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
def test_a_pair_is_passed_on_and_a_mark_goes_with_the_answer(person: Person, window: ClipWindow) -> None:
    assert person.lease is not None
    first = person.lease.comparison_id
    xdotool("key", "s")
    step_until(person, lambda: person.lease is not None and person.lease.comparison_id != first)
    passed_on = "SELECT count(*) FROM lease WHERE comparison_id = ? AND closed_at IS NOT NULL"
    assert person.queue.db.read(passed_on, (first,)) == [(1,)] and person.queue.answers.history() == []
    second = person.lease.comparison_id
    xdotool("key", "f", "Return", "f", "f", "Return", "bracketright", "Home")
    step_until(person, lambda: window.playback.replays == 1)
    person.step()  # the line under the clips
    assert window.playback.flagged and "marked" in window._caption and "2x speed" in window._caption
    xdotool("key", "l")
    step_until(person, lambda: len(person.queue.answers.history()) == 1)
    (row,) = person.queue.answers.history()
    assert (row.comparison_id, row.choice, row.flag, row.speed, row.replays) == (second, "left", True, 2, 1)
    step_until(person, lambda: person.lease is not None)
    assert not window.playback.flagged, "the mark was the other pair's"


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
def test_a_pair_that_was_passed_on_comes_again_with_its_mark_and_note(person: Person, window: ClipWindow) -> None:
    assert person.lease is not None
    first = person.lease.comparison_id
    xdotool("key", "f", "o", "d", "Return", "s")

    def has_answers(n: int) -> bool:
        return len(person.queue.answers.history()) == n

    for n_answers in range(1, 100):  # pairs that were given back come last
        step_until(person, lambda: person.lease is not None)
        if n_answers > 1 and person.lease.comparison_id == first:
            break
        step_until(person, lambda: person.lease is not None and person.lease.comparison_id != first)
        assert not window.playback.flagged
        xdotool("key", "l")
        step_until(person, functools.partial(has_answers, n_answers))
    assert (window.playback.flagged, window.playback.note) == (True, "od")


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
def test_a_break_gives_the_pair_back_and_takes_no_answers(person: Person, window: ClipWindow) -> None:
    sky = (30, 40, 90)
    box(screenshot(), sky)
    xdotool("key", "p")
    step_until(person, lambda: person.mode is Mode.ON_BREAK)
    picture = screenshot()
    assert not (picture == np.array(sky)).all(axis=-1).any() and box(picture, TEXT)
    assert person.queue.db.read("SELECT count(*) FROM lease WHERE closed_at IS NULL") == [(0,)]
    xdotool("key", "l", "r", "p")
    step_until(person, lambda: person.lease is not None)
    assert person.queue.answers.history() == []
    window.tick()
    box(screenshot(), sky)


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
def test_a_note_takes_all_keys_until_it_ends(person: Person, window: ClipWindow) -> None:
    xdotool("key", "f", *"lrE", "space", "g", "BackSpace", "BackSpace", "Left", "x", "Return", "bracketright")
    step_until(person, lambda: window.playback.speed == 2)
    assert (window.playback.note, window.playback.flagged, window.playback.writing) == ("lrEx", True, False)
    assert person.queue.answers.history() == [] and person.mode is Mode.ASKED and not window.playback.paused
    xdotool("key", "r")
    step_until(person, lambda: len(person.queue.answers.history()) == 1)
    (row,) = person.queue.answers.history()
    assert (row.choice, row.flag, row.note) == ("right", True, "lrEx")
    step_until(person, lambda: person.lease is not None)
    xdotool("key", "f", "n", "o", "Escape", "bracketleft", "e")
    step_until(person, lambda: len(person.queue.answers.history()) == 2)
    row = person.queue.answers.history()[0]
    assert (row.choice, row.flag, row.note, person.ended) == ("equal", True, "", False), "Esc leaves the note out"


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
def test_an_f_that_is_held_down_writes_nothing(person: Person, window: ClipWindow) -> None:
    repeats: list[str] = []
    window._canvas.window.push_handlers(on_text=repeats.append)
    xdotool("keydown", "f")
    try:
        step_until(person, lambda: len(repeats) >= 3)
    finally:
        xdotool("keyup", "f")
    xdotool("key", "f", "i", "bracketright")
    step_until(person, lambda: window.playback.note.endswith("]"))
    assert window.playback.note == "fi]"


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
def test_the_windows_button_ends_the_labelling_while_a_note_is_written(person: Person, window: ClipWindow) -> None:
    xdotool("key", "f")
    step_until(person, lambda: window.playback.writing)
    window._canvas.window.dispatch_event("on_close")
    person.step()
    assert person.ended


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
def test_what_is_read_is_turned_page_by_page_and_escape_leaves_it_first(person: Person, window: ClipWindow) -> None:
    playback = window.playback
    playback.instructions = tuple(f"{n}. Mind the walls." for n in range(100))
    xdotool("key", "h", "space")
    step_until(person, lambda: playback.page == 1)
    assert playback.n_pages > 2 and not playback.paused
    x0, y0, x1, y1 = box(screenshot(), TEXT)
    assert 0 < x0 < x1 < 1080 and 0 < y0 < y1 < 780, "all of the page is in the window"
    xdotool("key", *["space"] * playback.n_pages)
    step_until(person, lambda: not playback.reading)
    xdotool("key", "h", "Escape", "l")
    step_until(person, lambda: len(person.queue.answers.history()) == 1)
    xdotool("key", "g")
    step_until(person, lambda: person.mode is Mode.LOOKING_BACK)
    xdotool("key", "Escape")
    step_until(person, lambda: person.mode is Mode.ASKED)
    step_until(person, lambda: person.lease is not None)
    xdotool("key", "Escape")
    step_until(person, lambda: "Esc again ends" in window._caption)
    xdotool("key", "e", "r")  # the first takes it back
    step_until(person, lambda: len(person.queue.answers.history()) == 2)
    assert person.queue.answers.history()[0].choice == "right" and not person.ended
    xdotool("key", "Escape", "Escape")
    step_until(person, lambda: person.ended)


@pytest.mark.window
def test_words_below_the_clips_stand_one_above_the_other_however_long(window: ClipWindow) -> None:
    window.show(clip(5, RED), clip(5, BLUE), 15, "Label 12 of 5500")
    window.tick()
    _, _, _, bottom = box(screenshot(), RED)
    window.playback.task = "Go to the red wall, and not to the blue one. " * 8
    window.caption("marked: a note  ·  Label 12 of 5500 (500 before training starts)  ·  3.4 s per answer" * 3)
    window.tick()
    picture = screenshot()
    _, _, _, higher = box(picture, RED)
    _, top, _, _ = box(picture, TEXT)
    assert higher < bottom and top > higher, "the clips make room"


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
def test_own_answers_are_shown_as_they_were_seen_and_can_be_changed(person: Person, window: ClipWindow) -> None:
    db = person.queue.db
    xdotool("key", "g", "bracketright")  # there is none yet
    step_until(person, lambda: window.playback.speed == 2)
    assert person.mode is Mode.ASKED and person.lease is not None
    for n, key in enumerate(("l", "r"), start=1):
        step_until(person, lambda: person.lease is not None)
        xdotool("key", key)
        step_until(person, lambda n=n: len(person.queue.answers.history()) == n)  # type: ignore[misc]
    step_until(person, lambda: person.lease is not None)
    asked, (newer, older) = person.lease, person.queue.answers.history()
    for row, said in ((newer, "Answer 2 of 2, just now: Right"), (older, "Answer 1 of 2, just now: Left")):
        xdotool("key", "g")
        step_until(person, lambda said=said: said in window._caption)  # type: ignore[misc]
        assert window._clips is not None
        for clip, segment in zip(window._clips, (row.left, row.right), strict=True):
            assert np.array_equal(clip, db.segment(segment).frames()), "on the side on which it was seen"
    labels = db.n_labels()
    xdotool("key", "r")
    step_until(person, lambda: "Answer 1 of 2, just now: Right" in window._caption)
    (changed,) = db.labels(after=newer.seq)
    preferred = {changed.a: 1.0, changed.b: 0.0}[older.right]
    assert (changed.retracts, changed.mu) == (older.seq, (preferred, 1 - preferred)) and db.n_labels() == labels
    xdotool("key", "e")  # once more
    step_until(person, lambda: "Answer 1 of 2, just now: Equal" in window._caption)
    xdotool("key", "p")
    step_until(person, lambda: person.mode is Mode.ASKED and person.lease is not None)
    assert asked is not None and person.lease is not None and person.lease.token == asked.token
    assert {row.comparison_id: row.choice for row in person.queue.answers.history()} == {
        newer.comparison_id: "right",
        older.comparison_id: "equal",
    }


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
def test_answers_that_cannot_be_shown_are_passed_over_and_others_changes_are_kept(
    person: Person, window: ClipWindow, capsys: pytest.CaptureFixture[str]
) -> None:
    db = person.queue.db
    for n in range(3):
        xdotool("key", "l")
        step_until(person, lambda n=n: len(person.queue.answers.history()) > n)  # type: ignore[misc]
        step_until(person, lambda: person.lease is not None or n == 2)  # noqa: B023
    newest, _, oldest = person.queue.answers.history()
    person.presses = TerminalLines(io.StringIO(), beside_window=True)
    with db.transaction() as connection:
        connection.execute("UPDATE segment SET view = x'00' WHERE id = ?", (newest.left,))
    xdotool("key", "g", "g")  # while there is no question
    step_until(person, lambda: "Answer 1 of 3" in window._caption)
    assert person.queue.answers.edit("elsewhere", "me", oldest.seq, "equal") is not None
    xdotool("key", "r")
    step_until(person, lambda: person.mode is Mode.ASKED)
    assert "changed elsewhere" in capsys.readouterr().out and person.queue.answers.history()[0].choice == "equal"
    step_until(person, lambda: "changed elsewhere" in window._caption)


@pytest.mark.window
def test_presses_that_nobody_can_have_meant_for_this_pair_are_ignored(
    window: ClipWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "GUARD_SECONDS", 3600.0)
    window.show(clip(5, RED), clip(5, BLUE), 15, "")
    xdotool("key", "l", "r", "Escape")
    assert tick_until(window, lambda pressed: "escape" in pressed) == ["escape"]

    monkeypatch.setattr(viewer, "GUARD_SECONDS", 0.0)
    window.show(clip(5, RED), clip(5, BLUE), 15, "")
    xdotool("key", "l")
    window.show(clip(5, GREEN), clip(5, BLUE), 15, "the next pair came before the press was read")
    xdotool("key", "e")
    assert tick_until(window, bool) == ["equal"]


@pytest.mark.window
def test_a_new_pair_takes_answers_after_a_quarter_of_a_second(window: ClipWindow) -> None:
    shown = time.monotonic()
    window.show(clip(5, RED), clip(5, BLUE), 15, "")
    pressed: list[str] = []
    while not pressed:
        xdotool("key", "l")
        pressed = window.tick()
        assert time.monotonic() < shown + 20
    assert set(pressed) == {"left"} and time.monotonic() - shown >= 0.25


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
def test_a_key_held_down_answers_once(window: ClipWindow) -> None:
    repeats: list[str] = []
    window._canvas.window.push_handlers(on_text=repeats.append)
    window.show(clip(5, RED), clip(5, BLUE), 15, "")
    xdotool("keydown", "l")
    try:
        pressed = tick_until(window, lambda _: len(repeats) >= 3)
        window.show(clip(5, GREEN), clip(5, BLUE), 15, "the next pair")
        seen = len(repeats)
        pressed += tick_until(window, lambda _: len(repeats) >= seen + 3)
    finally:
        xdotool("keyup", "l")
    assert pressed == ["left"]


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
def test_the_chosen_side_lights_up(window: ClipWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    window.show(clip(5, RED), clip(5, BLUE), 15, "")
    monkeypatch.setattr(viewer, "GUARD_SECONDS", 60.0)  # as long as the light stays on
    xdotool("key", "r")
    assert tick_until(window, bool) == ["right"]
    picture = screenshot()
    light, right = box(picture, CHOSEN), box(picture, BLUE)
    assert light[0] < right[0] < right[2] < light[2] and light[0] > box(picture, RED)[2]


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
def test_a_click_on_a_clip_chooses_it_and_one_beside_them_nothing(window: ClipWindow) -> None:
    window.show(clip(5, RED), clip(5, BLUE), 15, "")
    window.tick()
    picture = screenshot()
    for colour, action in ((RED, "left"), (BLUE, "right")):
        x0, y0, x1, y1 = box(picture, colour)
        xdotool("mousemove", "5", "5", "click", "1")
        xdotool("mousemove", str((x0 + x1) // 2), str((y0 + y1) // 2), "click", "1")
        assert tick_until(window, bool) == [action]


@pytest.mark.window
def test_a_black_clip_has_a_frame(window: ClipWindow) -> None:
    nearly_black = (0, 0, 1)  # black is what lies around the window
    window.show(clip(5, nearly_black), clip(5, BLUE), 15, "")
    window.tick()
    picture = screenshot()
    x0, y0, x1, y1 = box(picture, nearly_black)
    frame = [picture[y0 - 1, x0:x1], picture[y1, x0:x1], picture[y0:y1, x0 - 1], picture[y0:y1, x1]]
    assert all((line == np.array(TRACK)).all() for line in frame)


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
def test_the_window_shows_the_messages_and_the_first_t_says_what_is_missing(
    person: Person, window: ClipWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    person.presses, person.before_training = TerminalLines(io.StringIO(), beside_window=True), True

    def says(words: str) -> Callable[[], bool]:
        return lambda: window._caption.startswith(words)

    for key, words in (("u", "There is no answer to undo."), ("t", "Not yet: training needs 25 labels")):
        xdotool("key", key)
        step_until(person, says(words))
    assert not window.playback.asked, "there is nothing to confirm"
    xdotool("key", "l")
    step_until(person, lambda: len(person.queue.answers.history()) == 1)
    xdotool("key", "u")
    step_until(person, says("Undone: this pair again."))
    monkeypatch.setattr(notices, "FEW_LABELS", 0)
    xdotool("key", "t")
    step_until(person, says("T again starts training"))
    xdotool("key", "t")
    step_until(person, says("Training starts with the labels so far."))


@pytest.mark.window
def test_the_window_shows_what_the_run_announces(window: ClipWindow, tmp_path: Path) -> None:
    with contextlib.closing(PrefDB.open(make_store(tmp_path, 3))) as db:
        gatherer = PersonGatherer(db, window, TerminalLines(io.StringIO(), beside_window=True))
        step_until(gatherer.person, lambda: gatherer.person.lease is not None)
        gatherer.announce("All 25 labels so far call both clips equal.")
        step_until(gatherer.person, lambda: window._caption.startswith("All 25 labels"))
        gatherer.close()


@pytest.mark.window
@pytest.mark.usefixtures("no_guard")
def test_while_there_is_no_pair_text_is_shown_and_only_undo_and_close_are_taken(window: ClipWindow) -> None:
    window.show(clip(5, RED), clip(5, BLUE), 15, "")
    window.message("waiting for clips 3/20")
    picture = screenshot()
    assert not (picture == np.array(RED)).all(axis=-1).any()
    x0, _, x1, _ = box(picture, TEXT)
    assert x1 - x0 > 100
    xdotool("key", "l", "e", "u", "Escape")
    assert tick_until(window, lambda pressed: "escape" in pressed) == ["undo", "escape"]


@pytest.mark.window
def test_two_windows_take_turns_and_close_in_any_order(window: ClipWindow) -> None:
    episode = EpisodeWindow()
    window.show(clip(5, RED), clip(5, BLUE), 15, "")
    for i in range(3):
        colour = (40, 190, 60 + i)
        episode.show_frame(clip(1, colour, (210, 160))[0], f"step {i}")
        window.message("soon")
        window.show(clip(5, RED), clip(5, BLUE), 15, "")
        picture = screenshot()
        film, right = box(picture, colour), box(picture, BLUE)
        assert (film[2] - film[0], film[3] - film[1]) == (320, 420) and right[0] >= 560
    episode.close()
    episode.close()
    assert episode.tick() == []
    window.show(clip(5, GREEN), clip(5, BLUE), 15, "")
    box(screenshot(), GREEN)
    reopened = EpisodeWindow()
    window.close()
    window.close()
    reopened.show(clip(3, RED), 15, "after the other was closed")
    box(screenshot(), RED)
    reopened.close()


@pytest.mark.window
def test_an_episode_is_shown_with_its_predicted_reward(display: str) -> None:
    episode = EpisodeWindow()
    episode.show(clip(20, RED, (210, 160)), 15, "Episode 3", plot=np.linspace(-1, 1, 20))
    picture = screenshot()
    assert box(picture, RED)[3] < box(picture, TRACK)[3]
    with pytest.raises(ValueError, match="a reward for each of 5 frames"):
        episode.show(clip(5, RED), 15, "", plot=np.zeros(4))
    focus("Episode")
    xdotool("key", "l", "Escape")
    assert tick_until(episode, bool) == ["close"]
    episode.close()


class Decoded(Sequence[np.ndarray]):
    """Frames that exist only while they are looked at, like those of an episode that is kept compressed."""

    def __init__(self, n_frames: int) -> None:
        self.n_frames = n_frames
        self.asked: set[int] = set()

    def __len__(self) -> int:
        return self.n_frames

    def __getitem__(self, index: Any) -> Any:
        self.asked.add(index)
        return clip(1, RED, (210, 160))[0]


@pytest.mark.window
def test_a_film_is_decoded_one_frame_at_a_time(display: str) -> None:
    episode, frames = EpisodeWindow(), Decoded(100_000)
    episode.show(frames, 15, "a long episode")
    box(screenshot(), RED)
    tick_until(episode, lambda _: len(frames.asked) >= 3)
    assert max(frames.asked) < 1000
    episode.close()


@pytest.mark.window
def test_an_answer_is_framed_and_keys_step_on_and_back(display: str) -> None:
    window = AnswerWindow()
    focus("Answers")
    window.show(clip(5, RED), clip(5, BLUE), 15, "1/2  answer: left better", "left")
    picture = screenshot()
    frame, left = box(picture, CHOSEN), box(picture, RED)
    assert frame[0] < left[0] < left[2] < frame[2] < box(picture, BLUE)[0]
    xdotool("key", "Right", "Return", "Left", "u", "Escape")
    pressed = tick_until(window, lambda pressed: "close" in pressed)
    assert pressed == ["next", "next", "previous", "previous", "close"]
    window.show(clip(5, RED), clip(5, BLUE), 15, "2/2  answer: equal", "equal")
    picture = screenshot()
    frame = box(picture, CHOSEN)
    assert frame[0] < box(picture, RED)[0] and box(picture, BLUE)[2] < frame[2]
    window.close()


@pytest.mark.window
def test_frames_of_another_kind_are_refused(window: ClipWindow) -> None:
    with pytest.raises(ValueError, match=r"right clip: expected \(H, W, 3\) uint8"):
        window.show(clip(5, RED), np.zeros((5, 84, 84), dtype=np.uint8), 15, "")
    with pytest.raises(ValueError, match="at least one frame"):
        window.show(clip(0, RED), clip(5, RED), 15, "")


@pytest.mark.parametrize("name", [None, ":987654"])
def test_without_a_display_one_sentence_names_the_ways_that_work(name: str | None) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "DISPLAY"}
    code = "from drlhp.screens import canvas\ntry: canvas.open_display()\nexcept canvas.DisplayError as e: print(e)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment | ({"DISPLAY": name} if name else {}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("\n") == 1
    assert all(way in done.stdout for way in ("--teacher oracle", "xvfb-run -a", "ssh -X", name or "DISPLAY"))


@pytest.mark.window
def test_open_display_leaves_no_window_behind(display: str) -> None:
    canvas.open_display()
    import pyglet

    assert len(pyglet.app.windows) == 0
