"""The arrows of the ring: what crosses between the processes, each with one writer and one reader.

    a2c --Segment--> pref_interface --Label--> reward_predictor --weights--> a2c

The same objects serve `--synchronous` runs, with queues that stay inside one process.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import queue
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import nn

SEGMENT_QUEUE_SIZE = 32  # small, so that a clip is young when it is asked about
LABEL_QUEUE_SIZE = 1024
Context = SpawnContext | ForkServerContext
LARGE_LIBRARIES = ["torch", "gymnasium", "ale_py", "cv2"]
LONGEST_TMPDIR = 70  # a socket's path has 103 characters at most, of which 32 are multiprocessing's
TURN_SECONDS = 60.0  # longer than a step, or all batches that it makes due, should take


def start_context(method: str | None = None) -> Context:
    """How processes are started: each from a small server that has imported the large libraries once, for all of them.

    A process so started has nothing of the one that asked for it but what it is given, as with `spawn`, which is what
    systems without `forkserver` have, and those whose temporary folder has too long a name for the server's socket; or
    by the `method` of multiprocessing that is given.
    """
    if method is None:
        has_room = len(os.fsencode(tempfile.gettempdir())) <= LONGEST_TMPDIR
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() and has_room else "spawn"
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(LARGE_LIBRARIES)
    return context


def warm_up() -> None:
    """Starts that server now, so that it imports the libraries while this process does the same."""
    if start_context().get_start_method() == "forkserver":
        # They inherit that: a terminal that closes tells them too, as `timeout` does, and they are needed to the end.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGTERM})
        multiprocessing.resource_tracker.ensure_running()  # first, since it lifts what blocks the other signal
        # And a Ctrl-C, which the terminal sends to the server too, would show in a traceback of imports.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        multiprocessing.forkserver.ensure_running()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTERM})


def peak_memory_mb() -> float:
    """The most memory that this process has had resident, in MB."""
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
    """How a child died: one sentence for the user, the traceback for the log."""

    source: str
    message: str
    traceback: str
    is_user_error: bool


@dataclass(frozen=True)
class Episode:
    """The last full episode of the first environment as people see it; each frame by `pref_db.encode_view`."""

    env_id: str
    frames: tuple[bytes, ...]
    episode_return: float
    fps: float


class WeightsBoard:
    """The newest weights of the reward predictor; a reader that is slow misses versions, never waits.

    Version 0 means that nothing was published yet. Every entry of the state dict travels as float32, the
    normaliser's statistics included.
    """

    def __init__(self, module: nn.Module, context: Context | None) -> None:
        n_values = sum(tensor.numel() for tensor in module.state_dict().values())
        if context is None:
            self._shared: Any = (ctypes.c_float * n_values)()
            self._version: Any = ctypes.c_int64(0)
            self._lock: Any = contextlib.nullcontext()
        else:
            self._shared = context.RawArray(ctypes.c_float, n_values)
            self._version = context.RawValue(ctypes.c_int64, 0)
            self._lock = context.Lock()

    @property
    def version(self) -> int:
        """How many times weights were published."""
        return int(self._version.value)

    def publish(self, module: nn.Module) -> None:
        """Makes the module's weights and buffers the newest ones."""
        import torch  # slow: whoever comes here has it, and `warm_up` can do without

        flat = torch.cat([tensor.detach().reshape(-1).float() for tensor in module.state_dict().values()]).cpu()
        with self._lock:
            np.frombuffer(self._shared, dtype=np.float32)[:] = flat.numpy()
            self._version.value += 1

    def fetch(self, module: nn.Module) -> int:
        """Copies the newest weights into the module and returns their version."""
        import torch

        with self._lock:
            flat = torch.from_numpy(np.frombuffer(self._shared, dtype=np.float32).copy())
            version = self.version
        tensors = list(module.state_dict().values())
        flat = flat.to(tensors[0].device)
        for tensor, values in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(values.reshape(tensor.shape))
        return version


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


@dataclass
class Channels:
    """Everything that a process may share with the others."""

    segments: Any  # Queue[Segment], a2c -> pref_interface; full: the segment is dropped and counted
    labels: Any  # Queue[Label], pref_interface -> reward_predictor; full: dropped, for the reader looks into the store
    reports: Any  # Queue[Report | Failure], children -> main
    episodes: Any  # Queue[Episode], a2c -> main; holds one, the next replaces nothing until it is taken
    stop: StopFlag  # finish the step, checkpoint, leave
    pause: StopFlag  # the policy waits for labels; set and cleared by pref_interface
    save: StopFlag  # write a checkpoint of the reward predictor now; the trainer clears it when that is done
    agent_steps: Any  # training steps taken by the policy, written by a2c alone
    n_labels: Any  # labels in the store, written by pref_interface alone once the run has begun
    trained_batches: Any  # batches that the reward predictor was trained on, written by reward_predictor alone
    turns: ProcessorTurns  # who computes now, on a machine too small for both
    context: Context | None = field(repr=False)  # None: everything runs in this process

    @classmethod
    def create(cls, *, synchronous: bool, take_turns: bool, start_method: str | None = None) -> Channels:
        """`start_method`: how processes will be started, if otherwise than `start_context` chooses."""
        if synchronous:
            stop = StopFlag(None)
            return cls(
                queue.Queue(SEGMENT_QUEUE_SIZE),
                queue.Queue(),
                queue.Queue(),
                queue.Queue(1),
                stop,
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
            _queue(context, LABEL_QUEUE_SIZE),
            _queue(context),
            _queue(context, 1),
            stop,
            StopFlag(context),
            StopFlag(context),
            context.RawValue(ctypes.c_int64, 0),
            context.RawValue(ctypes.c_int64, 0),
            context.RawValue(ctypes.c_int64, 0),
            ProcessorTurns(context if take_turns else None, stop),
            context,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "context": None,
        }  # the context is for starting processes, which main alone does

    def read_in_background(self) -> None:
        """Lets threads of the main process read what the children send.

        A child that is killed in the middle of a message leaves its reader waiting for the rest: then a thread waits,
        and the main process still sees that the child is dead.
        """
        self.segments = _read_by_thread(self.segments, SEGMENT_QUEUE_SIZE)
        self.reports = _read_by_thread(self.reports, 0)
        self.episodes = _read_by_thread(self.episodes, 1)

    def discard(self) -> None:
        """Called by a child that leaves: what nobody will read must not keep the process alive."""
        for channel in (self.segments, self.episodes):
            if hasattr(channel, "cancel_join_thread"):
                channel.cancel_join_thread()

    def close(self) -> None:
        """Gives back the queues' pipes and threads, once every other process has left; what lies in them is lost."""
        for channel in (self.segments, self.labels, self.reports, self.episodes):
            if hasattr(channel, "cancel_join_thread"):
                channel.cancel_join_thread()
                channel._reader.close()  # a thread of this process may wait for room in the pipe
                channel.close()


def _queue(context: Any, size: int = 0) -> Any:
    """A queue between processes, whose thread ends quietly where nobody can read any more, as those of executors do."""
    made = context.Queue(size)
    made._ignore_epipe = True
    return made


def _read_by_thread(channel: Any, size: int) -> queue.Queue[Any]:
    """A queue inside this process that a thread fills from one between processes."""
    local: queue.Queue[Any] = queue.Queue(size)

    def read() -> None:
        while True:
            local.put(channel.get())

    threading.Thread(target=read, daemon=True, name="reader").start()
    return local


def drain(channel: Any, limit: int | None = None) -> list[Any]:
    """Takes what lies in a queue now, `limit` items at most, without waiting."""
    items: list[Any] = []
    with contextlib.suppress(queue.Empty):
        while limit is None or len(items) < limit:
            items.append(channel.get_nowait())
    return items


def offer(channel: Any, item: Any) -> bool:
    """Puts an item if there is room; False if it was dropped."""
    try:
        channel.put_nowait(item)
    except queue.Full:
        return False
    return True
