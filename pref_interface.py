"""The preference interface: which pair of segments to ask about next, whom to ask, and labels from the answers."""

from __future__ import annotations

import logging
import math
import queue
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import IO, Any, Literal, Protocol

import numpy as np

from channels import Channels, drain
from pref_db import Choice, Comparison, Label, PrefDB, Segment

log = logging.getLogger("run")

# The paper's rate of labels after T steps is c / (T + c). Both of its domains have c = Tmax / 10: 2M of 20M steps on
# MuJoCo, 5M of 50M on Atari (appendix A).
ANNEALING = 10.0
LEFT_OVER = 0.01  # of the labels, at the end of rl-teacher's schedule
ANSWERS_PER_COMMIT = 64
TRIES = 50  # pairs looked at for one that was not asked yet
CANDIDATES = 10  # pairs of which the one is asked that the ensemble disagrees about most: paper, section 2.2.4
NEWEST_SHARE = 0.1  # of the pool, the segments of the newest policy
QuerySelection = Literal["random", "disagreement", "entropy", "newest"]
LabelSchedule = Literal["paper", "exponential", "constant"]


@dataclass(frozen=True)
class PrefsConfig:
    """Preferences; the defaults are the paper's for Atari (appendix A.2), where it names them."""

    synthetic_prefs: bool = False
    """Let a synthetic teacher answer, from the true reward of the segments."""
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


class Action:
    """What a person can do besides answering."""

    UNDO = "undo"
    END = "end"  # no more answers will come; training goes on


class Teacher(Protocol):
    """Who answers. `poll` never waits: it says what was answered since the last call, if anything."""

    name: str

    def poll(self, comparison: Comparison | None, status: str) -> Choice | str | None:
        """A choice for this comparison, an `Action`, or None while there is no answer.

        Args:
            comparison: the pair to show; None while there is no pair.
            status: what to tell a person about progress, or about what is being waited for.
        """

    def close(self) -> None: ...


class SyntheticTeacher:
    """Prefers the segment with the higher true reward; equal sums are equal (paper, section 3.3)."""

    name = "synthetic"

    def poll(self, comparison: Comparison | None, status: str = "") -> Choice | None:
        if comparison is None:
            return None
        a, b = float(comparison.a.rewards.sum()), float(comparison.b.rewards.sum())
        if math.isclose(a, b, abs_tol=1e-6):
            return Choice.EQUAL
        return Choice.A if a > b else Choice.B

    def close(self) -> None:
        """Nothing to release."""


ANSWERS = {
    "l": "left",
    "left": "left",
    "r": "right",
    "right": "right",
    "e": "equal",
    "equal": "equal",
    "": "incomparable",
    "u": Action.UNDO,
    "undo": Action.UNDO,
}
KEYS_HELP = "L left, R right, E equal, Enter can't tell, U undo"


class TerminalLines:
    """Lines typed at the terminal, read by a thread of their own so that nothing waits for them."""

    def __init__(self, stream: IO[str]) -> None:
        self._lines: deque[str | None] = deque()  # None: the end of the input
        self._typed_by_hand = stream.isatty()
        # Daemonic: a thread that waits for a line cannot be woken, and must not keep the program from ending.
        threading.Thread(target=self._read, args=(stream,), daemon=True, name="terminal").start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.append(line)
        self._lines.append(None)

    def next(self, *, asked: bool) -> str | None:
        """The next answer as `ANSWERS` names it, `Action.END` at the end of input, None if nothing was typed.

        While nothing is asked, what a person types is no answer, and the lines of a script wait.
        """
        while self._lines:
            line = self._lines[0]
            if line is not None and not asked and not self._typed_by_hand:
                return None
            self._lines.popleft()
            if line is None:
                return Action.END
            answer = ANSWERS.get(line.strip().lower())
            if answer is None:
                print(f"'{line.strip()}' is no answer; type one of: {KEYS_HELP}.", flush=True)
            elif asked or answer == Action.UNDO:
                return answer
            else:
                print("There is no pair to answer yet.", flush=True)
        return None


class PersonTeacher:
    """A person: clips loop in a window, answers are typed at the terminal or pressed in the window."""

    name = "person"

    def __init__(self, window: Any, stream: IO[str] | None = None) -> None:
        """`window` is a `viewer.ClipWindow`."""
        self.window, self.lines = window, TerminalLines(stream or sys.stdin)
        self._shown: Comparison | None = None
        self._said = ""
        self._typed_nothing_more = False

    def poll(self, comparison: Comparison | None, status: str) -> Choice | str | None:
        self._show(comparison, status)
        pressed = self.window.tick()
        if "close" in pressed:
            return Action.END
        answer = pressed[0] if pressed else None
        if answer is None and not self._typed_nothing_more:
            answer = self.lines.next(asked=comparison is not None)
            if answer == Action.END:
                self._typed_nothing_more = True
                return Action.END
        if answer is None or answer == Action.UNDO or comparison is None:
            return answer if answer == Action.UNDO else None
        self._shown = None
        if answer in ("left", "right"):
            return Choice.B if (answer == "left") == comparison.flip else Choice.A
        return Choice(answer)

    def _show(self, comparison: Comparison | None, status: str) -> None:
        """Starts a new pair in the window, and says once at the terminal what is wanted."""
        if comparison is None:
            self.window.message(status)
            self._say(status)
        elif comparison is not self._shown:
            left, right = (comparison.b, comparison.a) if comparison.flip else (comparison.a, comparison.b)
            self.window.show(left.frames(), right.frames(), comparison.a.fps, status)
            self._say(f"{status}: which clip is better? ({KEYS_HELP})")
        self._shown = comparison

    def _say(self, text: str) -> None:
        if text != self._said:
            print(text, flush=True)
            self._said = text

    def close(self) -> None:
        self.window.close()


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
        if self.teacher.name == SyntheticTeacher.name:
            return self._ask_synthetic() or took
        return self._ask_person() or took

    @property
    def training(self) -> bool:
        """True once the policy has begun to learn."""
        return bool(self.channels.agent_steps.value > 0)

    def wanted(self) -> int:
        """How many labels should be asked for now."""
        goal = self.goal
        if self.teacher.name == SyntheticTeacher.name:  # a person sets the pace
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
