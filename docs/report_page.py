"""Draws the picture of a report in the documentation: the top of the page, in a real browser.

python run.py report runs/NAME
python docs/report_page.py runs/NAME/report/report.html docs/pictures/report.png
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.browser import PROGRAM, WHY_NOT, chromium


def draw(report: str, picture: str) -> None:
    """Writes the picture."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1000, "height": 930})
        page.goto(Path(report).resolve().as_uri())
        page.screenshot(path=picture)


if __name__ == "__main__":
    if PROGRAM is None:
        sys.exit(f"report_page.py: it {WHY_NOT}")
    draw(*sys.argv[1:])
