"""Attacks the program from all sides, and writes what it found; Linux only.

python -m benchmarks.chaos                        # all attacks, 20 minutes at most, to results/chaos.json
python -m benchmarks.chaos --quick                # a few cases of each, to runs/chaos.json
python -m benchmarks.chaos routes --seed 3 --case 17   # one case again, as a finding names it

A finding is a lost label, a label trained on twice, a hang, a traceback, or a process that is left over. All that an
attack leaves to chance follows from the seed, its name and the case's number; what the system does at that moment
does not. The exit status is 1 if anything was found.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Literal, NamedTuple

import torch
import tyro

from benchmarks import ROOT
from benchmarks.chaos import command_lines, routes, server_kills, signals, stored_files
from benchmarks.chaos.cases import NOT_BEGUN, Body, Outcome, carry_out
from benchmarks.chaos.full_disks import FullDisks
from commands.run_folder import git_revision
from drlhp.runtime.machine import machine

SPARE = 24  # blows, for processes that end by themselves just before
MINUTES = 18.0  # after which no case begins
Name = Literal["routes", "server_kills", "full_disks", "stored_files", "parser", "signals", "real_lines"]


class Prepared(NamedTuple):
    """An attack that is ready: its cases, and how many there are."""

    body: Body
    n: int


class Attack(NamedTuple):
    """An attack: how it is prepared, how many cases --quick carries out, and the seconds that a case may take."""

    prepare: Callable[[], contextlib.AbstractContextManager[Prepared]]
    quick: int
    seconds: float


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
    "routes": Attack(lambda: ready(routes.routes, 10_000 // routes.REQUESTS), 2, 120),
    "server_kills": Attack(lambda: ready(server_kills.server_kills, 1600 // server_kills.ANSWERS), 1, 300),
    "full_disks": Attack(full, 4, 240),
    "stored_files": Attack(damaged, 8, 120),
    "parser": Attack(lambda: ready(command_lines.parser, 10_000 // command_lines.LINES), 1, 300),
    "signals": Attack(lambda: ready(signals.signals, -(-(200 + SPARE) // signals.BLOWS)), 1, 1200),
    "real_lines": Attack(lambda: ready(command_lines.real, 300), 2, 300),
}


def attack(
    name: Name, seed: int, *, quick: bool = False, case: int | None = None, until: float = float("inf")
) -> Outcome:
    """Carries out an attack; returns what it counted and found."""
    found = ATTACKS[name]
    with found.prepare() as prepared:
        # A quick attack takes cases from everywhere, because neighbours are alike.
        step = max(1, prepared.n // found.quick) if quick else 1
        numbers = range(0, prepared.n, step) if case is None else [case]
        return carry_out(name, prepared.body, seed, numbers, seconds=found.seconds, until=until)


def chaos(
    attacks: tyro.conf.Positional[tuple[Name, ...]] = (), seed: int = 0, quick: bool = False, case: int | None = None
) -> None:
    """Attacks the program, and writes what was counted and found.

    Args:
        attacks: names of the attacks; by default all.
        seed: decides all that the attacks leave to chance.
        quick: a few cases of each, and the result in runs/ rather than results/.
        case: the number of a single case; its result is only printed.
    """
    torch.set_num_threads(1)  # A case runs in a forked child, and there is one on each core.
    began, results = time.monotonic(), dict[str, object]()
    revision = git_revision()  # before a result of ours changes the tree
    n_findings = 0
    for name in attacks or tuple(ATTACKS):
        start = time.monotonic()
        outcome = attack(name, seed, quick=quick, case=case, until=began + 60 * MINUTES)
        results[name] = {
            "seconds": round(time.monotonic() - start),
            "counts": dict(sorted(outcome.counts.items())),
            "findings": [asdict(finding) for finding in outcome.findings],
        }
        n_findings += len(outcome.findings)
        missing = f", {n} cases {NOT_BEGUN}" if (n := outcome.counts[NOT_BEGUN]) else ""
        print(f"{name}: {outcome.counts['cases']} cases, {len(outcome.findings)} findings{missing}", flush=True)
        for finding in outcome.findings if case is not None else ():
            print(f"  {finding.did}\n    {finding.seen}", flush=True)
    if case is None:
        path = ROOT / ("runs" if quick else "results") / "chaos.json"
        write(path, {"seed": seed, "quick": quick, "git_revision": revision, "machine": machine(), "attacks": results})
        print(f"{n_findings} findings, in {path.relative_to(ROOT)}")
    sys.exit(1 if n_findings else 0)


def write(path: Path, record: dict[str, object]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    try:
        tyro.cli(chaos)
    except KeyboardInterrupt:
        sys.exit("Stopped by Ctrl-C; nothing is written.")
