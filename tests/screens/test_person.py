"""A person at the real command: a real window on a virtual X server, real key presses, lines at the terminal."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from drlhp.screens.playback import GUARD_SECONDS
from pref_db import PrefDB
from tests.support import ROOT
from tests.support.commands import DOT, PONG, UNEVALUATED, answers, children, policy_steps, started, wait_for
from tests.support.display import focus, screenshot, xdotool
from tests.support.labelling import make_store
from tests.support.preloaded import PreloadedPopen

pytestmark = pytest.mark.window
TITLE = "better"
SMALL = (
    *("--n_envs", "2", "--max_segs", "40", "--n_initial_epochs", "1"),
    *UNEVALUATED,  # evaluations would take longer than all the rest
)


def press(key: str, folder: Path, process: subprocess.Popen[str], n_answers: int) -> None:
    """Presses a key until the store has so many answers; a key in a new pair's first moments is ignored."""
    press_at = time.monotonic() + 2 * GUARD_SECONDS  # after them, else the run computes until the second press

    def stored() -> bool:
        nonlocal press_at
        if len(answers(folder)) >= n_answers:
            return True
        if time.monotonic() > press_at:
            focus(TITLE)  # another window may have opened meanwhile
            xdotool("key", key)
            press_at = time.monotonic() + 5
        return False

    wait_for(stored, process)


def wait_for_window(process: subprocess.Popen[str]) -> None:
    def found() -> bool:
        done = subprocess.run(["xdotool", "search", "--name", TITLE], capture_output=True, text=True)
        return bool(done.stdout.strip())

    wait_for(found, process)
    focus(TITLE)


def test_keys_in_the_window_and_colour_clips(tmp_path: Path, display: str) -> None:
    folder = tmp_path / "a"
    words = ("gather_initial_prefs", PONG, "--n_initial_prefs", "50", "--run_name", "a", *SMALL)
    with started(tmp_path, *words, "--n_envs", "1", "--max_segs", "12", DISPLAY=display) as process:
        wait_for(lambda: (folder / "prefs.db").exists(), process)
        wait_for_window(process)
        wait_for(lambda: (screenshot().astype(int).std(axis=2) > 30).sum() > 5000, process)  # Pong's colours
        press("Right", folder, process, 1)
        press("e", folder, process, 2)
        press("Return", folder, process, 3)
        press("u", folder, process, 4)  # an undo is a row of its own
        press("L", folder, process, 5)
        press("l", folder, process, 6)
        focus(TITLE)
        xdotool("key", "Escape", "Escape")
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    db = PrefDB.open(folder / "prefs.db", read_only=True)
    rows = list(db.answers())
    assert [row.choice == "equal" for row in rows][1] and db.n_labels() == 4
    first = rows[0]
    shown_right = first.a if first.flip else first.b
    assert first.choice == ("a" if shown_right == first.a else "b"), "the right clip was chosen, by segment"
    assert {row.teacher for row in rows} == {"person"}
    frames = db.segment(first.a).frames()
    assert frames.shape[1:] == (210, 160, 3) and np.ptp(frames[0].astype(int), axis=2).max() > 30, "colour, as rendered"
    db.close()


def test_lines_at_the_terminal_and_the_end_of_input(tmp_path: Path, display: str) -> None:
    folder = tmp_path / "a"
    words = ("train_policy_with_preferences", DOT, "--n_initial_prefs", "3", "--run_name", "a", *SMALL)
    with started(tmp_path, *words, "--million_timesteps", "0.0005", DISPLAY=display) as process:
        wait_for(lambda: (folder / "prefs.db").exists(), process)
        assert process.stdin is not None
        for n, line in enumerate(("l", "R", "left", "E", "what?", "", "R"), start=1):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            expected = n - (n > 4)  # the junk line is no answer
            wait_for(lambda expected=expected: len(answers(folder)) >= expected, process)
        process.stdin.close()
        process.stdin = None
        wait_for(lambda: process.poll() is not None or policy_steps(folder) > 0, process)
        output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    assert [row[2] for row in answers(folder)][4] == "incomparable"
    assert "'what?' is no answer" in output and "Labelling has ended" in output
    assert policy_steps(folder) >= 500, "the policy is trained to the end"


def test_a_window_is_all_that_is_needed(tmp_path: Path, display: str) -> None:
    make_store(tmp_path / "a", 3)
    command = [sys.executable, str(ROOT / "run.py"), "label", str(tmp_path / "a"), "--ui", "window"]
    process = PreloadedPopen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        wait_for_window(process)
        press("Left", tmp_path / "a", process, 1)
        focus(TITLE)
        xdotool("key", "Escape", "Escape")
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0 and "1 more than at the start" in output


def test_closing_the_window_ends_labelling_not_training(tmp_path: Path, display: str) -> None:
    folder = tmp_path / "a"
    words = ("train_policy_with_preferences", DOT, "--n_initial_prefs", "3", "--run_name", "a", *SMALL)
    with started(tmp_path, *words, "--million_timesteps", "5", "--render_episodes", DISPLAY=display) as process:
        wait_for(lambda: (folder / "prefs.db").exists(), process)
        wait_for_window(process)
        for n in range(1, 6):
            press("Left", folder, process, n)
        xdotool("search", "--sync", "--name", "Episode")  # the second window, with the last full episode
        focus(TITLE)
        wait_for(lambda: _training(folder), process)
        focus(TITLE)
        xdotool("key", "Escape", "Escape")
        wait_for(lambda: _later(folder, 3), process)
        assert len(children(process.pid)) == 2
    assert len(answers(folder)) >= 5


def _training(folder: Path) -> bool:
    rows = (folder / "progress.csv").read_text().splitlines()[1:]
    return any(float(row.split(",")[1]) > 0 for row in rows)


def _later(folder: Path, n_rows: int) -> bool:
    """True once the run has reported so many more times since labelling ended."""
    log = (folder / "log.txt").read_text()
    return "Labelling has ended" in log and len((folder / "progress.csv").read_text().splitlines()) > n_rows


@pytest.mark.skipif(importlib.util.find_spec("pygame") is not None, reason="pygame is installed, so CartPole can draw")
def test_an_environment_that_cannot_draw_itself_is_refused_before_anything_is_made(
    tmp_path: Path, display: str
) -> None:
    words = ("gather_initial_prefs", "CartPole-v1", "--run_name", "a", *SMALL)
    with started(tmp_path, *words, DISPLAY=display) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 2 and "pygame" in output
    assert not (tmp_path / "a").exists()
