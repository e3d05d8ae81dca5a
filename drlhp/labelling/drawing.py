"""TODO."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from drlhp.data.comparison import Comparison
from drlhp.labelling.gatherers import log


class Drawing:
    """Pairs whose clips are being drawn, which takes a second, in a thread: a person's screen must not stand still.

    They are drawn and stored here, since who shows them may be a process that cannot draw.
    """

    def __init__(self) -> None:
        self.open: dict[str, Future[Comparison]] = {}  # by the comparison's id
        self.trouble = ""  # why the last pair could not be drawn; empty where it was
        self._artist = ThreadPoolExecutor(1, "drawing")

    def begin(self, comparison: Comparison) -> None:
        """Draws what is not drawn yet."""
        if comparison.is_drawn:
            self.open[comparison.id] = Future()
            self.open[comparison.id].set_result(comparison)
        else:
            self.open[comparison.id] = self._artist.submit(comparison.drawn)

    def done(self) -> list[Comparison]:
        """The pairs that can be shown by now; one that cannot be drawn is left out."""
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
        """What is drawn, or what became of it, in words; empty where there is nothing to tell."""
        return f"Drawing {2 * len(self.open)} clips" if self.open else self.trouble

    def close(self) -> None:
        """Leaves what is not drawn yet."""
        self._artist.shutdown(cancel_futures=True)
