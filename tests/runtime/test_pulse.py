"""What takes long is said, once and again after twice the time; what goes on is not."""

from __future__ import annotations

import queue
import threading
import time

import pytest

import commands
from drlhp.runtime import pulse
from drlhp.runtime.pulse import Patience, Pulse, doing, here
from envs import EnvError, check_env
from tests.support.faulty import Cycle

PATIENCE = 60.0


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> queue.Queue[str]:
    monkeypatch.setattr(pulse, "SLOW_SECONDS", 0.1)
    monkeypatch.setattr(pulse, "LOOK_SECONDS", 0.01)
    return queue.Queue()


def test_what_does_not_move_is_said_with_its_process_and_again_if_it_goes_on(said: queue.Queue[str]) -> None:
    waits, idle = Pulse(None, "a step of Some-v0"), Pulse(None)
    patience = Patience(said.put, {"a2c": waits, "reward predictor": idle})
    for _ in range(3):
        assert "Still waiting for the a2c process: a step of Some-v0 has taken" in said.get(timeout=PATIENCE)
    waits.begin("another step")
    assert "another step" in said.get(timeout=PATIENCE)
    patience.close()


def test_what_people_wait_for_at_a_command_is_said_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "SOON_SECONDS", 0.05)
    monkeypatch.setattr(pulse, "LOOK_SECONDS", 0.01)
    said = queue.Queue[str]()
    report, step = Pulse(None, "the report"), Pulse(None, "a step")
    patience = Patience(said.put, {"": report, "a2c": step}, soon=("the report",))
    assert said.get(timeout=PATIENCE).startswith("Still waiting: the report has taken ")
    assert said.empty(), "once, until ten seconds are over, and a step only then"
    patience.close()


def test_a_command_says_what_it_does_while_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pulse, "SOON_SECONDS", 0.05)
    monkeypatch.setattr(pulse, "LOOK_SECONDS", 0.01)

    def slow(*_: object) -> int:
        deadline = time.monotonic() + PATIENCE
        while "the report has taken" not in capsys.readouterr().out:
            assert time.monotonic() < deadline
        return 0

    monkeypatch.setattr(commands, "dispatch", slow)
    assert commands.run_command(["report", "runs/a"]) == 0 and here().what == ""


def test_a_block_within_another_counts_from_its_own_beginning() -> None:
    with doing("a step", foreign=False):
        before = here().since
        with doing("an answer", foreign=True):
            assert (here().what, here().foreign) == ("an answer", True) and here().since >= before
        assert (here().what, here().foreign) == ("a step", False) and here().since >= before
    assert here().what == ""


def test_only_the_main_thread_is_waited_for() -> None:
    def draw() -> None:
        with doing("a drawing"):
            seen.append(here().what)

    seen: list[str] = []
    thread = threading.Thread(target=draw)
    thread.start()
    thread.join()
    assert seen == [""]


def test_the_check_before_a_run_notes_what_it_does_in_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(Cycle, "step", lambda self, action: seen.append((here().what, here().foreign)))
    with pytest.raises(EnvError):
        check_env("tests.support.faulty:Same-v0")
    assert seen == [("a step of tests.support.faulty:Same-v0", True)]


def test_a_description_that_is_too_long_is_cut() -> None:
    assert Pulse(None, "ä" * 500).what.startswith("ä" * 90)
