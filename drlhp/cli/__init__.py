"""The program `drlhp`: the library's commands, which `run.py` has too, and the code that runs any command line.

Until a command is named, only the standard library is imported, so that the help is printed at once.
"""

from __future__ import annotations

import difflib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from drlhp import __version__
from drlhp.cli.streams import hang_up, prepare_streams
from drlhp.errors import USER_ERRORS, ChildError, UserError, told

USER_ERROR, FAILURE, INTERRUPTED, CLOSED = 2, 1, 130, 141  # exit statuses

COMPLETION = "--tyro-print-completion"
# Module and function of each command; the module is imported when the command is used.
PLACES = {
    "label": "drlhp.cli.label:label_command",
    "export": "drlhp.cli.exchange:export_command",
    "import": "drlhp.cli.exchange:import_command",
    "restore": "drlhp.cli.restore:restore_command",
}
USAGE = """usage: drlhp COMMAND ...

  label RUN                    answer about the segments in a run's prefs.db; on a web page with --ui web
  export RUN --output DIR      write labels and segments for other tools: JSON lines, NumPy, CSV
  import DIR --output FOLDER   make a new store of them, or of the original project's pickles
  restore RUN FROM             put a copy of its store into a run, or keep what is whole of a damaged one
  --version                    the version
  --tyro-print-completion SHELL
                               a script after which bash completes commands and flags; also for zsh and fish

  RUN: a wrapper's folder in its log_dir, or any other folder with a prefs.db
  drlhp COMMAND --help         every flag
"""


def main() -> None:
    """Runs the program `drlhp` with the words of its command line, and ends the process."""
    sys.exit(command_line("drlhp", sys.argv[1:], library_command))


def library_command(arguments: list[str]) -> int:
    """Carries out a command of the library; returns the exit status. Raises UserError for an unknown one."""
    if arguments == ["--version"]:
        print(f"drlhp {__version__}")
        return 0
    return dispatch(arguments, {**PLACES, COMPLETION: "drlhp.cli.completion:completion_command"}, USAGE)


def dispatch(arguments: list[str], places: Mapping[str, str], usage: str, others: Sequence[str] = ()) -> int:
    """Runs the command that the first argument names; returns the exit status.

    Args:
        places: `module:function` of each command.
        usage: the text of the help.
        others: commands that the caller runs itself; they are suggested too if a name is mistyped.

    Raises:
        UserError: there is no such command.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage, end="")
        return 0 if arguments else USER_ERROR
    name, *words = arguments
    if name not in places:
        raise UserError(f"there is no command '{name}'; {nearest(name, [*others, *places])}")
    module, _, function = places[name].partition(":")
    getattr(import_module(module), function)(words)
    return 0


def nearest(name: str, names: Sequence[str]) -> str:
    """Returns the end of a sentence about an unknown name: the name that it resembles or begins, else all names."""
    close = difflib.get_close_matches(name, names, n=1) or [other for other in names if name and other.startswith(name)]
    return f"did you mean {close[0]}?" if close else f"choose one of: {', '.join(names)}."


def command_line(program: str, arguments: list[str], carry_out: Callable[[list[str]], int]) -> int:
    """Runs a command line; returns the exit status: 2 for bad input, 1 for a failure while running.

    An error that the user can fix is printed as one sentence, after the name of the program.
    """
    prepare_streams()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` has the same effect as Ctrl-C.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # Under nohup the signal stays ignored.
        signal.signal(signal.SIGHUP, hang_up)
    debug = "--debug" in arguments
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[logging.NullHandler()])
    try:
        if any("\udc80" <= letter <= "\udcff" for letter in "".join(arguments)):  # Python could not decode these bytes.
            raise UserError("an argument is not in UTF-8, and could not be stored; write it, or what it names, so.")
        return carry_out(arguments)
    except BrokenPipeError:  # The program that read the output has closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
    except (ChildError, *USER_ERRORS) as error:
        if debug:
            traceback.print_exc()
        print(f"{program}: {told(error)}", file=sys.stderr)
        return FAILURE if isinstance(error, ChildError) else USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
