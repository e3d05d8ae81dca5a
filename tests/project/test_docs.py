"""The README, the pages of docs/, the flags and the commands say the same."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import mkdocs.commands.build
import mkdocs.config
import pytest

import drlhp
from commands import COMMANDS, MODES
from commands.config import RunConfig, settings
from commands.flags import parse
from docs import flags as flags_page
from drlhp.cli.exchange import FIELDS
from drlhp.data.schema import VERSIONS
from drlhp.data.segment import Segment
from drlhp.runtime.run_files import EVALUATIONS, POLICIES, PROGRESS
from drlhp.screens.keys import TERMINAL_KEYS
from tests.project.test_architecture import defined
from tests.support import ROOT

README = (ROOT / "README.md").read_text()
PAPER = (ROOT / "docs" / "paper.md").read_text()
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


def test_the_page_of_flags_is_what_the_code_says() -> None:
    assert flags_page.page() == (ROOT / "docs" / "flags.md").read_text(), "python docs/flags.py renews it"


def test_the_page_of_flags_has_each_command_that_takes_flags() -> None:
    assert {*flags_page.COMMANDS} == {name for name in COMMANDS if name not in MODES and not name.startswith("--")}
    assert "| `--env_id` |" in (ROOT / "docs" / "flags.md").read_text(), "which `import` and `load` take"


def test_the_formats_have_every_column_field_and_table() -> None:
    page = (ROOT / "docs" / "run_folder.md").read_text()
    told = set(re.findall(r"`(\w+)`", page.split("## Formats\n")[1].split("\n## ")[0]))
    tables = re.findall(r"CREATE (?:TABLE|VIEW) (\w+)", "".join(VERSIONS))
    held = {field.name for field in dataclasses.fields(Segment)} - {"env_id", "view", "given_id"}
    assert {*PROGRESS.columns, *EVALUATIONS.columns, *FIELDS, *tables, *held, *POLICIES} <= told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_flags_that_a_page_names_are_there(page: Path) -> None:
    training = flags(RunConfig("gather_initial_prefs", "CartPole-v1"))
    viewing = {field.name for part in flags_page.COMMANDS.values() for field in dataclasses.fields(part)}
    elsewhere = {"help", "version"}  # of all programs
    elsewhere |= {"logdir", "samples_per_plugin"}  # of TensorBoard
    container = r"docker build[^`\n]*|docker run [^`\n]*? drlhp\b|`--(init|shm-size|gpus)[^`]*`"
    cluster = r"(?:\bray (?:start|get-auth-token)|sbatch) [^`\n]*"
    others_flags = rf"`(?:python -m|pip|apt-get)[^`]*`|{container}|{cluster}"
    text = re.sub(others_flags, "", page.read_text())  # other programs have their own flags
    named = {name.removeprefix("no_") for name in re.findall(r"(?<![-\w])--([a-z][a-z0-9_]*)\b(?!-)", text)}
    assert named <= training | viewing | elsewhere, sorted(named - training - viewing - elsewhere)


def rows_after(heading: str) -> list[list[str]]:
    """The cells of the first table after a line of the page about the paper, without its head."""
    lines = PAPER.split(heading, 1)[1].splitlines()
    table = list(itertools.takewhile(lambda line: line.startswith("|"), itertools.dropwhile(lambda x: not x, lines)))
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table[2:]]


def as_told(value: object) -> str:
    """A default as the tables write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value}`" if isinstance(value, str) else f"{value:,g}"


def tells(cell: str, value: object) -> bool:
    return re.search(rf"(?<![\w.,]){re.escape(as_told(value))}(?![\w]|[.,]\d)", cell) is not None


def test_the_papers_features_have_the_defaults_that_the_page_tells() -> None:
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
def test_the_defaults_of_each_domain_are_those_that_the_page_tells(flag: str) -> None:
    (cells,) = [cells for cells in rows_after("settings, and clips of 1.5 seconds.\n") if cells[1] == f"`--{flag}`"]
    for cell, env_id in zip(cells[2:5], ("PongNoFrameskip-v4", "Hopper", "MovingDotNoFrameskip-v0"), strict=True):
        assert tells(cell, settings(config(env_id))[flag]), f"{env_id}: {cell}"


def test_the_teacher_on_its_page_is_the_example() -> None:
    page = (ROOT / "docs" / "teachers.md").read_text()
    shown = re.search(r"```python\n# (examples/\S+\.py)[^\n]*\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    example = (ROOT / shown[1]).read_text()
    for line in shown[2].splitlines():
        assert line.split("  #")[0] in example, line


def test_every_command_is_in_the_readme_and_on_its_page() -> None:
    for command in COMMANDS:
        assert f"`{command} " in README and f"`{command} " in (ROOT / "docs" / "commands.md").read_text(), command


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200


def test_the_pages_become_a_site(tmp_path: Path) -> None:
    """In strict mode: a link that leads nowhere, or a page without a place in the menu, is an error."""
    site = mkdocs.config.load_config(str(ROOT / ".ci" / "mkdocs.yml"), site_dir=str(tmp_path))
    mkdocs.commands.build.build(site)
    assert {path.stem for path in tmp_path.glob("*.html")} == {path.stem for path in PAGES[1:]} | {"404"}
    assert "using_reward_from_predictor" in (tmp_path / "api.html").read_text()


def test_the_citation_has_the_version() -> None:
    assert f"version: {drlhp.__version__}\n" in (ROOT / "CITATION.cff").read_text()


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
    for page in PAGES[1:]:
        assert page.name == "index.md" or f"](docs/{page.name})" in README, page.name
    keys = re.findall(r"`([A-Z,.\[\]]|Space|Home)`", (ROOT / "docs" / "labelling_well.md").read_text())
    pressed = {{"Space": " ", "Home": "\x1b[H"}.get(key, key.lower()) for key in keys}
    assert len(pressed) > 8 and pressed <= set(TERMINAL_KEYS)
