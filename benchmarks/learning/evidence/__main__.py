"""Records runs in results/, and writes the tables of the pages.

python run.py reproduce moving-dot --seeds 5
python -m benchmarks.learning.evidence record moving-dot runs/moving-dot-seed*   # adds or replaces these seeds
python -m benchmarks.learning.evidence pages             # the tables in README.md, docs/ and results/README.md
"""

from __future__ import annotations

import sys

import tyro

from benchmarks.learning.evidence.record import record
from benchmarks.learning.evidence.store import recorded
from benchmarks.pages import PICTURES, write_between
from drlhp.errors import USER_ERRORS, told


def pages() -> None:
    """Writes the tables of results/ into README.md, docs/ and results/README.md, and draws the pictures beside them."""
    from benchmarks.learning.evidence.ablations_chart import draw_ablations  # slow to import
    from benchmarks.learning.evidence.labels_chart import draw_labels
    from benchmarks.learning.evidence.tables import texts

    for mark, text in texts().items():
        write_between(mark, text)
    found = recorded()
    draw_labels(found, PICTURES / "labels.png")
    draw_ablations(found, PICTURES / "ablations.png")


if __name__ == "__main__":
    try:
        tyro.extras.subcommand_cli_from_dict({"record": record, "pages": pages}, use_underscores=True)
    except USER_ERRORS as error:
        sys.exit(f"evidence.py: {told(error)}")
