"""The wrapper with what is beside it: preferences are gathered, a predictor trained, and nothing stays behind."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from drlhp import ChildError, HumanPreferencesEnvWrapper, HumanPreferencesVectorEnv, UserError
from drlhp.errors import PrefDBError
from drlhp.labelling.answers import Lease, Submission
from drlhp.labelling.queue import LabelQueue
from drlhp.runtime import checkpoint
from drlhp.runtime.leash import descendants
from drlhp.screens.playback import GUARD_SECONDS
from examples import wrapper_evaluate, wrapper_everything, wrapper_gather, wrapper_pretrained, wrapper_train_predictor
from examples.lamp_env import LampEnv
from examples.own_network import Waves
from examples.wrapper_everything import picture_of
from pref_db import PrefDB
from tests.support import ROOT
from tests.support.commands import alive, without_waits
from tests.support.display import focus, xdotool
from tests.support.preloaded import PreloadedPopen, run_captured
from tests.support.process_server import one_server

__all__ = ["one_server"]  # a fixture: pytest finds it by name

pytestmark = pytest.mark.usefixtures("one_server")

TITLE = "better"  # in that of the window
PATIENCE = 240.0  # seconds; on a machine that does other things
PAUSE = 0.002  # seconds between steps, so that the processes that are waited for are not starved of a small machine
SMALL: dict[str, Any] = {
    "segment_length": 10,
    "n_initial_prefs": 6,
    "n_initial_training_steps": 3,
    "max_prefs_in_db": 12,
    "max_pref_interface_segs": 5,
}
# How a wrapper starts processes by default is tested with programs.
SERVER: dict[str, Any] = {"mp_context": "forkserver"}
QUICK = {**SMALL, **SERVER}


def test_everything_at_once_on_an_environment_nobody_knew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrapper_everything.main(tmp_path, n_labels=12)
    (run,) = tmp_path.iterdir()
    with contextlib.closing(PrefDB.open(run / "prefs.db", read_only=True)) as db:
        assert db.n_labels() >= 12 and db.env_id == "LampEnv"
        assert next(db.segments()).observations.shape == (20, 1, 84, 84)
    assert list((run / "reward_predictor").glob("step-*.pt"))
    assert "12 labels, 20 training steps" in capsys.readouterr().out


def test_gather_then_train_then_use_then_evaluate(tmp_path: Path) -> None:
    """Each stage with what the one before has left, found by the folder of all of them too."""
    store = wrapper_gather.main(tmp_path / "labels", n_labels=12)
    with contextlib.closing(PrefDB.open(store, read_only=True)) as db:
        assert db.n_labels() == 12
    predictor = wrapper_train_predictor.main(tmp_path / "labels", tmp_path / "predictor")
    rewards = wrapper_pretrained.main(tmp_path / "predictor")
    assert np.isfinite(rewards).all() and len(set(rewards)) > 10
    true_return, predicted_return = wrapper_evaluate.main(predictor.parent.parent)
    assert true_return == round(true_return) and predicted_return != round(predicted_return)
    theirs = wrapper_train_predictor.main(store, tmp_path / "own", network=Waves)
    assert wrapper_train_predictor.main(tmp_path / "own", tmp_path / "own").is_relative_to(tmp_path / "own")
    weights = checkpoint.load(theirs, kind="reward_predictor", env_id="CartPole-v1")["weights"]
    assert weights["body.members.2.mix.weight"].shape == (32, 64)
    with pytest.raises(PrefDBError, match="give labels of the same kind"):
        HumanPreferencesEnvWrapper(gymnasium.make("Acrobot-v1"), prefs_dir=store, log_dir=tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())  # nothing that could later be taken for the newest


def children_of(pid: int) -> list[int]:
    """Processes whose parent is `pid`, without multiprocessing's own tracker, which stays for the program's life."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and b"resource_tracker" not in (stat.parent / "cmdline").read_bytes():
                found.append(int(stat.parent.name))
    return found


def test_a_wrapper_that_is_closed_or_forgotten_leaves_nothing_and_a_dead_process_is_told(tmp_path: Path) -> None:
    def opened() -> HumanPreferencesEnvWrapper:
        env = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), train_reward=False, log_dir=tmp_path)
        env.reset(seed=0)
        for _ in range(200):
            if any(env.step(env.action_space.sample())[2:4]):
                env.reset()
        return env

    def here() -> tuple[set[int], int]:
        return set(filter(alive, descendants(os.getpid()))), len(os.listdir("/proc/self/fd"))

    opened().close()  # what Python keeps from the first time on is no leak
    gc.collect()  # of what other tests left, too
    before = here()
    opened().close()
    del_me = opened()
    del del_me
    assert here() == before
    env = opened()
    (child,) = here()[0] - before[0]
    os.kill(child, signal.SIGKILL)
    with pytest.raises(ChildError, match="preference interface process was killed by SIGKILL; if memory was short"):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if any(env.step(env.action_space.sample())[2:4]):
                env.reset()
    with pytest.raises(UserError, match="closed"):
        env.reset()
    assert here()[0] == before[0]


@pytest.mark.parametrize("n_envs", [1, 3])
def test_people_answer_on_a_page_about_the_pictures_that_the_agent_observes(tmp_path: Path, n_envs: int) -> None:
    """The newest colours, magnified, whatever the agent makes of them in place; what they answer is counted, and the
    policy goes on meanwhile."""
    wrap: Any = HumanPreferencesEnvWrapper if n_envs == 1 else HumanPreferencesVectorEnv
    env = wrap(
        LampEnv() if n_envs == 1 else SyncVectorEnv([LampEnv] * n_envs),
        train_reward=False,
        synthetic_prefs=False,
        ui="web",
        **SERVER,
        obs_transform_func=wrapper_everything.picture_of,
        segment_length=10,
        zoom_ratio=2,
        log_dir=tmp_path,
    )
    observations, _ = env.reset(seed=0)
    deadline = time.monotonic() + PATIENCE
    with contextlib.closing(PrefDB.open(env.run_dir / "prefs.db")) as db:
        queue, leases = LabelQueue(db), list[Lease]()
        while not leases and time.monotonic() < deadline:
            observations["picture"] //= 10
            observations, _, _, truncated, _ = env.step(env.action_space.sample())
            if n_envs == 1 and truncated:
                observations, _ = env.reset()
            leases = queue.claim("ann")
        segment = db.segment(leases[0].left)
        frames = segment.frames()
        assert frames.shape == (10, 192, 192, 3)
        assert frames[0].reshape(-1, 3).max(0).tolist() == [255, 230, 120]  # the lamp, in the room's blue
        now = time.time()
        submission = Submission("1", leases[0].token, leases[0].comparison_id, "ann", "left", now, now)
        assert queue.answers.add(submission).status == "stored"
        while env.pref_db_size.value < 1 and time.monotonic() < deadline:
            if np.all(env.step(env.action_space.sample())[3]):
                env.reset()
    assert env.pref_db_size.value == 1 and (env.run_dir / "web" / "token").exists()
    env.close()


@pytest.mark.window
def test_people_answer_in_a_window_and_close_it_while_the_program_goes_on(tmp_path: Path, display: str) -> None:
    env = HumanPreferencesEnvWrapper(
        LampEnv(),
        train_reward=False,
        synthetic_prefs=False,
        obs_transform_func=wrapper_everything.picture_of,
        segment_length=10,
        zoom_ratio=2,
        log_dir=tmp_path,
    )  # where there is a display, ui="auto" is a window
    env.reset(seed=0)
    assert env.run_dir is not None

    def step_until(reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not reached():
            assert time.monotonic() < deadline
            if env.step(env.action_space.sample())[3]:
                env.reset()
            time.sleep(PAUSE)

    press_at = 0.0

    def answered() -> bool:
        nonlocal press_at
        press_at = press_at or time.monotonic() + 2 * GUARD_SECONDS  # a key in a new pair's first moments is ignored
        if time.monotonic() > press_at:
            press_at = time.monotonic() + 5
            focus(TITLE)
            xdotool("key", "Right")
        return env.pref_db_size.value >= 1

    search = ["xdotool", "search", "--onlyvisible", "--name", TITLE]
    step_until(lambda: bool(subprocess.run(search, capture_output=True).stdout))
    step_until(answered)
    focus(TITLE)
    xdotool("key", "Escape", "Escape")
    step_until(lambda: not subprocess.run(search, capture_output=True).stdout)
    before = env.segments_collected
    step_until(lambda: env.segments_collected > before + 2)
    with contextlib.closing(PrefDB.open(env.run_dir / "prefs.db", read_only=True)) as db:
        first = next(iter(db.answers()))
        assert first.teacher == "person" and db.segment(first.a).frames().shape == (10, 192, 192, 3)
        assert first.choice == ("a" if first.flip else "b")  # the clip on the right
    env.close()


def test_no_segment_travels_once_all_labels_are_there(tmp_path: Path) -> None:
    env = HumanPreferencesEnvWrapper(
        gymnasium.make("Pendulum-v1"),
        train_reward=False,
        segment_length=5,
        n_initial_prefs=2,
        max_prefs_in_db=2,
        **SERVER,
        log_dir=tmp_path,
    )
    env.reset(seed=0)

    def steps(n: int) -> None:
        for _ in range(n):
            if env.step(env.action_space.sample())[3]:
                env.reset()

    deadline = time.monotonic() + PATIENCE
    while env.pref_db_size.value < 2:
        assert time.monotonic() < deadline
        steps(10)
    assert env.system.background is not None
    channels = env.system.background.channels
    theirs, channels.segments = channels.segments, queue.Queue()
    before = env.segments_collected
    steps(100)
    assert env.segments_collected == before + 20 and channels.segments.empty()
    channels.segments = theirs
    env.close()


def step_until(env: HumanPreferencesEnvWrapper, reached: Callable[[], bool]) -> None:
    """Acts at random until something has come about."""
    deadline = time.monotonic() + PATIENCE
    env.reset(seed=0)
    while not reached():
        assert time.monotonic() < deadline
        if any(env.step(env.action_space.sample())[2:4]):
            env.reset()
        time.sleep(PAUSE)


def test_numpys_whole_numbers_are_as_good_as_pythons(tmp_path: Path) -> None:
    """They come from sweeps; SQLite does not take them."""
    settings = {**{name: np.int64(value) for name, value in SMALL.items()}, **SERVER, "seed": np.int64(3)}
    env = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), **settings, train_reward=False, log_dir=tmp_path)
    step_until(env, lambda: env.pref_db_size.value >= 6)
    env.close()


def test_a_wrapper_with_processes_is_not_copied(tmp_path: Path) -> None:
    """Neither for an evaluation nor into the worker of a vector environment."""
    env = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), **QUICK, train_reward=False, log_dir=tmp_path)
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(UserError, match="cannot be copied: make a new one"):
            copied(env)
    env.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a wrapper whose predictor was trained on CartPole."""
    env = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), **QUICK, log_dir=tmp_path_factory.mktemp("trained"))
    step_until(env, lambda: env.using_reward_from_predictor and env.pref_db_size.value >= 12)
    env.close()
    assert env.run_dir is not None
    return env.run_dir


@pytest.mark.xdist_group("trained")
def test_a_pretrained_predictor_rewards_from_the_first_step_whatever_goes_on_beside_it(
    trained: Path, tmp_path: Path
) -> None:
    """No step of the policy's sees the true reward, while preferences are gathered, and while it is trained on."""
    for more in ({"train_reward": False}, {}):
        env = HumanPreferencesEnvWrapper(
            gymnasium.make("CartPole-v1"),
            **{**QUICK, **more},
            log_dir=tmp_path,
            pretrained_reward_predictor_dir=trained,
        )
        env.reset(seed=0)
        assert env.step(0)[1] != 1.0 and env.using_reward_from_predictor
        step_until(env, lambda env=env: env.pref_db_size.value >= 6)  # type: ignore[misc]
        env.close()


@pytest.mark.xdist_group("trained")
def test_a_pretrained_predictor_is_trained_on_stored_preferences_without_a_step(trained: Path, tmp_path: Path) -> None:
    """Also if the run that it is of has removed the checkpoint by the time that the trainer has started."""
    source = shutil.copytree(trained, tmp_path / "source")
    env = HumanPreferencesEnvWrapper(
        gymnasium.make("CartPole-v1"),
        **QUICK,
        collect_prefs=False,
        prefs_dir=trained,
        pretrained_reward_predictor_dir=source,
        log_dir=tmp_path / "logs",
    )
    shutil.rmtree(source)
    deadline = time.monotonic() + PATIENCE
    while not env.reward_training_steps.value:
        assert env.using_reward_from_predictor and time.monotonic() < deadline
        time.sleep(0.05)
    saved = env.save_reward_predictor()
    assert saved is not None and saved.is_relative_to(tmp_path / "logs")
    env.close()


@pytest.mark.xdist_group("trained")
def test_a_predictor_that_was_saved_stays_however_many_checkpoints_follow(trained: Path, tmp_path: Path) -> None:
    settings = {**QUICK, "reward_predictor_ckpt_interval": 1}
    env = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), **settings, prefs_dir=trained, log_dir=tmp_path)
    step_until(env, lambda: env.using_reward_from_predictor)
    saved = env.save_reward_predictor()
    assert saved is not None
    step = checkpoint.read(saved)["step"]
    step_until(env, lambda: env.reward_training_steps.value > step + checkpoint.KEEP + 1)
    env.close()
    assert checkpoint.read(saved)["step"] == step < checkpoint.read(checkpoint.find(saved.parent, ""))["step"]
    assert len(checkpoint.list_checkpoints(saved.parent)) == checkpoint.KEEP


@pytest.mark.xdist_group("trained")
def test_the_first_step_after_weights_have_come_is_rewarded_by_them(trained: Path, tmp_path: Path) -> None:
    """What it is taken on was observed before, when there was nothing to read it with."""
    env = HumanPreferencesEnvWrapper(
        gymnasium.make("CartPole-v1"), **QUICK, collect_prefs=False, prefs_dir=trained, log_dir=tmp_path
    )
    env.reset(seed=0)
    deadline = time.monotonic() + PATIENCE
    while not env.using_reward_from_predictor:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    _, reward, _, _, info = env.step(0)
    assert reward == info["predicted_reward"] != info["true_reward"]
    env.close()


@pytest.mark.xdist_group("trained")
def test_a_predictor_that_is_saved_before_it_counts_has_its_rewards_normalised(trained: Path, tmp_path: Path) -> None:
    env = HumanPreferencesEnvWrapper(
        gymnasium.make("CartPole-v1"),
        **{**QUICK, "n_initial_training_steps": 10**6},
        train_reward=True,
        prefs_dir=trained,
        log_dir=tmp_path,
    )
    deadline = time.monotonic() + PATIENCE
    while not env.reward_training_steps.value:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    saved = env.save_reward_predictor()
    assert saved is not None and not env.using_reward_from_predictor
    env.close()
    state = checkpoint.load(saved, kind="reward_predictor", env_id="CartPole-v1")
    assert not state["pretrained"] and (state["weights"]["std"] != 1).all()


def test_forked_processes_train_in_a_program_that_has_computed_before(tmp_path: Path) -> None:
    """Its threads of arithmetic are not in them, and waiting for those would never end."""
    script = tmp_path / "program.py"
    script.write_text(
        "import gymnasium, time, torch\n"
        "from drlhp import HumanPreferencesEnvWrapper\n"
        "torch.set_num_threads(2)\n"
        "numbers = torch.randn(1500, 1500)\n"
        "(numbers @ numbers).sum()\n"
        f"env = HumanPreferencesEnvWrapper(gymnasium.make('CartPole-v1'), mp_context='fork', **{SMALL})\n"
        "env.reset(seed=0)\n"
        "while not env.using_reward_from_predictor:\n"
        "    env.reset() if any(env.step(env.action_space.sample())[2:4]) else None\n"
        f"    time.sleep({PAUSE})\n"
        "env.close()\n"
        "print('trained', env.reward_training_steps.value)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run_captured([sys.executable, str(script)], PATIENCE, cwd=tmp_path, env=environment)
    assert done.returncode == 0 and "trained" in done.stdout, done.stderr


def test_a_fork_of_the_program_that_ends_ends_nothing_of_the_programs(tmp_path: Path) -> None:
    env = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), **QUICK, train_reward=False, log_dir=tmp_path)
    pid = os.fork()
    if pid == 0:
        try:
            env.close()
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    step_until(env, lambda: env.pref_db_size.value >= 12)
    env.close()


def test_pictures_that_nobody_has_read_leave_no_thread_behind(tmp_path: Path) -> None:
    """More of them than the pipe between the processes holds."""

    def open_and_close() -> None:
        env = HumanPreferencesEnvWrapper(
            LampEnv(),
            **{**QUICK, "max_prefs_in_db": 10_000},
            train_reward=False,
            obs_transform_func=picture_of,
            log_dir=tmp_path,
        )
        env.reset(seed=0)
        for _ in range(60):
            if any(env.step(env.action_space.sample())[2:4]):
                env.reset()
        env.close()

    def opened() -> tuple[set[str], int]:
        open_and_close()
        deadline = time.monotonic() + PATIENCE
        while feeders := {thread.name for thread in threading.enumerate() if "Feeder" in thread.name}:
            assert time.monotonic() < deadline, feeders
            time.sleep(0.05)
        gc.collect()  # what the environment and these threads held closes with it
        return {thread.name for thread in threading.enumerate()}, len(os.listdir("/proc/self/fd"))

    opened()  # what Python keeps from the first time on is no leak
    before = opened()
    assert opened() == before


def test_the_newest_folder_that_has_preferences_counts_wherever_the_program_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), **QUICK, train_reward=False, log_dir="logs")
    step_until(env, lambda: env.pref_db_size.value >= 6)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store = env.save_prefs()
    assert store is not None
    with contextlib.closing(PrefDB.open(shutil.copy(store, tmp_path / "copy.db"), read_only=True)) as db:
        assert db.n_labels() >= 6
    env.close()
    monkeypatch.chdir(tmp_path)
    HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), **QUICK, train_reward=False, log_dir="logs").close()
    env = HumanPreferencesEnvWrapper(
        gymnasium.make("CartPole-v1"), **QUICK, train_reward=False, prefs_dir="logs", log_dir="others"
    )
    assert env.pref_db_size.value >= 6
    env.close()


def test_rewards_that_cannot_be_compared_are_told(tmp_path: Path) -> None:
    inner = gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda _: float("nan"))
    env = HumanPreferencesEnvWrapper(inner, **QUICK, log_dir=tmp_path)
    env.reset(seed=0)
    env.stop_segment_collection()
    env.step(0)  # of no segment
    env.start_segment_collection()
    with pytest.raises(UserError, match=r"CartPole-v1 returned a reward of nan.*synthetic_prefs=False"):
        env.step(0)
    env.close()


PROGRAM = """
import gymnasium, multiprocessing, sys
from time import sleep
from drlhp import HumanPreferencesEnvWrapper

def train():
    env = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), segment_length=10, log_dir="logs")
    env.reset(seed=0)
    while not env.pref_db_size.value:
        env.reset() if any(env.step(env.action_space.sample())[2:4]) else None
        sleep(0.002)
    print("ready", flush=True)
    {ending}

if __name__ == "__main__":
    {start}
"""
IN_A_PROCESS = """process = multiprocessing.get_context("{}").Process(target=train)
    process.start()
    process.join()
    sys.exit(process.exitcode)"""


def started(folder: Path, source: str) -> subprocess.Popen[str]:
    """A program of somebody's, once it has said that it is ready."""
    script = folder / "program.py"
    script.write_text(source)
    program = PreloadedPopen(
        [sys.executable, str(script)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None and program.stdout.readline() == "ready\n"
    return program


@pytest.mark.parametrize(
    ("ending", "start", "status"),
    [
        ("import time; time.sleep(1e6)", "train()", -signal.SIGKILL),
        ("raise RuntimeError('a bug')", "train()", 1),
        ("raise RuntimeError('a bug')", IN_A_PROCESS.format("spawn"), 1),
        ("raise RuntimeError('a bug')", IN_A_PROCESS.format("fork"), 1),
    ],
)
def test_no_orphan_however_the_program_ends(tmp_path: Path, ending: str, start: str, status: int) -> None:
    """Killed without a chance to tidy up, and dead of a mistake of its own without `close`."""
    program = started(tmp_path, PROGRAM.format(ending=ending, start=start))
    children = children_of(program.pid)
    children += [pid for child in children for pid in children_of(child)]
    if status == -signal.SIGKILL:
        assert len(children) == 2
        program.kill()
    _, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == status and ("a bug" in errors) == (status == 1), errors
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline, "a process outlived its program"
        time.sleep(0.1)


def test_a_program_that_survives_ctrl_c_keeps_processes_that_are_still_starting(tmp_path: Path) -> None:
    """The terminal, and a notebook, send it to all of them."""
    program = started(
        tmp_path,
        "import gymnasium, time\n"
        "from drlhp import HumanPreferencesEnvWrapper\n"
        "if __name__ == '__main__':\n"
        f"    env = HumanPreferencesEnvWrapper(gymnasium.make('CartPole-v1'), train_reward=False, **{SMALL})\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(1e6)\n"
        "    except KeyboardInterrupt:\n"
        "        env.reset(seed=0)\n"
        "    while env.pref_db_size.value < 12:\n"
        "        env.reset() if any(env.step(env.action_space.sample())[2:4]) else None\n"
        f"        time.sleep({PAUSE})\n"
        "    env.close()\n",
    )
    os.killpg(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0 and not without_waits(errors), errors


def test_a_ctrl_c_while_the_wrapper_is_closed_ends_its_processes(tmp_path: Path) -> None:
    """They are still starting, so that there is something to wait for."""
    program = started(
        tmp_path,
        "import gymnasium, multiprocessing, os, signal, threading, time\n"
        "from drlhp import HumanPreferencesEnvWrapper\n"
        "def interrupt():\n"
        "    while not env.system.closed:\n"
        "        time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "if __name__ == '__main__':\n"
        f"    env = HumanPreferencesEnvWrapper(gymnasium.make('CartPole-v1'), **{SMALL})\n"
        "    threading.Thread(target=interrupt).start()\n"
        "    print('ready', flush=True)\n"
        "    try:\n"
        "        env.close()\n"
        "    except KeyboardInterrupt:\n"
        "        env.close()\n"
        "        print('interrupted with', len(multiprocessing.active_children()))\n",
    )
    printed, errors = program.communicate(timeout=PATIENCE)
    assert program.returncode == 0 and printed == "interrupted with 0\n" and not without_waits(errors), errors


@pytest.mark.parametrize("mp_context", ["spawn", "forkserver"])
def test_a_script_without_a_main_guard_is_told(tmp_path: Path, mp_context: str) -> None:
    """In the last line that it prints, though the processes that it starts find it out."""
    script = tmp_path / "program.py"
    script.write_text(
        "import gymnasium, drlhp\n"
        "env = drlhp.HumanPreferencesEnvWrapper(gymnasium.make('CartPole-v1'), log_dir='logs', mp_context='"
        f"{mp_context}')\n"
        "env.reset()\n"
        "while True:\n    env.reset() if any(env.step(env.action_space.sample())[2:4]) else None\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run_captured([sys.executable, str(script)], PATIENCE, cwd=tmp_path, env=environment)
    *_, last = done.stderr.splitlines()
    assert done.returncode == 1 and last.startswith("drlhp.errors.UserError: the wrapper starts processes")
    assert last.endswith("put what the script does under `if __name__ == '__main__':`.")
    assert "ChildError" not in done.stderr and done.stderr.count("Traceback") == 1


def test_a_script_that_is_read_from_the_standard_input_is_told(tmp_path: Path) -> None:
    """No other process can import it; a fork need not."""
    script = (
        "import gymnasium, drlhp\n"
        "for more in {'mp_context': 'fork'}, {}:\n"
        "    drlhp.HumanPreferencesEnvWrapper(gymnasium.make('CartPole-v1'), **more).close()\n"
        "    print('closed', more, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable],
        input=script,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout.splitlines()[-1] == "closed {'mp_context': 'fork'}", done.stdout + done.stderr
    assert done.returncode == 1 and "put it in a file, or set mp_context='fork'." in done.stderr
    assert "FileNotFoundError" not in done.stderr


def test_episodes_too_short_for_any_segment_are_told(tmp_path: Path) -> None:
    env = HumanPreferencesEnvWrapper(gymnasium.make("CartPole-v1"), segment_length=400, **SERVER, log_dir=tmp_path)
    with pytest.raises(UserError, match="none of 50 episodes of CartPole-v1 lasted for half of segment_length 400"):
        for _ in range(51):
            env.reset()
            while not any(env.step(0)[2:4]):
                pass
    env.close()


def test_episodes_that_are_cut_from_outside_before_any_segment_are_told(tmp_path: Path) -> None:
    inner = HumanPreferencesEnvWrapper(gymnasium.make("Pendulum-v1"), segment_length=40, **SERVER, log_dir=tmp_path)
    env = gymnasium.wrappers.TimeLimit(inner, 15)
    with pytest.raises(UserError, match="none of 50 episodes of Pendulum-v1 lasted for half of segment_length 40"):
        for _ in range(52):
            env.reset()
            while not any(env.step(env.action_space.sample())[2:4]):
                pass
    env.close()
