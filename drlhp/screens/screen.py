"""The methods that every screen and terminal of a labeller has, a window or a terminal alike."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from drlhp.screens.playback import Playback


class Screen(Protocol):
    """Shows clips and takes presses; no method blocks."""

    playback: Playback

    def show(self, left: np.ndarray, right: np.ndarray, fps: float, caption: str) -> None:
        """Starts a pair of clips (T, H, W, 3) uint8 at frame 0, at `fps` frames per second."""

    def caption(self, text: str) -> None:
        """Changes the line under the clips."""

    def message(self, text: str) -> None:
        """Shows text instead of clips."""

    def tick(self) -> list[str]:
        """Draws what is due, and returns the actions pressed since the last call, without those that play clips."""

    def close(self) -> None: ...


class Presses(Protocol):
    """Keys or lines from the terminal beside a screen; no method blocks."""

    def next(self, *, asked: bool) -> str | None:
        """Returns the next action, or None.

        Args:
            asked: whether there is a pair to answer.
        """

    def new_pair(self) -> None:
        """Takes note that another pair is shown from now on."""

    def close(self) -> None: ...


class NoScreen:
    """Shows nothing: for answers that a program sends as lines."""

    def __init__(self) -> None:
        self.playback = Playback()

    def show(self, left: np.ndarray, right: np.ndarray, fps: float, caption: str) -> None:
        self.playback.start(max(len(left), len(right)), fps)

    def caption(self, text: str) -> None: ...

    def message(self, text: str) -> None: ...

    def tick(self) -> list[str]:
        return []

    def close(self) -> None: ...
