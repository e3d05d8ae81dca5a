"""Processes that hang, leave, or whose parent dies: what is said, and that nothing stays behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drlhp.errors import ChildError
from drlhp.runtime import processes
from drlhp.runtime.channels import Channels
from drlhp.runtime.leash import descendants
from drlhp.runtime.processes import Children
from drlhp.runtime.pulse import doing
from tests.support import ROOT
from tests.support.commands import (
    BRIEF_PPO,
    DEADLINE,
    UNEVALUATED,
    alive,
    children,
    here,
    one_sentence,
    policy_steps,
    run,
    started,
    wait_for,
)

FAULTY = "tests.support.faulty:"
WORDS = (
    *("--clip_steps", "10", "--max_segs", "12", "--synthetic_prefs", "--n_initial_prefs", "9"),
    *("--max_prefs", "12", "--million_timesteps", "0.1", "--run_name", "a"),
    *UNEVALUATED,
)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Children, list[str]]]:
    """Children of this process, and what is said about them."""
    monkeypatch.setattr(processes, "HUNG_SECONDS", 0.3)
    said: list[str] = []
    made = Children(Channels.create(synchronous=False, take_turns=False, start_method="fork"), said.append)
    yield made, said
    made.kill()
    made.channels.close()


def hang(channels: Channels, file: Path) -> None:
    program = subprocess.Popen(["sleep", "100000"])
    with doing("a step of Some-v0", foreign=True):
        file.write_text(str(program.pid))
        time.sleep(100_000)


def leave(channels: Channels, status: int) -> None:
    os._exit(status)


def test_a_child_that_hangs_in_an_environment_is_ended_with_all_that_it_has_started(
    family: tuple[Children, list[str]], tmp_path: Path
) -> None:
    made, said = family
    made.start("a2c", hang, tmp_path / "pid")
    until(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text()))
    made.stop()
    assert said == ["The a2c process is ended: a step of Some-v0 has not returned."]
    until(lambda: not alive(int((tmp_path / "pid").read_text())))


def count_objects(channels: Channels, file: Path) -> None:
    file.write_text(f"{len(gc.get_objects())}")


def test_a_childs_garbage_collection_leaves_out_what_was_imported(
    family: tuple[Children, list[str]], tmp_path: Path
) -> None:
    children, _ = family
    children.start("counting", count_objects, tmp_path / "objects")
    until(lambda: children.has_finished("counting"))
    assert int((tmp_path / "objects").read_text()) < len(gc.get_objects()) / 20


@pytest.mark.parametrize("status", [0, 3])
def test_a_child_that_leaves_before_its_work_is_done_has_failed(
    family: tuple[Children, list[str]], status: int
) -> None:
    made, _ = family
    made.start("a2c", leave, status)
    until(lambda: made.processes["a2c"].exitcode is not None)
    assert not made.has_finished("a2c")
    with pytest.raises(ChildError, match="left before its work was done" if status == 0 else "with exit status 3"):
        made.check()


def test_processes_on_a_leash_end_with_their_parent_whatever_they_do(tmp_path: Path) -> None:
    """The parent is killed while one sleeps forever, and one has a program of its own."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import multiprocessing, time\n"
        "from drlhp.runtime.leash import OnLeash, without_main\n"
        "if __name__ == '__main__':\n"
        "    with without_main():\n"
        "        for _ in range(2):\n"
        "            multiprocessing.get_context('spawn').Process(target=OnLeash(time.sleep), args=(1e6,)).start()\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(1e6)\n"
        "raise SystemExit('the main file is imported by none of them')\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, script], env=environ, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
    below = descendants(parent.pid)
    assert len(below) == 3  # two, and multiprocessing's tracker
    parent.kill()
    parent.communicate()
    until(lambda: not any(alive(pid) for pid in below))


@pytest.mark.parametrize("parent_ends", [True, False])
def test_a_process_on_a_leash_tells_of_a_broken_pipe_unless_its_parent_has_ended(
    tmp_path: Path, parent_ends: bool
) -> None:
    """A parent that is killed closes its pipes before its children are ended; here the latter takes for ever."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import multiprocessing, time\n"
        "from drlhp.runtime import leash\n"
        "def body(pipe, theirs):\n"
        "    leash._prctl(leash.PR_SET_PDEATHSIG, 0)\n"
        "    leash.end_all = lambda pid: time.sleep(1e6)\n"
        "    theirs.close()\n"
        "    pipe.send('ready')\n"
        "    pipe.recv()\n"
        "if __name__ == '__main__':\n"
        "    ours, theirs = multiprocessing.Pipe()\n"
        "    child = multiprocessing.get_context('spawn').Process(target=leash.OnLeash(body), args=(theirs, ours))\n"
        "    child.start()\n"
        "    theirs.close()\n"
        "    print(ours.recv(), flush=True)\n"
        "    input()\n"
        "    ours.close()\n"
        "    child.join()\n"
    )
    environ, pipe = {**os.environ, "PYTHONPATH": str(ROOT)}, subprocess.PIPE
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
        if parent_ends:
            parent.kill()
        _, errors = parent.communicate("" if parent_ends else "\n", timeout=DEADLINE)
    assert (errors == "") if parent_ends else errors.endswith("EOFError\n")


@pytest.mark.parametrize("how", ["stop", "kill a2c", "kill main"])
def test_an_environment_that_hangs_is_told_of_and_nothing_is_left(tmp_path: Path, how: str) -> None:
    file, folder = tmp_path / "pids", tmp_path / "a"
    words = ("train_policy_with_preferences", f"{FAULTY}Hang-v0", *WORDS, "--n_envs", "2")
    with started(tmp_path, *words, HANG_FILE=str(file)) as process:
        wait_for(lambda: file.exists() and file.read_text().count("\n") == 2, process)
        assert process.stdout is not None
        wanted = "Still waiting for the a2c process: a step of tests.support.faulty:Hang-v0 has taken"
        until(lambda: wanted in process.stdout.readline())  # type: ignore[union-attr]
        left = [*map(int, file.read_text().split()), *children(process.pid).values()]
        if how == "stop":
            process.send_signal(signal.SIGINT)
        else:
            os.kill(process.pid if how == "kill main" else children(process.pid)["a2c"], signal.SIGKILL)
        output, _ = process.communicate(timeout=DEADLINE)  # ends once nothing holds it open
    if how == "stop":
        assert process.returncode == 130 and "The a2c process is ended: a step of" in output
    elif how == "kill a2c":
        assert process.returncode == 1 and "the a2c process was killed by SIGKILL" in output
    assert "Traceback" not in output and "leaked" not in output
    until(lambda: not any(alive(pid) for pid in left))
    assert (folder / "log.txt").exists()


@pytest.mark.parametrize("victim", ["forkserver", "resource_tracker"])
def test_a_run_whose_helper_is_killed_says_so_or_goes_on_and_leaves_nothing(tmp_path: Path, victim: str) -> None:
    folder = tmp_path / "a"
    soon = ("--n_initial_epochs", "1", *BRIEF_PPO, "--n_steps", "32", "--policy_ckpt_interval", "5")
    words = ("train_policy_with_preferences", "CartPole-v1", *WORDS, "--n_envs", "1", *soon)
    # A Python of its own where the tracker ends: what it says then is silenced by a variable of a new one.
    with started(tmp_path, *words, "--million_timesteps", "5", fresh=victim == "resource_tracker") as process:
        wait_for(lambda: len(children(process.pid)) == 2 and bool(policy_steps(folder)), process)
        below = descendants(process.pid)
        tracker, server = helpers(process.pid)
        os.kill(tracker if victim == "resource_tracker" else server, signal.SIGKILL)
        if victim == "resource_tracker":
            process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == (1 if victim == "forkserver" else 130)
    assert ("the process that starts the others, was killed" in output) == (victim == "forkserver"), output
    assert "Traceback" not in output and "resource_tracker" not in output, output
    until(lambda: not any(alive(pid) for pid in below))


def helpers(pid: int) -> list[int]:
    """The two processes that a run starts itself: the tracker, and the server that starts the others."""
    of_each = [int(pid) for path in Path(f"/proc/{pid}/task").glob("*/children") for pid in path.read_text().split()]
    assert len(of_each) == 2
    lines = [Path(f"/proc/{one}/cmdline").read_bytes() for one in of_each]
    is_server = [b"multiprocessing.resource_tracker" not in line for line in lines]
    assert sum(is_server) == 1
    return [one for _, one in sorted(zip(is_server, of_each, strict=True))]


LOCKS = """
import multiprocessing, os, signal
from multiprocessing import resource_tracker
from drlhp.runtime.start import _quiet_tracker

with _quiet_tracker():
    resource_tracker.ensure_running()
lock = multiprocessing.get_context("spawn").Lock()
killed = resource_tracker._resource_tracker._pid
os.kill(killed, signal.SIGKILL)
os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
another = multiprocessing.get_context("spawn").Lock()  # starts the tracker again
assert resource_tracker._resource_tracker._pid != killed
del lock, another
"""


def test_the_successor_of_a_killed_tracker_is_not_told_of_names_that_it_never_knew(tmp_path: Path) -> None:
    environment, words = {**os.environ, "PYTHONPATH": str(ROOT)}, [sys.executable, "-c", LOCKS]
    ended = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("n_envs", "said"), [("1", "left before its work was done"), ("2", "ended with exit status 0")]
)
def test_an_environment_that_ends_its_process_is_a_failure(tmp_path: Path, n_envs: str, said: str) -> None:
    words = ("train_policy_with_preferences", f"{FAULTY}Leave-v0", *WORDS, "--n_envs", n_envs)
    assert said in one_sentence(run(tmp_path, *words, status=1).stderr)


def test_a_teacher_that_ends_its_process_is_a_failure(tmp_path: Path) -> None:
    words = ("gather_initial_prefs", "CartPole-v1", *WORDS, "--n_envs", "1", "--synchronous")
    teacher = ("--teacher", "tests.runtime.test_processes:leaves")
    assert "failed with SystemExit: os._exit(0); fix it." in here(tmp_path, *words, *teacher, status=2).stderr


def leaves(segment: object) -> float:
    os._exit(0)


def test_an_error_in_an_environments_process_is_one_sentence_with_its_fix(tmp_path: Path) -> None:
    words = ("train_policy_with_preferences", f"{FAULTY}Broken-v0", *WORDS, "--n_envs", "2", "--synchronous")
    errors = here(tmp_path, *words, status=1).stderr
    assert "a fault inside the environment, raised by a step of tests.support.faulty:Broken-v0: fix the" in errors
    assert "Received the following error" not in errors
    assert "faulty.py" in (tmp_path / "a" / "log.txt").read_text(), "the worker's traceback is in the log"
