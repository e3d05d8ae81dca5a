"""Takes one measurement of one part, or of a whole run, and prints it as one line of JSON.

python -m benchmarks.speed.measure emulator --seconds 10
python -m benchmarks.speed.measure --help

A store is a folder with a prefs.db of Pong: `python run.py gather_initial_prefs PongNoFrameskip-v4 --synthetic_prefs`.
"""

from __future__ import annotations

import json
import os
import sys

import tyro


def main() -> None:
    environment = dict(os.environ)
    # Late: `run` sets environment variables for its children, which have to be there when a process starts.
    import torch

    from benchmarks.speed.parts import PARTS, device, pong_config
    from benchmarks.speed.whole_runs import WHOLE_RUNS
    from drlhp.errors import USER_ERRORS, told
    from run import n_threads, take_turns

    if dict(os.environ) != environment:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # start again, as a child of a run starts
    torch.set_num_threads(n_threads(take_turns(pong_config()), device()))  # as many as a child of a run has
    try:
        result = tyro.extras.subcommand_cli_from_dict({f.__name__: f for f in (*PARTS, *WHOLE_RUNS)})
    except USER_ERRORS as error:
        sys.exit(f"measure.py: {told(error)}")
    print(json.dumps({**result, "device": device().type}))


if __name__ == "__main__":
    main()
