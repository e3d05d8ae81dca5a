"""Chooses the screen for a labeller at this machine: a window, or the terminal."""

from __future__ import annotations

import sys
from typing import Literal

from drlhp.screens.lines import TerminalLines
from drlhp.screens.screen import NoScreen, Presses, Screen

Ui = Literal["auto", "window", "terminal", "web"]


def screen_for(ui: Ui) -> str:
    """Returns `window` or `terminal`: what the flag says, else a window if one can be opened.

    Raises DisplayError if this machine has neither.
    """
    if ui != "auto":
        return ui
    from drlhp.screens.canvas import DisplayError, open_display

    try:
        open_display()
    except DisplayError:
        if not is_terminal():
            raise
        return "terminal"
    return "window"


def is_terminal() -> bool:
    """Returns whether a person is at the terminal: both input and output are one."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def open_screen(ui: Ui) -> tuple[Screen, Presses | None]:
    """Returns the screen, and the keys or lines of the terminal if that is not the screen. Raises DisplayError."""
    if screen_for(ui) == "window":
        from drlhp.screens.window import ClipWindow  # imports pyglet, which only a window needs

        window = ClipWindow()
        if not sys.stdin.isatty():
            return window, TerminalLines(sys.stdin, beside_window=True)
        from drlhp.screens.terminal_keys import TerminalKeys

        return window, TerminalKeys(window.playback)
    if is_terminal():
        from drlhp.screens.terminal import TerminalScreen

        return TerminalScreen(), None
    return NoScreen(), TerminalLines(sys.stdin)
