"""The places in README.md and docs/ where tables made of results stand."""

from __future__ import annotations

from pathlib import Path

from drlhp.errors import UserError


def write_between(page: Path, name: str, text: str) -> None:
    """Puts a text between the page's marks `<!-- name -->` and `<!-- /name -->`, in the place of what stands there.

    Raises:
        UserError: the page has no such marks.
    """
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, mark, rest = page.read_text(encoding="utf-8").partition(first)
    _, end, after = rest.partition(last)
    if not mark or not end:
        raise UserError(f"{page.name} has no place for the table; put {first} and {last} there.")
    page.write_text(f"{before}{first}\n{text}\n{last}{after}", encoding="utf-8")
