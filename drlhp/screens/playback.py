"""How a pair of clips plays: one clock for both, real speed, pause, steps; and help, notes and marks beside it."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable

from rich.cells import chop_cells

from drlhp.labelling.answers import MAX_NOTE
from drlhp.screens.keys import HELP, PLAYING

GUARD_SECONDS = 0.25  # after a new pair appears, answers are meant for the pair before
SEAM_SECONDS = 0.2  # for which the last frame stays, so that the jump to the first one does not look like movement
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)

GOES_BACK, GOES_ON = "Any key goes back.", "Space shows the rest; any other key goes back."


def loop_index(seconds: float, n_frames: int, fps: float, hold: float) -> int:
    """Returns the frame to show `seconds` after a loop began that holds its last frame for `hold` seconds."""
    phase = seconds % (n_frames / fps + hold)
    return min(int(phase * fps), n_frames - 1)


def plain(text: str) -> str:
    """Returns the text in one line, without control characters, because some are commands to a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


class Playback:
    """The clock of a pair. The speed stays from one pair to the next; pairs start running from frame 0."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.speed, self.paused = clock, 1.0, False
        self.n_frames, self.fps = 1, 1.0
        self.replays = 0
        self.reading: tuple[str, ...] = ()  # paragraphs shown in place of the clips until the next key
        self.page, self.n_pages = 0, 1  # the page of `reading` that is shown, and how many pages the screen needs
        self.task = ""  # one sentence, which stays beside the clips
        self.instructions: tuple[str, ...] = ()  # paragraphs, below task and keys in the help
        self.keys_line = ""  # what keys do now, if not the usual
        self.asked = ""  # the action that waits for a second press; any other key is a no
        self.flagged, self.note = False, ""  # stored with the answer to the pair
        self.writing = False  # whether keys are letters of the note, and not answers or commands
        self._at, self._since = 0.0, clock()  # seconds of clip at a time of the clock
        self._started = self._touched = self._since

    def start(self, n_frames: int, fps: float) -> None:
        """Starts a new pair of `n_frames` frames at `fps` frames per second."""
        self.n_frames, self.fps, self.paused, self.replays = n_frames, fps, False, 0
        self._at, self._since = 0.0, self.clock()
        self._started = self._touched = self._since

    @property
    def idle_seconds(self) -> float:
        """The time since a key was pressed, or the pair was first shown."""
        return self.clock() - self._touched

    @property
    def watched_ms(self) -> int:
        """Milliseconds since the pair was first shown."""
        return round(1000 * (self.clock() - self._started))

    def index(self) -> int:
        """Returns the frame to show now."""
        return loop_index(self._seconds(), self.n_frames, self.fps, SEAM_SECONDS)

    def do(self, action: str) -> bool:
        """Carries out one of PLAYING; returns False for any other action."""
        if action not in PLAYING:
            return False
        index = self.index()
        self._at, self._since = self._seconds(), self.clock()
        if action == "pause":
            self.paused = not self.paused
        elif action in ("back", "forward"):
            index = (index + (1 if action == "forward" else -1)) % self.n_frames
            self._at, self.paused = (index + 0.5) / self.fps, True
        elif action == "replay":
            self._at, self.paused, self.replays = 0.0, False, self.replays + 1
        else:
            place = SPEEDS.index(self.speed) + (1 if action == "faster" else -1)
            self.speed = SPEEDS[min(max(place, 0), len(SPEEDS) - 1)]
        return True

    def reads(self, action: str) -> bool:
        """Shows the help, turns its pages or puts it away; returns whether that used up the action.

        Space turns the pages and any other action puts the help away. An action that is a no to a question is used up
        too.
        """
        self._touched = self.clock()
        if self.asked and action not in (self.asked, "close"):
            self.asked = ""
            return True
        if self.reading and action == "pause" and self.page + 1 < self.n_pages:
            self.page += 1
            return True
        was, self.reading = self.reading, ()
        if action == "help" and not was:
            self.read((*((self.task, "") if self.task else ()), *HELP, "", *self.instructions))
        return action != "close" and bool(was or self.reading)

    def read(self, paragraphs: tuple[str, ...]) -> None:
        """Shows paragraphs in place of the clips until the labeller puts them away."""
        self.reading, self.page, self.n_pages = paragraphs, 0, 2  # a guess, until the screen has laid them out

    def page_lines(self, columns: int, rows: int) -> list[str]:
        """Returns the page that is shown, as lines that fit the columns and rows, and what keys do at its end."""
        wrapped = [line for text in self.reading for line in textwrap.wrap(plain(text), columns) or [""]]
        lines = [part for line in wrapped for part in chop_cells(line, columns) or [""]]  # letters may be two wide
        rows = max(1, rows - 2)
        self.n_pages = max(1, -(-len(lines) // rows))
        self.page = min(self.page, self.n_pages - 1)  # a screen that has grown needs fewer pages
        shown = lines[self.page * rows : (self.page + 1) * rows]
        return [*shown, "", GOES_ON if self.page + 1 < self.n_pages else GOES_BACK]

    def flag(self) -> None:
        """Marks the pair and begins a note about it, or removes both."""
        self.flagged = self.writing = not self.flagged
        self.note = ""

    def write(self, typed: str) -> None:
        """Takes one key while a note is written: a character, Enter, backspace or Esc."""
        self._touched = self.clock()
        if typed in ("\r", "\n"):
            self.note, self.writing = self.note.strip(), False
        elif typed == "\x1b":
            self.note, self.writing = "", False
        elif typed in ("\b", "\x7f"):
            self.note = self.note[:-1]
        elif len(typed) == 1 and typed.isprintable():
            self.note = (self.note + typed)[:MAX_NOTE]

    def words(self) -> str:
        """Returns what is unusual about the playing now, for a status line; mostly empty."""
        speed = "" if self.speed == 1 else f"{self.speed:g}x speed"
        return ", ".join(word for word in ("paused" if self.paused else "", speed) if word)

    def _seconds(self) -> float:
        return self._at if self.paused else self._at + (self.clock() - self._since) * self.speed
