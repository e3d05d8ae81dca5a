"""Shows in TensorBoard pairs that were compared, with their answers."""

from __future__ import annotations

import math
from itertools import islice

from drlhp.data.comparison import MU, SIDES
from drlhp.errors import DamagedError
from drlhp.networks.batches import TrainingPair
from drlhp.pictures import CHOSEN_SIDES, gif_of, pair_film
from drlhp.runtime.curves import Curves
from pref_db import PrefDB

LABELS_BETWEEN = 100  # labels from one pair to the next
FRAMES_PER_SECOND = 15  # at most
NAME = "labels/newest_pair"
# By mu. Nothing else is said: labellers, who may look at TensorBoard, are not to know what others think of a pair.
ANSWERS = {MU[choice]: side for choice, side in SIDES.items() if choice in MU}
CAPTIONS = {"left": "left is better", "right": "right is better", "equal": "equally good"}


class Gallery:
    """Films the newest pair after every hundred labels, if its clips can be shown without drawing them first."""

    def __init__(self, db: PrefDB, curves: Curves) -> None:
        self._db, self._curves = db, curves
        self._due_at = 1

    def show(self, pairs: dict[int, TrainingPair], n_labels: int) -> None:
        """Films the newest of the labels in the loss, by the answer's sequence number, if that is due."""
        if n_labels < self._due_at or not pairs:
            return
        self._due_at = n_labels + LABELS_BETWEEN
        label = pairs[max(pairs)].label
        try:
            segments = [self._db.segment(segment_id) for segment_id in (label.a, label.b)]
            if not all(one.is_drawn and (one.is_pixels or one.view is not None) for one in segments):
                return
            left, right = (segment.frames() for segment in segments)
        except DamagedError:  # the trainer has read what it learns from; the clip for people is of no use to it
            return
        assert label.mu is not None
        side, fps = ANSWERS[label.mu], segments[0].fps
        stride = math.ceil(fps / FRAMES_PER_SECOND)
        film = pair_film(left, right, CHOSEN_SIDES[side], caption=f"Label {n_labels}: {CAPTIONS[side]}")
        self._curves.add_film(NAME, gif_of(islice(film, 0, None, stride), fps / stride, quickly=True), n_labels)
