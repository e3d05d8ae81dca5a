"""A virtual X display for tests that open windows, and hands and eyes to use it."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

PROGRAMS = ("Xvfb", "xdotool", "import")
FOCUS_LOOKS = 100


@pytest.fixture(scope="session")
def display() -> Iterator[str]:
    """Starts Xvfb on a free display, sets DISPLAY for the rest of the session, and gives its name."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (packages xvfb, xdotool, imagemagick)")
    read_end, write_end = os.pipe()
    # It would start anew whenever its last window closes, and refuse who comes just then.
    command = ["Xvfb", "-displayfd", str(write_end), "-screen", "0", "1280x800x24", "-nolisten", "tcp", "-noreset"]
    server = subprocess.Popen(command, pass_fds=[write_end], stderr=subprocess.DEVNULL)
    os.close(write_end)
    before = os.environ.get("DISPLAY")
    try:
        with os.fdopen(read_end) as reader:
            os.environ["DISPLAY"] = f":{int(reader.readline())}"  # Xvfb writes it when it takes connections
        yield os.environ["DISPLAY"]
    finally:
        os.environ.pop("DISPLAY", None)
        if before is not None:
            os.environ["DISPLAY"] = before
        server.terminate()
        server.wait()


def xdotool(*arguments: str) -> str:
    return subprocess.run(["xdotool", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def focus(title: str) -> None:
    """Gives the keyboard to a window; there is no window manager to do so.

    One that was found may be gone, or not be seen yet, when it should have it: then it is looked for again.
    """
    command = ["xdotool", "search", "--sync", "--onlyvisible", "--name", title, "windowfocus", "--sync"]
    for _ in range(FOCUS_LOOKS):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return
    raise AssertionError(f"no window called '{title}' takes the keyboard: {done.stderr}")


def screenshot() -> np.ndarray:
    """The whole screen as the X server shows it, (H, W, 3) uint8."""
    done = subprocess.run(["import", "-window", "root", "png:-"], check=True, capture_output=True)
    return np.asarray(Image.open(io.BytesIO(done.stdout)).convert("RGB"))
