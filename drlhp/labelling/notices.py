"""Tells the processes that share a store about each other: which of them live, and the settings that all of them read.

Times are unix seconds (UTC). Any of these processes may die, restart or be absent, so a notice is a row that stays.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from drlhp.data.store import repeated
from drlhp.labelling.answers import SubmissionError
from pref_db import PrefDB

# Fewest labels to learn anything from: about five of them are held out, so that pretraining can see when to end.
FEW_LABELS = 25
SILENT_SECONDS = 10.0  # a process that has been silent for longer may be gone
FORGET_SECONDS = 600.0  # a heartbeat older than this is deleted

Who = Literal["run", "label", "server"]  # the kinds of processes that beat


def share_of(setting: str | None) -> float:
    """Returns a setting that is a share of the pairs; 0 if it was never set or is not a number."""
    try:
        return float(setting or 0.0)
    except ValueError:
        return 0.0


def number_of(setting: str | None) -> int:
    """Returns a setting that counts labels; 0 if it was never set or is not a number."""
    number = share_of(setting)
    return int(number) if math.isfinite(number) else 0


def select_settings(*keys: str) -> tuple[str, tuple[str, ...]]:
    """Returns a query for those of the settings that were ever set, and its values."""
    return f"SELECT key, value FROM setting WHERE key IN ({', '.join('?' * len(keys))})", keys


class Heartbeat(NamedTuple):
    """What a process said last, and when."""

    at: float
    state: dict[str, Any]


class Notices:
    """The heartbeats and settings in a store, for one process and thread; every method may raise PrefDBError."""

    def __init__(self, db: PrefDB, clock: Callable[[], float] = time.time) -> None:
        self.db, self.clock = db, clock

    @repeated
    def beat(self, who: Who, state: Mapping[str, Any]) -> None:
        """Stores that this process lives, and its state; `labellers` in it names the labellers who use this process."""
        now = self.clock()
        with self.db.transaction() as db:
            # Those of earlier processes. One from the future is deleted too, because the clock was put back.
            old = "DELETE FROM alive WHERE who LIKE ? AND (at < ? OR at > ?)"
            db.execute(old, (f"{who}:%", now - FORGET_SECONDS, now + SILENT_SECONDS))
            row = (f"{who}:{os.getpid()}", now, json.dumps(state))  # several processes of a kind may run in parallel
            replace = "ON CONFLICT (who) DO UPDATE SET at = excluded.at, state = excluded.state"
            db.execute(f"INSERT INTO alive (who, at, state) VALUES (?, ?, ?) {replace}", row)

    def heartbeats(self) -> dict[str, Heartbeat]:
        """Returns one heartbeat of each kind of process: the newest of a process that still lives, if there is one."""
        return dict(sorted(self._all(), key=lambda named: (self._lives(named[1]), named[1].at)))

    def goes_on(self, who: Who) -> bool:
        """Returns whether a process of this kind beat just now and has not said that it ended."""
        heartbeat = self.heartbeats().get(who)
        return heartbeat is not None and self._lives(heartbeat)

    def labellers(self) -> set[str]:
        """Returns the nicknames of the labellers whom the living processes name."""
        return {name for _, beat in self._all() if self._lives(beat) for name in beat.state.get("labellers", ())}

    def settings(self, *keys: str) -> dict[str, str]:
        """Returns those of the settings that were ever set."""
        return dict(self.db.read(*select_settings(*keys)))

    def setting(self, key: str) -> str | None:
        """Returns a setting; None if it was never set."""
        return self.settings(key).get(key)

    def number(self, key: str) -> int:
        """Returns a setting that counts labels; 0 if it was never set."""
        return number_of(self.setting(key))

    def give_settings(self, settings: Mapping[str, str], *, keep: bool) -> None:
        """Changes settings for all processes; with `keep`, only those that were never set."""
        for key, value in settings.items():
            if not keep or self.setting(key) is None:
                self.set_setting(key, value)

    @repeated
    def set_setting(self, key: str, value: str) -> None:
        """Changes one setting for all processes."""
        with self.db.transaction() as db:
            replace = "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
            db.execute(f"INSERT INTO setting (key, value) VALUES (?, ?) {replace}", (key, value))

    def check_start(self) -> None:
        """Raises SubmissionError if there are too few labels to start training with."""
        n = self.db.n_labels()
        if n < FEW_LABELS:
            raise SubmissionError(f"training needs {FEW_LABELS} labels to start with; there are {n}.")

    def start_now(self) -> None:
        """Lets training start with the labels given so far, before all initial ones are given; cannot be undone.

        Raises:
            SubmissionError: if there are too few labels to learn from.
        """
        self.check_start()
        self.set_setting("start_now", "1")

    def labels_to_start(self, initial: int) -> int:
        """Returns how many labels training waits for: `initial`, or fewer once somebody has called `start_now`."""
        return min(initial, FEW_LABELS) if self.setting("start_now") else initial

    def _all(self) -> list[tuple[str, Heartbeat]]:
        """Returns the kind and the newest heartbeat of every process."""
        rows = self.db.read("SELECT who, at, state FROM alive")
        return [(who.partition(":")[0], Heartbeat(at, json.loads(state))) for who, at, state in rows]

    def _lives(self, heartbeat: Heartbeat) -> bool:
        """Returns whether it is from just now and does not say that its process ended."""
        return abs(self.clock() - heartbeat.at) <= SILENT_SECONDS and "ended" not in heartbeat.state
