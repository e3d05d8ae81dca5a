"""Carries out runs on a Ray cluster: each run is a task, which Ray starts again on another node if its node is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from commands import ray_tasks
from commands.jobs import RUN, Job, is_done
from commands.on_node import SECRET, STOP_SECONDS, NodeRun
from commands.runs_table import RunsTable
from drlhp.cli import FAILURE, INTERRUPTED
from drlhp.errors import UserError, reason_of
from drlhp.runtime.locks import FolderLock

RETRIES = 20  # starts of a run after the first one; each is for a node that was lost
POLL_SECONDS = 1.0  # between two looks at what the runs say
LEAVE_SECONDS = STOP_SECONDS + 10  # in which all runs should have written their checkpoints


@contextlib.contextmanager
def sign_on(log_dir: Path, name: str) -> Iterator[dict[str, str]]:
    """Keeps a locked folder beside the runs for the block, by which nodes see that they have the same storage.

    Raises UserError if another command carries out the same runs.
    """
    folder, secret = (log_dir / f".{name}-on-ray").resolve(), secrets.token_hex()
    folder.mkdir(exist_ok=True)
    try:
        lock = FolderLock(folder)
    except BlockingIOError:
        raise UserError(f"another command carries out {name} in {log_dir}; wait until it has ended.") from None
    with contextlib.closing(lock):
        (folder / SECRET).write_text(secret)
        try:
            yield {"sign": str(folder), "secret": secret}
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def carry_out(
    ray: ModuleType, jobs: list[Job], cores: int, gpus: float, at_once: int | None, sign: dict[str, str]
) -> list[Path]:
    """Carries out the jobs as tasks of a cluster; returns the folders of those that failed.

    Args:
        cores, gpus: what each of them needs.
        at_once: how many are handed to Ray at once; by default all.
        sign: what `sign_on` yields.
    """
    table = RunsTable(job.run.name for job in jobs)
    try:
        return _Tasks(ray, cores, gpus, sign, table).carry_out(jobs, at_once or len(jobs))
    finally:
        table.close()


class _Tasks:
    """The tasks of a command."""

    def __init__(self, ray: ModuleType, cores: int, gpus: float, sign: dict[str, str], table: RunsTable) -> None:
        self.ray, self.cores, self.gpus, self.sign, self.table = ray, cores, gpus, sign, table
        ray.cloudpickle.register_pickle_by_value(ray_tasks)  # the nodes cannot import it yet
        # Without a core of its own, on any node; if that is lost, another one starts it again, empty.
        self.board = ray.remote(ray_tasks.Board).options(num_cpus=0, max_restarts=-1, max_concurrency=1).remote()
        self.task = ray.remote(ray_tasks.carry_out_on_node).options(
            num_cpus=cores, num_gpus=gpus, max_retries=RETRIES, retry_exceptions=False
        )
        self.running: dict[Any, Job] = {}
        self.failed: list[Path] = []

    def carry_out(self, jobs: list[Job], at_once: int) -> list[Path]:
        """Returns the folders of those that failed."""
        waiting = list(reversed(jobs))
        self._say_what_is_missing()
        try:
            while waiting or self.running:
                while waiting and len(self.running) < at_once:
                    self._start(waiting.pop())
                self._look()
        except (KeyboardInterrupt, BrokenPipeError) as error:  # the latter: nobody reads any more what is printed
            with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
                self._stop(silent=isinstance(error, BrokenPipeError))
            raise
        return self.failed

    def _say_what_is_missing(self) -> None:
        """Says if no node has what a run needs; one that has it may still come."""
        for node in self.ray.nodes():
            has = node["Resources"] if node["Alive"] else {}
            if has.get("CPU", 0) >= self.cores and has.get("GPU", 0) >= self.gpus:
                return
        needed = f"{self.cores} cores" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
        self.table.say(f"No node has {needed}, so the runs wait until such a node joins the cluster.")

    def _start(self, job: Job) -> None:
        """Hands a run to Ray, unless it is done."""
        if is_done(job.run):
            self.table.end(job.run.name, f"done, in {job.run}")
            return
        log_dir = job.run.parent.resolve()
        spec = NodeRun(
            name=job.run.name,
            log_dir=str(log_dir),
            words=dataclasses.replace(job, run=log_dir / job.run.name).flags,
            n_cores=self.cores,
            n_gpus=self.gpus,
            n_threads=os.environ.get("OMP_NUM_THREADS"),
            **self.sign,
        )
        self.running[self.task.remote(str(RUN.parent), vars(spec), self.board)] = job

    def _look(self) -> None:
        """Waits a moment for runs that end, and shows what the others say."""
        ended, _ = self.ray.wait(list(self.running), timeout=POLL_SECONDS) if self.running else ([], [])
        for ref in ended:
            self._end(self.running.pop(ref), ref)
        with contextlib.suppress(self.ray.exceptions.RayError):  # its node was lost, and it begins again elsewhere
            self.table.show(self.ray.get(self.board.read.remote(), timeout=POLL_SECONDS))

    def _end(self, job: Job, ref: Any) -> None:
        """Says how a run has ended."""
        try:
            status, lines = self.ray.get(ref)
        except self.ray.exceptions.TaskCancelledError:
            status, lines = INTERRUPTED, ["stopped before it began"]
        except self.ray.exceptions.RayError as error:
            status, lines = FAILURE, [f"lost with its node, and with {RETRIES} others: {reason_of(error)}"]
        if status:
            self.failed.append(job.run)
        for line in {0: [], INTERRUPTED: lines[-1:]}.get(status, lines):
            self.table.say(f"{job.run.name}: {line}")
        self.table.end(job.run.name, f"done, in {job.run}" if not status else f"ended with status {status}")

    def _stop(self, silent: bool) -> None:
        """Lets each run write its checkpoints and end."""
        for ref in self.running:
            self.ray.cancel(ref)
        if not silent:
            self.table.say("\nStopping: the runs write checkpoints (Ctrl-C again stops at once).")
        self.ray.wait(list(self.running), num_returns=len(self.running), timeout=LEAVE_SECONDS)
        if not silent:
            for ref in list(self.running):
                self._end(self.running.pop(ref), ref)
