"""How far a resumed run sees into its store."""

from __future__ import annotations

import sys


class Horizon:
    """Hides the answers that a `--synchronous` run had stored after the moment to which it went back.

    It asks about the same pairs again, and each stored answer is seen as soon as it is given again.
    """

    def __init__(self) -> None:
        self.seq = sys.maxsize  # no answer beyond this one is seen; at first all are

    @property
    def hides(self) -> bool:
        """Returns whether any answers may be hidden."""
        return self.seq != sys.maxsize

    def move(self, seq: int, newest: int) -> None:
        """Shows the answers up to this one; all, if that is the newest."""
        self.seq = seq if seq < newest else sys.maxsize

    def lift(self) -> None:
        """Shows all answers."""
        self.seq = sys.maxsize
