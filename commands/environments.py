"""Lends the library what this project knows of environments."""

from __future__ import annotations

from drlhp.data.views import draw_with
from envs import draw_states


def lend_environments() -> None:
    """Lets the library draw the bodies, of which stores hold states and not frames, in this process."""
    draw_with(draw_states)
