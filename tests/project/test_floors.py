"""Every file imports from lower floors only."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from tests.support import ROOT

# A file's floor is that of the longest place that its path begins with. Places of one floor do not import each other.
FLOORS = {
    "drlhp/errors.py": 0,
    "drlhp/bounds.py": 1,
    "drlhp/pictures.py": 1,
    "drlhp/spaces.py": 1,
    "drlhp/runtime": 1,
    "drlhp/data": 2,
    "envs": 2,
    "pref_db.py": 3,
    "drlhp/networks": 3,
    "drlhp/labelling": 4,
    "reward_predictor.py": 4,
    "drlhp/screens": 5,
    "a2c": 5,
    "drlhp/training": 5,
    "drlhp/queries": 5,
    "drlhp/label_server": 6,
    "pref_interface.py": 6,
    "drlhp/wrapper": 7,
    "drlhp/cli": 7,
    "commands": 8,
    "run.py": 9,
}
INSTALLED = ("drlhp", "pref_db", "pref_interface", "reward_predictor")
USED_FROM_A_CLONE = ("commands", "a2c", "envs", "run.py")  # what is installed imports none of these


def modules() -> dict[str, Path]:
    """Every module of the program, by its dotted name."""
    found = {}
    for place in {Path(place).parts[0] for place in FLOORS}:
        top = ROOT / place
        for path in [top] if top.is_file() else top.rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def place_of(module: str) -> str:
    """The row of `FLOORS` that a module belongs to."""
    path = MODULES[module].relative_to(ROOT).as_posix()
    places = [place for place in FLOORS if path == place or path.startswith(f"{place}/")]
    assert places or path == "drlhp/__init__.py", f"{path} stands on no floor"
    return max(places, key=len, default="")


@functools.cache
def imports(module: str) -> set[str]:
    """The modules of the program that a module imports, inside its functions too, but not for type checkers alone."""
    tree = ast.parse(MODULES[module].read_text())
    typing = {id(node) for block in ast.walk(tree) if is_for_typing(block) for node in ast.walk(block)}
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    names = set()
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([package, *([node.module] if node.module else [])]) if node.level else node.module or ""
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return names & MODULES.keys() - {module}


def is_for_typing(node: ast.AST) -> bool:
    """Whether this is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_every_file_imports_from_lower_floors_only() -> None:
    wrong = []
    for module in MODULES.keys() - {"drlhp"}:
        here = place_of(module)
        for other in imports(module) - {"drlhp"}:
            there = place_of(other)
            if there != here and FLOORS[there] >= FLOORS[here]:
                wrong.append(f"{module} imports {other}, which stands above it")
    assert not wrong


def test_what_is_installed_imports_nothing_that_is_used_from_a_clone_alone() -> None:
    installed = [name for name in MODULES if name.split(".")[0] in INSTALLED]
    wrong = [
        f"{module} imports {other}"
        for module in installed
        for other in imports(module)
        if place_of(other).startswith(USED_FROM_A_CLONE)
    ]
    assert not wrong
