"""Teaches an agent from human preferences, after Christiano et al. 2017.

    python run.py train_policy_with_preferences MovingDotNoFrameskip-v0 --synthetic_prefs

The ring: the policy (a2c/) acts and cuts segments; the preference interface (pref_interface.py) asks about pairs of
them and stores the answers (pref_db.py); the trainer (drlhp/training/) fits the reward predictor (reward_predictor.py)
to the answers; the policy learns from the rewards that it predicts. `RINGS` lists the parts of each mode.
"""

from __future__ import annotations

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C just ends the program until there is something to save

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from commands import leave_without_packages, names_mode, run_command, starts_processes
from drlhp.cli import FAILURE, INTERRUPTED, command_line
from drlhp.runtime.leash import everything_ends_here, without_main
from drlhp.runtime.start import warm_up, warmed_up

# For the child processes. Threads that wait sleep and do not spin, because the parts of the ring share the processor;
# and the memory of large batches is kept for the next one, because the system would fault it in again.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# For GNU's OpenMP, which PyTorch has on Linux: threads stay awake from one layer to the next, but no longer.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**30))
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**30))

if __name__ == "__main__":
    leave_without_packages()
    # The rest of this file is the ring of the four modes. Its imports take seconds, so the other commands, of which
    # each imports what it needs, end here; and a mode starts its server of processes, which imports meanwhile.
    if not names_mode(sys.argv[1:]):
        sys.exit(command_line("run.py", sys.argv[1:], run_command))
    warm_up(starts_processes=starts_processes(sys.argv[1:]))

import torch

from a2c.crew import crew_size, fills_cores
from a2c.follower import start_crew
from a2c.worker import PolicyWorker, WorkerSpec, run_worker
from commands import endings
from commands.config import RunConfig, gathers
from commands.config_file import with_config_file
from commands.environments import lend_environments
from commands.flags import parse
from commands.preflight import check_inputs
from commands.progress import Progress, say
from commands.run_folder import RunFolder
from commands.snapshots import Snapshots
from commands.stores import prepare_store
from commands.watchers import Watchers
from drlhp.errors import ChildError
from drlhp.label_server.gatherer import WebGatherer
from drlhp.labelling.gatherers import PreferenceGatherer, SyntheticGatherer
from drlhp.labelling.notices import Notices
from drlhp.queries.keeper import SegmentKeeper
from drlhp.runtime.channels import Channels, Failure, drain
from drlhp.runtime.machine import n_cores
from drlhp.runtime.processes import Children
from drlhp.runtime.weights import WeightsBoard
from drlhp.screens.gatherer import gatherer_for
from drlhp.training.rounds import InitialRounds
from drlhp.training.trainer import Trainer, TrainerSpec, run_trainer
from envs import env_info
from pref_db import PrefDB
from pref_interface import PrefInterface, teacher_of
from reward_predictor import PredictorCopySpec, PredictorInputs, RewardPredictor

log = logging.getLogger("run")

ENOUGH_CORES = 6  # with so many the policy and the trainer have cores of their own
N_WATCHED = 2  # environments whose colour frames are kept for people

Finished = Callable[[], bool]  # returns whether a part has done all its work


class Part(Protocol):
    """A part of the ring that runs in this process."""

    def step(self) -> bool:
        """Does what there is to do, without waiting; False if that was nothing."""

    def close(self) -> None:
        """Saves and ends; may be called twice."""


# -- the parts ---------------------------------------------------------------------------------------------------------


class Ring:
    """The parts of one run, joined by queues and flags (`Channels`) and by boards with the predictor's weights."""

    def __init__(self, config: RunConfig, path: Path, run_id: str = "") -> None:
        self.config, self.path, self.run_id, self.store_path = config, path, run_id, path / "prefs.db"
        self.device = config.torch_device()
        self.take_turns = take_turns(config)
        self.channels = Channels.create(synchronous=config.synchronous, take_turns=self.take_turns)
        self.here: list[Part] = []  # the parts that run in this process, in the order of their steps
        self.children = Children(self.channels, say)  # the parts that have processes of their own
        self.watchers = Watchers(config, path, self.channels)
        self.snapshots = Snapshots(config, path, run_id)
        self.inputs = PredictorInputs.of(env_info(config.env_id))
        self.board = self.new_board() if config.uses_preferences else None  # reward predictor -> policy
        self.query_board: WeightsBoard | None = None  # reward predictor -> interface, between rounds of initial labels
        self.takes_segments: PrefInterface | SegmentKeeper | None = None

    def new_board(self) -> WeightsBoard:
        """Returns a board for the weights of this run's reward predictor."""
        return WeightsBoard(RewardPredictor(self.inputs, self.config.predictor), self.channels.context)

    def copy_of(self, board: WeightsBoard) -> PredictorCopySpec:
        """Describes a copy of the reward predictor that follows a board."""
        return PredictorCopySpec(self.inputs, self.config.predictor, board, self.device)

    @property
    def goal_labels(self) -> int:
        """Labels after which nobody is asked any more."""
        prefs = self.config.prefs
        return prefs.n_initial_prefs if self.config.mode == "gather_initial_prefs" else prefs.max_prefs

    def n_threads(self) -> int:
        """Returns the CPU threads of a child, and logs them."""
        threads = n_threads(self.take_turns, self.device)
        log.info("each child computes with %d threads%s", threads, ", in turns" if self.take_turns else "")
        return threads

    def close(self) -> None:
        """Ends everything in order; may be called twice."""
        self.children.stop()
        while self.here:
            self.here.pop().close()
        self.watchers.close()
        self.channels.close()  # what nobody has read must not keep this process


def store(ring: Ring) -> Finished:
    """Adds the store of labels; on --resume it exists."""
    ring.channels.n_labels.value = prepare_store(ring.config, ring.store_path, ring.run_id)
    return lambda: True


def ask(ring: Ring) -> Finished:
    """Adds the preference interface: segments -> labels. With --no_gather_prefs it adds nobody to ask."""
    config = ring.config
    if not gathers(config):
        return keep_segments(ring) if config.mode == "gather_initial_prefs" else lambda: True
    rounds = None
    if config.prefs.n_initial_rounds > 1:
        ring.query_board = ring.new_board()
        rounds = InitialRounds(config.prefs.n_initial_rounds, ring.copy_of(ring.query_board))
    db = PrefDB.open(ring.store_path)
    gatherer = gatherer_of(ring, db)
    ring.watchers.add_teacher(gatherer)
    if config.mode == "gather_initial_prefs":
        ring.channels.bell = None  # no trainer listens
    over, goal = config.policy.million_timesteps * 1e6, ring.goal_labels
    ring.takes_segments = interface = PrefInterface(
        db, gatherer, ring.channels, config.prefs, seed=config.seed, goal=goal, annealed_over=over, rounds=rounds
    )
    ring.here.append(interface)
    return lambda: interface.ended or interface.n_labels >= ring.goal_labels


def gatherer_of(ring: Ring, db: PrefDB) -> PreferenceGatherer:
    """Returns what asks the teacher: a synthetic one, or a person in a window, in the terminal or on the page."""
    config = ring.config
    if config.prefs.synthetic_prefs:
        return SyntheticGatherer(db, teacher_of(config.prefs, config.seed, db.n_answers()))
    initial = config.prefs.labels_to_start() if config.trains_policy else 0
    Notices(db).give_settings(config.page.settings(ring.goal_labels, initial), keep=False)
    if config.prefs.ui != "web":
        return gatherer_for(config.prefs.ui, db)
    return WebGatherer(db, ring.path, config.page)


def keep_segments(ring: Ring) -> Finished:
    """Stores segments, to be labelled later."""
    db = PrefDB.open(ring.store_path)
    ring.takes_segments = keeper = SegmentKeeper(db, ring.channels, ring.config.prefs.max_segs)
    ring.here.append(keeper)
    return lambda: keeper.full


def learn_reward(ring: Ring) -> Finished:
    """Adds the trainer: labels -> weights of the reward predictor. It leaves as soon as there is nothing to train."""
    config = ring.config
    spec = TrainerSpec(
        inputs=ring.inputs,
        env_id=config.env_id,
        config=config.predictor,
        board=ring.board,
        run_dir=ring.path,
        seed=config.seed,
        # With nobody to ask, training starts with the labels in the store.
        n_initial_prefs=config.prefs.labels_to_start() if gathers(config) else 0,
        freeze=not gathers(config),
        improve=config.mode == "pretrain_reward_predictor",
        resume=bool(config.resume),
        device=ring.device,
        rollout_steps=config.policy.n_envs * config.policy.n_steps,
        n_initial_rounds=config.prefs.n_initial_rounds,
        query_board=ring.query_board,
        run_id=ring.run_id,
    )
    if config.synchronous:
        trainer = Trainer(ring.channels, spec)
        ring.here.append(trainer)
        return lambda: trainer.finished
    ring.children.start("reward predictor", run_trainer, replace(spec, n_threads=ring.n_threads()))
    return lambda: ring.children.has_finished("reward predictor")


def act(ring: Ring) -> Finished:
    """Adds the policy: it acts, cuts segments, and learns from the rewards that its copy of the predictor gives."""
    config, watchers = ring.config, ring.watchers
    if config.render_episodes:
        watchers.open_window()
    people_see_clips = watchers.teacher_is_person or isinstance(ring.takes_segments, SegmentKeeper)  # now, or later
    spec = WorkerSpec(
        config.env_id,
        config.policy,
        ring.path,
        config.seed,
        rewarder=ring.copy_of(ring.board) if ring.board else None,
        n_watched=min(N_WATCHED, config.policy.n_envs) if people_see_clips else 0,
        render_episodes=config.render_episodes or watchers.page is not None,
        resume=bool(config.resume),
        clip_steps=config.prefs.clip_steps,
        end_penalty=config.prefs.teacher_end_penalty,
        judged_by_reward=config.prefs.judged_by_reward,
        device=ring.device,
        cluster=config.cluster,
        run_id=ring.run_id,
        remembers=ring.snapshots.takes,
        began_at=ring.snapshots.began_at,
    )
    if config.synchronous:
        worker = PolicyWorker(spec, ring.channels)
        ring.here.insert(0, worker)  # its rollout comes first in each turn
        return lambda: worker.finished
    n_threads = ring.n_threads()
    size = 1 if spec.cluster else crew_size(env_info(config.env_id), config.policy, ring.device, n_threads)
    followers = start_crew(ring.children, config.env_id, config.policy, size)
    ring.children.start("a2c", run_worker, replace(spec, n_threads=n_threads, followers=followers))
    followers.close()  # the leader has them now
    return lambda: ring.children.has_finished("a2c")


# -- the modes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The parts of a mode, in the order in which they are made, and the part whose end is the run's."""

    parts: Sequence[Callable[[Ring], Finished]]
    until: Callable[[Ring], Finished]


RINGS = {
    "train_policy_with_preferences": Plan([store, ask, learn_reward, act], until=act),
    "train_policy_with_original_rewards": Plan([act], until=act),
    "gather_initial_prefs": Plan([store, ask, act], until=ask),
    "pretrain_reward_predictor": Plan([store, learn_reward], until=learn_reward),
}


def build(ring: Ring) -> Finished:
    """Makes the parts of the run's mode; returns whether the run is over."""
    log.info("the networks compute on the %s", ring.device.type)
    with without_main():  # the children need nothing of this file
        finished = {part: part(ring) for part in RINGS[ring.config.mode].parts}
    if not ring.config.synchronous:
        ring.channels.read_in_background()  # the children have the other ends already
    ring.snapshots.begin(ring.here, ring.channels, [ring.board, ring.query_board])
    return finished[RINGS[ring.config.mode].until]


# -- how the ring turns, and how it ends -------------------------------------------------------------------------------


def turn(ring: Ring, finished: Finished, check_folder: Callable[[], None]) -> Progress:
    """Turns the paper's loop until the run has finished: act, ask, learn the reward, learn the policy.

    Parts with processes of their own step by themselves; this process steps the others and watches over all.
    """
    goal = ring.goal_labels if gathers(ring.config) else 0
    progress = ring.watchers.progress(initial_labels=ring.config.prefs.labels_to_start(), goal_labels=goal)
    try:
        with ring.snapshots.whole_turns() as pressed:
            while not (finished() or pressed):
                busy = [part.step() for part in ring.here]
                ring.watchers.show_episodes(drain(ring.channels.episodes))
                read_reports(ring, progress)
                check_folder()
                ring.children.check()
                clips = ring.takes_segments.clips() if ring.takes_segments else ""
                ring.watchers.show_progress(progress, n_labels=ring.channels.n_labels.value, clips=clips)
                ring.snapshots.count()
                if not any(busy):
                    ring.children.wait(ring.watchers.idle_seconds)
        ring.children.stop()
        read_reports(ring, progress)
    finally:
        progress.close()
    return progress


def read_reports(ring: Ring, progress: Progress) -> None:
    """Takes in what the parts report, and the labels; raises ChildError if a part has failed."""
    progress.labels = ring.channels.n_labels.value
    for report in drain(ring.channels.reports):
        if isinstance(report, Failure):
            raise ChildError(f"the {report.source} process failed: {report.message}", report.traceback)
        progress.update(report, ring.channels.n_labels.value)


def train(config: RunConfig) -> int:
    """Carries out one of the four modes in its run folder; returns the exit status."""
    check_inputs(config)
    path = config.run_path()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on there is something to save
    folder = RunFolder.resume(path, config.as_dict()) if config.resume else RunFolder.create(path, config.as_dict())
    ring = Ring(config, folder.path, folder.run_id)
    with contextlib.closing(folder):  # also if the ring cannot be closed, as on a full disk
        try:
            log.info("command: %s", " ".join(sys.argv))
            print(f"Run folder: {path}", flush=True)
            progress = turn(ring, build(ring), folder.check)
            ring.close()
            endings.finished(config, path, progress)
            if isinstance(ring.takes_segments, SegmentKeeper):
                endings.label_later(path, ring.takes_segments.n)
            return 0
        except KeyboardInterrupt:
            stop(ring)
            endings.stopped(path)
            return INTERRUPTED
        except Exception as error:
            endings.failed(config, path, ring.watchers, error)
        finally:
            ring.close()
    if ring.watchers.teacher_is_person and path.is_dir():
        endings.label_on(config, path, ring.watchers, ring.goal_labels)
    return FAILURE


def stop(ring: Ring) -> None:
    """Ends a run on Ctrl-C with checkpoints; on a second Ctrl-C at once."""
    ring.watchers.leave_screen()
    print("\nStopping: writing checkpoints (Ctrl-C again stops at once).", flush=True)
    try:
        ring.close()
    except KeyboardInterrupt:
        ring.children.kill()


# -- how the parts share the cores -------------------------------------------------------------------------------------


def take_turns(config: RunConfig) -> bool:
    """Returns whether policy and trainer take turns with all cores: on few cores, if the policy alone can fill them."""
    return n_cores() < ENOUGH_CORES and fills_cores(env_info(config.env_id), config.policy, config.torch_device())


def n_threads(in_turns: bool, device: torch.device) -> int:
    """Returns the CPU threads of a child: in turns all cores; else half of them, eight at most."""
    if device.type == "cuda":
        return 1  # more would busy-wait on the emulators' cores
    return n_cores() if in_turns else min(8, max(1, n_cores() // 2))


def train_command(arguments: list[str]) -> int:
    """Carries out one of the four modes; returns the exit status."""
    # Ctrl-C still just ends the program: a library that is being imported may take its exception for a failure.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    lend_environments()
    return train(parse(with_config_file(arguments)))


def main(arguments: list[str]) -> int:
    """Runs the command line; returns the exit status: 2 for bad input, 1 for a failure while running."""
    return command_line("run.py", arguments, train_command if names_mode(arguments) else run_command)


if __name__ == "__main__":
    warmed_up()
    with everything_ends_here():
        sys.exit(main(sys.argv[1:]))
