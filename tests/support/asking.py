"""A store and queues with preference interfaces on them, and a person with a window and a terminal."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from drlhp.data.candidate import Candidate
from drlhp.data.comparison import Choice, Label
from drlhp.data.segment import Segment
from drlhp.labelling.answers import Lease
from drlhp.labelling.gatherers import SyntheticGatherer
from drlhp.labelling.teachers import SyntheticTeacher
from drlhp.runtime.channels import Channels
from drlhp.runtime.turns import StopFlag
from drlhp.screens.gatherer import PersonGatherer
from drlhp.screens.lines import TerminalLines
from drlhp.screens.playback import Playback
from pref_db import PrefDB
from pref_interface import PrefInterface, PrefsConfig

ENV_ID, LENGTH = "Test-v0", 3
PATIENCE_SECONDS = 20


def segment(seed: int, rewards: tuple[float, ...] = (0.0, 1.0, 0.0)) -> Segment:
    """A short clip of small random frames."""
    frames = np.random.default_rng(seed).integers(0, 256, (len(rewards) + 3, 8, 8), dtype=np.uint8)
    actions = np.zeros(len(rewards), np.int64)
    return Segment(ENV_ID, frames, actions, np.array(rewards, np.float32), 4, policy_step=0, seed=seed, fps=15.0)


def step_until(interface: PrefInterface, done: Callable[[], bool]) -> None:
    """Steps until `done`; what is typed arrives through a thread of its own."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not done():
        assert time.monotonic() < deadline, "nothing came of it"
        interface.step()


class Listener(StopFlag):
    """A bell whose trainer reads the store as soon as it rings."""

    def __init__(self, store: Path) -> None:
        super().__init__(None)
        self.db = PrefDB.open(store, read_only=True)
        self.heard: list[Label] = []
        self._last_seq = 0

    def set(self) -> None:
        new = self.db.labels(after=self._last_seq)
        assert new, "the bell rings once the label is in the store, and only for a new one"
        self.heard += new
        self._last_seq = max(label.seq for label in new)

    def close(self) -> None:
        self.db.close()


class Ring:
    """A store and queues without a trainer; interfaces are closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "prefs.db"
        PrefDB.create(self.path, ENV_ID, LENGTH).close()
        self.channels = Channels.create(synchronous=True, take_turns=False)
        self.channels.bell = self.trainer = Listener(self.path)
        self.interfaces: list[PrefInterface] = []
        self.segments = (segment(seed, (float(seed), 0.0, 0.0)) for seed in itertools.count())

    def interface(
        self,
        gatherer_of: Callable[[PrefDB], Any] = lambda db: SyntheticGatherer(db, SyntheticTeacher()),
        *,
        n_initial: int = 0,
        goal: int = 100,
        max_segs: int = 10,
        annealed_over: float = 0,
        config: PrefsConfig | None = None,
    ) -> PrefInterface:
        db = PrefDB.open(self.path)
        interface = PrefInterface(
            db,
            gatherer_of(db),
            self.channels,
            config or PrefsConfig(n_initial_prefs=n_initial, max_prefs=goal, max_segs=max_segs),
            seed=0,
            goal=goal,
            annealed_over=annealed_over,
        )
        self.interfaces.append(interface)
        return interface

    def act(self, n: int) -> None:
        """What the policy does: new segments."""
        for one in itertools.islice(self.segments, n):
            self.channels.segments.put_nowait(Candidate(one))

    def labels(self) -> list[Label]:
        """What the trainer has read since the last call."""
        heard, self.trainer.heard = self.trainer.heard, []
        return heard

    def close(self) -> None:
        for interface in self.interfaces:
            interface.close()
        self.trainer.close()


class FakeWindow:
    """Records what it is to show, and presses what it is told to."""

    def __init__(self) -> None:
        self.presses: deque[list[str]] = deque()
        self.shown: list[tuple[np.ndarray, np.ndarray]] = []
        self.messages: list[str] = []
        self.closed = False
        self.captioned = ""
        self.playback = Playback()

    def caption(self, text: str) -> None:
        assert text
        self.captioned = text

    def show(self, left: np.ndarray, right: np.ndarray, fps: float, caption: str) -> None:
        assert fps == 15.0 and caption
        self.shown.append((left, right))

    def message(self, text: str) -> None:
        self.messages.append(text)

    def tick(self) -> list[str]:
        pressed = self.presses.popleft() if self.presses else []
        return [action for action in pressed if not self.playback.reads(action)]

    def close(self) -> None:
        self.closed = True


class Desk:
    """A person with a window and a terminal, which is a real pipe."""

    def __init__(self, ring: Ring) -> None:
        read_end, write_end = os.pipe()
        self.keyboard, self._stream = os.fdopen(write_end, "w"), os.fdopen(read_end)
        self.window, self.ring = FakeWindow(), ring
        before = set(threading.enumerate())
        lines = TerminalLines(self._stream)
        self.interface = ring.interface(lambda db: PersonGatherer(db, self.window, lines))
        (self._reader,) = set(threading.enumerate()) - before

    @property
    def lease(self) -> Lease | None:
        gatherer: Any = self.interface.gatherer
        return gatherer.person.lease

    @property
    def asked(self) -> Lease:
        assert self.lease is not None
        return self.lease

    def type(self, line: str) -> None:
        print(line, file=self.keyboard, flush=True)

    def ask(self) -> Lease:
        """Goes on until a pair is shown."""
        step_until(self.interface, lambda: self.lease is not None)
        return self.asked

    def answer(self, line: str) -> Lease:
        """Types an answer to the pair that is shown, until it is stored; returns the pair."""
        asked, n_before = self.ask(), self.interface.db.n_answers()
        self.type(line)
        step_until(self.interface, lambda: self.interface.db.n_answers() > n_before)
        return asked

    def choices(self) -> list[Choice]:
        return [row.choice for row in self.interface.db.answers()]

    def close(self) -> None:
        self.keyboard.close()
        self._reader.join(PATIENCE_SECONDS)
        self._stream.close()


def side(asked: Lease, line: str) -> Choice:
    """Which segment a side shows."""
    return Choice.B if (line == "left") == asked.flip else Choice.A
