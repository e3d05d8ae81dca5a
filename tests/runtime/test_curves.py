"""The TensorBoard curves of a process."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from drlhp.runtime.curves import Curves


def test_a_curve_has_the_means_since_its_last_point(tmp_path: Path) -> None:
    curves = Curves(tmp_path, "a2c")
    for loss in (1.0, 2.0, 6.0):
        curves.count({"loss": loss, "twice": 2 * loss})
    curves.add(curves.means(), 3)
    curves.count({"loss": 5.0})
    assert curves.means() == {"loss": 5.0}, "what was in the last point does not count again"
    curves.add({"loss": 5.0}, 4)
    curves.close()
    events = EventAccumulator(str(tmp_path / "events" / "a2c")).Reload()
    assert [(point.step, point.value) for point in events.Scalars("loss")] == [(3, 3.0), (4, 5.0)]
    assert [point.value for point in events.Scalars("twice")] == pytest.approx([6.0])


def test_without_a_point_no_file_is_made(tmp_path: Path) -> None:
    curves = Curves(tmp_path, "a2c")
    curves.count({"loss": 1.0})
    curves.close()
    assert list(tmp_path.iterdir()) == []
