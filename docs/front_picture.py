"""Draws the moving picture of the README: the Hopper that turns backflips, beside the page on which people teach it so.

python run.py gather_initial_prefs Hopper --no_gather_prefs --max_segs 40 --run_name clips
python docs/front_picture.py runs/clips docs/pictures/backflip_and_page.gif

The Hopper is the left one of docs/pictures/circus_backflip.gif. The page is a real one, in a real browser.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from itertools import cycle
from pathlib import Path

from PIL import Image, ImageSequence
from playwright.sync_api import Page, ViewportSize

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from docs.labelling_page import link_of
from tests.support.browser import PROGRAM, WHY_NOT, chromium, press, wait_for_pair

ROOT = Path(__file__).resolve().parent.parent
HOPPER = ROOT / "docs" / "pictures" / "circus_backflip.gif"
HOPPER_SIDE = 320  # pixels of that picture
HEIGHT, GAP, GAP_COLOUR = 400, 8, (255, 255, 255)
VIEWPORT: ViewportSize = {"width": 760, "height": 560}
FRAME_MS = 80
CLIP_FRAMES, CLIP_FPS, HOLD = 60, 40, 3  # of a clip of Hopper; pictures for which its last frame stays
SKIPPED = "rllr"  # answers to earlier pairs, so that the page shows a usual number of labels
COLOURS = 96
LOOK_MS = 3000  # as long as people look at a pair


def hopper() -> list[Image.Image]:
    """Returns the frames of the agent that was taught backflips."""
    with Image.open(HOPPER) as film:
        boxes = [frame.convert("RGB").crop((0, 0, HOPPER_SIDE, HOPPER_SIDE)) for frame in ImageSequence.Iterator(film)]
    return [frame.resize((HEIGHT, HEIGHT), Image.Resampling.LANCZOS) for frame in boxes]


def page_at(page: Page, index: int) -> Image.Image:
    """Returns a picture of the page with both clips at a frame."""
    move = f"const s = document.querySelector('#scrub'); s.value = {index}; s.dispatchEvent(new Event('input'))"
    page.evaluate(move)
    page.wait_for_timeout(100)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    width = round(picture.width * HEIGHT / picture.height)
    return picture.resize((width, HEIGHT), Image.Resampling.LANCZOS)


def pages(link: str) -> list[Image.Image]:
    """Returns pictures of the page while a pair plays once, at real speed."""
    step = CLIP_FPS * FRAME_MS / 1000
    indices = [round(i * step) for i in range(int(CLIP_FRAMES / step))]
    with chromium() as browser:
        page = browser.new_page(viewport=VIEWPORT, device_scale_factor=2)
        page.goto(link)
        for key in SKIPPED:
            wait_for_pair(page)
            page.wait_for_timeout(LOOK_MS)
            press(page, key)
        wait_for_pair(page)
        page.wait_for_timeout(LOOK_MS)  # what was said of the last answer is gone
        played = [page_at(page, index) for index in indices]
    return played + [played[-1]] * HOLD


def beside(left: Image.Image, right: Image.Image) -> Image.Image:
    picture = Image.new("RGB", (left.width + GAP + right.width, HEIGHT), GAP_COLOUR)
    picture.paste(left, (0, 0))
    picture.paste(right, (left.width + GAP, 0))
    return picture


def draw(run: str, path: str) -> None:
    """Writes the picture."""
    words = ("--ui", "web", "--web_port", "0", "--no_tour", "--task", "Do a backflip.")
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(run, Path(folder) / "clips")  # nobody has labelled it, so the page asks for no nickname
        command = [sys.executable, "run.py", "label", str(copy), *words]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            played = pages(link_of(process))
        finally:
            process.terminate()
            process.communicate()
    agent = hopper()
    n = len(agent) // len(played) * len(played)  # whole loops of the pair
    frames = [beside(left, right) for left, right in zip(agent[:n], cycle(played), strict=False)]
    palette = frames[0].quantize(COLOURS, dither=Image.Dither.NONE)
    first, *rest = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    first.save(path, save_all=True, append_images=rest, duration=FRAME_MS, loop=0)


if __name__ == "__main__":
    if PROGRAM is None:
        sys.exit(f"front_picture.py: it {WHY_NOT}")
    draw(*sys.argv[1:])
