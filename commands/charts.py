"""Matplotlib's figures as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def drawn(figure: Figure, dpi: int) -> Image.Image:
    """Returns a figure as a picture; `savefig` would draw it twice, to know its size before."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import

    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[:, :, :3])
