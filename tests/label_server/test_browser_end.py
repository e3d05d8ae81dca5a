"""The labelling page in a real browser: what a labeller sees when nobody is asked any more."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from drlhp.label_server import stop
from drlhp.labelling.notices import Notices
from drlhp.labelling.queue import LabelQueue
from pref_db import PrefDB
from tests.support import ROOT
from tests.support.browser import (
    NEEDS_BROWSER,
    WAIT_MS,
    kept,
    opened,
    press,
    rows,
    shown,
    wait_for_answers,
    wait_for_pair,
    wait_until,
)
from tests.support.commands import DEADLINE
from tests.support.labelling import Server, make_store, pairs, running
from tests.support.preloaded import PreloadedPopen

pytestmark = [*NEEDS_BROWSER, pytest.mark.xdist_group(__name__)]  # one browser for this file
DONE = "#waiting-title:text-is('Done, thank you')"


def assert_done(page: Page, reason: str) -> None:
    page.wait_for_selector(DONE)
    page.wait_for_selector(f"#waiting-reason:has-text('{reason}')")
    assert page.title() == "Done, thank you"
    for part in ("#stage", "#banner", "#resume", "#sound-label"):
        assert page.is_hidden(part), part


def test_who_gives_the_last_label_is_thanked_and_may_still_take_it_back(browser: Browser, server: Server) -> None:
    with contextlib.closing(PrefDB.open(server.folder / "prefs.db")) as db:
        queue = LabelQueue(db)
        queue.notices.set_setting("goal", "2")
        with opened(browser, server) as page:
            press(page, "l")
            press(page, "Enter")  # is no label
            wait_for_answers(server, 2)
            last = wait_for_pair(page)
            press(page, "r")
            assert_done(page, "All 2 labels have been given. You may close this page.")
            wait_until(lambda: queue.counts().leased == 0, "the pairs behind it are given back")
            for key in ("s", "f", "p", "l", " "):
                page.keyboard.press(key)
            page.reload()
            assert_done(page, "All 2 labels have been given")
            page.keyboard.press("u")
            assert wait_for_pair(page) == last
            press(page, "e")
            assert_done(page, "All 2 labels have been given")
            queue.notices.set_setting("goal", "12")
            assert wait_for_pair(page), "it goes on by itself if more are wanted"
    assert [row.choice for row in rows(server)] == ["left", "incomparable", "equal"]


def test_whoever_has_a_pair_when_others_give_the_last_label_is_thanked_too(browser: Browser, server: Server) -> None:
    other = server.client("other")
    with contextlib.closing(PrefDB.open(server.folder / "prefs.db")) as db, opened(browser, server) as page:
        queue, (lease,) = LabelQueue(db), other.next(1)
        queue.notices.set_setting("goal", "1")
        assert other.answer(lease, "left", "only")[0] == 200
        assert_done(page, "All 1 labels have been given")
        wait_until(lambda: queue.counts().leased == 0, "all pairs are given back")
        queue.notices.beat("run", {"ended": "Labelling has ended here."})
        stop(server.process)
        page.keyboard.press("l")
        assert_done(page, "All 1 labels have been given")


def test_a_run_that_has_finished_thanks_in_place_of_being_offline(browser: Browser, server: Server) -> None:
    with contextlib.closing(PrefDB.open(server.folder / "prefs.db")) as db, opened(browser, server) as page:
        press(page, "l")
        wait_for_answers(server, 1)
        wait_until(lambda: not kept(page), "the page knows that it is stored")
        Notices(db).beat("run", {"ended": "Labelling has ended here."})
        page.wait_for_timeout(1500)  # a run that has failed may end so, while its page goes on
        assert wait_for_pair(page)
        stop(server.process)
        assert_done(page, "Labelling has ended here.")
        page.keyboard.press("l")
        assert not kept(page), "nobody is asked any more"
        Notices(db).beat("run", {"status": "It goes on"})
        server.start()
        assert wait_for_pair(page)


def test_tabs_in_the_background_hear_that_a_run_has_finished(browser: Browser, server: Server) -> None:
    hide = """() => {
        Object.defineProperty(document, 'visibilityState', {get: () => 'hidden', configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    with contextlib.closing(PrefDB.open(server.folder / "prefs.db")) as db, opened(browser, server) as page:
        wait_for_pair(page)
        other = page.context.new_page()
        other.set_default_timeout(WAIT_MS)
        other.goto(server.link)
        wait_for_pair(other)
        with page.expect_response("**/api/events"):
            page.evaluate(hide)
        other.evaluate(hide)
        locks = "navigator.locks.query().then(({ held, pending }) => [held.length, pending.length])"
        wait_until(lambda: other.evaluate(locks) == [1, 1], "only one listens: a browser has few connections")
        Notices(db).beat("run", {"ended": "Labelling has ended here."})
        stop(server.process)
        assert_done(page, "Labelling has ended here.")
        assert_done(other, "Labelling has ended here.")


def test_an_answer_that_did_not_reach_a_finished_run_is_told_of(browser: Browser, tmp_path: Path) -> None:
    db_path = make_store(tmp_path, 3, {"goal": "9"})
    with running(tmp_path) as server, opened(browser, server) as page:
        page.route("**/api/answer", lambda route: route.abort())
        press(page, "l")
        with contextlib.closing(PrefDB.open(db_path)) as db:
            Notices(db).beat("run", {"ended": "Labelling has ended here."})
        stop(server.process)
        page.wait_for_selector(DONE)
        page.wait_for_selector("#banner:has-text('Labelling has ended here. 1 answer is still kept')")
        assert "Offline" not in page.inner_text("#banner")


def test_the_last_answer_that_is_on_its_way_keeps_the_page_open(browser: Browser, tmp_path: Path) -> None:
    make_store(tmp_path, 1)
    with running(tmp_path) as server, opened(browser, server) as page:
        page.context.set_offline(True)
        press(page, "l")
        page.wait_for_selector("#waiting-reason:has-text('1 answer is kept in this browser. Trying again')")
        page.context.set_offline(False)
        assert_done(page, "All 1 labels have been given")
    assert [row.choice for row in rows(server)] == ["left"]


def test_without_a_word_of_its_end_the_page_says_what_to_do(browser: Browser, tmp_path: Path) -> None:
    """A server that is killed says nothing."""
    make_store(tmp_path, 1, {"goal": "9"})
    with running(tmp_path) as server, opened(browser, server) as page:
        press(page, "l")
        wait_for_answers(server, 1)
        wait_until(lambda: not kept(page), "the page knows that it is stored")
        server.kill()
        page.wait_for_selector("#waiting-reason:has-text('If the run has finished, you may close this page.')")


@pytest.mark.parametrize("n_labels", ["2", ""])
def test_label_ends_with_its_last_answer_and_its_page_with_thanks(
    browser: Browser, tmp_path: Path, n_labels: str
) -> None:
    """As many as --max_prefs says, or as there are pairs."""
    make_store(tmp_path / "a", 1)
    wanted = ("--max_prefs", n_labels) if n_labels else ()
    with contextlib.closing(PrefDB.open(tmp_path / "a" / "prefs.db")) as db:
        if n_labels:
            LabelQueue(db).submit(pairs(4, first_seed=50))
    words = (str(ROOT / "run.py"), "label", str(tmp_path / "a"), "--ui", "web", "--web_port", "0", "--no_tour", *wanted)
    with PreloadedPopen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        link = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(link)
        for _ in range(2 if n_labels else 1):
            press(page, "l")
        page.wait_for_selector(DONE)
        output, _ = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, output
        page.wait_for_selector("#waiting-reason:has-text('you may close this page')")
        assert page.is_hidden("#banner") and shown(page) == ""
        context.close()
