"""Draws the pictures of the labelling page of the documentation, from a real run that is labelled in a real browser.

python docs/labelling_page.py docs/pictures/labelling_page.png docs/pictures/labelling_phone.png

It starts a run on Pong, answers enough pairs, presses "Start training now", and takes the pictures once the curves have
begun: a minute or more on two cores.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, ViewportSize

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from drlhp.labelling.notices import FEW_LABELS
from tests.support.browser import PROGRAM, WAIT_MS, WHY_NOT, chromium, press, wait_for_js, wait_for_pair

ROOT = Path(__file__).resolve().parent.parent
RUN = (
    *("train_policy_with_preferences", "PongNoFrameskip-v4"),
    *("--ui", "web", "--web_port", "0", "--no_tour", "--run_name", "page"),
)
SMALL = (
    *("--n_envs", "4", "--max_segs", "60", "--n_initial_epochs", "5"),
    *("--million_timesteps", "100", "--eval_interval_million_timesteps", "0"),
)
WIDE: ViewportSize = {"width": 1400, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
MIDDLE = 12  # frame of a clip in which the ball is mostly in play
HOLD = f"const s = document.querySelector('#scrub'); s.value = {MIDDLE}; s.dispatchEvent(new Event('input'))"
KEYS = ("l", "r", "e", "r", "l")
CURVES = 5  # to be there before the picture is taken
RUN_MS = 3 * WAIT_MS  # for what the run has to do first


def link_of(process: subprocess.Popen[str]) -> str:
    """Returns the link that the run prints."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"Label in a browser: (\S+)", line):
            return found[1]
    sys.exit("labelling_page.py: the run has ended")


def take(page: Page, path: str) -> None:
    """Saves a picture of the page, with a pair paused in the middle of its clips."""
    wait_for_pair(page)
    page.evaluate(
        f"const s = document.querySelector('#scrub'); s.value = {MIDDLE}; s.dispatchEvent(new Event('input'))"
    )
    page.wait_for_timeout(3000)  # thumbnails are drawn, and what was said of the last answer is gone
    page.screenshot(path=path)


def draw(link: str, page_path: str, phone_path: str) -> None:
    with chromium() as browser:
        page = browser.new_page(viewport=WIDE)
        page.set_default_timeout(RUN_MS)
        page.goto(link)
        for i in range(FEW_LABELS):
            press(page, KEYS[i % len(KEYS)])
        page.click("#start")
        page.click("#start-dialog button[value=start]")
        for _ in range(RUN_MS // WAIT_MS):
            try:
                wait_for_js(page, f"document.querySelectorAll('#curves figure').length >= {CURVES}")
                break
            except AssertionError:
                continue
        take(page, page_path)
        me = page.context.storage_state()  # else the page asks the phone for another nickname
        page.close()
        phone = browser.new_context(
            viewport=PHONE, device_scale_factor=2, has_touch=True, is_mobile=True, storage_state=me
        ).new_page()
        phone.set_default_timeout(RUN_MS)
        phone.goto(link)
        take(phone, phone_path)


if __name__ == "__main__":
    if PROGRAM is None:
        sys.exit(f"labelling_page.py: it {WHY_NOT}")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "run.py", *RUN, *SMALL, "--log_dir", folder]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            draw(link_of(process), *sys.argv[1:])
        finally:
            process.terminate()
            process.communicate()
