"""The program that a command of the library is part of: its name, and what it knows of environments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ATARI_FPS = 15.0  # 60 frames a second, of which the original project's agents saw each fourth


@dataclass(frozen=True)
class Program:
    """The library's own program, `drlhp`, knows no environment by name; `run.py` knows those of `envs/`."""

    name: str = "drlhp"  # as messages and the help call it
    task_of: Callable[[str], str] = lambda _env_id: ""  # good behaviour in an environment, or nothing
    # Agent steps a second of an environment whose observations are pictures; None for another kind.
    pixels_fps: Callable[[str], float | None] = lambda _env_id: ATARI_FPS


_programs = [Program()]


def set_program(program: Program) -> None:
    """Makes the commands of this process part of a program."""
    _programs[:] = [program]


def program() -> Program:
    """Returns the program that this process's commands are part of."""
    return _programs[0]
