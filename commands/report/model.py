"""Measurements on a run's networks and labels: predictions on stored segments, an episode, times of answers."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from commands.agent import Agent, load_predictor, play
from commands.report.runs import Curve, Missing, Run, newest_values
from drlhp.data.segment import Segment
from drlhp.labelling.answers import PERSON
from envs import EnvError, env_info, make_vec_env
from pref_db import PrefDB
from reward_predictor import PredictorConfig, RewardPredictor

MAX_LABELS = 500  # newest validation labels that are predicted
MAX_SEGMENTS = 1000  # segments that are predicted, evenly spread over the store: seconds of work, not minutes
SEGMENTS_PER_BATCH = 16
GALLERY = 6  # clips
CALIBRATION_EDGES = np.linspace(0.05, 0.95, 10)  # all predictions are inside, given the paper's error rate of 10 %
EPISODE_SEED = 1_000  # of the episode that is played; training does not begin with it
MAX_EPISODE_STEPS = 3000
FILMSTRIP = 6  # frames


@dataclass(frozen=True)
class Bin:
    """Labels with similar predicted probabilities."""

    count: int
    predicted: float  # mean probability that A is better
    observed: float  # mean answer: 1 for A, 0 for B, 0.5 for equal


@dataclass(frozen=True)
class Scored:
    """Stored segments with their predicted and true returns, which are sums over the segment."""

    ids: list[str]
    predicted: np.ndarray  # (S,)
    true: np.ndarray  # (S,)
    n_stored: int


@dataclass(frozen=True)
class Clip:
    """A stored segment to look at."""

    frames: np.ndarray  # (T, H, W, 3) uint8
    fps: float
    predicted: float
    true: float
    policy_step: int


@dataclass(frozen=True)
class EpisodePlayed:
    """An episode played with the newest policy."""

    true: np.ndarray  # (T,)
    predicted: np.ndarray | None  # (T,); None without a reward predictor
    frames: list[tuple[int, np.ndarray]]  # step, counted from 1, and (H, W, 3) uint8, evenly spread over the episode
    checkpoint_step: int  # agent steps of training
    cut: bool  # whether the episode continued after the last step here
    no_frames: str  # why there are no frames


def calibration(probabilities: np.ndarray, observed: np.ndarray, edges: np.ndarray) -> list[Bin]:
    """Sorts labels (N,) into bins by predicted probability (N,), and leaves out empty bins.

    Args:
        edges: (K + 1,) limits of the bins; a value on an edge belongs to the bin above it, except on the last edge.
    """
    where = np.clip(np.searchsorted(edges, probabilities, side="right") - 1, 0, len(edges) - 2)
    bins = []
    for i in range(len(edges) - 1):
        inside = where == i
        if inside.any():
            bins.append(Bin(int(inside.sum()), float(probabilities[inside].mean()), float(observed[inside].mean())))
    return bins


def calibration_error(bins: Sequence[Bin]) -> float:
    """Returns the mean distance between predicted and observed shares, weighted by the labels in each bin."""
    total = sum(b.count for b in bins)
    return sum(b.count * abs(b.predicted - b.observed) for b in bins) / total


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the correlation of (N,) and (N,); NaN if one of them never changes."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the correlation of the ranks of (N,) and (N,); ties share their mean rank; NaN if one never changes."""
    return pearson(ranks(x), ranks(y))


def ranks(x: np.ndarray) -> np.ndarray:
    """Returns (N,) ranks from 1; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def label_probabilities(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Predicts the newest validation labels.

    Returns:
        (N,) predicted probabilities that A is better, as the loss has them, averaged over the members; (N,) answers.

    Raises:
        Missing, PrefDBError, CheckpointError: it cannot be done.
    """
    if fits_returns(run):
        raise Missing("This predictor was fitted to the clips' true returns, so it gives answers no probabilities.")
    if not run.config["predictor"].get("hold_out", True):
        raise Missing("This predictor was trained on all labels, so none is left to try it on.")
    with store(run) as db:
        newest = [label for label in db.labels() if label.validation and label.mu is not None][-MAX_LABELS:]
        if not newest:
            raise Missing("No label has fallen to the validation set yet.")
        predictor = predictor_of(run)
        ids = sorted({segment_id for label in newest for segment_id in (label.a, label.b)})
        raw = dict(zip(ids, raw_returns(predictor, (db.stored_segment(i).decode() for i in ids)), strict=True))
    difference = np.stack([raw[label.a] - raw[label.b] for label in newest])  # (N, members)
    rate = error_rate(run)
    probability = 1 / (1 + np.exp(-difference)) * (1 - rate) + rate / 2
    return probability.mean(1), np.array([label.mu[0] for label in newest if label.mu is not None])


def fits_returns(run: Run) -> bool:
    """Returns whether the predictor was fitted to true returns instead of answers."""
    return bool(run.config["predictor"].get("reward_target") == "true_return")


def error_rate(run: Run) -> float:
    """Returns the probability of a random answer that the predictor's loss assumes."""
    return float(run.config["predictor"].get("label_error_rate", PredictorConfig.label_error_rate))


@functools.lru_cache(maxsize=1)
def scored_segments(run: Run) -> Scored:
    """Returns predicted and true returns of stored segments.

    Raises:
        Missing, PrefDBError, CheckpointError: it cannot be done.
    """
    with store(run) as db:
        ids = list(dict.fromkeys(segment_id for row in db.answers() for segment_id in (row.a, row.b)))
        if not ids:
            raise Missing("There are no labels yet, so no segments are stored.")
        predictor = predictor_of(run)
        chosen = [
            ids[i] for i in np.unique(np.linspace(0, len(ids) - 1, min(len(ids), MAX_SEGMENTS)).round().astype(int))
        ]
        lengths, true = np.zeros(len(chosen)), np.zeros(len(chosen))

        def segments() -> Iterator[Segment]:
            for i, segment_id in enumerate(chosen):
                segment = db.stored_segment(segment_id).decode()
                lengths[i], true[i] = len(segment), segment.rewards.sum()
                yield segment

        raw = np.stack(list(raw_returns(predictor, segments())))  # (S, members)
    return Scored(chosen, predictor.normalised(raw.T, lengths).mean(0), true, len(ids))


def raw_returns(predictor: RewardPredictor, segments: Iterator[Segment]) -> Iterator[np.ndarray]:
    """Yields (members,) raw rewards summed over each segment, computed in batches of a few segments."""
    while batch := list(itertools.islice(segments, SEGMENTS_PER_BATCH)):
        yield from predictor.segment_returns(batch)


def gallery(run: Run, scored: Scored) -> tuple[list[Clip], list[Clip]]:
    """Returns the clips with the highest and those with the lowest predicted returns, extreme ones first.

    Raises:
        Missing: the segments hold no pictures.
    """
    order = np.argsort(scored.predicted)
    with store(run) as db:
        first = db.segment(scored.ids[0])
        if not first.is_pixels and first.view is None:
            raise Missing(f"The segments of {run.env_id} hold numbers and no pictures.")

        def clips(places: np.ndarray) -> list[Clip]:
            found = []
            for i in places:
                segment = db.segment(scored.ids[i])
                returns = (float(scored.predicted[i]), float(scored.true[i]))
                found.append(Clip(segment.frames(), segment.fps, *returns, segment.policy_step))
            return found

        half = min(GALLERY, len(order) // 2)
        try:
            return clips(order[::-1][:half]), clips(order[:half])
        except EnvError as error:  # a body cannot be drawn here
            raise Missing(str(error)) from error


def played_episode(run: Run) -> EpisodePlayed:
    """Plays one episode with the newest policy, with random actions as in training.

    Raises:
        Missing, CheckpointError, EnvError: it cannot be done.
    """
    if not run.trains_policy:
        raise Missing("No policy is trained by this command.")
    if not (run.path / "policy").is_dir():
        raise Missing("There is no checkpoint of the policy yet.")
    agent = Agent.load(run.path)
    torch.manual_seed(EPISODE_SEED)
    no_frames = ""
    try:
        env = make_vec_env(run.env_id, 1, EPISODE_SEED, n_watched=1, all_frames=agent.info.all_frames)
    except EnvError as error:  # the environment cannot be drawn here
        no_frames = str(error)
        env = make_vec_env(run.env_id, 1, EPISODE_SEED, all_frames=agent.info.all_frames)
    true: list[float] = []
    predicted: list[float] = []
    pictures: dict[int, np.ndarray] = {}
    every, ended = 1, False
    with contextlib.closing(env):
        for step in play(agent, env, deterministic=False):
            true.append(step.true)
            if step.predicted is not None:
                predicted.append(step.predicted)
            # The episode's length is unknown, so the distance between kept pictures doubles as it grows.
            if step.picture is not None and (len(true) - 1) % every == 0:
                pictures[len(true)] = step.picture
                if len(pictures) > 20 * FILMSTRIP:
                    every *= 2
                    pictures = {t: picture for t, picture in pictures.items() if (t - 1) % every == 0}
            ended = step.ends_episode
            if len(true) == MAX_EPISODE_STEPS:
                break
    wanted = np.linspace(1, len(true), FILMSTRIP)
    times = sorted({min(pictures, key=lambda t: abs(t - moment)) for moment in wanted}) if pictures else []
    return EpisodePlayed(
        np.array(true),
        np.array(predicted) if predicted else None,
        [(t, pictures[t]) for t in times],
        int(agent.policy_path.stem.removeprefix("step-")),
        not ended,
        no_frames,
    )


def answer_seconds(run: Run) -> np.ndarray:
    """Returns (N,) seconds that people took from seeing a pair to answering it.

    Raises:
        Missing, PrefDBError: there are none.
    """
    with store(run) as db:
        answers = list(db.answers())
    if not answers:
        raise Missing("There are no answers yet.")
    by_hand = [row for row in answers if row.teacher == PERSON]
    seconds = [row.answered_at - row.shown_at for row in by_hand if row.shown_at is not None]
    if not seconds:
        raise Missing("A synthetic teacher answered, who takes no time to look.")
    return np.array([value for value in seconds if value >= 0])


@contextlib.contextmanager
def store(run: Run) -> Iterator[PrefDB]:
    """Opens the run's store for reading.

    Raises:
        Missing, PrefDBError: there are none, or they cannot be read.
    """
    if not run.uses_preferences:
        raise Missing("This run learned from the true reward, so it has no labels and no reward predictor.")
    if not (run.path / "prefs.db").exists():
        raise Missing(f"{run.path} has no prefs.db.")
    with contextlib.closing(PrefDB.open(run.path / "prefs.db", read_only=True)) as db:
        yield db


def predictor_of(run: Run) -> RewardPredictor:
    """Returns the newest reward predictor of a run.

    Raises:
        Missing, CheckpointError, EnvError: there is none, or it cannot be used.
    """
    predictor = load_predictor(run.path / "reward_predictor", env_info(run.env_id))
    if predictor is None:
        raise Missing("There is no checkpoint of the reward predictor in this run's folder (yet).")
    return predictor


def scalars(folder: Path) -> dict[str, Curve]:
    """Returns the TensorBoard curves in a folder, by name; none without a folder."""
    if not folder.is_dir():
        return {}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # slow to import

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})  # 0: every point
    events.Reload()
    curves = {}
    for name in events.Tags()["scalars"]:
        points = events.Scalars(name)
        steps, values = (np.array([getattr(point, what) for point in points]) for what in ("step", "value"))
        curves[name] = newest_values(steps, values)
    return curves
