"""The labelling page in a real browser: the tour of a first-time labeller, with its practice pairs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from drlhp.label_server.config import PageConfig
from drlhp.labelling.queue import LabelQueue
from pref_db import PrefDB
from tests.support.browser import (
    NEEDS_BROWSER,
    PHONE,
    arrived,
    press,
    rows,
    shown,
    wait_for_answers,
    wait_for_js,
    wait_for_pair,
    wait_until,
)
from tests.support.labelling import Server, make_store, running

pytestmark = [*NEEDS_BROWSER, pytest.mark.xdist_group(__name__)]  # one browser for this file
TITLE = "document.querySelector('#tour .card:not([hidden]) b').textContent"
GUARD_MS = 300  # a little more than a pair's first moments, in which presses are ignored
POST = ("/api/answer", "/api/edit", "/api/next")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server of 12 pairs, with the settings that a run has by default."""
    make_store(tmp_path, 12, PageConfig().settings(goal=12, initial_labels=0))
    with running(tmp_path) as found:
        yield found


def act(page: Page, key: str, expected: str) -> None:
    """Presses a key when the card's first moments are over, and waits for the card that it brings."""
    page.wait_for_timeout(GUARD_MS)
    page.keyboard.press(key)
    page.wait_for_selector(f"#tour .card:has-text('{expected}')")


def test_a_first_time_labeller_practises_and_no_practice_answer_is_stored(browser: Browser, server: Server) -> None:
    with arrived(browser, server) as page:
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.url))
        page.wait_for_selector("#tour:has-text('Welcome')")
        assert page.is_visible("#stage") and page.is_disabled("[data-choice=left]")
        act(page, "Enter", "Practice 1 of 3")
        act(page, "r", "Most people would say left")
        act(page, "u", "Which clip is better?")
        act(page, "l", "Right: only the left ball")
        page.click("#tour-next")
        page.wait_for_selector("#tour .card:has-text('Practice 2 of 3')")
        page.wait_for_timeout(GUARD_MS)
        page.click("#right")
        page.wait_for_selector("#tour .card:has-text('Right: that ball gets closer')")
        for key in ("s", "f", "p", "g", "q", "t"):
            page.keyboard.press(key)
            assert page.evaluate(TITLE) == "Practice 2 of 3." and page.locator("dialog[open]").count() == 0
        act(page, "Enter", "Practice 3 of 3")
        act(page, "ArrowUp", "Right: both balls do the same")
        act(page, "Enter", "That is all")
        assert shown(page) == "" and not [url for url in sent if url.endswith(POST)]
        with contextlib.closing(PrefDB.open(server.folder / "prefs.db", read_only=True)) as db:
            assert LabelQueue(db).counts().leased == 0, "meanwhile others may have the pairs"
            assert db.read("SELECT count(*) FROM answer") == [(0,)]
        page.wait_for_timeout(GUARD_MS)
        page.keyboard.press("Enter")
        first = wait_for_pair(page)
        assert page.is_hidden("#tour") and page.locator(".pointed").count() == 0
        page.reload()
        assert wait_for_pair(page) == first and page.is_hidden("#tour"), "remembered"
        press(page, "l")
        (answer,) = wait_for_answers(server, 1)
    assert (answer.comparison_id, answer.choice) == (first, "left")
    with arrived(browser, server) as page:
        wait_for_pair(page)
        assert page.is_hidden("#tour"), "who has answers here is no first-time labeller, in any browser"


@pytest.mark.parametrize("how", ["button", "Escape"])
def test_the_tour_can_be_skipped_and_that_is_remembered_by_the_labellers_name(
    browser: Browser, server: Server, how: str
) -> None:
    guest = server.client().post("/api/invite", {"labeller": "Guest"})[1]["token"]
    with arrived(browser, server) as page:
        page.wait_for_selector("#tour")
        if how == "button":
            page.click("#tour-skip")
        else:
            page.keyboard.press(how)
        assert wait_for_pair(page) and page.is_hidden("#tour")
        page.reload()
        assert wait_for_pair(page) and page.is_hidden("#tour")
        page.keyboard.press("h")
        page.click("#rename")
        page.fill("#name", "Ann")
        with page.expect_event("load"):
            page.keyboard.press("Enter")
        assert wait_for_pair(page) and page.is_hidden("#tour"), "by another name it is the same person"
        with page.expect_event("load"):
            page.goto(f"{server.address.link(guest)}&n=Guest")
        page.wait_for_selector("#tour:has-text('Welcome')")
    assert rows(server) == []


def test_no_tour_leaves_it_out(browser: Browser, tmp_path: Path) -> None:
    make_store(tmp_path, 2, PageConfig(tour=False).settings(goal=2, initial_labels=0))
    with running(tmp_path) as server, arrived(browser, server) as page:
        assert wait_for_pair(page) and page.is_hidden("#tour")


def test_a_page_that_nobody_touches_goes_on_with_the_tour(browser: Browser, server: Server) -> None:
    with arrived(browser, server) as page:
        page.wait_for_selector("#tour")
        page.clock.install()
        page.mouse.move(5, 5)
        page.clock.fast_forward("03:10")
        assert page.is_visible("#tour") and page.is_hidden("#waiting")
        page.click("#tour-skip")
        assert wait_for_pair(page)


@pytest.mark.parametrize("on_its_side", [False, True])
def test_on_a_phone_the_whole_tour_is_in_reach(browser: Browser, server: Server, on_its_side: bool) -> None:
    size = {"width": PHONE["height"], "height": PHONE["width"]} if on_its_side else PHONE
    with arrived(browser, server, viewport=size, has_touch=True, is_mobile=True, device_scale_factor=2) as page:
        page.wait_for_selector("#tour")
        for tapped in ("#tour-next", *("[data-choice=equal]", "#tour-next") * 3, "#tour-next"):
            boxes = page.evaluate(
                "[...document.querySelectorAll('#tour, #tour button, #left, #right, .answer, #tools button')]"
                ".filter(e => e.offsetParent).map(e => e.getBoundingClientRect().toJSON())"
            )
            assert len(boxes) >= 6
            for box in boxes:
                assert box["left"] >= 0 and box["right"] <= size["width"] and box["bottom"] <= size["height"]
            assert "press ←" not in page.inner_text("#tour"), "a phone has no keys"
            page.wait_for_timeout(GUARD_MS)
            page.tap(tapped)
        assert wait_for_pair(page)
        wait_until(lambda: page.is_hidden("#tour"), "it has ended")
        wait_for_js(page, "document.activeElement === document.body")
    assert rows(server) == []
