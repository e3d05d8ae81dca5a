"""Measures the labelling page and its server: how soon the next pair is there, and whether answers are ever lost.

python -m benchmarks.speed.labelling            # all four, to results/labelling.json and docs/
python -m benchmarks.speed.labelling --quick    # a short trial, to runs/labelling.json

gap: beside a run on Pong whose page it is and that trains on the same cores, from the key press to the next pair on
screen, in Chromium; and how fast the run trains with the page open nowhere, on another machine, here, and here on a
break, in turns.
trouble: a scripted person labels in two tabs, with reloads, double presses, lost connections (one of them for a minute)
and a server that is killed (kill -9) every minute; every answer that the page took has to be in the store, once.
people: eight labellers at once over HTTP; no pair may be asked of two.
first: the seconds that somebody waits who uses it for the first time, from the command to the first answer.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from benchmarks import ROOT
from benchmarks.pages import write_between
from benchmarks.speed.labelling_gap import BESIDE, FIRST_RUN, KEYS, NOWHERE, VIEW, gap, link_of, percentile
from benchmarks.speed.whole_runs import started_run
from commands.run_folder import git_revision, short_revision
from drlhp.runtime.machine import machine
from pref_db import PrefDB
from tests.support.browser import PROGRAM, WAIT_MS, WHY_NOT, chromium, press, shown, wait_for_js, wait_for_pair
from tests.support.labelling import Server, make_store, running

HEAD = ("what", "measured", "commit")
N_PEOPLE = 8
READ = ("history", "status", "curves", "quality")  # what a page reads beside the pairs, here after each tenth answer
# How often the scripted person meets with trouble, per answer.
RELOAD, DOUBLE, OTHER_TAB, OFFLINE = 0.03, 0.05, 0.05, 0.02
GUARD_MS = 400  # the page itself takes a press so soon after a new pair for one that was meant for the last
MINUTE = 60.0  # seconds between kills of the server, and of the long time without a connection
# Tells of each answer at the moment in which the page puts it into its outbox.
TELL = """
const setItem = Storage.prototype.setItem;
Storage.prototype.setItem = function (key, value) {
  if (key.startsWith("outbox/")) console.log("took " + JSON.parse(value).body.client_id);
  return setItem.call(this, key, value);
};
"""


class Trouble:
    """A person who answers in two tabs while things go wrong.

    Args:
        minute: seconds between kills of the server.
    """

    def __init__(self, server: Server, browser: Any, seed: int, minute: float) -> None:
        self.server, self.rng, self.minute = server, random.Random(seed), minute
        self.kill_at = time.monotonic() + minute
        self.context = browser.new_context(viewport=VIEW)
        self.context.add_init_script(TELL)
        self.took: set[str] = set()  # ids of the answers that the page has taken
        self.counts: Counter[str] = Counter()
        self.tabs = [self.open(server.link), self.open(f"http://{server.address.host}:{server.address.port}/")]
        self.tab, self.offline = self.tabs[0], 0

    def open(self, url: str) -> Any:
        page = self.context.new_page()
        page.set_default_timeout(WAIT_MS)  # on a machine that does other things
        page.on("console", lambda message: self.hear(message.text))
        page.goto(url)
        wait_for_pair(page)
        return page

    def hear(self, text: str) -> None:
        if text.startswith("took "):
            self.took.add(text[5:])

    def happens(self, name: str, share: float) -> bool:
        happens = self.rng.random() < share
        self.counts[name] += happens
        return happens

    def step(self) -> None:
        """One answer, perhaps with some trouble."""
        if self.offline:
            self.offline -= 1
            if not self.offline:
                self.context.set_offline(False)
        elif self.happens("offline periods", OFFLINE):
            self.context.set_offline(True)
            self.offline = 3
        elif self.happens("page reloads", RELOAD):
            self.tab.reload()
        self.kill_if_due()
        if self.happens("changes of tab", OTHER_TAB):
            self.tab = self.tabs[self.tab is self.tabs[0]]
            self.tab.bring_to_front()
        if self.offline and not shown(self.tab):
            self.offline = 0  # the pairs that were fetched are answered: wait for others
            self.context.set_offline(False)
        wait_for_pair(self.tab)
        key = self.rng.choice(KEYS)
        if self.rng.random() < DOUBLE:
            self.tab.wait_for_timeout(GUARD_MS)  # or neither would count
            before, down = len(self.took), f"dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}))"
            self.tab.evaluate(f"{down}; {down}")
            taken = len(self.took) - before
            self.counts["double presses" if taken == 1 else f"double presses taken {taken} times"] += 1
        press_if_pair(self.tab, key)

    def kill_if_due(self) -> None:
        if time.monotonic() >= self.kill_at:
            self.kill_at = time.monotonic() + self.minute
            self.counts["server kills"] += 1
            self.server.kill()
            self.server.start()

    def long_offline(self, seconds: float) -> None:
        """Loses the connection for that long, answers all pairs that were fetched, and stays without a pair."""
        self.offline = 0
        self.context.set_offline(True)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            press_if_pair(self.tab, self.rng.choice(KEYS))
            self.kill_if_due()
            self.tab.wait_for_timeout(100)
        self.context.set_offline(False)
        self.counts["seconds offline at a stretch"] += round(seconds)


def press_if_pair(page: Any, key: str) -> None:
    """Answers the pair on screen, unless there is none at the moment."""
    if shown(page):
        press(page, key)


def trouble(n: int, minute: float = MINUTE) -> dict[str, Any]:
    """A scripted person gives n answers; how many the page took, the store has, and has twice.

    The server is killed once in so many seconds, and half-way the connection is lost for as long.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_store(folder, n)
        with running(folder) as server, chromium() as browser:
            person = Trouble(server, browser, seed=0, minute=minute)
            start = time.monotonic()
            while len(person.took) < n // 2:
                person.step()
            person.long_offline(minute)
            while len(person.took) < n - len(KEYS):
                person.step()
            person.context.set_offline(False)
            for tab in person.tabs:  # the last pairs, which may be in either tab
                while not tab.is_visible("#waiting-reason:has-text('answered')") and n > len(person.took):
                    press_if_pair(tab, KEYS[0])
                    tab.wait_for_timeout(100)
            for tab in person.tabs:
                wait_for_js(tab, "Object.keys(localStorage).filter((key) => key.startsWith('outbox/')).length === 0")
            seconds = time.monotonic() - start
            person.context.close()
        with contextlib.closing(PrefDB.open(folder / "prefs.db", read_only=True)) as db:
            answers = list(db.answers())
    stored = {answer.client_id for answer in answers}
    twice = len(answers) - len({answer.comparison_id for answer in answers})
    lost = len(person.took - stored)
    result = {"answers_taken": len(person.took), "stored": len(stored), "lost": lost, "twice": twice}
    return {**result, "seconds": seconds, **person.counts}


def people(n: int) -> dict[str, Any]:
    """Eight labellers share n comparisons over HTTP, each with a few pairs ahead; milliseconds of every request."""
    times: dict[str, list[float]] = defaultdict(list)
    asked: list[tuple[str, str]] = []

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_store(folder, n)
        with running(folder) as server:

            def timed(route: str, call: Any, *arguments: Any, **fields: Any) -> Any:
                start = time.perf_counter()
                result = call(*arguments, **fields)
                times[route].append(1000 * (time.perf_counter() - start))
                return result

            def label(labeller: str) -> None:
                client, rng = server.client(labeller), random.Random(labeller)
                seen: set[str] = set()
                while leases := timed("next", client.next, 4):
                    for lease in leases:
                        if lease["comparison_id"] not in seen:
                            seen.add(lease["comparison_id"])
                            asked.append((labeller, lease["comparison_id"]))
                    lease = leases[0]
                    for side in ("left", "right"):
                        timed("clip", client.request, "GET", f"/api/clip/{lease[side]}")
                    choice = rng.choice(("left", "right", "equal", "incomparable"))
                    status, _ = timed("answer", client.answer, lease, choice, uuid.uuid4().hex)
                    assert status == 200
                    timed("renew", client.post, "/api/renew", {"tokens": [lease["token"] for lease in leases[1:]]})
                    for route in READ if len(seen) % 10 == 0 else ():
                        timed(route, client.request, "GET", f"/api/{route}")

            server.client("first").get("/api/status")  # it is up
            start = time.monotonic()
            threads = [threading.Thread(target=label, args=(f"labeller{i}",)) for i in range(N_PEOPLE)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds = time.monotonic() - start
        with contextlib.closing(PrefDB.open(folder / "prefs.db", read_only=True)) as db:
            stored = db.n_answers()
    by_pair = Counter(comparison for _, comparison in asked)
    result: dict[str, Any] = {"comparisons": n, "answers": stored, "seconds": seconds}
    result["double_asked"] = sum(count > 1 for count in by_pair.values())
    for route, values in times.items():
        result[route] = {"median_ms": statistics.median(values), "p95_ms": percentile(values, 0.95), "n": len(values)}
    return result


def first() -> dict[str, Any]:
    """Seconds from the command of a first run to its link, to the first pair in Chromium, and to a stored answer."""
    began, after = time.monotonic(), dict[str, float]()
    with chromium() as browser, started_run(*FIRST_RUN) as (process, run_dir):
        link = link_of(process, run_dir)
        after["link"] = time.monotonic() - began
        page = browser.new_page(viewport=VIEW)
        page.goto(link)
        wait_for_pair(page)
        after["pair"] = time.monotonic() - began
        press(page, "ArrowLeft")
        with contextlib.closing(PrefDB.open(run_dir / "prefs.db", read_only=True)) as db:
            while not db.n_labels():
                page.wait_for_timeout(10)
        after["answer"] = time.monotonic() - began
    return {"command": " ".join(FIRST_RUN), "seconds_until": after}


def rows(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The table's lines, for those parts that were measured: what, the figure, at which commit."""
    lines: list[tuple[str, str, str]] = []

    def add(found: dict[str, Any], what: str, measured: str) -> None:
        lines.append((what, measured, short_revision(found["git_revision"])))

    if found := result.get("gap"):
        for name, title in (("pair-drawn", "next pair on screen"), ("pair-moving", "next pair moving")):
            measured = f"{found[name]['median_ms']:.0f} ms, p95 {found[name]['p95_ms']:.0f} ms"
            add(found, f"From answer to {title}", measured)
        for name in BESIDE[1:]:
            # Turn by turn, for from one to the next the machine itself differs by more.
            shares = [beside / alone for beside, alone in zip(found[name]["of"], found[NOWHERE]["of"], strict=True)]
            low, middle, high = np.percentile(shares, (25, 50, 75))
            measured = f"{middle:.0%}, half of {len(shares)} turns {low:.0%} to {high:.0%}"
            add(found, f"{name.capitalize()}: share of its speed without the page", measured)
    if found := result.get("trouble"):
        happened = ", ".join(f"{value} {name}" for name, value in found.items() if " " in name)
        add(found, f"Answers that the page took, with {happened}", f"{found['answers_taken']}")
        add(found, "Stored, lost, twice", f"{found['stored']}, {found['lost']}, {found['twice']}")
    if found := result.get("people"):
        measured = f"{found['answers']}, {found['double_asked']}"
        add(found, f"Pairs that {N_PEOPLE} people answered, asked of two", measured)
        for route in ("next", "answer", "clip", "renew", *READ):
            if times := found.get(route):
                measured = f"{times['median_ms']:.1f} ms, p95 {times['p95_ms']:.1f} ms"
                add(found, f"Request {route}", measured)
    if found := result.get("first"):
        seconds = ", ".join(f"{name} {value:.0f} s" for name, value in found["seconds_until"].items())
        add(found, f"From `run.py {found['command']}` to", seconds)
    return lines


def labelling(
    only: tuple[str, ...] = (), answers: int = 1000, presses: int = 60, comparisons: int = 1000, quick: bool = False
) -> None:
    """Measures the labelling page.

    Args:
        only: names of the parts to measure (gap, trouble, people, first), the others are left as they are; by default
            all.
        answers: of the scripted person.
        presses: after which the gap is measured, beside a training.
        comparisons: that eight people share.
        quick: small numbers, and the result in runs/ rather than results/.
    """
    if PROGRAM is None and set(only) != {"people"}:
        sys.exit(f"labelling.py: it {WHY_NOT}")
    if quick:
        answers, presses, comparisons = 40, 5, 40
    folder = ROOT / ("runs" if quick else "results")
    folder.mkdir(exist_ok=True)
    path = folder / "labelling.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    revision = git_revision()  # before a result of ours changes the tree
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "gap": lambda: gap(presses),
        "trouble": lambda: trouble(answers, MINUTE / 4 if quick else MINUTE),
        "people": lambda: people(comparisons),
        "first": first,
    }
    for name, measure in measures.items():
        if not only or name in only:
            result[name] = {**measure(), "git_revision": revision, "machine": machine()}
            path.write_text(json.dumps(result, indent=2) + "\n")
    table = Table(*HEAD)
    for row in rows(result):
        table.add_row(*row)
    Console().print(table)
    if not quick:
        lines = [" | ".join(row) for row in (HEAD, ("---",) * len(HEAD), *rows(result))]
        write_between("labelling", "\n".join(f"| {line} |" for line in lines))


if __name__ == "__main__":
    tyro.cli(labelling)
