"""Records whole episodes as people see them."""

from __future__ import annotations

import numpy as np

from drlhp.data.views import encode_view
from drlhp.runtime.channels import Episode


class EpisodeRecorder:
    """Keeps the frames of environment 0 as people see them, compressed one by one, until the episode ends."""

    KEPT = ("frames", "episode_return")

    def __init__(self, env_id: str, fps: float) -> None:
        self.env_id, self.fps, self.frames, self.episode_return = env_id, fps, list[bytes](), 0.0

    def add(self, frame: np.ndarray, reward: float, done: bool) -> Episode | None:
        """Adds one step, seen as a frame or a state; returns the episode that it ended."""
        self.frames.append(encode_view(frame[None]))
        self.episode_return += reward
        if not done:
            return None
        episode = Episode(self.env_id, tuple(self.frames), self.episode_return, self.fps)
        self.frames, self.episode_return = [], 0.0
        return episode
