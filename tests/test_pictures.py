"""Pictures compared with what they are made of; videos written and read back."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from drlhp import pictures as video

RED, BLUE = (200, 30, 40), (30, 60, 210)


def clip(n_frames: int, colour: tuple[int, int, int], size: tuple[int, int] = (84, 84)) -> np.ndarray:
    """A read-only clip of one colour, so that writing to it would fail."""
    frames = np.full((n_frames, *size, 3), colour, dtype=np.uint8)
    frames.flags.writeable = False
    return frames


def test_the_reward_plot_follows_the_rewards_and_leaves_the_frame_alone() -> None:
    frame = clip(1, RED, (84, 84))[0]
    low, high = (video.with_reward_plot(frame, [1.0, -1.0, r], caption="reward") for r in (-1.0, 1.0))
    assert low.shape == (84 * 4 + video.PLOT_HEIGHT, 84 * 4, 3) and low.dtype == np.uint8
    assert (low[: 84 * 4] == RED).all()
    x = 2 * video.PLOT_STEP
    heights = [np.argmin(np.abs(p[84 * 4 + 24 :, x].astype(int) - video.TEXT).sum(axis=1)) for p in (low, high)]
    assert heights[0] - heights[1] > 60  # the dot of the newest reward; rows count down


def test_a_long_episode_scrolls_and_constant_rewards_draw_a_line() -> None:
    frame = clip(1, RED, (84, 84))[0]
    assert len({video.with_reward_plot(frame, [0.0] * n, caption="reward").shape for n in (1, 2, 3)}) == 1
    long = video.with_reward_plot(frame, np.sin(np.arange(1000)), caption="reward")
    bars = (long[84 * 4 + 24 :] == video.BAR).all(axis=-1).any(axis=0)
    assert bars[:300].mean() > 0.9


def test_a_gif_of_grey_and_coloured_frames_shows_each_as_it_is() -> None:
    frames = [np.full((8, 8, 3), 20 * i, np.uint8) for i in range(6)]
    frames[2][2:4, 2:4], frames[4][1:3] = RED, BLUE
    file = Image.open(io.BytesIO(video.gif_of(frames, 10)))
    for i, frame in enumerate(frames):
        file.seek(i)
        assert (np.asarray(file.convert("RGB")) == frame).all()


@pytest.mark.parametrize("width", [160, 480, 1280])
def test_lines_below_a_picture_fit_and_can_be_read(width: int) -> None:
    frame = np.full((100, width, 3), 90, np.uint8)
    short, long, longest = (video.with_lines(frame, ["seed 0", "x" * n]) for n in (1, 42, 400))
    enlarged = 320 // min(width, 320) * width
    assert short.shape == long.shape == longest.shape and short.shape[1] == enlarged
    strip = len(short) - 100 * enlarged // width
    assert (short[:-strip] == 90).all(), "the picture itself is untouched"
    for picture in (short, long, longest):
        text = np.abs(picture[-strip:].astype(int) - video.BACKGROUND).max(axis=-1) > 40
        rows, columns = text.any(axis=1).nonzero()[0], text.any(axis=0).nonzero()[0]
        assert columns[0] >= 5 and columns[-1] < enlarged - 5 and rows[0] > 0 and rows[-1] < strip - 1
    letters = (np.abs(short[-strip:].astype(int) - video.BACKGROUND).max(axis=-1) > 40).any(axis=1).sum()
    assert letters >= 2 * max(8, enlarged // 80), "two lines of letters that are as large as the picture demands"


@pytest.mark.parametrize(
    ("size", "shown"), [((84, 84), (336, 336)), ((210, 160), (420, 320)), ((400, 600), (224, 336))]
)
def test_a_pair_is_fitted_framed_and_of_one_size(size: tuple[int, int], shown: tuple[int, int]) -> None:
    picture = video.pair_picture(clip(1, RED, size)[0], clip(1, BLUE, size)[0], (1,), caption="right better")
    assert picture.shape == (480, 720, 3) and picture.dtype == np.uint8

    def box(colour: tuple[int, int, int]) -> tuple[int, int, int, int]:
        ys, xs = np.nonzero((picture == colour).all(axis=-1))
        return xs.min(), ys.min(), xs.max() + 1, ys.max() + 1

    left, right, frame = box(RED), box(BLUE), box(video.CHOSEN)
    for x0, y0, x1, y1 in (left, right):
        assert (y1 - y0, x1 - x0) == shown
    assert left[2] < frame[0] < right[0] and right[2] < frame[2] <= 720
    assert frame[1] == right[1] - video.BORDER and frame[3] == right[3] + video.BORDER
    assert box(video.TEXT)[1] > right[3]


def film() -> np.ndarray:
    """Twelve frames of odd size, each of a colour of its own."""
    frames = np.zeros((12, 85, 107, 3), dtype=np.uint8)
    frames[...] = (20 * np.arange(12))[:, None, None, None]
    frames[:, :, 50:, 0] = 220
    return frames


def test_mp4_can_be_read_back(tmp_path: Path) -> None:
    path = video.write_video(tmp_path / "episode.mp4", iter(film()), 15)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264" and stream.codec_context.pix_fmt == "yuv420p"
        assert stream.average_rate == 15
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == 12 and frames[0].shape == (340, 428, 3)
    for frame, original in zip(frames, film(), strict=True):
        assert np.abs(frame[2::4, 2::4].astype(int) - original).mean() < 6
    assert os.listdir(tmp_path) == ["episode.mp4"]


def test_a_colon_in_a_name_is_no_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert video.write_video(Path("at-12:30.mp4"), iter(film()), 15).stat().st_size


@pytest.mark.parametrize(("fps", "n_frames"), [(15, 12), (60, 6)])
def test_gif_can_be_read_back_and_keeps_its_speed(tmp_path: Path, fps: int, n_frames: int) -> None:
    path = video.write_video(tmp_path / "episode.gif", film(), fps)
    with Image.open(path) as gif:
        assert getattr(gif, "n_frames", 1) == n_frames and gif.size == (428, 340) and gif.info["loop"] == 0
        duration = 0.0
        for i in range(n_frames):
            gif.seek(i)
            duration += gif.info["duration"]
            shown = np.asarray(gif.convert("RGB"))[2::4, 2::4].astype(int)
            assert np.abs(shown - film()[i * 12 // n_frames]).mean() < 6
    assert duration == pytest.approx(12_000 / fps, abs=10)


def test_a_video_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "episode.mp4"
    path.write_bytes(b"old")

    def breaks() -> Iterator[np.ndarray]:
        yield from film()[:3]
        raise RuntimeError("the emulator stopped")

    with pytest.raises(RuntimeError, match="the emulator stopped"):
        video.write_video(path, breaks(), 15)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["episode.mp4"]


def test_a_video_that_another_one_makes_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "watch.mp4"

    def frames() -> Iterator[np.ndarray]:
        yield clip(1, RED)[0]
        path.write_bytes(b"of another")

    assert video.write_video(path, frames(), 15, keep=True) == tmp_path / "watch-2.mp4"
    assert path.read_bytes() == b"of another" and sorted(os.listdir(tmp_path)) == ["watch-2.mp4", "watch.mp4"]


def test_what_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'episode.avi' is no video name: end it in .mp4 or .gif"):
        video.write_video(tmp_path / "episode.avi", film(), 15)
    with pytest.raises(ValueError, match=r"no frames to write to 'episode\.gif'"):
        video.write_video(tmp_path / "episode.gif", [], 15)
