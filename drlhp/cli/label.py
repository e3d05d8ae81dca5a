"""Labelling without a trainer: `label` asks about the segments that a run left in its store."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from drlhp.bounds import SEED, at_least, check
from drlhp.cli.arguments import read_arguments
from drlhp.cli.program import program
from drlhp.cli.runs import find_run
from drlhp.data.address import Address
from drlhp.data.comparison import Comparison
from drlhp.data.segment import Segment
from drlhp.data.store import link_of
from drlhp.errors import DamagedError, PrefDBError, UserError
from drlhp.label_server.config import PageConfig
from drlhp.label_server.gatherer import WebGatherer
from drlhp.labelling.answers import LABELLER, MAX_NICKNAME, check_labeller
from drlhp.labelling.drawing import Drawing
from drlhp.labelling.gatherers import PreferenceGatherer, TeacherGatherer
from drlhp.labelling.notices import SILENT_SECONDS, Notices, Who
from drlhp.labelling.queue import LabelQueue
from drlhp.labelling.teachers import SyntheticTeacher, check_name, synthetic_teacher, true_rewards
from drlhp.runtime.locks import in_use
from drlhp.screens.gatherer import gatherer_for
from drlhp.screens.opening import Ui
from pref_db import PrefDB, store_path

TRIES = 200  # After so many random pairs that were all asked already, every pair is checked in turn.
IDLE_SECONDS = 1 / 120
LOOK_SECONDS = 1.0  # time between two checks whether the run goes on
ASKS = "Waiting for the run to ask; its questions come as the agent acts"
ASKS_NOBODY = "The run that goes on here asks no people; its pairs are asked about when it has ended"
WITH_OTHERS = "The pairs that are left are with other people"
WHO: Who = "label"
OF_THE_RUN = {"labels", "goal", "initial_labels"}  # numbers in the run's own state


@dataclass(frozen=True)
class LabelConfig:
    """Label the pairs of a store, now, and train on them later (--load_prefs_dir)."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run folder, or another folder with a prefs.db in it."""
    ui: Ui = "auto"
    """Where to label: in a window, in the terminal itself, or on a web page; `auto` is a window if there is a
    display, else the terminal."""
    teacher: str | None = None
    """Who answers in your place, as one more labeller beside people: oracle, stoc, mistake, skip, equal or myopic, by
    the true reward of the segments, or module:function."""
    max_prefs: Annotated[int | None, at_least(1)] = None
    """Stop at this number of labels, including those that are already stored; by default, after the last pair."""
    labeller: str | None = None
    """Your nickname, kept with your answers; the page asks others for theirs. By default the teacher's name, else
    `me`, or `helper` beside a run, whose own screen has a `me`."""
    store: str | None = None
    """Address of the store of a run elsewhere, postgresql://USER@HOST/DATABASE?schema=NAME: makes RUN, a folder that
    leads to it. Later, `label RUN` is enough."""
    seed: Annotated[int, SEED] = 0
    """Seed of the random pairs, and of a teacher's random answers."""
    page: tyro.conf.OmitArgPrefixes[PageConfig] = field(default_factory=PageConfig)


class StoredPairs:
    """Random pairs of stored segments that no labeller was asked about."""

    def __init__(self, db: PrefDB, seed: int) -> None:
        self.db, self.rng = db, np.random.default_rng(seed)
        self.ids = db.segment_ids()
        self.asked = db.asked()

    def next(self) -> Comparison | None:
        """Returns a pair that no labeller was asked about; None if there is none left."""
        n = len(self.ids)
        for _ in range(TRIES if n >= 2 else 0):
            i, j = self.rng.choice(n, 2, replace=False)
            if (found := self._new(i, j)) is not None:
                return found
        for i in range(n):
            for j in range(i):
                if (found := self._new(i, j)) is not None:
                    return found
        return None

    def _new(self, i: int, j: int) -> Comparison | None:
        comparison_id = Comparison.id_of(self.ids[i], self.ids[j])
        if comparison_id in self.asked:
            return None
        self.asked.add(comparison_id)
        try:
            return Comparison(self.db.segment(self.ids[i]), self.db.segment(self.ids[j]), flip=False)
        except DamagedError:
            return None


def label_command(arguments: list[str], trouble: str = "") -> None:
    """Runs `label`. Raises UserError and PrefDBError.

    Args:
        trouble: what does not work in the run, shown to the labellers on the page.
    """
    config = read_arguments(LabelConfig, "label", arguments, needs={"run": "RUN"}, example="RUN")
    run = Path(config.run) if config.store is not None else find_run(config.run)
    teacher = teacher_of(config)
    named = config.labeller or (teacher.name[-MAX_NICKNAME:] if teacher is not None else None)
    check_labeller(named or LABELLER)
    config.page.check()
    check(config, "--")
    path = joined(run, config.store) if config.store is not None else store_path(run)
    db = PrefDB.open(path)
    try:
        beside = goes_on(db)
        labeller = usual = named or ("helper" if beside else LABELLER)
        check_segments(db, teacher, beside=beside)
        give_task(db)
        give_settings(LabelQueue(db), config, beside=beside)
        before = db.n_labels()
        gatherer: PreferenceGatherer
        if teacher is not None:
            gatherer = TeacherGatherer(db, teacher, labeller, config.seed)
            print(f"{labeller} answers; Ctrl-C ends it.", flush=True)
        elif config.ui == "web":
            gatherer = WebGatherer(db, path.parent, config.page, WHO, labeller, trouble)
        else:
            if config.labeller is None:
                labeller = free_name(LabelQueue(db), usual)
            gatherer = in_person(config.ui, db, labeller)
        try:
            label(db, gatherer, config, run_goes_on=lambda: goes_on(db))
        finally:  # This runs after Ctrl-C too, with which most people end the command.
            gatherer.close()
            if config.ui != "web":  # The page's gatherer has told the other processes already.
                end(db)
            n = db.n_labels()
            change = f"{abs(n - before)} {'fewer' if n < before else 'more'} than at the start"
            place = shlex.quote(str(run))
            print(f"{n} labels in {path}, {change}. Train on them with --load_prefs_dir {place}", flush=True)
    finally:
        db.close()


def joined(run: Path, address: str) -> Path:
    """Makes the folder that leads to the store of a run elsewhere, or finds it; returns the link. Raises UserError."""
    path = run / "prefs.db"
    if path.exists():
        if path.is_file() and link_of(path) == str(Address.parse(address)):
            return path
        raise UserError(f"{path.parent} has a store already; leave out --store, or give RUN another name.")
    from drlhp.data.postgres import join  # only who uses it needs its package

    join(path, address)
    return path


def goes_on(db: PrefDB) -> bool:
    """Returns whether a run uses the store: it holds the folder, or it runs on another machine and has just said so."""
    return in_use(db.path.parent) or (db.store.look_seconds > 0 and Notices(db).goes_on("run"))


def in_person(ui: Ui, db: PrefDB, labeller: str) -> PreferenceGatherer:
    """Returns a gatherer that asks the person at this screen.

    Raises DisplayError if the screen cannot be opened; the person's name is then free again.
    """
    try:
        return gatherer_for(ui, db, labeller, WHO)
    except BaseException:
        end(db)
        raise


def end(db: PrefDB) -> None:
    """Tells the other processes that nobody labels here any more."""
    Notices(db).beat(WHO, {"ended": "Labelling has ended here."})


def give_settings(queue: LabelQueue, config: LabelConfig, *, beside: bool) -> None:
    """Stores this command's settings for all processes.

    Beside a run, settings that are stored already stay. Beside another `label`, only those that differ from the
    defaults replace them.
    """
    settings = config.page.settings(config.max_prefs or 0, 0)
    if not beside and queue.notices.goes_on(WHO):
        usual, beside = PageConfig().settings(0, 0), True
        queue.notices.give_settings(
            {key: value for key, value in settings.items() if usual.get(key) != value}, keep=False
        )
    # A run that goes on has stored its own settings, and its labellers rely on them.
    queue.notices.give_settings(settings, keep=beside)


def free_name(queue: LabelQueue, usual: str) -> str:
    """Returns the usual name, or a numbered one if it is in use: two labellers of one name would see the same pairs."""
    name, n = usual, 1
    with queue.db.transaction():  # Otherwise a labeller who starts at the same time could get the same name.
        while queue.is_present(name):
            n += 1
            name = f"{usual}-{n}"
        queue.notices.beat(WHO, {"labellers": [name]})
    if n > 1:
        print(f"Somebody labels here as {usual}, so you are {name}; --labeller says who you are.", flush=True)
    return name


def teacher_of(config: LabelConfig) -> SyntheticTeacher | None:
    """Returns the synthetic teacher, or None if a person answers.

    Raises UserError if there is no such teacher, or if flags that are only for people are given too.
    """
    if config.teacher is None:
        return None
    check_name(config.teacher)
    if config.ui != "auto" or config.page != PageConfig():
        raise UserError(
            "--teacher answers without a window, a terminal or a page; leave --ui and the page's flags out, or label "
            f"by hand with a second `{program().name} label`."
        )
    return synthetic_teacher(config.teacher, np.random.default_rng(config.seed))


def whole_segments(db: PrefDB) -> Iterator[Segment]:
    """Yields the segments that are not damaged, oldest first, one in memory at a time."""
    for segment_id in db.segment_ids():
        with contextlib.suppress(DamagedError):
            yield db.segment(segment_id)


def check_segments(db: PrefDB, teacher: SyntheticTeacher | None, *, beside: bool) -> None:
    """Raises UserError if no pair can be shown, or if the teacher would call all segments equal.

    Beside a run there may be no segments yet, because the run will make them.
    """
    ids = db.segment_ids()
    if beside and not ids:
        return
    if len(ids) < 2 and not beside:
        raise UserError(
            f"{db.path} holds {len(ids)} segments, too few to compare; gather some with "
            f"gather_initial_prefs {db.env_id} --no_gather_prefs."
        )
    first = next(whole_segments(db), None)
    if first is None:
        raise PrefDBError(f"{db.path} is damaged: no segment of it can be read; restore it from a copy.")
    if teacher is not None:
        # All true rewards are 0 if an import did not know them, or if the environment has none.
        if teacher.rewards is true_rewards and not any(segment.rewards.any() for segment in whole_segments(db)):
            raise UserError(
                f"{db.path} holds no true reward but 0 so far, by which --teacher {teacher.name} would call all equal; "
                "give a function, module:function, or label by hand."
            )
        return
    if first.view is None and not first.is_pixels:
        raise UserError(
            f"{db.path} holds no pictures, for its observations are vectors; gather segments with pictures with "
            f"gather_initial_prefs {db.env_id} --no_gather_prefs."
        )


def give_task(db: PrefDB) -> None:
    """Stores a sentence for labellers about good behaviour in this environment, unless the store has one."""
    queue = LabelQueue(db)
    if not queue.notices.setting("task") and (task := program().task_of(db.env_id)):
        queue.notices.set_setting("task", task)


def label(db: PrefDB, gatherer: PreferenceGatherer, config: LabelConfig, *, run_goes_on: Callable[[], bool]) -> None:
    """Asks until the person leaves, there are enough labels, or nothing is left to ask."""
    Labelling(db, gatherer, config, run_goes_on).carry_out()


class Labelling:
    """Asks about the stored pairs. While a run goes on, the run asks, and this only shows what the run reports.

    When the run has ended, this asks about the segments that the run has left. The page stays open as long as other
    people on it still have a pair to answer: a second opinion, or a repeated pair.
    """

    def __init__(
        self, db: PrefDB, gatherer: PreferenceGatherer, config: LabelConfig, run_goes_on: Callable[[], bool]
    ) -> None:
        self.db, self.gatherer, self.config, self.run_goes_on = db, gatherer, config, run_goes_on
        self.queue, self.drawing = LabelQueue(db), Drawing()
        self.pairs: StoredPairs | None = None  # None if there are none to ask about here
        self.goes_on: bool | None = None  # None until the first check
        self.run_says: dict[str, Any] = {}
        self.n_labels, self.goal = db.n_labels(), config.max_prefs
        self.look_at, self.silent_at = 0.0, time.monotonic() + SILENT_SECONDS

    def carry_out(self) -> None:
        """Asks until the person leaves, there are enough labels, or nothing is left to ask."""
        while not self.gatherer.ended and self._wants_more():
            if time.monotonic() >= self.look_at:
                self._look_at_run()
            self._ask()
            self._tell()
            if self.gatherer.drain():
                self.n_labels = self.db.n_labels()
            elif self._may_go_on():
                time.sleep(IDLE_SECONDS)
            else:
                break
        self.drawing.close()
        if not self.pairs and self.drawing.trouble:
            print(self.drawing.trouble, flush=True)
        elif self.goal is not None and self.n_labels < self.goal and not self._may_go_on():
            n = len(self.db.segment_ids())
            print(
                f"All pairs of the {n} stored clips were asked, so there are fewer than {self.goal} labels.", flush=True
            )

    def _wants_more(self) -> bool:
        return self.goal is None or self.n_labels < self.goal or self._asks_on_the_page()

    def _may_go_on(self) -> bool:
        """Returns whether anything is left to ask, now or later."""
        waits = self.goes_on or self.pairs or self.gatherer.pending or self.drawing.open
        return bool(waits) or self._asks_on_the_page()

    def _asks_on_the_page(self) -> bool:
        return self.config.ui == "web" and not self.goes_on and self.queue.leases.is_asking()

    def _look_at_run(self) -> None:
        """Checks whether the run goes on, what it reports, and what is left to ask here."""
        self.look_at = time.monotonic() + LOOK_SECONDS
        before, self.goes_on, self.goal = self.goes_on, self.run_goes_on(), self.config.max_prefs
        notices = self.queue.notices
        if self.goes_on:  # It may have been resumed.
            self.pairs, self.run_says = None, notices.heartbeats().get("run", (0.0, {}))[1]
            if notices.goes_on("run"):
                self.silent_at = time.monotonic() + SILENT_SECONDS
        elif before is not False:
            self.pairs, self.run_says = StoredPairs(self.db, self.config.seed), {}
            if before:  # The goal of the run ends with the run.
                notices.give_settings({"goal": "0", "initial_labels": "0"}, keep=False)
        if not self.goes_on:
            self.goal = self.goal or notices.number("goal") or None  # Another `label` may have set one.

    def _ask(self) -> None:
        """Gives the gatherer as many pairs as it prepares in advance, each as soon as it is drawn."""
        n_open = len(self.gatherer.pending) + len(self.drawing.open)
        n = self.gatherer.ahead - n_open
        if self.goal is not None:
            n = min(n, self.goal - self.n_labels - n_open)
        while self.pairs and n > 0:
            comparison, n = self.pairs.next(), n - 1
            if comparison is None:
                self.pairs = None
            else:
                self.drawing.begin(comparison)
        if drawn := self.drawing.done():
            self.gatherer.submit(drawn)

    def _tell(self) -> None:
        """Shows the labeller the number of labels, and what the command waits for."""
        goal, n_labels, run_says = self.goal, self.n_labels, self.run_says
        status = f"Label {n_labels + 1}" if goal is None else f"Label {n_labels + 1} of {goal}"
        if not self.gatherer.pending or n_labels == goal:
            run_asks = ASKS if time.monotonic() < self.silent_at else ASKS_NOBODY
            status = self.drawing.status() or (WITH_OTHERS if self._asks_on_the_page() else run_asks)
        if goal is None:
            status = run_says.get("status", status)
        numbers = {name: run_says[name] for name in OF_THE_RUN & run_says.keys()}
        self.gatherer.tell(status, {"labels": n_labels, "goal": goal, **numbers})
