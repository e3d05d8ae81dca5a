"""What the page about the architecture names is there."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.project.test_floors import FLOORS
from tests.support import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)(?:: ([\w.]+))?`", PAGE)))


@cache
def defined(path: str) -> set[str]:
    """The functions, classes, methods and fields that a file defines, methods and fields by `Class.name`."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        names = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        names += [target.id for target in targets if isinstance(target, ast.Name)]
        found |= set(names)
        if isinstance(node, ast.ClassDef):
            inner = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
            inner += [
                one.target.id
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            ]
            found |= {f"{node.name}.{name}" for name in inner}
    return found


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_every_file_and_function_that_the_page_names_is_there(path: str, name: str) -> None:
    assert (ROOT / path).is_file()
    assert not name or name in defined(path), f"{path} defines no {name}"


def test_the_page_walks_through_the_program_and_names_every_floor() -> None:
    assert len([name for _, name in NAMED if name]) > 20
    rows = [row.split("|")[1:3] for row in PAGE.splitlines() if re.match(r"\| [0-9] \|", row)]
    floors = {place.strip("` "): int(floor) for floor, places in rows for place in places.split(",")}
    assert floors == FLOORS, "the floors are those of test_floors.py"
