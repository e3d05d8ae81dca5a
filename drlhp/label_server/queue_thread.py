"""The one thread of the server that uses the label queue, and a way to call into it from the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from drlhp.errors import LostConnectionError
from drlhp.labelling.queue import LabelQueue
from pref_db import PrefDB

T = TypeVar("T")
# Seconds to wait for a database that does not answer. Then people get a sentence, and their pages ask again.
PATIENCE = 2.0


class QueueThread:
    """Runs calls on the label queue in one thread, and commits those together that came together."""

    def __init__(self, db_path: Path) -> None:
        self._db_path = db_path
        self._queue: LabelQueue | None = None
        self._calls: deque[tuple[Callable[[LabelQueue], Any], asyncio.Future[Any], bool]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="queue")

    async def call(self, call: Callable[[LabelQueue], T], *, writes: bool = True) -> T:
        """Returns what the call returns, once it is committed. Raises what the call raises, and PrefDBError.

        A call may begin again after all that it stored was undone. One that only reads lets other processes write.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._calls.append((call, done, writes))
        await loop.run_in_executor(self._thread, self._run_waiting, loop)
        return await done

    def _run_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs all calls that wait: first those that write, with one commit, because every commit waits for the disk.

        A call that fails is undone alone, and its caller gets the error.
        """
        waiting = []
        while self._calls:
            waiting.append(self._calls.popleft())
        writers = [(call, done) for call, done, writes in waiting if writes]
        readers = [(call, done) for call, done, writes in waiting if not writes]
        for calls in (writers, *([reader] for reader in readers)):
            try:
                queue = self._queue = self._queue or LabelQueue(PrefDB.open(self._db_path, patience=PATIENCE))
                results = queue.db.store.repeated(functools.partial(_results, queue, [call for call, _ in calls]))
            except Exception as error:
                results = [(None, error)] * len(calls)
            for (_, done), (result, failure) in zip(calls, results, strict=True):
                loop.call_soon_threadsafe(_settle, done, result, failure)

    async def close(self) -> None:
        """Closes the store after the calls that wait, and ends the thread."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close_queue)
        self._thread.shutdown()

    def _close_queue(self) -> None:
        if self._queue is not None:
            self._queue.db.close()


def _results(queue: LabelQueue, calls: Sequence[Callable[[LabelQueue], Any]]) -> list[tuple[Any, Exception | None]]:
    """Returns what each call returns, or what it raises. Raises LostConnectionError: then all have to begin again.

    If one of several fails, each is carried out by itself: that is rare, and undoing it alone would cost all of them.
    """
    try:
        with queue.db.transaction() if len(calls) > 1 else contextlib.nullcontext():
            return [(call(queue), None) for call in calls]
    except LostConnectionError:
        raise
    except Exception as error:
        return [(None, error)] if len(calls) == 1 else [_results(queue, [call])[0] for call in calls]


def _settle(done: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    if done.cancelled():  # the caller has gone
        return
    if failure is None:
        done.set_result(result)
    else:
        done.set_exception(failure)
