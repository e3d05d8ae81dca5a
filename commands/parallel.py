"""Carries out runs on this machine, as many in parallel as its cores and its memory allow."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from commands.jobs import RUN, Job, is_done
from drlhp.runtime.machine import n_cores

MEMORY_FREE = Path("/proc/meminfo")
# The memory limit of a container, in the second and the first version of Linux's control groups.
MEMORY_LIMITS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")


def carry_out(jobs: list[Job], at_once: int) -> list[Path]:
    """Carries out the jobs, so many in parallel; returns the folders of those that failed."""
    processes: list[subprocess.Popen[str]] = []
    places: queue.Queue[set[int]] = queue.Queue()
    for cores in _cores(at_once):
        places.put(cores)
    with ThreadPoolExecutor(at_once) as pool:
        try:
            statuses = [pool.submit(_run, job, places, processes) for job in jobs]
            return [job.run for job, status in zip(jobs, statuses, strict=True) if status.result()]
        except (KeyboardInterrupt, BrokenPipeError):  # the latter: nobody reads any more what is printed
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.send_signal(signal.SIGINT)  # each writes its checkpoints
            raise


def _cores(n_runs: int) -> list[set[int]]:
    """Returns the processor cores of each parallel run; empty sets if the system cannot pin processes."""
    if not hasattr(os, "sched_getaffinity"):
        return [set()] * n_runs
    cores = sorted(os.sched_getaffinity(0))
    return [set(cores[i::n_runs]) or set(cores) for i in range(n_runs)]


def at_once_by_default(cores_per_run: int, bytes_per_run: float) -> int:
    """Returns how many runs the machine's cores and free memory allow."""
    memory = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    if MEMORY_FREE.exists():
        lines = MEMORY_FREE.read_text().splitlines()
        memory += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    limits = [path.read_text().strip() for path in MEMORY_LIMITS if path.exists()]
    memory += [int(limit) for limit in limits if limit.isdigit()]  # "max" means no limit
    return max(1, min(n_cores() // cores_per_run, int(min(memory) // bytes_per_run)))


def _run(job: Job, places: queue.Queue[set[int]], processes: list[subprocess.Popen[str]]) -> int:
    """Starts, resumes or skips a run, on cores that are free; returns the exit status."""
    if is_done(job.run):
        print(f"{job.run.name}: done, in {job.run}", flush=True)
        return 0
    arguments = ("--resume", str(job.run)) if job.run.exists() else job.flags
    cores = places.get()
    try:
        with subprocess.Popen(
            [sys.executable, str(RUN), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that only this process sends it Ctrl-C
            preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
        ) as process:
            processes.append(process)
            assert process.stdout is not None
            for line in process.stdout:
                print(f"{job.run.name}: {line}", end="", flush=True)
    finally:
        places.put(cores)
    return process.returncode
