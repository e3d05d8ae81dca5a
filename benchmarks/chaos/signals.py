"""Signals to the processes of runs, in every phase: two are stopped and go on, and then one is killed; then a resume.

A stop with its continuation counts as one blow, and a kill as another. The phases take turns, and the processes are
drawn.

No label may be lost or used twice, no process may be left, no traceback be printed, and every resumed run may finish.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from benchmarks.chaos.cases import LEAVE_SECONDS, Notes, all_ended, processes
from benchmarks.chaos.commands import Command, Ended, complaint
from benchmarks.chaos.runs import NAME, check_end, check_labels
from tests.support.commands import answers, policy_steps, progress

KILLS, STOPS = 4, 2  # kills of a case, each before a resume; stops and continuations before each kill
BLOWS = KILLS * (STOPS + 1)
ENVIRONMENTS = {
    "MovingDotNoFrameskip-v0": (),
    "CartPole-v1": (),
    "PongNoFrameskip-v4": ("--eval_interval_million_timesteps", "0"),  # Its games take too long.
}
PHASES = ("starting", "asking", "learning", "training")
GOAL = 30
FLAGS = (
    *("--synthetic_prefs", "--n_envs", "2", "--n_initial_prefs", "10", "--max_prefs", str(GOAL), "--max_segs", "16"),
    *("--n_initial_epochs", "2", "--eval_episodes", "1", "--policy_ckpt_interval", "10"),
)
ENDLESS, STEPS_TO_END = "5", 1000  # million steps of a run that is to be killed; steps of its last part
PHASE_SECONDS = 300.0  # far more than it takes, as other programs may use the machine
HELPERS = ("forkserver", "resource_tracker")  # of multiprocessing; without them a run may go on
HELPER_SECONDS = 10.0  # for a run to end because it lacks one
# What the main process may be sent; its children ignore all but the first.
TO_MAIN = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Life:
    """One start or resume of a run, up to its death."""

    def __init__(self, words: list[str], notes: Notes, phase: str) -> None:
        self.folder, self.notes = Path(NAME), notes
        self.rows = self._rows()
        notes.count("resumes", int(words[0] == "--resume"))
        # A life that is to end while it starts does all its imports.
        self.command = Command(*words, cwd=notes.folder, preloaded=phase != "starting")
        self.main = self.command.process.pid

    def _rows(self) -> int:
        return len(progress(self.folder)) if (self.folder / "progress.csv").exists() else 0

    def phase(self) -> str:
        """Returns how far this life is."""
        if not (self.folder / "prefs.db").exists():
            return "starting"
        n = len(answers(self.folder))
        if n < 10:
            return "asking" if n else "starting"
        return "training" if self._rows() > self.rows else "learning"

    def reach(self, phase: str) -> bool:
        """Waits for a phase, and for a random time in it; returns whether the run goes on."""
        deadline, wanted = time.monotonic() + PHASE_SECONDS, PHASES.index(phase)
        while PHASES.index(self.phase()) < wanted:
            if self.command.wait(0.05):
                return False
            if time.monotonic() > deadline:
                self.notes.found(f"waiting for {phase}", f"hang: still {self.phase()} after {PHASE_SECONDS:.0f} s")
                break
        return not self.command.wait(self.notes.rng.uniform(0, 2.5 if phase == "starting" else 0.7))

    def victims(self) -> dict[int, str]:
        """Returns this life's processes by their ids."""
        # A preloaded main process does not have the mark, by which the others are found.
        alive = {self.main: "main"} if self.command.process.poll() is None else {}
        return {pid: name for pid, name in processes().items() if pid != self.main} | alive

    def choose(self) -> tuple[int, str]:
        """Draws a process of the run: first what it is, so that one of many alike is not the likeliest."""
        victims = self.victims() or {self.main: "main"}
        name = self.notes.rng.choice(sorted(set(victims.values())))
        return self.notes.rng.choice([pid for pid in sorted(victims) if victims[pid] == name]), name

    def stop_and_continue(self) -> None:
        """Stops a process for a moment, which must not matter."""
        pid, name = self.choose()
        if self.send(pid, signal.SIGSTOP):
            time.sleep(self.notes.rng.uniform(0.1, 1.0))
            self.send(pid, signal.SIGCONT)
            self.notes.count(f"stopped and continued: {name}")
            self.notes.count("stopped and continued")
            self.notes.count("blows")

    def kill(self, phase: str) -> str:
        """Kills a process; returns what was done."""
        pid, name = self.choose()
        number = self.notes.rng.choice(TO_MAIN) if name == "main" else signal.SIGKILL
        if self.send(pid, number):
            self.notes.count("killed")
            self.notes.count("blows")
        self.notes.count(f"{number.name} to {name} while {phase}")
        return f"{number.name} to {name} while {phase}"

    def send(self, pid: int, number: signal.Signals) -> bool:
        """Sends a signal; returns whether the process was still there."""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        self.notes.count("signals")
        return True

    def death(self, did: str) -> Ended:
        """Waits until all processes have ended; one that goes on without a helper gets SIGINT."""
        may_go_on = any(f" to {name} " in did for name in HELPERS)
        if not self.command.wait(HELPER_SECONDS if may_go_on else LEAVE_SECONDS) and may_go_on:
            self.notes.count(f"went on after {did}")
            self.send(self.main, signal.SIGINT)
        ended = self.command.ended()
        if left := all_ended():
            self.notes.found(did, f"processes left: {left}")
        return ended


def signals(number: int, notes: Notes, kills: int = KILLS) -> None:
    """Starts a run, kills and resumes it several times, and lets it finish."""
    environment, flags = [*ENVIRONMENTS.items()][number % len(ENVIRONMENTS)]
    words = ["train_policy_with_preferences", environment, *FLAGS, *flags, "--run_name", NAME, "--log_dir", "."]
    folder, fresh, did = Path(NAME), words, "the start"
    for i in range(kills):
        phase = PHASES[(number + i) % len(PHASES)]
        life = Life([*words, "--million_timesteps", ENDLESS] if words is fresh else words, notes, phase)
        if life.reach(phase):
            for _ in range(STOPS):
                life.stop_and_continue()
        reached = life.phase()
        known = answers(folder) if (folder / "prefs.db").exists() else []
        did = f"{environment}: {life.kill(reached)}, in the life {words[0]}"
        judge(life.death(did), did, notes)
        check_labels(known, folder, notes, did)
        words = ["--resume", NAME] if (folder / "config.json").exists() else fresh
    finish(words, folder, notes, did)


def judge(ended: Ended, did: str, notes: Notes) -> None:
    """Notes what is wrong with the end of a killed run."""
    # Nothing is saved, and nothing said, if SIGINT comes while the program is being imported.
    ended_well = (0, 130, -signal.SIGINT)
    by_signal = [-number for number in TO_MAIN] if " to main " in did else []
    if wrong := complaint(ended, *ended_well, *by_signal):
        notes.found(did, wrong)


def finish(words: list[str], folder: Path, notes: Notes, did: str) -> None:
    """Resumes a run for the last time, and lets it finish."""
    steps = str((policy_steps(folder) + STEPS_TO_END) / 1e6)
    before = answers(folder) if (folder / "prefs.db").exists() else []
    command = Command(*words, "--million_timesteps", steps, cwd=notes.folder, preloaded=True)
    ended = command.ended(240)
    did = f"the last {words[0]}, after {did}"
    notes.count("resumes", int(words[0] == "--resume"))
    notes.count("runs to the end")
    if wrong := complaint(ended):
        notes.found(did, wrong)
    if ended.status != 0:
        notes.found(did, f"did not finish (exit status {ended.status}): {ended.output[-600:]}")
    else:
        check_end(ended.output, folder, notes, did)
    check_labels(before, folder, notes, did)
    if left := all_ended():
        notes.found(did, f"processes left: {left}")
