"""Labelling without a trainer: beside a run that goes on, and after it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import label
from gatherers import SyntheticGatherer
from label import LabelConfig, give_task
from label_queue import LabelQueue
from pref_db import PrefDB
from teachers import SyntheticTeacher
from tests.labelling import ENV_ID, STEPS, segment


def test_when_the_run_beside_has_ended_what_it_left_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label, "LOOK_SECONDS", 0.0)
    with contextlib.closing(PrefDB.create(tmp_path / "prefs.db", ENV_ID, STEPS)) as db:
        db.add_segments([segment(0), segment(1)])
        looks = 0

        def run_goes_on() -> bool:
            nonlocal looks
            looks += 1
            assert db.n_answers() == 0, "while it goes on, the run asks"
            if looks == 3:
                db.add_segments([segment(2)])  # its last one
            return looks < 3

        label.label(db, SyntheticGatherer(db, SyntheticTeacher()), LabelConfig("run"), run_goes_on=run_goes_on)
        assert looks == 3 and db.n_answers() == 3


def test_a_store_without_a_task_gets_the_environments(tmp_path: Path) -> None:
    with contextlib.closing(PrefDB.create(tmp_path / "prefs.db", ENV_ID, STEPS)) as db:
        queue = LabelQueue(db)
        give_task(db)
        assert "dot" in (queue.setting("task") or "")
        queue.set_setting("task", "Keep left.")
        give_task(db)
        assert queue.setting("task") == "Keep left."
