"""Pictures for videos and windows: a frame over a plot of its rewards, two frames side by side, and video files.

Opens no window and imports no other module of this project.
"""

from __future__ import annotations

import functools
import io
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]
BACKGROUND, TRACK, BAR = (24, 26, 31), (58, 62, 72), (120, 170, 255)
CHOSEN, TEXT, DIM_TEXT = (88, 204, 120), (236, 238, 242), (150, 156, 168)
# The sides that get a border in a pair with this answer.
CHOSEN_SIDES = {"left": (0,), "right": (1,), "equal": (0, 1), "incomparable": ()}
BORDER = 5  # width in pixels of the border around the preferred side

PLOT_WIDTH, PLOT_HEIGHT, PLOT_STEP = 320, 112, 2  # pixels: least width, height, width of one agent step
LINE_SIZE, SMALLEST_LINE = 15, 11  # pixels: size of the letters below a picture, at least; of those in a long line
LETTERS_PER_WIDTH = 40  # A picture is so many letters wide, at most. A large one is shrunk to be watched.
VIDEO_SUFFIXES = (".mp4", ".gif")
VIDEO_SIDE = 320  # pixels: least short side of a video
# Pixels of a picture of two clips. A whole multiple of 84x84 and of 160x210 fills a pane.
PANE_WIDTH, PANE_HEIGHT, PAIR_MARGIN, PAIR_FOOTER = 336, 420, 16, 44


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Returns the font of this size; it is loaded once, because that takes as long as to draw a line."""
    return ImageFont.load_default(size)


def check_frame(name: str, frame: np.ndarray) -> None:
    """Raises ValueError unless the frame is (H, W, 3) uint8."""
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        raise ValueError(f"{name}: expected (H, W, 3) uint8 frames, got {frame.shape} {frame.dtype}")


def with_reward_plot(frame: np.ndarray, rewards_so_far: Sequence[float] | np.ndarray, *, caption: str) -> np.ndarray:
    """Returns the frame over a plot of the rewards so far: a new array, enlarged so that the plot is sharp.

    The newest reward is at the right end of the curve. The scale spans zero and all rewards so far, so it never
    shrinks during an episode.

    Args:
        frame: (H, W, 3) uint8.
        rewards_so_far: (t,) rewards up to and including this frame's, t >= 1.
        caption: the name of the curve.

    Returns (H k + 112, W k, 3) uint8, where k is the least whole number that makes W k at least 320.
    """
    check_frame("frame", frame)
    picture = _enlarge(frame, math.ceil(PLOT_WIDTH / frame.shape[1]))
    rewards = np.asarray(rewards_so_far, dtype=np.float64)
    width, top, bottom = picture.shape[1], 30, PLOT_HEIGHT - 10
    low, high = min(0.0, float(rewards.min())), max(0.0, float(rewards.max()))
    span = (high - low) or 1.0
    shown = rewards[-(width // PLOT_STEP) :]
    ys = bottom - (shown - low) / span * (bottom - top)
    points = [(i * PLOT_STEP, round(y)) for i, y in enumerate(ys)]
    zero = round(bottom + low / span * (bottom - top))

    strip = Image.new("RGB", (width, PLOT_HEIGHT), BACKGROUND)
    draw = ImageDraw.Draw(strip)
    font = _font(15)
    draw.line([(0, zero), (width, zero)], fill=TRACK)
    draw.line(points, fill=BAR, width=2)
    x, y = points[-1]
    draw.ellipse([x - 3, y - 3, x + 3, y + 3], fill=TEXT)
    draw.text((8, 14), caption, font=font, fill=DIM_TEXT, anchor="lm")
    draw.text((width - 8, 14), f"{rewards[-1]:+.2f}", font=font, fill=TEXT, anchor="rm")
    return np.concatenate([picture, np.asarray(strip)])


def with_lines(frame: np.ndarray, lines: Sequence[str]) -> np.ndarray:
    """Returns the frame over lines of text: a new array, enlarged so that they can be read.

    The letters of a line that is too wide are made smaller, and then its end is left out.

    Args:
        frame: (H, W, 3) uint8.

    Returns (H k + N, W k, 3) uint8, where k is the least whole number that makes W k at least 320. N depends on W k and
    the number of lines alone.
    """
    check_frame("frame", frame)
    picture = _enlarge(frame, math.ceil(PLOT_WIDTH / frame.shape[1]))
    width = picture.shape[1]
    size = max(LINE_SIZE, width // LETTERS_PER_WIDTH)
    pitch, margin = round(size * 1.4), size // 2
    height = len(lines) * pitch + 2 * margin
    strip = Image.new("RGB", (width, height + height % 2), BACKGROUND)  # mp4 needs even sizes, as most pictures have
    draw = ImageDraw.Draw(strip)
    for i, line in enumerate(lines):
        text, font = _fitting(line, width - 2 * margin, size)
        draw.text((margin, margin + i * pitch + pitch // 2), text, font=font, fill=TEXT, anchor="lm")
    return np.concatenate([picture, np.asarray(strip)])


def _fitting(line: str, width: int, size: int) -> tuple[str, ImageFont.FreeTypeFont | ImageFont.ImageFont]:
    """Returns a line, and a font of at most this size, such that the line is not wider than so many pixels."""
    for smaller in range(size, SMALLEST_LINE - 1, -1):
        font = _font(smaller)
        if font.getlength(line) <= width:
            return line, font
    while line and font.getlength(f"{line}...") > width:
        line = line[:-1]
    return f"{line}...", font


def pair_picture(left: np.ndarray, right: np.ndarray, framed: Sequence[int], *, caption: str) -> np.ndarray:
    """Returns two frames side by side over a caption: (480, 720, 3) uint8, whatever the frames' sizes.

    Args:
        left, right: (H, W, 3) uint8, of any size; each is scaled to fit its pane.
        framed: the sides that get a border: 0 for left, 1 for right.
    """
    width, height = 3 * PAIR_MARGIN + 2 * PANE_WIDTH, PAIR_MARGIN + PANE_HEIGHT + PAIR_FOOTER
    picture = Image.new("RGB", (width, height), BACKGROUND)
    draw = ImageDraw.Draw(picture)
    for side, frame in enumerate((left, right)):
        check_frame("pair", frame)
        shown = _fitted(frame)
        # Frames that are close together are easier to compare.
        x = PAIR_MARGIN + PANE_WIDTH - shown.width if side == 0 else 2 * PAIR_MARGIN + PANE_WIDTH
        y = PAIR_MARGIN + (PANE_HEIGHT - shown.height) // 2
        if side in framed:
            draw.rectangle(
                (x - BORDER, y - BORDER, x + shown.width + BORDER - 1, y + shown.height + BORDER - 1), CHOSEN
            )
        picture.paste(shown, (x, y))
    draw.text((width // 2, height - PAIR_FOOTER // 2), caption, font=_font(17), fill=TEXT, anchor="mm")
    return np.asarray(picture)


def _fitted(frame: np.ndarray) -> Image.Image:
    """Returns the frame as large as a pane allows: enlarged by a whole factor with hard edges, or smoothly shrunk."""
    scale = min(PANE_WIDTH / frame.shape[1], PANE_HEIGHT / frame.shape[0])
    if scale >= 1:
        return Image.fromarray(_enlarge(frame, math.floor(scale)))
    size = (max(1, int(frame.shape[1] * scale)), max(1, int(frame.shape[0] * scale)))
    return Image.fromarray(frame).resize(size, Image.Resampling.BOX)


def pair_film(
    left: np.ndarray, right: np.ndarray, framed: Sequence[int], *, caption: str, n_held: int = 0
) -> Iterator[np.ndarray]:
    """Yields a picture of two clips (T, H, W, 3) for each step, and the last one `n_held` times more.

    The shorter clip holds its last frame.
    """
    for i in range(max(len(left), len(right)) + n_held):
        frames = left[min(i, len(left) - 1)], right[min(i, len(right) - 1)]
        yield pair_picture(*frames, framed, caption=caption)


def write_video(
    path: Path, frames: Iterable[np.ndarray], fps: float, *, keep: bool = False, side: int = VIDEO_SIDE
) -> Path:
    """Writes (H, W, 3) uint8 frames of one size as .mp4 or .gif; the file appears whole or not at all.

    Small frames are enlarged by a whole factor until the short side has at least `side` pixels. With `keep`, a file of
    that name stays, and the new one gets a number. Returns the path of the new file.
    Raises ValueError for another suffix, for no frames, or for frames of another kind.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in VIDEO_SUFFIXES:
        raise ValueError(f"'{path.name}' is no video name: end it in .mp4 or .gif.")
    iterator = iter(frames)
    first = next(iterator, None)
    if first is None:
        raise ValueError(f"There are no frames to write to '{path.name}': record at least one.")
    check_frame("video", first)
    factor = math.ceil(side / min(first.shape[:2]))
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.part{suffix}")
    try:
        write = _write_mp4 if suffix == ".mp4" else _write_gif
        write(temporary, (_enlarge(frame, factor) for frame in chain([first], iterator)), fps)
        path = unused(path) if keep else path  # Checked only now, because such a file may have appeared meanwhile.
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def unused(path: Path) -> Path:
    """Returns the path; if that file exists, the first free path with -2, -3, ... before the suffix."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return free


def _enlarge(frame: np.ndarray, factor: int) -> np.ndarray:
    """Returns the frame enlarged with hard edges; the frame itself if it is as large already."""
    return frame if factor == 1 else frame.repeat(factor, axis=1).repeat(factor, axis=0)


def _write_mp4(path: Path, frames: Iterator[np.ndarray], fps: float) -> None:
    import av

    first = next(frames)
    height, width = (side + side % 2 for side in first.shape[:2])  # yuv420p needs even sizes.
    # Without `file:`, FFmpeg would take the part of the name before a colon for a protocol.
    with av.open(f"file:{path}", "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": "18", "preset": "veryfast"}  # Much faster than the default, at about the same size.
        for frame in chain([first], frames):
            padding = ((0, height - frame.shape[0]), (0, width - frame.shape[1]), (0, 0))
            picture = av.VideoFrame.from_ndarray(np.pad(frame, padding, mode="edge"), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def _write_gif(path: Path, frames: Iterator[np.ndarray], fps: float) -> None:
    path.write_bytes(gif_of(frames, fps))


def is_grey(frame: np.ndarray) -> bool:
    """Returns whether a frame (H, W, 3) has shades of grey alone."""
    return bool((frame[:, :, 0] == frame[:, :, 1]).all() and (frame[:, :, 1] == frame[:, :, 2]).all())


def gif_of(frames: Iterable[np.ndarray], fps: float, *, quickly: bool = False) -> bytes:
    """Returns an animated GIF of (H, W, 3) uint8 frames of one size; it needs at least one.

    Args:
        quickly: takes less time, and shows frames of more than 256 colours less well.
    """
    method = Image.Quantize.FASTOCTREE if quickly else None
    stride = math.ceil(fps / 50)  # Players slow down GIFs with more than 50 frames per second.
    pictures = [
        # Shades of grey fit the palette as they are.
        Image.fromarray(frame[:, :, 0])
        if is_grey(frame)
        else Image.fromarray(frame).quantize(256, method, dither=Image.Dither.NONE)
        for i, frame in enumerate(frames)
        if i % stride == 0
    ]
    # A GIF stores durations in 1/100 s. Rounding the times, not the durations, keeps the speed right.
    times = [round(100 * i * stride / fps) * 10 for i in range(len(pictures) + 1)]
    durations = [end - start for start, end in pairwise(times)]
    file = io.BytesIO()
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], duration=durations, loop=0)
    return file.getvalue()
