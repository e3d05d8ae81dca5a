"""A window with the film of an episode, or with live frames as they come."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from drlhp.data.views import shown
from drlhp.pictures import TEXT, check_frame, with_reward_plot
from drlhp.runtime.channels import Episode
from drlhp.screens.canvas import FOOTER, MARGIN, Canvas, check_film, fit, progress_bar
from drlhp.screens.keys import EPISODE_KEYS
from drlhp.screens.playback import loop_index

EPISODE_PAUSE_SECONDS = 1.0


class EpisodeWindow:
    """A film of one episode in a window of its own, or live frames as they come."""

    def __init__(self, title: str = "Episode") -> None:
        """Opens the window; raises DisplayError."""
        self._canvas = Canvas(title, 560, 660, EPISODE_KEYS)
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
        """Starts a film of (H, W, 3) uint8 frames at real speed, which begins again 1 s after its end.

        Args:
            frames: any sequence; it may decode each frame when that is due and asked for.
            plot: (T,) predicted reward per frame, drawn under the picture as the film goes on.

        Raises:
            ValueError: no frames, frames of another kind, or another number of rewards than frames.
        """
        check_film("episode", frames, fps)
        if plot is not None and len(plot) != len(frames):
            raise ValueError(f"expected a reward for each of {len(frames)} frames, got {len(plot)}")
        self._frames, self._rewards, self._fps, self._caption = frames, plot, fps, caption
        self._started = time.monotonic()
        self._draw()

    def show_frame(self, frame: np.ndarray, caption: str) -> None:
        """Draws one (H, W, 3) uint8 frame now, which stays until the next."""
        check_frame("episode", frame)
        self._frames, self._rewards, self._caption = [frame], None, caption
        self._started = time.monotonic()
        self._draw()

    def tick(self) -> list[str]:
        """Draws what is due, and returns ["close"] if that was pressed; never blocks, and the caller closes it."""
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
            rect = fit(frame, box)
            canvas.picture("film", frame, rect)
            if n_frames > 1:
                progress_bar(canvas, rect, (index + 1) / n_frames)
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
