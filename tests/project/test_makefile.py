"""The one-word commands: make can read what each of them would do."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.support import ROOT

COMMANDS = re.findall(r"^([a-z]+):.*?## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_make_knows_every_command_that_it_lists(command: str) -> None:
    dry_run = subprocess.run(["make", "--dry-run", command], cwd=ROOT, capture_output=True, text=True)
    assert dry_run.returncode == 0, dry_run.stderr


def test_make_alone_lists_the_commands() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^make ([a-z]+) ", listed, re.MULTILINE) == COMMANDS
