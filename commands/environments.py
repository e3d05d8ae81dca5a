"""Lends the library what this project knows of environments."""

from __future__ import annotations

from commands import LOG_DIR
from drlhp.cli.program import Program, set_program
from drlhp.data.views import draw_with
from envs import draw_states, env_info, task_of


def lend_environments() -> None:
    """Lets the library's commands name tasks and environments, and draw the states that stores hold of bodies."""
    draw_with(draw_states)
    set_program(Program("run.py", task_of, env_info, LOG_DIR))
