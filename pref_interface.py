"""The preference interface: which pair of segments to ask about next, whom to ask, and labels from the answers."""

from __future__ import annotations

import logging
import math
import queue
import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np

from channels import Channels, drain
from pref_db import Choice, Comparison, Label, PrefDB, Segment
from teachers import Action, SyntheticTeacher, Teacher, synthetic_teacher

log = logging.getLogger("run")

# The paper's rate of labels after T steps is c / (T + c). Both of its domains have c = Tmax / 10: 2M of 20M steps on
# MuJoCo, 5M of 50M on Atari (appendix A).
ANNEALING = 10.0
LEFT_OVER = 0.01  # of the labels, at the end of rl-teacher's schedule
ANSWERS_PER_COMMIT = 64
TEACHERS_DRAWS = 1  # tells the teacher's random stream from the others of a seed
TRIES = 50  # pairs looked at for one that was not asked yet
CANDIDATES = 10  # pairs of which the one is asked that the ensemble disagrees about most: paper, section 2.2.4
NEWEST_SHARE = 0.1  # of the pool, the segments of the newest policy
QuerySelection = Literal["random", "disagreement", "entropy", "newest"]
LabelSchedule = Literal["paper", "exponential", "constant"]


@dataclass(frozen=True)
class PrefsConfig:
    """Preferences; the defaults are the paper's for Atari (appendix A.2), where it names them."""

    synthetic_prefs: bool = False
    """Let a synthetic teacher answer, from the true reward of the segments; any --teacher flag says so too."""
    teacher: str = "oracle"
    """Who answers where nobody labels by hand: B-Pref's oracle, stoc, mistake, skip, equal or myopic, or
    module:function, a function of a segment whose value takes the place of the true reward."""
    teacher_beta: float | None = None
    """Rationality: prefers A with probability 1 / (1 + exp(-beta * (return of A - return of B))), at `inf` always the
    better one. This and the next four: None leaves what the teacher has."""
    teacher_gamma: float | None = None
    """Myopia: discount per agent step, counted back from a segment's end; 1 weighs all steps alike."""
    teacher_mistake: float | None = None
    """Probability that a preference is turned round."""
    teacher_skip: float | None = None
    """Can't tell if both returns are below this share of the mean return of the last 200 segments judged."""
    teacher_equal: float | None = None
    """Equal if the returns differ by less than this share of that mean return."""
    gather_prefs: bool = True
    """Ask for labels; --no_gather_prefs trains on what is loaded, and leaves the reward predictor as it is."""
    n_initial_prefs: int = 500
    """Labels to gather before the reward predictor is pretrained."""
    max_prefs: int = 5500
    """Labels to gather in all; the policy goes on without more."""
    max_segs: int = 1000
    """Newest segments kept in memory, from which the pairs to ask about are drawn."""
    query_selection: QuerySelection = "random"
    """Which pair is asked: any; of ten, the one about whose answer the ensemble disagrees most (the paper's) or is
    least sure; or any of the newest tenth of the segments."""
    label_schedule: LabelSchedule = "paper"
    """How a synthetic teacher's labels spread over the training: ever rarer, at the paper's rate or at rl-teacher's
    exponential one, or evenly."""
    load_prefs_dir: str | None = None
    """Run folder whose labels to start from."""


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
    )


def labels_due(steps: float, max_steps: float, n_initial: int, n_total: int, schedule: LabelSchedule = "paper") -> int:
    """How many labels a synthetic teacher should have given after so many agent steps of training.

    With x the share of the training that is over, the share of the later labels is
    `paper` (appendix A, its rate summed up): ln(1 + 10 x) / ln(1 + 10);
    `exponential` (rl-teacher): 1 - 0.01^x;
    `constant`: x.
    """
    if max_steps <= 0:
        return n_total
    x = min(steps / max_steps, 1.0)
    if schedule == "paper":
        share = math.log1p(ANNEALING * x) / math.log1p(ANNEALING)
    else:
        share = 1 - LEFT_OVER**x if schedule == "exponential" else x
    return n_initial + int((n_total - n_initial) * share)


def informativeness(a: Segment, b: Segment, selection: QuerySelection) -> float:
    """How much the answer about two segments should tell, by the ensemble's predictions when they were cut.

    `disagreement`: the variance over the members of the probability that a is preferred (section 2.2.4); `entropy`:
    that of the answer by their mean, in bits. A pair that was cut before there was a predictor has 0.
    """
    if a.member_returns is None or b.member_returns is None:
        return 0.0
    difference = (a.member_returns - b.member_returns).astype(float)
    p = 1 / (1 + np.exp(-difference.clip(-50, 50)))
    if selection == "disagreement":
        return float(p.var())
    mean = float(np.clip(p.mean(), 1e-12, 1 - 1e-12))
    return -mean * math.log2(mean) - (1 - mean) * math.log2(1 - mean)


class PrefInterface:
    """Owns the store and the pool of recent segments; every answer is on disk before it travels on.

    Args:
        annealed_over: agent steps of policy training over which a synthetic teacher spreads its labels.
        goal: labels after which nobody is asked any more.
    """

    def __init__(
        self,
        db: PrefDB,
        teacher: Teacher,
        channels: Channels,
        config: PrefsConfig,
        *,
        seed: int,
        goal: int,
        annealed_over: float,
    ) -> None:
        self.db, self.teacher, self.channels, self.config = db, teacher, channels, config
        self.n_initial, self.goal, self.annealed_over = config.n_initial_prefs, goal, annealed_over
        self.rng = np.random.default_rng(seed)
        self.pool: deque[Segment] = deque(maxlen=config.max_segs)
        self.asked = {row.comparison_id for row in db.answers()}
        self.n_labels = db.n_labels()
        self.ended = False  # the person has left
        self.current: Comparison | None = None
        self._shown_at = 0.0
        self._all_asked = False

    def step(self) -> bool:
        """Takes new segments, asks and stores; never waits. False if there was nothing to do."""
        took = self._take_segments()
        if self.ended:
            return took
        return (self._ask_person() if self.teacher.is_person else self._ask_synthetic()) or took

    @property
    def training(self) -> bool:
        """True once the policy has begun to learn."""
        return bool(self.channels.agent_steps.value > 0)

    def wanted(self) -> int:
        """How many labels should be asked for now."""
        goal = self.goal
        if not self.teacher.is_person:
            steps = self.channels.agent_steps.value
            goal = min(goal, labels_due(steps, self.annealed_over, self.n_initial, goal, self.config.label_schedule))
        return max(0, goal - self.n_labels)

    def status(self) -> str:
        """One line for a person: how many labels there are, or what is being waited for."""
        if self.ended or self.n_labels >= self.goal:
            return f"{self.n_labels} labels, no more are wanted; training goes on"
        if self.current is None and len(self.pool) < 2:
            return f"Waiting for clips from the agent ({len(self.pool)} of 2)"
        if self.current is None:
            return "Waiting for new clips from the agent: every pair was asked"
        initial = f" ({self.n_initial} before training starts)" if self.n_labels < self.n_initial else ""
        return f"Label {self.n_labels + 1} of {self.goal}{initial}"

    def clips(self) -> str:
        """How many segments there are to ask about, of how many that the pool holds."""
        return f"{len(self.pool)}/{self.pool.maxlen}"

    def _take_segments(self) -> bool:
        """Moves segments from the queue to the pool; before training a full pool is left as it is."""
        if not self.training and len(self.pool) == self.pool.maxlen and not self._all_asked:
            return False
        segments = drain(self.channels.segments, limit=64)
        self.pool.extend(segments)
        return bool(segments)

    def _next_comparison(self) -> Comparison | None:
        """A pair from the pool that was not asked before, sides drawn at random; None if none was found."""
        if len(self.pool) < 2:
            return None
        for _ in range(TRIES):
            a, b = self._drawn_pair()
            comparison = Comparison(a, b, flip=bool(self.rng.integers(2)))
            if comparison.a.id != comparison.b.id and comparison.id not in self.asked:
                self.asked.add(comparison.id)
                self._all_asked = False
                return comparison
        self._all_asked = True
        return None

    def _drawn_pair(self) -> tuple[Segment, Segment]:
        """Two segments of the pool, by `--query_selection`."""
        selection, n = self.config.query_selection, len(self.pool)
        first = n - max(2, round(NEWEST_SHARE * n)) if selection == "newest" else 0

        def draw() -> tuple[Segment, Segment]:
            i, j = first + self.rng.choice(n - first, 2, replace=False)
            return self.pool[i], self.pool[j]

        if selection in ("random", "newest"):
            return draw()
        return max((draw() for _ in range(CANDIDATES)), key=lambda pair: informativeness(pair[0], pair[1], selection))

    def _ask_synthetic(self) -> bool:
        """Asks for what is due, with one commit for many answers."""
        answers: list[tuple[Comparison, Choice]] = []
        if len(self.pool) < self.pool.maxlen:  # type: ignore[operator]
            return False  # the more episodes the first pairs come from, the more the predictor sees of the task
        for _ in range(min(self.wanted(), ANSWERS_PER_COMMIT)):
            comparison = self._next_comparison()
            choice = self.teacher.poll(comparison, "") if comparison else None
            if comparison and isinstance(choice, Choice):
                answers.append((comparison, choice))
        if answers:
            self._deliver(self.db.add_answers(answers, teacher=self.teacher.name))
        return bool(answers)

    def _ask_person(self) -> bool:
        """Shows the current pair and stores the answer, if there is one."""
        if self.current is None and self.wanted():
            self.current, self._shown_at = self._next_comparison(), time.time()
        answer = self.teacher.poll(self.current, self.status())
        if answer == Action.END:
            self.ended = True
            log.info("Labelling has ended")
            print("Labelling has ended; training goes on. Ctrl-C ends it.", flush=True)
        elif answer == Action.UNDO:
            self._undo()
        elif isinstance(answer, Choice) and self.current is not None:
            label = self.db.add_answer(
                self.current,
                answer,
                teacher=self.teacher.name,
                shown_at=self._shown_at,
                answered_at=time.time(),
            )
            self.current = None
            self._deliver([label])
        return answer is not None

    def _undo(self) -> None:
        """Takes the last answer back and asks that pair again."""
        undone = self.db.undo_last(self.teacher.name)
        if undone is None:
            print("There is no answer to undo.", flush=True)
            return
        retraction, comparison = undone
        if self.current is not None:
            self.asked.discard(self.current.id)
        self.current, self._shown_at = comparison, time.time()
        self._deliver([retraction])

    def _deliver(self, labels: list[Label | None]) -> None:
        """Hands labels to the trainer: waits for room rather than drop one, unless the run is stopping."""
        self.n_labels = self.db.n_labels()
        if self.channels.labels is None:
            return  # no trainer in this run
        for label in labels:
            while label is not None and not self.channels.stop.is_set():
                try:
                    self.channels.labels.put(label, timeout=0.2)
                    break
                except queue.Full:
                    continue

    def close(self) -> None:
        """Closes the windows and the store."""
        self.teacher.close()
        self.db.close()
