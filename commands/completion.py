"""Completion of the commands and flags of run.py by the shell (`run.py --tyro-print-completion bash`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from commands import MODES
from commands.config import RunConfig
from commands.report.command import ReportConfig
from commands.reproduce import reproduce
from commands.sharing.load import LoadConfig
from commands.sharing.push import PushConfig
from commands.show_prefs import ShowPrefsConfig
from commands.watch import WatchConfig
from drlhp.cli import completion

# What reads the flags of each command.
SETTINGS: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys((*MODES, "--resume"), RunConfig),
    **completion.SETTINGS,
    "watch": WatchConfig,
    "show_prefs": ShowPrefsConfig,
    "report": ReportConfig,
    "reproduce": reproduce,
    "push": PushConfig,
    "load": LoadConfig,
}


def completion_command(arguments: list[str]) -> None:
    """Runs `run.py --tyro-print-completion`. Raises UserError."""
    completion.print_completion("run.py", SETTINGS, arguments)
