"""Draws the clips of pairs in the background, so that a person's screen does not stand still."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor

from drlhp.data.comparison import Comparison

log = logging.getLogger("run")


class Drawing:
    """Pairs whose clips a thread draws, which takes about a second for each pair.

    They are drawn before they are stored, because the process that shows them may be unable to draw.
    """

    def __init__(self) -> None:
        self.open: dict[str, Future[Comparison]] = {}  # by the comparison's id
        self.trouble = ""  # why the last pair could not be drawn; empty if it was drawn
        self._artist = ThreadPoolExecutor(1, "drawing")

    def begin(self, comparison: Comparison) -> None:
        """Starts to draw a pair, unless it is drawn already."""
        if comparison.is_drawn:
            self.open[comparison.id] = Future()
            self.open[comparison.id].set_result(comparison)
        else:
            self.open[comparison.id] = self._artist.submit(comparison.drawn)

    def done(self) -> list[Comparison]:
        """Returns the pairs that can be shown by now; a pair that cannot be drawn is left out."""
        drawn = []
        for id, future in list(self.open.items()):
            if not future.done():
                continue
            del self.open[id]
            try:
                drawn.append(future.result())
                self.trouble = ""
            except Exception as error:  # a renderer may raise anything
                self.trouble = f"A pair was left out: {error}"
                log.warning("%s", self.trouble)
        return drawn

    def status(self) -> str:
        """Returns a line about the clips being drawn or the last failure; empty if there is neither."""
        return f"Drawing {2 * len(self.open)} clips" if self.open else self.trouble

    def close(self) -> None:
        """Stops; pairs that are not drawn yet are left out."""
        self._artist.shutdown(cancel_futures=True)
