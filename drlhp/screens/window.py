"""What people see: windows with two clips side by side, or with the film of an episode.

Until a window is wanted, no pyglet is imported: machines without a display can import this.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from rich.cells import cell_len

from drlhp.data.views import shown
from drlhp.errors import UserError, reason_of
from drlhp.runtime.channels import Episode
from drlhp.screens.pictures import (
    BACKGROUND,
    BAR,
    BORDER,
    CHOSEN,
    DIM_TEXT,
    TEXT,
    TRACK,
    Colour,
    check_frame,
    with_reward_plot,
)
from drlhp.screens.playback import ALWAYS, ANSWERS, GUARD_SECONDS, Playback, loop_index

CLIP_KEYS = {
    **dict.fromkeys(["L", "LEFT"], "left"),
    **dict.fromkeys(["R", "RIGHT"], "right"),
    **dict.fromkeys(["E", "UP"], "equal"),
    **dict.fromkeys(["ENTER", "RETURN", "NUM_ENTER", "DOWN"], "incomparable"),
    **dict.fromkeys(["U", "BACKSPACE"], "undo"),
    **{"SPACE": "pause", "COMMA": "back", "PERIOD": "forward", "BRACKETLEFT": "slower", "BRACKETRIGHT": "faster"},
    **{"HOME": "replay", "S": "skip", "F": "flag", "G": "gallery", "Q": "quality", "P": "break", "T": "start"},
    **dict.fromkeys(["H", "SLASH", "QUESTION"], "help"),
    "ESCAPE": "escape",
}
EPISODE_KEYS = {"ESCAPE": "close", "Q": "close"}
KEYS_LINE = "L/← left  ·  R/→ right  ·  E/↑ equal  ·  Enter/↓ can't tell  ·  U undo  ·  H all keys"
ANSWER_KEYS = {
    **dict.fromkeys(["RIGHT", "ENTER", "RETURN", "NUM_ENTER"], "next"),
    **dict.fromkeys(["LEFT", "U", "BACKSPACE"], "previous"),
    **dict.fromkeys(["ESCAPE", "Q"], "close"),
}
ANSWER_KEYS_LINE = "→/Enter next  ·  ←/U back  ·  Esc close"
CHOSEN_SIDES = {"left": (0,), "right": (1,), "equal": (0, 1), "incomparable": ()}

EPISODE_PAUSE_SECONDS = 1.0

MARGIN, TITLE, FOOTER = 24, 30, 84  # pixels: around pictures, above them, below them
BAR_GAP, BAR_HEIGHT = 8, 4  # pixels
# Of what is read, in place of the clips.
FIXED_WIDTH, LETTER_WIDTH, LINE_HEIGHT = ("DejaVu Sans Mono", "Menlo", "Consolas", "monospace"), 11, 22

Anchor = Literal["center", "bottom"]
Rect = tuple[int, int, int, int]  # x, y of the lower left corner, width, height


class DisplayError(UserError):
    """No window can be opened; the message is one sentence that names what to do instead."""


INSTEAD = "pass --ui terminal, --ui web or --teacher oracle"  # of a window for who labels


def open_display(instead: str = INSTEAD) -> None:
    """Makes sure that windows can be opened, before anything else is started.

    Raises DisplayError if not, which says what to do `instead`.
    """
    _open_window("", 16, 16, visible=False, instead=instead).close()


def _open_window(title: str, width: int, height: int, *, visible: bool = True, instead: str = INSTEAD) -> Any:
    """A pyglet window of at most this size, which fits on the screen. Raises DisplayError."""
    ways = f"{instead}, log in with `ssh -X`, or use `xvfb-run -a` for a test"
    name = os.environ.get("DISPLAY", "")
    if sys.platform.startswith("linux") and not name:
        raise DisplayError(f"No display was found to show clips on (DISPLAY is not set): {ways}.")
    try:
        import pyglet

        # Without this, importing pyglet.window opens a hidden window that we have no use for.
        pyglet.options.shadow_window = False
        pyglet.options.debug_gl = False
        import pyglet.window
    except ImportError as error:
        reason = str(error).split("\n")[0]
        raise DisplayError(f"Clips need pyglet and OpenGL ({reason}): install both, or {ways}.") from error
    try:
        screen = pyglet.display.get_display().get_default_screen()
        width, height = min(width, screen.width * 9 // 10), min(height, screen.height * 9 // 10)
        # Waiting for the monitor in flip() would hold up everything else the process does.
        return pyglet.window.Window(width, height, title, resizable=True, visible=visible, vsync=False)
    except Exception as error:  # pyglet has no common base class for its X11, GLX and driver errors
        reason = reason_of(error)
        raise DisplayError(f"No window with OpenGL 3.3 opens on display '{name}' ({reason}): {ways}.") from error


class _Canvas:
    """A window to draw pictures, bars and text in, which remembers what was pressed.

    Every window has an OpenGL context of its own; `begin` makes it the current one: windows take turns.
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
        return True  # handled: pyglet's own answer to Escape is to close the window

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
        """Starts a picture; False, and nothing to draw, if the window already shows this state."""
        state = (state, self.window.get_size())
        if state == self._drawn:
            return False
        self._drawn = state
        self.window.switch_to()
        self.fill((0, 0, *self.window.get_size()), BACKGROUND)
        return True

    def fill(self, rect: Rect, colour: Colour) -> None:
        """Fills a rectangle; a scissored clear needs no shader and no vertices."""
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
        # OpenGL counts rows from the bottom; tobytes() copies, the stored frame stays as it is.
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
        """Writes centred text at (x, y), on several lines if it is wider than `width`; returns how high it is."""
        from pyglet.text import Label

        if slot not in self._labels:
            # What is read keeps its columns.
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


def _fit(frame: np.ndarray, box: Rect) -> Rect:
    """The largest centred rectangle for a frame in a box, a whole multiple of its size if one fits."""
    x, y, width, height = box
    scale = min(width / frame.shape[1], height / frame.shape[0])
    scale = float(math.floor(scale)) if scale >= 1 else scale
    w, h = max(1, int(frame.shape[1] * scale)), max(1, int(frame.shape[0] * scale))
    return x + (width - w) // 2, y + (height - h) // 2, w, h


def _around(rect: Rect, by: int) -> Rect:
    return rect[0] - by, rect[1] - by, rect[2] + 2 * by, rect[3] + 2 * by


def _progress(canvas: _Canvas, rect: Rect, share: float) -> None:
    """A bar under a picture, filled as far as the loop has come."""
    x, y, width, _ = rect
    canvas.fill((x, y - BAR_GAP - BAR_HEIGHT, width, BAR_HEIGHT), TRACK)
    canvas.fill((x, y - BAR_GAP - BAR_HEIGHT, round(width * share), BAR_HEIGHT), BAR)


def _check_film(name: str, frames: Sequence[np.ndarray] | np.ndarray, fps: float) -> None:
    """Raises ValueError unless there are (H, W, 3) uint8 frames and a rate to show them at."""
    if len(frames) == 0 or not fps > 0:
        raise ValueError(f"{name}: expected at least one frame and fps above 0, got {len(frames)} and {fps}")
    check_frame(name, np.asarray(frames[0]))


class _PairWindow:
    """Two clips side by side, frame by frame together, at real speed, over and over, some of them framed."""

    def __init__(self, title: str, keys: dict[str, str], keys_line: str) -> None:
        self._canvas = _Canvas(title, 1080, 780, keys)
        self._keys_line = keys_line
        self._clips: tuple[np.ndarray, np.ndarray] | None = None
        self._framed: tuple[int, ...] = ()
        self.playback = Playback()
        self._caption, self._pairs = "Waiting for clips", 0
        self._draw()

    def message(self, text: str) -> None:
        """Shows text instead of clips while there is no pair; answers are not taken."""
        self._clips, self._caption = None, text
        self._draw()

    def caption(self, text: str) -> None:
        """Changes the line under the clips."""
        self._caption = text

    def close(self) -> None:
        self._canvas.close()

    def _start(self, left: np.ndarray, right: np.ndarray, fps: float, caption: str) -> None:
        """Shows a pair from frame 0 of both."""
        _check_film("left clip", left, fps)
        _check_film("right clip", right, fps)
        self._clips, self._caption, self._pairs = (left, right), caption, self._pairs + 1
        self.playback.start(max(len(left), len(right)), fps)
        self._draw()

    def _draw(self) -> None:
        canvas = self._canvas
        if canvas.closed:
            return
        width, height = canvas.window.get_size()
        if self.playback.reading:
            if canvas.begin((self.playback.reading, self.playback.page)):
                self._draw_page(width, height)
                canvas.end()
            return
        if self._clips is None:
            if canvas.begin(self._caption):
                canvas.text("message", self._caption, width // 2, height // 2, 20, TEXT, width - 2 * MARGIN)
                canvas.end()
            return
        index = self.playback.index()
        if canvas.begin((self._pairs, index, self._framed, self._caption)):
            self._draw_pair(self._clips, index)
            canvas.end()

    def _draw_page(self, width: int, height: int) -> None:
        """The page of what is read in place of the clips."""
        columns, rows = max(20, (width - 2 * MARGIN) // LETTER_WIDTH), (height - 2 * MARGIN) // LINE_HEIGHT
        lines = self.playback.page_lines(columns, rows)
        text_width = LETTER_WIDTH * (max(map(cell_len, lines)) + 1)
        self._canvas.text("reading", "\n".join(lines), width // 2, height // 2, 13, TEXT, text_width)

    def _draw_words(self, width: int) -> int:
        """Keys, caption and task at the bottom, one above the other, however long; returns how high they reach."""
        keys = "" if self.playback.writing else self.playback.keys_line or self._keys_line
        y = MARGIN // 3
        for slot, text, size, colour in (
            ("keys", keys, 12, DIM_TEXT),
            ("caption", self._caption, 13, TEXT),
            ("task", self.playback.task, 13, TEXT),
        ):
            if text:
                y += self._canvas.text(slot, text, width // 2, y, size, colour, width - MARGIN, anchor_y="bottom")
                y += MARGIN // 4
        return y

    def _draw_pair(self, clips: tuple[np.ndarray, np.ndarray], index: int) -> None:
        canvas = self._canvas
        width, height = canvas.window.get_size()
        footer = max(FOOTER, self._draw_words(width) + BAR_GAP + BAR_HEIGHT + MARGIN // 3)
        pane = max(1, (width - 3 * MARGIN) // 2)
        share = (index + 1) / max(len(clip) for clip in clips)
        for side, (name, clip) in enumerate(zip(("Left", "Right"), clips, strict=True)):
            box = (
                MARGIN + side * (pane + MARGIN),
                footer,
                pane,
                max(1, height - footer - TITLE - MARGIN // 2),
            )
            frame = clip[min(index, len(clip) - 1)]
            _, y, w, h = _fit(frame, box)
            rect = (box[0] if side else box[0] + pane - w, y, w, h)  # close together: easier to compare
            if side in self._framed:
                canvas.fill(_around(rect, BORDER), CHOSEN)
            canvas.picture(name, frame, rect)
            _progress(canvas, rect, share)
            top = rect[1] + rect[3] + TITLE * 2 // 3
            canvas.text(f"{name} title", name, rect[0] + rect[2] // 2, top, 13, DIM_TEXT, pane)


class ClipWindow(_PairWindow):
    """Asks which of two clips is better; keys answer, and the chosen side lights up."""

    def __init__(self) -> None:
        """Opens the window; raises DisplayError."""
        super().__init__("Which clip is better?", CLIP_KEYS, KEYS_LINE)
        self._framed_until = 0.0
        self._writes = False  # the newest key was pressed while a note was written, so that its text belongs there
        self._canvas.window.push_handlers(on_text=self._on_text, on_text_motion=self._on_motion)

    def _on_text(self, text: str) -> None:
        self._canvas.pressed.append(text)  # a single character; actions have longer names

    def _on_motion(self, motion: int) -> None:
        from pyglet.window import key

        if motion == key.MOTION_BACKSPACE:
            self._canvas.pressed.append("\b")

    def show(self, left: np.ndarray, right: np.ndarray, fps: float, caption: str) -> None:
        """Starts a new pair at frame 0 of both; answers pressed before or within 0.25 s are ignored.

        Args:
            left, right: (T, H, W, 3) uint8; the shorter clip holds its last frame.
            fps: frames per second.
            caption: line under the clips.
        """
        if self._canvas.closed:
            return
        self._canvas.dispatch()
        self._canvas.pressed = [key for key in self._canvas.pressed if key in ALWAYS]
        self._start(left, right, fps, caption)
        self._canvas.guarded_until = time.monotonic() + GUARD_SECONDS

    def tick(self) -> list[str]:
        """Draws what is due and says what was pressed next; never waits. Later presses may mean something else then.

        Returns one of "left", "right", "equal", "incomparable", "undo", "skip", "flag", "gallery", "break", "start" and
        "close", or none; the caller closes. Keys that play the clips, help and notes are the window's own business.
        """
        if self._canvas.closed:
            return []
        self._canvas.dispatch()
        action = self._next()
        if time.monotonic() >= self._framed_until:
            self._framed = ()
        if action in ANSWERS:
            self._framed, self._framed_until = CHOSEN_SIDES[action], time.monotonic() + GUARD_SECONDS
        self._draw()
        return [action] if action else []

    def _next(self) -> str:
        """The next press that is not the window's own business; empty if there is none."""
        if self._canvas.leaving:
            return "close"
        pressed, playback = self._canvas.pressed, self.playback
        while pressed:
            press = pressed.pop(0)
            if len(press) == 1:
                if self._writes and playback.writing:
                    playback.write(press)
                continue
            self._writes = playback.writing
            if playback.writing:
                if press == "escape":  # which is no text
                    playback.write("\x1b")
            elif press and not playback.reads(press) and (self._clips or press in ALWAYS) and not playback.do(press):
                return press
        return ""


class AnswerWindow(_PairWindow):
    """Shows answered pairs, the side that was preferred framed; keys step through them."""

    def __init__(self, title: str = "Answers") -> None:
        """Opens the window; raises DisplayError."""
        super().__init__(title, ANSWER_KEYS, ANSWER_KEYS_LINE)

    def show(self, left: np.ndarray, right: np.ndarray, fps: float, caption: str, answer: str) -> None:
        """Starts a pair at frame 0 of both.

        Args:
            left, right: (T, H, W, 3) uint8; the shorter clip holds its last frame.
            fps: frames per second.
            caption: line under the clips.
            answer: "left", "right", "equal" (both are framed) or "incomparable".
        """
        self._framed = CHOSEN_SIDES[answer]
        self._start(left, right, fps, caption)

    def tick(self) -> list[str]:
        """Draws what is due; returns the presses since the last call: "next", "previous", "close"; never waits."""
        if self._canvas.closed:
            return []
        self._canvas.dispatch()
        self._draw()
        return self._canvas.take_pressed()


class EpisodeWindow:
    """A film of one episode in a window of its own, or live frames as they come."""

    def __init__(self, title: str = "Episode") -> None:
        """Opens the window; raises DisplayError."""
        self._canvas = _Canvas(title, 560, 660, EPISODE_KEYS)
        self._frames: Sequence[np.ndarray] | np.ndarray = []
        self._rewards: np.ndarray | None = None
        self._fps, self._caption, self._started = 1.0, "Waiting for an episode", 0.0
        self._draw()

    def show(
        self,
        frames: Sequence[np.ndarray] | np.ndarray,
        fps: float,
        caption: str,
        *,
        plot: np.ndarray | None = None,
    ) -> None:
        """Starts a film: (H, W, 3) uint8 frames at real speed, again after a pause of 1 s at the end.

        Args:
            frames: any sequence; each frame is asked for when it is due, so it may be decoded there.
            plot: (T,) predicted reward per frame, drawn under the picture as the film goes on.

        Raises:
            ValueError: no frames, frames of another kind, or another number of rewards than frames.
        """
        _check_film("episode", frames, fps)
        if plot is not None and len(plot) != len(frames):
            raise ValueError(f"expected a reward for each of {len(frames)} frames, got {len(plot)}")
        self._frames, self._rewards, self._fps, self._caption = frames, plot, fps, caption
        self._started = time.monotonic()
        self._draw()

    def show_frame(self, frame: np.ndarray, caption: str) -> None:
        """Draws one (H, W, 3) uint8 frame now, and keeps it on until the next."""
        check_frame("episode", frame)
        self._frames, self._rewards, self._caption = [frame], None, caption
        self._started = time.monotonic()
        self._draw()

    def tick(self) -> list[str]:
        """Draws what is due and returns ["close"] if that was pressed; never waits; the caller closes."""
        if self._canvas.closed:
            return []
        self._canvas.dispatch()
        self._draw()
        return self._canvas.take_pressed()

    def close(self) -> None:
        self._canvas.close()

    def _draw(self) -> None:
        canvas, n_frames, index = self._canvas, len(self._frames), 0
        if canvas.closed:
            return
        if n_frames > 1:
            index = loop_index(time.monotonic() - self._started, n_frames, self._fps, EPISODE_PAUSE_SECONDS)
        if not canvas.begin((self._started, index, self._caption)):
            return
        width, height = canvas.window.get_size()
        if n_frames:
            frame = np.asarray(self._frames[index])
            if self._rewards is not None:
                frame = with_reward_plot(frame, self._rewards[: index + 1], caption="predicted reward")
            box = (MARGIN, FOOTER, max(1, width - 2 * MARGIN), max(1, height - FOOTER - MARGIN))
            rect = _fit(frame, box)
            canvas.picture("film", frame, rect)
            if n_frames > 1:
                _progress(canvas, rect, (index + 1) / n_frames)
        canvas.text("caption", self._caption, width // 2, 34 if n_frames else height // 2, 13, TEXT, width - MARGIN)
        canvas.end()


class EncodedFrames(Sequence[np.ndarray]):
    """The frames of an episode, decoded one by one as they are shown."""

    def __init__(self, episode: Episode) -> None:
        self._frames, self._env_id = episode.frames, episode.env_id

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int) -> np.ndarray:  # type: ignore[override]
        return shown(self._frames[index], self._env_id)[0]
