"""Labelling in a real pseudo-terminal: presses become answers, the screen shows the clips and is given back."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pty
import re
import select
import shlex
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from drlhp.data.comparison import Comparison
from drlhp.data.segment import Segment
from drlhp.data.views import encode_frames
from drlhp.labelling.answers import MAX_NOTE
from drlhp.labelling.notices import Notices
from drlhp.labelling.queue import LabelQueue
from drlhp.screens import questions as questions_module
from drlhp.screens import terminal_keys as terminal_module
from drlhp.screens.gatherer import PersonGatherer
from drlhp.screens.half_blocks import fitted, to_256
from drlhp.screens.person import Person
from drlhp.screens.playback import GUARD_SECONDS, Playback
from drlhp.screens.screen import NoScreen
from drlhp.screens.terminal import ENTER, LEAVE
from drlhp.screens.terminal_keys import HELD_SECONDS, REPEAT_SECONDS, Keys, TerminalKeys
from drlhp.screens.terminal_layout import FRAME, MIN_COLUMNS, MIN_ROWS, Layout, View
from pref_db import PrefDB
from tests.support import ROOT
from tests.support.commands import answers
from tests.support.preloaded import PreloadedPopen

# A person at the terminal, or beside a window, without the rest of the command, whose imports take seconds.
LABELLING = """
import itertools, os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.default_int_handler)
from drlhp.screens import terminal, terminal_keys
from drlhp.screens.gatherer import PersonGatherer
from drlhp.screens.opening import open_screen
from drlhp.screens.screen import NoScreen
from pref_db import Comparison, PrefDB
db = PrefDB.open(sys.argv[1])
terminal.GUARD_SECONDS = terminal_keys.GUARD_SECONDS = float(sys.argv[2])
segments = list(db.segments())
window = NoScreen()
look, stops = terminal_keys.in_foreground, iter(sys.argv[4:])
def in_foreground(fd):
    found = look(fd)
    if found and db.n_answers() and next(stops, None):
        os.kill(0, signal.SIGTSTP)  # as if Ctrl-Z were pressed after the look
    return found
terminal_keys.in_foreground = in_foreground
place = (window, terminal_keys.TerminalKeys(window.playback)) if sys.argv[3:] else open_screen("terminal")
gatherer = PersonGatherer(db, *place, "ann")
try:
    gatherer.submit([Comparison(a, b, False) for a, b in itertools.combinations(segments, 2)])
    while not gatherer.ended:
        n_rows = db.read("SELECT count(*) FROM answer")[0][0]
        gatherer.tell(f"Label {db.n_labels() + 1}, after {n_rows} answers", {})
        gatherer.drain()
        time.sleep(0.002)
except KeyboardInterrupt:
    sys.exit(130)
finally:
    print("printed at the end")
    gatherer.close()
    db.close()
"""
# Before a whole command, which is a script of this Python.
TAKE_TERMINAL = """
import fcntl, runpy, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
RED, BLUE = (200, 30, 40), (30, 60, 210)
DEADLINE = 240


def segment(seed: int, colour: tuple[int, int, int], steps: int = 8) -> Segment:
    """A clip in one colour whose brightness changes from frame to frame."""
    rng = np.random.default_rng(seed)
    observations = rng.integers(0, 256, (steps, 2)).astype(np.float32)
    frames = np.full((steps, 20, 16, 3), colour, np.uint8)
    frames[:, :4] = (20 * np.arange(steps))[:, None, None, None]
    arrays = (observations, np.zeros(steps, np.int64), np.zeros(steps, np.float32))
    return Segment("Test-v0", *arrays, 1, policy_step=seed, seed=seed, fps=15.0, view=encode_frames(frames))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with contextlib.closing(PrefDB.create(tmp_path / "prefs.db", "Test-v0", 8)) as db:
        db.add_segments([segment(seed, RED if seed % 2 else BLUE) for seed in range(6)])
    return tmp_path


class Terminal:
    """A pseudo-terminal in which a person labels."""

    def __init__(
        self,
        folder: Path,
        columns: int = 80,
        rows: int = 24,
        guard: float = 0.0,
        command: tuple[str, ...] = (),
        **environment: str,
    ) -> None:
        self.folder, self.seen, self.mark = folder, b"", 0
        self.master, self.slave = pty.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.slave)
        kept = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "COLORTERM")}
        options: dict[str, Any] = {
            **dict.fromkeys(("stdin", "stdout", "stderr"), self.slave),
            **{"env": {**kept, "COLORTERM": "truecolor", **environment}, "start_new_session": True, "cwd": ROOT},
        }
        self.process: subprocess.Popen[Any]
        if command[:1] == (sys.executable,):
            self.process = PreloadedPopen([sys.executable, "-c", TAKE_TERMINAL, *command[1:]], **options)
        else:
            words = command or (sys.executable, "-c", LABELLING, str(folder / "prefs.db"), str(guard))
            self.process = subprocess.Popen(words, preexec_fn=self._take_terminal, **options)

    def _take_terminal(self) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal

    def resize(self, columns: int, rows: int) -> None:
        self.mark = len(self.seen)
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, done: Callable[[], Any]) -> None:
        """Reads what is drawn until `done`; fails after a while, or if the command ends first."""
        deadline = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < deadline, self.seen[-2000:]
            if select.select([self.master], [], [], 0.05)[0]:
                self.seen += os.read(self.master, 65536)
            elif self.process.poll() is not None:
                assert done(), self.seen[-2000:]

    def wait_for(self, text: str) -> None:
        """Waits for text that was drawn since the last press."""
        self.read_until(lambda: text.encode() in self.seen[self.mark :])

    def press(self, keys: str) -> None:
        self.mark = len(self.seen)
        os.write(self.master, keys.encode())

    def answers(self) -> list[tuple[Any, ...]]:
        with contextlib.closing(PrefDB.open(self.folder / "prefs.db", read_only=True)) as db:
            columns = "choice, preferred = shown_left, labeller, flag, replays, speed"
            return db.read(f"SELECT {columns} FROM answer ORDER BY seq")

    def answer(self, keys: str) -> tuple[Any, ...]:
        """Presses keys once a pair is shown; gives back the answer that comes of it."""
        before = len(self.answers())
        self.wait_for(f"after {before} answers")
        self.press(keys)
        self.read_until(lambda: len(self.answers()) > before)
        assert len(self.answers()) == before + 1
        return self.answers()[-1]

    def ended(self) -> int:
        self.read_until(lambda: self.process.poll() is not None and not select.select([self.master], [], [], 0.2)[0])
        return self.process.returncode

    def assert_restored(self) -> None:
        assert termios.tcgetattr(self.slave) == self.before
        assert self.seen.count(ENTER.encode()) == 1 and self.seen.count(LEAVE.encode()) == 1
        assert self.seen.rindex(LEAVE.encode()) > self.seen.rindex("▀".encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@contextlib.contextmanager
def terminal(folder: Path, **options: Any) -> Iterator[Terminal]:
    one = Terminal(folder, **options)
    try:
        yield one
    finally:
        one.close()


def test_presses_are_answers_and_the_terminal_is_given_back(folder: Path) -> None:
    with contextlib.closing(PrefDB.open(folder / "prefs.db")) as db:
        Notices(db).set_setting("instructions", "Mind the walls.")
    with terminal(folder) as screen:
        screen.wait_for("LEFT")
        screen.wait_for("Label 1")
        for red, green, blue in (RED, BLUE):
            screen.wait_for(f"8;2;{red};{green};{blue}")
        assert screen.answer("l")[:3] == ("preferred", 1, "ann")
        screen.wait_for("Left · U takes it back")
        assert screen.answer("\x1b[C")[:2] == ("preferred", 0)
        assert screen.answer("E")[0] == "equal"
        assert screen.answer("\r")[0] == "incomparable"
        assert screen.answer("u")[0] == "retracted"
        screen.wait_for("after 5 answers")
        screen.press("]")
        screen.wait_for("2x speed")
        screen.press("f\r")
        screen.wait_for("marked")
        screen.press("?")
        screen.wait_for("how good the answers are")
        screen.wait_for("Mind the walls.")
        screen.press("?")
        screen.wait_for("after 5 answers")
        screen.press("\x1b[H\x1b[D")
        screen.wait_for("after 6 answers")
        assert screen.answers()[-1] == ("preferred", 1, "ann", 1, 1, 2.0)
        screen.press("p")
        screen.wait_for("A break")
        screen.press("\x04")
        assert screen.ended() == 0
        screen.assert_restored()
        assert screen.seen.rindex(b"printed at the end") > screen.seen.rindex(LEAVE.encode())
    with contextlib.closing(PrefDB.open(folder / "prefs.db")) as db:
        assert (db.n_labels(), LabelQueue(db).counts().leased) == (4, 0)


def test_pairs_keep_their_notes_through_an_undo(folder: Path) -> None:
    with terminal(folder) as screen:
        screen.wait_for("Label 1")
        screen.press("fodd\r")
        screen.wait_for("marked: odd")
        screen.answer("l")
        screen.wait_for("after 1 answers")
        screen.press("fnext\r")
        screen.wait_for("marked: next")
        screen.press("u")
        screen.wait_for("marked: odd  ·  Label 1, after")
        screen.answer("r")
        screen.wait_for("marked: next  ·  Label 2, after")
        screen.press("\x04")
        assert screen.ended() == 0
    with contextlib.closing(PrefDB.open(folder / "prefs.db")) as db:
        (row,) = LabelQueue(db).answers.history("ann")
        assert (row.choice, row.flag, row.note) == ("right", True, "odd")


def test_a_pair_keeps_its_note_through_a_break(tmp_path: Path) -> None:
    with contextlib.closing(PrefDB.create(tmp_path / "prefs.db", "Test-v0", 8)) as db:
        db.add_segments([segment(0, RED), segment(1, BLUE)])
    with terminal(tmp_path) as screen:
        screen.wait_for("Label 1")
        screen.press("fodd\r")
        screen.wait_for("marked: odd")
        screen.press("p")
        screen.wait_for("A break")
        screen.press("\x1b")  # so soon another P would be a key that is held down
        screen.wait_for("marked: odd")


@pytest.mark.parametrize("end", ["kill", "ctrl-d"])
def test_a_pair_keeps_its_note_through_a_restart(tmp_path: Path, end: str) -> None:
    with contextlib.closing(PrefDB.create(tmp_path / "prefs.db", "Test-v0", 8)) as db:
        db.add_segments([segment(seed, RED if seed else BLUE) for seed in range(2)])
    with terminal(tmp_path) as screen:
        screen.wait_for("Label 1")
        screen.press("fodd\r")
        screen.wait_for("marked: odd")
        if end == "ctrl-d":
            screen.press("\x04")
            assert screen.ended() == 0
    with terminal(tmp_path) as screen:
        screen.wait_for("marked: odd  ·  Label 1")
        screen.answer("l")
        screen.press("u")
        screen.wait_for("marked: odd  ·  Label 1, after 2")
        screen.press("f")  # takes the mark away
        screen.answer("r")
    with contextlib.closing(PrefDB.open(tmp_path / "prefs.db")) as db:
        (row,) = LabelQueue(db).answers.history("ann")
        assert (row.choice, row.flag, row.note) == ("right", False, "")
        kept = db.read("SELECT value FROM setting WHERE key LIKE 'mark of ann:%'")
        assert kept == [("",)], "the pair is asked again without the mark that its answer has"


def test_a_note_is_typed_and_answers_are_changed(folder: Path) -> None:
    with terminal(folder) as screen:
        screen.wait_for("Label 1")
        screen.press("flre\x1b[D\x1b[Aß!\x7f\r")  # at once, as of a slow program
        screen.wait_for("marked: lreß")
        assert screen.answers() == []
        screen.answer("l")
        screen.wait_for("after 1 answers")
        screen.press("fno")
        screen.wait_for("leaves it out): no")
        screen.press("\x1b")
        screen.wait_for("marked")
        screen.answer("r")
        screen.wait_for("after 2 answers")
        screen.press("g")
        screen.wait_for("Answer 2 of 2, just now: Right")
        screen.wait_for("G an older one")
        screen.press("]g")  # the same key again, so soon, would be one that is held down
        screen.wait_for("2x speed  ·  marked: lreß  ·  Answer 1 of 2, just now: Left")
        screen.press("e")
        screen.wait_for("Answer 1 of 2, just now: Equal")
        screen.press("p")
        screen.wait_for("after 3 answers")
        screen.press("fhm\rg")
        screen.wait_for("marked: lreß  ·  Answer 2 of 2")
        screen.press("f")
        screen.wait_for("2x speed  ·  Answer 2 of 2")
        screen.press("p")  # keeps what was marked there
        screen.wait_for("after 4 answers")
        screen.press("g")
        screen.wait_for("Answer 2 of 2")
        screen.press("fnew\rpq")
        screen.wait_for("2 answers; 0 pairs were answered by more than one person")
        screen.wait_for("picks left 0% (0% to 79%), equal 50%, can't tell 0%")
        screen.press("e")  # any key goes back
        screen.wait_for("marked: hm  ·  Label 3, after 5 answers")
        screen.press("g")
        screen.wait_for("marked: new  ·  Answer 2 of 2")
        screen.press("f\x04")
        assert screen.ended() == 0
    with contextlib.closing(PrefDB.open(folder / "prefs.db")) as db:
        changed, second = LabelQueue(db).answers.history("ann")
        assert (changed.choice, changed.flag, changed.note) == ("equal", False, "")
        notes = db.read("SELECT flag, note FROM answer WHERE comparison_id = ? ORDER BY seq", (changed.comparison_id,))
        assert notes == [(1, "lreß"), (1, "lreß"), (0, ""), (1, "new"), (0, "")]
        assert (second.choice, second.flag, second.note) == ("right", True, "")
        *_, label = db.labels(after=2)
        assert (label.retracts, label.mu, label.comparison_id) == (5, (0.5, 0.5), changed.comparison_id)
        assert LabelQueue(db).counts().leased == 0


def test_where_there_is_no_display_a_run_asks_in_its_terminal(tmp_path: Path) -> None:
    """The whole command, from its first line to the last answer."""
    words = ("run.py", "gather_initial_prefs", "MovingDotNoFrameskip-v0", "--n_initial_prefs", "3", "--max_segs", "40")
    command = (sys.executable, *words, "--n_envs", "2", "--log_dir", str(tmp_path), "--run_name", "a")
    with terminal(tmp_path / "a", command=command) as screen:
        screen.wait_for("Label 1 of 3")
        keys = itertools.cycle("lr")  # pressed in turn, for the same one again may be one that is held down
        while screen.process.poll() is None:
            screen.press(next(keys))
            until = time.monotonic() + 2 * GUARD_SECONDS
            screen.read_until(lambda: time.monotonic() > until or screen.process.poll() is not None)  # noqa: B023
        assert screen.ended() == 0
        screen.assert_restored()
        assert b"labels used  3" in screen.seen[screen.seen.rindex(LEAVE.encode()) :]
        assert {row[0] for row in screen.answers()} == {"preferred"} and len(screen.answers()) == 3


def test_a_long_help_is_turned_page_by_page_and_the_task_stays_in_sight(folder: Path) -> None:
    with contextlib.closing(PrefDB.open(folder / "prefs.db")) as db:
        queue = LabelQueue(db)
        queue.notices.set_setting("task", "Go to the red.")
        queue.notices.set_setting("instructions", "Mind the walls. " * 150 + "The end.")
    with terminal(folder, columns=60) as screen:
        screen.wait_for("Label 1")
        screen.wait_for("Go to the red.")
        screen.press("?")
        screen.wait_for("the left clip is better")
        screen.wait_for("Space shows the rest; any other key goes back.")
        for _ in range(3):
            screen.press(" ")
            screen.wait_for("Mind the walls.")
        screen.wait_for("The end.")
        screen.wait_for("Any key goes back.")
        screen.press(" ")
        screen.wait_for("Label 1")


def test_escape_goes_back_and_ends_the_labelling_only_when_it_is_meant(folder: Path) -> None:
    with terminal(folder) as screen:
        screen.answer("l")
        screen.wait_for("after 1 answers")
        for keys, shown in (("?", "the left clip is better"), ("g", "Answer 1 of 1"), ("p", "A break")):
            screen.press(keys)
            screen.wait_for(shown)
            screen.press("\x1b")
            screen.wait_for("after 1 answers")
        for other in "e ?":  # goes on, and is no answer
            screen.press("]\x1b")  # no Escape that is held down
            screen.wait_for("Esc again ends your labelling")
            screen.press(other)
            screen.wait_for("after 1 answers")
        assert screen.answer("r")[0] == "preferred"
        screen.press("\x1b")
        screen.wait_for("Esc again ends your labelling")
        pressed = time.monotonic()  # so soon it would be a key that is held down
        screen.read_until(lambda: time.monotonic() > pressed + 2 * REPEAT_SECONDS)
        screen.press("\x1b")
        assert screen.ended() == 0
        screen.assert_restored()


def test_a_key_that_is_held_down_is_one_answer(folder: Path) -> None:
    with terminal(folder) as screen:
        assert screen.answer("l" * 40)[0] == "preferred"
        screen.answer("e")


def test_what_is_pasted_answers_nothing_and_may_be_a_note(folder: Path) -> None:
    with terminal(folder) as screen:
        screen.answer("e")
        screen.wait_for("after 1 answers")
        assert b"\x1b[?2004h" in screen.seen, "terminals say what is pasted if they are asked to"
        screen.press("\x1b[200~upload\rall of it\r\x1b[201~]")
        screen.wait_for("2x speed")
        assert len(screen.answers()) == 1
        screen.press("f")
        screen.wait_for("Note")
        screen.press("\x1b[200~of two\rlines\x1b[201~")
        screen.wait_for("of two lines")
        assert len(screen.answers()) == 1
        screen.press("\rl")
        screen.read_until(lambda: len(screen.answers()) == 2)


def test_keys_are_ignored_while_nobody_can_have_seen_the_pair(folder: Path) -> None:
    with terminal(folder, guard=1000.0) as screen:
        screen.wait_for("Label 1")
        screen.press("lrefs]")
        screen.wait_for("2x speed")
        assert screen.answers() == []


@pytest.mark.parametrize(("end", "status"), [("interrupt", 130), ("terminate", 130), ("damage", 1)])
def test_every_end_gives_the_terminal_back(folder: Path, end: str, status: int) -> None:
    with terminal(folder) as screen:
        screen.answer("l")
        screen.wait_for("after 1 answers")
        if end == "interrupt":
            screen.press("\x03")
        elif end == "terminate":
            os.kill(screen.process.pid, signal.SIGTERM)
        else:  # a part of the program fails
            with contextlib.closing(sqlite3.connect(folder / "prefs.db")) as db:
                db.execute("DROP TABLE lease")
            screen.press("u")
        assert screen.ended() == status
        screen.assert_restored()
        assert len(answers(folder)) == 1, "also of what is damaged"


def test_a_small_terminal_says_what_it_needs_and_goes_on_when_it_is_larger(folder: Path) -> None:
    with terminal(folder, columns=30, rows=10) as screen:
        screen.wait_for("30 x 10 is too small")
        screen.press("lrefs]")
        screen.resize(100, 30)
        screen.wait_for("2x speed  ·  Label 1")
        assert screen.answers() == [], "nobody can have seen the pair"
        screen.resize(44, 16)
        screen.wait_for("\x1b[2J")
        screen.answer("e")


def test_a_terminal_that_does_not_say_how_large_it_is_gets_the_usual_size(folder: Path) -> None:
    with terminal(folder, columns=0, rows=0) as screen:
        screen.wait_for("U undo  H all keys")
        screen.answer("l")


def test_in_the_smallest_terminal_words_keep_to_their_rows_and_are_no_commands(folder: Path) -> None:
    with contextlib.closing(PrefDB.open(folder / "prefs.db")) as db:
        Notices(db).set_setting("task", "\x1b]0;a title\x07把白色的点移到画面中间并且让它停在那里" + "不要离开" * 9)
    with terminal(folder, columns=40, rows=15) as screen:
        for words in ("LEFT: L or ←", "RIGHT: R or →", "把白色的点移到", "Label 1", "U undo  H all keys"):
            screen.wait_for(words)
        screen.press("f把白色的点移到画面中间并且让它停在那里")
        screen.wait_for("停在那里")
        screen.press("\r")
        screen.wait_for("marked: 把白色")
        screen.press("l")
        screen.wait_for("Label 2, after 1 answers")
        with contextlib.closing(PrefDB.open(folder / "prefs.db")) as db, db.transaction() as connection:
            connection.execute("DROP TRIGGER answer_no_update")
            connection.execute("UPDATE answer SET note = 'two\nlines\x1b]0;a title\x07'")  # as it came from elsewhere
        screen.press("g")
        screen.wait_for("marked: two lines ]0;a title")
        screen.press("\x04")
        assert screen.ended() == 0
        rows = re.findall("\x1b\\[2K([^\x1b]*)", screen.seen.decode())
        assert max(map(cell_len, rows)) == 40 and b"\x1b]" not in screen.seen


def test_what_is_read_is_wrapped_by_the_width_of_its_letters() -> None:
    playback = Playback()
    playback.read(("把白色的点移到画面中间" * 3, "", "Mind the walls."))
    *lines, empty, _ = playback.page_lines(21, 30)
    assert "".join(lines) == "".join(playback.reading) and "" in lines and not empty
    assert max(map(cell_len, lines)) <= 21


def test_256_colours_where_the_terminal_does_not_say_that_it_has_all(folder: Path) -> None:
    with terminal(folder, COLORTERM="") as screen:
        screen.wait_for("▀")
        assert b"8;2;" not in screen.seen and re.search(rb"[34]8;5;\d+", screen.seen)


def test_only_cells_that_change_are_sent(folder: Path) -> None:
    """Of a clip in which a strip changes, the rest is sent once."""
    with terminal(folder) as screen:
        screen.wait_for("Label 1")
        colour = f"8;2;{RED[0]};{RED[1]};{RED[2]}".encode()
        screen.read_until(lambda: screen.seen.count(b"\x1b[?2026h") > 5)
        before = screen.seen.count(colour)
        assert before > 0
        frames = screen.seen.count(b"\x1b[?2026h")
        screen.read_until(lambda: screen.seen.count(b"\x1b[?2026h") > frames + 20)
        assert screen.seen.count(colour) == before


def test_beside_a_window_the_terminals_keys_do_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    monkeypatch.setattr(terminal_module, "GUARD_SECONDS", 1000.0)
    with contextlib.closing(PrefDB.open(folder / "prefs.db")) as db:
        Notices(db).set_setting("task", "Go to the red.")
        screen = NoScreen()
        playback, presses = screen.playback, TerminalKeys(screen.playback, slave)
        gatherer = PersonGatherer(db, screen, presses)
        person = gatherer.person
        first, second, *_ = db.segments()
        gatherer.submit([Comparison(first, second, flip=False)])

        def press(keys: str, done: Callable[[], Any]) -> None:
            os.write(master, keys.encode())
            deadline = time.monotonic() + DEADLINE
            while not done():
                assert time.monotonic() < deadline
                gatherer.drain()

        gatherer.tell("Label 1", {})
        press("", lambda: person.lease)
        assert "which clip is better? Go to the red." in capsys.readouterr().out
        press("r ", lambda: playback.paused)
        assert db.n_answers() == 0, "nobody can have seen the pair"
        presses._guarded_until = 0.0
        press("L", lambda: db.n_answers() == 1)
        press("u", lambda: db.n_answers() == 0)
        presses._guarded_until = 0.0
        press("flr\rg]", lambda: playback.speed == 2)
        assert (playback.note, playback.flagged, db.n_answers()) == ("lr", True, 0)
        press("?", lambda: playback.reading)
        press("\x04", lambda: gatherer.ended)
        gatherer.close()
    assert termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)


def test_beside_a_window_the_terminal_is_left_to_the_shell_while_that_has_it(folder: Path) -> None:
    (folder / "labelling.py").write_text(LABELLING)
    surroundings = {"PYTHONPATH": str(ROOT), "PS1": "ready> ", "TERM": "dumb"}
    with terminal(folder, columns=200, command=("bash", "--norc", "--noprofile", "-i"), **surroundings) as shell:

        def type_line(line: str, *expected: str) -> None:
            shell.press(f"{line}\r")
            for words in expected:
                shell.wait_for(words)

        def answer_in_front(n: int, key: str) -> None:
            type_line("fg", "prefs.db 0 window")  # which the shell says before it steps back
            shell.read_until(lambda: not termios.tcgetattr(shell.slave)[3] & termios.ICANON)
            shell.press(key)
            shell.wait_for(f"after {n} answers: which clip is better?")
            type_line("\x1a", "Stopped", "ready> ")

        shell.wait_for("ready> ")
        command = shlex.join([sys.executable, str(folder / "labelling.py"), str(folder / "prefs.db"), "0", "window"])
        type_line(f"{command} &", "after 0 answers: which clip is better?")
        answer_in_front(1, "l")
        answer_in_front(2, "r")
        type_line("bg; kill -INT %1", "printed at the end")
        type_line("wait; exit", "exit")
        assert shell.ended() == 0, "no job was stopped"
    assert len(shell.answers()) == 2


def test_a_stop_amid_taking_the_terminal_stops_nothing_when_it_goes_on_in_the_background(folder: Path) -> None:
    (folder / "labelling.py").write_text(LABELLING)
    surroundings = {"PYTHONPATH": str(ROOT), "PS1": "ready> ", "TERM": "dumb"}
    with terminal(folder, columns=400, command=("bash", "--norc", "--noprofile", "-i"), **surroundings) as shell:
        shell.wait_for("ready> ")
        words = (sys.executable, str(folder / "labelling.py"), str(folder / "prefs.db"), "0", "window", "stops")
        shell.press(f"{shlex.join(words)}\r")
        shell.wait_for("after 0 answers: which clip is better?")
        shell.read_until(lambda: not termios.tcgetattr(shell.slave)[3] & termios.ICANON)
        shell.press("l")
        shell.wait_for("Stopped")
        shell.press("bg; cat\r")  # cat has the terminal as the shell lends it, which is how a program takes it
        shell.wait_for("after 1 answers: which clip is better?")
        shell.press("\x04kill -INT %1\r")
        shell.wait_for("printed at the end")
        shell.press("wait; stty; exit\r")
        assert shell.ended() == 0, "no job was stopped"
    assert b"-icanon" not in shell.seen and b"-echo" not in shell.seen


def test_what_is_no_text_or_cannot_be_printed_ends_nothing(folder: Path) -> None:
    command = (sys.executable, "run.py", "label", str(folder), "--ui", "terminal", "--task", "把白色的点移到画面中间")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    for redirection, n_labels in (("", 3), ("<&-", 0), ("0>/dev/null", 0)):  # as it comes, closed, and as of nohup
        done = subprocess.run(
            ("bash", "-c", f'exec "$@" {redirection}', "", *command),
            input=b"L\nR\n\xff\nL\n",
            capture_output=True,
            timeout=DEADLINE,
            env=environment,
            cwd=ROOT,
        )
        assert done.returncode == 0 and not done.stderr, done
        assert b", %d more than at the start" % n_labels in done.stdout, done
        assert (b"is no answer" in done.stdout) == bool(n_labels)


def test_a_pair_that_nobody_looks_at_goes_to_others_and_can_still_be_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions_module, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(terminal_module, "GUARD_SECONDS", 0.0)
    master, slave = pty.openpty()
    clock, screen = Clock(), NoScreen()
    screen.playback.clock = clock
    with contextlib.closing(PrefDB.open(folder / "prefs.db")) as db:
        queue = LabelQueue(db, clock)
        first, second, *_ = db.segments()
        queue.submit([Comparison(first, second, flip=False)])
        person = Person(queue, screen, TerminalKeys(screen.playback, slave), "ann")
        person.step()
        for minute in range(20):
            os.write(master, b"]["[minute % 2 :][:1])
            while screen.playback.speed != 1 + (minute + 1) % 2:
                person.step()
            for _ in range(2):
                clock.now += 30
                person.step()
            assert queue.claim("bob") == [], "somebody plays the clips"
        for _ in range(8):
            clock.now += 30
            person.step()
        (lease,) = queue.claim("bob")
        assert person.lease is not None and person.lease.comparison_id == lease.comparison_id
        os.write(master, b"l")
        while person.lease is not None:
            person.step()
        (row,) = queue.answers.history("ann")
        assert (row.choice, row.late, db.n_labels()) == ("left", True, 1)
        person.close()
    os.close(master)
    os.close(slave)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def presses(*timed: tuple[float, str], playback: Playback | None = None) -> list[str]:
    """What comes of bytes at times, looked at every 5 ms."""
    clock, playback = Clock(), playback or Playback()
    keys, taken, waiting = Keys(playback, clock), list[str](), list(timed)
    for step in range(1000):
        clock.now = 100.0 + step * 0.005
        while waiting and waiting[0][0] <= step * 0.005:
            keys.feed(waiting.pop(0)[1].encode())
        for action in iter(keys.next, None):
            taken.append(action)
            if action == "flag":
                playback.flag()
    return taken


def test_held_keys_count_once_and_deliberate_presses_each() -> None:
    held = [(0.0, "l"), *((0.5 + 0.03 * i, "l") for i in range(60))]
    assert presses(*held) == ["left"]
    assert presses(*((0.4 * i, "l") for i in range(5))) == ["left"] * 5
    assert presses((0, "l"), (0.1, "r"), (0.2, "l"), (0.3, "e")) == ["left", "right", "left", "equal"]
    assert presses(*((0.03 * i, ".") for i in range(5))) == ["forward"] * 5, "stepping may be held"
    assert REPEAT_SECONDS < 0.25 and HELD_SECONDS > 0.66


def test_keys_that_begin_and_end_a_note_may_be_held_down() -> None:
    def written(*timed: tuple[float, str]) -> tuple[list[str], str]:
        playback = Playback()
        actions = presses(*timed, playback=playback)
        return actions, playback.note

    def held(key: str, start: float) -> list[tuple[float, str]]:
        return [(start, key), *((start + 0.5 + 0.03 * i, key) for i in range(20))]

    assert written(*held("f", 0), (2, "ü"), (2.1, "l"), (2.15, "l"), *held("\r", 3)) == (["flag"], "üll")
    assert written((0, "f"), (0.1, "x"), *held("\x1b", 1), (3, "r")) == (["flag", "right"], "")
    assert written((0, "f"), (0.3, "f"), (0.35, "i")) == (["flag"], "fi")
    assert written((0, "f\x04")) == (["flag", "close"], ""), "the end of the input is one in a note too"


def test_a_note_is_no_longer_than_the_store_takes() -> None:
    playback = Playback()
    playback.flag()
    for typed in (*" x", *"ab\t\x00" * MAX_NOTE):
        playback.write(typed)
    assert len(playback.note) == MAX_NOTE and playback.note.startswith(" xabab")
    playback.write("\r")
    assert playback.note.startswith("xabab") and playback.flagged
    playback.flag()
    assert (playback.flagged, playback.note, playback.writing) == (False, "", False)


def test_arrows_come_whole_or_in_parts_and_escape_alone_is_a_key() -> None:
    assert presses((0, "\x1b[D"), (0.2, "\x1bOC")) == ["left", "right"]
    assert presses((0, "\x1b"), (0.01, "["), (0.02, "A")) == ["equal"]
    assert presses((0, "\x1b")) == ["escape"]
    assert presses((0, "\x1b[5~"), (0.1, "ü~x")) == []
    assert presses((0, "\x1bl"), (0.1, "\x1bO"), (0.5, "\x1b[[A")) == [], "Alt with a key, and F1 of a console"


def test_frames_are_scaled_to_the_cells_with_their_proportions() -> None:
    frame = np.zeros((210, 160, 3), np.uint8)
    frame[:, 80:] = 255
    for columns, rows in ((40, 19), (10, 40), (400, 200)):
        pixels = fitted(frame, columns, rows)
        height, width, _ = pixels.shape
        assert width <= columns and height <= 2 * rows and height % 2 == 0
        assert width / height == pytest.approx(160 / 210, rel=0.1)
        assert pixels[0, 0, 0] == 0 and pixels[-1, -1, 0] == 255


@pytest.mark.parametrize("shade", [0, 255])
@pytest.mark.parametrize("size", [(MIN_COLUMNS, MIN_ROWS), (100, 32)])
def test_a_frame_tells_a_clip_from_a_black_or_a_white_terminal(size: tuple[int, int], shade: int) -> None:
    clip, playback = np.full((5, 210, 160, 3), shade, np.uint8), Playback()
    playback.start(5, 15.0)
    _, pictures = Layout(playback).contents(View((clip, clip), "", "", "", ""), *size)
    for (row, column), cells in pictures.items():
        down, across = cells.shape[:2]
        assert row >= 1 and column >= 0 and column + across <= size[0]
        pixels = cells.swapaxes(1, 2).reshape(2 * down, across, 3)
        assert (pixels[1:-1, 1:-1] == shade).all()
        for line in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
            assert (line == np.array(FRAME)).all()


def test_the_nearest_of_256_colours() -> None:
    colours = np.array([[0, 0, 0], [255, 255, 255], [255, 0, 0], [128, 128, 128], [95, 135, 175]], np.uint8)
    assert to_256(colours).tolist() == [16, 231, 196, 244, 67]
