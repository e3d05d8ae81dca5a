"""TODO."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from drlhp.runtime.start import Context

if TYPE_CHECKING:
    pass


TURN_SECONDS = 60.0  # longer than a step, or all batches that it makes due, should take


class StopFlag:
    """Tells every process to leave, or one to wait.

    It has no lock, which a process killed at the wrong moment would keep for ever.
    """

    def __init__(self, context: Context | None) -> None:
        self._value: Any = context.RawValue(ctypes.c_bool, False) if context else ctypes.c_bool(False)

    def set(self) -> None:
        self._value.value = True

    def clear(self) -> None:
        self._value.value = False

    def is_set(self) -> bool:
        return bool(self._value.value)

    def wait(self, seconds: float) -> None:
        """Sleeps, but not past the stop by more than a moment."""
        deadline = time.monotonic() + seconds
        while not self.is_set() and time.monotonic() < deadline:
            time.sleep(min(0.02, seconds))


class ProcessorTurns:
    """On a small machine the policy and the trainer take turns with all cores, instead of sharing them.

    Two teams of threads on the same cores wait at each other's barriers more than they compute. The trainer's turn
    comes as soon as the policy has finished its step, and within it the trainer may take it again.
    With `context` None everybody goes on at once, and so they do when the run ends: one of them may have died in its
    turn.
    """

    def __init__(self, context: Context | None, stop: StopFlag) -> None:
        self._stop = stop
        self._lock: Any = context.RLock() if context else None
        self._trainer_waits: Any = context.RawValue(ctypes.c_bool, False) if context else None

    @contextlib.contextmanager
    def policy(self) -> Iterator[None]:
        """One step of the policy."""
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
        """One batch of the trainer, or all that it owes."""
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
        """Waits for the turn; False where it did not come in time, so that nobody waits for ever for who has died."""
        deadline = time.monotonic() + TURN_SECONDS
        while not self._stop.is_set() and time.monotonic() < deadline:
            if self._lock.acquire(timeout=min(0.1, TURN_SECONDS)):
                return True
        return False
