"""Clips for the page: every frame of a segment in one lossless picture, drawn once and kept on disk."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from pref_db import PrefDB, Segment

MAX_SIDE = 4096  # pixels of a sheet: what the picture memory of every phone takes; WebP itself ends at 16383
N_RENDERERS = 2
# Effort of the encoder, 0 to 6: each step up costs time for a few per cent of size.
WEBP_EFFORT = 2


@dataclass(frozen=True)
class Sheet:
    """A sprite sheet: frames from left to right in rows of `columns`; a frame has width x height pixels."""

    path: Path
    frames: int
    width: int
    height: int
    columns: int
    fps: float


def sheet_columns(n: int, width: int, height: int) -> int:
    """Frames in a row such that n of them fit a sheet: as many as the side allows.

    Raises ValueError if they do not fit.
    """
    columns = min(n, max(1, MAX_SIDE // width))
    if width > MAX_SIDE or -(-n // columns) * height > MAX_SIDE:
        raise ValueError(f"{n} frames of {width}x{height} do not fit a sheet of {MAX_SIDE} pixels: shorten the clips")
    return columns


def encode_sheet(frames: np.ndarray) -> tuple[bytes, int]:
    """(T, H, W, 3) uint8 frames as one lossless WebP picture, and how many are in a row."""
    n, height, width = frames.shape[:3]
    columns = sheet_columns(n, width, height)
    rows = -(-n // columns)
    sheet = np.zeros((rows * height, columns * width, 3), np.uint8)
    for i, frame in enumerate(frames):
        y, x = i // columns * height, i % columns * width
        sheet[y : y + height, x : x + width] = frame
    data = io.BytesIO()
    Image.fromarray(sheet).save(data, "WEBP", lossless=True, method=WEBP_EFFORT)
    return data.getvalue(), columns


class Clips:
    """Sprite sheets by segment id, made when first asked for; safe to call from several threads."""

    def __init__(self, db_path: Path, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._db_path, self._folder = db_path, folder
        self._local = threading.local()
        self.pool = ThreadPoolExecutor(N_RENDERERS, thread_name_prefix="clips")
        self._shape = lru_cache(maxsize=10_000)(self._read_shape)

    def sheet(self, segment_id: str) -> Sheet:
        """The sheet of a segment. Raises PrefDBError if there is no such segment, ValueError if it cannot be seen."""
        n, height, width, fps = self._shape(segment_id)
        path = self._folder / f"{segment_id}.webp"
        if not path.exists():
            self._write(path, encode_sheet(self._segment(segment_id).frames())[0])
        return Sheet(path, n, width, height, sheet_columns(n, width, height), fps)

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)

    def _read_shape(self, segment_id: str) -> tuple[int, int, int, float]:
        segment = self._segment(segment_id)
        n, height, width = segment.frames().shape[:3]
        return n, height, width, segment.fps

    def _segment(self, segment_id: str) -> Segment:
        """Its frames are in colour if it was recorded so, else the newest grey one of each step."""
        if not hasattr(self._local, "db"):
            self._local.db = PrefDB.open(self._db_path, read_only=True)
        return self._local.db.segment(segment_id)

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        """The file appears whole or not at all, even if the machine stops."""
        draft = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                draft.unlink()
