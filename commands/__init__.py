"""The commands of `run.py`: which there are, and where each lives. Those of the library are in drlhp/cli/.

Imports the standard library alone until a command is named, so that the help is printed at once, and so that
`run.py` can say what is missing where nothing is installed.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from drlhp import __version__
from drlhp.cli import COMPLETION, USER_ERROR, dispatch
from drlhp.cli import PLACES as LIBRARY
from drlhp.errors import UserError
from drlhp.runtime.pulse import Patience, doing, here

Mode = Literal[
    "train_policy_with_preferences",
    "train_policy_with_original_rewards",
    "gather_initial_prefs",
    "pretrain_reward_predictor",
]
LOG_DIR = "runs"  # where runs are made by default
MODES: tuple[str, ...] = get_args(Mode)
# Where each other command lives; its module is imported when the command is used.
PLACES = {
    **LIBRARY,
    "watch": "commands.watch:watch_command",
    "show_prefs": "commands.show_prefs:show_prefs_command",
    "restore": "commands.restore:restore_command",
    "report": "commands.report:report_command",
    "reproduce": "commands.reproduce:reproduce_command",
    "push": "commands.sharing.push:push_command",
    "load": "commands.sharing.load:load_command",
}
NEED_ENVIRONMENTS = PLACES.keys() - {"reproduce"}  # which lists its experiments at once
# What people wait for at these commands; `watch` and `show_prefs` end it when there is something to look at.
SLOW = {"report": "the report", "show_prefs": "the reading of the answers", "watch": "the loading of the agent"}
COMMANDS = (*MODES, *PLACES, "--resume")
USAGE = """usage: python run.py COMMAND ...

  train_policy_with_preferences ENV       gather labels, learn the reward from them, and the policy from that
  train_policy_with_original_rewards ENV  learn the policy from the environment's own reward
  gather_initial_prefs ENV                gather labels about an untrained policy, and stop
  pretrain_reward_predictor ENV           learn the reward from stored labels (--load_prefs_dir), and stop
  label RUN                               answer about the segments that a run stored, without training
  watch RUN                               play a trained agent, with its predicted reward below
  show_prefs RUN                          step through stored comparisons and their answers
  report RUN...                           write a page that says whether the agent learned, and why
  reproduce NAME                          carry out a named experiment on several seeds; without a name, list them
  export RUN --output DIR                 write labels and segments for other tools: JSON lines, NumPy, CSV
  import DIR --output FOLDER              make a new store of them, or of the original project's pickles
  restore RUN FROM                        put a copy of a run's store into it, or keep the undamaged rows of the store
  push RUN REPO                           share policy and predictor, or labels, on the Hugging Face Hub, in S3 or here
  load REPO                               download what others have pushed, and check it
  --resume RUN                            continue a run that was stopped or that failed
  --version                               the version, and the commit of this clone
  --tyro-print-completion SHELL           a script after which bash completes commands and flags; also for zsh and fish

  ENV: MovingDotNoFrameskip-v0, PongNoFrameskip-v4, EnduroNoFrameskip-v4, any other Atari game, CartPole-v1,
       Hopper, Walker, HalfCheetah, Swimmer, Ant, Reacher, ...
  python run.py COMMAND ENV --help        every flag, with the defaults for that environment
"""
NEEDED = ("numpy", "gymnasium", "torch", "tyro")  # of the Pipfile's packages, those that every command imports


def leave_without_packages() -> None:
    """Ends the program, and says how to set it up, unless its packages are installed."""
    if not all(map(find_spec, NEEDED)):
        setup = "run `make setup` once, and then `.venv/bin/python run.py ...`"
        print(f"run.py: the packages of the Pipfile are not installed for {sys.executable}; {setup}.", file=sys.stderr)
        sys.exit(USER_ERROR)


def names_mode(arguments: list[str]) -> bool:
    """Returns whether a command line names one of the four modes, or resumes a run of one."""
    return bool(arguments) and arguments[0] in (*MODES, "--resume")


def starts_processes(arguments: list[str]) -> bool:
    """Returns whether the run of a mode's command line may start processes: a synchronous one, also resumed, does not.

    Reads config.json without PyTorch, which takes seconds to import; what is wrong with the file is said later.
    """
    if "--synchronous" in arguments:
        return False
    if "--resume" not in arguments[:-1]:
        return True
    import json  # for this alone: the help is printed without it

    from drlhp.runtime.regular_files import read_regular
    from drlhp.runtime.run_files import MAX_CONFIG

    file = Path(arguments[arguments.index("--resume") + 1]) / "config.json"
    try:
        return not json.loads(read_regular(file, MAX_CONFIG))["config"]["synchronous"]
    except (UserError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return True


def run_command(arguments: list[str]) -> int:
    """Carries out a command other than the four modes; returns the exit status. Raises UserError for an unknown one."""
    if not arguments or arguments[0] not in SLOW:
        return _carry_out(arguments)
    what = SLOW[arguments[0]]
    patience = Patience(lambda sentence: print(sentence, flush=True), {"": here()}, soon=(what,))
    try:
        with doing(what):
            return _carry_out(arguments)
    finally:
        patience.close()


def _carry_out(arguments: list[str]) -> int:
    if arguments and arguments[0] in NEED_ENVIRONMENTS:
        from commands.environments import lend_environments

        lend_environments()
    if arguments == ["--version"]:
        from commands.run_folder import git_revision

        print(f"run.py {__version__}, commit {git_revision()}")
        return 0
    return dispatch(arguments, {**PLACES, COMPLETION: "commands.completion:completion_command"}, USAGE, MODES)
