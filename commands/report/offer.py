"""The runs of a folder, each with the command that makes its report (`run.py report FOLDER`)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from commands.report import words
from commands.report.runs import Run
from drlhp.errors import UserError

MAX_TOGETHER = 10  # runs in one command; more would not be read


def offer(folder: Path, paths: Sequence[Path]) -> str:
    """Returns what each of these runs has reached, its command, and a command for those of one environment."""
    lines = [f"{folder} holds {len(paths)} run{'s' if len(paths) > 1 else ''}, newest first:"]
    by_env: dict[str, list[Path]] = {}
    for path in paths:
        try:
            run = Run.load(path)
        except UserError as error:
            lines.append(f"  {path.name}: {error}")
            continue
        by_env.setdefault(run.env_id, []).append(path)
        lines += [f"  {path.name}: {run.env_id}. {words.headline(run)}", f"    {_command([path])}"]
    for env_id, several in by_env.items():
        if len(several) > 1:
            newest = "the newest of them" if len(several) > MAX_TOGETHER else "them"
            lines += [f"To compare {newest} on {env_id}:", f"    {_command(several[:MAX_TOGETHER])}"]
    return "\n".join(lines)


def _command(paths: Sequence[Path]) -> str:
    return shlex.join(["python", "run.py", "report", *map(str, paths)])
