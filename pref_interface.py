"""The preference interface: takes segments, asks about pairs of them, and rings for the trainer when labels come."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from drlhp.bounds import POSITIVE_OR_INFINITE, SHARE, at_least
from drlhp.errors import UserError
from drlhp.labelling.disk import DiskSpace
from drlhp.labelling.drawing import Drawing
from drlhp.labelling.gatherers import Answered, PreferenceGatherer
from drlhp.labelling.notices import FEW_LABELS, Notices
from drlhp.labelling.teachers import SyntheticTeacher, synthetic_teacher
from drlhp.queries.hold import PolicyHold
from drlhp.queries.ordering import OrderingQueries
from drlhp.queries.pool import Pool
from drlhp.queries.schedule import LabelSchedule, Rounds, ScheduleName
from drlhp.queries.selection import DrawnQueries, Queries, QuerySelection, strategy_of
from drlhp.queries.status import Status
from drlhp.runtime.channels import Channels
from drlhp.runtime.pulse import doing
from drlhp.runtime.snapshot import kept_of, restore_kept
from drlhp.screens.opening import Ui
from pref_db import PrefDB

log = logging.getLogger("run")

TELL_SECONDS = 2.0  # between messages to other processes about how far the run is
TEACHERS_DRAWS = 1  # gives the teacher another random stream than the others of a seed


@dataclass(frozen=True)
class PrefsConfig:
    """Preferences; values here are the paper's for Atari (appendix A.2), and envs/tuned.py has what differs."""

    synthetic_prefs: bool = False
    """Let a synthetic teacher answer by the true reward of the segments; any --teacher flag implies this."""
    teacher: str = "oracle"
    """The synthetic teacher: B-Pref's oracle, stoc, mistake, skip, equal or myopic, or module:function, a function of a
    segment whose value replaces the true reward."""
    teacher_beta: Annotated[float | None, POSITIVE_OR_INFINITE] = None
    """Rationality: prefers A with probability 1 / (1 + exp(-beta * (return of A - return of B))), at `inf` always the
    better one. In this flag and the next four, None keeps the teacher's own value."""
    teacher_gamma: Annotated[float | None, SHARE] = None
    """Myopia: discount per agent step, counted back from a segment's end; 1 weighs all steps alike."""
    teacher_mistake: Annotated[float | None, SHARE] = None
    """Probability that a preference is reversed."""
    teacher_skip: Annotated[float | None, SHARE] = None
    """Can't tell if both returns are below this share of the mean return of the last 200 segments judged."""
    teacher_equal: Annotated[float | None, at_least(0)] = None
    """Equal if the returns differ by less than this share of that mean return."""
    teacher_end_penalty: Annotated[float, at_least(0)] = 0.0
    """Penalty that a synthetic teacher sees in the step that ends a game; reported rewards are without it. The paper
    has one in every game except Pong, and does not say how large."""
    gather_prefs: bool = True
    """Ask for labels; --no_gather_prefs uses loaded labels and a loaded reward predictor, and trains the latter no
    further."""
    n_initial_prefs: Annotated[int, at_least(0)] = 500
    """Labels to gather before the reward predictor is pretrained."""
    n_initial_rounds: Annotated[int, at_least(1)] = 1
    """Rounds in which the initial labels are asked: with more than one the reward predictor learns from each, and
    chooses by `--query_selection` which pairs the next one asks."""
    max_prefs: Annotated[int, at_least(0)] = 5500
    """Labels to gather in all; after them the policy trains on without new ones."""
    max_segs: Annotated[int, at_least(2)] = 1000
    """Newest segments kept in memory, from which pairs are drawn. When training begins, a hundred of the older ones
    stay."""
    clip_steps: Annotated[int, at_least(1)] = 25
    """Agent steps of a clip; off Atari 1.5 seconds' worth of them, as in the paper (15 to 60)."""
    query_selection: QuerySelection = "disagreement"
    """How pairs are chosen after the initial ones, whose clips are in no other pair. `random`: any; `disagreement`: of
    several, the one on which the ensemble disagrees most (the paper's); `entropy`: on which it is least sure; `newest`:
    any of the newest tenth of the segments; `k_center`: the one that looks least like the last 1,000 (B-Pref's);
    `ordering`: those that put the segments in order."""
    query_candidates: Annotated[int, at_least(1)] = 10
    """Pairs drawn for each question, of which the best by --query_selection is asked."""
    label_schedule: ScheduleName = "paper"
    """How a synthetic teacher's labels spread over training: ever rarer at the paper's rate on MuJoCo, at that rate in
    ten steps as the paper has it on Atari, at rl-teacher's exponential rate, or evenly."""
    load_prefs_dir: str | None = None
    """Run folder whose labels to start from."""
    ui: Ui = "auto"
    """Where people label: in a window; in the terminal, which also works over SSH; or on a web page, which takes any
    number of people. `auto` is a window if there is a display, else the terminal."""
    wait_for_labels: Annotated[Literal["never", "initial"] | float, SHARE] = "initial"
    """What the policy waits for: `initial`, the first n_initial_prefs labels; `never`, a few of them. With a number
    from 0 to 1 people are asked as often as synthetic teachers, and the policy waits while a greater share is open."""

    @property
    def judged_by_reward(self) -> bool:
        """Whether the teacher's answers depend on the true reward."""
        return self.synthetic_prefs and ":" not in self.teacher

    def labels_to_start(self) -> int:
        """Returns the number of labels with which the reward predictor is pretrained and the policy starts."""
        if self.wait_for_labels == "initial":
            return self.n_initial_prefs
        few = min(FEW_LABELS, self.n_initial_prefs)
        share = 0.0 if self.wait_for_labels == "never" else 1 - self.wait_for_labels
        return max(few, math.ceil(share * self.n_initial_prefs))


def teacher_of(config: PrefsConfig, seed: int, n_answers: int) -> SyntheticTeacher:
    """Returns the synthetic teacher that the flags describe; its random stream depends on the number of stored answers.

    Raises UserError if it is a function that cannot be found.
    """
    # The last number gives it another stream than the generator that draws the pairs, whose seed is `seed` alone.
    rng = np.random.default_rng((seed, n_answers, TEACHERS_DRAWS))
    return synthetic_teacher(
        config.teacher,
        rng,
        beta=config.teacher_beta,
        gamma=config.teacher_gamma,
        mistake=config.teacher_mistake,
        skip=config.teacher_skip,
        equal=config.teacher_equal,
        end_penalty=config.teacher_end_penalty,
    )


def queries_of(config: PrefsConfig, db: PrefDB, rng: np.random.Generator) -> Queries:
    """Returns the query strategy that the flags name, which asks nothing that the store holds."""
    asked = db.asked()
    if config.query_selection == "ordering":
        return OrderingQueries(db, asked, config.max_segs, rng)
    return DrawnQueries(asked, strategy_of(config.query_selection, config.query_candidates, rng), rng)


class PrefInterface:
    """Asks about pairs of recent segments; every answer is on disk before it travels on.

    Owns the store.

    Args:
        annealed_over: agent steps of policy training over which a synthetic teacher spreads its labels.
        goal: labels after which nobody is asked any more.
        rounds: asks the initial labels in rounds; None if there is only one.
    """

    KEPT = (
        *("rng", "pool", "queries", "gatherer", "schedule"),
        *("_began", "_said_end", "_looked_for_ties", "_said_same"),
    )

    def __init__(
        self,
        db: PrefDB,
        gatherer: PreferenceGatherer,
        channels: Channels,
        config: PrefsConfig,
        *,
        seed: int,
        goal: int,
        annealed_over: float,
        rounds: Rounds | None = None,
    ) -> None:
        self.db, self.gatherer, self.channels, self.notices = db, gatherer, channels, Notices(db)
        share = config.wait_for_labels if isinstance(config.wait_for_labels, float) else None
        channels.n_labels.value = db.n_labels()
        self.schedule = LabelSchedule(
            channels,
            channels.n_labels.value,
            name=config.label_schedule,
            annealed_over=annealed_over,
            goal=goal,
            n_initial_prefs=config.n_initial_prefs,
            to_start=None if channels.bell is None else config.labels_to_start(),
            is_paced=not gatherer.is_person or share is not None,
            rounds=rounds,
        )
        self.schedule.read(self.notices)
        self.rng = np.random.default_rng(seed)
        self.pool = Pool(maxlen=config.max_segs)
        self.queries = queries_of(config, db, self.rng)
        self.hold = PolicyHold(db, channels, share)
        self.disk = DiskSpace(db.path)
        self._drawing = Drawing()
        self.status = Status(gatherer, self.schedule, self.pool, self.queries, self._drawing, self.disk, db.path.parent)
        self._began, self._said_end, self._looked_for_ties, self._said_same = False, False, False, False
        self._told, self._line = -math.inf, ""

    def step(self) -> bool:
        """Takes new segments, asks, and passes answers on, without waiting; returns False if nothing was to be done."""
        took = self._take_segments()
        asked = not self.ended and self._ask()
        self._tell()
        answered = self._deliver(self.gatherer.drain())
        self.hold.update(len(self.gatherer.pending), wants_more=not (self.ended or self.schedule.is_done))
        if self.ended:
            self._end()
        return took or asked or answered

    def snapshot(self) -> dict[str, Any]:
        """Returns what `restore` takes."""
        waiting = Pool(self.channels.segments.queue)
        seen = min(self.db.newest_seq(), self.db.horizon.seq)
        return {"kept": kept_of(self), "waiting": waiting.snapshot(), "seen": seen}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from there; answers that the store has from later on are given again."""
        self.db.horizon.move(state["seen"], self.db.newest_seq())
        restore_kept(self, state["kept"])
        waiting = Pool()
        waiting.restore(state["waiting"])
        for candidate in waiting:
            self.channels.segments.put(candidate)

    @property
    def ended(self) -> bool:
        """Returns whether the person has left and nobody labels beside the run."""
        return self.gatherer.ended

    @property
    def n_labels(self) -> int:
        """Returns the number of labels in the store."""
        return self.schedule.n_labels

    @property
    def _fills_pool(self) -> bool:
        """Returns whether the first pairs wait for a full pool: more episodes show the predictor more of the task."""
        return self.schedule.asks_initial and not self.pool.is_full

    @property
    def _oldest(self) -> int:
        """Returns the policy step before which segments are too old to be asked about; 0 while new ones are few."""
        return self.pool.oldest_step if self.schedule.training and self.pool.is_full else 0

    # Asking

    def _take_segments(self) -> bool:
        """Moves segments from the queue to the pool; a full pool stays before training while pairs are left to ask."""
        schedule = self.schedule
        if schedule.training and not self._began:
            self._began = True
            self.pool.keep_a_few(self.rng)
            if schedule.rounds is not None:
                self.pool.forget_returns()
        if not schedule.training and self.pool.is_full and not (self.queries.all_asked and schedule.is_judged):
            return False
        return self.pool.take(self.channels.segments)

    def _ask(self) -> bool:
        """Asks about as many pairs as are wanted and can soon be answered."""
        schedule, is_person = self.schedule, self.gatherer.is_person
        pending = {*self.gatherer.pending, *self._drawing.open}
        n = schedule.wanted(len(pending))
        if is_person and self.disk.look():
            return False  # what is left is for answers
        if self._fills_pool:
            if not is_person:
                return False
            n = min(n, len(self.pool.unseen()) // 2)
        if not schedule.is_judged:
            if not self.pool.is_full:
                return False  # what comes after the judgement would not be asked about
            learned = schedule.judge(self.pool)
            if not schedule.is_judged:
                return learned
        # People who lag behind are asked all that is due, because the policy may wait for them by what is open.
        if not (is_person and schedule.is_paced and schedule.training):
            n = min(n, self.gatherer.ahead - len(pending))
        initial, oldest = schedule.asks_initial, self._oldest
        comparisons = self.queries.choose(self.pool, pending, n, initial=initial, oldest=oldest)
        if comparisons or not n:
            self.pool.in_vain = 0
        elif self.queries.all_asked and not pending and self.pool.waited_in_vain:
            self._give_up()
        if is_person:
            for comparison in comparisons:
                self._drawing.begin(comparison)
            comparisons = self._drawing.done()
        if comparisons:
            self.gatherer.submit(comparisons)
        return bool(comparisons)

    def _give_up(self) -> None:
        """Raises UserError because clips repeat; once the policy trains, which needs no more labels, says so once."""
        n, n_labels = self.pool.n_different, self.n_labels
        found = f"the last {self.pool.in_vain} clips of {self.db.env_id} are "
        found += "all the same" if n < 2 else f"only {self.status.repeated('different ones')}"
        if not self.schedule.training:
            raise UserError(
                f"{found}, so there will be no more than {n_labels} labels of {self.schedule.due()}: let the agent's "
                "actions change what it observes, let it explore first, or ask for fewer initial labels."
            )
        if not self._said_same:
            self._said_same = True
            log.warning("%s", found)
            self.gatherer.announce(f"No new pair to ask about: {found}. Training goes on with {n_labels} labels.")

    # Passing on answers

    def _deliver(self, answered: list[Answered]) -> bool:
        """Counts new answers, and rings for the trainer, which reads its labels from the store."""
        unseen = self.schedule.is_done and self.db.horizon.hides  # from `label`; nothing is left to be given again
        if unseen:
            self.db.horizon.lift()
        elif not answered:
            return False
        self.queries.learn(answered)
        self.schedule.n_labels = self.channels.n_labels.value = self.db.n_labels()
        if self.n_labels >= FEW_LABELS and not self._looked_for_ties:
            self._warn_of_ties()
        self.hold.count()
        if self.channels.bell is not None and (unseen or any(one.label is not None for one in answered)):
            self.channels.bell.set()
        return True

    def _warn_of_ties(self) -> None:
        """Says so if no label prefers a clip, because the agent would then be trained on nothing."""
        self._looked_for_ties = True
        if not self.db.has_preference():
            said = (
                f"All {self.n_labels} labels so far call both clips equal, which teaches nothing: let the agent "
                "explore first, so that clips differ, or judge by something else than now."
            )
            log.warning(said)
            self.gatherer.announce(said)

    def _end(self) -> None:
        """Says once that nobody labels any more; lets training that waits for more labels start if it can."""
        if self.schedule.asks_initial and self.channels.bell is not None and self.n_labels >= FEW_LABELS:
            self.notices.start_now()
            self.schedule.read(self.notices)
        if not self._said_end:
            self._said_end = True
            log.info("Labelling has ended")
            print(f"Labelling has ended; {self.status.without_labels()}. Ctrl-C ends the run.", flush=True)

    # Telling people

    def _tell(self) -> None:
        """Tells people how far the run is, and withdraws questions that nobody saw about clips not in the pool now."""
        now = time.monotonic()
        is_due = now >= self._told + TELL_SECONDS
        if is_due:
            self.db.check_place()  # A synthetic teacher that waits commits nothing.
        if is_due and self.n_labels < self.schedule.n_initial:
            self.schedule.read(self.notices)
        line = self.status.line()
        if not is_due and line == self._line:
            return
        self._told, self._line = now, line
        n_initial = 0 if self.schedule.training else self.schedule.n_initial
        numbers = {"labels": self.n_labels, "goal": self.schedule.goal, "agent_steps": self.schedule.steps}
        self.gatherer.tell(line, {**numbers, "clips": len(self.pool), "initial_labels": n_initial})
        if self._oldest:
            self.gatherer.withdraw(self._oldest)

    def clips(self) -> str:
        """Says how many segments there are to ask about, of how many that the pool holds."""
        waits = " (labels wait for all)" if self._fills_pool and not self.gatherer.is_person else ""
        if self.queries.all_asked:
            waits = f" ({self.status.repeated()})"
        return f"{len(self.pool)}/{self.pool.maxlen}{waits}"

    def close(self) -> None:
        """Closes the windows and the store."""
        self._drawing.close()
        self.gatherer.close()
        self.db.close()


@dataclass(frozen=True)
class InterfaceSpec:
    """Describes a preference interface to the process that runs it."""

    db_path: Path
    """The store, which this process opens for itself."""
    make_gatherer: Callable[[PrefDB, InterfaceSpec], PreferenceGatherer]
    """Makes the teacher, window or page that answers, in that process; a top-level function, or a `partial` of one."""
    config: PrefsConfig
    seed: int
    goal: int
    """Labels after which nobody is asked any more."""
    annealed_over: float
    """Agent steps of policy training over which a synthetic teacher spreads its labels."""


def run_interface(channels: Channels, spec: InterfaceSpec) -> None:
    """Body of a process of its own for the preference interface: asks until told to stop."""
    db = PrefDB.open(spec.db_path)
    gatherer, over = spec.make_gatherer(db, spec), spec.annealed_over
    interface = PrefInterface(db, gatherer, channels, spec.config, seed=spec.seed, goal=spec.goal, annealed_over=over)
    try:
        while not channels.stop.is_set():
            with doing("a step of the preference interface"):
                if not interface.step():
                    channels.stop.wait(1 / 60)
    finally:
        interface.close()
