"""The labelling page in a real browser, on a real server and store: keys, touch, reloads, tabs, lost connections."""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import re
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Dialog, Page, Route

from drlhp.data.comparison import Comparison
from drlhp.data.views import encode_frames
from drlhp.label_server import stop
from drlhp.labelling.answers import HistoryRow, Submission
from drlhp.labelling.gatherers import QueueGatherer
from drlhp.labelling.notices import Notices
from drlhp.labelling.queue import LabelQueue
from drlhp.screens.gatherer import PersonGatherer
from drlhp.screens.pictures import write_video
from drlhp.screens.playback import GUARD_SECONDS
from drlhp.screens.window import ClipWindow
from pref_db import PrefDB
from tests.screens.test_terminal import terminal
from tests.support.browser import (
    LOADED,
    PROGRAM,
    WAIT_MS,
    WHY_NOT,
    chromium,
    click,
    press,
    shown,
    tap,
    wait_for_js,
    wait_for_pair,
)
from tests.support.display import focus, xdotool
from tests.support.labelling import Server, make_store, pairs, running, segment

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason=WHY_NOT),
    pytest.mark.slow,
    pytest.mark.xdist_group("label_page"),  # one browser for all of them
]
WIDE = {"width": 1400, "height": 900}
PHONE = {"width": 390, "height": 844}
SPOKEN = (
    *('heading "Which clip', 'progressbar "Labels given"', 'img "Left clip"', 'img "Right clip"'),
    *('slider "Position in the clips"', 'combobox "Speed', 'group "Your answer"', 'button "Left is better'),
    *('button "Can', 'navigation "More"', 'button "Undo U"', 'complementary "The run"'),
    *('heading "Last full episode"', 'img "Predicted reward: from -0.5 to 0.5', 'button "Answer 2: left is better'),
)
LOADED_AHEAD = "performance.getEntriesByType('resource').filter(e => e.name.includes('/clip/')).length >= 8"
FOCUSED = "(({id, dataset}) => id || dataset.choice || dataset.do)(document.activeElement)"
# Of every text on the page: its contrast with what is behind it (WCAG 2.1), and where it is.
CONTRASTS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => sum + weight * linear(c[i] / 255), 0);
  const back = (e) => {
    const c = rgb(getComputedStyle(e).backgroundColor);
    return c.length < 4 || c[3] > 0 || !e.parentElement ? c : back(e.parentElement);
  };
  const written = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  const texts = [...document.querySelectorAll("body *")].filter((e) => e.offsetParent && !e.disabled && written(e));
  return texts.map((e) => {
    const a = light(rgb(getComputedStyle(e).color)), b = light(back(e));
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), `${e.tagName}#${e.id}.${e.className}`];
  });
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    make_store(tmp_path, 12, {"task": "Keep to the <img src=x onerror=document.title='run'> left"})
    with running(tmp_path) as found:
        yield found


@contextlib.contextmanager
def opened(browser: Browser, server: Server, **options: Any) -> Iterator[Page]:
    """The page in a browser of its own, with a pair on screen; fails on any error in the page."""
    context = browser.new_context(viewport=options.pop("viewport", WIDE), **options)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    home = (f"http://{server.address.host}:{server.address.port}/", "blob:")
    page.on("request", lambda request: None if request.url.startswith(home) else errors.append(request.url))
    page.goto(server.link)
    wait_for_pair(page)
    try:
        yield page
    finally:
        context.close()
    assert not errors, "it does not fail, and loads nothing from elsewhere"


def rows(server: Server) -> list[HistoryRow]:
    """Effective answers in the store, oldest first."""
    with contextlib.closing(PrefDB.open(server.folder / "prefs.db", read_only=True)) as db:
        return LabelQueue(db).answers.history()[::-1]


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_MS / 1000
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def wait_for_answers(server: Server, n: int) -> list[HistoryRow]:
    wait_until(lambda: len(rows(server)) >= n, f"{n} answers")
    return rows(server)


def pixels(page: Page, side: str) -> np.ndarray:
    """What a canvas shows, (H, W, 3) uint8, in the clip's own size."""
    url = page.evaluate(f"document.querySelector('#{side}').toDataURL().split(',')[1]")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url))).convert("RGB"))


def test_every_key_gives_its_answer_in_either_case(browser: Browser, server: Server) -> None:
    keys = {"l": "left", "R": "right", "ArrowLeft": "left", "ArrowRight": "right", "e": "equal"}
    keys |= {"ArrowUp": "equal", "Enter": "incomparable", "ArrowDown": "incomparable"}
    with opened(browser, server) as page:
        asked = []
        for key in keys:
            asked.append(wait_for_pair(page))
            press(page, key)
        answers = wait_for_answers(server, len(keys))
    assert [row.choice for row in answers] == list(keys.values())
    assert [row.comparison_id for row in answers] == asked
    assert all(row.labeller == "me" and row.shown_at and 0 < row.answered_at - row.shown_at < 600 for row in answers)
    assert all(abs(row.answered_at - time.time()) < 600 for row in answers)


def test_both_clips_show_the_same_moment_in_true_colours(browser: Browser, server: Server) -> None:
    with (
        opened(browser, server) as page,
        contextlib.closing(PrefDB.open(server.folder / "prefs.db", read_only=True)) as db,
    ):
        page.keyboard.press(" ")
        page.keyboard.press("Home")  # plays on from the start
        page.keyboard.press(" ")
        page.evaluate("document.querySelector('#scrub').value = 0")
        page.evaluate("document.querySelector('#scrub').dispatchEvent(new Event('input'))")
        row = db.read("SELECT comparison_id, segment_a, segment_b, flip FROM lease JOIN comparison ON "
                      "comparison.id = comparison_id WHERE comparison_id = ?", (shown(page),))[0]  # fmt: skip
        _, a, b, flip = row
        clips = {
            side: db.segment(id).frames()
            for side, id in zip(("left", "right"), (b, a) if flip else (a, b), strict=True)
        }
        for index in (0, 1, 2, 24, 23):
            at = int(page.evaluate("document.querySelector('#scrub').value"))
            while at != index:
                page.keyboard.press("." if (index - at) % 25 <= 12 else ",")
                at = int(page.evaluate("document.querySelector('#scrub').value"))
            for side, frames in clips.items():
                assert np.array_equal(pixels(page, side), frames[index]), (side, index)
        sizes = page.evaluate("['left', 'right'].map(id => document.getElementById(id).getBoundingClientRect().width)")
        assert sizes[0] == sizes[1] and sizes[0] % 84 == 0, "enlarged by a whole factor"


def test_a_clip_with_room_for_half_as_much_again_takes_it_and_stays_crisp(browser: Browser, tmp_path: Path) -> None:
    stripes = np.zeros((25, 210, 160, 3), np.uint8)  # as large as Atari's screen
    stripes[:, :, ::2] = 255
    a, b = (replace(segment(seed), view=encode_frames(stripes)) for seed in (1, 2))
    with contextlib.closing(PrefDB.open(make_store(tmp_path, 0))) as db:
        LabelQueue(db).submit([Comparison(a, b, flip=False)])
    with running(tmp_path) as server, opened(browser, server, viewport={"width": 1280, "height": 720}) as page:
        page.keyboard.press(" ")
        box = page.locator("#left").bounding_box()
        assert box is not None and (box["width"], box["height"]) == (240, 315)
        picture = np.asarray(Image.open(io.BytesIO(page.locator("#left").screenshot())).convert("L"))
        assert abs(picture[3:-3, 3:-3].reshape(-1, 3).astype(int) - (255, 127, 0)).max() < 3, "two pixels in three"
        page.set_viewport_size({"width": 1400, "height": 900})
        wait_for_js(page, "document.querySelector('#left').width === 160")
        assert np.array_equal(pixels(page, "left"), stripes[0])


def test_a_reload_keeps_the_pair(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        press(page, "l")
        wait_for_answers(server, 1)
        before = wait_for_pair(page)
        page.reload()
        assert wait_for_pair(page) == before
        assert "t=" not in page.url, "the token is not to be seen"


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


def test_undo_as_often_as_one_likes(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        first = wait_for_pair(page)
        press(page, "l")
        second = wait_for_pair(page)
        press(page, "r")
        wait_for_answers(server, 2)
        third = wait_for_pair(page)
        press(page, "u")
        assert shown(page) == second
        press(page, "Backspace")
        assert shown(page) == first
        for key in ("e", "e"):
            press(page, key)
        assert wait_for_pair(page) == third, "then the pair that was there before"
        wait_until(lambda: [row.choice for row in rows(server)] == ["equal", "equal"], "the new answers alone count")


def test_a_pair_that_undo_brings_back_keeps_its_flag_and_note(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.keyboard.press("f")
        page.fill("#note", "odd")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        wait_for_js(page, "!document.querySelector('#note-dialog').open")
        press(page, "l")
        wait_for_answers(server, 1)
        page.reload()
        press(page, "u")
        page.reload()
        wait_for_pair(page)
        press(page, "r")
        wait_until(lambda: [row.choice for row in rows(server)] == ["right"], "the new answer alone counts")
    assert [(row.flag, row.note) for row in rows(server)] == [(True, "odd")]


def test_a_note_goes_on_after_a_word_that_enter_composes(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.keyboard.press("f")
        wait_for_js(page, "document.querySelector('#note-dialog').open")
        keyboard = page.context.new_cdp_session(page)
        keyboard.send("Input.imeSetComposition", {"text": "にほん", "selectionStart": 3, "selectionEnd": 3})
        page.keyboard.press("Enter")
        keyboard.send("Input.insertText", {"text": "日本語"})
        assert page.evaluate("document.querySelector('#note-dialog').open")
        page.keyboard.press("Enter")
        wait_for_js(page, "!document.querySelector('#note-dialog').open")
        press(page, "l")
        (row,) = wait_for_answers(server, 1)
        assert row.flag and row.note.endswith("日本語")


def test_after_a_dialog_that_the_mouse_opened_the_keys_are_the_pairs(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        for close in ("Escape", "Enter"):  # Enter presses what has the keyboard in the dialog, its ✕
            page.click("[data-do=help]")
            wait_for_js(page, "document.querySelector('#help-dialog').open")
            page.keyboard.press(close)
            wait_for_js(
                page, "!document.querySelector('#help-dialog').open && document.activeElement === document.body"
            )
        press(page, "Enter")
        assert [row.choice for row in wait_for_answers(server, 1)] == ["incomparable"]


def test_undo_of_what_was_not_sent_yet(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.route("**/api/answer", lambda route: route.abort())  # the first is tried again and again
        first = wait_for_pair(page)
        press(page, "l")
        second = wait_for_pair(page)
        press(page, "l")
        press(page, "u")
        assert shown(page) == second
        press(page, "l")
        page.reload()
        press(page, "u")
        assert shown(page) == second, "also where the page has not shown it since it was loaded"
        press(page, "r")
        page.unroute("**/api/answer")
        answers = wait_for_answers(server, 2)
    assert [(row.comparison_id, row.choice) for row in answers] == [(first, "left"), (second, "right")]


def test_an_answer_while_an_undone_pair_loads_is_one_to_the_pair_on_screen(browser: Browser, server: Server) -> None:
    with opened(browser, server, viewport=PHONE) as page:
        first = wait_for_pair(page)
        press(page, "l")
        (row,) = wait_for_answers(server, 1)
        held: list[Route] = []
        page.route(f"**/api/clip/{row.left}", lambda route: held.append(route))
        page.reload()
        second = wait_for_pair(page)
        wait_for_js(page, LOADED_AHEAD)  # else the page looks for what to show once more
        listen = "run => { (window.tab = new BroadcastChannel(`labels/${run}`)).onmessage = ({data}) => told = data; }"
        page.evaluate(listen, server.folder.name)
        page.keyboard.press("u")
        wait_for_js(page, "window.told?.undone")
        press(page, "r")
        assert shown(page) == "", "the answered pair is not asked again"
        held[-1].continue_()
        assert wait_for_pair(page) == first
        press(page, "l")
        answers = wait_for_answers(server, 2)
    assert [(row.comparison_id, row.choice) for row in answers] == [(second, "right"), (first, "left")]


def test_an_earlier_answer_is_changed_from_the_list_and_from_the_gallery(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        first = wait_for_pair(page)
        for key in ("l", "l"):
            press(page, key)
        wait_for_answers(server, 2)
        current = wait_for_pair(page)
        wait_for_js(page, "document.querySelectorAll('#recent .thumb').length === 2")
        page.click("#recent .thumb >> nth=1")
        page.get_by_role("status").filter(has_text="You said: left is better").wait_for()
        assert shown(page) == first
        press(page, "r")
        assert shown(page) == current, "back to the pair that was there"
        wait_until(lambda: [row.choice for row in rows(server)] == ["left", "right"], "changed")
        page.keyboard.press("g")
        wait_for_js(page, "document.querySelectorAll('#gallery .thumb').length === 2")
        page.select_option("#gallery-filter", "choice=right")
        wait_for_js(page, "document.querySelectorAll('#gallery .thumb').length === 1")
        page.click("#gallery .thumb")
        page.wait_for_selector("#relabel:has-text('right is better')")
        page.keyboard.press("Escape")
        page.wait_for_selector("#relabel", state="hidden")
        assert shown(page) == current and [row.choice for row in rows(server)] == ["left", "right"]
        page.keyboard.press("g")
        page.click("#gallery .thumb")
        page.wait_for_selector("#relabel:has-text('right is better')")
        page.keyboard.press("f")
        page.fill("#note", "it slips")
        page.keyboard.press("Enter")
        press(page, "r")  # the answer stays as it was
        marks = [(False, ""), (True, "it slips")]
        wait_until(lambda: [(row.flag, row.note) for row in rows(server)] == marks, "marked")


def test_changes_of_one_answer_that_are_made_without_a_connection_all_count(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        press(page, "l")
        wait_for_answers(server, 1)
        current = wait_for_pair(page)
        thumb = page.locator("#recent .thumb")
        thumb.wait_for()
        page.context.set_offline(True)
        for said, key in (("left is better", "r"), ("right is better", "l"), ("left is better", "e")):
            thumb.click()
            page.wait_for_selector(f"#relabel:has-text('{said}')")
            press(page, key)
        thumb.click()
        page.wait_for_selector("#relabel:has-text('equally good')")
        page.context.set_offline(False)
        wait_until(lambda: [row.choice for row in rows(server)] == ["equal"], "changed three times")
        press(page, "r")  # that too, though it was opened before
        wait_until(lambda: [row.choice for row in rows(server)] == ["right"], "changed again")
        assert shown(page) == current and page.is_hidden("#banner")
        page.context.set_offline(True)
        press(page, "e")
        thumb.click()
        page.wait_for_selector("#relabel")
        press(page, "l")  # behind an answer that waits, so that it was not sent even once
        page.keyboard.press("u")  # which is for answers, not for changes of them, whether or not these have arrived
        page.wait_for_selector("#toast:has-text('undo works again with the connection')")
        page.context.set_offline(False)
        wait_until(lambda: sorted(row.choice for row in rows(server)) == ["equal", "left"], "changed once more")


def kept(page: Page) -> list[dict[str, Any]]:
    """What waits in the browser to be sent, in order."""
    entries = "Object.keys(localStorage).filter((key) => key.startsWith('outbox/')).sort()"
    return list(page.evaluate(f"{entries}.map((key) => JSON.parse(localStorage.getItem(key)))"))


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


def test_a_pair_whose_lease_was_over_while_nobody_looked_is_asked_once(browser: Browser, tmp_path: Path) -> None:
    make_store(tmp_path, 1)
    with running(tmp_path) as server, opened(browser, server) as page:
        pair = wait_for_pair(page)
        with contextlib.closing(PrefDB.open(tmp_path / "prefs.db")) as db, db.transaction() as connection:
            connection.execute("UPDATE lease SET expires_at = 1")
        with page.expect_response("**/api/next"):
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        assert wait_for_pair(page) == pair
        press(page, "l")
        (answer,) = wait_for_answers(server, 1)
        page.wait_for_selector("#waiting:visible")
        assert answer.choice == "left" and not answer.late


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


def test_what_is_told_by_the_way_goes_when_it_has_been_read(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.clock.install()
        page.clock.pause_at(page.evaluate("Date.now()") + 60_000)
        page.keyboard.press("l")
        assert page.locator("#toast").aria_snapshot() == "- status: Left \u2013 U to undo"
        page.clock.run_for(4000)
        assert page.inner_text("#toast") == "Left \u2013 U to undo"
        page.clock.run_for(26_000)
        assert page.inner_text("#toast") == ""


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


def test_a_press_that_was_meant_for_the_pair_before_is_none(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        press(page, "l")
        wait_for_pair(page)
        page.wait_for_timeout(300)
        key = "dispatchEvent(new KeyboardEvent('keydown', {key: 'r', bubbles: true}))"
        page.evaluate(f"{key}; {key}; {key}")  # three at once: two come in a new pair's first moments
        wait_for_answers(server, 2)
        wait_for_pair(page)
        page.wait_for_timeout(300)
        page.evaluate("dispatchEvent(new KeyboardEvent('keydown', {key: 'l', repeat: true}))")
        press(page, "e")
        answers = wait_for_answers(server, 3)
    assert [row.choice for row in answers] == ["left", "right", "equal"]


def test_a_key_that_is_held_down_floods_the_page_and_gives_one_answer(browser: Browser, server: Server) -> None:
    """Also the one that presses a button, again and again, for as long as it is down."""
    with opened(browser, server) as page:
        for n, key in enumerate(("l", "Enter"), start=1):
            asked = wait_for_pair(page)
            if key == "Enter":
                page.focus("[data-choice=right]")
            page.wait_for_timeout(300)
            repeats, until = 0, page.evaluate("performance.now() + 1000")
            while page.evaluate("performance.now()") < until or repeats < 20:
                page.keyboard.down(key)  # from the second on the browser marks it as a repeat
                repeats += 1
            page.keyboard.up(key)
            assert wait_for_pair(page) != asked
            wait_for_answers(server, n)
        page.evaluate("document.activeElement.blur()")
        press(page, "e")
        answers = wait_for_answers(server, 3)
    assert [row.choice for row in answers] == ["left", "right", "equal"]


def test_keyboard_alone_reaches_everything_and_nothing_answers_by_mistake(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        names = []
        for _ in range(30):
            page.keyboard.press("Tab")
            names.append(page.evaluate(FOCUSED))
        order = [name for name in names if name in ("pause", "scrub", "left", "right", "undo", "help")]
        assert order[:6] == ["pause", "scrub", "left", "right", "undo", "help"]
        page.focus("[data-choice=right]")
        press(page, "Enter")  # the button's own answer, not that of the key
        wait_for_answers(server, 1)
        page.focus("#scrub")
        before = page.evaluate("document.querySelector('#scrub').value")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.querySelector('#scrub').value") != before or before == "24"
        page.keyboard.press("h")
        page.wait_for_selector("#help-dialog[open]")
        page.keyboard.press("l")  # a letter in a dialog is no answer
        page.keyboard.press("Escape")
        page.wait_for_selector("#help-dialog:not([open])", state="attached")
        click(page, "[data-choice=left]")
        press(page, "Enter")  # after a click the keys are the page's again
        answers = wait_for_answers(server, 3)
    assert [row.choice for row in answers] == ["right", "left", "incomparable"]


def test_on_a_phone_swipes_and_buttons_answer_and_everything_is_in_reach(browser: Browser, server: Server) -> None:
    options: dict[str, Any] = {"viewport": PHONE, "has_touch": True, "is_mobile": True, "device_scale_factor": 3}
    with opened(browser, server, **options) as page:
        width, height = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
        assert width <= PHONE["width"] and height <= PHONE["height"], "nothing to scroll"
        for box in page.evaluate(
            "[...document.querySelectorAll('.answer, #left, #right')].map(e => e.getBoundingClientRect().toJSON())"
        ):
            assert box["left"] >= 0 and box["right"] <= PHONE["width"] and box["bottom"] <= PHONE["height"]
            assert box["height"] >= 44, "a finger's width"
        assert not page.is_visible("aside") and page.is_visible("#swipe-hint")
        page.tap("[data-do=help]")
        page.wait_for_selector("#help-dialog[open]")
        ways = page.locator("#help-dialog tr td:visible").all_inner_texts()
        assert len(ways) == page.locator("#help-dialog tr").count() and all(ways) and ways[0] == "swipe ←"
        page.tap("#help-dialog .close")
        touch = page.context.new_cdp_session(page)
        choices = {"left": (-120, 0), "right": (120, 0), "equal": (0, -120), "incomparable": (0, 120)}
        for choice, (dx, dy) in choices.items():
            before = wait_for_pair(page)
            page.wait_for_timeout(300)
            touch.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": 195, "y": 330}]})
            touch.send(
                "Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [{"x": 195 + dx, "y": 330 + dy}]}
            )
            page.wait_for_selector("#swipe-label.on")
            touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
            wait_for_js(page, f"before => {LOADED} !== before", before)
            assert choice
        tap(page, "[data-choice=right]")
        answers = wait_for_answers(server, 5)
        page.tap("[data-do=break]")
        wait_for_js(page, "document.querySelectorAll('#recent .thumb').length === 5")  # the column is seen only now
    assert [row.choice for row in answers] == [*choices, "right"]


def test_on_a_phone_the_questions_before_the_first_pair_fit_the_screen(browser: Browser, server: Server) -> None:
    server.client().next()  # so that who comes now is asked for another name
    for link, asked in ((server.address.link(server.token), "name"), (server.address.link(""), "token")):
        context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=3)  # type: ignore[arg-type]
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(link)
        page.wait_for_selector(f"#{asked}-dialog[open]")
        right = page.evaluate("document.querySelector('dialog[open]').getBoundingClientRect().right")
        assert right < page.evaluate("innerWidth") <= PHONE["width"], asked
        context.close()


def test_on_a_phone_on_its_side_all_is_in_reach(browser: Browser, server: Server) -> None:
    size: dict[str, Any] = {"width": PHONE["height"], "height": PHONE["width"]}
    with opened(browser, server, viewport=size, has_touch=True, is_mobile=True, device_scale_factor=2) as page:
        boxes = page.evaluate(
            "[...document.querySelectorAll('.answer, #tools button, canvas')].filter(e => e.offsetParent)"
            ".map(e => e.getBoundingClientRect().toJSON())"
        )
        assert len(boxes) == 14
        for box in boxes:
            assert box["left"] >= 0 and box["right"] <= size["width"] and box["bottom"] <= size["height"]
        assert all(box["width"] > 180 for box in boxes[:2]), "the clips are large"
        tap(page, "[data-choice=right]")
        assert [row.choice for row in wait_for_answers(server, 1)] == ["right"]


def test_on_a_screen_that_is_enlarged_twice_nothing_is_cut_off(browser: Browser, server: Server) -> None:
    with opened(browser, server, viewport={"width": 640, "height": 400}, device_scale_factor=2) as page:
        boxes = page.evaluate(
            "[...document.querySelectorAll('main button, main select, main kbd, canvas')].filter(e => e.offsetParent)"
            ".map(e => e.getBoundingClientRect().right)"
        )
        assert len(boxes) > 14 and max(boxes) <= 640


def assert_both_clips_are_seen(page: Page) -> None:
    """On a screenshot: both clips are on the page in their colours, of one size, and no part lies over another."""
    wait_for_js(page, "!document.querySelector('#stage .chosen')")
    picture = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)
    sizes = []
    for side in ("left", "right"):
        box = page.locator(f"#{side}").bounding_box()
        assert box is not None
        x, y, width, height = (round(box[name]) for name in ("x", "y", "width", "height"))
        inside = picture[y + 1 : y + height - 1, x + 1 : x + width - 1]
        share = [(abs(inside - colour).max(-1) < 30).mean() for colour in ((30, 40, 90), (255, 150, 40))]
        assert share[0] > 0.9 and 0.001 < share[1] < 0.01, (side, share)
        sizes.append(inside.shape)
    assert sizes[0] == sizes[1]
    parts = "['header', '#stage', '#film-row', '#answers', '#toast', '#tools']"
    edges = page.evaluate(
        f"{parts}.flatMap(p => (({{top, bottom}}) => [top, bottom])(document.querySelector(p).getBoundingClientRect()))"
    )
    assert edges == sorted(edges) and edges[-1] <= len(picture), "one below the other, and all in view"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screenshots_at_either_size_and_contrast_of_texts(browser: Browser, server: Server, scheme: Any) -> None:
    with opened(browser, server, color_scheme=scheme) as page:
        press(page, "l")
        wait_for_pair(page)
        for size in (PHONE, WIDE):
            page.set_viewport_size(size)  # type: ignore[arg-type]
            wait_for_js(page, f"innerWidth === {size['width']}")
            assert_both_clips_are_seen(page)
        page.keyboard.press("h")
        page.wait_for_selector("#help-dialog[open]")
        # The button's flash is over, and what fades has faded.
        wait_for_js(page, "!document.querySelector('.pressed') && !document.getAnimations().length")
        found = page.evaluate(CONTRASTS)
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(v) for v in background[4:-1].split(",")) < 200) == (scheme == "dark")
    assert len(found) > 30 and not [(ratio, name) for ratio, name in found if ratio < 4.5]


def test_what_stands_beside_the_pair_and_what_a_screen_reader_is_told(browser: Browser, tmp_path: Path) -> None:
    db_path = make_store(tmp_path, 12, {"goal": "5500"})
    header = "steps,labels,predicted_reward,validation_accuracy,validation_loss,episode_return"
    lines = (header, "0,1,-0.5,0.5,0.7,-21", "9,2,0.5,0.9,0.3,-20")
    (tmp_path / "progress.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "web").mkdir()
    write_video(tmp_path / "web" / "episode.mp4", segment(1).frames(), 15.0)
    with running(tmp_path) as server, opened(browser, server) as page:
        wait_for_js(page, "document.querySelector('#episode').videoWidth > 0")
        assert page.evaluate("document.querySelector('#episode').paused"), "it would draw eyes away from the pair"
        page.evaluate("document.querySelector('#episode').play()")
        first = page.evaluate("document.querySelector('#episode').src")
        write_video(tmp_path / "web" / "episode.mp4", segment(2).frames(), 15.0)
        wait_for_js(page, "(first) => (e => e.src !== first && !e.paused)(document.querySelector('#episode'))", first)
        wait_for_js(page, "document.querySelectorAll('#curves figure').length === 4")
        curves = page.inner_text("#curves")
        assert "Predicted reward" in curves and "Loss on held-out" in curves and "True" not in curves
        for _ in range(5):
            assert "left at this pace" not in page.inner_text("#status")
            press(page, "l")
        page.wait_for_selector("#status:has-text('left at this pace')")
        for _ in range(6):
            press(page, "l")
        wait_for_js(page, "document.querySelector('#recent .thumb').dataset.seq === '11'")
        page.wait_for_selector("#curves figure:has-text('Labels') b:text-is('11')")  # the table has 2
        assert page.inner_text("#status").startswith("11 / 5,500 labels")
        assert page.locator("#recent .thumb").count() == 10
        heights = page.evaluate("(e => [e.scrollHeight, e.clientHeight])(document.querySelector('aside'))")
        assert heights[0] <= heights[1], "all of it is seen"
        tree = page.locator("body").aria_snapshot()
        for part in SPOKEN:
            assert part in tree, (part, tree)
        assert not re.findall(r"- (?:button|img|slider|combobox|progressbar|link|textbox)(?: \[.*\])?:?\n", tree)
        wait_for_answers(server, 11)
        press(page, "u")
        press(page, "l")
        wait_until(lambda: len(rows(server)) == 11, "given anew")
        page.keyboard.press("q")
        page.wait_for_selector("#quality-table td:has-text('me')")
        assert "11 answers" in page.inner_text("#quality-summary")
        assert re.search(r"^me\t11\t\d+\.\d s \(\d+\.\d s\)\t.*\t8 %\t", page.inner_text("#quality-table tbody"))
        with page.expect_download() as download:
            page.click("#quality-dialog a:has-text('CSV')")
        assert download.value.suggested_filename == "labels.csv"
        page.keyboard.press("Escape")
        # A dialog has the keyboard from its key on, though what it shows is still on its way.
        page.evaluate("""for (const key of ['g', 'q', 'l'])
            document.body.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))""")
        assert page.evaluate("[...document.querySelectorAll('dialog[open]')].map((dialog) => dialog.id)") == [
            "gallery-dialog"
        ]
        with contextlib.closing(PrefDB.open(db_path)) as db:
            Notices(db).set_setting("true_reward", "1")
        page.reload()
        page.wait_for_selector("#curves:has-text('Evaluation mode') figure:has-text('True return')")


def test_task_and_notes_are_text_never_html(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        assert "<img src=x" in page.inner_text("#task") and page.query_selector("#task img") is None
        page.keyboard.press("f")
        page.fill("#note", "<script>document.title='run'</script>")
        page.keyboard.press("Enter")
        press(page, "l")
        answer = wait_for_answers(server, 1)[0]
        page.keyboard.press("g")
        page.wait_for_selector("#gallery .thumb:has-text('<script>')")
        assert page.title() != "run" and page.query_selector("#gallery script") is None
    assert answer.flag and answer.note.startswith("<script>")


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
            page.wait_for_selector("#waiting-reason:has-text('Thank you')")


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


def test_the_last_word_of_a_run_is_told_in_place_of_offline(browser: Browser, tmp_path: Path) -> None:
    db_path = make_store(tmp_path, 3, {"goal": "9"})
    with running(tmp_path) as server, opened(browser, server) as page:
        press(page, "l")
        wait_for_answers(server, 1)
        with contextlib.closing(PrefDB.open(db_path)) as db:
            Notices(db).beat("run", {"ended": "Labelling has ended here."})
        stop(server.process)
        page.wait_for_selector("#banner:has-text('Labelling has ended here.')")
        press(page, "r")
        page.wait_for_selector("#banner:has-text('Labelling has ended here. 1 answer is still kept')")
        assert "Offline" not in page.inner_text("#banner")


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
        wait_until(lambda: first in {lease["comparison_id"] for lease in other.next(1)}, "given to somebody else")
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


def test_a_note_that_was_being_written_when_the_break_came_stays_with_its_pair(
    browser: Browser, tmp_path: Path
) -> None:
    make_store(tmp_path, 1)
    with running(tmp_path) as server, opened(browser, server) as page:
        page.clock.install()
        page.keyboard.press("f")
        page.fill("#note", "odd")
        page.clock.fast_forward("03:10")
        page.wait_for_selector("#waiting-title:has-text('Taking a break')")
        page.keyboard.press("Enter")
        page.wait_for_selector("#note-dialog", state="hidden")
        page.keyboard.press("p")
        assert wait_for_pair(page)
        press(page, "l")
        assert [(row.flag, row.note) for row in wait_for_answers(server, 1)] == [(True, "odd")]


def test_a_key_pressed_right_after_a_note_counts_and_the_notes_own_enter_is_no_answer(
    browser: Browser, tmp_path: Path
) -> None:
    make_store(tmp_path, 1)
    with running(tmp_path) as server, opened(browser, server) as page:
        page.wait_for_timeout(1000 * GUARD_SECONDS + 50)  # for from here on Enter would be an answer
        page.keyboard.press("f")
        page.fill("#note", "odd")
        # Within one frame, in which the browser has not yet given the keyboard back to the page.
        page.evaluate("""() => ["Enter", "p"].forEach((key) => document.activeElement.dispatchEvent(
            new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })))""")
        page.wait_for_selector("#waiting-title:has-text('Taking a break')")
        page.keyboard.press("p")
        press(page, "l")
        assert [(row.flag, row.note) for row in wait_for_answers(server, 1)] == [(True, "odd")]


def test_on_a_break_undo_ends_it_and_an_earlier_answer_is_changed_by_one_press(
    browser: Browser, server: Server
) -> None:
    with opened(browser, server) as page:
        asked = wait_for_pair(page)
        press(page, "l")
        wait_for_answers(server, 1)
        page.keyboard.press("p")
        page.wait_for_selector("#resume")
        page.click("[data-do=undo]")
        wait_for_js(page, f"asked => {LOADED} === asked", asked)
        press(page, "l")
        wait_for_answers(server, 1)
        page.keyboard.press("p")
        page.click("[data-do=gallery]")
        page.click("#gallery .thumb")
        page.wait_for_selector("#relabel")
        page.wait_for_timeout(300)
        page.keyboard.press("r")
        wait_until(lambda: [row.choice for row in rows(server)] == ["right"], "changed")
        page.wait_for_selector("#resume")


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


def test_answers_are_sent_in_their_order_also_where_the_clock_was_put_back(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.route("**/api/answer", lambda route: route.abort())
        press(page, "l")
        page.evaluate("(now => { Date.now = () => now() - 3600e3; })(Date.now)")
        press(page, "r")
        page.unroute("**/api/answer")
        assert [row.choice for row in wait_for_answers(server, 2)] == ["left", "right"]


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


def test_speed_is_remembered_and_pause_holds_the_frame(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.keyboard.press("]")
        page.reload()
        wait_for_pair(page)
        assert page.input_value("#speed") == "2"
        page.keyboard.press(" ")
        page.wait_for_selector("#pause:has-text('Play')")
        at = page.evaluate("document.querySelector('#scrub').value")
        page.wait_for_timeout(300)
        assert page.evaluate("document.querySelector('#scrub').value") == at
        press(page, "l")
        assert wait_for_answers(server, 1)[0].speed == 2


# Answers, unless the pair is too new for that, and looks at what is drawn now and in the next refreshes of the screen.
ANSWER_AND_LOOK = """() => new Promise((done) => {
  const stage = document.querySelector("#stage"), before = stage.dataset.pair;
  dispatchEvent(new KeyboardEvent("keydown", { key: "l" }));
  if (stage.dataset.pair === before) return done(null);
  const seen = [], look = () => {
    seen.push(Number(document.querySelector("#scrub").value));
    seen.length < 3 ? requestAnimationFrame(look) : done(seen);
  };
  look();
})"""


def test_a_new_pair_moves_with_the_second_refresh_of_the_screen(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.keyboard.press("[")
        page.keyboard.press("[")  # a quarter of the speed: a frame lasts for 0.27 s
        wait_for_js(page, "document.querySelector('#speed').value === '0.25'")
        seen = None
        while seen is None:
            seen = page.evaluate(ANSWER_AND_LOOK)
        assert seen[:2] == [0, 0] and seen[2] >= 1


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
