"""The TensorBoard curves of a process."""

import contextlib
import json
import threading
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from drlhp.runtime.curves import Curves
from tests.support.commands import small_files


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


def test_the_command_and_the_settings_stand_beside_the_curves(tmp_path: Path) -> None:
    settings = {"mode": "train", "resume": None, "policy": {"lr": 0.5, "n_envs": 4, "old": [1]}}
    record = {"command": ["run.py", "a mode"], "config": settings, "git_revision": "abc"}
    (tmp_path / "config.json").write_text(json.dumps(record))
    curves = Curves(tmp_path, "a2c")
    curves.add({"loss": 5.0}, 4)
    curves.close()
    events = EventAccumulator(str(tmp_path / "events" / "a2c")).Reload()
    assert events.Tags()["scalars"] == ["loss"]
    (text,) = events.Tensors("run/command/text_summary")
    assert b"    run.py 'a mode'" in text.tensor_proto.string_val[0]
    started = plugin_data_pb2.HParamsPluginData()
    started.ParseFromString(events.summary_metadata["_hparams_/session_start_info"].plugin_data.content)
    sent = started.session_start_info.hparams
    assert sent["lr"].number_value == 0.5 and sent["old"].string_value == "[1]" and "resume" not in sent


@pytest.mark.parametrize(
    "text", [None, "{", "[]", "{}", '{"command": 1, "config": {}}', '{"command": [], "config": 1}']
)
def test_curves_need_no_settings(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    curves = Curves(tmp_path, "a2c")
    curves.add({"loss": 5.0}, 4)
    curves.close()
    assert [point.value for point in EventAccumulator(str(tmp_path / "events" / "a2c")).Reload().Scalars("loss")] == [5]


def test_a_full_disk_prints_no_traceback_of_tensorboards_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # as in a program, not in a test
    curves = Curves(tmp_path, "a2c")
    curves.add({"loss": 5.0}, 4)
    with small_files(0), contextlib.suppress(OSError):
        curves.add({"loss": 6.0}, 5)
        curves.close()
    assert capsys.readouterr().err == ""
