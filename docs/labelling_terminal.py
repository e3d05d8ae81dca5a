"""Draws the picture of the labelling terminal of the documentation, from what the command sends to a real one.

python run.py gather_initial_prefs PongNoFrameskip-v4 --no_gather_prefs --max_segs 8 --run_name clips
python docs/labelling_terminal.py runs/clips docs/pictures/labelling_terminal.png
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 100, 32
CELL = (9, 18)  # pixels
FONT = "DejaVuSansMono.ttf"
BACKGROUND, FOREGROUND, DIM = (24, 26, 31), (220, 223, 228), (130, 136, 148)
SECONDS = 8.0  # to watch: until then the command has started, and the clips show something
TOKEN = re.compile(r"\x1b\[\??([0-9;]*)([A-Za-z])|(.)", re.DOTALL)

Colour = tuple[int, int, int]
Cell = tuple[str, Colour, Colour]


def watch(command: list[str]) -> str:
    """Runs a command in a terminal of ROWS x COLUMNS; returns its output until SECONDS after the first picture."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "COLORTERM": "truecolor"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=ROOT)
    sent, deadline = b"", None
    while deadline is None or time.monotonic() < deadline:
        if select.select([master], [], [], 0.05)[0]:
            sent += os.read(master, 65536)
        if deadline is None and "▀".encode() in sent:
            deadline = time.monotonic() + SECONDS
        if process.poll() is not None:
            sys.exit(sent.decode())
    process.terminate()
    process.wait()
    return sent.decode(errors="ignore")


def shown(sent: str) -> list[list[Cell]]:
    """Returns the cells of the screen after this output; knows only the few sequences that terminal.py sends."""
    blank: Cell = (" ", FOREGROUND, BACKGROUND)
    screen = [[blank] * COLUMNS for _ in range(ROWS)]
    row = column = 0
    fore, back = FOREGROUND, BACKGROUND
    for numbers, letter, text in TOKEN.findall(sent):
        values = [int(word) for word in numbers.split(";") if word]
        if text and text >= " " and column < COLUMNS:
            screen[row][column] = (text, fore, back)
            column += 1
        elif letter == "H" and values:
            row, column = values[0] - 1, values[1] - 1
        elif letter == "J":
            screen = [[blank] * COLUMNS for _ in range(ROWS)]
        elif letter == "K":
            screen[row] = [blank] * COLUMNS
        elif letter == "m":
            while values:
                code = values.pop(0)
                if code in (38, 48):  # then 2, red, green, blue
                    colour = (values[1], values[2], values[3])
                    fore, back = (colour, back) if code == 38 else (fore, colour)
                    del values[:4]
                else:
                    fore, back = {0: (FOREGROUND, BACKGROUND), 90: (DIM, back)}.get(code, (fore, back))
    return screen


def draw(screen: list[list[Cell]]) -> Image.Image:
    width, height = CELL
    picture = Image.new("RGB", (COLUMNS * width, ROWS * height), BACKGROUND)
    pen, font = ImageDraw.Draw(picture), ImageFont.truetype(FONT, 15)
    for y, cells in enumerate(screen):
        for x, (text, fore, back) in enumerate(cells):
            left, top = x * width, y * height
            pen.rectangle((left, top, left + width - 1, top + height - 1), back)
            if text == "▀":
                pen.rectangle((left, top, left + width - 1, top + height // 2 - 1), fore)
            elif text != " ":
                pen.text((left, top), text, fore, font)
    return picture


if __name__ == "__main__":
    label = [sys.executable, "run.py", "label", str(Path(sys.argv[1]).absolute()), "--ui", "terminal"]
    sent = watch(label)
    draw(shown(sent[: sent.rindex("\x1b[?2026l")])).save(sys.argv[2])
