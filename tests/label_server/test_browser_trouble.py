"""The labelling page in a real browser: lost connections, full disks, refusals and reloads lose no answer."""

from __future__ import annotations

import contextlib
import re
import resource
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from drlhp.labelling.gatherers import QueueGatherer
from pref_db import PrefDB
from tests.support.browser import (
    LOADED_AHEAD,
    NEEDS_BROWSER,
    WAIT_MS,
    kept,
    opened,
    press,
    rows,
    shown,
    wait_for_answers,
    wait_for_js,
    wait_for_pair,
    wait_until,
)
from tests.support.labelling import Server, make_store, running

# The curves are asked for when all claims are over: no late reply says that the server is there.
ASKED_ALL = "performance.getEntriesByType('resource').some(e => e.name.endsWith('/api/curves') && e.responseEnd)"

pytestmark = [*NEEDS_BROWSER, pytest.mark.xdist_group(__name__)]  # one browser for this file


def test_a_lost_connection_loses_nothing(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        wait_for_js(page, LOADED_AHEAD)
        page.context.set_offline(True)
        press(page, "l")
        press(page, "r")
        press(page, "Enter")
        page.wait_for_selector("#banner:has-text('3 answers are kept')")
        assert page.inner_text("#status").startswith("2 / 12 labels"), "the third is none"
        assert shown(page), "it goes on with the pairs that were fetched"
        assert rows(server) == []
        page.context.set_offline(False)
        assert [row.choice for row in wait_for_answers(server, 3)] == ["left", "right", "incomparable"]
        page.wait_for_selector("#banner", state="hidden")


def test_a_server_that_is_dead_is_told_of_before_a_request_is_given_up(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        wait_for_js(page, LOADED_AHEAD)
        wait_for_js(page, ASKED_ALL)
        page.evaluate("AbortSignal.timeout = () => new AbortController().signal")  # none ever is
        server.kill()  # its port is still held
        page.wait_for_selector("#banner:has-text('Offline. Trying again by itself; you can go on.')")
        for _ in range(4):
            press(page, "l")
        page.wait_for_selector("#waiting-reason:has-text('Offline. 4 answers are kept')")
        page.keyboard.press("p")
        page.wait_for_selector("#waiting-reason:has-text('the button to go on')")
        page.keyboard.press("p")
        page.wait_for_selector("#waiting-reason:has-text('Offline. 4 answers are kept')")
        assert page.inner_text("#waiting-reason") == page.inner_text("#banner")
        server.start()
        wait_for_answers(server, 4)
        page.wait_for_selector("#banner", state="hidden")
        assert wait_for_pair(page)


def test_a_full_disk_is_told_of_by_the_servers_own_words(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        wait_for_js(page, LOADED_AHEAD)
        press(page, "r")
        wait_for_answers(server, 1)
        wait_until(lambda: not kept(page), "the page knows that it is stored")
        before = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1, before[1]))
        page.keyboard.press("u")
        page.wait_for_selector("#toast:has-text('Not undone'):has-text('disk')")
        press(page, "l")
        page.wait_for_selector("#banner:has-text('disk')")
        page.wait_for_selector("#banner:has-text('1 answer is kept in this browser. Trying again by itself')")
        page.keyboard.press("u")
        page.wait_for_selector("#toast:has-text('Not undone'):has-text('disk')")
        assert "Offline" not in page.inner_text("#banner")
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, before)
        wait_for_answers(server, 2)
        page.wait_for_selector("#banner", state="hidden")


def test_answers_kept_in_the_browser_survive_its_reload_and_the_servers_death(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.route("**/api/answer", lambda route: route.abort())
        press(page, "l")
        press(page, "e")
        server.kill()
        page.unroute("**/api/answer")
        server.start()
        page.reload()
        wait_for_pair(page)
        answers = wait_for_answers(server, 2)
        assert [row.choice for row in answers] == ["left", "equal"]
        assert shown(page) not in {row.comparison_id for row in answers}


def test_answers_kept_for_a_name_that_begins_with_anothers_are_left_to_it(browser: Browser, server: Server) -> None:
    def enter(page: Page, name: str) -> None:
        with page.expect_event("load"):
            page.goto(f"{server.address.link(server.token)}&n={name}")

    with opened(browser, server) as page:
        enter(page, "me%2Ftoo")
        page.route("**/api/answer", lambda route: route.abort())
        press(page, "r")
        enter(page, "me")
        page.unroute("**/api/answer")
        press(page, "l")
        assert [(row.labeller, row.choice) for row in wait_for_answers(server, 1)] == [("me", "left")]
        enter(page, "me%2Ftoo")
        answers = wait_for_answers(server, 2)
    assert [(row.labeller, row.choice) for row in answers] == [("me", "left"), ("me/too", "right")]


def test_a_minute_offline_with_twenty_answers_is_patient_and_then_sends_each_once_in_order(
    browser: Browser, server: Server
) -> None:
    with opened(browser, server) as page:
        press(page, "l")
        wait_for_answers(server, 1)
        page.wait_for_selector("#recent .thumb")
        wait_for_js(page, "performance.getEntriesByType('resource').filter(e => e.name.includes('/clip/')).length >= 8")
        page.clock.install()
        page.context.set_offline(True)
        for key in "rle":
            press(page, key)
        while len(kept(page)) < 20:
            page.click("#recent .thumb")
            page.wait_for_selector("#relabel")
            page.clock.fast_forward(300)
            page.keyboard.press("rle"[len(kept(page)) % 3])
            page.wait_for_selector("#relabel", state="hidden")
        waiting, tries = kept(page), list[str]()
        page.on("request", lambda request: tries.append(request.url) if request.method == "POST" else None)
        for _ in range(60):
            page.clock.fast_forward(1000)
        tries = [url for url in tries if url.endswith(("/answer", "/edit"))]
        assert 2 < len(tries) < 12, "it tries again, ever more rarely"
        assert kept(page) == waiting and len(rows(server)) == 1
        page.context.set_offline(False)
        wait_until(lambda: not kept(page), "all are sent")
        with contextlib.closing(PrefDB.open(server.folder / "prefs.db", read_only=True)) as db:
            stored = [row[0] for row in db.read("SELECT client_id FROM answer ORDER BY seq")]
        assert stored[1:] == [item["body"]["client_id"] for item in waiting], "each once, and in order"


def test_who_is_logged_out_is_told_so_and_loses_nothing(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        wait_for_js(page, LOADED_AHEAD)
        (cookie,) = page.context.cookies()
        page.context.clear_cookies()
        press(page, "l")
        page.wait_for_selector("#banner:has-text('open the printed link again. 1 answer is kept')")
        page.context.add_cookies(
            [{"name": cookie["name"], "value": cookie["value"], "url": page.url}]
        )  # as if the link had been opened in another tab
        wait_for_answers(server, 1)
        page.wait_for_selector("#banner", state="hidden")


def test_a_refusal_is_told_until_the_person_has_gone_on(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        wait_for_pair(page)
        taken = "UPDATE lease SET labeller = 'another' WHERE comparison_id = ?"
        with contextlib.closing(PrefDB.open(server.folder / "prefs.db")) as db, db.transaction() as connection:
            connection.execute(taken, (shown(page),))
        press(page, "l")
        page.wait_for_selector("#banner:has-text('could not be stored')")
        assert re.search(r"[^.]\.$", page.inner_text("#banner")), "one sentence"
        press(page, "r")
        page.wait_for_selector("#banner", state="hidden")


def test_a_pair_that_cannot_be_shown_is_left_out_and_the_run_may_ask_another(browser: Browser, tmp_path: Path) -> None:
    db_path = make_store(tmp_path, 4)
    with contextlib.closing(PrefDB.open(db_path)) as db:
        broken = db.segment_ids()[-2]  # of the pair that comes first
        with db.transaction() as connection:
            connection.execute("UPDATE segment SET view = ? WHERE id = ?", (b"DRV1 but nothing else", broken))
        with running(tmp_path) as server, opened(browser, server) as page:
            page.wait_for_selector("#toast:has-text('cannot be shown')")
            for _ in range(3):
                press(page, "l")
            answers = wait_for_answers(server, 3)
            page.wait_for_selector("#waiting")
        assert broken not in {segment_id for row in answers for segment_id in (row.left, row.right)}
        ((state, reason),) = db.read("SELECT state, reason FROM query WHERE state <> 'done'")
        assert state == "withdrawn" and "damaged" in reason
        gatherer = QueueGatherer(db)
        gatherer.pending = {"of which it knows"}
        gatherer.tell("", {})
        assert not gatherer.pending


def test_answers_are_sent_in_their_order_also_where_the_clock_was_put_back(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.route("**/api/answer", lambda route: route.abort())
        press(page, "l")
        page.evaluate("(now => { Date.now = () => now() - 3600e3; })(Date.now)")
        press(page, "r")
        page.unroute("**/api/answer")
        assert [row.choice for row in wait_for_answers(server, 2)] == ["left", "right"]


def test_a_wrong_link_says_what_to_do(browser: Browser, server: Server) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.goto(f"http://{server.address.host}:{server.address.port}/")
    page.wait_for_selector("#token-dialog[open]:has-text('whole link')")
    page.fill("#token", server.link)
    page.keyboard.press("Enter")
    assert wait_for_pair(page)
    context.close()


def test_clips_take_their_room_again_when_a_banner_has_gone(browser: Browser, server: Server) -> None:
    """Also those of a pair that came while the banner was there."""
    box = "document.querySelector('{}').getBoundingClientRect()"
    height = box.format("#left") + ".height"
    with opened(browser, server, viewport={"width": 500, "height": 610}) as page:
        wait_for_js(page, LOADED_AHEAD)
        large = page.evaluate(height)
        page.context.set_offline(True)
        press(page, "l")
        page.wait_for_selector("#banner:has-text('1 answer is kept')")
        wait_for_js(page, f"large => {height} < large", large)
        assert page.evaluate(f"{box.format('#left')}.bottom <= {box.format('#film-row')}.top"), "nothing lies over them"
        press(page, "r")
        page.context.set_offline(False)
        page.wait_for_selector("#banner", state="hidden")
        wait_for_js(page, f"large => {height} === large", large)
