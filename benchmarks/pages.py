"""The places in README.md, docs/ and results/README.md for tables that are made of results."""

from __future__ import annotations

from benchmarks import ROOT
from drlhp.errors import UserError

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "results" / "README.md")
PICTURES = ROOT / "docs" / "pictures"


def write_between(name: str, text: str) -> None:
    """Replaces the text between the marks `<!-- name -->` and `<!-- /name -->`, on the page that has them.

    Raises:
        UserError: no page has such marks.
    """
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    for page in PAGES:
        before, _, rest = page.read_text(encoding="utf-8").partition(first)
        _, end, after = rest.partition(last)
        if end:
            page.write_text(f"{before}{first}\n{text}\n{last}{after}", encoding="utf-8")
            return
    raise UserError(f"no page has a place for the table; put {first} and {last} into one in docs/.")
