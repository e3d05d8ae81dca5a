"""A real Chromium for tests and benchmarks of the labelling page."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright

from drlhp.labelling.answers import HistoryRow
from drlhp.labelling.queue import LabelQueue
from pref_db import PrefDB
from tests.support.labelling import Server

# The first one is Chromium without what only windows need: a page takes 40 % less processor time.
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PROGRAM = next(filter(None, map(shutil.which, PROGRAMS)), None)
WHY_NOT = "needs Chromium (package chromium-headless-shell)"
NEEDS_BROWSER = [pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT), pytest.mark.slow]
POLL_MS = 10
WAIT_MS = 120_000  # so long, because the machine may be busy
SLOW_KEYS = ("u", "Backspace")  # they take effect when the server answers, and a second press would undo twice
LOADED = "document.querySelector('#stage').dataset.pair"
WIDE = {"width": 1400, "height": 900}
PHONE = {"width": 390, "height": 844}
LOOKS_AT_ONCE = 100
# Whether an expression, or a function of one argument, holds now or at one of the next looks.
HOLDS_SOON = """([arg, looks, pause]) => new Promise((done, fail) => {{
  const look = async () => {{
    try {{
      const found = ({expression}), holds = await (typeof found === "function" ? found(arg) : found);
      holds || --looks <= 0 ? done(Boolean(holds)) : setTimeout(look, pause);
    }} catch (error) {{
      fail(error);
    }}
  }};
  look();
}})"""
LOADED_AHEAD = "performance.getEntriesByType('resource').filter(e => e.name.includes('/clip/')).length >= 8"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Starts the system's Chromium; PROGRAM is None if there is none."""
    with sync_playwright() as playwright:
        # Without a sandbox, because tests often run as root, and Chromium has none then. It opens our own page only.
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Starts one browser for a file. Not for the session: its event loop would forbid other tests one of their own."""
    with chromium() as found:
        yield found


def shown(page: Page) -> str:
    """Returns the id of the comparison on screen; empty while there is none."""
    return str(page.evaluate(LOADED))


def wait_for_js(page: Page, expression: str, arg: object = None) -> None:
    """Waits until a JavaScript expression holds; raises AssertionError after too many looks."""
    assert holds_soon(page, expression, arg), expression


def holds_soon(page: Page, expression: str, arg: object = None, wait_ms: int = WAIT_MS) -> bool:
    """Returns whether a JavaScript expression holds now or soon.

    Playwright's own way needs eval, which the page forbids. Counts looks instead of seconds, because a busy machine may
    stop the test for minutes. The page itself looks, as each question from outside goes through four processes.
    """
    for left in range(wait_ms // POLL_MS, 0, -LOOKS_AT_ONCE):
        try:
            if page.evaluate(HOLDS_SOON.format(expression=expression), [arg, min(left, LOOKS_AT_ONCE), POLL_MS]):
                return True
        except Error as error:
            if "context was destroyed" not in str(error):  # the page is being left for another
                raise
    return False


def wait_for_pair(page: Page) -> str:
    wait_for_js(page, LOADED)
    return shown(page)


def press(page: Page, key: str) -> None:
    """Presses a key until another pair is shown; in a pair's first moments answers are ignored."""
    _repeat_until_next(page, lambda: page.keyboard.press(key), 5.0 if key in SLOW_KEYS else 0.06)


def tap(page: Page, selector: str) -> None:
    """Taps a button until another pair is shown; on a slow machine a tap may last so long that it is none."""
    _repeat_until_next(page, lambda: page.tap(selector), 2.0)


def click(page: Page, selector: str) -> None:
    """Clicks a button until another pair is shown; in a pair's first moments answers are ignored."""
    _repeat_until_next(page, lambda: page.click(selector), 2.0)


def _repeat_until_next(page: Page, act: Callable[[], None], patience: float) -> None:
    before, patience_ms = wait_for_pair(page), round(1000 * patience)
    for _ in range(WAIT_MS // patience_ms):
        act()
        if holds_soon(page, f"(before) => {LOADED} !== before", before, patience_ms):
            return
    raise AssertionError("it does nothing")


@contextmanager
def opened(browser: Browser, server: Server, **options: Any) -> Iterator[Page]:
    """The page in a browser of its own, with a pair on screen; fails on any error in the page."""
    with arrived(browser, server, **options) as page:
        wait_for_pair(page)
        yield page


@contextmanager
def arrived(browser: Browser, server: Server, **options: Any) -> Iterator[Page]:
    """The page as a new browser opens it; fails on any error in the page."""
    context = browser.new_context(**{"viewport": WIDE, **options})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    home = (f"http://{server.address.host}:{server.address.port}/", "blob:")
    page.on("request", lambda request: None if request.url.startswith(home) else errors.append(request.url))
    page.goto(server.link)
    try:
        yield page
    finally:
        context.close()
    assert not errors, "it does not fail, and loads nothing from elsewhere"


def rows(server: Server) -> list[HistoryRow]:
    """Effective answers in the store, oldest first."""
    with closing(PrefDB.open(server.folder / "prefs.db", read_only=True)) as db:
        return LabelQueue(db).answers.history()[::-1]


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_MS / 1000
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def wait_for_answers(server: Server, n: int) -> list[HistoryRow]:
    wait_until(lambda: len(rows(server)) >= n, f"{n} answers")
    return rows(server)


def kept(page: Page) -> list[dict[str, Any]]:
    """What waits in the browser to be sent, in order."""
    entries = "Object.keys(localStorage).filter((key) => key.startsWith('outbox/')).sort()"
    return list(page.evaluate(f"{entries}.map((key) => JSON.parse(localStorage.getItem(key)))"))
