"""Teaches an agent from human preferences, after Christiano et al. 2017.

    python run.py train_policy_with_preferences MovingDotNoFrameskip-v0 --synthetic_prefs

The ring: the policy (a2c/) acts and cuts segments; the preference interface (pref_interface.py) asks about pairs of
them and stores the answers (pref_db.py); the trainer (reward_trainer.py) fits the reward predictor to the answers;
the policy learns from the rewards that it predicts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands import leave_without_packages, names_mode, run_command
from drlhp.cli import FAILURE, INTERRUPTED, command_line
from drlhp.runtime.start import warm_up

if __name__ == "__main__":
    leave_without_packages()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C just ends the program until there is something to save

# For the child processes. Threads that wait should sleep, not spin, since the parts of the ring share the processor;
# and memory of large batches should be kept for the next one, not given back to the system and faulted in again.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# GNU's OpenMP, which PyTorch has on Linux: threads stay awake from one layer to the next, but no longer.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**30))
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**30))

if __name__ == "__main__":
    # The rest of this file is the ring of the four modes. Its imports take seconds, so the other commands, of which
    # each imports what it needs, end here; and a mode starts its server of processes, which imports meanwhile.
    if not names_mode(sys.argv[1:]):
        sys.exit(command_line("run.py", sys.argv[1:], run_command))
    warm_up()

import gymnasium
import torch

from a2c.crew import crew_size, fills_cores
from a2c.follower import start_crew
from a2c.worker import PolicyWorker, run_worker
from commands import label
from commands import progress as progress_module
from commands.config import RunConfig, gathers
from commands.environments import lend_environments
from commands.flags import parse
from commands.preflight import check_inputs
from commands.progress import Progress
from commands.run_folder import RunFolder
from drlhp.errors import USER_ERRORS, ChildError, UserError, reason_of, told
from drlhp.label_server.gatherer import EpisodeFile, WebGatherer
from drlhp.labelling.gatherers import PreferenceGatherer, SyntheticGatherer
from drlhp.labelling.notices import Notices
from drlhp.runtime.channels import Channels, Failure, drain
from drlhp.runtime.machine import n_cores
from drlhp.runtime.processes import Children
from drlhp.runtime.weights import WeightsBoard
from drlhp.screens.gatherer import gatherer_for
from drlhp.screens.window import EncodedFrames
from drlhp.training.rounds import InitialRounds
from drlhp.training.trainer import Trainer, TrainerSpec, run_trainer
from envs import env_info
from pref_db import PrefDB, merge, store_path
from pref_interface import PrefInterface, SegmentKeeper, teacher_of
from reward_predictor import PredictorCopySpec, PredictorInputs, RewardPredictor

log = logging.getLogger("run")

ENOUGH_CORES = 6  # from here on the policy and the trainer have cores of their own
N_WATCHED = 2  # environments whose colour frames are kept for people


def take_turns(config: RunConfig) -> bool:
    """Whether the policy and the trainer take turns with all cores: on a small one that the policy alone can fill."""
    return n_cores() < ENOUGH_CORES and fills_cores(env_info(config.env_id), config.policy, config.torch_device())


def n_threads(in_turns: bool, device: torch.device) -> int:
    """CPU threads of a child: all of a small machine, in turns; else half of it, eight at most.

    One where a card computes: others would look out for work on the cores that the emulators are to have.
    """
    if device.type == "cuda":
        return 1
    return n_cores() if in_turns else min(8, max(1, n_cores() // 2))


class Run:
    """One run: builds the parts that its mode needs, turns the ring until the mode's last part is done."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self.config, self.path = config, folder.path
        self.info = env_info(config.env_id)
        self.device = config.torch_device()
        self.take_turns = take_turns(config)
        self.channels = Channels.create(synchronous=config.synchronous, take_turns=self.take_turns)
        self.children = Children(self.channels)
        self.local: list[Any] = []  # the parts that run in this process, each with step() and close()
        self.done: Callable[[], bool] = lambda: False
        self.teacher_is_person = False
        self.people_watch = False  # now or later
        self.episode_window: Any = None
        self.page: WebGatherer | None = None
        self.episode_file: EpisodeFile | None = None
        self.interface: PrefInterface | None = None
        self.keeper: SegmentKeeper | None = None
        self.board: WeightsBoard | None = None  # for the policy
        self.query_board: WeightsBoard | None = None  # for choosing what is asked in the rounds of initial labels
        self.predictor_inputs = PredictorInputs(
            self.info.kind, self.info.observation_shape, self.info.n_actions, self.info.action_dim
        )

    @property
    def goal_labels(self) -> int:
        prefs = self.config.prefs
        return prefs.n_initial_prefs if self.config.mode == "gather_initial_prefs" else prefs.max_prefs

    def build(self) -> None:
        """Starts the mode's parts."""
        config = self.config
        log.info("the networks compute on the %s", self.device.type)
        if config.uses_preferences:
            self._open_store()
            self.board = self._board()
        if gathers(self.config):
            self._build_interface()
        elif config.mode == "gather_initial_prefs":  # segments alone, to be labelled later
            db = PrefDB.open(self.path / "prefs.db")
            self.keeper = SegmentKeeper(db, self.channels, config.prefs.max_segs)
            self.people_watch = True
            self.local.append(self.keeper)
        if config.render_episodes and config.mode != "pretrain_reward_predictor":
            from drlhp.screens.window import EpisodeWindow

            self.episode_window = EpisodeWindow()
        if config.mode in ("train_policy_with_preferences", "pretrain_reward_predictor"):
            self._build_trainer()
        if config.mode != "pretrain_reward_predictor":
            self._build_worker()
        if not config.synchronous:
            self.channels.read_in_background()  # the children have the other ends already
        if config.mode == "gather_initial_prefs":
            self.done = self._gathered

    def _board(self) -> WeightsBoard:
        return WeightsBoard(RewardPredictor(self.predictor_inputs, self.config.predictor), self.channels.context)

    def _gathered(self) -> bool:
        """Whether `gather_initial_prefs` has what it is for: labels, or segments alone."""
        if self.keeper is not None:
            return self.keeper.full
        return self._interface.ended or self._interface.n_labels >= self.goal_labels

    @property
    def _interface(self) -> PrefInterface:
        assert self.interface is not None
        return self.interface

    def _open_store(self) -> None:
        """Creates prefs.db, which on --resume is there, and counts its labels."""
        path = self.path / "prefs.db"
        if not path.exists():
            self._make_store(path)
        with contextlib.closing(PrefDB.open(path, read_only=True)) as db:
            self.channels.n_labels.value = db.n_labels()

    def _make_store(self, path: Path) -> None:
        """A store with the labels of --load_prefs_dir in it."""
        config = self.config
        # Elsewhere first: a run that is stopped or fails while it loads is resumed with all labels, not without.
        with tempfile.TemporaryDirectory(dir=self.path) as draft:
            with contextlib.closing(
                PrefDB.create(Path(draft) / path.name, config.env_id, config.prefs.clip_steps)
            ) as db:
                if config.prefs.load_prefs_dir:
                    place = Path(config.prefs.load_prefs_dir)
                    n_loaded = merge(db, store_path(place))
                    print(f"{n_loaded} labels loaded from {place}", flush=True)
                label.give_task(db)
            log_of_writes = db.path.with_name(f"{path.name}-wal")
            if log_of_writes.exists() and log_of_writes.stat().st_size:  # it holds what the file had no room for
                raise UserError(f"{path} cannot be made, the disk is full: free some space and resume the run.")
            db.path.replace(path)

    def _build_interface(self) -> None:
        config = self.config
        rounds = None
        if config.prefs.n_initial_rounds > 1:
            self.query_board = self._board()
            spec = PredictorCopySpec(self.predictor_inputs, config.predictor, self.query_board, self.device)
            rounds = InitialRounds(config.prefs.n_initial_rounds, spec)
        db = PrefDB.open(self.path / "prefs.db")
        gatherer = self._gatherer(db)
        self.teacher_is_person = self.people_watch = gatherer.is_person
        if config.mode == "gather_initial_prefs":
            self.channels.bell = None  # no trainer listens
        self.interface = PrefInterface(
            db,
            gatherer,
            self.channels,
            config.prefs,
            seed=config.seed,
            goal=self.goal_labels,
            annealed_over=config.policy.million_timesteps * 1e6,
            rounds=rounds,
        )
        self.local.append(self.interface)

    def _gatherer(self, db: PrefDB) -> PreferenceGatherer:
        """Who answers in this run."""
        config = self.config
        if config.prefs.synthetic_prefs:
            return SyntheticGatherer(db, teacher_of(config.prefs, config.seed, db.n_answers()))
        initial = config.prefs.labels_to_start() if config.trains_policy else 0
        Notices(db).give_settings(config.page.settings(self.goal_labels, initial), keep=False)
        if config.prefs.ui != "web":
            return gatherer_for(config.prefs.ui, db)
        self.page = WebGatherer(db, self.path, config.page)
        self.episode_file = EpisodeFile(self.path)
        return self.page

    def _build_trainer(self) -> None:
        """The trainer, which leaves as soon as there is nothing to train."""
        config = self.config
        freeze = not gathers(self.config)
        spec = TrainerSpec(
            inputs=self.predictor_inputs,
            env_id=config.env_id,
            config=config.predictor,
            board=self.board,
            run_dir=self.path,
            seed=config.seed,
            # With nobody to ask, training starts with the labels that there are.
            n_initial_prefs=config.prefs.labels_to_start() if gathers(self.config) else 0,
            freeze=freeze,
            improve=config.mode == "pretrain_reward_predictor",
            resume=bool(config.resume),
            device=self.device,
            rollout_steps=config.policy.n_envs * config.policy.n_steps,
            n_initial_rounds=config.prefs.n_initial_rounds,
            query_board=self.query_board,
        )
        if config.synchronous:
            trainer = Trainer(self.channels, spec)
            self.local.append(trainer)
            finished: Callable[[], bool] = lambda: trainer.finished  # noqa: E731
        else:
            self.children.start("reward predictor", run_trainer, replace(spec, n_threads=self._n_threads()))
            finished = lambda: self.children.has_finished("reward predictor")  # noqa: E731
        if config.mode == "pretrain_reward_predictor":
            self.done = finished

    def _build_worker(self) -> None:
        config = self.config
        spec = None
        if self.board is not None:
            spec = PredictorCopySpec(self.predictor_inputs, config.predictor, self.board, self.device)
        arguments: dict[str, Any] = {
            "env_id": config.env_id,
            "config": config.policy,
            "run_dir": self.path,
            "seed": config.seed,
            "n_watched": min(N_WATCHED, config.policy.n_envs) if self.people_watch else 0,
            "render_episodes": config.render_episodes or self.page is not None,
            "resume": bool(config.resume),
            "clip_steps": config.prefs.clip_steps,
            "end_penalty": config.prefs.teacher_end_penalty,
            "device": self.device,
        }
        if config.synchronous:
            worker = PolicyWorker(rewarder=spec.build() if spec else None, channels=self.channels, **arguments)
            self.local.insert(0, worker)
            self.done = lambda: worker.finished
        else:
            n_threads = self._n_threads()
            size = crew_size(self.info, config.policy, self.device, n_threads)
            links, memory = start_crew(self.children, config.env_id, config.policy, size)
            self.children.start("a2c", run_worker, n_threads, spec, {**arguments, "links": links, "memory": memory})
            for link in links:
                link.close()  # the leader has them now
            self.done = lambda: self.children.has_finished("a2c")

    def _n_threads(self) -> int:
        threads = n_threads(self.take_turns, self.device)
        log.info("each child computes with %d threads%s", threads, ", in turns" if self.take_turns else "")
        return threads

    def turn(self) -> None:
        """The paper's loop, until the mode's last part is done: act, ask, learn the reward, learn the policy."""
        live = progress_module.is_terminal() and not self._labels_here
        goal = self.goal_labels if gathers(self.config) else 0
        initial = self.config.prefs.labels_to_start()
        progress = Progress(self.path, initial_labels=initial, goal_labels=goal, live=live)
        idle_seconds = 1 / 120 if self._labels_here or self.episode_window else 0.05
        try:
            while not self.done():
                busy = [part.step() for part in self.local]
                self._show_episodes()
                self._read_reports(progress)
                self.children.check()
                gathering = self.interface or self.keeper
                clips = gathering.clips() if gathering else ""
                progress.show(self._n_labels(), clips, true_reward=self._shows_true_reward)
                if self.page is not None:
                    self.page.line = progress.line(true_reward=self._shows_true_reward)
                    self.page.trouble = self.episode_file.trouble if self.episode_file else ""
                if not any(busy):
                    self.children.wait(idle_seconds)
            self.children.stop()
            self._read_reports(progress)
        finally:
            progress.close()
        self.close()
        progress_module.draw_curves(self.path)
        spec = gymnasium.registry.get(self.config.env_id)
        solved_at = spec.reward_threshold if spec and self.config.trains_policy else None
        text = progress_module.summary(progress, solved_at=solved_at, uses_preferences=self.config.uses_preferences)
        log.info("finished\n%s", text)
        print(f"Finished.\n{text}", flush=True)
        if self.keeper is not None:
            quoted = shlex.quote(str(self.path))
            print(f"Label the {self.keeper.n} clips with: python run.py label {quoted}", flush=True)

    @property
    def _labels_here(self) -> bool:
        """Whether a person labels at this screen, and not in a browser."""
        return self.teacher_is_person and self.page is None

    @property
    def _shows_true_reward(self) -> bool:
        """Whether this screen does: it would sway who labels here, or in a browser beside it."""
        return not self.teacher_is_person or self.config.page.web_true_reward

    def _n_labels(self) -> int:
        return int(self.channels.n_labels.value)

    def _read_reports(self, progress: Progress) -> None:
        for report in drain(self.channels.reports):
            if isinstance(report, Failure):
                raise ChildError(f"the {report.source} process failed: {report.message}", report.traceback)
            progress.update(report, self._n_labels())

    def _show_episodes(self) -> None:
        """Draws the last full episode, and keeps it for the page, if it is to be seen."""
        if self.episode_window is None and self.episode_file is None:
            return
        for episode in drain(self.channels.episodes):
            if self.episode_file is not None:
                self.episode_file.offer(episode)
            if self.episode_window is not None:
                reward = f", reward {episode.episode_return:g}" if self._shows_true_reward else ""
                caption = f"the last full episode{reward}"
                self.episode_window.show(EncodedFrames(episode), episode.fps, caption)
        if self.episode_window is not None and "close" in self.episode_window.tick():
            self.episode_window.close()
            self.episode_window = None

    def leave_screen(self) -> None:
        """Ends the labelling, so that what is printed from now on is seen in the terminal."""
        if self.interface is not None:
            self.interface.gatherer.close()

    def tell_failure(self, why: str) -> None:
        """Tells those who label on the page why the run ends."""
        if self.page is not None:
            self.page.fail(why)

    def close(self) -> None:
        """Ends everything in order; may be called twice."""
        self.children.stop()
        while self.local:
            self.local.pop().close()
        if self.episode_window is not None:
            self.episode_window.close()
        if self.episode_file is not None:
            self.episode_file.close()
        self.channels.close()  # what nobody has read must not keep this process


def train(config: RunConfig) -> int:
    """Carries out one of the four modes in its run folder; returns the exit status."""
    check_inputs(config)
    path = config.run_path()
    folder = RunFolder.resume(path, config.as_dict()) if config.resume else RunFolder.create(path, config.as_dict())
    run = Run(config, folder)
    go_on = f"Carry on with: python run.py --resume {shlex.quote(str(path))}"
    try:
        log.info("command: %s", " ".join(sys.argv))
        print(f"Run folder: {path}", flush=True)
        run.build()
        run.turn()
    except KeyboardInterrupt:
        run.leave_screen()
        print("\nStopping: writing checkpoints (Ctrl-C again stops at once).", flush=True)
        try:
            run.close()
        except KeyboardInterrupt:
            run.children.kill()
        print(f"Stopped. {go_on}", flush=True)
        try:
            if (path / "progress.csv").exists():
                progress_module.draw_curves(path)
        except (Exception, KeyboardInterrupt):
            log.exception("no curves")
        return INTERRUPTED
    except (ChildError, *USER_ERRORS) as error:
        details = error.child_traceback if isinstance(error, ChildError) else ""
        log.error("%s\n%s", error, details, exc_info=True)
        run.tell_failure(told(error))
        print(f"run.py: {told(error)}", file=sys.stderr)
        print(go_on, flush=True)
        if config.debug:
            print(details or traceback.format_exc(), file=sys.stderr)
    except Exception as error:  # a mistake of ours: its traceback belongs in the log, not on the user's screen
        log.exception("unexpected error")
        reason = f"{type(error).__name__}: {reason_of(error)}"
        run.tell_failure(reason)
        print(f"run.py: {reason}; the details are in {path / 'log.txt'}.", file=sys.stderr)
        print(go_on, flush=True)
        if config.debug:
            raise
    else:
        return 0
    finally:
        run.close()
        folder.close()
    if run.teacher_is_person:
        label_on(run)
    return FAILURE


def label_on(run: Run) -> None:
    """After a failure: says how to label all the same, and does so where people label on the page, until Ctrl-C."""
    page = run.config.page
    if run.page is not None:  # it is looked for where it was, also if that was any free port
        page = replace(page, web_port=run.page.server.address.port)
    words = [str(run.path), "--ui", run.config.prefs.ui, "--max_prefs", str(run.goal_labels), *page.flags()]
    print(f"Label meanwhile with: python run.py label {shlex.join(words)}", flush=True)
    if run.page is None:
        return
    try:
        with contextlib.closing(PrefDB.open(run.path / "prefs.db", read_only=True)) as db:
            something_to_ask = len(db.segment_ids()) >= 2 and db.n_labels() < run.goal_labels
        if something_to_ask:
            print("That is done here now, for the page goes on; end it with Ctrl-C before you resume.", flush=True)
            label.label_command(words, trouble=run.page.trouble)
    except USER_ERRORS as error:
        print(f"run.py: {told(error)}", file=sys.stderr)
    except KeyboardInterrupt:
        return


def train_command(arguments: list[str]) -> int:
    """Carries out one of the four modes; returns the exit status."""
    lend_environments()
    return train(parse(arguments))


def main(arguments: list[str]) -> int:
    """Runs the command line; returns the exit status: 2 for bad input, 1 for a failure while running."""
    return command_line("run.py", arguments, train_command if names_mode(arguments) else run_command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
