"""The labelling page in a real browser: undo, notes, and earlier answers that are looked at and changed."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route

from drlhp.labelling.notices import Notices
from drlhp.pictures import write_video
from drlhp.screens.playback import GUARD_SECONDS
from pref_db import PrefDB
from tests.support.browser import (
    LOADED,
    LOADED_AHEAD,
    NEEDS_BROWSER,
    PHONE,
    opened,
    press,
    rows,
    shown,
    wait_for_answers,
    wait_for_js,
    wait_for_pair,
    wait_until,
)
from tests.support.labelling import Server, make_store, running, segment

pytestmark = [*NEEDS_BROWSER, pytest.mark.xdist_group(__name__)]  # one browser for this file
SPOKEN = (
    *('heading "Which clip', 'progressbar "Labels given"', 'img "Left clip"', 'img "Right clip"'),
    *('slider "Position in the clips"', 'combobox "Speed', 'group "Your answer"', 'button "Left is better'),
    *('button "Can', 'navigation "More"', 'button "Undo U"', 'complementary "The run"'),
    *('heading "Last full episode"', 'img "Predicted reward: from -0.5 to 0.5', 'button "Answer 2: left is better'),
)


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


def test_on_a_phone_tables_scroll_and_widen_neither_the_page_nor_a_dialog(browser: Browser, tmp_path: Path) -> None:
    name = "W" * 40
    make_store(tmp_path, 12)
    with running(tmp_path) as server:
        client = server.client(name)
        for lease in client.next(2):
            assert client.answer(lease, "left", lease["token"], flag=True, note="n" * 500)[0] == 200
        link = f"{server.address.link(server.token)}&n={name}"
        with opened(browser, server, viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=2) as page:
            with page.expect_event("load"):
                page.goto(link)
            wait_for_pair(page)
            for dialog, full in (("help", "tr"), ("gallery", ".thumb"), ("quality", "tbody td")):
                page.tap(f"[data-do={dialog}]")
                page.wait_for_selector(f"#{dialog}-dialog[open] {full}")
                widths = "(e => [e.scrollWidth - e.clientWidth, document.documentElement.scrollWidth - innerWidth])"
                assert page.evaluate(f"{widths}(document.querySelector('#{dialog}-dialog'))") == [0, 0], dialog
                if dialog != "quality":
                    page.tap(f"#{dialog}-dialog .close")
            page.evaluate("document.querySelector('.scroll').scrollLeft = 9999")
            left = page.evaluate("document.querySelector('.scroll tbody td').getBoundingClientRect().left")
            last = page.evaluate("document.querySelector('.scroll tbody td:last-child').getBoundingClientRect().right")
            table = page.evaluate("document.querySelector('.scroll').getBoundingClientRect().toJSON()")
            assert left == table["left"], "whose row it is stays in view"
            assert last <= table["right"] + 1, "and its end can be reached"
