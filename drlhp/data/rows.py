"""Statements that write and read the store's rows, and what a row holds of a segment, an answer and a label."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from drlhp.data.comparison import MU, Answer, Choice, Label, is_validation
from drlhp.data.segment import Segment
from drlhp.data.store import Statements
from drlhp.data.views import compress

IF_NEW = " ON CONFLICT (id) DO NOTHING"
SEGMENT_COLUMNS = "id, length, stack, policy_step, seed, fps, layout, arrays, view"
INSERT_SEGMENT = f"INSERT INTO segment ({SEGMENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_COMPARISON = "INSERT INTO comparison (id, segment_a, segment_b) VALUES (?, ?, ?)"
ANSWER_COLUMNS = "client_id, comparison_id, teacher, choice, preferred, shown_left, shown_at, answered_at, supersedes"
INSERT_ANSWER = f"INSERT INTO answer ({ANSWER_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
# What a labeller's page or terminal adds; see drlhp.labelling.answer_log.
LABELLER_COLUMNS = "labeller, lease_token, watched_ms, replays, speed, late, flag, note"
NO_LABELLER = "NULL, NULL, NULL, 0, 1.0, 0, 0, ''"  # the same for a file of schema version 1
INSERT_FULL_ANSWER = f"INSERT INTO answer ({ANSWER_COLUMNS}, {LABELLER_COLUMNS}) VALUES ({', '.join('?' * 17)})"
SELECT_LABEL = """
    SELECT seq, comparison_id, segment_a, segment_b, choice, preferred, supersedes,
        NOT EXISTS (SELECT 1 FROM answer AS newer WHERE newer.supersedes = answer.seq)
    FROM answer JOIN comparison ON comparison.id = comparison_id
"""

# After which answer there are so many effective labels and no more; none if there are fewer since `after`.
SEQ_BEFORE_NEWEST = """
    SELECT seq FROM effective_answer WHERE seq > ? AND seq <= ? AND choice <> 'incomparable'
    ORDER BY seq DESC LIMIT 1 OFFSET ?
"""


def seq_before_newest(db: Any, n: int, after: int) -> int:
    """Returns the seq after which a PrefDB has its n newest labels; `after` if there are no more than n since then."""
    rows = db.read(SEQ_BEFORE_NEWEST, (after, db.horizon.seq, n))
    return rows[0][0] if rows else after


def segment_row(segment: Segment) -> tuple[object, ...]:
    """Returns the values of SEGMENT_COLUMNS; int() and float() because SQLite would store numpy scalars as blobs."""
    # The widest type comes first, so that every array starts at a multiple of its item size.
    arrays = {"actions": segment.actions, "rewards": segment.rewards, "observations": segment.observations}
    layout = json.dumps({name: [array.dtype.str, array.shape] for name, array in arrays.items()})
    data = compress(b"".join(array.tobytes() for array in arrays.values()))
    numbers = (len(segment), int(segment.stack), int(segment.policy_step), int(segment.seed))
    return (segment.id, *numbers, float(segment.fps), layout, data, segment.view)


def answer_row(answer: Answer) -> tuple[object, ...]:
    """Returns the values of ANSWER_COLUMNS and LABELLER_COLUMNS for an answer that no lease of this store led to."""
    left = answer.b if answer.flip else answer.a
    about = (answer.client_id, answer.comparison_id, answer.teacher, *answer.choice.columns(answer.a, answer.b), left)
    labeller = (answer.labeller, None, answer.watched_ms, answer.replays, answer.speed)
    return (*about, answer.shown_at, answer.answered_at, None, *labeller, answer.late, answer.flag, answer.note)


def label_of(row: tuple) -> Label:
    """Returns the label of a row of SELECT_LABEL."""
    seq, comparison_id, a, b, stored, preferred, supersedes, _ = row
    choice = Choice.of_columns(stored, preferred, a)
    mu = None if choice is None else MU.get(choice)
    return Label(seq, comparison_id, a, b, mu, is_validation(comparison_id), supersedes)


def insert_answer(db: Statements, insert: str, values: Sequence[Any]) -> int:
    """Stores an answer by INSERT_ANSWER or INSERT_FULL_ANSWER; returns its seq."""
    if isinstance(db, sqlite3.Connection):  # Red Hat 9 has a SQLite that does not know RETURNING
        seq = db.execute(insert, values).lastrowid
    else:
        (seq,) = db.execute(f"{insert} RETURNING seq", values).fetchone()
    assert seq is not None, "an answer was inserted"
    return int(seq)
