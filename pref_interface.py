"""The preference interface: which pairs of segments to ask about and when; labels go on to the trainer."""

from __future__ import annotations

import logging
import math
import shlex
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from drlhp.bounds import POSITIVE_OR_INFINITE, SHARE, at_least
from drlhp.data.comparison import Comparison
from drlhp.data.segment import Segment
from drlhp.labelling.drawing import Drawing
from drlhp.labelling.gatherers import Answered, PreferenceGatherer
from drlhp.labelling.notices import FEW_LABELS, Notices
from drlhp.labelling.queue import nearly_full
from drlhp.labelling.teachers import SyntheticTeacher, synthetic_teacher
from drlhp.queries.ordering import OrderingQueries
from drlhp.queries.schedule import LabelSchedule, labels_due
from drlhp.queries.selection import CENTRES, NEWEST_SHARE, QuerySelection, informativeness, looks
from drlhp.runtime.channels import Channels, drain
from drlhp.screens.opening import Ui
from pref_db import PrefDB

if TYPE_CHECKING:
    from drlhp.training.rounds import InitialRounds  # takes PyTorch, which whoever has no rounds can do without

log = logging.getLogger("run")

TELL_SECONDS = 2.0  # between words to other processes about how far the run is
TEACHERS_DRAWS = 1  # tells the teacher's random stream from the others of a seed
TRIES = 50  # pairs looked at for one that was not asked yet
UNTRAINED_KEPT = 100  # segments from before the training that stay in the pool when it begins


@dataclass(frozen=True)
class PrefsConfig:
    """Preferences; the defaults are the paper's for Atari (appendix A.2), where it names them."""

    synthetic_prefs: bool = False
    """Let a synthetic teacher answer, from the true reward of the segments; any --teacher flag says so too."""
    teacher: str = "oracle"
    """Who answers where nobody labels by hand: B-Pref's oracle, stoc, mistake, skip, equal or myopic, or
    module:function, a function of a segment whose value takes the place of the true reward."""
    teacher_beta: Annotated[float | None, POSITIVE_OR_INFINITE] = None
    """Rationality: prefers A with probability 1 / (1 + exp(-beta * (return of A - return of B))), at `inf` always the
    better one. This and the next four: None leaves what the teacher has."""
    teacher_gamma: Annotated[float | None, SHARE] = None
    """Myopia: discount per agent step, counted back from a segment's end; 1 weighs all steps alike."""
    teacher_mistake: Annotated[float | None, SHARE] = None
    """Probability that a preference is turned round."""
    teacher_skip: Annotated[float | None, SHARE] = None
    """Can't tell if both returns are below this share of the mean return of the last 200 segments judged."""
    teacher_equal: Annotated[float | None, at_least(0)] = None
    """Equal if the returns differ by less than this share of that mean return."""
    teacher_end_penalty: Annotated[float, at_least(0)] = 0.0
    """Taken off the true reward of the step that ends a game, in what a synthetic teacher sees; not off the rewards
    that are reported. The paper has one in every game but Pong, and does not say how large."""
    gather_prefs: bool = True
    """Ask for labels; --no_gather_prefs trains on what is loaded, and leaves the reward predictor as it is."""
    n_initial_prefs: Annotated[int, at_least(0)] = 500
    """Labels to gather before the reward predictor is pretrained."""
    n_initial_rounds: Annotated[int, at_least(1)] = 1
    """Rounds in which the initial labels are asked: with more than one the reward predictor learns from each, and
    chooses by `--query_selection` which pairs the next one asks."""
    max_prefs: Annotated[int, at_least(0)] = 5500
    """Labels to gather in all; the policy goes on without more."""
    max_segs: Annotated[int, at_least(2)] = 1000
    """Newest segments kept in memory, from which the pairs to ask about are drawn; a hundred of those from before the
    training stay when it begins."""
    clip_steps: Annotated[int, at_least(1)] = 25
    """Agent steps of a clip; off Atari 1.5 seconds' worth of them, as in the paper (15 to 60)."""
    query_selection: QuerySelection = "disagreement"
    """Which pair is asked after the initial ones, which are of clips in no other pair: any; of several, the one about
    whose answer the ensemble disagrees most (the paper's) or is least sure; any of the newest tenth of the segments; of
    several, the one that looks least like the last 1,000 that were asked (B-Pref's greedy k-center); or those by which
    segments are put in order."""
    query_candidates: Annotated[int, at_least(1)] = 10
    """Pairs drawn, of which that one is asked."""
    label_schedule: LabelSchedule = "paper"
    """How a synthetic teacher's labels spread over the training: ever rarer, at the paper's rate on MuJoCo, at the same
    in ten steps, as the paper has it on Atari, or at rl-teacher's exponential one; or evenly."""
    load_prefs_dir: str | None = None
    """Run folder whose labels to start from."""
    ui: Ui = "auto"
    """Where people label: in a window; in the terminal itself, which also works over SSH; or on a web page, which takes
    any number of them. `auto` is a window where there is a display, else the terminal."""
    wait_for_labels: Annotated[Literal["never", "initial"] | float, SHARE] = "initial"
    """What the policy waits for: `initial`, for the first n_initial_prefs labels; `never`, for a few of them; a number
    from 0 to 1: it is asked as synthetic teachers are, and the policy waits while a greater share is unanswered."""

    def labels_to_start(self) -> int:
        """Labels with which the reward predictor is pretrained and the policy starts."""
        if self.wait_for_labels == "initial":
            return self.n_initial_prefs
        few = min(FEW_LABELS, self.n_initial_prefs)
        share = 0.0 if self.wait_for_labels == "never" else 1 - self.wait_for_labels
        return max(few, math.ceil(share * self.n_initial_prefs))


def teacher_of(config: PrefsConfig, seed: int, n_answers: int) -> SyntheticTeacher:
    """The synthetic teacher that the flags describe, with draws of its own after each number of stored answers.

    Raises UserError if it is a function that cannot be found.
    """
    # The last number keeps it apart from the generator that draws the pairs, whose seed is `seed` alone.
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


class PrefInterface:
    """Owns the store and the pool of recent segments; every answer is on disk before it travels on.

    Args:
        annealed_over: agent steps of policy training over which a synthetic teacher spreads its labels.
        goal: labels after which nobody is asked any more.
        rounds: of the initial labels, where there is more than one.
    """

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
        rounds: InitialRounds | None = None,
    ) -> None:
        self.db, self.gatherer, self.channels, self.config = db, gatherer, channels, config
        # Where there is no trainer, no labels are initial ones.
        self._initial = config.labels_to_start() if channels.bell is not None else 0
        self.n_initial = Notices(db).labels_to_start(self._initial)
        self.goal, self.annealed_over, self.rounds = goal, annealed_over, rounds
        self.rng = np.random.default_rng(seed)
        self.pool: deque[Segment] = deque(maxlen=config.max_segs)
        self.asked = db.comparison_ids()
        self._asked_about = set[str]()  # ids of the segments in initial pairs
        self._began = False  # the training
        self._centres: deque[np.ndarray] = deque(maxlen=2 * CENTRES)  # of each pair asked, both ways round
        orders = config.query_selection == "ordering"
        self.ordering = OrderingQueries(db, self.asked, config.max_segs, self.rng) if orders else None
        self.n_labels, self.n_answers = db.n_labels(), db.n_answers()
        channels.n_labels.value = self.n_labels
        self._all_asked = False
        self._drawing = Drawing()
        self._said_end, self._looked_for_ties = False, False
        self._told, self._status = -math.inf, ""
        self._look_at_disk, self._full = -math.inf, False

    def step(self) -> bool:
        """Takes new segments, asks, and passes on what was answered; never waits. False if there was nothing to do."""
        took = self._take_segments()
        asked = not self.ended and self._ask()
        self._tell()
        answered = self._deliver(self.gatherer.drain())
        self._hold_policy()
        if self.ended:
            self._end()
        return took or asked or answered

    def _end(self) -> None:
        """Says once that nobody labels any more, and lets training that waits for more labels start if it can."""
        if self._may_start_now:
            Notices(self.db).start_now()
            self.n_initial = Notices(self.db).labels_to_start(self._initial)
        if not self._said_end:
            self._said_end = True
            log.info("Labelling has ended")
            print(f"Labelling has ended; {self._what_goes_on()}. Ctrl-C ends the run.", flush=True)

    @property
    def _may_start_now(self) -> bool:
        return self._asks_initial and self.channels.bell is not None and self.n_labels >= FEW_LABELS

    def _what_goes_on(self) -> str:
        """What the run does without labels from now on."""
        missing = min(self.n_initial, FEW_LABELS) - self.n_labels
        if missing > 0 and self.channels.bell is not None:
            place = shlex.quote(str(self.db.path.parent))
            return f"training waits for {missing} labels more, which `python run.py label {place}` gives"
        return "training goes on"

    @property
    def ended(self) -> bool:
        """Whether the person has left, and nobody labels beside the run."""
        return self.gatherer.ended

    @property
    def training(self) -> bool:
        """True once the policy has begun to learn."""
        return bool(self.channels.agent_steps.value > 0)

    @property
    def _asks_initial(self) -> bool:
        """Whether the initial labels are still asked for, which training waits for, if there is any."""
        return self.n_labels < (self.config.n_initial_prefs if self.channels.bell is None else self.n_initial)

    @property
    def _asks_in_rounds(self) -> bool:
        """Not once the policy trains, as it may with fewer labels: by a predictor that was loaded, or after an undo."""
        return self._asks_initial and not self.training

    @property
    def _judged(self) -> bool:
        """Whether pairs can be chosen now: always, but between two rounds of the initial labels."""
        rounds = self.rounds
        return rounds is None or not self._asks_in_rounds or rounds.judged(self.n_labels, self.n_initial)

    def wanted(self) -> int:
        """How many comparisons more should be asked for now."""
        goal = self.goal
        if self._is_due_by_schedule:
            steps = self.channels.agent_steps.value
            started_early = self.n_initial < self._initial
            initial = min(self.n_initial if started_early else self.config.n_initial_prefs, goal)
            goal = min(goal, labels_due(steps, self.annealed_over, initial, goal, self.config.label_schedule))
        if self.rounds is not None and self._asks_in_rounds:
            goal = min(goal, self.rounds.goal(self.n_labels, self.n_initial))
        return max(0, goal - self.n_labels - len(self.gatherer.pending) - len(self._drawing.open))

    @property
    def _is_due_by_schedule(self) -> bool:
        """People set their own pace, unless the policy is to keep step with them."""
        return not self.gatherer.is_person or isinstance(self.config.wait_for_labels, float)

    def status(self) -> str:
        """One line for a person: how many labels there are, or what is being waited for."""
        if self.ended or self.n_labels >= self.goal:
            return f"{self.n_labels} labels, no more are asked for; {self._what_goes_on()}"
        if not self.gatherer.pending:
            if self._full:
                return "The disk is nearly full: new pairs come when there is room again"
            if self._drawing.status():
                return self._drawing.status()
            if len(self.pool) < 2:
                return f"Waiting for clips from the agent ({len(self.pool)} of 2)"
            if not self._judged:
                return f"Choosing the next pairs by what {self.n_labels} labels have taught the reward predictor"
            if not self.wanted():
                return f"{self.n_labels} labels; the next is due when the policy has trained on"
            return "Waiting for new clips from the agent: every pair was asked"
        starts = self.n_labels < self.n_initial and not self.training  # which goes on after an undo
        initial = f" ({self.n_initial} before training starts)" if starts else ""
        if self.channels.pause.is_set():
            initial = f" (the policy waits: {len(self.gatherer.pending)} pairs are open)"
        return f"Label {self.n_labels + 1} of {self.goal}{initial}"

    def _disk_is_full(self) -> bool:
        """Whether there is no more room for clips; looked at every now and then."""
        now = time.monotonic()
        if now >= self._look_at_disk:
            self._look_at_disk = now + TELL_SECONDS
            self._full = nearly_full(self.db.path)
        return self._full

    def clips(self) -> str:
        """How many segments there are to ask about, of how many that the pool holds."""
        waits = " (labels wait for all)" if self._fills_pool and not self.gatherer.is_person else ""
        return f"{len(self.pool)}/{self.pool.maxlen}{waits}"

    @property
    def _fills_pool(self) -> bool:
        """The more episodes the first pairs come from, the more the predictor sees of the task."""
        return self._asks_initial and len(self.pool) < self.config.max_segs

    def _take_segments(self) -> bool:
        """Moves segments from the queue to the pool; before training a full pool is left as it is.

        When training begins, most of them go: for tens of thousands of steps they would be most of what is asked
        about, though they are enough in the initial labels.
        """
        if self.training and not self._began:
            self._began = True
            kept = sorted(self.rng.permutation(len(self.pool))[:UNTRAINED_KEPT])
            self.pool = deque((self.pool[i] for i in kept), self.pool.maxlen)
            if self.rounds is not None:  # what the members disagreed on between two rounds they have learned since
                self.pool = deque((replace(one, member_returns=None) for one in self.pool), self.pool.maxlen)
        if not self.training and len(self.pool) == self.pool.maxlen and not (self._all_asked and self._judged):
            return False
        segments = drain(self.channels.segments, limit=64)
        self.pool.extend(segments)
        return bool(segments)

    def _next_comparison(self) -> Comparison | None:
        """A pair from the pool that was not asked before, sides drawn at random; None if none was found."""
        if len(self.pool) < 2:
            return None
        for attempt in range(TRIES):
            a, b = self._drawn_pair(unseen=attempt < TRIES // 2)
            comparison = Comparison(a, b, flip=bool(self.rng.integers(2)))
            if comparison.a.id != comparison.b.id and comparison.id not in self.asked:
                self.asked.add(comparison.id)
                self._all_asked = False
                if self._asks_initial:
                    self._asked_about |= {comparison.a.id, comparison.b.id}
                if self.config.query_selection == "k_center":
                    both = looks(a), looks(b)
                    self._centres += [np.concatenate(both), np.concatenate(both[::-1])]
                return comparison
        self._all_asked = True
        return None

    def _drawn_pair(self, *, unseen: bool) -> tuple[Segment, Segment]:
        """Two segments of the pool, by `--query_selection`.

        With `unseen`, while there is no predictor to choose by, such as are in no pair yet, as long as there are any:
        the more segments the initial labels are about the better, and those of validation labels are then in no other.
        """
        selection, n = self.config.query_selection, len(self.pool)
        if unseen and self._asks_initial and self.pool[0].member_returns is None and selection != "k_center":
            others = self._unseen()
            if len(others) >= 2:
                i, j = self.rng.choice(len(others), 2, replace=False)
                return others[i], others[j]
        first = n - max(2, round(NEWEST_SHARE * n)) if selection == "newest" else 0

        def draw() -> tuple[Segment, Segment]:
            i, j = first + self.rng.choice(n - first, 2, replace=False)
            return self.pool[i], self.pool[j]

        if selection in ("random", "newest"):
            return draw()
        candidates = [draw() for _ in range(self.config.query_candidates)]
        if selection == "k_center":
            return max(candidates, key=self._distance)
        return max(candidates, key=lambda pair: informativeness(pair[0], pair[1], selection))

    def _unseen(self) -> list[Segment]:
        """The segments of the pool that are in no initial pair."""
        return [segment for segment in self.pool if segment.id not in self._asked_about]

    def _distance(self, pair: tuple[Segment, Segment]) -> float:
        """How unlike the nearest of the pairs that were asked this one looks."""
        if not self._centres:
            return 0.0
        wanted = np.concatenate([looks(segment) for segment in pair])
        return float(np.square(np.stack(self._centres) - wanted).sum(1).min())

    def _ask(self) -> bool:
        """Asks about as many pairs as are wanted and can soon be answered."""
        person, n_open = self.gatherer.is_person, len(self.gatherer.pending) + len(self._drawing.open)
        n = self.wanted()
        if person and self._disk_is_full():
            return False  # what is left is for answers
        if self._fills_pool:
            if not person:
                return False
            n = min(n, len(self._unseen()) // 2)
        if self.rounds is not None and not self._judged:
            if len(self.pool) < self.config.max_segs:
                return False  # what comes after the judgement would not be asked about
            learned = self.rounds.judge(self.n_labels, self.n_initial, self.pool)
            if not self._judged:
                return learned
        # What is due by schedule is asked even if people lag behind: that is how the policy knows that they do.
        if not (person and self._is_due_by_schedule and self.training):
            n = min(n, self.gatherer.ahead - n_open)
        if self.ordering is not None:
            pending = {*self.gatherer.pending, *self._drawing.open}
            comparisons = self.ordering.choose(self.pool, pending, n, self._oldest)
            self._all_asked = n > 0 and not comparisons and not n_open
        else:
            comparisons = [pair for _ in range(n) if (pair := self._next_comparison()) is not None]
        if person:
            for comparison in comparisons:
                self._drawing.begin(comparison)
            comparisons = self._drawing.done()
        if comparisons:
            self.gatherer.submit(comparisons)
        return bool(comparisons)

    def _deliver(self, answered: list[Answered]) -> bool:
        """Counts new answers, and rings for the trainer, which reads its labels from the store."""
        if not answered:
            return False
        if self.ordering is not None:
            self.ordering.learn(answered)
        self.n_labels = self.channels.n_labels.value = self.db.n_labels()
        if self.n_labels >= FEW_LABELS and not self._looked_for_ties:
            self._warn_of_ties()
        if isinstance(self.config.wait_for_labels, float):  # else nobody needs it, and a long store takes a while
            self.n_answers = self.db.n_answers()
        if self.channels.bell is not None and any(one.label is not None for one in answered):
            self.channels.bell.set()
        return True

    def _warn_of_ties(self) -> None:
        """Says so if no label prefers a clip, for then the agent would be trained on nothing."""
        self._looked_for_ties = True
        if not self.db.has_preference():
            said = (
                f"All {self.n_labels} labels so far call both clips equal, which teaches nothing: let the agent "
                "explore first, so that clips differ, or judge by something else than now."
            )
            log.warning(said)
            print(said, flush=True)

    def _hold_policy(self) -> None:
        """Lets the policy wait while more than the flag's share of what was asked is unanswered."""
        share, n_open = self.config.wait_for_labels, len(self.gatherer.pending)
        if not isinstance(share, float):
            return
        wants_more = not self.ended and self.n_labels < self.goal
        if wants_more and n_open > share * (n_open + self.n_answers):
            self.channels.pause.set()
        else:
            self.channels.pause.clear()

    def _tell(self) -> None:
        """Tells people how far the run is, and takes back questions about clips that have left the pool, unseen."""
        now = time.monotonic()
        if now >= self._told + TELL_SECONDS and self.n_labels < self.n_initial:
            self.n_initial = Notices(self.db).labels_to_start(self._initial)
        status = self.status()
        if now < self._told + TELL_SECONDS and status == self._status:
            return
        self._told, self._status = now, status
        steps = self.channels.agent_steps.value
        numbers = {"labels": self.n_labels, "goal": self.goal, "agent_steps": steps, "clips": len(self.pool)}
        self.gatherer.tell(status, {**numbers, "initial_labels": 0 if self.training else self.n_initial})
        if self._oldest:
            self.gatherer.withdraw(self._oldest)

    @property
    def _oldest(self) -> int:
        """The policy step before which segments are too old to be asked about; 0 while new ones are few."""
        return self.pool[0].policy_step if self.training and len(self.pool) == self.pool.maxlen else 0

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
            if not interface.step():
                channels.stop.wait(1 / 60)
    finally:
        interface.close()


class SegmentKeeper:
    """Stores the segments of a run that asks nobody, to be asked about later; a part of the ring like pref_interface.

    Args:
        goal: segments after which there are enough.
    """

    def __init__(self, db: PrefDB, channels: Channels, goal: int) -> None:
        self.db, self.channels, self.goal = db, channels, goal
        self.n = len(db.segment_ids())

    def step(self) -> bool:
        segments = drain(self.channels.segments, limit=self.goal - self.n)
        if segments:
            self.db.add_segments(segments)
            self.n = len(self.db.segment_ids())
        return bool(segments)

    def clips(self) -> str:
        """How many segments are stored, of how many."""
        return f"{self.n}/{self.goal}"

    @property
    def full(self) -> bool:
        return self.n >= self.goal

    def close(self) -> None:
        self.db.close()
