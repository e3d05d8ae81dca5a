"""The README, the flags and the commands say the same."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from config import RunConfig
from exchange import ExportConfig, ImportConfig
from label import LabelConfig
from report import ReportConfig
from run import COMMANDS
from terminal import KEYS
from watch import ShowPrefsConfig, WatchConfig

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def flags(config: object) -> set[str]:
    """Names of all flags of a config, those of its parts included."""
    names = set()
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name, None)
        names |= flags(value) if dataclasses.is_dataclass(value) else {field.name}
    return names


def test_every_flag_is_in_the_readme_and_the_other_way_round() -> None:
    training = flags(RunConfig("gather_initial_prefs", "CartPole-v1")) - {"mode", "env_id"}
    others = (ExportConfig, ImportConfig, LabelConfig, WatchConfig, ShowPrefsConfig, ReportConfig)
    viewing = {field.name for part in others for field in dataclasses.fields(part)}
    documented = {name.removeprefix("no_") for name in re.findall(r"(?<![-\w])--([a-z][a-z0-9_]*)\b(?!-)", README)}
    documented -= {"help", "logdir", "seeds"}  # of Python's, TensorBoard's and the results' own commands
    assert training <= documented, f"not in the README: {sorted(training - documented)}"
    assert documented <= training | viewing, f"in the README, but no flag: {sorted(documented - training - viewing)}"


def test_the_teacher_in_the_readme_is_the_example() -> None:
    shown = re.search(r"```python\n# (examples/\S+\.py)[^\n]*\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    example = (ROOT / shown[1]).read_text()
    for line in shown[2].splitlines():
        assert line.split("  #")[0] in example, line


def test_every_command_is_in_the_readme() -> None:
    for command in COMMANDS:
        assert f"`{command} " in README, command


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))])
def test_what_a_page_links_to_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_every_page_can_be_reached_from_the_readme_and_names_keys_that_are_there() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert f"](docs/{page.name})" in README, page.name
    keys = re.findall(r"`([A-Z,.\[\]]|Space|Home)`", (ROOT / "docs" / "labelling_well.md").read_text())
    pressed = {{"Space": " ", "Home": "\x1b[H"}.get(key, key.lower()) for key in keys}
    assert len(pressed) > 8 and pressed <= set(KEYS)
