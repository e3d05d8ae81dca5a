"""The arrows of the ring: what crosses between the processes, each with one writer and one reader.

    a2c --Candidate--> pref_interface --bell--> reward_predictor --weights--> a2c

Labels cross in the store: each is committed to disk, then the bell rings, and the trainer reads the store.

The same objects serve `--synchronous` runs, with queues that stay inside one process.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import resource
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

from drlhp.runtime.start import Context, start_context
from drlhp.runtime.turns import ProcessorTurns, StopFlag

SEGMENT_QUEUE_SIZE = 32  # small, so that a clip is young when it is asked about


def peak_memory_mb() -> float:
    """Returns the peak resident memory of this process, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


@dataclass(frozen=True)
class Report:
    """Numbers for the progress line and the summary, from a child to the main process."""

    source: str
    values: dict[str, float]
    peak_memory_mb: float = field(default_factory=peak_memory_mb)


@dataclass(frozen=True)
class Failure:
    """The reason why a child died: one sentence for the user, the traceback for the log."""

    source: str
    message: str
    traceback: str


@dataclass(frozen=True)
class Episode:
    """The last full episode of the first environment as people see it; each frame by `pref_db.encode_view`."""

    env_id: str
    frames: tuple[bytes, ...]
    episode_return: float
    fps: float


@dataclass
class Channels:
    """Everything that the processes of a run share."""

    KEPT = ("bell", "pause", "behind", "agent_steps", "n_labels", "trained_batches")

    segments: Any  # Queue[Candidate], a2c -> pref_interface; full: the segment is dropped and counted
    bell: StopFlag | None  # the store has new labels: pref_interface sets it, the trainer clears it; None: no trainer
    reports: Any  # Queue[Report | Failure], children -> main
    episodes: Any  # Queue[Episode], a2c -> main; holds one, the next replaces nothing until it is taken
    stop: StopFlag  # finish the step, checkpoint, leave
    pause: StopFlag  # the policy waits for labels; set and cleared by pref_interface
    behind: StopFlag  # the policy waits for the trainer, which sets and clears it
    save: StopFlag  # write a checkpoint of the reward predictor now; the trainer clears it when that is done
    agent_steps: Any  # training steps taken by the policy, written by a2c alone
    n_labels: Any  # labels in the store, written by pref_interface alone once the run has begun
    trained_batches: Any  # batches that the reward predictor was trained on, written by reward_predictor alone
    turns: ProcessorTurns  # who computes now, on a machine too small for both
    context: Context | None = field(repr=False)  # None: everything runs in this process

    @classmethod
    def create(cls, *, synchronous: bool, take_turns: bool, start_method: str | None = None) -> Channels:
        """Makes the channels of a run.

        Args:
            synchronous: everything runs in this process.
            start_method: another one than `start_context` chooses.
        """
        if synchronous:
            stop = StopFlag(None)
            return cls(
                queue.Queue(SEGMENT_QUEUE_SIZE),
                StopFlag(None),
                queue.Queue(),
                queue.Queue(1),
                stop,
                StopFlag(None),
                StopFlag(None),
                StopFlag(None),
                ctypes.c_int64(0),
                ctypes.c_int64(0),
                ctypes.c_int64(0),
                ProcessorTurns(None, stop),
                None,
            )
        context: Any = start_context(start_method)
        stop = StopFlag(context)
        return cls(
            _queue(context, SEGMENT_QUEUE_SIZE),
            StopFlag(context),
            _queue(context),
            _queue(context, 1),
            stop,
            StopFlag(context),
            StopFlag(context),
            StopFlag(context),
            context.RawValue(ctypes.c_int64, 0),
            context.RawValue(ctypes.c_int64, 0),
            context.RawValue(ctypes.c_int64, 0),
            ProcessorTurns(context if take_turns else None, stop),
            context,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "context": None}  # only the main process starts others

    def read_in_background(self) -> None:
        """Lets threads of the main process read what the children send.

        If a child is killed in the middle of a message, its reader waits for the rest. So a thread waits, and the
        main process still sees that the child is dead.
        """
        self.segments = _read_by_thread(self.segments, SEGMENT_QUEUE_SIZE)
        self.reports = _read_by_thread(self.reports, 0)
        self.episodes = _read_by_thread(self.episodes, 1)

    def discard(self) -> None:
        """Drops what a leaving child has sent and nobody will read, which would keep the process alive."""
        for channel in (self.segments, self.episodes):
            if hasattr(channel, "cancel_join_thread"):
                channel.cancel_join_thread()

    def close(self) -> None:
        """Frees the queues' pipes and threads once every other process has left; unread items are lost."""
        for channel in (self.segments, self.reports, self.episodes):
            if hasattr(channel, "cancel_join_thread"):
                channel.cancel_join_thread()
                channel._reader.close()  # a thread of this process may wait for room in the pipe
                channel.close()


def _queue(context: Any, size: int = 0) -> Any:
    """Returns a queue between processes; its thread ends quietly if no reader is left, like those of executors."""
    made = context.Queue(size)
    made._ignore_epipe = True
    return made


def _read_by_thread(channel: Any, size: int) -> queue.Queue[Any]:
    """Returns a queue inside this process that a thread fills from one between processes."""
    local: queue.Queue[Any] = queue.Queue(size)

    def read() -> None:
        while True:
            local.put(channel.get())

    threading.Thread(target=read, daemon=True, name="reader").start()
    return local


def drain(channel: Any, limit: int | None = None) -> list[Any]:
    """Returns what lies in a queue now, `limit` items at most, without waiting."""
    items: list[Any] = []
    with contextlib.suppress(queue.Empty):
        while limit is None or len(items) < limit:
            items.append(channel.get_nowait())
    return items


def offer(channel: Any, item: Any) -> bool:
    """Puts an item if there is room; returns False if it was dropped."""
    try:
        channel.put_nowait(item)
    except queue.Full:
        return False
    return True
