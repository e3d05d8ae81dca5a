"""The benchmark's own arithmetic, and that one measurement prints what the benchmark reads."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ROOT
from benchmarks.speed import bench
from benchmarks.speed.actors_model import Parts, replay
from tests.support.commands import DEADLINE
from tests.support.preloaded import run_captured


def test_the_emulator_is_measured() -> None:
    command = [sys.executable, "-m", "benchmarks.speed.measure", "emulator", "--seconds", "0.2"]
    result = run_captured(command, DEADLINE, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    reading = json.loads(result.stdout.strip().split("\n")[-1])
    assert reading["name"] == "emulator" and reading["unit"] == "agent steps/s"
    assert reading["n_envs"] == 16 and reading["value"] > 0 and reading["seconds"] >= 0.2


def test_a_whole_run_is_measured() -> None:
    command = [sys.executable, "-m", "benchmarks.speed.measure", "demo", "--million_timesteps", "0.001"]
    result = run_captured(command, DEADLINE, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    reading = json.loads(result.stdout.strip().split("\n")[-1])
    assert (reading["name"], reading["unit"]) == ("demo", "s")
    assert reading["agent_steps"] >= 1000 and reading["value"] > 0
    assert reading["seconds"] == round(reading["value"], 2)


@pytest.mark.parametrize(
    "line",
    [("circus", "nowhere", "--beside", "nowhere"), ("evidence", "record", "a", "b"), ("passes", "nowhere")],
)
def test_a_run_that_is_not_there_is_said_in_a_sentence(line: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"benchmarks.learning.{line[0]}", *line[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = run_captured(command, DEADLINE, cwd=tmp_path, env=environment)
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"{line[0]}.py: ")


def test_objects_that_networks_never_see_are_told_from_what_moves() -> None:
    command = [sys.executable, "-m", "benchmarks.learning.flicker", "pacman", "pong", "--steps", "150"]
    result = run_captured(command, DEADLINE, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    (first, hidden), (last, none) = (line.split() for line in result.stdout.splitlines())
    assert (first, last, none) == ("pacman", "pong", "0.0%") and float(hidden.rstrip("%")) > 10


def test_eight_people_are_never_asked_about_the_same_pair() -> None:
    command = [sys.executable, "-m", "benchmarks.speed.labelling", "--quick", "--only", "people"]
    result = run_captured(command, DEADLINE, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    people = json.loads((ROOT / "runs" / "labelling.json").read_text())["people"]
    assert (people["comparisons"], people["answers"], people["double_asked"]) == (40, 40, 0)


def test_bounds_add_the_time_of_the_parts() -> None:
    medians = {"emulator": 1000.0, "policy_forward": 500.0, "policy_update_ppo": 1000.0, "true_reward_ppo": 1.0}
    medians |= {"policy_update_a2c": 1000.0, "true_reward_a2c": 1.0, "preferences_a2c": 1.0}
    assert bench.bounds(medians)["true_reward_a2c"] == pytest.approx(
        1000 / 4.4
    )  # 1, 2 and 1 ms for a step, acting 6 times in 5
    assert bench.bounds(medians)["true_reward_ppo"] == pytest.approx(1000 / (7 + 2 / 128))  # four passes of the update
    assert "preferences_a2c" not in bench.bounds(medians)  # the predictor was not measured
    medians |= {"predictor_forward_a2c": 2000.0, "predictor_update": 50.0}
    # 0.5 ms for a step, and 20 ms for each of 0.02 labels
    assert bench.bounds(medians)["preferences_a2c"] == pytest.approx(1000 / 5.3)
    measurements = {name: {"median": median} for name, median in medians.items()}
    row = dict(zip(bench.SHARES_HEAD, bench.shares(measurements)[0], strict=True))
    assert row["acting"] == "55%" and not row["predicting rewards"]


def test_table_compares_runs_with_their_bound_and_with_the_other_implementation() -> None:
    medians = {"emulator": 1000.0, "policy_forward": 500.0, "policy_update_a2c": 1000.0, "true_reward_a2c": 200.0}
    medians["sb3_a2c"] = 125.0
    about = {"unit": "agent steps/s", "readings": [{"value": 1.0}]}
    measurements: dict[str, Any] = {
        name: {"median": value, "lowest": value, "highest": value, **about} for name, value in medians.items()
    }
    measurements["true_reward_a2c"]["readings"] = [{"value": 200.0}, {"value": 200.0}, {"value": 400.0}]
    measurements["sb3_a2c"]["readings"] = [{"value": 50.0}, {"value": 125.0}, {"value": 200.0}]
    rows = {row[0]: dict(zip(bench.HEAD, row, strict=True)) for row in bench.table(measurements)}
    assert rows["Run: A2C on true rewards"]["share of the bound"] == "88% of 227"
    assert rows["Stable-Baselines3 A2C"]["ours / theirs"] == "2.0", "by round: 4, 1.6, 2"
    assert not rows["Emulator alone"]["share of the bound"]


def test_a_replayed_update_adds_its_parts() -> None:
    """An update of an actor is 100 steps: 1 s of acting, 0.1 s of learning, and 0.5 s on the link for its 50 bytes."""
    parts = Parts(10, 10, [1.0], 0.0, 0.0, call=0.0, unpack=0.0, update=0.001, bytes_up=0.5, bytes_weights=0)
    one, many = replay(parts, 1, link=100.0), replay(parts, 100, link=100.0)
    assert one.steps_per_second == pytest.approx(100 / 1.6) and one.learner_busy == pytest.approx(0.1 / 1.6)
    assert many.steps_per_second == pytest.approx(10_000 / (1 + 50 + 10)), "the link carries one after another"
    assert many.up_per_second == pytest.approx(5000 / 61)
    assert replay(parts, 1, link=100.0, faster=10).steps_per_second == pytest.approx(100 / 1.51)
