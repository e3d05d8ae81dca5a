"""The attacks of benchmarks/chaos: a few cases of the cheap ones, and that they notice what they are there for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.chaos import __main__ as chaos
from benchmarks.chaos import cases, command_lines, routes, server_kills, signals, stored_files
from benchmarks.chaos.cases import Limits, Notes, Outcome, all_ended, carry_out, processes
from benchmarks.chaos.commands import Command, Ended, complaint
from benchmarks.chaos.runs import check_end, check_labels
from benchmarks.chaos.stored_files import StoredFiles
from tests.support.labelling import make_store

pytestmark = pytest.mark.slow  # most attacks start processes, and take any failure for a finding


def seen(outcome: Outcome) -> list[str]:
    return [f"{finding.did}: {finding.seen}" for finding in outcome.findings]


# -- the attacks find nothing ------------------------------------------------------------------------------------------


@pytest.fixture
def few_lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(command_lines, "LINES", 15)
    monkeypatch.setattr(routes, "REQUESTS", 60)
    yield


@pytest.mark.parametrize("name", ["parser", "routes"])
def test_odd_words_and_odd_requests_are_refused_in_a_sentence(name: chaos.Name, few_lines: None) -> None:
    outcome = chaos.attack(name, seed=0, case=0)
    assert seen(outcome) == []
    assert outcome.counts["lines" if name == "parser" else "requests"] in (15, 60)


def test_answers_through_a_kill_of_the_server_are_stored_once() -> None:
    outcome = carry_out(
        "kills", lambda number, notes: server_kills.server_kills(number, notes, n=20), 0, [0], Limits(120)
    )
    assert seen(outcome) == []
    assert (outcome.counts["answers"], outcome.counts["kills of the server"]) == (20, 1)


def test_a_run_goes_on_after_stops_and_a_kill() -> None:
    outcome = carry_out("signals", lambda number, notes: signals.signals(number, notes, kills=1), 0, [1], Limits(600))
    assert seen(outcome) == []
    assert (outcome.counts["blows"], outcome.counts["runs to the end"]) == (signals.STOPS + 1, 1)


@pytest.mark.slow
def test_a_full_disk_is_told_in_a_sentence() -> None:
    outcome = chaos.attack("full_disks", seed=0, case=8)  # `label` without any space
    assert seen(outcome) == [] and outcome.counts["cases"] == 1


@pytest.mark.slow
def test_damaged_files_are_told_in_a_sentence() -> None:
    with StoredFiles.of_a_run(places=2) as attack:
        outcome = carry_out("stored_files", attack, 0, range(0, attack.n_cases, 3), Limits(240))
    assert seen(outcome) == [] and outcome.counts["damaged files"] == len(range(0, attack.n_cases, 3))


def test_the_report_names_seed_machine_and_findings(
    tmp_path: Path, few_lines: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos, "ROOT", tmp_path)
    with pytest.raises(SystemExit) as left:
        chaos.chaos(("routes",), seed=5, quick=True)
    record = json.loads((tmp_path / "runs" / "chaos.json").read_text())
    assert left.value.code == 0 and record["seed"] == 5 and record["machine"]["cores"] > 0
    found = record["attacks"]["routes"]
    assert found["findings"] == [] and found["counts"]["requests"] == 60 * found["counts"]["cases"]


def test_the_attacks_are_as_many_as_are_promised() -> None:
    """Of the cases that need no run made beforehand; a blow is a kill, or a stop with its continuation."""
    numbers = {}
    for name in ("routes", "parser", "real_lines", "server_kills", "signals"):
        with chaos.ATTACKS[name].prepare() as prepared:
            numbers[name] = prepared.n
    assert numbers["routes"] * routes.REQUESTS >= 10_000 and numbers["parser"] * command_lines.LINES >= 10_000
    assert numbers["real_lines"] >= 300 and numbers["server_kills"] * server_kills.ANSWERS >= 1600
    assert numbers["signals"] * signals.BLOWS >= 200 and stored_files.PLACES >= 100


def test_a_preloaded_command_is_the_real_one(tmp_path: Path) -> None:
    words = ("export", "nowhere", "--output", "new")
    ended = [Command(*words, cwd=tmp_path, preloaded=preloaded).ended(300) for preloaded in (True, False)]
    assert ended[0] == ended[1] and ended[0].status == 2 and ended[0].output.startswith("run.py: nowhere")
    killed = Command(*words, cwd=tmp_path, preloaded=True)
    killed.process.kill()
    assert killed.ended(300).status in (-signal.SIGKILL, 2)


# -- what an attack notices --------------------------------------------------------------------------------------------


def hang(number: int, notes: Notes) -> None:
    notes.count("begun")
    time.sleep(3600)


def leave_a_process(number: int, notes: Notes) -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    assert list(processes().values()) and all_ended(seconds=0)


def die(number: int, notes: Notes) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def print_a_traceback(number: int, notes: Notes) -> None:
    print("Traceback (most recent call last):", file=sys.stderr, flush=True)


def fail(number: int, notes: Notes) -> None:
    raise ValueError("by mistake")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (hang, "no end in time"),
        (leave_a_process, "processes left: ['python"),
        (die, "the process ended with -9"),
        (print_a_traceback, "Traceback"),
        (fail, "ValueError: by mistake"),
    ],
)
def test_a_case_that_goes_wrong_is_found_and_ended(body: chaos.Body, words: str) -> None:
    outcome = carry_out("wrong", body, 0, [7], Limits(2 if body is hang else 60))
    (finding,) = outcome.findings
    assert (finding.attack, finding.seed, finding.case) == ("wrong", 0, 7) and words in finding.seen


def test_a_case_tells_what_it_counts_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "TELL_SECONDS", 0)
    told: list[Outcome] = []
    carry_out("slow", hang, 0, [0], Limits(2), told.append)
    assert (0, 1) in [(so_far.counts["cases"], so_far.counts["begun"]) for so_far in told]


def test_what_the_time_is_too_short_for_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for limits, name in ((Limits(60, last_begin=0), cases.NOT_BEGUN), (Limits(60, end=0), cases.CUT_SHORT)):
        outcome = carry_out("short", hang, 0, range(3), limits)
        assert (outcome.counts[name], outcome.counts["cases"], outcome.findings) == (3, 0, [])
    monkeypatch.setattr(chaos, "ROOT", tmp_path)
    with pytest.raises(SystemExit) as left:
        chaos.chaos(("routes",), quick=True, minutes=0)
    assert left.value.code == 1 and "too short for 2 cases" in capsys.readouterr().out


def test_the_same_seed_draws_the_same() -> None:
    def draw(number: int, notes: Notes) -> None:
        notes.count(f"{number}: {command_lines.line(notes.rng)}")

    first, again = (carry_out("a", draw, 3, range(4), Limits(60)).counts for _ in range(2))
    assert first == again and len(first) == 5
    assert carry_out("a", draw, 4, range(4), Limits(60)).counts != first
    assert carry_out("a", draw, 3, [2], Limits(60)).counts.keys() <= first.keys(), "one case by itself"


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Ended(0, "Finished.\n"), ""),
        (Ended(2, "run.py: --seed must be a number.\n"), ""),
        (Ended(2, "run.py: ValueError\n"), "without a sentence"),
        (Ended(1, ""), "without a sentence"),
        (Ended(None, "Training"), "hang"),
        (Ended(-11, ""), "exit status -11"),
        (Ended(0, "Traceback (most recent call last):\n  ..."), "traceback"),
    ],
)
def test_a_command_ends_well_or_says_why_not(ended: Ended, words: str) -> None:
    assert words in complaint(ended) and bool(words) == bool(complaint(ended))


def test_labels_that_are_lost_or_there_twice_are_found(tmp_path: Path) -> None:
    make_store(tmp_path, 1)
    notes = Notes(tmp_path / "notes", None, tmp_path)  # type: ignore[arg-type]
    check_labels([("an", "answer", "left")], tmp_path, notes, "something")
    assert "1 of 1 labels lost" in (tmp_path / "notes").read_text()


def test_a_run_that_used_other_labels_than_it_stored_is_found(tmp_path: Path) -> None:
    make_store(tmp_path, 1)
    notes = Notes(tmp_path / "notes", None, tmp_path)  # type: ignore[arg-type]
    (tmp_path / "progress.csv").write_text("steps\n1\n2\n")
    check_end("labels used   0", tmp_path, notes, "a run")
    assert not notes.path.exists()
    check_end("labels used   1", tmp_path, notes, "a run")
    assert "labels used 1, stored 0" in notes.path.read_text()
    (tmp_path / "progress.csv").write_text("steps\n2\n1\n")
    check_end("labels used   0", tmp_path, notes, "a run")
    assert "go back" in notes.path.read_text()
