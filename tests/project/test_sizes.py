"""Every file, class and function outside the tests is short enough to be read in one go."""

from __future__ import annotations

import ast

from tests.support import ROOT

MOST_LINES = {"file": 400, "class": 250, "function": 50}
PLACES = ("run.py", "pref_db.py", "pref_interface.py", "reward_predictor.py", "drlhp", "a2c", "envs", "commands")
FILES = [
    path
    for place in (*PLACES, "benchmarks", "examples")
    for path in sorted([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*"))
    if path.suffix in (".py", ".js") and ".venv" not in str(path.relative_to(ROOT))
]


def test_nothing_is_too_long() -> None:
    long = []
    for path in FILES:
        text, name = path.read_text(), path.relative_to(ROOT)
        if (n := text.count("\n")) > MOST_LINES["file"]:
            long.append(f"{name} has {n} lines")
        for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                n = (node.end_lineno or 0) - node.lineno + 1
                if n > MOST_LINES["class" if isinstance(node, ast.ClassDef) else "function"]:
                    long.append(f"{node.name} in {name} has {n} lines")
    assert not long
