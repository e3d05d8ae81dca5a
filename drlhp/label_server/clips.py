"""Clips for the page: every frame of a segment in one lossless picture, drawn once and kept in a folder or at a URL."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fsspec.implementations.local import LocalFileSystem
from PIL import Image

from drlhp.data.storage import CHECK, first_line, open_url
from drlhp.labelling.disk import nearly_full
from drlhp.labelling.queue import LabelQueue
from pref_db import PrefDB

log = logging.getLogger("label_server")

MAX_SIDE = 4096  # Pixels of a sheet's side. Every phone can show such a picture; WebP's own limit is 16383.
N_RENDERERS = 2
KEEP_CLIPS = 2000
# Efforts of the encoder, at most 6 and 100. More would take twice the time from the training and save little space.
WEBP_METHOD, WEBP_QUALITY = 1, 20
RETRY_SECONDS = 60.0  # A store that failed is tried again after this time.
DRAFT_SECONDS = 600.0  # A draft older than this is deleted, because its writer must have died.
TIDY_AFTER = 100  # Old sheets are deleted each time that so many were written.


@dataclass(frozen=True)
class Sheet:
    """A sprite sheet: frames from left to right in rows of `columns`; a frame has width x height pixels."""

    data: bytes
    frames: int
    width: int
    height: int
    columns: int
    fps: float


def sheet_columns(n: int, width: int, height: int) -> int:
    """Returns how many frames stand in a row of a sheet with n frames: as many as its width allows.

    Raises ValueError if the frames do not fit.
    """
    columns = min(n, max(1, MAX_SIDE // width))
    if width > MAX_SIDE or -(-n // columns) * height > MAX_SIDE:
        raise ValueError(f"{n} frames of {width}x{height} do not fit a sheet of {MAX_SIDE} pixels: shorten the clips")
    return columns


def fitted(frames: np.ndarray) -> np.ndarray:
    """Returns (T, H, W, 3) uint8 frames, made smaller by the least whole factor with which they fit a sheet.

    Raises ValueError if there is no such factor.
    """
    n, height, width = frames.shape[:3]
    for factor in range(1, max(height, width) + 1):
        try:
            sheet_columns(n, -(-width // factor), -(-height // factor))
        except ValueError:
            continue
        return frames if factor == 1 else np.stack([np.asarray(Image.fromarray(f).reduce(factor)) for f in frames])
    raise ValueError(f"{n} frames do not fit a sheet of {MAX_SIDE} pixels: shorten the clips")


def encode_sheet(frames: np.ndarray) -> tuple[bytes, int]:
    """Encodes (T, H, W, 3) uint8 frames as one lossless WebP picture; returns it and the number of frames in a row."""
    n, height, width = frames.shape[:3]
    columns = sheet_columns(n, width, height)
    rows = -(-n // columns)
    sheet = np.zeros((rows * height, columns * width, 3), np.uint8)
    for i, frame in enumerate(frames):
        y, x = i // columns * height, i % columns * width
        sheet[y : y + height, x : x + width] = frame
    data = io.BytesIO()
    Image.fromarray(sheet).save(data, "WEBP", lossless=True, method=WEBP_METHOD, quality=WEBP_QUALITY)
    return data.getvalue(), columns


class SheetStore:
    """Sheets by segment id, in a folder or any other place that fsspec can write to. Methods raise fsspec's errors."""

    def __init__(self, place: Path | str) -> None:
        """Opens a folder or URL. Raises OSError, in one sentence, if fsspec does not know the URL or cannot use it."""
        self.name = str(place)
        self._fs: Any
        if isinstance(place, Path):
            self._fs, self._root = LocalFileSystem(auto_mkdir=True), str(place.absolute())
            return
        self._fs, self._root = open_url(place, f"--clips_url {place}")

    def check(self) -> None:
        """Writes a file, reads it and deletes it. Raises OSError, in one sentence, if that does not work."""
        path = self._path(f"test-{time.time_ns()}")
        try:
            self._fs.pipe_file(path, b"test")
            works = self._fs.cat_file(path) == b"test"
            self._fs.rm_file(path)
        except Exception as error:  # each file system has errors of its own
            raise OSError(f"--clips_url {self.name} cannot be written to ({first_line(error)}); {CHECK}.") from error
        if not works:
            raise OSError(f"--clips_url {self.name} gives back something else than was written; choose another place.")

    def read(self, segment_id: str) -> bytes | None:
        """Returns a sheet; None if there is none, or only a part because its writer was killed."""
        try:
            data: bytes = self._fs.cat_file(self._path(segment_id))
        except FileNotFoundError:
            return None
        return data if _is_whole(data) else None

    def write(self, segment_id: str, data: bytes) -> None:
        """Stores a sheet whole or not at all, even if the power fails; object stores do so by themselves."""
        path = self._path(segment_id)
        if not isinstance(self._fs, LocalFileSystem):
            self._fs.pipe_file(path, data)
            return
        draft = Path(f"{path}.{os.getpid()}-{threading.get_ident()}")  # Two threads may draw the same clip.
        draft.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def drop_drafts(self) -> None:
        """Deletes the drafts that killed writers have left; a draft that cannot be deleted is skipped."""
        if not isinstance(self._fs, LocalFileSystem):
            return
        for draft in Path(self._root).glob("*.webp.*"):
            with contextlib.suppress(OSError):  # Another server may have deleted it.
                if draft.stat().st_mtime < time.time() - DRAFT_SECONDS:
                    draft.unlink()

    def ids(self) -> set[str]:
        """Returns the ids of all segments that have a sheet here."""
        try:
            names = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return set()
        return {name.rpartition("/")[2].removesuffix(".webp") for name in names if name.endswith(".webp")}

    def delete(self, segment_ids: list[str]) -> None:
        self._fs.rm([self._path(segment_id) for segment_id in segment_ids])

    def _path(self, segment_id: str) -> str:
        return f"{self._root}/{segment_id}.webp"


def _is_whole(data: bytes) -> bool:
    """Returns whether a WebP file is complete: its header says how long it is."""
    return data[:4] == b"RIFF" and int.from_bytes(data[4:8], "little") + 8 == len(data)


class Clips:
    """Sprite sheets by segment id, drawn on the first request; several threads may call it.

    Args:
        keep: number of sheets of answered pairs that are kept, newest answers first; others are drawn again on request.
    """

    def __init__(self, db_path: Path, place: Path | str, keep: int) -> None:
        """Opens the store of sheets. Raises OSError if there cannot be one at that place."""
        self._db_path, self._store, self._keep = db_path, SheetStore(place), keep
        self._store.drop_drafts()
        self._is_local = isinstance(place, Path)
        self._local = threading.local()
        self.pool = ThreadPoolExecutor(N_RENDERERS, thread_name_prefix="clips")
        self._shapes: dict[str, tuple[int, int, int, float]] = {}  # frames, height, width, fps
        self._written = 0
        self._retry_at = 0.0
        self.trouble = ""  # the reason why the store is not used now; empty if it is used

    def sheet(self, segment_id: str) -> Sheet:
        """Returns the sheet of a segment, from the store or drawn now. A store that failed is not asked for a minute.

        Raises PrefDBError if there is no such segment, and ValueError if it cannot be shown.
        """
        data, shape = self._read(segment_id), self._shapes.get(segment_id)
        if data is None or shape is None:
            # These are colour frames if any were recorded, else the newest grey frame of each step.
            segment = self._db().segment(segment_id)
            frames = fitted(segment.frames())
            n, height, width = frames.shape[:3]
            shape = self._shapes[segment_id] = n, height, width, segment.fps
            if data is None:
                data = encode_sheet(frames)[0]
                self._write(segment_id, data)
        n, height, width, fps = shape
        return Sheet(data, n, width, height, sheet_columns(n, width, height), fps)

    def tidy(self, keep: int) -> None:
        """Deletes the sheets of pairs that labellers are no longer asked about, except the `keep` newest sheets.

        The newest sheets are those of the newest answers. Also deletes drafts whose writers have died.
        """
        rows = LabelQueue(self._db()).newest_pairs()
        asked = {segment_id for is_asked, *both in rows if is_asked for segment_id in both}
        drawn = self._store.ids() - asked
        done = dict.fromkeys(segment_id for _, *both in rows for segment_id in both if segment_id in drawn)
        if old := list(done)[keep:]:
            self._store.delete(old)
        self._store.drop_drafts()

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)

    def _read(self, segment_id: str) -> bytes | None:
        if time.monotonic() < self._retry_at:
            return None
        try:
            return self._store.read(segment_id)
        except Exception as error:  # each file system has errors of its own
            self._failed(error)
            return None

    def _write(self, segment_id: str, data: bytes) -> None:
        if time.monotonic() < self._retry_at:
            return
        try:
            if self._is_local and nearly_full(self._db_path):
                if not self.trouble:  # Only once, because after that no sheet is left to delete.
                    self.tidy(0)
                self._say("the disk is nearly full")
                return
            self._store.write(segment_id, data)
            self.trouble = ""
            self._written += 1
            if self._written % TIDY_AFTER == 0:
                self.tidy(self._keep)
        except Exception as error:  # each file system has errors of its own
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._retry_at = time.monotonic() + RETRY_SECONDS
        self._say(first_line(error))

    def _say(self, why: str) -> None:
        if not self.trouble:
            self.trouble = f"clips cannot be kept in {self._store.name} ({why}); they are drawn when asked for"
            log.warning(self.trouble)

    def _db(self) -> PrefDB:
        """Returns the calling thread's own connection to the store of labels."""
        if not hasattr(self._local, "db"):
            self._local.db = PrefDB.open(self._db_path, read_only=True)
        db: PrefDB = self._local.db
        return db
