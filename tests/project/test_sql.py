"""SQL stands in the store's own files only."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support import ROOT

THE_STORES_OWN = {
    "pref_db.py",
    "drlhp/data/asked.py",
    "drlhp/data/counts.py",
    "drlhp/data/damage.py",
    "drlhp/data/postgres.py",
    "drlhp/data/postgres_copy.py",
    "drlhp/data/rows.py",
    "drlhp/data/salvage.py",
    "drlhp/data/schema.py",
    "drlhp/data/sqlite_file.py",
    "drlhp/labelling/answer_log.py",
    "drlhp/labelling/leases.py",
    "drlhp/labelling/notices.py",
    "drlhp/labelling/queue.py",
}
OUTSIDE = ("tests", "build", "runs")  # tests look into stores from outside
SQL = re.compile(
    r"\b(SELECT\s.*\bFROM|SELECT 1|INSERT (OR \w+ )?INTO|UPDATE \w+ SET|DELETE FROM|PRAGMA|VACUUM)\b", re.DOTALL
)


def sources() -> list[str]:
    """Returns every Python file of the program, the benchmarks and the documentation."""
    places = [place for place in ROOT.iterdir() if place.name not in OUTSIDE and not place.name.startswith(".")]
    paths = [path for place in places for path in ([place] if place.suffix == ".py" else place.rglob("*.py"))]
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def has_sql(source: str) -> bool:
    """Returns whether a string of the source, other than a docstring, is SQL."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in prose)
    return any(isinstance(text, str) and SQL.search(text) for text in texts)


def test_sql_stands_in_the_stores_own_files_alone() -> None:
    assert {path for path in sources() if has_sql((ROOT / path).read_text())} == THE_STORES_OWN


def test_sqlite_is_opened_in_the_stores_own_files_alone() -> None:
    importing = {
        path for path in sources() if re.search(r"^\s*(import|from) sqlite3\b", Path(ROOT, path).read_text(), re.M)
    }
    assert importing <= THE_STORES_OWN
