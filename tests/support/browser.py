"""A real Chromium for tests and benchmarks of the labelling page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WHY_NOT = "needs Chromium (package chromium)"
POLL_MS = 10
WAIT_MS = 120_000  # on a machine that does other things
SLOW_KEYS = ("u", "Backspace")  # done when the server has answered; pressed twice, they would be done twice
LOADED = "document.querySelector('#stage').dataset.pair"


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser that the system has; PROGRAM says whether there is one."""
    with sync_playwright() as playwright:
        # Without a sandbox: it opens our own page only, and tests often run as root, where Chromium has none.
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def shown(page: Page) -> str:
    """The id of the comparison on screen; empty while there is none."""
    return str(page.evaluate(LOADED))


def wait_for_js(page: Page, expression: str, arg: object = None) -> None:
    """Waits until a JavaScript expression holds; playwright's own way needs eval, which the page forbids.

    Looks are counted, not seconds: a machine may stop us for minutes. Raises AssertionError after too many.
    """
    for _ in range(WAIT_MS // POLL_MS):
        if page.evaluate(expression, arg):
            return
        page.wait_for_timeout(POLL_MS)
    raise AssertionError(expression)


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
    before, looks = wait_for_pair(page), round(1000 * patience / POLL_MS)
    for look in range(WAIT_MS // POLL_MS):
        if shown(page) != before:
            return
        if look % looks == 0:
            act()
        else:
            page.wait_for_timeout(POLL_MS)
    raise AssertionError("it does nothing")
