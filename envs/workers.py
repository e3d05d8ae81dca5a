"""Gymnasium's worker processes, on a leash, and with their errors told once."""

from collections.abc import Callable, Iterable, Sequence

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from drlhp.runtime.leash import OnLeash, without_main


class WorkerTraceback(Exception):
    """The traceback of an error in a worker, for the log."""


class Workers(AsyncVectorEnv):
    """One worker process for each environment; it ends with this process, however this process ends."""

    has_failed = False  # whether an environment's own error was raised

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env]]) -> None:
        with without_main():
            super().__init__(
                makers, context="spawn", autoreset_mode=AutoresetMode.NEXT_STEP, worker=OnLeash(_async_worker)
            )

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Raises the last of the workers' errors, as Gymnasium does, but prints nothing."""
        n_failed = sum(not success for success in successes)
        for left in reversed(range(n_failed)):
            index, kind, value, trace = self.error_queue.get()
            self.parent_pipes[index].close()
            self.parent_pipes[index] = None  # type: ignore[call-overload]  # as Gymnasium marks it
            if not left:
                self._state, self.has_failed = AsyncState.DEFAULT, True
                raise kind(value) from WorkerTraceback(trace)
