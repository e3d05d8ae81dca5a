"""A person at this screen, who answers the pairs of the label queue one by one."""

from __future__ import annotations

import enum
import logging
import time

import numpy as np

from drlhp.errors import DamagedError
from drlhp.labelling.answer_log import ALL
from drlhp.labelling.answers import HistoryRow, Lease, SubmissionError
from drlhp.labelling.quality import in_words
from drlhp.labelling.queue import LabelQueue
from drlhp.screens.keys import ANSWERS, KEYS_HELP
from drlhp.screens.past import Past
from drlhp.screens.playback import plain
from drlhp.screens.questions import Questions
from drlhp.screens.screen import Presses, Screen

log = logging.getLogger("run")

TOLD_SECONDS = 6.0  # how long a message stays under the clips
NOTE_SHOWN = 36  # characters of a note that fit under the clips, beside the other words
# Asked after the first press of a key that cannot be undone; any other key is a no.
SURE = {
    "start": "T again starts training with the labels so far, which cannot be undone; Space cancels",
    "escape": "Esc again ends your labelling; Space cancels",
}


class Mode(enum.Enum):
    """What a person does now."""

    ASKED = enum.auto()  # answers pairs, or waits for one
    LOOKING_BACK = enum.auto()  # looks at earlier answers
    ON_BREAK = enum.auto()
    ENDED = enum.auto()


class Person:
    """One labeller at one screen, and perhaps at the terminal too.

    Args:
        presses: the terminal's keys or lines; None if the terminal is the screen.
    """

    def __init__(self, queue: LabelQueue, screen: Screen, presses: Presses | None, labeller: str) -> None:
        self.queue, self.screen, self.presses, self.labeller = queue, screen, presses, labeller
        self.mode = Mode.ASKED
        self.questions = Questions(queue, labeller, screen.playback)
        self.past = Past(queue, labeller, screen.playback, self.tell)
        self.before_training = False  # while training waits for initial labels
        self.status = ""
        self.labels_left = 0  # until the goal; 0 if there is none
        self.screen.playback.task = plain(queue.notices.setting("task") or "")
        self.screen.playback.instructions = tuple((queue.notices.setting("instructions") or "").splitlines())
        self._said = ""
        self._told, self._told_until = "", 0.0  # a message, and until when it is shown

    @property
    def lease(self) -> Lease | None:
        """The pair that waits for an answer."""
        return self.questions.lease

    @property
    def ended(self) -> bool:
        return self.mode is Mode.ENDED

    @property
    def _shows_clips(self) -> bool:
        return self.lease is not None or self.mode is Mode.LOOKING_BACK

    def step(self) -> None:
        """Shows what there is to show and does what was pressed; never blocks."""
        if self.ended:
            return
        self._show()
        pressed = self.screen.tick()
        if not pressed and self.presses is not None:
            action = self.presses.next(asked=self.lease is not None and self.mode is not Mode.LOOKING_BACK)
            if action is not None and not self._plays(action):
                pressed = [action]
        for action in pressed:
            if not self.ended:
                self._do(action)

    def _plays(self, action: str) -> bool:
        """Carries out what concerns the screen alone, such as help and how the clips play; False for other actions."""
        playback = self.screen.playback
        return playback.reads(action) or (self._shows_clips and playback.do(action))

    # What the screen shows

    def _show(self) -> None:
        """Keeps a pair on the screen, or shows why there is none."""
        if self.mode is Mode.ON_BREAK:
            return
        if not self._shows_clips and (lease := self.questions.claim()):
            self._start(lease)
        if not self._shows_clips:
            self.screen.message(SURE.get(self.screen.playback.asked) or self._message or self.status)
            self._say(self.status)
            return
        if self.mode is Mode.ASKED and not self.screen.playback.writing:
            self.questions.remember_marks()  # before they are shown
        self.screen.caption(self._caption())
        self.questions.keep()

    def _start(self, lease: Lease) -> None:
        """Asks about a pair, or claims another one if this one cannot be shown."""
        if not self._play(lease.left, lease.right):
            self.questions.claim_at_once()
            return
        self.questions.begin(lease)
        words = (f"{self.status}: which clip is better?", self.screen.playback.task, f"({KEYS_HELP})")
        self._say(" ".join(word for word in words if word))

    def _play(self, left: str, right: str, row: HistoryRow | None = None) -> bool:
        """Shows two segments, those of the answer `row` if given; False if one of them cannot be shown.

        A segment that cannot be shown is never asked about again.
        """
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
        playback.keys_line = self.past.keys_line() if row else ""
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
        if message := self._message:
            return message
        words = [self.past.heading()] if self.past.rows else [self.status, self.questions.pace.words(self.labels_left)]
        note = playback.note if len(playback.note) <= NOTE_SHOWN else f"{playback.note[: NOTE_SHOWN - 1]}…"
        marked = f"marked: {plain(note)}" if note else "marked"
        return "  ·  ".join(word for word in (playback.words(), marked if playback.flagged else "", *words) if word)

    def tell(self, text: str) -> None:
        """Prints a message, which a terminal shows by itself, and shows it under the clips of a window."""
        print(text, flush=True)
        if self.presses is not None:
            self._told, self._told_until = text, time.monotonic() + TOLD_SECONDS

    @property
    def _message(self) -> str:
        return self._told if time.monotonic() < self._told_until else ""

    def _say(self, text: str) -> None:
        """Prints a text once, unless the terminal is the screen."""
        if self.presses is not None and text != self._said:
            print(text, flush=True)
            self._said = text

    # What was pressed

    def _do(self, action: str) -> None:
        asked, self.screen.playback.asked = self.screen.playback.asked, ""
        if self.mode is Mode.LOOKING_BACK and action not in (*ANSWERS, "close") and not self.past.keep_note():
            self._go_on()
            return
        if self.mode is Mode.ON_BREAK and action in ("break", "undo", "escape"):
            self.mode = Mode.ASKED
            if action != "undo":
                return
        if action == "escape" and self.mode is Mode.LOOKING_BACK:
            self._go_on()
        elif action == "escape" and not asked:
            self._ask(action)
        elif action in ("escape", "close"):
            self.mode = Mode.ENDED
            self.close()
        elif action == "gallery":
            self._look_back()
        elif action == "quality":
            self.screen.playback.read(
                in_words(self.queue.answers.history(merged=True, limit=ALL), self.queue.answers.undone())
            )
        elif self._shows_clips and action == "flag":
            self.screen.playback.flag()
        elif self.mode is Mode.LOOKING_BACK:
            if action in ("break", "undo") or (action in ANSWERS and not self.past.change(action)):
                self._go_on()
        else:
            self._do_asked(action, sure=bool(asked))

    def _do_asked(self, action: str, *, sure: bool) -> None:
        """Does what was pressed while pairs are asked about."""
        if action == "undo":
            lease = self.questions.undo()
            if lease is None:
                self.tell("There is no answer to undo.")
            else:
                self._start(lease)
                self.tell("Undone: this pair again.")
        elif action == "break":
            self.questions.give_back()
            self.mode = Mode.ON_BREAK
            self.screen.message("A break: press P to go on")
        elif self.lease is not None and action == "skip":
            self.questions.give_back()
        elif self.lease is not None and action == "start":
            self._start_training(sure=sure)
        elif self.lease is not None and action in ANSWERS and not self.questions.answer(action):
            self.tell(f"Somebody else called {self.labeller} has answered this pair; yours was not stored.")

    def _look_back(self) -> None:
        """Shows the labeller's newest answer, then older ones; after the oldest the questions go on."""
        was_looking = self.mode is Mode.LOOKING_BACK
        if not was_looking:
            self.questions.remember_marks()
            self.past.read()
        while (row := self.past.older()) is not None:
            if self._play(row.left, row.right, row):
                self.mode = Mode.LOOKING_BACK
                return
        if was_looking:
            self._go_on()
        else:
            self.past.clear()
            self.tell("There is no answer to look at yet.")

    def _go_on(self) -> None:
        """Goes back from the answers to the questions, first to the pair on lease."""
        self.past.clear()
        self.questions.drop()
        self.mode = Mode.ASKED

    def _ask(self, action: str) -> None:
        """Waits for a second press, because the action cannot be undone."""
        self.screen.playback.asked = action
        self._say(SURE[action])

    def _start_training(self, *, sure: bool) -> None:
        if not self.before_training:
            self.tell("Training does not wait for labels now.")
            return
        try:
            if sure:
                self.queue.notices.start_now()
                self.tell("Training starts with the labels so far.")
            else:
                self.queue.notices.check_start()
                self._ask("start")
        except SubmissionError as error:
            self.tell(f"Not yet: {error}")

    def close(self) -> None:
        """Gives back the pair on lease and closes the screen; may be called twice."""
        try:
            if self.mode is not Mode.LOOKING_BACK:
                self.questions.remember_marks()
            self.questions.release()
            if self.past.rows:
                self.past.keep_note()
        finally:  # even if the store takes nothing any more
            self.questions.drop()
            self.past.clear()
            self.screen.close()
            if self.presses is not None:
                self.presses.close()
