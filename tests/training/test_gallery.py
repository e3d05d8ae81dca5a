"""The gallery of compared pairs: which pairs TensorBoard shows, when, and with which answer."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drlhp.data.comparison import Choice, Comparison
from drlhp.data.segment import Segment
from drlhp.data.views import encode_frames, encode_view
from drlhp.pictures import BORDER, CHOSEN, PAIR_MARGIN, PANE_WIDTH, pair_picture
from drlhp.runtime.channels import Channels
from drlhp.runtime.curves import Curves
from drlhp.training.gallery import LABELS_BETWEEN, NAME, Gallery
from drlhp.training.labels import LabelSet
from pref_db import PrefDB
from reward_predictor import PredictorConfig
from tests.support.commands import DOT, SYNC, TINY, UNEVALUATED, here
from tests.support.ring import ENV_ID, LENGTH

BLUE, RED = (30, 60, 210), (200, 30, 40)


def pictures(seed: int, colour: tuple[int, int, int], fps: float = 10.0) -> Segment:
    """A segment that people see as a bar of one colour that grows."""
    rng = np.random.default_rng(seed)
    view = np.zeros((LENGTH, 84, 84, 3), np.uint8)
    for t in range(LENGTH):
        view[t, :, : 10 * (t + 1)] = colour
    frames = rng.integers(0, 255, (LENGTH + 3, 84, 84)).astype(np.uint8)
    actions, rewards = np.zeros(LENGTH, np.int64), np.zeros(LENGTH, np.float32)
    return Segment(ENV_ID, frames, actions, rewards, 4, 0, seed, fps, view=encode_frames(view))


def pair(seed: int) -> Comparison:
    return Comparison(pictures(2 * seed, RED), pictures(2 * seed + 1, BLUE), flip=False)


class Shown:
    """A gallery on a store of its own, and what TensorBoard has of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.db = folder, PrefDB.create(folder / "prefs.db", ENV_ID, LENGTH)
        bell = Channels.create(synchronous=True, take_turns=False).bell
        assert bell is not None
        self.bell, self.labels = bell, LabelSet(self.db, bell, PredictorConfig(), np.random.default_rng(0))
        self.curves = Curves(folder, "reward_predictor")
        self.gallery = Gallery(self.db, self.curves)

    def answer(self, comparison: Comparison, choice: Choice) -> None:
        self.db.add_answer(comparison, choice, teacher="Ann")
        self.bell.set()
        self.labels.receive()

    def show(self, n_labels: int | None = None) -> None:
        self.gallery.show(self.labels.pairs, self.labels.n_stored if n_labels is None else n_labels)

    def read(self) -> list[tuple[int, np.ndarray]]:
        """The steps, and the frames (T, 480, 720, 3) there."""
        self.curves.close()
        folder = self.folder / "events" / "reward_predictor"
        if not folder.is_dir():
            return []
        events = EventAccumulator(str(folder), {"images": 0}).Reload()
        return [(film.step, frames_of(film.encoded_image_string)) for film in events.Images(NAME)]


def frames_of(gif: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(gif)) as picture:
        shown = []
        for i in range(getattr(picture, "n_frames", 1)):
            picture.seek(i)
            shown.append(np.asarray(picture.convert("RGB")))
        return np.stack(shown)


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    return Shown(tmp_path)


@pytest.mark.parametrize(
    ("choice", "framed", "caption"),
    [
        (Choice.A, (0,), "Label 1: left is better"),
        (Choice.B, (1,), "Label 1: right is better"),
        (Choice.EQUAL, (0, 1), "Label 1: equally good"),
    ],
)
def test_both_clips_play_side_by_side_over_the_answer(
    shown: Shown, choice: Choice, framed: tuple[int, ...], caption: str
) -> None:
    asked = pair(1)
    shown.answer(asked, choice)
    shown.show()
    ((step, frames),) = shown.read()
    assert step == 1 and frames.shape == (LENGTH, 480, 720, 3)
    for frame, left, right in zip(frames, asked.a.frames(), asked.b.frames(), strict=True):
        whole = pair_picture(left, right, framed, caption=caption)
        assert np.abs(frame.astype(int) - whole).mean() < 0.5, "and nothing else is written"
    edges = (PAIR_MARGIN - BORDER // 2 - 1, 2 * PAIR_MARGIN + 2 * PANE_WIDTH + BORDER // 2)
    has_border = [bool(np.abs(frames[0, 240, x].astype(int) - CHOSEN).max() < 9) for x in edges]
    assert has_border == [0 in framed, 1 in framed]


def test_one_pair_is_shown_of_every_hundred_labels_the_newest(shown: Shown) -> None:
    for number in range(4):
        shown.answer(pair(number), Choice.A)
        shown.show(1 + number * (LABELS_BETWEEN // 2))
    found = shown.read()
    assert [step for step, _ in found] == [1, 1 + LABELS_BETWEEN]
    newest = pair(2)
    caption = f"Label {1 + LABELS_BETWEEN}: left is better"
    whole = pair_picture(newest.a.frames()[0], newest.b.frames()[0], (0,), caption=caption)
    assert np.abs(found[1][1][0].astype(int) - whole).mean() < 0.5


def test_an_answer_that_gives_no_label_is_not_shown(shown: Shown) -> None:
    shown.answer(pair(1), Choice.INCOMPARABLE)
    shown.show()
    assert shown.read() == []


def test_clips_of_numbers_and_those_that_must_be_drawn_first_are_not_shown(shown: Shown) -> None:
    vectors = np.zeros((LENGTH, 3), np.float32)
    plain = [replace(pictures(seed, RED), observations=vectors + seed, stack=1, view=None) for seed in (1, 2)]
    shown.answer(Comparison(plain[0], plain[1], flip=False), Choice.A)
    shown.show(1)
    states = encode_view(vectors)
    later = [replace(pictures(seed, RED), observations=vectors + seed, stack=1, view=states) for seed in (3, 4)]
    shown.answer(Comparison(later[0], later[1], flip=False), Choice.A)
    shown.show(1000)
    assert shown.read() == []


def test_a_real_run_shows_pairs_in_tensorboard(tmp_path: Path) -> None:
    words = ("train_policy_with_preferences", DOT, "--synthetic_prefs", "--run_name", "a", *TINY, *UNEVALUATED, SYNC)
    here(tmp_path, *words)
    events = EventAccumulator(str(tmp_path / "a" / "events" / "reward_predictor"), {"images": 0}).Reload()
    (film,) = events.Images(NAME)
    assert film.step == 12 and (film.height, film.width) == (480, 720)
    assert film.encoded_image_string.startswith(b"GIF8")
