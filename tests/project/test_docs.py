"""The README, the flags and the commands say the same."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from commands import COMMANDS
from commands.config import RunConfig, settings
from commands.flags import parse
from commands.report import ReportConfig
from commands.show_prefs import ShowPrefsConfig
from commands.watch import WatchConfig
from drlhp.cli.exchange import ExportConfig, ImportConfig
from drlhp.cli.label import LabelConfig
from drlhp.screens.keys import TERMINAL_KEYS
from tests.project.test_architecture import defined
from tests.support import ROOT

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def flags(config: object) -> set[str]:
    """Names of all flags of a config, those of its parts included."""
    names = set()
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name, None)
        names |= flags(value) if dataclasses.is_dataclass(value) else {field.name}
    return names


def config(env_id: str) -> dict[str, Any]:
    """The settings of a run on preferences, by default."""
    return parse(["train_policy_with_preferences", env_id, "--synthetic_prefs"]).as_dict()


def test_every_flag_is_in_the_readme_and_the_other_way_round() -> None:
    training = flags(RunConfig("gather_initial_prefs", "CartPole-v1")) - {"mode", "env_id"}
    others = (ExportConfig, ImportConfig, LabelConfig, WatchConfig, ShowPrefsConfig, ReportConfig)
    viewing = {field.name for part in others for field in dataclasses.fields(part)}
    documented = {name.removeprefix("no_") for name in re.findall(r"(?<![-\w])--([a-z][a-z0-9_]*)\b(?!-)", README)}
    documented -= {"help", "logdir", "seeds"}  # of Python's, TensorBoard's and the results' own commands
    assert training <= documented, f"not in the README: {sorted(training - documented)}"
    assert documented <= training | viewing, f"in the README, but no flag: {sorted(documented - training - viewing)}"


def rows_after(heading: str) -> list[list[str]]:
    """The cells of the first table of the README after a line, without its head."""
    lines = README.split(heading, 1)[1].splitlines()
    table = list(itertools.takewhile(lambda line: line.startswith("|"), itertools.dropwhile(lambda x: not x, lines)))
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table[2:]]


def as_told(value: object) -> str:
    """A default as the README's tables write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value}`" if isinstance(value, str) else f"{value:,g}"


def tells(cell: str, value: object) -> bool:
    return re.search(rf"(?<![\w.,]){re.escape(as_told(value))}(?![\w]|[.,]\d)", cell) is not None


def test_the_papers_features_have_the_defaults_that_the_readme_tells() -> None:
    defaults, checked = settings(config("PongNoFrameskip-v4")), set()
    rows = rows_after("The paper's features, with the defaults for Atari (`--help` prints those of an environment):\n")
    for cells in rows:
        for name in re.findall(r"--([a-z0-9_]+)", cells[2]):
            in_words = name in ("algo", "max_kl") or cells[3] == "as in the paper"
            if in_words or cells[0].startswith("not of the paper"):
                continue
            assert tells(cells[3], defaults[name]), f"--{name} is {defaults[name]}, not {cells[3]}"
            checked.add(name)
    assert len(checked) > 15


@pytest.mark.parametrize("flag", ["reward_std", "gamma", "gae_lambda", "ent_coef", "max_prefs", "ensemble_size"])
def test_the_defaults_of_each_domain_are_those_that_the_readme_tells(flag: str) -> None:
    (cells,) = [cells for cells in rows_after("and clips of 1.5 seconds.\n") if cells[1] == f"`--{flag}`"]
    for cell, env_id in zip(cells[2:5], ("PongNoFrameskip-v4", "Hopper", "MovingDotNoFrameskip-v0"), strict=True):
        assert tells(cell, settings(config(env_id))[flag]), f"{env_id}: {cell}"


def test_the_teacher_in_the_readme_is_the_example() -> None:
    shown = re.search(r"```python\n# (examples/\S+\.py)[^\n]*\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    example = (ROOT / shown[1]).read_text()
    for line in shown[2].splitlines():
        assert line.split("  #")[0] in example, line


def test_every_command_is_in_the_readme() -> None:
    for command in COMMANDS:
        assert f"`{command} " in README, command


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_the_code_that_a_page_names_is_there(page: Path) -> None:
    """Files by their whole path, and what is said to be in one, as in "`Name` in `folder/file.py`"."""
    text = page.read_text()
    for path in re.findall(r"`([\w/]+\.py)`", text):
        assert (ROOT / path).is_file(), path
    for names, path in re.findall(r"((?:`[A-Za-z_.]+`,? )+)in `([\w/]+\.py)`", text):
        assert set(re.findall(r"`([^`]+)`", names)) <= defined(path), f"{names} in {path}"


def test_every_page_can_be_reached_from_the_readme_and_names_keys_that_are_there() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert f"](docs/{page.name})" in README, page.name
    keys = re.findall(r"`([A-Z,.\[\]]|Space|Home)`", (ROOT / "docs" / "labelling_well.md").read_text())
    pressed = {{"Space": " ", "Home": "\x1b[H"}.get(key, key.lower()) for key in keys}
    assert len(pressed) > 8 and pressed <= set(TERMINAL_KEYS)
