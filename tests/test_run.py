"""Every mode through the real command line with tiny numbers; stopping, killing and resuming; bad input."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

import run as run_module
from a2c.runner import random_segment
from commands import MODES, run_folder
from drlhp.data.comparison import Choice, Comparison, is_validation
from drlhp.runtime import checkpoint
from envs import env_info
from examples.dot_left import to_the_left
from pref_db import PrefDB
from tests.support import ROOT
from tests.support.commands import (
    BRIEF_PPO,
    DEADLINE,
    DOT,
    PONG,
    SYNC,
    TINY,
    UNEVALUATED,
    alive,
    answers,
    children,
    command,
    environment,
    here,
    one_sentence,
    policy_steps,
    progress,
    refused,
    run,
    small_files,
    started,
    steps_with_a_return,
    wait_for,
    without_waits,
)
from tests.support.preloaded import PreloadedPopen, run_captured


def test_each_mode_is_a_ring_that_ends_with_one_of_its_parts() -> None:
    assert set(run_module.RINGS) == set(MODES)
    for mode, plan in run_module.RINGS.items():
        assert plan.until in plan.parts and len(set(plan.parts)) == len(plan.parts), mode


def test_the_processes_of_a_run_need_not_import_run_py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They start half a second of the processor sooner."""

    def look(ring: run_module.Ring) -> run_module.Finished:
        run_module.act(ring)  # it starts them
        assert not hasattr(sys.modules["__main__"], "__file__"), "which multiprocessing would let them import"
        return lambda: True

    monkeypatch.setitem(run_module.RINGS, "train_policy_with_original_rewards", run_module.Plan([look], until=look))
    before = sys.modules["__main__"]
    here(tmp_path, "train_policy_with_original_rewards", "CartPole-v1", "--n_envs", "1", "--run_name", "a")
    assert sys.modules["__main__"] is before


# -- the four modes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", [DOT, PONG])
def test_everything_at_once(tmp_path: Path, env_id: str) -> None:
    mode = ("train_policy_with_preferences", env_id, "--synthetic_prefs")
    queries = ("--ensemble_size", "2", "--query_selection", "disagreement", "--disagreement_bonus", "0.1")
    n_steps, brief = 1000, ["--log_interval", "1"]
    if env_id == PONG:  # whose networks are large
        n_steps, brief = 200, [*brief, *BRIEF_PPO, "--million_timesteps", "0.0002", "--clip_steps", "10"]
        brief += ["--n_envs", "2", "--n_steps", "20", "--policy_network", "feature_points"]
    result = here(tmp_path, *mode, "--run_name", "a", *queries, *TINY, *brief)
    folder = tmp_path / "a"
    assert policy_steps(folder) >= n_steps
    assert len(answers(folder)) == 20, "the whole budget is used, and no more"
    assert list((folder / "reward_predictor").glob("step-*.pt"))
    assert (folder / "curves.png").stat().st_size > 5000
    for word in ("labels used", "true episode reward", str(folder), "curves.png", "policy"):
        assert word in result.stdout
    # Of so few answers perhaps none that is held out prefers a clip, and one of the later ones may come too late.
    decisive = [
        seq for seq, (_, pair, choice) in enumerate(answers(folder)) if choice == "preferred" and is_validation(pair)
    ]
    n_initial = int(TINY[TINY.index("--n_initial_prefs") + 1])
    assert ("validation accuracy" in result.stdout) in {bool(decisive), any(seq < n_initial for seq in decisive)}
    config = json.loads((folder / "config.json").read_text())
    assert config["config"]["policy"]["n_envs"] == (4 if env_id == DOT else 2) and config["versions"]["torch"]
    events = {path.parent.name for path in (folder / "events").rglob("events.out*")}
    assert events == {"a2c", "reward_predictor"}


def test_stage_by_stage(tmp_path: Path) -> None:
    """In this process, but for a frozen predictor; each stage with processes has a test of its own."""
    here(tmp_path, "gather_initial_prefs", DOT, "--synthetic_prefs", "--run_name", "labels", *TINY, SYNC)
    assert len(answers(tmp_path / "labels")) == 12
    assert not (tmp_path / "labels" / "policy").exists()

    loading = ("--load_prefs_dir", str(tmp_path / "labels"))
    epochs = ("--n_initial_epochs", "1", SYNC)
    here(tmp_path, "pretrain_reward_predictor", DOT, *loading, "--run_name", "predictor", *epochs)
    assert list((tmp_path / "predictor" / "reward_predictor").glob("step-*.pt"))
    assert not (tmp_path / "predictor" / "policy").exists()
    on = (*loading, "--load_reward_predictor_ckpt_dir", str(tmp_path / "predictor"), *epochs)
    # It plays no episodes, so it needs no display for them.
    here(tmp_path, "pretrain_reward_predictor", DOT, *on, "--run_name", "improved", "--render_episodes")
    first, then = (
        checkpoint.load(checkpoint.find(tmp_path / name, "reward_predictor"), kind="reward_predictor", env_id=DOT)
        for name in ("predictor", "improved")
    )
    assert then["epochs"] and any(
        not torch.equal(first["weights"][name], then["weights"][name]) for name in first["weights"]
    )

    train: tuple[str, ...] = ("train_policy_with_preferences", DOT)
    predictor = ("--load_reward_predictor_ckpt_dir", str(tmp_path / "predictor"))
    # With no number of labels given nobody is asked, so no display is needed either.
    frozen = ("--million_timesteps", "0.0002", *UNEVALUATED, "--run_name", "frozen")
    here(tmp_path, *train, *predictor, *frozen)
    assert answers(tmp_path / "frozen") == [] and policy_steps(tmp_path / "frozen") >= 200
    # It has no labels to learn from.
    here(tmp_path, "--resume", str(tmp_path / "frozen"), "--million_timesteps", "0.0003")
    assert policy_steps(tmp_path / "frozen") >= 300

    train = (*train, *TINY, *UNEVALUATED, SYNC, "--million_timesteps", "0.0002", "--n_initial_epochs", "1")

    here(tmp_path, *train, *loading, "--no_gather_prefs", "--run_name", "reused")
    assert answers(tmp_path / "reused") == answers(tmp_path / "labels")
    assert {row["labels"] for row in progress(tmp_path / "reused")} == {"12"}, "though nobody is asked"
    assert policy_steps(tmp_path / "reused") >= 200

    more = ("--synthetic_prefs", "--run_name", "more", "--load_policy_ckpt_dir", str(tmp_path / "reused"))
    here(tmp_path, *train, *loading, *more)
    assert len(answers(tmp_path / "more")) == 20, "the labels loaded count"


def test_a_temporary_folder_of_a_long_name(tmp_path: Path) -> None:
    """As batch systems make them; the path of a socket may not be as long."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    run(tmp_path, "gather_initial_prefs", DOT, "--synthetic_prefs", "--run_name", "a", *TINY, TMPDIR=str(long))
    assert len(answers(tmp_path / "a")) == 12


def test_segments_now_labels_later_and_training_after_that(tmp_path: Path) -> None:
    folder = tmp_path / "clips"
    words = ("--no_gather_prefs", "--max_segs", "9", "--n_envs", "2", "--run_name", "clips")
    said = here(tmp_path, "gather_initial_prefs", DOT, *words).stdout
    assert f"Label the 9 clips with: python run.py label {folder}" in said
    with contextlib.closing(PrefDB.open(folder / "prefs.db", read_only=True)) as db:
        assert len(db.segment_ids()) == 9 and db.n_answers() == 0
        assert db.segment(db.segment_ids()[0]).view is not None, "people will see them in colour"
    # Without a terminal, lines are answers.
    label = [sys.executable, str(ROOT / "run.py"), "label", str(folder), "--ui", "terminal", "--max_prefs", "12"]
    done = subprocess.run(label, input="l\nboth\n\n" + "r\ne\n" * 8, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0 and "12 more than at the start" in done.stdout, done.stdout + done.stderr
    assert "'both' is no answer" in done.stdout and "\x1b" not in done.stdout
    assert [row[2] for row in answers(folder)].count("incomparable") == 1 and len(answers(folder)) == 13
    brief = ("--n_initial_epochs", "1", SYNC)
    here(tmp_path, "pretrain_reward_predictor", DOT, "--load_prefs_dir", str(folder), "--run_name", "predictor", *brief)


def test_a_person_without_a_display_and_a_policy_that_waits(tmp_path: Path) -> None:
    words = ("train_policy_with_preferences", DOT, *TINY, *UNEVALUATED, "--ui", "terminal", "--wait_for_labels", "0.5")
    with started(tmp_path, *words, "--million_timesteps", "0.0005", "--run_name", "a") as process:
        # And then the end: the policy must not wait for ever.
        output, _ = process.communicate("l\nr\n" * 6, timeout=DEADLINE)
    assert process.returncode == 0, output
    assert len(answers(tmp_path / "a")) == 12 and policy_steps(tmp_path / "a") >= 500


@pytest.mark.parametrize("env_id", ["EnduroNoFrameskip-v4", "CartPole-v1", "Pendulum-v1"])
def test_original_rewards(tmp_path: Path, env_id: str) -> None:
    n_steps = 200
    length = ("--million_timesteps", str(n_steps / 1e6))
    words = ("train_policy_with_original_rewards", env_id, "--n_envs", "2", *length)
    algo = "ppo" if env_id == "CartPole-v1" else "a2c"
    if env_id.startswith("Enduro"):  # whose games take too long to evaluate, and which starts slowly
        here(tmp_path, *words, *UNEVALUATED, "--run_name", "a", "--algo", algo, "--n_envs", "1", "--n_steps", "20")
    else:
        brief = BRIEF_PPO if algo == "ppo" else ("--algo", algo)
        here(tmp_path, *words, "--eval_episodes", "1", "--run_name", "a", *brief, SYNC)
    assert policy_steps(tmp_path / "a") >= n_steps
    assert not (tmp_path / "a" / "prefs.db").exists()


def test_vector_observations_from_preferences(tmp_path: Path) -> None:
    words = ("train_policy_with_preferences", "CartPole-v1", "--synthetic_prefs", *TINY, "--n_envs", "1")
    here(tmp_path, *words, *UNEVALUATED, "--run_name", "a", *BRIEF_PPO, SYNC)
    assert len(answers(tmp_path / "a")) == 20


def test_the_synthetic_teacher_sees_a_penalty_where_a_game_is_over(tmp_path: Path) -> None:
    words = ("train_policy_with_preferences", "CartPole-v1", *TINY, "--n_envs", "1", "--run_name", "a")
    result = here(tmp_path, *words, "--teacher_end_penalty", "5", "--continuing_episodes", *BRIEF_PPO, SYNC)
    with closing(PrefDB.open(tmp_path / "a" / "prefs.db", read_only=True)) as db:
        rows = list(db.answers())
        rewards = [segment.rewards for row in rows for segment in (row.comparison.a, row.comparison.b)]
    assert {row.teacher for row in rows} == {"oracle(end_penalty=5)"}
    assert {tuple(of_segment[:-1]) for of_segment in rewards} == {(1.0,) * (len(r) - 1) for r in rewards}
    assert {float(of_segment[-1]) for of_segment in rewards} == {1.0, -4.0}
    before, after = map(float, re.findall(r"(-?[\d.]+) before, (-?[\d.]+) after", result.stdout)[0])
    assert before > 7 and after > 7, "what is reported is without the penalty: no pole falls sooner"


IN_ONE_THREAD = """
import runpy, sys, torch
torch.set_num_threads(1)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_synchronous_runs_repeat_bit_for_bit(tmp_path: Path) -> None:
    brief = (*TINY, *UNEVALUATED, "--million_timesteps", "0.0001", "--n_envs", "2", "--n_initial_epochs", "1")
    words = ("train_policy_with_preferences", DOT, "--synthetic_prefs", "--synchronous", *brief)
    assert torch.get_num_threads() == 1
    another = [sys.executable, "-c", IN_ONE_THREAD, *command(tmp_path, *words, "--run_name", "a")[1:]]
    assert run_captured(another, DEADLINE, cwd=ROOT).returncode == 0  # another process has other hashes
    here(tmp_path, *words, "--run_name", "b")
    here(tmp_path, *words, "--run_name", "c", "--seed", "1")
    weights = [
        torch.load(sorted((tmp_path / name / "policy").glob("*.pt"))[-1], weights_only=True)["weights"]
        for name in ("a", "b", "c")
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    choices = [[row[1:] for row in answers(tmp_path / name)] for name in ("a", "b")]
    assert choices[0] == choices[1]


# -- teachers ----------------------------------------------------------------------------------------------------------


def test_a_function_teaches_what_the_environment_does_not_reward(tmp_path: Path) -> None:
    """Every stored answer is the one that the function gives, and not the true reward's."""
    name = "examples.dot_left:to_the_left"
    words = ("train_policy_with_preferences", DOT, "--teacher", name, "--run_name", "a", *TINY, *UNEVALUATED, SYNC)
    here(tmp_path, *words)
    db = PrefDB.open(tmp_path / "a" / "prefs.db", read_only=True)
    rows = list(db.answers())
    moved = [[to_the_left(segment).sum() for segment in (row.comparison.a, row.comparison.b)] for row in rows]
    rewarded = [[segment.rewards.sum() for segment in (row.comparison.a, row.comparison.b)] for row in rows]
    db.close()
    assert len(rows) == 20 and {row.teacher for row in rows} == {name}
    assert [row.choice for row in rows] == [better(*values) for values in moved]
    assert [row.choice for row in rows] != [better(*values) for values in rewarded]


def better(a: float, b: float) -> Choice:
    return Choice.EQUAL if abs(a - b) < 1e-6 else Choice.A if a > b else Choice.B


def test_answers_are_signed_by_a_named_teacher(tmp_path: Path) -> None:
    words = ("gather_initial_prefs", DOT, *TINY, "--teacher", "mistake", "--teacher_mistake", "1")
    here(tmp_path, *words, "--run_name", "a", SYNC)
    db = PrefDB.open(tmp_path / "a" / "prefs.db", read_only=True)
    rows = list(db.answers())
    for row in rows:
        right = better(row.comparison.a.rewards.sum(), row.comparison.b.rewards.sum())
        assert row.choice == {Choice.A: Choice.B, Choice.B: Choice.A}.get(right, right), "always the worse one"
    db.close()
    assert len(rows) == 12 and {row.teacher for row in rows} == {"mistake(mistake=1)"}


def test_a_function_that_fails_while_training_ends_the_run_with_all_that_was_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked for in the current folder; once mended, the run goes on."""
    module, folder = tmp_path / "tired_teacher.py", tmp_path / "a"
    module.write_text("def judge(segment):\n    return 1 / (segment.policy_step < 300) * segment.rewards.sum()\n")
    words = ("--teacher", "tired_teacher:judge", "--run_name", "a", *TINY, *UNEVALUATED, "--max_prefs", "200")
    longer = ("--million_timesteps", "0.2")
    monkeypatch.chdir(tmp_path)
    result = here(tmp_path, "train_policy_with_preferences", DOT, *words, *longer, status=1)
    message = one_sentence(result.stderr)
    assert "tired_teacher:judge failed with ZeroDivisionError" in message
    assert f"python run.py --resume {folder}" in result.stdout
    steps, stored = policy_steps(folder), answers(folder)
    assert steps > 300 and len(stored) > 12 and list((folder / "reward_predictor").glob("step-*.pt"))
    assert "line 2, in judge" in (folder / "log.txt").read_text(), "the log says where"

    module.write_text("def judge(segment):\n    return segment.rewards.sum()\n")
    monkeypatch.delitem(sys.modules, "tired_teacher")
    here(tmp_path, "--resume", str(folder), "--million_timesteps", str((steps + 300) / 1e6))
    assert policy_steps(folder) >= steps + 300
    kept = answers(folder)
    assert len(kept) > len(stored) and kept[: len(stored)] == stored


@pytest.mark.slow
def test_it_gets_better(tmp_path: Path) -> None:
    """MovingDot from 80 labels, in a tenth of the usual length: clearly better than acting at random."""
    words: tuple[str, ...] = ("--n_initial_prefs", "60", "--max_prefs", "80", "--max_segs", "100")
    words += ("--n_initial_epochs", "15", SYNC, *UNEVALUATED)
    words += ("--million_timesteps", "0.01", "--lr", "1e-2")  # three times the usual rate
    here(tmp_path, "train_policy_with_preferences", DOT, "--synthetic_prefs", "--run_name", "a", *words)
    returns = [float(row["episode_return"]) for row in progress(tmp_path / "a") if row["episode_return"] != "nan"]
    assert returns[-1] > returns[0] + 4, returns


# -- stopping and carrying on ------------------------------------------------------------------------------------------

UNSAVED = (*TINY, *UNEVALUATED, "--million_timesteps", "5")  # no checkpoint of the policy for seconds
LONG = (*UNSAVED, "--policy_ckpt_interval", "5")


def steps_shown(folder: Path) -> int:
    """The steps of the policy that the user has been told of."""
    return max((int(float(row["steps"])) for row in progress(folder)), default=0)


def remembers_an_episode(folder: Path) -> bool:
    """Whether the newest checkpoint is of after the end of an episode."""
    steps = steps_with_a_return(folder)
    return bool(steps) and policy_steps(folder) > steps[0]


@pytest.mark.parametrize("victim", ["a2c", "reward predictor", "main"])
def test_resume_after_kill(tmp_path: Path, victim: str) -> None:
    folder = tmp_path / "a"
    words = ("train_policy_with_preferences", DOT, "--synthetic_prefs", "--run_name", "a", *LONG)
    with started(tmp_path, *words) as process:
        wait_for(lambda: remembers_an_episode(folder), process)
        parts = children(process.pid)
        assert len(parts) == 2
        os.kill(process.pid if victim == "main" else parts[victim], signal.SIGKILL)
        output, _ = process.communicate(timeout=40)
        if victim != "main":
            assert process.returncode == 1
            assert f"the {victim} process was killed by SIGKILL" in output
        deadline = time.monotonic() + 40
        while any(alive(pid) for pid in parts.values()):  # nothing is left running
            assert time.monotonic() < deadline
            time.sleep(0.05)
    steps, stored = policy_steps(folder), answers(folder)
    assert stored
    more = str((steps + 400) / 1e6)
    here(tmp_path, "--resume", str(folder), "--million_timesteps", more)
    assert policy_steps(folder) >= steps + 400, "it goes on from the checkpoint"
    kept = answers(folder)
    assert kept[: len(stored)] == stored and len({row[0] for row in kept}) == len(kept)
    rewards = [float(row["episode_return"]) for row in progress(folder) if float(row["steps"]) > steps]
    assert rewards and not any(math.isnan(reward) for reward in rewards), "and from the episodes before it"
    seconds = [float(row["seconds"]) for row in progress(folder)]
    assert seconds == sorted(seconds), "the time of both parts adds up"


def test_ctrl_c_checkpoints_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    words = ("train_policy_with_preferences", DOT, "--synthetic_prefs", "--run_name", "a b", *LONG)
    with started(tmp_path, *words) as process:
        wait_for(lambda: policy_steps(folder) > 0 and steps_with_a_return(folder), process)
        before = policy_steps(folder)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in output
    assert f"python run.py --resume '{folder}'" in output
    assert policy_steps(folder) >= before
    assert (folder / "curves.png").stat().st_size > 5000


def test_a_signal_to_the_whole_group_ends_the_run_like_ctrl_c(tmp_path: Path) -> None:
    """As `timeout` and batch systems send it: the processes of the run get it too, and still write checkpoints."""
    folder = tmp_path / "a"
    words = command(tmp_path, "train_policy_with_preferences", DOT, "--synthetic_prefs", "--run_name", "a", *UNSAVED)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = PreloadedPopen(words, env=environment(), start_new_session=True, **pipes)  # type: ignore[call-overload]
    try:
        wait_for(lambda: steps_shown(folder), process)
        before = steps_shown(folder)
        os.killpg(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130 and "Traceback" not in output
    assert policy_steps(folder) >= before
    assert list((folder / "reward_predictor").glob("step-*.pt"))


IN_A_TERMINAL = """
import fcntl, runpy, signal, sys, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests with nohup ignores it
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_terminal_that_goes_away_ends_the_run_like_ctrl_c(tmp_path: Path) -> None:
    """As when an SSH session is cut off: the hang-up reaches every process, and nothing can be printed any more."""
    folder = tmp_path / "a"
    master, slave = pty.openpty()
    words = command(tmp_path, "train_policy_with_preferences", DOT, "--synthetic_prefs", "--run_name", "a", *UNSAVED)
    streams = {"stdin": slave, "stdout": slave, "stderr": slave, "text": True}
    process = PreloadedPopen(  # type: ignore[call-overload]
        [sys.executable, "-c", IN_A_TERMINAL, *words[1:]],
        env=environment(),
        cwd=ROOT,
        start_new_session=True,
        **streams,
    )
    os.close(slave)
    try:
        wait_for(lambda: steps_shown(folder) or not os.read(master, 65536), process)
        before = steps_shown(folder)
        os.close(master)
        assert process.wait(DEADLINE) == 130
    finally:
        process.kill()
        process.wait()
    assert policy_steps(folder) >= before
    assert "Traceback" not in (folder / "log.txt").read_text()


def test_ctrl_c_in_the_first_moment_leaves_nothing_behind(tmp_path: Path) -> None:
    """While everything is still being imported; the terminal sends it to all processes at once."""
    words = command(tmp_path, "train_policy_with_preferences", DOT, "--synthetic_prefs", "--run_name", "a")
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(), start_new_session=True
    )

    def imports_beside_it() -> bool:
        listed = " ".join(path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/children")).split()
        of_each = [Path(f"/proc/{child}") for child in listed]
        servers = [one for one in of_each if b"forkserver" in (one / "cmdline").read_bytes()]
        return any("libtorch_python" in (server / "maps").read_text() for server in servers)

    try:
        wait_for(imports_beside_it, process)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=DEADLINE)  # to the end of all that could write
    finally:
        process.kill()
    assert without_waits(output) == "" and process.returncode == -signal.SIGINT
    assert not (tmp_path / "a").exists()


def test_ctrl_c_during_the_first_imports_just_ends_the_program(tmp_path: Path) -> None:
    """Without a traceback: a busy machine may take seconds for them."""
    interrupts = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "difflib.py").write_text(interrupts)  # stands before the standard library's, which is imported early
    result = run(tmp_path, "report", status=-signal.SIGINT, PYTHONPATH=str(tmp_path))
    assert result.stdout + result.stderr == ""


def test_ctrl_c_before_the_run_folder_is_no_failure_of_an_environments_package(tmp_path: Path) -> None:
    """As MuJoCo's import makes of it: ctypes, which calls back into Python there, turns it into another exception."""
    (tmp_path / "bodies.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt:\n    raise ImportError('no renderer') from None\n"
    )
    words = ("train_policy_with_preferences", "bodies:Any-v0", "--synthetic_prefs", "--run_name", "a")
    result = run(tmp_path, *words, status=-signal.SIGINT, PYTHONPATH=str(tmp_path))
    assert without_waits(result.stdout + result.stderr) == "" and not (tmp_path / "a").exists()


def test_a_run_in_use_cannot_be_resumed(tmp_path: Path) -> None:
    words = ("train_policy_with_preferences", DOT, "--synthetic_prefs", "--run_name", "a", *LONG)
    with started(tmp_path, *words) as process:
        wait_for(lambda: policy_steps(tmp_path / "a") > 0, process)
        assert "in use" in refused(tmp_path, "--resume", str(tmp_path / "a"))


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_bad_input_ends_a_program_with_one_sentence(tmp_path: Path) -> None:
    assert "no command 'train_policy'" in one_sentence(run(tmp_path / "runs", "train_policy", DOT, status=2).stderr)
    assert not (tmp_path / "runs").exists()


NEEDS_DISPLAY = [
    (("train_policy_with_preferences", DOT), "display"),
    (("train_policy_with_original_rewards", DOT, "--render_episodes"), "DISPLAY.*: leave out --render_episodes,"),
    (("gather_initial_prefs", DOT), "pass --ui terminal, --ui web or --teacher oracle,"),
]


@pytest.mark.parametrize(("words", "expected"), NEEDS_DISPLAY)
def test_a_display_that_is_missing_is_one_sentence(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    assert re.search(expected, refused(tmp_path / "runs", *words))
    assert not (tmp_path / "runs").exists(), "nothing is made for a command that cannot work"


def test_whoever_refuses_ends_with_one_full_stop(tmp_path: Path) -> None:
    steps = env_info(DOT).segment_length
    segments = [segment for seed in range(2) if (segment := random_segment(DOT, seed, steps))]
    with closing(PrefDB.create(tmp_path / "prefs.db", DOT, steps)) as db:
        db.add_segments(segments)
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "token").write_text("none")
    for words, expected in (
        (("watch", "nowhere"), "nowhere does not exist"),  # of checkpoint.py
        (("show_prefs", "nowhere"), "nowhere does not exist"),  # of pref_db.py
        (("label", str(tmp_path), "--ui", "web", "--web_port", "0"), "token holds no token"),  # of label_server/
        (("--resume", "no\nrun"), "no run does not exist; give"),  # a name over two lines
    ):
        assert expected in one_sentence(here(None, *words, status=2).stderr)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("train_policy_with_preferences", "PongNoFrameskip-v5"), "Pong"),
        (("train_policy_with_preferences", "Pong-ram-v0"), "Pong"),
        (
            ("train_policy_with_preferences", DOT, "--synthetic_prefs", "--n_envs", "0"),
            "--n_envs must be a whole number",
        ),
        (("train_policy_with_preferences", DOT, "--synthetic_prefs", "--lr", "-1"), "--lr must be"),
        (("train_policy_with_preferences", DOT, "--synthetic_prefs", "--run_name", "a/b"), "--run_name"),
        (("train_policy_with_preferences", DOT, "--no_gather_prefs"), "--load_prefs_dir"),
        (("gather_initial_prefs", "ShortReacher", "--synthetic_prefs", "--clip_steps", "41"), "over after 20 steps"),
        (("gather_initial_prefs", DOT, "--teacher", "orakel"), "oracle, stoc"),
        (("gather_initial_prefs", DOT, "--teacher", "no_such:judge"), "there is no module no_such"),
        (("gather_initial_prefs", DOT, "--teacher", "builtins:repr"), "it must return numbers"),
        (("pretrain_reward_predictor", DOT), "--load_prefs_dir"),
        (("pretrain_reward_predictor", DOT, "--load_prefs_dir", "nowhere"), "nowhere"),
        (("train_policy_with_original_rewards", DOT, "--load_policy_ckpt_dir", "nowhere"), "nowhere does not exist"),
        (("train_policy_with_preferences", DOT, "--load_reward_predictor_ckpt_dir", "nowhere"), "nowhere"),
        (("--resume", "nowhere"), "nowhere does not exist"),
        (("watch", "nowhere"), "nowhere does not exist"),
        (("show_prefs", "nowhere"), "nowhere"),
        (("train_policy_with_original_rewards", DOT, "--run_name", "\udcff"), "not in UTF-8"),
        (("watch", __file__), "no checkpoint of ours"),
        (("watch", "n" * 300), "(File name too long): give another path."),
        (("report", __file__), f"{__file__} is no folder; give"),
        (("import", __file__, "--output", "a"), f"{__file__} has no export.json; give"),
    ],
)
def test_what_cannot_work_is_one_sentence(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    assert expected in refused(tmp_path / "runs", *words)
    assert not (tmp_path / "runs").exists(), "nothing is made for a command that cannot work"


def test_flags_that_do_not_parse(tmp_path: Path) -> None:
    for words in (("--n_envs", "many"), ("--n_env", "3")):
        result = here(tmp_path, "train_policy_with_original_rewards", DOT, *words, status=2)
        assert "Traceback" not in result.stderr + result.stdout


def test_nothing_is_overwritten_or_mixed_up(tmp_path: Path) -> None:
    here(tmp_path, "gather_initial_prefs", DOT, "--synthetic_prefs", "--run_name", "a", *TINY, SYNC)
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    again = refused(tmp_path, "gather_initial_prefs", DOT, "--synthetic_prefs", "--run_name", "a", *TINY)
    assert "already exists" in again
    assert before == {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}

    loading = ("--load_prefs_dir", str(tmp_path / "a"))
    assert DOT in refused(tmp_path, "pretrain_reward_predictor", PONG, *loading)
    other = refused(tmp_path, "pretrain_reward_predictor", DOT, *loading, "--clip_steps", "30")
    assert "--clip_steps 15" in other and sorted(path.name for path in tmp_path.iterdir()) == ["a"]

    (tmp_path / "a" / "prefs.db").write_bytes(b"damaged")
    assert "prefs.db" in refused(tmp_path, "pretrain_reward_predictor", DOT, *loading)

    (tmp_path / "p" / "policy").mkdir(parents=True)
    (tmp_path / "p" / "policy" / "step-000000000001.pt").write_bytes(b"damaged")
    policy = ("--load_policy_ckpt_dir", str(tmp_path / "p"))
    assert "damaged" in refused(tmp_path, "train_policy_with_original_rewards", DOT, *policy)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (150_000, ("train_policy_with_preferences", DOT, "--synthetic_prefs", "--log_interval", "1")),  # the curves
        # A checkpoint; the environments are processes.
        (30_000, ("train_policy_with_original_rewards", "CartPole-v1", *BRIEF_PPO, "--policy_ckpt_interval", "1")),
    ],
)
def test_a_full_disk_ends_the_run_with_a_sentence(tmp_path: Path, limit: int, words: tuple[str, ...]) -> None:
    with small_files(limit):
        result = run(tmp_path, *words[:2], *LONG, "--n_envs", "2", *words[2:], "--run_name", "a", status=1)
    assert re.search(r"^run.py: .+: free some space on its disk", result.stderr, re.M)
    assert "Traceback" not in result.stderr and "a file" not in result.stderr


def test_labels_that_a_full_disk_has_no_room_for_are_loaded_when_there_is_some(tmp_path: Path) -> None:
    """The last pages of the store are what it lacks room for, when the log of writes already holds all labels."""
    steps = env_info(DOT).segment_length
    segments = [random_segment(DOT, seed, steps) for seed in range(24)]
    pairs = [Comparison(a, b, flip=False) for a, b in zip(segments[::2], segments[1::2], strict=True) if a and b]
    with closing(PrefDB.create(tmp_path / "prefs.db", DOT, steps)) as db:
        db.add_answers([(pair, Choice.A) for pair in pairs], teacher="test")
    words = ("pretrain_reward_predictor", DOT, "--load_prefs_dir", str(tmp_path), "--n_initial_epochs", "1", SYNC)
    with small_files((tmp_path / "prefs.db").stat().st_size - 4096):
        assert "the disk is full" in refused(tmp_path, *words, "--run_name", "a", status=1)
    here(tmp_path, "--resume", str(tmp_path / "a"))
    assert answers(tmp_path / "a") == answers(tmp_path) and len(pairs) == 12
    again = here(tmp_path, "--resume", str(tmp_path / "a"))
    assert re.search(r"labels used +12\b", again.stdout), "also if there was nothing left to do"


def test_a_run_whose_parts_cannot_be_closed_lets_go_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk."""

    def fail(ring: run_module.Ring) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "curves")

    words = (
        "train_policy_with_original_rewards",
        "CartPole-v1",
        "--n_envs",
        "1",
        "--million_timesteps",
        "0.0002",
        SYNC,
    )
    with monkeypatch.context() as patched:
        patched.setattr(run_module.Ring, "close", fail)
        here(tmp_path, *words, "--run_name", "a", "--eval_episodes", "1", status=2)
    here(None, "--resume", str(tmp_path / "a"))


def test_a_full_disk_takes_no_name(tmp_path: Path) -> None:
    """Else the run could neither be started by it again nor be resumed."""
    words = ("train_policy_with_original_rewards", "CartPole-v1", "--run_name", "a")
    with small_files(1000):
        assert "cannot write in" in refused(tmp_path, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_a_full_disk_has_no_room_for_fails_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder.RunFolder.create(tmp_path / "a", {})
    with small_files(10):
        logging.getLogger("run").error("more than there is room for")
        folder.close()
    assert capfd.readouterr().err == ""


def test_a_run_leaves_the_repository_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start may come between the steps of a commit, or be killed with the index locked."""
    file, index = tmp_path / "file", tmp_path / ".git" / "index"
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b")
    file.write_text("text")
    for words in (("init", "--quiet"), ("add", "file"), ("commit", "--quiet", "--message", "a")):
        subprocess.run([*git, *words], check=True)
    os.utime(file, (0, 0))  # of which git would make a note
    before = index.read_bytes()
    monkeypatch.setattr(run_folder, "__file__", str(tmp_path / "run_folder.py"))
    assert re.fullmatch("[0-9a-f]{40}", run_folder.git_revision())
    assert index.read_bytes() == before


def test_recorded_results_are_no_change_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the second of two runs that are recorded one by one would have `+changes`."""
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b")
    code, result = tmp_path / "commands" / "run_folder.py", tmp_path / "results" / "pong" / "runs.json"
    for file in (code, result):
        file.parent.mkdir(parents=True)
        file.write_text("before")
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "--message", "a")):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(run_folder, "__file__", str(code))
    result.write_text("after")
    assert "+" not in run_folder.git_revision()
    code.write_text("after")
    assert run_folder.git_revision().endswith("+changes")
