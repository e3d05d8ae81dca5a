"""A labeller's own answers, looked at again and changed."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable
from typing import cast

from drlhp.data.comparison import Side
from drlhp.labelling.answer_log import ALL
from drlhp.labelling.answers import HistoryRow
from drlhp.labelling.queue import LabelQueue
from drlhp.screens.keys import PAST_KEYS_LINE, WORDS
from drlhp.screens.playback import Playback


class Past:
    """The answers of one labeller, newest first, of which one is shown; empty while nobody looks at them."""

    def __init__(self, queue: LabelQueue, labeller: str, playback: Playback, tell: Callable[[str], None]) -> None:
        """
        Args:
            playback: the screen's, which holds the flag and the note of the answer that is shown.
            tell: shows the labeller a message.
        """
        self._queue, self._labeller, self._playback, self._tell = queue, labeller, playback, tell
        self.rows: list[HistoryRow] = []
        self._place = -1  # of the row that is shown

    def read(self) -> None:
        """Reads the answers; `older` then returns the newest."""
        self.rows, self._place = self._queue.answers.history(self._labeller, limit=ALL), -1

    def older(self) -> HistoryRow | None:
        """Returns the next older answer, to be shown; None after the oldest."""
        if self._place + 1 >= len(self.rows):
            return None
        self._place += 1
        return self.row

    def clear(self) -> None:
        self.rows, self._place = [], -1

    @property
    def row(self) -> HistoryRow:
        """The answer that is shown."""
        return self.rows[self._place]

    def heading(self) -> str:
        """Returns which answer is shown, for the line under the clips."""
        n = len(self.rows)
        return f"Answer {n - self._place} of {n}, {_ago(time.time() - self.row.answered_at)}: {WORDS[self.row.choice]}"

    def keys_line(self) -> str:
        """Returns what keys do while the answer is shown."""
        oldest = self._place + 1 == len(self.rows)
        return PAST_KEYS_LINE.format("the questions" if oldest else "an older one")

    def change(self, choice: Side) -> bool:
        """Stores another answer in place of the one that is shown; False if that was changed elsewhere meanwhile."""
        flag, note = self._playback.flagged, self._playback.note
        receipt = self._queue.answers.edit(uuid.uuid4().hex, self._labeller, self.row.seq, choice, flag=flag, note=note)
        if receipt is None or receipt.status == "conflict":
            self._tell("That answer was changed elsewhere meanwhile; press G to see what it is now.")
            return False
        self.rows[self._place] = dataclasses.replace(
            self.row,
            seq=receipt.seq,
            choice=choice,
            answered_at=time.time(),
            flag=flag,
            note=note,
        )
        return True

    def keep_note(self) -> bool:
        """Stores the flag and note of the answer that is shown if they were changed; False as of `change`."""
        playback = self._playback
        if playback.writing or (playback.flagged, playback.note) == (self.row.flag, self.row.note):
            return True
        return self.change(cast(Side, self.row.choice))


def _ago(seconds: float) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        n = int(seconds // size)
        if n >= 1:
            return f"{n} {unit}{'s' if n > 1 else ''} ago"
    return "just now"
