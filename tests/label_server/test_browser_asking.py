"""The labelling page in a real browser: the clips, every key, touch, and screens of all sizes."""

from __future__ import annotations

import base64
import contextlib
import io
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

from drlhp.data.comparison import Comparison
from drlhp.data.views import encode_frames
from drlhp.labelling.queue import LabelQueue
from pref_db import PrefDB
from tests.support.browser import (
    LOADED,
    NEEDS_BROWSER,
    PHONE,
    WAIT_MS,
    WIDE,
    click,
    opened,
    press,
    rows,
    shown,
    tap,
    wait_for_answers,
    wait_for_js,
    wait_for_pair,
    wait_until,
)
from tests.support.labelling import Server, make_store, running, segment

pytestmark = [*NEEDS_BROWSER, pytest.mark.xdist_group(__name__)]  # one browser for this file
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


def pixels(page: Page, side: str) -> np.ndarray:
    """What a canvas shows, (H, W, 3) uint8, in the clip's own size."""
    url = page.evaluate(f"document.querySelector('#{side}').toDataURL().split(',')[1]")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url))).convert("RGB"))


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_frame_tells_a_clip_from_the_page_in_either_theme(browser: Browser, tmp_path: Path, scheme: Any) -> None:
    """A black clip on a dark page, a white one on a light page: by the contrast that WCAG 2.1 asks of such lines."""
    with contextlib.closing(PrefDB.open(make_store(tmp_path, 0))) as db:
        black, white = (
            replace(segment(seed), view=encode_frames(np.full((25, 84, 84, 3), shade, np.uint8)))
            for seed, shade in ((1, 0), (2, 255))
        )
        LabelQueue(db).submit([Comparison(black, white, flip=False)])
    with running(tmp_path) as server, opened(browser, server, color_scheme=scheme) as page:
        picture = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")) / 255
        light = np.where(picture <= 0.03928, picture / 12.92, ((picture + 0.055) / 1.055) ** 2.4) @ (
            0.2126,
            0.7152,
            0.0722,
        )
        for side in ("left", "right"):
            box = page.locator(f"#{side}").bounding_box()
            assert box is not None
            x, middle = round(box["x"]), round(box["y"] + box["height"] / 2)
            page_beside, frame, clip = (light[middle, x + dx] + 0.05 for dx in (-6, -1, 3))
            for other in (page_beside, clip):
                assert max(frame, other) / min(frame, other) >= 3, (side, scheme)


def test_a_reload_keeps_the_pair(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        press(page, "l")
        wait_for_answers(server, 1)
        before = wait_for_pair(page)
        page.reload()
        assert wait_for_pair(page) == before
        assert "t=" not in page.url, "the token is not to be seen"


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


def test_a_click_on_a_clip_chooses_it(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        for side in ("right", "left"):
            click(page, f"#{side}")
        page.click("#left-figure figcaption")
        page.click("#stage", position={"x": 2, "y": 2})
        wait_for_answers(server, 2)
        page.wait_for_selector("#recent .thumb >> nth=1")
        page.click("#recent .thumb >> nth=0")
        page.wait_for_selector("#relabel:has-text('left is better')")
        click(page, "#right")  # an earlier answer is changed in the same way
        wait_until(lambda: [row.choice for row in rows(server)] == ["right", "right"], "changed")


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


def test_a_new_pair_moves_with_the_second_refresh_of_the_screen(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.keyboard.press("[")
        page.keyboard.press("[")  # a quarter of the speed: a frame lasts for 0.27 s
        wait_for_js(page, "document.querySelector('#speed').value === '0.25'")
        seen = None
        while seen is None:
            seen = page.evaluate(ANSWER_AND_LOOK)
        assert seen[:2] == [0, 0] and seen[2] >= 1
