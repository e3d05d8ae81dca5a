"""Looking at what was learned: a trained agent at play (`watch`), and the answers it learned from (`show_prefs`)."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro

import checkpoint
from a2c import demonstrations
from a2c.model import Policy
from config import check_seed
from envs import EnvInfo, PreferenceVecEnv, env_info, make_vec_env
from pref_db import AnswerRow, Choice, PrefDB, store_path
from processes import UserError
from reward_predictor import PredictorConfig, PredictorInputs, RewardPredictor
from video import VIDEO_SUFFIXES, pair_picture, unused, with_reward_plot, write_video
from viewer import CHOSEN_SIDES, AnswerWindow, DisplayError, EpisodeWindow, open_display

PAUSE_SECONDS = 1.0  # the end of an episode stays on
PAIR_HOLD_SECONDS = 0.5  # in videos: a pair's last frame and its answer stay on
MAX_FILMED_PAIRS = 50
REFRESH_SECONDS = 1 / 60
ANSWER_WORDS = {"left": "left better", "right": "right better", "equal": "equal", "incomparable": "can't tell"}


@dataclass(frozen=True)
class WatchConfig:
    """Plays a trained agent, with the predicted reward drawn as it plays."""

    run_or_checkpoint: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN_OR_CHECKPOINT")]
    """Run folder, its policy folder, or one policy checkpoint (step-*.pt)."""
    episodes: int = 1
    """Episodes to play."""
    beside: Path | None = None
    """Run folder or policy checkpoint of a second agent of the same environment, which plays on the right."""
    output: Path | None = None
    """Write a video (.mp4, .gif) instead of opening a window, up to a Ctrl-C; if it exists, the new one is numbered."""
    record_demonstrations: Path | None = None
    """Show nothing, and write the episodes, up to a Ctrl-C, to this file (.npz), for `--demonstrations` of a training
    run; if it exists, the new one is numbered."""
    deterministic: bool = False
    """Take the most likely action at every step; otherwise actions are drawn at random, as in training."""
    seed: int = 0
    """Seed of the environment and of the actions."""


@dataclass(frozen=True)
class ShowPrefsConfig:
    """Steps through a run's comparisons and their answers."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Run folder, or its prefs.db."""
    output: Path | None = None
    """Write a video (.mp4 or .gif) instead of opening a window; if it exists, the new one is numbered."""


def watch_command(arguments: list[str]) -> None:
    """`run.py watch`: plays episodes in a window at real speed or, without one, into a video, and prints their rewards.

    Raises:
        UserError, CheckpointError, EnvError, OSError: what was given cannot be played or written.
    """
    config = tyro.cli(WatchConfig, prog="run.py watch", args=arguments, use_underscores=True)
    if config.episodes < 1:
        raise UserError(f"--episodes must be 1 or more, not {config.episodes}.")
    check_seed(config.seed)
    if config.record_demonstrations and config.output:
        raise UserError("--record_demonstrations shows nothing, so there is no video for --output; leave one out.")
    if config.record_demonstrations and config.beside:
        raise UserError("--record_demonstrations is of one agent; leave out --beside.")
    agent = Agent.load(config.run_or_checkpoint)
    other = None if config.beside is None else Agent.load(config.beside)
    if other is not None and other.info.env_id != agent.info.env_id:
        raise UserError(
            f"--beside {config.beside} plays {other.info.env_id}, not {agent.info.env_id}; give an agent of the same."
        )
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
    """The scenes' pictures; after a Ctrl-C there are no more, so that a video of those until then is written."""
    pressed = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        for scene in scenes:
            yield scene.picture
            if pressed.is_set():
                print(f"Stopped: the video ends at {scene.caption}", flush=True)
                return
    finally:
        signal.signal(signal.SIGINT, before)  # the next one ends all


def record_demonstrations(agent: Agent, config: WatchConfig, path: Path) -> None:
    """Plays the episodes, or those up to a Ctrl-C, without showing them and writes them to a file.

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


def show_prefs_command(arguments: list[str]) -> None:
    """`run.py show_prefs`: shows answered pairs in a window or, without one, in a video and a table.

    Raises:
        UserError, PrefDBError, OSError: there is nothing to show, or it cannot be read or written.
    """
    config = tyro.cli(ShowPrefsConfig, prog="run.py show_prefs", args=arguments, use_underscores=True)
    path = store_path(config.run)
    with contextlib.closing(PrefDB.open(path, read_only=True)) as db:
        answers = [Answer(i, row, db) for i, row in enumerate(db.answers(), start=1)]
        if not answers:
            raise UserError(f"{path} holds no answers yet; gather some with gather_initial_prefs.")
        visible = answers_with_pictures(answers)
        output = video_path(config.output, path.parent / "show_prefs.mp4") if visible else None
        if visible and output is None:
            step_through(visible, len(answers), f"Answers about {db.env_id}")
            return
        print_table(answers)
        if output is not None:
            newest = visible[-MAX_FILMED_PAIRS:]
            written = write_video(output, film_of_pairs(newest, len(answers)), newest[0].fps, keep=True)
            print(f"Video of the newest {len(newest)}: {written}", flush=True)
        else:
            print(f"The segments of {db.env_id} hold numbers and no clips, so there is nothing more to show.")


def video_path(output: Path | None, default: Path) -> Path | None:
    """Where a video is wanted; None if a window can be opened and no file was asked for.

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
    """Raises UserError if there is no folder for a file to be written, said before anything is played for it."""
    if not path.parent.is_dir():
        raise UserError(f"--{flag} {path} is in a folder that does not exist; make {path.parent} first.")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{path.parent} may not be written to; give --{flag} with a file in another folder.")


@dataclass(frozen=True)
class Agent:
    """A trained policy and, where its run has one, the reward predictor."""

    info: EnvInfo
    policy: Policy
    predictor: RewardPredictor | None
    policy_path: Path
    folder: Path  # the run's, or the one that holds the checkpoint

    @classmethod
    def load(cls, place: Path) -> Agent:
        """Reads a run folder, its policy folder, or a policy checkpoint.

        Raises:
            CheckpointError: there is no policy, or one that cannot be used.
        """
        path = checkpoint.find(place, "policy")
        whole = path if path.parent.name == "policy" else path.resolve()  # for this may be the policy's folder
        folder = whole.parent.parent if whole.parent.name == "policy" else path.parent
        state = checkpoint.load(path, kind="policy", env_id=checkpoint.read(path)["env_id"])
        info = env_info(state["env_id"])
        policy = Policy(info, state["network"])
        checkpoint.fill(policy, state["weights"], path)
        return cls(info, policy, load_predictor(folder / "reward_predictor", info), path, folder)


def load_predictor(folder: Path, info: EnvInfo) -> RewardPredictor | None:
    """The newest reward predictor of a folder; None if it holds none.

    Raises:
        CheckpointError: it cannot be used.
    """
    if not checkpoint.list_checkpoints(folder):
        return None
    path = checkpoint.find(folder, "reward_predictor")
    state = checkpoint.load(path, kind="reward_predictor", env_id=info.env_id)
    inputs = PredictorInputs(info.kind, info.observation_shape, info.n_actions, info.action_dim)
    predictor = RewardPredictor(inputs, PredictorConfig(**state["config"]))
    checkpoint.fill(predictor, state["weights"], path)
    if not predictor.is_finite():
        raise checkpoint.CheckpointError(
            f"the training of {path} diverged, so it predicts no numbers; train again with a lower "
            "--reward_predictor_learning_rate."
        )
    return predictor


@dataclass(frozen=True)
class Scene:
    """One agent step as people see it."""

    picture: np.ndarray  # (H, W, 3) uint8, with the plot if there is a predictor
    caption: str
    ends_episode: bool


@dataclass(frozen=True)
class Step:
    """One agent step of an episode: what was there to see before it, and what it earned."""

    picture: np.ndarray | None  # (H, W, 3) uint8; None if nobody watches the environment
    true: float
    predicted: float | None  # None without a reward predictor
    ends_episode: bool


def play(agent: Agent, env: PreferenceVecEnv, *, deterministic: bool) -> Iterator[Step]:
    """Plays one episode in an environment of its own, step by step as steps are asked for."""
    observations, _ = env.reset()
    memory = np.zeros((len(observations), agent.policy.memory_size), np.float32)
    done = False
    while not done:
        noise = None if deterministic else agent.policy.noise(len(observations))
        actions = agent.policy.act(observations, noise, memory)[0]
        picture = env.watch()[0].copy() if env.n_watched else None
        predicted = None
        if agent.predictor is not None:
            predicted = float(agent.predictor.reward(observations, agent.info.carried_out(actions))[0])
        observations, rewards, terminated, truncated, _ = env.step(actions)
        done = bool(terminated[0] or truncated[0])
        yield Step(picture, float(rewards[0]), predicted, done)


def film(agent: Agent, config: WatchConfig, side: str = "") -> Generator[Scene]:
    """Plays the episodes, step by step as scenes are asked for; prints each episode's rewards at its end.

    Args:
        side: where the agent is shown, for what is printed.
    """
    torch.manual_seed(config.seed)
    env = make_vec_env(agent.info.env_id, 1, config.seed, n_watched=1)
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
                caption = f"episode {episode}/{config.episodes}  ·  step {len(true)}  ·  true reward {sum(true):g}"
                yield Scene(picture, caption, step.ends_episode)
            print(f"Episode {episode}{side}: {summary(true, predicted)}", flush=True)
    finally:
        env.close()


def film_pair(left: Agent, right: Agent, config: WatchConfig) -> Generator[Scene]:
    """The scenes of two agents side by side, from the same starts; who ends an episode first waits for the other.

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
                yield Scene(pair_picture(first.picture, second.picture, (), caption=names), first.caption, over)
                if over:
                    break
                first = first if first.ends_episode else next(a)
                second = second if second.ends_episode else next(b)
        for scenes in (a, b):
            next(scenes, None)  # which prints of the last episode


def summary(true: Sequence[float], predicted: Sequence[float]) -> str:
    """One line on an episode's rewards; `predicted` is empty without a predictor."""
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
            window.show_frame(scene.picture, scene.caption)
            # A slow machine plays slower; it does not hurry later to make up for it.
            due = max(due + 1 / info.fps, time.monotonic()) + PAUSE_SECONDS * scene.ends_episode
        closed_before(window, due)
    finally:
        window.close()


def closed_before(window: EpisodeWindow, due: float) -> bool:
    """Keeps the window alive until a time of the monotonic clock; True as soon as it is closed."""
    while "close" not in window.tick():
        left = due - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, REFRESH_SECONDS))
    return True


@dataclass(frozen=True)
class Answer:
    """A stored answer; segments are read when asked for and not kept, since there may be thousands."""

    number: int
    row: AnswerRow
    db: PrefDB

    @property
    def shown(self) -> tuple[str, str]:
        """Ids of the segments on the left and on the right."""
        return (self.row.b, self.row.a) if self.row.flip else (self.row.a, self.row.b)

    @property
    def side(self) -> str:
        """The answer as a key of ANSWER_WORDS."""
        if self.row.choice in (Choice.A, Choice.B):
            return "left" if (self.row.choice == Choice.A) != self.row.flip else "right"
        return self.row.choice.value

    @property
    def time(self) -> str:
        return f"{datetime.fromtimestamp(self.row.answered_at):%Y-%m-%d %H:%M}"

    @property
    def fps(self) -> float:
        return self.db.stored_segment(self.row.a).fps

    def caption(self, n_answers: int) -> str:
        words = ANSWER_WORDS[self.side]
        return f"{self.number}/{n_answers}  answer: {words}, by {self.row.teacher}, {self.time}"

    def clips(self) -> tuple[np.ndarray, np.ndarray]:
        """(T, H, W, 3) uint8 of the left and the right segment."""
        left, right = (self.db.segment(segment_id).frames() for segment_id in self.shown)
        return left, right

    def true_rewards(self) -> tuple[float, float]:
        """Sums over the left and the right segment."""
        left, right = (self.db.stored_segment(segment_id).decode().rewards.sum() for segment_id in self.shown)
        return float(left), float(right)

    def has_clips(self) -> bool:
        """Whether both segments have pictures to show."""
        segments = (self.db.segment(segment_id) for segment_id in self.shown)
        return all(segment.is_pixels or segment.view is not None for segment in segments)


def answers_with_pictures(answers: Sequence[Answer]) -> Sequence[Answer]:
    """Those that can be shown. All are, where observations are pictures; of vectors, those with a clip for people."""
    if answers[0].db.segment(answers[0].row.a).is_pixels:
        return answers
    return [answer for answer in answers if answer.has_clips()]


def step_through(answers: Sequence[Answer], n_answers: int, title: str) -> None:
    """Shows one answer after the other in a window, on and back by key, until it is closed."""
    window = AnswerWindow(title)
    try:
        index, shown = 0, -1
        while True:
            if index != shown:
                answer, shown = answers[index], index
                window.show(*answer.clips(), answer.fps, answer.caption(n_answers), answer.side)
            for key in window.tick():
                if key == "close":
                    return
                index = min(max(index + (1 if key == "next" else -1), 0), len(answers) - 1)
            time.sleep(REFRESH_SECONDS)
    finally:
        window.close()


def film_of_pairs(answers: Sequence[Answer], n_answers: int) -> Iterator[np.ndarray]:
    """Each pair once, the shorter clip holding its last frame, with the answer below."""
    for answer in answers:
        left, right = answer.clips()
        n_frames = max(len(left), len(right))
        for i in range(n_frames + round(PAIR_HOLD_SECONDS * answer.fps)):
            frames = left[min(i, len(left) - 1)], right[min(i, len(right) - 1)]
            yield pair_picture(*frames, CHOSEN_SIDES[answer.side], caption=answer.caption(n_answers))


def print_table(answers: Sequence[Answer]) -> None:
    """A line for each answer, with the true rewards that nobody saw who gave it."""
    width = max(12, *(len(answer.row.teacher) for answer in answers))
    print(f"{'number':>6}  {'teacher':<{width}} {'answer':<12} {'left reward':>12} {'right reward':>12}  time")
    for answer in answers:
        left, right = answer.true_rewards()
        words = ANSWER_WORDS[answer.side]
        print(f"{answer.number:>6}  {answer.row.teacher:<{width}} {words:<12} {left:>12g} {right:>12g}  {answer.time}")
