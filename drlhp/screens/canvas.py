"""A window to draw in, with its keys; pyglet is imported when the first window opens.

So machines without a display can import this.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from drlhp.errors import UserError, reason_of
from drlhp.pictures import BACKGROUND, BAR, TRACK, Colour, check_frame

MARGIN, TITLE, FOOTER = 24, 30, 84  # pixels: around pictures, above them, below them
BAR_GAP, BAR_HEIGHT = 8, 4  # pixels
FIXED_WIDTH = ("DejaVu Sans Mono", "Menlo", "Consolas", "monospace")  # fonts for the help, so that columns stay

Anchor = Literal["center", "bottom"]
Rect = tuple[int, int, int, int]  # x, y of the lower left corner, width, height


class DisplayError(UserError):
    """No window can be opened; the message is one sentence that names what to do instead."""


INSTEAD = "pass --ui terminal, --ui web or --teacher oracle"  # what labellers can do without a window


def open_display(instead: str = INSTEAD) -> None:
    """Checks that windows can be opened, before anything else is started.

    Raises DisplayError if not, which says what to do `instead`.
    """
    _open_window("", 16, 16, visible=False, instead=instead).close()


def _open_window(title: str, width: int, height: int, *, visible: bool = True, instead: str = INSTEAD) -> Any:
    """Opens a pyglet window of at most this size that fits on the screen. Raises DisplayError."""
    ways = f"{instead}, log in with `ssh -X`, or use `xvfb-run -a` for a test"
    name = os.environ.get("DISPLAY", "")
    if sys.platform.startswith("linux") and not name:
        raise DisplayError(f"No display was found to show clips on (DISPLAY is not set): {ways}.")
    try:
        import pyglet

        # Without this, importing pyglet.window opens a hidden window that nobody needs.
        pyglet.options.shadow_window = False
        pyglet.options.debug_gl = False
        import pyglet.window
    except ImportError as error:
        reason = str(error).split("\n")[0]
        raise DisplayError(f"Clips need pyglet and OpenGL ({reason}): install both, or {ways}.") from error
    try:
        screen = pyglet.display.get_display().get_default_screen()
        width, height = min(width, screen.width * 9 // 10), min(height, screen.height * 9 // 10)
        # With vsync, flip() would wait for the monitor and block everything else in the process.
        return pyglet.window.Window(width, height, title, resizable=True, visible=visible, vsync=False)
    except Exception as error:  # pyglet has no common base class for its X11, GLX and driver errors
        reason = reason_of(error)
        raise DisplayError(f"No window with OpenGL 3.3 opens on display '{name}' ({reason}): {ways}.") from error


class Canvas:
    """A window for pictures, bars and text, which remembers what was pressed.

    Every window has an OpenGL context of its own, so `begin` makes it the current one before anything is drawn.
    """

    def __init__(self, title: str, width: int, height: int, keys: dict[str, str]) -> None:
        self.window = _open_window(title, width, height)
        self.window.push_handlers(on_key_press=self._on_key, on_close=self._on_close, on_expose=self._on_expose)
        self.keys = keys
        self.pressed: list[str] = []
        self.guarded_until = 0.0
        self.leaving = False  # the window's own button was pressed
        self.closed = False
        self._drawn: object = None
        self._textures: dict[str, Any] = {}
        self._labels: dict[str, Any] = {}

    def _on_key(self, symbol: int, _modifiers: int) -> bool:
        from pyglet.window import key

        action = self.keys.get(key.symbol_string(symbol), "")
        always = action in ("close", "escape")
        self.pressed.append(action if always or time.monotonic() >= self.guarded_until else "")
        return True  # handled: otherwise pyglet closes the window at Escape

    def _on_close(self) -> bool:
        self.leaving = True
        self.pressed.append("close")
        return True

    def _on_expose(self) -> None:
        self._drawn = None

    def dispatch(self) -> None:
        self.window.switch_to()
        self.window.dispatch_events()

    def begin(self, state: object) -> bool:
        """Starts a picture; returns False if the window shows this state already, so that nothing is to be drawn."""
        state = (state, self.window.get_size())
        if state == self._drawn:
            return False
        self._drawn = state
        self.window.switch_to()
        self.fill((0, 0, *self.window.get_size()), BACKGROUND)
        return True

    def fill(self, rect: Rect, colour: Colour) -> None:
        """Fills a rectangle by a scissored clear, which needs no shader and no vertices."""
        from pyglet import gl

        gl.glEnable(gl.GL_SCISSOR_TEST)
        gl.glScissor(*(round(value * self.window.get_pixel_ratio()) for value in rect))
        red, green, blue = (value / 255 for value in colour)
        gl.glClearColor(red, green, blue, 1.0)
        gl.glClear(gl.GL_COLOR_BUFFER_BIT)
        gl.glDisable(gl.GL_SCISSOR_TEST)

    def picture(self, slot: str, frame: np.ndarray, rect: Rect) -> None:
        """Uploads an (H, W, 3) uint8 frame and draws it with hard pixel edges."""
        from pyglet import gl, image

        height, width = frame.shape[:2]
        texture = self._textures.get(slot)
        if texture is None or (texture.width, texture.height) != (width, height):
            texture = image.Texture.create(
                width, height, internalformat=gl.GL_RGB, min_filter=gl.GL_NEAREST, mag_filter=gl.GL_NEAREST
            )
            self._textures[slot] = texture
        # OpenGL counts rows from the bottom. tobytes() copies, so the stored frame stays as it is.
        texture.blit_into(image.ImageData(width, height, "RGB", frame[::-1].tobytes()), 0, 0, 0)
        texture.blit(rect[0], rect[1], width=rect[2], height=rect[3])

    def text(
        self,
        slot: str,
        text: str,
        x: int,
        y: int,
        size: int,
        colour: Colour,
        width: int,
        *,
        anchor_y: Anchor = "center",
    ) -> int:
        """Writes centred text at (x, y), on several lines if it is wider than `width`; returns its height."""
        from pyglet.text import Label

        if slot not in self._labels:
            # The help needs its columns.
            kind = {"font_name": FIXED_WIDTH, "align": "left"} if slot == "reading" else {"align": "center"}
            self._labels[slot] = Label(anchor_x="center", anchor_y=anchor_y, multiline=True, width=width, **kind)
        label = self._labels[slot]
        wanted = {"text": text, "x": x, "y": y, "width": width, "font_size": size, "color": (*colour, 255)}
        for name, value in wanted.items():
            if getattr(label, name) != value:
                setattr(label, name, value)
        label.draw()
        return int(label.content_height)

    def end(self) -> None:
        self.window.flip()

    def take_pressed(self) -> list[str]:
        pressed, self.pressed = self.pressed, []
        return [action for action in pressed if action]

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._textures.clear()
            self._labels.clear()
            self.window.close()


def fit(frame: np.ndarray, box: Rect) -> Rect:
    """Returns the largest centred rectangle for a frame in a box, a whole multiple of its size if one fits."""
    x, y, width, height = box
    scale = min(width / frame.shape[1], height / frame.shape[0])
    scale = float(math.floor(scale)) if scale >= 1 else scale
    w, h = max(1, int(frame.shape[1] * scale)), max(1, int(frame.shape[0] * scale))
    return x + (width - w) // 2, y + (height - h) // 2, w, h


def around(rect: Rect, by: int) -> Rect:
    return rect[0] - by, rect[1] - by, rect[2] + 2 * by, rect[3] + 2 * by


def progress_bar(canvas: Canvas, rect: Rect, share: float) -> None:
    """Draws a bar under a picture, filled up to the loop's present frame."""
    x, y, width, _ = rect
    canvas.fill((x, y - BAR_GAP - BAR_HEIGHT, width, BAR_HEIGHT), TRACK)
    canvas.fill((x, y - BAR_GAP - BAR_HEIGHT, round(width * share), BAR_HEIGHT), BAR)


def check_film(name: str, frames: Sequence[np.ndarray] | np.ndarray, fps: float) -> None:
    """Raises ValueError unless there are (H, W, 3) uint8 frames and a positive frame rate."""
    if len(frames) == 0 or not fps > 0:
        raise ValueError(f"{name}: expected at least one frame and fps above 0, got {len(frames)} and {fps}")
    check_frame(name, np.asarray(frames[0]))
