"""The TensorBoard curves and films that a process writes while it trains."""

from __future__ import annotations

import io
import logging
import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from drlhp.errors import naming
from drlhp.runtime.run_texts import write_texts

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


log = logging.getLogger("drlhp")

RGB = 3  # TensorBoard's number for pictures in colour


class Curves:
    """The curves of one part of a run, in `events/<part>` of the run folder.

    The run's command and settings stand beside them. A process that writes no point makes no file and does not import
    TensorBoard.
    """

    def __init__(self, run_dir: Path, part: str) -> None:
        self._run_dir, self.folder = run_dir, run_dir / "events" / part
        self._writer: SummaryWriter | None = None
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._n_counted = 0

    def count(self, values: Mapping[str, float]) -> None:
        """Takes in the values of one update, for the next `means`."""
        for name, value in values.items():
            self._sums[name] += value
        self._n_counted += 1

    def means(self) -> dict[str, float]:
        """Returns the means of what was counted since the last call, few updates at first if the run was resumed."""
        means = {name: total / self._n_counted for name, total in self._sums.items()}
        self._sums.clear()
        self._n_counted = 0
        return means

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Writes one point of each of these curves."""
        writer = self._opened()
        if writer is not None:
            with naming(self.folder):
                for name, value in values.items():
                    writer.add_scalar(name, value, step)

    def add_film(self, name: str, gif: bytes, step: int) -> None:
        """Writes an animated GIF, which TensorBoard plays among its images."""
        writer = self._opened()
        if writer is not None:
            from PIL import Image
            from tensorboard.compat.proto.summary_pb2 import Summary

            width, height = Image.open(io.BytesIO(gif)).size
            image = Summary.Image(height=height, width=width, colorspace=RGB, encoded_image_string=gif)
            with naming(self.folder):
                writer._get_file_writer().add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), step)

    def _opened(self) -> SummaryWriter | None:
        """Returns the writer, made by the first call; None if the run folder was removed or renamed."""
        if not self._run_dir.is_dir():  # it is not to be made anew
            return None
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # slow to import

            if threading.excepthook is threading.__excepthook__:  # else the process reports it, as a child of a run
                threading.excepthook = _log_thread
            self._writer = SummaryWriter(str(self.folder))
            with naming(self.folder):
                write_texts(self._writer, self._run_dir)
        return self._writer

    def close(self) -> None:
        """Writes what is still in memory to the disk."""
        if self._writer is not None:
            with naming(self.folder):
                self._writer.close()


def _log_thread(failure: threading.ExceptHookArgs) -> None:
    """Logs the failure of a thread, such as that of TensorBoard's writer on a full disk, rather than print it.

    What the thread had to write, the next use of the writer misses.
    """
    log.error("a thread failed", exc_info=failure.exc_value)
