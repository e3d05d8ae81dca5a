"""Measurements of single parts of the project, each in the calling process."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from a2c.config import Algo, PolicyConfig
from a2c.crew import Arena, crew_size
from a2c.follower import start_crew
from a2c.model import Policy
from a2c.runner import Rollout, Runner
from a2c.update import Batch, a2c_update, ppo_update
from a2c.worker import PolicyWorker, WorkerSpec
from benchmarks import ROOT
from commands.config import RunConfig
from commands.flags import parse
from drlhp.data.candidate import Candidate
from drlhp.data.comparison import Comparison
from drlhp.data.segment import Segment
from drlhp.labelling.gatherers import SyntheticGatherer
from drlhp.labelling.teachers import SyntheticTeacher
from drlhp.networks.device import to_device
from drlhp.runtime.channels import Channels, offer
from drlhp.runtime.processes import Children
from drlhp.runtime.weights import WeightsBoard
from drlhp.training.trainer import Intervals, Stage, Trainer, TrainerSpec
from envs import env_info, make_vec_env
from pref_db import PrefDB
from pref_interface import PrefInterface, PrefsConfig
from reward_predictor import PredictorCopySpec, PredictorInputs, RewardPredictor

PONG = "PongNoFrameskip-v4"
SCRATCH = ROOT / "runs"  # the disk that runs write to
WARM_UP_CALLS = 3
MADE_UP_SEGMENTS = 200  # enough for 19,900 pairs
CLIP_PERIOD = 0.02  # 16 environments at 1,250 agent steps/s cut fifty segments a second
PERSON_IDLE = 1 / 120  # how long the main process sleeps between its turns while a person labels

Reading = dict[str, Any]


def reading(name: str, value: float, unit: str, seconds: float, **parameters: Any) -> Reading:
    """The form of every measurement."""
    return {"name": name, "value": value, "unit": unit, "seconds": round(seconds, 2), **parameters}


def pace(body: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Calls `body` for so long; returns calls per second and the seconds that it took."""
    for _ in range(WARM_UP_CALLS):
        body()
    calls, elapsed, start = 0, 0.0, time.perf_counter()
    while elapsed < seconds:
        body()
        calls, elapsed = calls + 1, time.perf_counter() - start
    return calls / elapsed, elapsed


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder on the disk that runs write to, removed afterwards."""
    SCRATCH.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=SCRATCH) as folder:
        yield Path(folder)


def pong_config(algo: Algo = "a2c") -> RunConfig:
    """What the command line makes of Pong with no other flag."""
    return parse(["train_policy_with_preferences", PONG, "--algo", algo])


def device() -> torch.device:
    """Where the networks of a run compute."""
    return pong_config().torch_device()


def predictor_inputs() -> PredictorInputs:
    return PredictorInputs.of(env_info(PONG))


def collect(config: PolicyConfig) -> tuple[Policy, Rollout]:
    """A new policy and a rollout of its own, laid out in memory as in training."""
    info = env_info(PONG)
    env, policy = make_vec_env(PONG, config.n_envs, seed=0), Policy(info, config.policy_network, device())
    rollout = Rollout.allocate(info, config.n_steps, config.n_envs, Arena(), policy.channels_last)
    Runner([env], info, policy, rollout, 0, watch=False, record=False).collect()
    env.close()
    return policy, rollout


def emulator(seconds: float = 10.0) -> Reading:
    """The emulators alone, with random actions."""
    config, rng = pong_config().policy, np.random.default_rng(0)
    env, n_actions = make_vec_env(PONG, config.n_envs, seed=0), env_info(PONG).n_actions or 1
    env.reset()
    per_second, took = pace(lambda: env.step(rng.integers(n_actions, size=config.n_envs)), seconds)
    env.close()
    return reading("emulator", per_second * config.n_envs, "agent steps/s", took, n_envs=config.n_envs)


def policy_forward(seconds: float = 10.0) -> Reading:
    """The policy choosing actions for all environments, a share of them in each process of the crew.

    Here one process does its share, and the others are taken to be as fast.
    """
    config = pong_config().policy
    size = crew_size(env_info(PONG), config, device(), torch.get_num_threads())
    policy, rollout = collect(config)
    share = slice(0, config.n_envs // size)
    observations, noise = rollout.observations[0, share], rollout.noise[0, share]
    torch.set_num_threads(torch.get_num_threads() // size)
    per_second, took = pace(lambda: policy.act(observations, noise, step=0), seconds)
    return reading("policy_forward", per_second * len(noise) * size, "agent steps/s", took, n_envs=config.n_envs)


def policy_update(algo: Algo = "a2c", seconds: float = 10.0) -> Reading:
    """One pass of the policy's update over a rollout, by the whole crew."""
    # At a learning rate of 0 the arithmetic is the same, and one rollout can be learned from for ever.
    config = dataclasses.replace(pong_config(algo).policy, lr=0.0, ppo_epochs=1)
    with leading(config) as worker:
        rollout, _ = worker.runner.collect()
        for column in (rollout.advantages, rollout.returns):
            column[:] = np.random.default_rng(0).normal(size=column.shape)
        batch = Batch.of(rollout, device=worker.policy.device)
        assert isinstance(worker.policy, Policy)
        update, parts = ppo_update if algo == "ppo" else a2c_update, (worker.policy, worker.learner.optimizer)
        per_second, took = pace(lambda: update(*parts, batch, config, worker.crew), seconds)
    n = rollout.n_decisions
    size = math.ceil(n / config.ppo_minibatches) if algo == "ppo" else n
    return reading(f"policy_update_{algo}", per_second * n, "agent steps/s", took, rollout=n, minibatch=size)


def predictor_forward(algo: Algo = "a2c", ensemble_size: int = 3, seconds: float = 10.0) -> Reading:
    """The policy's copy of the reward predictor on a rollout."""
    config = pong_config(algo)
    predictor = dataclasses.replace(config.predictor, ensemble_size=ensemble_size)
    _, rollout = collect(config.policy)
    board = WeightsBoard(RewardPredictor(predictor_inputs(), predictor), None)
    copy = PredictorCopySpec(predictor_inputs(), predictor, board, device()).build()
    inputs = [to_device(array, device()) for array in (rollout.flat_observations(), rollout.flat_actions())]
    per_second, took = pace(lambda: copy.member_rewards(*inputs), seconds)
    n = rollout.n_decisions
    return reading(f"predictor_forward_{algo}", per_second * n, "frames/s", took, batch=n, ensemble_size=ensemble_size)


def make_trainer(run_dir: Path, **changes: Any) -> Trainer:
    """The trainer of the labels in run_dir/prefs.db, in this process."""
    config = dataclasses.replace(pong_config().predictor, **changes)
    channels = Channels.create(synchronous=True, take_turns=False)
    board = WeightsBoard(RewardPredictor(predictor_inputs(), config), None)
    spec = TrainerSpec(
        inputs=predictor_inputs(),
        env_id=PONG,
        config=config,
        board=board,
        run_dir=run_dir,
        device=device(),
        seed=0,
        n_initial_prefs=0,
        freeze=False,
        resume=False,
    )
    return Trainer(channels, spec)


def predictor_update(
    store: Path | None = None,
    labels: int = 500,
    segment_length: int = 25,
    ensemble_size: int = 3,
    seconds: float = 10.0,
) -> Reading:
    """Batches of the trainer, its publishing of weights apart.

    Args:
        store: labels to train on; without it they are made up.
        labels: how many to make up.
        segment_length: length of made-up segments.
        ensemble_size: members of the ensemble.
        seconds: how long, ten batches at least.
    """
    with scratch_folder() as folder:
        if store is not None:
            shutil.copy(store / "prefs.db", folder)
        else:
            make_store(folder / "prefs.db", labels, segment_length)
        trainer = make_trainer(folder, ensemble_size=ensemble_size)
        trainer.stage = Stage.FOLLOWING  # pretraining is a measurement of its own
        start = time.perf_counter()
        trainer.step()  # with no agent steps there is nothing to do but read the store
        catch_up = time.perf_counter() - start
        size, plain, publishing = trainer.config.label_batch_size, list[float](), list[float]()
        while sum(plain) < seconds or not publishing:
            trainer.channels.agent_steps.value += math.ceil(size / trainer.config.labels_per_step)
            start = time.perf_counter()
            trainer.step()
            (plain if trainer.learner.batches % Intervals.publish else publishing).append(time.perf_counter() - start)
        held = len(trainer.labels.pairs)
        trainer.close()
    plain = plain[WARM_UP_CALLS:]
    share = 1 / Intervals.publish  # of the batches, after which weights are published
    with_publishing = size / (statistics.mean(plain) * (1 - share) + statistics.mean(publishing) * share)
    return reading(
        "predictor_update",
        size / statistics.mean(plain),
        "labels/s",
        sum(plain),
        with_publishing=with_publishing,
        catch_up_seconds=catch_up,
        batch=size,
        labels_held=held,
        ensemble_size=ensemble_size,
        segment_length=segment_length,
    )


def made_up_segments(n: int, length: int) -> list[Segment]:
    """Segments of Pong's form: a square moves over a black picture."""
    rng, info = np.random.default_rng(0), env_info(PONG)
    stack, height, width = info.observation_shape
    segments = []
    for seed in range(n):
        frames = np.zeros((length + stack - 1, height, width), np.uint8)
        row, columns = rng.integers(height - 8), rng.integers(width - 8, size=len(frames))
        for frame, column in zip(frames, columns, strict=True):
            frame[row : row + 8, column : column + 8] = 255
        actions, rewards = rng.integers(info.n_actions or 1, size=length), rng.normal(size=length).astype(np.float32)
        segments.append(Segment(PONG, frames, actions, rewards, stack, 0, seed, info.fps))
    return segments


def make_store(path: Path, n_labels: int, length: int) -> list[Comparison]:
    """Fills a store with so many labels of made-up segments; returns fifty comparisons that are still to be asked."""
    segments = made_up_segments(MADE_UP_SEGMENTS, length)
    pairs = list(itertools.combinations(segments, 2))
    order = np.random.default_rng(1).permutation(len(pairs))
    comparisons = [Comparison(pairs[i][0], pairs[i][1], flip=False) for i in order[: n_labels + 50]]
    db, teacher = PrefDB.create(path, PONG, length), SyntheticTeacher()
    answers = [(comparison, choice) for comparison in comparisons if (choice := teacher.poll(comparison))]
    db.add_answers(answers[:n_labels], teacher=teacher.name)
    db.close()
    return comparisons[n_labels:]


def label_store(labels: int = 500) -> Reading:
    """Opening a store and adding answers one by one, each safe on the disk, with so many labels in it."""
    with scratch_folder() as folder:
        path, teacher = folder / "prefs.db", SyntheticTeacher()
        comparisons = make_store(path, labels, env_info(PONG).segment_length)
        start = time.perf_counter()
        db = PrefDB.open(path)
        db.n_labels()
        opened, add = time.perf_counter() - start, list[float]()
        for comparison in comparisons:
            start, choice = time.perf_counter(), teacher.poll(comparison)
            assert choice is not None
            db.add_answer(comparison, choice, teacher=teacher.name)
            add.append(time.perf_counter() - start)
        db.close()
    milliseconds = statistics.median(add) * 1e3
    return reading("label_store", milliseconds, "ms to add a label", sum(add), open_ms=opened * 1e3, labels=labels)


def synthetic_labels(store: Path, seconds: float = 10.0) -> Reading:
    """The synthetic teacher's way from segments to labels on disk; nearly every label brings new segments."""
    total, n_labels, rounds = 0.0, 0, 0
    while total < seconds:
        source = PrefDB.open(store / "prefs.db", read_only=True)
        segments = list(source.segments())
        source.close()
        goal = max(1, len(segments) // 4)
        with scratch_folder() as folder:
            interface = make_interface(folder, PrefsConfig(n_initial_prefs=goal, max_segs=len(segments)), goal)
            interface.pool.extend(map(Candidate, segments))
            start = time.perf_counter()
            while interface.step():
                pass
            total += time.perf_counter() - start
            n_labels, rounds = n_labels + interface.n_labels, rounds + 1
            interface.close()
    return reading("synthetic_labels", n_labels / total, "labels/s", total, segments=len(segments), stores=rounds)


def make_interface(folder: Path, config: PrefsConfig, goal: int, channels: Channels | None = None) -> PrefInterface:
    """A preference interface with a synthetic teacher and an empty store."""
    db = PrefDB.create(folder / "prefs.db", PONG, env_info(PONG).segment_length)
    channels = channels or Channels.create(synchronous=True, take_turns=False)
    gatherer = SyntheticGatherer(db, SyntheticTeacher())
    return PrefInterface(db, gatherer, channels, config, seed=0, goal=goal, annealed_over=1e6)


def send_clips(channels: Channels, segment: Segment) -> None:
    """Body of a process that cuts clips as the policy's does; `policy_step` carries the time."""
    while not channels.stop.is_set():
        time.sleep(CLIP_PERIOD)
        offer(channels.segments, Candidate(dataclasses.replace(segment, policy_step=time.monotonic_ns())))


def clip_delay(seconds: float = 10.0) -> Reading:
    """From the policy's process handing on a clip to the main process being able to ask about it."""
    channels = Channels.create(synchronous=False, take_turns=False)
    children, delays = Children(channels), list[float]()
    with scratch_folder() as folder:
        # A pool that never fills, so that nothing is asked.
        config = PrefsConfig(max_segs=10 + 2 * math.ceil(seconds / CLIP_PERIOD))
        interface = make_interface(folder, config, goal=1, channels=channels)
        children.start("clips", send_clips, made_up_segments(1, env_info(PONG).segment_length)[0])
        channels.read_in_background()
        start = time.perf_counter()
        try:
            while len(delays) < seconds / CLIP_PERIOD:
                n_before = len(interface.pool)
                interface.step()
                now = time.monotonic_ns()
                delays += [(now - clip.segment.policy_step) / 1e6 for clip in list(interface.pool)[n_before:]]
                children.check()
                children.wait(PERSON_IDLE)
        finally:
            children.stop()
            interface.close()
    took = time.perf_counter() - start
    return reading("clip_delay", statistics.median(delays), "ms", took, worst=max(delays), clips=len(delays))


@contextlib.contextmanager
def leading(config: PolicyConfig) -> Iterator[PolicyWorker]:
    """The policy's worker on the true reward in this process, with its crew in others."""
    channels = Channels.create(synchronous=False, take_turns=False)
    children, size = Children(channels), crew_size(env_info(PONG), config, device(), torch.get_num_threads())
    followers = start_crew(children, PONG, config, size)
    with scratch_folder() as folder:
        worker = PolicyWorker(WorkerSpec(PONG, config, folder, 0, device=device(), followers=followers), channels)
        try:
            yield worker
        finally:
            worker.close()
            children.stop()


def true_reward_loop(n_envs: int = 16, seconds: float = 10.0) -> Reading:
    """A2C on true rewards, led by this process."""
    config = dataclasses.replace(pong_config().policy, n_envs=n_envs, eval_interval_million_timesteps=0)
    with leading(config) as worker:
        per_second, took = pace(worker.step, seconds)
    n = n_envs * config.n_steps
    return reading("true_reward_loop", per_second * n, "agent steps/s", took, n_envs=n_envs)


def pretraining(store: Path, n_initial_epochs: int = 200) -> Reading:
    """Pretraining until it ends by itself."""
    with scratch_folder() as folder:
        shutil.copy(store / "prefs.db", folder)
        trainer = make_trainer(folder, n_initial_epochs=n_initial_epochs)
        start = time.perf_counter()
        while not trainer.pretrained:
            trainer.step()
        took, status = time.perf_counter() - start, trainer.status()
        trainer.close()
    accuracy, epochs, labels = status["validation_accuracy"], status["epochs"], status["labels"]
    return reading("pretraining", took, "s", took, validation_accuracy=accuracy, epochs=epochs, labels=labels)


PARTS = (
    *(emulator, policy_forward, policy_update, predictor_forward, predictor_update, label_store, synthetic_labels),
    *(clip_delay, true_reward_loop, pretraining),
)
