"""Becomes another program on certain cores, which ends as soon as the process that started it does.

python commands/tethered.py PARENT CORES PROGRAM ...

Started as a file, and not by `preexec_fn`, because a process with many threads should run nothing after a fork.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main(parent: int, cores: str, program: list[str]) -> None:
    """Becomes the program; returns only if the parent has ended already.

    Args:
        parent: the id of the process that started this one.
        cores: their numbers with commas between them; empty for all.
    """
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from drlhp.runtime.leash import end_with_parent

    end_with_parent()  # the system keeps this through `execv`
    if os.getppid() != parent:  # it ended before
        return
    if cores:
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    os.execv(program[0], program)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
