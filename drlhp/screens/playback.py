"""How a pair of clips plays: one clock for both, real speed, pause, steps; and what people can do with it."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable

from rich.cells import chop_cells

from drlhp.labelling.answers import MAX_NOTE

GUARD_SECONDS = 0.25  # nobody has seen a new pair yet: presses are meant for the pair before
SEAM_SECONDS = 0.2  # hold of the last frame: the jump back to the start is no movement
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)

ANSWERS = ("left", "right", "equal", "incomparable")
WORDS = {"left": "Left", "right": "Right", "equal": "Equal", "incomparable": "Can't tell"}
PLAYING = ("pause", "back", "forward", "slower", "faster", "replay")
# What is asked for besides an answer may be meant although the pair is new, or there is none.
ALWAYS = ("undo", "help", "break", "gallery", "quality", "escape", "close")
KEYS_HELP = "L left, R right, E equal, Enter can't tell, U undo"
HELP = (
    "L or left arrow    the left clip is better",
    "R or right arrow   the right clip is better",
    "E or up arrow      equally good",
    "Enter, down arrow  can't tell",
    "U or backspace     undo, as often as you like",
    "space              pause      , and .   one step back and on",
    "[ and ]            slower and faster      Home   from the start",
    "S                  pass this pair on, to somebody else or for later",
    "F                  mark this pair, with a note if you like: Enter ends it",
    "G                  your answers, newest first, to look at again and change",
    "Q                  how good the answers are",
    "P                  take a break      H or ?   this help",
    "T                  start training before all initial labels are given",
    "Esc twice, Ctrl-D  end the labelling; training goes on",
)

GOES_BACK, GOES_ON = "Any key goes back.", "Space shows the rest; any other key goes back."


def loop_index(seconds: float, n_frames: int, fps: float, hold: float) -> int:
    """The frame to show this long after the start of a loop which holds its last frame for `hold` seconds."""
    phase = seconds % (n_frames / fps + hold)
    return min(int(phase * fps), n_frames - 1)


def plain(text: str) -> str:
    """The text in one line, without control characters: some are commands to a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


class Playback:
    """The clock of a pair. The speed stays from one pair to the next; pairs start running from frame 0."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.speed, self.paused = clock, 1.0, False
        self.n_frames, self.fps = 1, 1.0
        self.replays = 0
        self.reading: tuple[str, ...] = ()  # what takes the place of the clips until the next key
        self.page, self.n_pages = 0, 1  # of what is read: the one that is shown, and how many the screen makes of it
        self.task = ""  # in a sentence, which stays beside the clips
        self.instructions: tuple[str, ...] = ()  # paragraphs, below task and keys in the help
        self.keys_line = ""  # what keys do now, where that is not the usual
        self.asked = ""  # the action that waits for a second press; any other key is a no
        self.flagged, self.note = False, ""  # what goes with an answer to the pair
        self.writing = False  # the note: no key is an answer or a command
        self._at, self._since = 0.0, clock()  # seconds of clip at a time of the clock
        self._started = self._touched = self._since

    def start(self, n_frames: int, fps: float) -> None:
        """A new pair, of so many frames at so many per second."""
        self.n_frames, self.fps, self.paused, self.replays = n_frames, fps, False, 0
        self._at, self._since = 0.0, self.clock()
        self._started = self._touched = self._since

    @property
    def idle_seconds(self) -> float:
        """Since a key was pressed, or the pair was first shown."""
        return self.clock() - self._touched

    @property
    def watched_ms(self) -> int:
        """Milliseconds since the pair was first shown."""
        return round(1000 * (self.clock() - self._started))

    def index(self) -> int:
        """The frame to show now."""
        return loop_index(self._seconds(), self.n_frames, self.fps, SEAM_SECONDS)

    def do(self, action: str) -> bool:
        """Carries out one of PLAYING; False for anything else."""
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
        """Shows help when asked; space turns its pages, any other action puts it away, and is used up by that.

        So is an action that is a no to what was asked.
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
        """Shows these in place of the clips until they are put away."""
        self.reading, self.page, self.n_pages = paragraphs, 0, 2  # perhaps, until the screen has seen it

    def page_lines(self, columns: int, rows: int) -> list[str]:
        """The page of what is read, as lines that fit into so many columns and rows, and what keys do."""
        wrapped = [line for text in self.reading for line in textwrap.wrap(plain(text), columns) or [""]]
        lines = [part for line in wrapped for part in chop_cells(line, columns) or [""]]  # letters may be two wide
        rows = max(1, rows - 2)
        self.n_pages = max(1, -(-len(lines) // rows))
        self.page = min(self.page, self.n_pages - 1)  # they are fewer where the screen has grown
        shown = lines[self.page * rows : (self.page + 1) * rows]
        return [*shown, "", GOES_ON if self.page + 1 < self.n_pages else GOES_BACK]

    def flag(self) -> None:
        """Marks the pair and begins a note about it, or takes both away."""
        self.flagged = self.writing = not self.flagged
        self.note = ""

    def write(self, typed: str) -> None:
        """Takes what was typed while a note is written: a character, Enter, backspace or Esc."""
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
        """What is unusual about the playing now, for a status line; mostly empty."""
        speed = "" if self.speed == 1 else f"{self.speed:g}x speed"
        return ", ".join(word for word in ("paused" if self.paused else "", speed) if word)

    def _seconds(self) -> float:
        return self._at if self.paused else self._at + (self.clock() - self._since) * self.speed
