"""Tells processes to stop or wait, and divides a small machine's processor between two of them."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from typing import Any

from drlhp.runtime.start import Context

TURN_SECONDS = 60.0  # longer than a step of the policy, or the batches that it makes due, should take


class StopFlag:
    """A flag that one process sets and others see: to leave, to wait, to save, or that there is news.

    It has no lock, because a process that is killed while it holds a lock keeps it forever.
    """

    KEPT = ("_value",)

    def __init__(self, context: Context | None) -> None:
        self._value: Any = context.RawValue(ctypes.c_bool, False) if context else ctypes.c_bool(False)

    def set(self) -> None:
        self._value.value = True

    def clear(self) -> None:
        self._value.value = False

    def is_set(self) -> bool:
        return bool(self._value.value)

    def wait(self, seconds: float) -> None:
        """Sleeps until the flag is set or the time is up."""
        deadline = time.monotonic() + seconds
        while not self.is_set() and time.monotonic() < deadline:
            time.sleep(min(0.02, seconds))


class ProcessorTurns:
    """Lets the policy and the trainer take turns with all cores of a small machine, instead of sharing them.

    Two teams of threads on the same cores wait at each other's barriers more than they compute. The trainer's turn
    comes as soon as the policy has finished its step; within its turn the trainer may take it again.
    With `context` None nobody waits. When the run ends nobody waits either, because a process may have died in its
    turn.
    """

    def __init__(self, context: Context | None, stop: StopFlag) -> None:
        self._stop = stop
        self._lock: Any = context.RLock() if context else None
        self._trainer_waits: Any = context.RawValue(ctypes.c_bool, False) if context else None

    @contextlib.contextmanager
    def policy(self) -> Iterator[None]:
        """Holds the turn for one step of the policy."""
        if self._lock is None:
            yield
            return
        deadline = time.monotonic() + TURN_SECONDS
        while self._trainer_waits.value and not self._stop.is_set() and time.monotonic() < deadline:
            time.sleep(0.0005)
        taken = self._taken()
        try:
            yield
        finally:
            if taken:
                self._lock.release()

    @contextlib.contextmanager
    def trainer(self) -> Iterator[None]:
        """Holds the turn for one batch of the trainer, or for all batches that are due."""
        if self._lock is None:
            yield
            return
        self._trainer_waits.value = True
        taken = self._taken()
        self._trainer_waits.value = False
        try:
            yield
        finally:
            if taken:
                self._lock.release()

    def _taken(self) -> bool:
        """Waits for the turn; returns False if it did not come in time: a dead holder cannot block the other."""
        deadline = time.monotonic() + TURN_SECONDS
        while not self._stop.is_set() and time.monotonic() < deadline:
            if self._lock.acquire(timeout=min(0.1, TURN_SECONDS)):
                return True
        return False
