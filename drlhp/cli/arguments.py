"""Reading the words after a command's name: what is missing is named in one sentence, with an example."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TypeVar, get_type_hints

import tyro

from drlhp.cli.program import program
from drlhp.errors import UserError

ABSENT = "\0"  # no argument can hold this
NOT_READ = {"-h", "--help", "--tyro-print-completion", "--tyro-write-completion"}  # then nothing is missing

Config = TypeVar("Config")


def read_arguments(
    config: type[Config], command: str, arguments: list[str], *, needs: Mapping[str, str], example: str
) -> Config:
    """Returns a command's settings from the words after its name.

    Args:
        needs: the settings without a default, each with its name on the command line: `RUN` or `--output`.
        example: words that would work; `RUN` in them becomes the folder of a run.

    Raises:
        UserError: one of them is missing.
    """
    prog = f"{program().name} {command}"
    if NOT_READ.intersection(arguments):
        return tyro.cli(config, prog=prog, args=arguments, use_underscores=True)
    kinds = get_type_hints(config)
    empty = config(**{name: kinds[name](ABSENT) for name in needs})
    found = tyro.cli(config, prog=prog, args=arguments, use_underscores=True, default=empty)
    if missing := [word for name, word in needs.items() if str(getattr(found, name)) == ABSENT]:
        raise lacks(missing, f"{command} {example}")
    return found


def value_of(flag: str, arguments: list[str]) -> str | None:
    """Returns the value of one flag before the line is read as a whole; None if it is not given, or has no value."""
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    reader.add_argument(f"--{flag}", f"--{flag.replace('_', '-')}", dest="value")
    try:
        return reader.parse_known_args(arguments)[0].value
    except argparse.ArgumentError:  # the reader of the whole line says what is missing
        return None


def lacks(missing: Sequence[str], example: str) -> UserError:
    """Returns an error that names missing arguments, and gives an example: the words after the program's name."""
    kinds = [f"{'flag' if word.startswith('-') else 'positional argument'} {word}" for word in missing]
    verb, them = ("is", "it") if len(missing) == 1 else ("are", "them")
    caller = f"python {program().name}" if program().name.endswith(".py") else program().name
    words = example.replace("RUN", f"{program().log_dir}/NAME")
    return UserError(f"the {' and the '.join(kinds)} {verb} missing; give {them}, as in `{caller} {words}`.")
