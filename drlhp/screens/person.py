"""A person at this screen: shows the pairs of the label queue one by one, and stores what they answer."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import statistics
import sys
import threading
import time
import uuid
from collections import deque
from typing import IO, Any, Literal, Protocol

import numpy as np

from drlhp.errors import DamagedError
from drlhp.labelling.answer_log import ALL
from drlhp.labelling.answers import CLAIM_SECONDS, HistoryRow, Lease, Submission, SubmissionError
from drlhp.labelling.quality import in_words
from drlhp.labelling.queue import LabelQueue
from drlhp.screens.playback import ANSWERS, KEYS_HELP, WORDS, Playback, plain

log = logging.getLogger("run")

Ui = Literal["auto", "window", "terminal", "web"]
RENEW_SECONDS = 20.0  # less than the shortest lease
IDLE_SECONDS = 180.0  # without a key, after which a pair may go to others, as on the page
PACE_OVER, LEAST_PACES = 20, 5  # newest answers; so many before they say how long the rest takes (as on the page)
PAST_KEYS = "L R E Enter change it  ·  P back  ·  G {}"
NOTE_SHOWN = 36  # characters of a note that fit under the clips, beside the words about it
# Asked of who presses that key once; any other one is a no.
SURE = {
    "start": "T again starts training with the labels there are, for good; Space does not",
    "escape": "Esc again ends your labelling; Space goes on with it",
}

LINES = {
    **{"l": "left", "left": "left", "r": "right", "right": "right", "e": "equal", "equal": "equal"},
    **{"": "incomparable", "u": "undo", "undo": "undo", "start": "start"},
}


class Screen(Protocol):
    """What shows clips and takes presses; nothing of it ever waits."""

    playback: Playback

    def show(self, left: np.ndarray, right: np.ndarray, fps: float, caption: str) -> None:
        """Starts a pair of clips (T, H, W, 3) uint8 at frame 0, at so many frames per second."""

    def caption(self, text: str) -> None:
        """Changes the line under the clips."""

    def message(self, text: str) -> None:
        """Shows text instead of clips."""

    def tick(self) -> list[str]:
        """Draws what is due; what was pressed since the last call, apart from the playing of the clips."""

    def close(self) -> None: ...


class NoScreen:
    """For answers that come as lines from a program: the clips are not shown."""

    def __init__(self) -> None:
        self.playback = Playback()

    def show(self, left: np.ndarray, right: np.ndarray, fps: float, caption: str) -> None:
        self.playback.start(max(len(left), len(right)), fps)

    def caption(self, text: str) -> None: ...

    def message(self, text: str) -> None: ...

    def tick(self) -> list[str]:
        return []

    def close(self) -> None: ...


class Presses(Protocol):
    """What is pressed or typed at the terminal beside a screen."""

    def next(self, *, asked: bool) -> str | None:
        """The next action; None if there is none. `asked`: whether there is a pair to answer."""

    def new_pair(self) -> None:
        """Another pair is shown from now on."""

    def close(self) -> None: ...


class TerminalLines:
    """Lines typed at the terminal, read by a thread of their own so that nothing waits for them."""

    def __init__(self, stream: IO[str], *, beside_window: bool = False) -> None:
        self._lines: deque[str | None] = deque()  # None: the end of the input
        self._beside_window = beside_window
        self._typed_by_hand = stream.isatty()
        # Daemonic: a thread that waits for a line cannot be woken, and must not keep the program from ending.
        threading.Thread(target=self._read, args=(stream,), daemon=True, name="terminal").start()

    def _read(self, stream: IO[str]) -> None:
        has_come = False
        try:
            with contextlib.suppress(OSError):  # as of what nohup makes of a terminal
                for line in stream:
                    has_come = True
                    self._lines.append(line)
        finally:
            # Who labels in a window has that, where nothing is typed, as in the background.
            if has_come or not self._beside_window:
                self._lines.append(None)

    def next(self, *, asked: bool) -> str | None:
        """The next answer as `LINES` names it, "close" at the end of input, None if nothing was typed.

        While nothing is asked, what a person types is no answer, and the lines of a script wait.
        """
        while self._lines:
            line = self._lines[0]
            if line is not None and not asked and not self._typed_by_hand:
                return None
            self._lines.popleft()
            if line is None:
                return "close"
            answer = LINES.get(line.strip().lower())
            if answer is None:
                print(f"'{line.strip()}' is no answer; type one of: {KEYS_HELP}.", flush=True)
            elif asked or answer == "undo":
                return answer
            else:
                print("There is no pair to answer yet.", flush=True)
        return None

    def new_pair(self) -> None: ...

    def close(self) -> None: ...


class Person:
    """One labeller at one screen, and perhaps at the terminal besides.

    Args:
        presses: None where the terminal is the screen.
    """

    def __init__(self, queue: LabelQueue, screen: Screen, presses: Presses | None, labeller: str) -> None:
        self.queue, self.screen, self.presses, self.labeller = queue, screen, presses, labeller
        self.lease: Lease | None = None
        self.ended, self.on_break = False, False
        self.past: list[HistoryRow] = []  # own answers, newest first, while they are looked at again
        self._place = 0  # of the one that is shown
        self._marks: dict[str, tuple[bool, str]] = {}  # of pairs that wait meanwhile: flag and note, by comparison
        self.before_training = False  # which waits for initial labels
        self.status = ""
        self.labels_left = 0  # until the goal; 0 if there is none
        self._paces: deque[float] = deque(maxlen=PACE_OVER)  # seconds that the newest answers took
        self.screen.playback.task = plain(queue.notices.setting("task") or "")
        self.screen.playback.instructions = tuple((queue.notices.setting("instructions") or "").splitlines())
        self._shown_at = 0.0  # of the monotonic clock
        self._renew_at, self._claim_at = 0.0, 0.0
        self._said = ""

    def step(self) -> None:
        """Shows what there is to show and does what was pressed; never waits."""
        if self.ended:
            return
        self._show()
        pressed = self.screen.tick()
        if not pressed and self.presses is not None:
            action = self.presses.next(asked=self.lease is not None and not self.past)
            if action is not None and not self._plays(action):
                pressed = [action]
        for action in pressed:
            if not self.ended:
                self._do(action)

    def _plays(self, action: str) -> bool:
        """Whether it is the screen's own business, and done: what is read, or how the clips play."""
        playback = self.screen.playback
        return playback.reads(action) or (self._shows_clips and playback.do(action))

    @property
    def _shows_clips(self) -> bool:
        return self.lease is not None or bool(self.past)

    def _show(self) -> None:
        """Keeps a pair on the screen, or says why there is none."""
        now = time.monotonic()
        if self.on_break:
            return
        if not self._shows_clips and now >= self._claim_at:
            self._claim_at = now + CLAIM_SECONDS
            leases = self.queue.claim(self.labeller)
            if leases:
                self._start(leases[0])
        if not self._shows_clips:
            self.screen.message(SURE.get(self.screen.playback.asked, self.status))
            self._say(self.status)
            return
        self.screen.caption(self._caption())
        # An answer is taken all the same of who comes back to a pair that has gone to somebody else meanwhile.
        if self.lease is not None and now >= self._renew_at and self.screen.playback.idle_seconds < IDLE_SECONDS:
            self._renew_at = now + RENEW_SECONDS
            self.queue.leases.renew([self.lease.token])

    def _start(self, lease: Lease) -> None:
        if not self._play(lease.left, lease.right):
            self._claim_at = 0.0
            return
        self.lease = lease
        self.screen.playback.flagged, self.screen.playback.note = self._marks.pop(lease.comparison_id, (False, ""))
        self._shown_at = time.monotonic()
        self._renew_at = self._shown_at + RENEW_SECONDS
        words = (f"{self.status}: which clip is better?", self.screen.playback.task, f"({KEYS_HELP})")
        self._say(" ".join(word for word in words if word))

    def _play(self, left: str, right: str, row: HistoryRow | None = None) -> bool:
        """Shows two segments, of the answer `row` if given; False if one cannot be shown, nor be asked about again."""
        clips: list[np.ndarray] = []
        for segment_id in (left, right):
            try:
                segment = self.queue.db.segment(segment_id)
                clips.append(segment.frames())
            except (DamagedError, ValueError) as error:
                log.warning("a clip cannot be shown: %s", error)
                self.queue.retire(segment_id, str(error))
                return False
        playback = self.screen.playback
        playback.flagged, playback.note, playback.writing = (row.flag, row.note, False) if row else (False, "", False)
        oldest = self._place + 1 == len(self.past)
        playback.keys_line = PAST_KEYS.format("the questions" if oldest else "an older one") if row else ""
        self.screen.show(clips[0], clips[1], segment.fps, self._caption())
        if self.presses is not None:
            self.presses.new_pair()
        return True

    def _caption(self) -> str:
        playback = self.screen.playback
        if playback.asked:
            return SURE[playback.asked]
        if playback.writing:
            return f"Note (Enter keeps it, Esc leaves it out): {playback.note[-NOTE_SHOWN:]}"
        words = [self.status, self._pace()]
        if self.past:
            row, n = self.past[self._place], len(self.past)
            ago = _ago(time.time() - row.answered_at)
            words = [f"Answer {n - self._place} of {n}, {ago}: {WORDS[row.choice]}"]
        note = playback.note if len(playback.note) <= NOTE_SHOWN else f"{playback.note[: NOTE_SHOWN - 1]}…"
        marked = f"marked: {plain(note)}" if note else "marked"
        return "  ·  ".join(word for word in (playback.words(), marked if playback.flagged else "", *words) if word)

    def _pace(self) -> str:
        if not self._paces:
            return ""
        seconds = statistics.median(self._paces)
        said = f"{seconds:.1f} s per answer"
        if self.labels_left and len(self._paces) >= LEAST_PACES:
            hours, minutes = divmod(max(1, round(self.labels_left * seconds / 60)), 60)
            said += f", {hours} h {minutes} min left" if hours else f", {minutes} min left"
        return said

    def _do(self, action: str) -> None:
        asked, self.screen.playback.asked = self.screen.playback.asked, ""
        if self.past and action not in (*ANSWERS, "close") and not self._keep_note():
            return
        if self.on_break and action in ("break", "undo", "escape"):
            self.on_break = False
            if action != "undo":
                return
        if action == "escape" and self.past:
            self._go_on()
        elif action == "escape" and not asked:
            self._ask(action)
        elif action in ("escape", "close"):
            self.ended = True
            self.close()
        elif action == "gallery":
            self._look_back()
        elif action == "quality":
            self.screen.playback.read(
                in_words(self.queue.answers.history(merged=True, limit=ALL), self.queue.answers.undone())
            )
        elif self._shows_clips and action == "flag":
            self.screen.playback.flag()
        elif self.past:
            if action in ("break", "undo"):
                self._go_on()
            elif action in ANSWERS:
                self._change(action)
        elif action == "undo":
            newest = self.queue.answers.newest(self.labeller)
            lease = self.queue.answers.undo(self.labeller)
            if lease is None:
                print("There is no answer to undo.", flush=True)
            else:
                self._set_aside()
                if newest is not None:
                    self._marks[lease.comparison_id] = newest.flag, newest.note
                if self._paces:
                    self._paces.pop()
                self._start(lease)
        elif action == "break":
            self._give_back()
            self.on_break = True
            self.screen.message("A break: press P to go on")
        elif self.lease is not None and action == "skip":
            self._give_back()
        elif self.lease is not None and action == "start":
            self._start_training(sure=bool(asked))
        elif self.lease is not None and action in ANSWERS:
            self._answer(self.lease, action)

    def _look_back(self) -> None:
        """Shows the labeller's newest answer, then older ones; after the oldest the questions go on."""
        was_looking, rows = bool(self.past), self.past or self.queue.answers.history(self.labeller, limit=ALL)
        if not was_looking:
            self._set_aside()
        for place in range(self._place + 1 if was_looking else 0, len(rows)):
            self.past, self._place = rows, place
            if self._play(rows[place].left, rows[place].right, rows[place]):
                self.on_break = False
                return
        self.past = []
        if was_looking:
            self._go_on()
        else:
            print("There is no answer to look at yet.", flush=True)

    def _set_aside(self) -> None:
        """Remembers how the pair is marked until it comes back."""
        if self.lease is not None:
            self._marks[self.lease.comparison_id] = self.screen.playback.flagged, self.screen.playback.note

    def _go_on(self) -> None:
        """Goes back from the answers to the questions, first to the one that is on lease."""
        self.past, self.lease, self._claim_at = [], None, 0.0

    def _change(self, choice: Any) -> None:
        """Makes another answer of the one that is shown."""
        row, playback = self.past[self._place], self.screen.playback
        flag, note = playback.flagged, playback.note
        receipt = self.queue.answers.edit(uuid.uuid4().hex, self.labeller, row.seq, choice, flag=flag, note=note)
        if receipt is None or receipt.status == "conflict":
            print("That answer was changed elsewhere meanwhile; press G to see what it is now.", flush=True)
            self._go_on()
        else:
            self.past[self._place] = dataclasses.replace(
                row, seq=receipt.seq, choice=choice, answered_at=time.time(), flag=flag, note=note
            )

    def _keep_note(self) -> bool:
        """Stores the mark and note of the answer that is shown, if they are others now; False if that is gone."""
        row, playback = self.past[self._place], self.screen.playback
        if not playback.writing and (playback.flagged, playback.note) != (row.flag, row.note):
            self._change(row.choice)
        return bool(self.past)

    def _ask(self, action: str) -> None:
        """Waits for a second press, for what it does cannot be taken back."""
        self.screen.playback.asked = action
        self._say(SURE[action])

    def _start_training(self, *, sure: bool) -> None:
        if not self.before_training:
            print("Training waits for no labels now.", flush=True)
        elif not sure:
            self._ask("start")
        else:
            try:
                self.queue.notices.start_now()
                print("Training starts with the labels there are.", flush=True)
            except SubmissionError as error:
                print(f"Not yet: {error}", flush=True)

    def _give_back(self) -> None:
        if self.lease is not None:
            self._set_aside()
            self.queue.leases.release([self.lease.token])
        self.lease, self._claim_at = None, 0.0

    def _answer(self, lease: Lease, choice: Any) -> None:
        """Stores the answer before anything else is shown."""
        playback, now, took = self.screen.playback, time.time(), time.monotonic() - self._shown_at
        submission = Submission(
            uuid.uuid4().hex,
            lease.token,
            lease.comparison_id,
            self.labeller,
            choice,
            now - took,  # how long somebody looked must not depend on the wall clock
            now,
            watched_ms=playback.watched_ms,
            replays=playback.replays,
            speed=playback.speed,
            flag=playback.flagged,
            note=playback.note,
        )
        if self.queue.answers.add(submission).status == "conflict":
            print(f"Somebody else called {self.labeller} has answered this pair; yours was not stored.", flush=True)
        self._paces.append(took)
        self.lease, self._claim_at = None, 0.0

    def _say(self, text: str) -> None:
        """Prints it once, where the terminal is not the screen."""
        if self.presses is not None and text != self._said:
            print(text, flush=True)
            self._said = text

    def close(self) -> None:
        """Gives back what is on lease and closes the screen; may be called twice."""
        try:
            if self.lease is not None:
                self.queue.leases.release([self.lease.token])
            if self.past:
                self._keep_note()
        finally:  # also where the store takes nothing any more
            self.lease, self.past = None, []
            self.screen.close()
            if self.presses is not None:
                self.presses.close()


def _ago(seconds: float) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        n = int(seconds // size)
        if n >= 1:
            return f"{n} {unit}{'s' if n > 1 else ''} ago"
    return "just now"


def screen_for(ui: Ui) -> str:
    """`window` or `terminal`, as the flag and this machine have it.

    Raises DisplayError if there is neither.
    """
    if ui != "auto":
        return ui
    from drlhp.screens.window import DisplayError, open_display

    try:
        open_display()
    except DisplayError:
        if not is_terminal():
            raise
        return "terminal"
    return "window"


def is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def open_screen(ui: Ui) -> tuple[Screen, Presses | None]:
    """A window, with the terminal's keys besides; or the terminal itself; where stdin is no terminal, its lines."""
    if screen_for(ui) == "window":
        from drlhp.screens.window import ClipWindow  # pyglet: only where there is somebody to look

        window = ClipWindow()
        if not sys.stdin.isatty():
            return window, TerminalLines(sys.stdin, beside_window=True)
        from drlhp.screens.terminal import TerminalKeys

        return window, TerminalKeys(window.playback)
    if is_terminal():
        from drlhp.screens.terminal import TerminalScreen

        return TerminalScreen(), None
    return NoScreen(), TerminalLines(sys.stdin)
