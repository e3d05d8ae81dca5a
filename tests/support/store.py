"""Gives scripted answers, and takes back answers that were stored without a lease."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

from drlhp.data.comparison import Choice, Comparison, Label
from drlhp.data.rows import INSERT_ANSWER, SELECT_LABEL, label_of
from pref_db import PrefDB


def undo_last(db: PrefDB, teacher: str) -> tuple[Label, Comparison] | None:
    """Takes back the teacher's newest effective answer; returns None if there is none.

    Returns the retraction (mu None, retracts = its seq) and the comparison as it was shown, to ask again.
    """
    with db.transaction() as cursor:
        newest = "SELECT seq, comparison_id, shown_left FROM effective_answer WHERE teacher = ?"
        rows = db.read(f"{newest} ORDER BY seq DESC LIMIT 1", (teacher,))
        if not rows:
            return None
        undone, comparison_id, left = rows[0]
        client_id = uuid.uuid4().hex
        values = (client_id, comparison_id, teacher, "retracted", None, left)
        cursor.execute(INSERT_ANSWER, (*values, None, time.time(), undone))
        label = label_of(db.read(f"{SELECT_LABEL} WHERE client_id = ?", (client_id,))[0])
        return label, Comparison(db.segment(label.a), db.segment(label.b), flip=left != label.a)


class Script:
    """Answers from a list, in the order of asking."""

    name = "script"

    def __init__(self, choices: Iterable[Choice]) -> None:
        self._choices = iter(choices)

    def poll(self, comparison: Comparison) -> Choice | None:
        return next(self._choices, None)
