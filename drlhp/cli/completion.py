"""Completion of commands and flags by the shell: tyro's script for a whole program."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from typing import Any

import tyro

from drlhp.cli.exchange import ExportConfig, ImportConfig
from drlhp.cli.label import LabelConfig
from drlhp.cli.restore import RestoreConfig
from drlhp.errors import UserError

SHELLS = ("bash", "zsh", "fish")
# What reads the flags of each command.
SETTINGS: Mapping[str, Callable[..., Any]] = {
    "label": LabelConfig,
    "export": ExportConfig,
    "import": ImportConfig,
    "restore": RestoreConfig,
}
# tyro does not know programs that are started as `python PROGRAM`, and completes names of files after some flags alone.
# Here, as usual in shells, flags are offered after a dash only. If nothing is left, bash itself offers names of files,
# with the slash after a folder.
REST_OF_BASH = """
_complete_{function}() {{
  COMPREPLY=()
  if [[ "${{COMP_WORDS[0]##*/}}" != {program} ]]; then
    [[ $COMP_CWORD -gt 1 && "${{COMP_WORDS[1]##*/}}" == {program} ]] || return
    COMP_WORDS=("${{COMP_WORDS[@]:1}}")
    COMP_CWORD=$((COMP_CWORD - 1))
  fi
  _tyro_{function}
  local word words=()
  for word in "${{COMPREPLY[@]}}"; do
    [[ -z "$word" || ("$word" == -* && "${{COMP_WORDS[COMP_CWORD]}}" != -*) ]] || words+=("$word")
  done
  COMPREPLY=("${{words[@]}}")
  [[ "${{COMP_WORDS[COMP_CWORD-1]}}" != -* || ! -e "${{COMPREPLY[0]}}" ]] || COMPREPLY=()
}}
complete -o default -o bashdefault -F _complete_{function} {names}
"""


def completion_command(arguments: list[str]) -> None:
    """Runs `drlhp --tyro-print-completion`. Raises UserError."""
    print_completion("drlhp", SETTINGS, arguments)


def print_completion(program: str, settings: Mapping[str, Callable[..., Any]], arguments: list[str]) -> None:
    """Prints a script after which a shell completes a program's commands and flags.

    Args:
        settings: what reads the flags of each command.
        arguments: the name of the shell.

    Raises:
        UserError: tyro knows no such shell.
    """
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise UserError(f"--tyro-print-completion needs the name of a shell, one of {', '.join(SHELLS)}.")
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.suppress(SystemExit):
        words = ["--tyro-print-completion", *arguments]
        tyro.extras.subcommand_cli_from_dict(dict(settings), prog=program, args=words, use_underscores=True)
    for line in written.getvalue().splitlines():
        # A shell would take the second line of a flag's description for one more flag.
        print(line.replace("\\n", " ") if line.startswith("COMPLETION_SPEC =") else line)
    if arguments == ["bash"]:
        names = f"{program} python python3" if program.endswith(".py") else program
        print(REST_OF_BASH.format(program=program, function=program.replace(".", "_"), names=names))
