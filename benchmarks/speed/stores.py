"""Measures the store in a file and in PostgreSQL side by side, on a server of its own that syncs to the disk.

python -m benchmarks.speed.stores            # all four, to results/stores.json
python -m benchmarks.speed.stores --quick    # a short trial, to runs/stores.json

claim: milliseconds for one labeller to claim a pair and answer it, in turns on both stores.
people: simulated labellers who think for a while, half at each of two label servers on one store; how long a claim and
an answer take, and whether an answer is lost or a pair is asked of two.
long: how long the next question and the page's status take in a store of many labels in PostgreSQL, and how long, and
how much memory, the trainer needs to begin with it.
resumed: how long a run with so many labels in PostgreSQL takes to go on, from the command to the first new row of
progress.csv, and the memory of its largest process.

The result says which targets were met (`targets`). They are meant for a machine that does nothing else.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks import ROOT
from commands.run_folder import git_revision
from drlhp.data.comparison import Answer, Choice, Comparison
from drlhp.data.postgres import join
from drlhp.data.postgres_copy import make
from drlhp.label_server.status import status
from drlhp.labelling.answers import Submission
from drlhp.labelling.queue import LabelQueue
from drlhp.runtime.machine import machine
from drlhp.runtime.run_files import PROGRESS
from drlhp.runtime.turns import StopFlag
from drlhp.training.labels import LabelSet
from envs.registry import MOVING_DOT_ID
from pref_db import PrefDB
from reward_predictor import PredictorConfig
from tests.support.labelling import ENV_ID, STEPS, make_store, running, segment
from tests.support.postgres import KINDS, PostgresServer

TURNS = 10
SETTINGS = {"repeat_share": "0", "overlap_share": "0"}


def claim(server: PostgresServer, folder: Path, n: int) -> dict[str, Any]:
    """Milliseconds for a claim and its answer: the median of the turns' means, in each store."""
    with contextlib.ExitStack() as opened:
        queues, found = {}, {kind: list[float]() for kind in KINDS}
        for kind in KINDS:
            path = make_store(folder / kind, 2 * TURNS * n, SETTINGS, kind=kind, address=server.address())
            queues[kind] = LabelQueue(opened.enter_context(contextlib.closing(PrefDB.open(path))))
        for turn in range(2 * TURNS):
            kind = KINDS[(turn + turn // 2) % 2]
            start = time.perf_counter()
            for _ in range(n):
                (lease,) = queues[kind].claim("me")
                about = (uuid.uuid4().hex, lease.token, lease.comparison_id, "me")
                queues[kind].answers.add(Submission(*about, "left", time.time(), time.time()))
            found[kind].append(1e3 * (time.perf_counter() - start) / n)
    medians = {kind: statistics.median(values) for kind, values in found.items()}
    return {"ms": medians, "turns_ms": found, "speed_of_file": medians["sqlite"] / medians["postgres"]}


def people(server: PostgresServer, folder: Path, n_people: int, n_pairs: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of the requests of labellers who think about so many seconds, at two label servers."""
    one, other = folder / "one", folder / "other"
    make_store(one, n_pairs, SETTINGS, kind="postgres", address=server.address())
    join(other / "prefs.db", (one / "prefs.db").read_text())
    asked, acknowledged, took = list[str](), list[str](), {"next": list[float](), "answer": list[float]()}

    def label(client: Any, name: str) -> None:
        chance = random.Random(name)
        time.sleep(chance.uniform(0, seconds))
        while True:
            start = time.perf_counter()
            leases = client.next()
            took["next"].append(1e3 * (time.perf_counter() - start))
            if not leases:
                return
            asked.append(leases[0]["comparison_id"])
            time.sleep(chance.uniform(0.5, 1.5) * seconds)
            client_id, start = uuid.uuid4().hex, time.perf_counter()
            code, _ = client.answer(leases[0], "left", client_id)
            took["answer"].append(1e3 * (time.perf_counter() - start))
            if code == 200:
                acknowledged.append(client_id)

    with running(one) as first, running(other) as second:
        names = [f"p{number}" for number in range(n_people)]
        clients = [(first, second)[number % 2].client(name) for number, name in enumerate(names)]
        threads = [threading.Thread(target=label, args=person) for person in zip(clients, names, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with contextlib.closing(PrefDB.open(one / "prefs.db", read_only=True)) as db:
        stored = Counter(row.client_id for row in db.answers())
    return {
        "people": n_people,
        "pairs": n_pairs,
        "thinking_seconds": seconds,
        "p50_ms": {name: float(np.percentile(values, 50)) for name, values in took.items()},
        "p95_ms": {name: float(np.percentile(values, 95)) for name, values in took.items()},
        "lost": len(set(acknowledged) - set(stored)),
        "asked_twice": len(asked) - len(set(asked)),
        "unanswered": n_pairs - len(acknowledged),
    }


def long(server: PostgresServer, folder: Path, *sizes: int) -> list[dict[str, Any]]:
    """How questions and the trainer's start fare in stores of so many labels each."""
    return [_long(server, folder / str(n), n) for n in sizes]


def _long(server: PostgresServer, folder: Path, n_labels: int) -> dict[str, Any]:
    """Milliseconds of the next question, with a goal; seconds and megabytes until a trainer has its labels."""
    folder.mkdir()
    draft = folder / "draft.db"
    segments = [segment(seed) for seed in range(21)]  # those of the questions are there
    with contextlib.closing(PrefDB.create(draft, ENV_ID, STEPS)) as db:
        db.add_segments(segments)
        _add_labels(db, n_labels)
        queue = LabelQueue(db)
        queue.submit([Comparison(segments[i], segments[j], flip=False) for i in range(6) for j in range(i)])
        queue.notices.set_setting("goal", str(2 * n_labels))
    path = folder / "prefs.db"
    start = time.perf_counter()
    make(path, server.address(), draft)
    made = time.perf_counter() - start
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        started, grown = fresh.submit(_start, path).result()
    took = []
    with contextlib.closing(PrefDB.open(path)) as db:
        queue = LabelQueue(db)
        for number in range(12):
            start = time.perf_counter()
            leases = queue.claim(f"p{number}")
            took.append(1e3 * (time.perf_counter() - start))
            assert leases, "there is a question"
        start = time.perf_counter()
        status(queue, folder, time.time())
        status_took = 1e3 * (time.perf_counter() - start)
    return {
        "labels": n_labels,
        "copied_seconds": made,
        "trainer_start_seconds": started,
        "trainer_start_mb": grown,
        "next_ms": took,  # the first has to count all labels
        "next_median_ms": statistics.median(took),
        "status_ms": status_took,
    }


def resumed(server: PostgresServer, folder: Path, *sizes: int) -> list[dict[str, Any]]:
    """Seconds until a small run with so many labels goes on, and the megabytes of its largest process."""
    run, found = folder / "run", []
    quiet = ("--synthetic_prefs", "--label_passes", "1", "--eval_interval_million_timesteps", "0")
    labels = ("--n_initial_prefs", "20", "--max_prefs", "20", "--max_segs", "50")
    begin = ("train_policy_with_preferences", MOVING_DOT_ID, *quiet, *labels, "--run_name", "run", "--log_dir", folder)
    _carry_out([*begin, "--million_timesteps", "0.001"], run)
    for n_labels in sizes:
        grown = shutil.copytree(run, folder / str(n_labels))
        path, draft = grown / "prefs.db", folder / f"{n_labels}.db"
        path.rename(draft)
        with contextlib.closing(PrefDB.open(draft)) as db:
            _add_labels(db, n_labels)
        make(path, server.address(), draft)
        config = json.loads((grown / "config.json").read_text())
        config["config"]["store"] = path.read_text().strip()
        (grown / "config.json").write_text(json.dumps(config))
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:  # of whose children the largest counts
            words: list[str | Path] = ["--resume", grown, "--million_timesteps", "0.0011"]
            seconds, megabytes = fresh.submit(_carry_out, words, grown).result()
        found.append({"labels": n_labels, "seconds": seconds, "largest_mb": megabytes})
    return found


def _carry_out(words: Sequence[str | Path], run: Path) -> tuple[float, float]:
    """Carries out a command of run.py on a run folder.

    Returns:
        The seconds until progress.csv has a new row, and the most megabytes of memory that any child of this process
        had so far.
    """
    start, seconds, before = time.perf_counter(), math.nan, len(PROGRESS.read(run))
    with subprocess.Popen([sys.executable, ROOT / "run.py", *words], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if math.isnan(seconds) and len(PROGRESS.read(run)) > before:
                seconds = time.perf_counter() - start
            time.sleep(0.01)
    assert process.returncode == 0, words
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3


def _add_labels(db: PrefDB, n: int) -> None:
    """Adds so many labels of pairs of the segments that are there."""
    known = db.segment_ids()
    k = len(known)
    pairs = ((known[i % k], known[(i + 1 + i // k % (k - 1)) % k]) for i in range(n))
    db.add_exported(_answer(i, a, b) for i, (a, b) in enumerate(pairs))


def _start(path: Path) -> tuple[float, float]:
    """Opens a store, counts its labels, and reads those that a trainer keeps; returns seconds and megabytes."""
    start, before = time.perf_counter(), _resident()
    with contextlib.closing(PrefDB.open(path)) as db:
        db.n_labels()
        labels = LabelSet(db, StopFlag(None), PredictorConfig(), np.random.default_rng(0))
        labels.receive()
        return time.perf_counter() - start, (_resident() - before) / 1e6


def _resident() -> int:
    """Returns the bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _answer(number: int, a: str, b: str) -> Answer:
    return Answer(
        client_id=f"c{number}",
        comparison_id=f"{number:064x}",
        a=a,
        b=b,
        choice=Choice.A,
        flip=False,
        teacher="person",
        shown_at=1.0,
        answered_at=2.0 + number,
        labeller=f"p{number % 50}",
        watched_ms=None,
        replays=0,
        speed=1.0,
        late=False,
        flag=False,
        note="",
    )


def met(found: dict[str, Any]) -> dict[str, bool]:
    """Whether each target was met."""
    people, fewest, most = found["people"], found["long"][0], found["long"][-1]
    first, last = found["resumed"][0], found["resumed"][-1]
    grown = most["trainer_start_mb"] / fewest["trainer_start_mb"]
    return {
        "claim: at least 0.4 times as fast as in a file": found["claim"]["speed_of_file"] >= 0.4,
        "people: 95 of 100 requests within 200 ms": max(people["p95_ms"].values()) < 200,
        "people: no answer lost, no pair asked twice": people["lost"] + people["asked_twice"] == 0,
        "long: the next question within 20 ms": most["next_median_ms"] < 20,
        "long: the trainer begins within 10 s": most["trainer_start_seconds"] < 10,
        "long: with at most 1.5 times the memory that the fewest labels take": grown <= 1.5,
        "resumed: the run goes on within 10 s": last["seconds"] < 10,
        "resumed: with at most 1.5 times the memory that the fewest labels take": (
            last["largest_mb"] <= 1.5 * first["largest_mb"]
        ),
    }


def main(quick: bool = False) -> None:
    """Measures all four.

    Args:
        quick: small numbers, and the result in runs/ rather than results/.
    """
    sizes: tuple[tuple[Any, ...], ...] = (
        ((3,), (10, 30, 0.2), (1000, 4000), (1000,))
        if quick
        else ((20,), (200, 2000, 4.0), (10_000, 1_000_000), (10_000, 1_000_000))
    )
    found: dict[str, Any] = {}
    server = PostgresServer(durable=True)
    try:
        parts: dict[str, Callable[..., Any]] = {"claim": claim, "people": people, "long": long, "resumed": resumed}
        for (name, part), size in zip(parts.items(), sizes, strict=True):
            with tempfile.TemporaryDirectory(dir=ROOT) as folder:
                found[name] = part(server, Path(folder), *size)
            print(json.dumps({name: found[name]}), flush=True)
    finally:
        server.close()
    found["targets"] = met(found)
    print(json.dumps(found["targets"], indent=2), flush=True)
    output = ROOT / ("runs" if quick else "results") / "stores.json"
    output.parent.mkdir(exist_ok=True)
    about = {"command": "python -m benchmarks.speed.stores", "git_revision": git_revision(), "machine": machine()}
    output.write_text(json.dumps({**found, **about}, indent=2) + "\n")


if __name__ == "__main__":
    tyro.cli(main)
