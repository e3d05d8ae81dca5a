"""The labelling page in a real browser: several tabs, names, breaks, and waiting for pairs."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Route

from drlhp.labelling.answers import Submission
from drlhp.labelling.queue import LabelQueue
from drlhp.screens.gatherer import PersonGatherer
from drlhp.screens.playback import GUARD_SECONDS
from drlhp.screens.window import ClipWindow
from pref_db import PrefDB
from tests.screens.test_terminal import terminal
from tests.support.browser import (
    LOADED,
    NEEDS_BROWSER,
    opened,
    press,
    rows,
    shown,
    wait_for_answers,
    wait_for_js,
    wait_for_pair,
    wait_until,
)
from tests.support.display import focus, xdotool
from tests.support.labelling import Server, make_store, pairs, running

pytestmark = [*NEEDS_BROWSER, pytest.mark.xdist_group(__name__)]  # one browser for this file


def test_two_tabs_never_answer_a_pair_twice(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        other = page.context.new_page()
        other.goto(f"http://{server.address.host}:{server.address.port}/")
        assert wait_for_pair(other) == shown(page)
        for turn in range(6):
            tab = (page, other)[turn % 2]
            tab.bring_to_front()
            asked = wait_for_pair(tab)
            press(tab, "l")
            for each in (page, other):
                wait_for_js(each, f"asked => {LOADED} !== asked", asked)
        answers = wait_for_answers(server, 6)
        other.close()
    assert len(answers) == len({row.comparison_id for row in answers}) == 6


@pytest.mark.window
def test_window_terminal_and_page_answer_one_store_at_the_same_time(
    browser: Browser, tmp_path: Path, display: str
) -> None:
    path, keys, told = make_store(tmp_path, 3, {"goal": "0"}), itertools.cycle("lr"), list[str]()
    with (
        running(tmp_path) as server,
        contextlib.closing(PrefDB.open(path)) as db,
        terminal(tmp_path) as screen,
    ):
        screen.read_until(lambda: db.read("SELECT count(*) FROM query") == [(15,)])  # it asks about every pair
        with (
            contextlib.closing(PersonGatherer(db, ClipWindow(), labeller="window")) as window,
            opened(browser, server) as page,
        ):

            def until(done: Callable[[], bool]) -> None:
                def looked() -> bool:
                    told.extend(one.comparison_id for one in window.drain())
                    return done()

                screen.read_until(looked)

            until(lambda: db.read("SELECT count(DISTINCT labeller) FROM lease") == [(3,)])  # each has a pair
            focus("Which clip is better")
            while len(told) < 15:
                page.keyboard.press("e")
                xdotool("key", "l")
                screen.press(next(keys))  # the same one again may be one that is held down
                next_at = time.monotonic() + GUARD_SECONDS
                until(lambda: time.monotonic() > next_at)  # noqa: B023
        given = db.read("SELECT comparison_id, labeller, choice FROM answer ORDER BY seq")
    assert [pair for pair, *_ in given] == told and len(set(told)) == len(given) == 15
    by = {(name, choice) for _, name, choice in given}
    assert by == {("me", "equal"), ("window", "preferred"), ("ann", "preferred")}


def test_another_name_in_one_tab_is_that_of_all(browser: Browser, server: Server) -> None:
    guest = server.client().post("/api/invite", {"labeller": "Guest"})[1]["token"]
    with opened(browser, server) as page:
        other = page.context.new_page()
        other.goto(server.link)
        wait_for_pair(other)
        with page.expect_event("load"):
            other.keyboard.press("h")
            other.click("#rename")
            other.fill("#name", "Ann")
            other.keyboard.press("Enter")
        press(page, "l")
        wait_for_answers(server, 1)
        with page.expect_event("load"):
            other.goto(f"{server.address.link(guest)}&n=Guest")
        press(page, "r")
        answers = wait_for_answers(server, 2)
    assert [(row.labeller, row.choice) for row in answers] == [("Ann", "left"), ("Guest", "right")]


def test_who_waits_elsewhere_is_told_of_pairs_by_the_title_and_a_sound(browser: Browser, tmp_path: Path) -> None:
    make_store(tmp_path, 1, {"goal": "4"})
    with running(tmp_path) as server, opened(browser, server) as page:
        press(page, "l")
        page.check("#sound")
        page.evaluate("""() => {
            window.tones = 0;
            const start = OscillatorNode.prototype.start;
            OscillatorNode.prototype.start = function () {
                window.tones += this.context.state === 'running';
                start.call(this);
            };
            Object.defineProperty(document, 'visibilityState', {get: () => 'hidden', configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));
        }""")
        with contextlib.closing(PrefDB.open(tmp_path / "prefs.db")) as db:
            LabelQueue(db).submit(pairs(3, first_seed=100))
        wait_for_js(page, "document.title === '(3) pairs ready' && window.tones === 1")
        with contextlib.closing(PrefDB.open(tmp_path / "prefs.db")) as db:
            assert LabelQueue(db).counts().leased == 0, "a page that nobody sees takes no pairs"
        page.evaluate("delete document.visibilityState; document.dispatchEvent(new Event('visibilitychange'))")
        wait_for_pair(page)
        assert page.title() == "Which clip is better?"


def test_a_nickname_is_text_never_html(browser: Browser, server: Server) -> None:
    name = "<img src=x onerror=document.title='run'>"
    with opened(browser, server) as page:
        page.keyboard.press("h")
        page.click("#rename")
        page.fill("#name", name)
        with page.expect_event("load"):
            page.keyboard.press("Enter")
        press(page, "l")
        assert wait_for_answers(server, 1)[0].labeller == name
        page.keyboard.press("q")
        page.wait_for_selector("#quality-table td:has-text('<img src=x')")
        page.keyboard.press("Escape")
        page.keyboard.press("h")
        page.wait_for_selector("#help-dialog[open]:has-text('<img src=x')")
        assert page.title() != "run" and page.query_selector("img[src=x]") is None


def test_never_blank_and_awake_by_itself(browser: Browser, tmp_path: Path) -> None:
    make_store(tmp_path, 1, {"goal": "9"})
    with running(tmp_path) as server, contextlib.closing(PrefDB.open(tmp_path / "prefs.db")) as db:
        queue = LabelQueue(db)
        with opened(browser, server) as page:
            press(page, "l")
            page.wait_for_selector("#waiting-reason:has-text('no training run is connected')")
            queue.notices.beat(
                "run", {"status": "Waiting for clips from the agent (1 of 2)", "line": "Gathering labels"}
            )
            page.wait_for_selector("#waiting-reason:has-text('1 of 2')")
            queue.submit(pairs(1, first_seed=1000))
            assert wait_for_pair(page)
            queue.notices.set_setting("goal", "2")
            press(page, "r")
            page.wait_for_selector("#waiting-title:has-text('Done, thank you')")


def test_pairs_that_are_left_for_others_are_not_asked_for_again_and_again(browser: Browser, tmp_path: Path) -> None:
    make_store(tmp_path, 8, {"goal": "5"})
    with running(tmp_path) as server, contextlib.closing(PrefDB.open(tmp_path / "prefs.db")) as db:
        queue = LabelQueue(db)
        held = queue.claim("somebody", 4)
        with opened(browser, server) as page:
            press(page, "l")  # with the pairs before somebody, the goal is reached
            page.wait_for_selector("#waiting-reason:has-text('The pairs that are left wait for')")
            claims: list[str] = []
            page.on("request", lambda request: claims.append(request.url) if "/next" in request.url else None)
            for n in range(3):
                queue.notices.beat("run", {"trouble": f"number {n}"})
                page.wait_for_selector(f"#status:has-text('number {n}')")
            assert len(claims) < 10, "as often as there is news"
            assert "0 pairs waiting" in page.inner_text("#status") and page.title() == "Which clip is better?"
            queue.leases.release([lease.token for lease in held])
            assert wait_for_pair(page)


def test_training_is_started_early_and_troubles_are_told(browser: Browser, tmp_path: Path) -> None:
    make_store(tmp_path, 30, {"initial_labels": "28", "goal": "30"})
    with contextlib.closing(PrefDB.open(tmp_path / "prefs.db")) as db:
        queue = LabelQueue(db)
        with running(tmp_path) as server, opened(browser, server) as page:
            assert page.is_hidden("#start"), "too few labels"
            for lease in queue.claim("somebody", 25):
                queue.answers.add(
                    Submission(lease.token, lease.token, lease.comparison_id, "somebody", "equal", 1.0, 2.0)
                )
            page.wait_for_selector("#start")
            page.keyboard.press("t")
            page.click("#start-dialog button:has-text('Not yet')")
            assert queue.notices.labels_to_start(28) == 28
            page.click("#start")
            page.click("#start-dialog button[value=start]")
            wait_until(lambda: queue.notices.labels_to_start(28) == 25, "training starts")
            page.wait_for_selector("#start", state="hidden")
            queue.notices.beat("run", {"trouble": "the last episode was not written: no space"})
            page.wait_for_selector("#status:has-text('trouble: the last episode was not written')")


def test_a_tab_that_is_closed_gives_its_pairs_back(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        tab = page.context.new_page()
        page.goto("about:blank")  # not even two tabs keep them when both are gone
        tab.goto(f"http://{server.address.host}:{server.address.port}/")
        wait_for_pair(tab)
        tab.close(run_before_unload=True)
        over = "SELECT 1 FROM lease WHERE closed_at IS NULL OR closed_at >= expires_at"
        with contextlib.closing(PrefDB.open(server.folder / "prefs.db", read_only=True)) as db:
            wait_until(lambda: not db.read(over), "given back, before they were over by themselves")
            assert len(db.read("SELECT 1 FROM lease")) >= 4


def test_passing_on_and_breaks_give_pairs_back(browser: Browser, server: Server) -> None:
    other = server.client("other")
    with opened(browser, server) as page:
        first = wait_for_pair(page)
        press(page, "s")
        with contextlib.closing(PrefDB.open(server.folder / "prefs.db", read_only=True)) as db:
            given_back = "SELECT 1 FROM lease WHERE comparison_id = ? AND closed_at IS NOT NULL"
            wait_until(lambda: db.read(given_back, (first,)), "given back")  # else somebody else gets another one
        assert first in {lease["comparison_id"] for lease in other.next(1)}
        page.keyboard.press("p")
        page.wait_for_selector("#resume")
        wait_until(lambda: len(other.next(8)) == 8, "all are free")
        page.keyboard.press("l")  # goes on, and is no answer
        assert wait_for_pair(page)
        assert rows(server) == []


@pytest.mark.parametrize("dialog", ["", "help"])
def test_a_page_that_nobody_touches_gives_its_pairs_back(browser: Browser, server: Server, dialog: str) -> None:
    other = server.client("other")
    with opened(browser, server) as page:
        page.clock.install()
        if dialog:
            page.click(f"[data-do={dialog}]")
            page.wait_for_selector(f"#{dialog}-dialog[open]")
        for x in (5, 10):  # a mouse that moves is somebody
            page.mouse.move(x, 5)
            page.clock.fast_forward("02:50")
            assert page.is_hidden("#waiting")
        page.clock.fast_forward("00:10")
        page.wait_for_selector("#waiting-reason:has-text('Nobody has touched this page for 3 minutes')")
        wait_until(lambda: len(other.next(8)) == 8, "all are free")
        if dialog:
            page.keyboard.press("Escape")
            page.wait_for_selector(f"#{dialog}-dialog", state="hidden")
        page.keyboard.press("l")
        assert wait_for_pair(page)
        assert rows(server) == []


def test_on_a_break_the_keys_that_are_no_answers_do_what_they_always_do(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        asked = wait_for_pair(page)
        press(page, "l")
        wait_for_answers(server, 1)
        page.keyboard.press("p")
        for key, dialog in (("h", "help"), ("g", "gallery"), ("q", "quality")):
            page.keyboard.press(key)
            page.wait_for_selector(f"#{dialog}-dialog[open]")
            page.keyboard.press("Escape")
            page.wait_for_selector(f"#{dialog}-dialog", state="hidden")
            assert page.is_visible("#resume")
        for key in ("s", "f", " ", ".", "Home", "]"):
            page.keyboard.press(key)
        assert page.is_visible("#resume") and page.input_value("#speed") == "2"
        page.keyboard.press("u")
        wait_for_js(page, f"asked => {LOADED} === asked", asked)
        page.keyboard.press("p")
        page.wait_for_selector("#resume")
        page.keyboard.press("p")
        assert wait_for_pair(page)


def test_pairs_that_were_on_their_way_when_a_break_began_are_given_back(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        held: list[Route] = []
        page.route("**/api/next", lambda route: held.append(route))
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        while not held:
            page.wait_for_timeout(10)
        with page.expect_response("**/api/release"):
            page.keyboard.press("p")
        with page.expect_response("**/api/release"):
            held[0].continue_()
        with contextlib.closing(PrefDB.open(server.folder / "prefs.db", read_only=True)) as db:
            assert LabelQueue(db).counts().leased == 0


def test_another_name_waits_for_the_answers_that_were_given_by_the_first(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.route("**/api/answer", lambda route: route.abort())
        said: list[str] = []

        def heard(dialog: Dialog) -> None:
            said.append(dialog.message)
            dialog.accept()

        def take(name: str) -> None:
            page.click("#rename")
            page.fill("#name", name)
            page.keyboard.press("Enter")

        page.on("dialog", heard)
        press(page, "l")
        page.keyboard.press("h")
        take("too early")
        while not said:
            page.wait_for_timeout(10)
        page.unroute("**/api/answer")
        (answer,) = wait_for_answers(server, 1)
        server.client("Bob").next()
        take("Bob")
        while len(said) < 2:
            page.wait_for_timeout(10)
        assert wait_for_pair(page), "it goes on by the first name"
        with page.expect_event("load"):
            take("Ann")
        with contextlib.closing(PrefDB.open(server.folder / "prefs.db", read_only=True)) as db:
            assert db.read("SELECT 1 FROM lease WHERE labeller = 'me' AND closed_at IS NULL") == [], "given back"
    assert answer.labeller == "me" and "still on their way" in said[0] and "labels as Bob now" in said[1]


def test_who_invites_is_told_what_the_link_needs_on_another_computer(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        told: list[str] = []

        def heard(dialog: Dialog) -> None:
            told.append(dialog.default_value or dialog.message)
            dialog.accept("Ann")

        page.on("dialog", heard)
        page.keyboard.press("h")
        page.click("#invite")
        while len(told) < 3:
            page.wait_for_timeout(10)
    assert told[0].startswith("A nickname") and "&n=Ann" in told[1] and told[2] == server.address.tunnel()
