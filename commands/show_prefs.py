"""The answers that a run learned from, in a window or as a video and a table (`run.py show_prefs`)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from commands.watch import MAX_FILMED_PAIRS, PAIR_HOLD_SECONDS, REFRESH_SECONDS, video_path
from drlhp.cli.arguments import read_arguments
from drlhp.cli.runs import find_run
from drlhp.data.comparison import Side, side_of
from drlhp.errors import UserError
from drlhp.pictures import CHOSEN_SIDES, pair_film, write_video
from drlhp.runtime.pulse import here
from drlhp.screens.keys import WORDS
from drlhp.screens.window import AnswerWindow
from pref_db import AnswerRow, PrefDB, store_path

ANSWER_WORDS = {
    side: f"{word.lower()} better" if side in ("left", "right") else word.lower() for side, word in WORDS.items()
}


@dataclass(frozen=True)
class ShowPrefsConfig:
    """Steps through a run's comparisons and their answers."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run folder, or its prefs.db."""
    output: Path | None = None
    """Write a video (.mp4 or .gif) instead of opening a window; if it exists, the new one is numbered."""


def show_prefs_command(arguments: list[str]) -> None:
    """`run.py show_prefs`: shows answered pairs in a window or, without one, in a video and a table.

    Raises:
        UserError, PrefDBError, OSError: there is nothing to show, or it cannot be read or written.
    """
    config = read_arguments(ShowPrefsConfig, "show_prefs", arguments, needs={"run": "RUN"}, example="RUN")
    path = store_path(find_run(config.run))
    with contextlib.closing(PrefDB.open(path, read_only=True)) as db:
        answers = [Answer(i, row, db) for i, row in enumerate(db.answers(), start=1)]
        if not answers:
            raise UserError(f"{path} holds no answers yet; gather some with gather_initial_prefs.")
        visible = answers_with_pictures(answers)
        output = video_path(config.output, path.parent / "show_prefs.mp4") if visible else None
        if visible and output is None:
            here().begin("")  # the window shows them from now on
            step_through(visible, len(answers), f"Answers about {db.env_id}")
            return
        print_table(answers)
        if output is not None:
            newest = visible[-MAX_FILMED_PAIRS:]
            written = write_video(output, film_of_pairs(newest, len(answers)), newest[0].fps, keep=True)
            print(f"Video of the newest {len(newest)}: {written}", flush=True)
        else:
            print(f"The segments of {db.env_id} hold numbers and no clips, so there is nothing more to show.")


@dataclass(frozen=True)
class Answer:
    """A stored answer; it reads its segments on demand and does not keep them, because there may be thousands."""

    number: int
    row: AnswerRow
    db: PrefDB

    @property
    def shown(self) -> tuple[str, str]:
        """Returns the ids of the segments on the left and on the right."""
        return (self.row.b, self.row.a) if self.row.flip else (self.row.a, self.row.b)

    @property
    def side(self) -> Side:
        """Returns the answer as the labeller saw it."""
        return side_of(self.row.choice, flip=self.row.flip)

    @property
    def time(self) -> str:
        return f"{datetime.fromtimestamp(self.row.answered_at):%Y-%m-%d %H:%M}"

    @property
    def fps(self) -> float:
        return self.db.stored_segment(self.row.a).fps

    def caption(self, n_answers: int) -> str:
        words = ANSWER_WORDS[self.side]
        return f"{self.number}/{n_answers}  answer: {words}, by {self.row.teacher}, {self.time}"

    def clips(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pictures of the left and the right segment, (T, H, W, 3) uint8 each."""
        left, right = (self.db.segment(segment_id).frames() for segment_id in self.shown)
        return left, right

    def true_rewards(self) -> tuple[float, float]:
        """Returns the sums over the left and the right segment."""
        left, right = (self.db.stored_segment(segment_id).decode().rewards.sum() for segment_id in self.shown)
        return float(left), float(right)

    def has_clips(self) -> bool:
        """Returns whether both segments have pictures."""
        segments = (self.db.segment(segment_id) for segment_id in self.shown)
        return all(segment.is_pixels or segment.view is not None for segment in segments)


def answers_with_pictures(answers: Sequence[Answer]) -> Sequence[Answer]:
    """Returns the answers that can be shown: all if observations are pictures, else those with clips for people."""
    if answers[0].db.segment(answers[0].row.a).is_pixels:
        return answers
    return [answer for answer in answers if answer.has_clips()]


def step_through(answers: Sequence[Answer], n_answers: int, title: str) -> None:
    """Shows the answers in a window, forwards and backwards by key, until the window is closed."""
    window = AnswerWindow(title)
    try:
        index, shown = 0, -1
        while True:
            if index != shown:
                answer, shown = answers[index], index
                window.show(*answer.clips(), answer.fps, answer.caption(n_answers), answer.side)
            for key in window.tick():
                if key == "close":
                    return
                index = min(max(index + (1 if key == "next" else -1), 0), len(answers) - 1)
            time.sleep(REFRESH_SECONDS)
    finally:
        window.close()


def film_of_pairs(answers: Sequence[Answer], n_answers: int) -> Iterator[np.ndarray]:
    """Yields frames that show each pair once with its answer; the shorter clip holds its last frame."""
    for answer in answers:
        left, right = answer.clips()
        n_held = round(PAIR_HOLD_SECONDS * answer.fps)
        framed, caption = CHOSEN_SIDES[answer.side], answer.caption(n_answers)
        yield from pair_film(left, right, framed, caption=caption, n_held=n_held)


def print_table(answers: Sequence[Answer]) -> None:
    """Prints a line for each answer, with the true rewards, which labellers did not see."""
    width = max(12, *(len(answer.row.teacher) for answer in answers))
    print(f"{'number':>6}  {'teacher':<{width}} {'answer':<12} {'left reward':>12} {'right reward':>12}  time")
    for answer in answers:
        left, right = answer.true_rewards()
        words = ANSWER_WORDS[answer.side]
        print(f"{answer.number:>6}  {answer.row.teacher:<{width}} {words:<12} {left:>12g} {right:>12g}  {answer.time}")
