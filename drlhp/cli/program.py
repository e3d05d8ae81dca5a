"""The program that a command of the library is part of: its name, and what it knows about environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drlhp.data.cutter import SegmentSource

ATARI_FPS = 15.0  # Atari shows 60 frames a second, and the original project's agents saw every fourth.


@dataclass(frozen=True)
class Program:
    """The library's own program, `drlhp`, knows no environment by name; `run.py` knows those of `envs/`."""

    name: str = "drlhp"  # the name in messages and in the help
    task_of: Callable[[str], str] = lambda _env_id: ""  # says what good behaviour is in an environment; may be empty
    # Returns what is known about an environment, None if the program knows none; raises UserError for an unknown id.
    info_of: Callable[[str], SegmentSource | None] = lambda _env_id: None
    log_dir: str = "drlhp_logs"  # where its runs are, unless the user says otherwise


_programs = [Program()]


def set_program(program: Program) -> None:
    """Makes the commands of this process part of a program."""
    _programs[:] = [program]


def program() -> Program:
    """Returns the program that this process's commands are part of."""
    return _programs[0]
