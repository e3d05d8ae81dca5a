"""A trained agent at play, in a window or as a video (`run.py watch`)."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro

from a2c import demonstrations
from commands.agent import Agent, play
from drlhp.bounds import SEED, at_least, check
from drlhp.cli.arguments import read_arguments
from drlhp.cli.runs import find_run
from drlhp.errors import UserError
from drlhp.pictures import VIDEO_SUFFIXES, pair_picture, unused, with_lines, with_reward_plot, write_video
from drlhp.runtime.pulse import here
from drlhp.screens.canvas import DisplayError, open_display
from drlhp.screens.episode_window import EpisodeWindow
from envs import EnvInfo, make_vec_env

PAUSE_SECONDS = 1.0  # at the end of an episode
PAIR_HOLD_SECONDS = 0.5  # a video holds a pair's last frame and its answer
MAX_FILMED_PAIRS = 50
REFRESH_SECONDS = 1 / 60
SEPARATOR = "  ·  "


@dataclass(frozen=True)
class WatchConfig:
    """Plays a trained agent, with the predicted reward drawn as it plays."""

    run_or_checkpoint: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN_OR_CHECKPOINT")]
    """Run folder, its policy folder, or one policy checkpoint (step-*.pt)."""
    episodes: Annotated[int, at_least(1)] = 1
    """Episodes to play."""
    beside: Path | None = None
    """Run folder or policy checkpoint of a second agent of the same environment, which plays on the right."""
    output: Path | None = None
    """Write a captioned video (.mp4, .gif) instead of opening a window, until Ctrl-C; if it exists, the new one is
    numbered."""
    record_demonstrations: Path | None = None
    """Show nothing, and write the episodes, until Ctrl-C, to this file (.npz), for `--demonstrations` of a training
    run; if it exists, the new one is numbered."""
    deterministic: bool = False
    """Take the most likely action at every step; otherwise actions are drawn at random, as in training."""
    seed: Annotated[int, SEED] = 0
    """Seed of the environment and of the actions."""


def watch_command(arguments: list[str]) -> None:
    """`run.py watch`: plays episodes in a window at real speed or, without one, into a video, and prints their rewards.

    Raises:
        UserError, CheckpointError, EnvError, OSError: what was given cannot be played or written.
    """
    needs = {"run_or_checkpoint": "RUN_OR_CHECKPOINT"}
    config = read_arguments(WatchConfig, "watch", arguments, needs=needs, example="RUN")
    check(config, "--")
    if config.record_demonstrations and config.output:
        raise UserError("--record_demonstrations shows nothing, so there is no video for --output; leave one out.")
    if config.record_demonstrations and config.beside:
        raise UserError("--record_demonstrations is of one agent; leave out --beside.")
    agent = Agent.load(find_run(config.run_or_checkpoint))
    other = None if config.beside is None else Agent.load(find_run(config.beside))
    if other is not None and other.info.env_id != agent.info.env_id:
        raise UserError(
            f"--beside {config.beside} plays {other.info.env_id}, not {agent.info.env_id}; give an agent of the same."
        )
    here().begin("")  # what is played is on the screen, or said episode by episode
    print(f"{agent.info.env_id}, policy of {agent.policy_path}", flush=True)
    if config.record_demonstrations:
        record_demonstrations(agent, config, config.record_demonstrations)
        return
    if agent.predictor is None and other is None:
        print(f"{agent.folder} has no reward predictor, so none is drawn.", flush=True)
    output = video_path(config.output, agent.folder / "watch.mp4")
    with contextlib.closing(film_pair(agent, other, config) if other else film(agent, config)) as scenes:
        if output is None:
            play_in_window(scenes, agent.info)
        else:
            path = write_video(output, until_ctrl_c(scenes), agent.info.fps, keep=True)
            print(f"Video: {path}", flush=True)


def until_ctrl_c(scenes: Iterator[Scene]) -> Iterator[np.ndarray]:
    """Yields the scenes' pictures until a Ctrl-C, so that the video up to then is still written."""
    pressed = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        for scene in scenes:
            yield with_lines(scene.picture, scene.lines)
            if pressed.is_set():
                print(f"Stopped: the video ends at {scene.caption}", flush=True)
                return
    finally:
        signal.signal(signal.SIGINT, before)  # the next Ctrl-C ends the program


def record_demonstrations(agent: Agent, config: WatchConfig, path: Path) -> None:
    """Plays the episodes, up to a Ctrl-C, without showing them, and writes them to a file.

    Raises UserError if that cannot be made.
    """
    if path.suffix != ".npz":
        raise UserError(f"--record_demonstrations {path} is no name of a recording; end it in .npz.")
    check_folder("record_demonstrations", path)
    torch.manual_seed(config.seed)
    played = demonstrations.record(
        agent.info, agent.policy, episodes=config.episodes, seed=config.seed, deterministic=config.deterministic
    )
    recorded = []
    try:
        for number, episode in enumerate(played, start=1):
            recorded.append(episode)
            print(f"Episode {number}: {len(episode)} steps, true reward {episode.rewards.sum():g}", flush=True)
    except KeyboardInterrupt:
        if not recorded:
            raise
        print(f"Stopped: the file ends with episode {len(recorded)} of {config.episodes}", flush=True)
    path = unused(path)
    demonstrations.joined(recorded).save(path)
    print(f"Demonstrations: {path}", flush=True)


def video_path(output: Path | None, default: Path) -> Path | None:
    """Returns the path of the video to write; None if a window can be opened and no file was asked for.

    Raises:
        UserError: a file that cannot be made.
    """
    if output is None:
        try:
            open_display()
        except DisplayError:
            print("No window can be opened here, so a video is written.", flush=True)
        else:
            return None
    path = output or default
    if path.suffix.lower() not in VIDEO_SUFFIXES:
        raise UserError(f"--output {path} is no video name; end it in .mp4 or .gif.")
    check_folder("output", path)
    return path


def check_folder(flag: str, path: Path) -> None:
    """Raises UserError if a file's folder does not exist or may not be written to; called before anything is played."""
    if not path.parent.is_dir():
        raise UserError(f"--{flag} {path} is in a folder that does not exist; make {path.parent} first.")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{path.parent} may not be written to; give --{flag} with a file in another folder.")


@dataclass(frozen=True)
class Scene:
    """One agent step as people see it."""

    picture: np.ndarray  # (H, W, 3) uint8, with the plot if there is a predictor
    lines: tuple[str, str, str]  # below it in a video: the task and the seed, the step, the rewards so far
    true: float  # true reward of the episode so far; of two agents, that of the left one
    ends_episode: bool

    @property
    def caption(self) -> str:
        """Returns the step and the rewards in one line."""
        return SEPARATOR.join(self.lines[1:])


def film(agent: Agent, config: WatchConfig, side: str = "") -> Generator[Scene]:
    """Plays the episodes and yields each step as a scene; prints each episode's rewards at its end.

    Args:
        side: the agent's side of the window, for the printed line.
    """
    torch.manual_seed(config.seed)
    env = make_vec_env(agent.info.env_id, 1, config.seed, n_watched=1, all_frames=agent.info.all_frames)
    try:
        for episode in range(1, config.episodes + 1):
            true: list[float] = []
            predicted: list[float] = []
            for step in play(agent, env, deterministic=config.deterministic):
                assert step.picture is not None
                picture = step.picture
                if step.predicted is not None:
                    predicted.append(step.predicted)
                    picture = with_reward_plot(picture, predicted, caption="predicted reward")
                true.append(step.true)
                task = f"{agent.info.env_id}{SEPARATOR}seed {config.seed}"
                at = f"episode {episode}/{config.episodes}{SEPARATOR}step {len(true)}"
                rewards = f"reward so far: true {_short(sum(true))}"
                if predicted:
                    rewards += f", predicted {_short(sum(predicted))}"
                yield Scene(picture, (task, at, rewards), sum(true), step.ends_episode)
            print(f"Episode {episode}{side}: {summary(true, predicted)}", flush=True)
    finally:
        env.close()


def film_pair(left: Agent, right: Agent, config: WatchConfig) -> Generator[Scene]:
    """Yields scenes of two agents side by side, from the same starts; the first to end an episode waits for the other.

    Without predicted rewards, since only one agent may have a predictor, and what they do should look alike.
    """
    names = f"{left.folder.resolve().name}  ·  {right.folder.resolve().name}"
    a = film(replace(left, predictor=None), config, ", left")
    b = film(replace(right, predictor=None), config, ", right")
    with contextlib.closing(a), contextlib.closing(b):
        for _ in range(config.episodes):
            first, second = next(a), next(b)
            while True:
                over = first.ends_episode and second.ends_episode
                picture = pair_picture(first.picture, second.picture, (), caption=names)
                task, at, _ = (second if first.ends_episode else first).lines
                left_reward, right_reward = _short(first.true), _short(second.true)
                rewards = f"reward so far: true {left_reward} on the left, {right_reward} on the right"
                yield Scene(picture, (task, at, rewards), first.true, over)
                if over:
                    break
                first = first if first.ends_episode else next(a)
                second = second if second.ends_episode else next(b)
        for scenes in (a, b):
            next(scenes, None)  # prints the last episode's rewards


def _short(reward: float) -> str:
    return f"{round(reward, 2):g}"


def summary(true: Sequence[float], predicted: Sequence[float]) -> str:
    """Returns one line on an episode's rewards; `predicted` is empty without a predictor."""
    text = f"{len(true)} steps, true reward {sum(true):g}"
    if not predicted:
        return text
    text += f", predicted reward {sum(predicted):.2f}"
    constant = [name for name, rewards in (("true", true), ("predicted", predicted)) if np.ptp(rewards) == 0]
    if constant:
        return f"{text}, no correlation, as the {constant[0]} reward never changed"
    return f"{text}, correlation {np.corrcoef(true, predicted)[0, 1]:+.2f} over its steps"


def play_in_window(scenes: Iterator[Scene], info: EnvInfo) -> None:
    """Shows scenes at real speed until they end or the window is closed."""
    window = EpisodeWindow(f"Watching {info.env_id}")
    try:
        due = time.monotonic()
        for scene in scenes:
            if closed_before(window, due):
                return
            window.show_frame(scene.picture, "\n".join(scene.lines[1:]))  # the title names the task
            # A slow machine plays slower, and does not speed up later.
            due = max(due + 1 / info.fps, time.monotonic()) + PAUSE_SECONDS * scene.ends_episode
        closed_before(window, due)
    finally:
        window.close()


def closed_before(window: EpisodeWindow, due: float) -> bool:
    """Keeps the window alive until a time of the monotonic clock; returns True as soon as the window is closed."""
    while "close" not in window.tick():
        left = due - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, REFRESH_SECONDS))
    return True
