"""The places in README.md, docs/ and results/README.md for what programs print and measure."""

from __future__ import annotations

from benchmarks import ROOT
from drlhp.errors import UserError

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "results" / "README.md")
PICTURES = ROOT / "docs" / "pictures"


def write_between(name: str, text: str) -> None:
    """Replaces the text between the marks `<!-- name -->` and `<!-- /name -->`, on every page that has them.

    Raises:
        UserError: no page has such marks.
    """
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    marked = [page for page in PAGES if last in page.read_text(encoding="utf-8").partition(first)[2]]
    if not marked:
        raise UserError(f"no page has a place for the table; put {first} and {last} into one in docs/.")
    for page in marked:
        before, _, rest = page.read_text(encoding="utf-8").partition(first)
        after = rest.partition(last)[2]
        page.write_text(f"{before}{first}\n{text}\n{last}{after}", encoding="utf-8")
