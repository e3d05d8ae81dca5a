"""Command lines: how one is carried out, and how it ends.

Imports the standard library alone until a command is named, so that the help is printed at once.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable

from drlhp.cli.streams import hang_up, prepare_streams
from drlhp.errors import USER_ERRORS, ChildError, UserError, told

USER_ERROR, FAILURE, INTERRUPTED, CLOSED = 2, 1, 130, 141  # exit statuses


def command_line(program: str, arguments: list[str], carry_out: Callable[[list[str]], int]) -> int:
    """Carries out a command line; returns the exit status: 2 for bad input, 1 for a failure while running.

    Every error that the user can fix is printed as one sentence, after the name of the program.
    """
    prepare_streams()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill is a Ctrl-C
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(signal.SIGHUP, hang_up)
    debug = "--debug" in arguments
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[logging.NullHandler()])
    try:
        if any("\udc80" <= letter <= "\udcff" for letter in "".join(arguments)):  # bytes that Python could not decode
            raise UserError("an argument is not in UTF-8, and could not be stored; write it, or what it names, so.")
        return carry_out(arguments)
    except BrokenPipeError:  # nobody reads any more what is printed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
    except (ChildError, *USER_ERRORS) as error:
        if debug:
            traceback.print_exc()
        print(f"{program}: {told(error)}", file=sys.stderr)
        return FAILURE if isinstance(error, ChildError) else USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
