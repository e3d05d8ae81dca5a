"""How soon the next pair is on screen beside a run that trains, and how fast that run trains meanwhile."""

from __future__ import annotations

import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from playwright.sync_api import Browser, Page, ViewportSize

from benchmarks import ROOT
from benchmarks.speed.whole_runs import Row, policy_rows, started_run
from drlhp.label_server.server import Address
from tests.support.browser import chromium, press, wait_for_js, wait_for_pair
from tests.support.labelling import Client

PONG = "PongNoFrameskip-v4"
VIEW: ViewportSize = {"width": 1400, "height": 900}
KEYS = ("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown")
SITTINGS = 10
# Where somebody has the page open: nowhere, on another machine (where requests alone reach this one), or here, where
# the browser works on the same cores; also on a break, as the page is when nobody has touched it for some minutes.
BESIDE = ("training", "training, page open elsewhere", "training, page open here", "training, page here on a break")
NOWHERE, ELSEWHERE, HERE, RESTING = BESIDE
THINK_SECONDS = 4.0  # from one answer to the next: the paper's labellers took 3 to 5 (section 3.1)
FEWEST_LABELS = ("--n_initial_prefs", "25")
FIRST_RUN = ("train_policy_with_preferences", PONG, "--ui", "web", "--no_tour")
# Its labels come more slowly than pairs are due, and nothing but training uses the cores.
TRAINING = (
    *(*FIRST_RUN, *FEWEST_LABELS, "--n_initial_epochs", "1"),
    *("--label_schedule", "constant", "--eval_interval_million_timesteps", "0"),
)
LISTEN = """
window.gaps = [];
for (const name of ["pair-drawn", "pair-moving"])
  document.addEventListener(name, (event) => window.gaps.push([name, event.detail.ms]));
"""


def percentile(values: list[float], share: float) -> float:
    return float(np.percentile(values, 100 * share))


class Sittings:
    """Somebody labels beside a run that trains, sitting after sitting, and between them the run trains otherwise."""

    def __init__(self, run_dir: Path, link: str, browser: Browser, n_answers: int) -> None:
        """`n_answers`: of one sitting."""
        self.run_dir, self.link, self.browser, self.n_answers = run_dir, link, browser, n_answers
        self.gaps: list[tuple[str, float]] = []  # what the page measured, and the milliseconds
        self.speeds: dict[str, list[float]] = {name: [] for name in BESIDE}

    @contextlib.contextmanager
    def page(self) -> Iterator[Page]:
        """The page in a tab of its own."""
        page = self.browser.new_page(viewport=VIEW)
        page.add_init_script(LISTEN)
        page.goto(f"{self.link}&n=me")
        wait_for_pair(page)
        yield page
        page.close()

    def nowhere(self) -> None:
        with speed_of(self.run_dir, self.speeds[NOWHERE]):
            time.sleep(self.n_answers * THINK_SECONDS)

    def elsewhere(self) -> None:
        with speed_of(self.run_dir, self.speeds[ELSEWHERE]):
            label_elsewhere(self.link, self.n_answers)

    def here(self) -> None:
        with self.page() as tab:
            with speed_of(self.run_dir, self.speeds[HERE]):
                for i in range(self.n_answers):
                    tab.wait_for_timeout(1000 * THINK_SECONDS)
                    press(tab, KEYS[i % 2])
                    wait_for_pair(tab)
            wait_for_js(tab, f"gaps.filter(([name]) => name === 'pair-moving').length >= {self.n_answers}")
            self.gaps += tab.evaluate("gaps")

    def resting(self) -> None:
        with self.page() as tab:
            tab.keyboard.press("p")
            tab.wait_for_selector("#resume")
            with speed_of(self.run_dir, self.speeds[RESTING]):
                tab.wait_for_timeout(1000 * self.n_answers * THINK_SECONDS)


def gap(n: int) -> dict[str, Any]:
    """Returns milliseconds from an answer to the next pair's first frame on screen, and to its second.

    Somebody gives n answers in some sittings beside the training. For as long, training goes on with the
    page open nowhere, with the page open on another machine, and with the page on a break.
    """
    n_sittings = min(SITTINGS, n)
    with contextlib.ExitStack() as stack:
        store = labelled_store(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        process, run_dir = stack.enter_context(started_run(*TRAINING, "--load_prefs_dir", str(store)))
        browser = stack.enter_context(chromium())
        sittings = Sittings(run_dir, link_of(process, run_dir), browser, n // n_sittings)
        while len(policy_rows(run_dir)) < 5:  # it trains
            assert process.poll() is None, "the training has ended"
            time.sleep(0.5)
        turns = [sittings.nowhere, sittings.elsewhere, sittings.here, sittings.resting]
        for i in range(n_sittings):
            for turn in turns[i % 4 :] + turns[: i % 4]:  # each is as often early as late
                turn()
    result: dict[str, Any] = {"answers": sittings.n_answers * n_sittings}
    for name, values in sittings.speeds.items():
        result[name] = {"agent_steps_per_second": statistics.median(values), "of": values}
    for name in ("pair-drawn", "pair-moving"):
        values = [ms for kind, ms in sittings.gaps if kind == name]
        result[name] = {"median_ms": statistics.median(values), "p95_ms": percentile(values, 0.95)}
    return result


def labelled_store(folder: Path) -> Path:
    """A run folder with as many labels as training needs to begin."""
    flags = ("gather_initial_prefs", PONG, "--synthetic_prefs", *FEWEST_LABELS, "--max_segs", "100")
    place = ("--log_dir", str(folder), "--run_name", "store")
    subprocess.run([sys.executable, str(ROOT / "run.py"), *flags, *place], check=True, stdout=subprocess.DEVNULL)
    return folder / "store"


def link_of(process: subprocess.Popen[bytes], run_dir: Path) -> str:
    """The page's address, as soon as the run has printed it."""
    output = run_dir.parent / "output"
    while not (link := re.search(r"http://\S+", output.read_text())):
        assert process.poll() is None, "the run has ended"
        time.sleep(0.05)
    return link[0]


def label_elsewhere(link: str, n: int) -> None:
    """Gives n answers by the requests that a page makes: it follows the run's news, and has some pairs ahead."""
    client, news = client_at(link), client_at(link)
    news.connection.request("GET", "/api/events", headers={"Cookie": news.cookie})
    with news.connection.getresponse():
        fetched: set[str] = set()
        for _ in range(n):
            while not (leases := client.next(4)):
                time.sleep(0.1)
            for segment in {lease[side] for lease in leases for side in ("left", "right")} - fetched:
                client.request("GET", f"/api/clip/{segment}")
                fetched.add(segment)
            time.sleep(THINK_SECONDS)
            status, _ = client.answer(leases[0], "left", uuid.uuid4().hex)
            assert status == 200
    client.post("/api/release", {"tokens": [lease["token"] for lease in leases[1:]]})


def client_at(link: str) -> Client:
    """Somebody who has opened the link."""
    there = urlsplit(link)
    client = Client(Address(str(there.hostname), int(there.port or 0)))
    status, reply = client.post("/api/login", {"token": there.fragment.removeprefix("t="), "labeller": "me"})
    assert status == 200, reply
    return client


@contextlib.contextmanager
def speed_of(run_dir: Path, speeds: list[float]) -> Iterator[None]:
    """Adds the agent steps per second of the run in the block, from the first row that is written in it.

    The row before that is from when the page was being opened, which takes more of the processor than having it open.
    """
    before = next_row(run_dir, policy_rows(run_dir)[-1])
    yield
    after = next_row(run_dir, before)
    speeds.append((after.steps - before.steps) / (after.seconds - before.seconds))


def next_row(run_dir: Path, last: Row) -> Row:
    """The newest row, as soon as there is one after `last`; the run writes one about once a second."""
    while (row := policy_rows(run_dir)[-1]).seconds <= last.seconds:
        time.sleep(0.1)
    return row
