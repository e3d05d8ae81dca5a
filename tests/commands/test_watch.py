"""Real runs, as short as can be, watched in videos that are read back and in windows on a real X server."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from a2c.demonstrations import Demonstrations
from commands import show_prefs, watch
from commands.show_prefs import show_prefs_command
from drlhp import pictures as video
from drlhp.data.comparison import Choice, Comparison
from drlhp.data.segment import Segment
from drlhp.errors import PrefDBError, UserError
from drlhp.runtime import checkpoint
from drlhp.runtime.checkpoint import CheckpointError
from envs import env_info
from pref_db import PrefDB
from tests.support import ROOT
from tests.support.commands import DEADLINE
from tests.support.display import focus, screenshot, xdotool
from tests.support.preloaded import PreloadedPopen, run_captured

MOVING_DOT = "MovingDotNoFrameskip-v0"
EPISODE_STEPS = 250  # of the moving dot
N_LABELS = 20
LINES_HEIGHT = len(video.with_lines(np.zeros((420, 320, 3), np.uint8), ("", "", ""))) - 420  # of a film's caption


pytestmark = pytest.mark.xdist_group("watch")  # what they share is made once


@pytest.fixture
def headless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)


@pytest.fixture
def dot(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run, to add to and to damage."""
    return shutil.copytree(finished, tmp_path / "dot")


def read_video(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def near(picture: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """Which pixels (H, W) have a colour, give or take what a video codec does to it."""
    return np.abs(picture.astype(int) - colour).max(axis=-1) < 40


@pytest.mark.usefixtures("headless")
def test_an_episode_becomes_a_video_with_its_predicted_reward(
    dot: Path, short_episodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that overwrites no other, and says what it shows; and a checkpoint finds its run."""
    (dot / "watch.mp4").write_bytes(b"kept")
    (dot / "watch-2.mp4").write_bytes(b"kept")
    watch.watch_command([str(checkpoint.find(dot, "policy")), "--seed", "7"])
    assert (dot / "watch.mp4").read_bytes() == (dot / "watch-2.mp4").read_bytes() == b"kept"
    frames = read_video(dot / "watch-3.mp4")
    assert len(frames) == short_episodes and frames[0].shape == (420 + video.PLOT_HEIGHT + LINES_HEIGHT, 320, 3)
    assert near(frames[0][:420], (255, 255, 255)).sum() > 20  # the dot
    curve = [near(frames[i][420:-LINES_HEIGHT], video.BAR).any(axis=0).sum() for i in (10, 30, 50)]
    assert curve[0] < curve[1] < curve[2]  # grows as it plays
    printed = capsys.readouterr().out
    assert "No window can be opened here" in printed and "watch-3.mp4" in printed
    line = rf"Episode 1: {short_episodes} steps, true reward (-?\d+), predicted reward (-?\d+\.\d\d), "
    line += r"correlation [+-]\d\.\d\d"
    found = re.search(line, printed)
    assert found is not None
    assert_lines(frames, 7, 1, f"reward so far: true {found[1]}, predicted {float(found[2]):g}")


def lines_of(frame: np.ndarray, n: int) -> np.ndarray:
    """So many rows of pixels at the bottom of a frame, in grey."""
    return frame[-n:].mean(axis=-1)


def shown_as_lines(width: int, *lines: str) -> np.ndarray:
    """What a film shows below its picture, if these are the lines."""
    picture = video.with_lines(np.zeros((1, width, 3), np.uint8), lines)
    return lines_of(picture, len(picture) - 1)


def assert_lines(frames: list[np.ndarray], seed: int, n_episodes: int, rewards: str) -> None:
    """A film says the task, the seed, the step, and the rewards, in every frame."""
    width, last = frames[0].shape[1], f"episode {n_episodes}/{n_episodes}  ·  step {len(frames) // n_episodes}"
    for i, step, last_line in ((39, f"episode 1/{n_episodes}  ·  step 40", None), (-1, last, rewards)):
        expected = shown_as_lines(width, f"{MOVING_DOT}  ·  seed {seed}", step, last_line or "")
        shown = lines_of(frames[i], len(expected))
        n_rows = len(expected) if last_line else len(expected) * 5 // 8  # not yet the rewards, of which none is printed
        assert np.abs(shown - expected)[:n_rows].mean() < 2, "as far as a codec may change it"
    other = shown_as_lines(width, f"{MOVING_DOT}  ·  seed {seed + 1}", last, rewards)
    assert np.abs(shown - other).mean() > np.abs(shown - expected).mean() + 0.1


def test_a_folder_that_may_not_be_written_to_is_named_before_anything_is_played() -> None:
    # Permissions do not bind root, so the child gives that up once its imports are done.
    code = """
        import os, sys
        from pathlib import Path
        from commands import watch
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        watch.check_folder("output", Path(sys.argv[1]) / "watch.mp4")
    """
    with tempfile.TemporaryDirectory() as folder:  # pytest's own may be entered by one user alone
        Path(folder).chmod(0o555)
        line = [sys.executable, "-c", textwrap.dedent(code), folder]
        result = run_captured(line, DEADLINE, cwd=ROOT)
    assert f"UserError: {folder} may not be written to; give --output with a file in another" in result.stderr


def printed_until_ctrl_c(process: subprocess.Popen[str], is_far_enough: Callable[[], bool]) -> str:
    """What a command still prints that gets a Ctrl-C when it is far enough."""
    try:
        deadline = time.monotonic() + 120
        while not is_far_enough():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return printed


@pytest.mark.usefixtures("headless")
def test_ctrl_c_ends_the_video_and_keeps_what_was_played(dot: Path, tmp_path: Path) -> None:
    film = tmp_path / "film.mp4"
    process = start([], "watch", str(dot), "--episodes", "10000", "--output", str(film))
    # What is written until it has its name:
    printed = printed_until_ctrl_c(process, lambda: bool(list(tmp_path.glob(".film.*"))))
    end = re.search(r"Stopped: the video ends at episode (\d+)/10000 .* step (\d+) ", printed)
    assert process.returncode == 0 and end and str(film) in printed
    assert len(read_video(film)) == EPISODE_STEPS * (int(end[1]) - 1) + int(end[2])
    assert not list(tmp_path.glob(".film.*"))


def test_ctrl_c_ends_a_recording_and_keeps_the_whole_episodes(dot: Path, tmp_path: Path) -> None:
    place = tmp_path / "play.npz"
    process = start([], "watch", str(dot), "--episodes", "10000", "--record_demonstrations", str(place))
    assert process.stdout is not None
    output = process.stdout
    printed = printed_until_ctrl_c(process, lambda: output.readline().startswith("Episode 2:"))
    end = re.search(r"Stopped: the file ends with episode (\d+) of 10000", printed)
    assert process.returncode == 0 and end and str(place) in printed
    kept = Demonstrations.load(place, env_info(MOVING_DOT))
    assert list(kept.lengths) == [EPISODE_STEPS] * int(end[1])


@pytest.mark.usefixtures("headless")
def test_a_run_without_a_predictor_is_watched_without_a_plot(
    dot: Path, short_episodes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(dot / "reward_predictor")
    watch.watch_command([str(dot / "policy"), "--episodes", "2", "--output", str(tmp_path / "dot.mp4")])
    printed = capsys.readouterr().out
    assert "has no reward predictor, so none is drawn" in printed and "predicted reward" not in printed
    assert re.findall(r"Episode (\d): (\d+) steps", printed) == [("1", str(short_episodes)), ("2", str(short_episodes))]
    frames = read_video(tmp_path / "dot.mp4")
    assert len(frames) == 2 * short_episodes and frames[0].shape == (420 + LINES_HEIGHT, 320, 3)


def test_two_agents_play_side_by_side_from_the_same_starts(
    dot: Path, short_episodes: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither with predicted rewards, which one of them could not have."""
    other = tmp_path / "other"
    shutil.copytree(dot / "policy", other / "policy")
    film = tmp_path / "both.mp4"
    flags = ["--episodes", "2", "--deterministic", "--seed", "7", "--output", str(film)]
    watch.watch_command([str(dot), "--beside", str(other), *flags])
    printed = capsys.readouterr().out
    episodes = re.findall(rf"Episode (\d), (left|right): {short_episodes} steps, true reward (-?\d+)", printed)
    assert [episode[:2] for episode in episodes] == [("1", "left"), ("1", "right"), ("2", "left"), ("2", "right")]
    assert episodes[0][2] == episodes[1][2] and "predict" not in printed
    frames = read_video(film)
    assert len(frames) == 2 * short_episodes
    middle = frames[0].shape[1] // 2
    dots = [near(side[:400], (255, 255, 255)).sum() for side in (frames[0][:, :middle], frames[0][:, middle:])]
    assert min(dots) > 20
    left, right = (episode[2] for episode in episodes[2:])
    assert_lines(frames, 7, 2, f"reward so far: true {left} on the left, {right} on the right")


def test_the_agent_is_the_one_that_was_saved(dot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(dot / "policy")
    assert watch.Agent.load(Path()).predictor is not None, "also from inside"
    agent = watch.Agent.load(dot)
    saved = {part: checkpoint.read(checkpoint.find(dot, part))["weights"] for part in ("policy", "reward_predictor")}
    assert agent.predictor is not None and agent.folder == dot
    for module, weights in ((agent.policy, saved["policy"]), (agent.predictor, saved["reward_predictor"])):
        state = module.state_dict()
        assert state.keys() == weights.keys() and all(torch.equal(state[name], weights[name]) for name in weights)


def test_the_same_seed_plays_the_same_episode(dot: Path) -> None:
    agent = watch.Agent.load(dot)

    def played(*flags: str) -> list[str]:
        config = watch.WatchConfig(dot, deterministic="deterministic" in flags, seed=3 if "seed" in flags else 0)
        with contextlib.closing(watch.film(agent, config)) as scenes:
            return [scene.caption for scene in itertools.islice(scenes, 60)]

    usual, most_likely = played(), played("deterministic")
    assert usual == played() != played("seed")
    assert most_likely == played("deterministic") != usual


def test_the_summary_says_how_true_and_predicted_rewards_agree() -> None:
    true = [0.0, 1.0, -1.0, 1.0]
    line = watch.summary(true, [2 * reward + 1 for reward in true])
    assert line == "4 steps, true reward 1, predicted reward 6.00, correlation +1.00 over its steps"
    assert "the true reward never changed" in watch.summary([1.0, 1.0], [0.0, 1.0])


def without_policy(dot: Path) -> str:
    shutil.rmtree(dot / "policy")
    return str(dot)


def damaged_policy(dot: Path) -> str:
    path = checkpoint.find(dot, "policy")
    path.write_bytes(path.read_bytes()[:5000])
    return str(path)


def predictor_of_another_environment(dot: Path) -> str:
    path = checkpoint.find(dot, "reward_predictor")
    checkpoint.save(path.parent, 10**6, {**checkpoint.read(path), "step": 10**6, "env_id": "PongNoFrameskip-v4"})
    return str(dot)


def diverged_predictor(dot: Path) -> str:
    path = checkpoint.find(dot, "reward_predictor")
    state = checkpoint.read(path)
    weights = {name: tensor * math.nan for name, tensor in state["weights"].items() if tensor.is_floating_point()}
    checkpoint.save(path.parent, 10**6, {**state, "step": 10**6, "weights": state["weights"] | weights})
    return str(dot)


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (lambda dot: str(dot / "nowhere"), "nowhere does not exist; give a run folder"),
        (without_policy, "holds no checkpoint"),
        (damaged_policy, "is damaged or no checkpoint of ours"),
        (lambda dot: str(dot / "reward_predictor"), "is a reward_predictor checkpoint, not one of a policy"),
        (diverged_predictor, "diverged, so it predicts no numbers; train again with a lower"),
        (predictor_of_another_environment, f"was trained on PongNoFrameskip-v4, not on {MOVING_DOT}"),
    ],
)
def test_what_cannot_be_watched_is_said_in_a_sentence(
    dot: Path, break_it: Callable[[Path], str], sentence: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        watch.watch_command([break_it(dot)])
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--output", "film.avi"], "--output film.avi is no video name; end it in .mp4 or .gif."),
        (["--output", "nowhere/film.gif"], "is in a folder that does not exist; make nowhere first."),
        (["--episodes", "0"], "--episodes must be a whole number, 1 or more, not 0."),
        (["--seed", "-1"], "--seed must be a whole number, 0 or more, and below 2^62, not -1."),
        (["--seed", str(2**62)], "--seed must be a whole number, 0 or more, and below 2^62, not"),
        (["--record_demonstrations", "a.npz", "--beside", "runs/b"], "is of one agent; leave out --beside."),
    ],
)
def test_flags_that_cannot_work_are_refused_before_anything_is_played(
    dot: Path, flags: list[str], sentence: str
) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        watch.watch_command([str(dot), *flags])


@pytest.mark.usefixtures("headless")
def test_the_answers_become_a_video_and_a_table(
    dot: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are in the table; the newest ones are filmed."""
    n_filmed = 6
    monkeypatch.setattr(show_prefs, "MAX_FILMED_PAIRS", n_filmed)
    show_prefs_command([str(dot / "prefs.db")])
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if re.match(r" +\d+  oracle ", line)]
    assert [int(row[0]) for row in rows] == list(range(1, N_LABELS + 1))
    for row in rows:  # the oracle goes by the true rewards
        left, right = float(row[-4]), float(row[-3])
        assert row[2] == ("left" if left > right else "right" if right > left else "equal")
    frames, steps = read_video(dot / "show_prefs.mp4"), env_info(MOVING_DOT).segment_length
    assert len(frames) == n_filmed * (steps + 8) and frames[0].shape == (480, 720, 3)
    for row, frame in zip(rows[-n_filmed:], frames[:: steps + 8], strict=True):
        framed = near(frame, video.CHOSEN)
        assert framed[:, :360].any() == (row[2] in ("left", "equal"))
        assert framed[:, 360:].any() == (row[2] in ("right", "equal"))


def segment(env_id: str, reward: float) -> Segment:
    return Segment(
        env_id,
        np.full((5, 4), reward, np.float32),
        np.zeros(5, np.int64),
        np.full(5, reward, np.float32),
        stack=1,
        policy_step=0,
        seed=0,
        fps=30.0,
    )


@pytest.mark.usefixtures("headless")
def test_answers_about_vectors_are_a_table_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = PrefDB.create(tmp_path / "prefs.db", "CartPole-v1", 25)
    high, low = segment("CartPole-v1", 2.0), segment("CartPole-v1", 1.0)
    at = datetime(2026, 3, 1, 12, 30).timestamp()
    for comparison, choice, teacher in (
        (Comparison(high, low, flip=False), Choice.A, "Ada"),
        (Comparison(high, segment("CartPole-v1", 0.0), flip=True), Choice.A, "Ada"),
        (Comparison(low, segment("CartPole-v1", 3.0), flip=False), Choice.EQUAL, "Ada"),
        (Comparison(low, segment("CartPole-v1", 4.0), flip=True), Choice.INCOMPARABLE, "my_teachers:judge"),
    ):
        db.add_answer(comparison, choice, teacher=teacher, answered_at=at)
    db.close()
    show_prefs_command([str(tmp_path)])
    *_, head, first, second, third, fourth, sentence = capsys.readouterr().out.splitlines()
    time_text = "2026-03-01 12:30"
    assert [" ".join(line.split()) for line in (first, second, third, fourth)] == [
        f"1 Ada left better 10 5 {time_text}",
        f"2 Ada right better 0 10 {time_text}",
        f"3 Ada equal 5 15 {time_text}",
        f"4 my_teachers:judge can't tell 20 5 {time_text}",
    ]
    assert head.index("answer") == first.index("left better") == fourth.index("can't tell")
    assert "hold numbers and no clips" in sentence
    assert sorted(path.name for path in tmp_path.iterdir() if "prefs.db" not in path.name) == []


def test_answers_that_cannot_be_shown_are_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(PrefDBError, match=r"prefs\.db does not exist"):
        show_prefs_command([str(tmp_path)])
    PrefDB.create(tmp_path / "prefs.db", "CartPole-v1", 25).close()
    with pytest.raises(UserError, match=r"holds no answers yet; gather some with gather_initial_prefs\.$"):
        show_prefs_command([str(tmp_path)])
    (tmp_path / "prefs.db").write_bytes(b"x" * 5000)
    with pytest.raises(PrefDBError):
        show_prefs_command([str(tmp_path)])


@pytest.fixture
def command(display: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that a test started, ended with it."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def start(processes: list[subprocess.Popen[str]], *arguments: str) -> subprocess.Popen[str]:
    process = PreloadedPopen(
        [sys.executable, "run.py", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    processes.append(process)
    return process


def screen_until(process: subprocess.Popen[str], shows: tuple[int, int, int], left: bool | None = None) -> np.ndarray:
    """Looks at the screen until a colour is on it (on the left or right half of the window); fails after 30 s."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        picture = screenshot()
        where = (picture == shows).all(axis=-1)
        halves = where[:, :540].any(), where[:, 540:1080].any()
        if (any(halves) and left is None) or (left is not None and halves == (left, not left)):
            return picture
    raise AssertionError(f"{shows} never came; the program printed: {process.communicate(timeout=1)[0]}")


@pytest.mark.window
def test_an_episode_plays_in_a_window_until_it_is_closed(dot: Path, command: list[subprocess.Popen[str]]) -> None:
    process = start(command, "watch", str(dot))
    focus("Watching MovingDot")
    picture = screen_until(process, video.BAR)
    assert (picture == 255).all(axis=-1).sum() >= 32  # the dot, enlarged
    xdotool("key", "Escape")
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and "Video" not in printed and "Traceback" not in printed
    assert not list(dot.glob("*.mp4"))


@pytest.mark.window
def test_answers_are_stepped_through_in_a_window(tmp_path: Path, command: list[subprocess.Popen[str]]) -> None:
    rng = np.random.default_rng(0)
    segments = [
        Segment(
            MOVING_DOT,
            rng.integers(0, 256, (28, 84, 84), dtype=np.uint8),
            np.zeros(25, np.int64),
            np.zeros(25, np.float32),
            stack=4,
            policy_step=0,
            seed=0,
            fps=15.0,
        )
        for _ in range(3)
    ]
    db = PrefDB.create(tmp_path / "prefs.db", MOVING_DOT, 25)
    db.add_answer(Comparison(segments[0], segments[1], flip=False), Choice.A, teacher="Ada")
    db.add_answer(Comparison(segments[1], segments[2], flip=True), Choice.A, teacher="Ada")
    db.close()
    process = start(command, "show_prefs", str(tmp_path))
    focus("Answers about MovingDot")
    screen_until(process, video.CHOSEN, left=True)
    for key, left in (("Right", False), ("Right", False), ("u", True), ("Return", False), ("Left", True)):
        xdotool("key", key)
        screen_until(process, video.CHOSEN, left=left)
    xdotool("key", "Escape")
    assert process.wait(timeout=30) == 0
    assert not list(tmp_path.glob("*.mp4"))
