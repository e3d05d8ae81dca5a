"""`--track` sends the curves, the settings and the command to wandb and MLflow, here to their files."""

from __future__ import annotations

import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import trackers
from commands import tracking as tracking_module
from commands.report.model import scalars
from commands.run_folder import read_run_id
from commands.trackers import Track
from commands.tracking import Tracking
from drlhp.runtime.curves import Curves
from tests.support.commands import DOT, SYNC, TINY, UNEVALUATED, here, refused

# With this seed some of the few labels are held out.
PREFERENCES = (
    *("train_policy_with_preferences", DOT, "--synthetic_prefs", *TINY, SYNC, "--log_interval", "2", "--seed", "1"),
    *("--million_timesteps", "0.0002", "--eval_episodes", "1"),
)
REWARDS = ("train_policy_with_original_rewards", DOT, SYNC, "--n_envs", "2", *UNEVALUATED)
LONGER = ("--million_timesteps", "0.0003", *UNEVALUATED)
WANDB_HEADER, BLOCK, PIECE = 7, 2**15, struct.Struct("<IHB")  # of its files, which are logs like LevelDB's


@pytest.fixture(autouse=True)
def no_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is logged in anywhere, or leaves this machine."""
    for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_DIR", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture
def mlflow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which MLflow keeps all."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    return tmp_path / "mlruns"


def records(folder: Path) -> Iterator[Any]:
    """The records of the offline files of wandb in a run folder, oldest file first."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # it is made when imported

    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        data, at, whole = path.read_bytes(), WANDB_HEADER, b""
        while at + PIECE.size <= len(data):
            if BLOCK - at % BLOCK < PIECE.size:  # too little room for a piece is left empty
                at += BLOCK - at % BLOCK
                continue
            _, length, kind = PIECE.unpack_from(data, at)
            whole += data[at + PIECE.size : at + PIECE.size + length]
            at += PIECE.size + length
            if kind in (1, 4):  # a whole record, or its last piece
                record = Record()
                record.ParseFromString(whole)
                yield record
                whole = b""


def wandb_curves(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """The curves in the offline files of wandb: their values, each with what it is counted in, as JSON."""
    curves: dict[str, list[tuple[str, str]]] = {}
    for record in records(folder):
        row = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        for name in row:
            if "/" in name:
                axis = trackers.AXES.get(name.split("/")[0], trackers.STEPS)
                curves.setdefault(name, []).append((row[axis], row[name]))
    return curves


def process_of_wandb() -> subprocess.Popen[bytes]:
    """The process in which wandb writes or sends; one that is killed has to be waited for here."""
    from wandb.sdk import wandb_setup

    process: subprocess.Popen[bytes] = wandb_setup.singleton().assert_service()._proc._process  # type: ignore
    return process


def tensorboard_points(folder: Path) -> set[tuple[str, int, float]]:
    """Every point of TensorBoard's curves."""
    every = [scalars(part) for part in (folder / "events").iterdir()]
    return {
        (name, int(s), float(v))
        for part in every
        for name, points in part.items()
        for s, v in zip(*points, strict=True)
    }


def test_wandb_gets_tensorboards_curves_the_settings_and_the_command(tmp_path: Path) -> None:
    done = here(tmp_path, *PREFERENCES, "--run_name", "dot", "--track", "wandb")
    folder = tmp_path / "dot"
    assert done.stdout.count("Tracked by wandb: `wandb sync ") == 1 and "no longer" not in done.stdout
    curves = wandb_curves(folder)
    sent = {(name, int(step), float(value)) for name, points in curves.items() for step, value in points}
    assert sent == tensorboard_points(folder)
    assert {"policy/entropy", "reward_predictor/labels", "evaluation/sampled_mean"} <= curves.keys()
    config = {item.key: item.value_json for record in records(folder) for item in record.config.update}
    assert config["n_envs"] == "4" and config["env_id"] == f'"{DOT}"' and sys.argv[0] in config["command"]
    ids = {record.run.run_id for record in records(folder) if record.run.run_id}
    here(tmp_path, "--resume", str(folder), *LONGER)
    assert {record.run.run_id for record in records(folder) if record.run.run_id} == ids == {read_run_id(folder)}
    entropy = wandb_curves(folder)["policy/entropy"]
    assert (
        len(entropy) > len(curves["policy/entropy"])
        and entropy[: len(curves["policy/entropy"])] == curves["policy/entropy"]
    )


def test_a_resumed_run_goes_on_in_its_run_of_mlflow(tmp_path: Path, mlflow_store: Path) -> None:
    import mlflow

    words = ("--log_interval", "2", "--million_timesteps", "0.0005")
    here(tmp_path, *REWARDS, *words, "--run_name", "dot", "--track", "mlflow")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("drlhp")
    assert experiment is not None
    (first,) = client.search_runs([experiment.experiment_id])
    assert first.info.run_name == "dot" and first.info.status == "FINISHED"
    assert first.data.params["n_envs"] == "2" and sys.argv[0] in first.data.tags["command"]
    before = max(point.step for point in client.get_metric_history(first.info.run_id, "policy/entropy"))
    here(tmp_path, "--resume", str(tmp_path / "dot"), "--million_timesteps", "0.001")
    (run,) = client.search_runs([experiment.experiment_id])
    points = [point for name in run.data.metrics for point in client.get_metric_history(run.info.run_id, name)]
    assert {(point.key, point.step, point.value) for point in points} >= tensorboard_points(tmp_path / "dot")
    steps = [point.step for point in points if point.key == "policy/entropy"]
    assert len(steps) == len(set(steps)), "what was sent before is not sent again"
    assert max(steps) > before, "what came after is"


def test_a_tracker_that_fails_is_left_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    done = here(tmp_path, *REWARDS, "--million_timesteps", "0.0002", "--run_name", "dot", "--track", "mlflow")
    assert done.stdout.count("no longer tracked by mlflow") == 1 and "Finished." in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_that_fails_later_is_named_once(name: Track, tmp_path: Path, mlflow_store: Path) -> None:
    said: list[str] = []
    tracking = Tracking(name, tmp_path, "a", {}, said.append)
    curves = Curves(tmp_path, "a2c")
    curves.add({"policy/entropy": 1.0}, 1)
    curves.close()
    while not said:
        tracking._thread.join(0.05)
    if name == "mlflow":
        shutil.rmtree(mlflow_store)
    else:
        process = process_of_wandb()
        process.kill()
        process.wait()
    tracking.close("finished")
    tracking.close("finished")
    assert len(said) == 2 and said[0].startswith(f"Tracked by {name}: ") and "no longer tracked" in said[1]


def test_a_tracker_that_hangs_does_not_keep_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking_module, "END_SECONDS", 0.1)
    said: list[str] = []
    tracking = Tracking("wandb", tmp_path, "a", {}, said.append)
    while not said:
        tracking._thread.join(0.05)
    process = process_of_wandb()
    process.send_signal(signal.SIGSTOP)
    try:
        tracking.close("finished")
    finally:
        process.kill()
        process.wait()
    tracking._thread.join()
    assert len(said) == 2 and "has not answered" in said[1], "what fails after that is not said"


def test_what_a_tracker_lacks_is_said_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///no.db")  # for which this package needs another
    assert "install the whole package mlflow" in refused(tmp_path / "runs", *REWARDS, "--track", "mlflow")
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    assert "pip install wandb" in refused(tmp_path / "runs", *REWARDS, "--track", "wandb")
    assert not (tmp_path / "runs").exists()
