"""Attacks the program from all sides, and writes what it found; Linux only.

python -m benchmarks.chaos                        # all attacks, 20 minutes at most, to results/chaos.json
python -m benchmarks.chaos --minutes 60           # the same on a slow or busy machine
python -m benchmarks.chaos --quick                # a few cases of each, to runs/chaos.json
python -m benchmarks.chaos routes --seed 3 --case 17   # one case again, as a finding names it

A finding is a lost label, a label trained on twice, a hang, a traceback, or a process that is left over. All that an
attack leaves to chance follows from the seed, its name and the case's number; what the system does at that moment
does not. The exit status is 1 if anything was found, or the time was too short for all cases.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import tyro

from benchmarks import ROOT
from benchmarks.chaos import command_lines, routes, server_kills, signals, stored_files
from benchmarks.chaos.cases import CUT_SHORT, NOT_BEGUN, Body, Limits, Outcome, carry_out
from benchmarks.chaos.full_disks import FullDisks
from commands.run_folder import git_revision
from drlhp.runtime.machine import machine

SPARE = 24  # blows, for processes that end by themselves just before
LAST_MINUTES = 0.5  # in which no case begins, so that those that have begun may end: the last ones take seconds
Name = Literal["routes", "server_kills", "full_disks", "stored_files", "parser", "signals", "real_lines"]


class Prepared(NamedTuple):
    """An attack that is ready: its cases, and how many there are."""

    body: Body
    n: int


class Attack(NamedTuple):
    """An attack: how it is prepared, what its blows are, and how many cases --quick carries out.

    A case may take so many seconds. More than one at once on each core pays if a case waits most of the time.
    """

    prepare: Callable[[], contextlib.AbstractContextManager[Prepared]]
    blows: str  # among its counts
    quick: int
    seconds: float
    per_core: int = 1


@contextmanager
def ready(body: Body, n: int) -> Iterator[Prepared]:
    """Prepares an attack that needs nothing made beforehand."""
    yield Prepared(body, n)


@contextmanager
def damaged() -> Iterator[Prepared]:
    with stored_files.StoredFiles.of_a_run() as attack:
        yield Prepared(attack, attack.n_cases)


@contextmanager
def full() -> Iterator[Prepared]:
    with FullDisks.of_a_run() as attack:
        yield Prepared(attack, attack.n_cases)


# The order in which they are carried out: the long ones last.
ATTACKS: dict[Name, Attack] = {
    "routes": Attack(lambda: ready(routes.routes, 10_000 // routes.REQUESTS), "requests", 2, 120),
    "server_kills": Attack(lambda: ready(server_kills.server_kills, 1600 // server_kills.ANSWERS), "answers", 1, 300),
    "full_disks": Attack(full, "commands on full disks", 4, 240),
    "stored_files": Attack(damaged, "damaged files", 8, 120),
    "parser": Attack(lambda: ready(command_lines.parser, 10_000 // command_lines.LINES), "lines", 1, 300),
    "signals": Attack(lambda: ready(signals.signals, -(-(200 + SPARE) // signals.BLOWS)), "blows", 1, 900, per_core=2),
    "real_lines": Attack(lambda: ready(command_lines.real, 300), "lines", 3, 300, per_core=2),
}


def attack(
    name: Name, seed: int, *, quick: bool = False, case: int | None = None, last_begin: float = inf, end: float = inf
) -> Outcome:
    """Carries out an attack, and prints every ten seconds how far it is; returns what it counted and found."""
    found = ATTACKS[name]
    with found.prepare() as prepared:
        # A quick attack takes cases from everywhere, because neighbours are alike.
        step = max(1, prepared.n // found.quick) if quick else 1
        numbers = range(step // 2, prepared.n, step) if case is None else [case]

        def tell(so_far: Outcome) -> None:
            print(f"{name}: {said(name, so_far, len(numbers))}", flush=True)

        limits = Limits(found.seconds, found.per_core, last_begin, end)
        return carry_out(name, prepared.body, seed, numbers, limits, tell)


def said(name: Name, outcome: Outcome, n: int) -> str:
    """Returns how far an attack of so many cases is."""
    counts, blows = outcome.counts, ATTACKS[name].blows
    return f"{counts['cases']} of {n} cases, {counts[blows]:,} {blows}, {len(outcome.findings)} findings"


def chaos(
    attacks: tyro.conf.Positional[tuple[Name, ...]] = (),
    seed: int = 0,
    quick: bool = False,
    case: int | None = None,
    minutes: float = 20,
) -> None:
    """Attacks the program, and writes what was counted and found.

    Args:
        attacks: names of the attacks; by default all.
        seed: decides all that the attacks leave to chance.
        quick: a few cases of each, and the result in runs/ rather than results/.
        case: the number of a single case; its result is only printed.
        minutes: the time for all; what does not end in it is counted as missing.
    """
    torch.set_num_threads(1)  # A case runs in a forked child, and there is one on each core.
    began, results = time.monotonic(), dict[str, object]()
    revision = git_revision()  # before a result of ours changes the tree
    n_findings = n_missing = 0
    for name in attacks or tuple(ATTACKS):
        start, processor = time.monotonic(), processor_seconds()
        end = began + 60 * minutes
        outcome = attack(name, seed, quick=quick, case=case, last_begin=end - 60 * LAST_MINUTES, end=end)
        results[name] = {
            "seconds": round(time.monotonic() - start),
            "processor_seconds": round(processor_seconds() - processor),
            "counts": dict(sorted(outcome.counts.items())),
            "findings": [asdict(finding) for finding in outcome.findings],
        }
        missing = outcome.counts[NOT_BEGUN] + outcome.counts[CUT_SHORT]
        n_findings, n_missing = n_findings + len(outcome.findings), n_missing + missing
        n = outcome.counts["cases"] + missing
        print(f"{name}: {said(name, outcome, n)}, {round(time.monotonic() - start)} s; done", flush=True)
        for finding in outcome.findings:
            print(f"  case {finding.case}: {finding.did}\n    {finding.seen}", flush=True)
    if case is None:
        path = ROOT / ("runs" if quick else "results") / "chaos.json"
        seconds = round(time.monotonic() - began)
        told = {"seed": seed, "quick": quick, "git_revision": revision, "machine": machine(), "seconds": seconds}
        write(path, {**told, "attacks": results})
        print(f"{n_findings} findings in {seconds} s, in {path.relative_to(ROOT)}")
    if n_missing:
        print(f"The time was too short for {n_missing} cases: give more --minutes.")
    sys.exit(1 if n_findings or n_missing else 0)


def processor_seconds() -> float:
    """Returns the processor time of this process and of all below it that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def write(path: Path, record: dict[str, object]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped; nothing is written."))  # after what has begun is ended
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `&` lets a program ignore this one, nohup the next one,
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and what it starts ignores them too
    try:
        tyro.cli(chaos)
    except KeyboardInterrupt:
        sys.exit("Stopped by Ctrl-C; nothing is written.")
