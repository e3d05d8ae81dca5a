"""How fast a labeller answers, and how long the rest takes."""

from __future__ import annotations

import statistics
from collections import deque

# The newest answers count; the remaining time is estimated from at least so many. The page uses the same numbers.
PACE_OVER, LEAST_PACES = 20, 5


class Pace:
    """The seconds that the newest answers took."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=PACE_OVER)

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    def undo(self) -> None:
        """Forgets the newest answer, because it was taken back."""
        if self._seconds:
            self._seconds.pop()

    def words(self, labels_left: int) -> str:
        """Returns the median time per answer, and the time that so many labels take; empty before any answer."""
        if not self._seconds:
            return ""
        seconds = statistics.median(self._seconds)
        said = f"{seconds:.1f} s per answer"
        if labels_left and len(self._seconds) >= LEAST_PACES:
            hours, minutes = divmod(max(1, round(labels_left * seconds / 60)), 60)
            said += f", {hours} h {minutes} min left" if hours else f", {minutes} min left"
        return said
