"""Clips for the page: every frame of a segment in one lossless picture, drawn once and kept where the run says."""

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

import fsspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem
from PIL import Image

from drlhp.labelling.queue import LabelQueue, nearly_full
from pref_db import PrefDB

log = logging.getLogger("label_server")

MAX_SIDE = 4096  # pixels of a sheet: what the picture memory of every phone takes; WebP itself ends at 16383
N_RENDERERS = 2
KEEP_CLIPS = 2000
# Efforts of the encoder, of 6 and of 100: more would cost twice the time, while a policy trains, for a little of size.
WEBP_METHOD, WEBP_QUALITY = 1, 20
S3 = ("s3", "s3a")
S3_SECONDS = 5  # to connect, and for a reply: somebody waits for the clip
RETRY_SECONDS = 60.0  # after a store has failed, before it is tried again
DRAFT_SECONDS = 600.0  # after which who wrote a draft has died
TIDY_AFTER = 100  # sheets written, between looks for old ones


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
    """Frames in a row such that n of them fit a sheet: as many as the side allows.

    Raises ValueError if they do not fit.
    """
    columns = min(n, max(1, MAX_SIDE // width))
    if width > MAX_SIDE or -(-n // columns) * height > MAX_SIDE:
        raise ValueError(f"{n} frames of {width}x{height} do not fit a sheet of {MAX_SIDE} pixels: shorten the clips")
    return columns


def fitted(frames: np.ndarray) -> np.ndarray:
    """(T, H, W, 3) uint8 frames, made smaller by the least whole number with which they fit a sheet."""
    n, height, width = frames.shape[:3]
    for factor in range(1, max(height, width) + 1):
        try:
            sheet_columns(n, -(-width // factor), -(-height // factor))
        except ValueError:
            continue
        return frames if factor == 1 else np.stack([np.asarray(Image.fromarray(f).reduce(factor)) for f in frames])
    raise ValueError(f"{n} frames do not fit a sheet of {MAX_SIDE} pixels: shorten the clips")


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
    Image.fromarray(sheet).save(data, "WEBP", lossless=True, method=WEBP_METHOD, quality=WEBP_QUALITY)
    return data.getvalue(), columns


class SheetStore:
    """Sheets by segment id, in a folder or whatever else fsspec can write to; its methods raise what that raises."""

    def __init__(self, place: Path | str) -> None:
        """Raises OSError, in one sentence, if the URL names nothing that fsspec knows or can use."""
        self.name = str(place)
        self._fs: Any
        if isinstance(place, Path):
            self._fs, self._root = LocalFileSystem(auto_mkdir=True), str(place.absolute())
            return
        protocol, separator, _ = place.partition("://")
        if not separator or (protocol == "file" and not place.startswith("file:///")):
            raise OSError(
                f"--clips_url {place} is no whole URL; give one such as s3://BUCKET/PREFIX or file:///FOLDER."
            )
        options: dict[str, Any] = {"auto_mkdir": True} if protocol == "file" else {}
        if protocol in S3:
            timeouts = {"connect_timeout": S3_SECONDS, "read_timeout": S3_SECONDS, "retries": {"max_attempts": 1}}
            options = {"config_kwargs": timeouts, "use_listings_cache": False}
        try:
            self._fs, self._root = fsspec.url_to_fs(place, **options)
        except ImportError as error:
            package = "s3fs" if protocol in S3 else "the package that it names"
            raise OSError(
                f"--clips_url {place} needs another package ({error}): install it with "
                f"`.venv/bin/python -m pip install -c constraints.txt {package}`."
            ) from error
        except Exception as error:  # each file system has errors of its own
            raise OSError(f"--clips_url {place} cannot be used ({_words(error)}); give a URL of fsspec's.") from error
        if protocol in S3:
            self._fs.retries = 1  # s3fs's own, on top of botocore's

    def check(self) -> None:
        """Writes something, reads it and deletes it. Raises OSError, in one sentence, if that does not work."""
        path = self._path(f"test-{time.time_ns()}")
        try:
            self._fs.pipe_file(path, b"test")
            works = self._fs.cat_file(path) == b"test"
            self._fs.rm_file(path)
        except Exception as error:  # each file system has errors of its own
            raise OSError(
                f"--clips_url {self.name} cannot be written to ({_words(error)}); check the address, that the bucket "
                "or folder is there, and the credentials (for S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and "
                "AWS_ENDPOINT_URL where it is not Amazon's)."
            ) from error
        if not works:
            raise OSError(f"--clips_url {self.name} gives back something else than was written; choose another place.")

    def read(self, segment_id: str) -> bytes | None:
        """A sheet; None if it is not there, or only part of it is because its writer was killed."""
        try:
            data: bytes = self._fs.cat_file(self._path(segment_id))
        except FileNotFoundError:
            return None
        return data if _is_whole(data) else None

    def write(self, segment_id: str, data: bytes) -> None:
        """Stores a sheet whole or not at all, also where the power is cut; stores of objects do so by themselves."""
        path = self._path(segment_id)
        if not isinstance(self._fs, LocalFileSystem):
            self._fs.pipe_file(path, data)
            return
        draft = Path(f"{path}.{os.getpid()}-{threading.get_ident()}")  # two may draw the same clip
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
        """Deletes what writers that were killed have left; where it cannot, nothing else is hindered."""
        if not isinstance(self._fs, LocalFileSystem):
            return
        for draft in Path(self._root).glob("*.webp.*"):
            with contextlib.suppress(OSError):  # another server may have been first
                if draft.stat().st_mtime < time.time() - DRAFT_SECONDS:
                    draft.unlink()

    def ids(self) -> set[str]:
        """Of all segments that have a sheet here."""
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
    """Whether all of a WebP file is there: its header says how long it is."""
    return data[:4] == b"RIFF" and int.from_bytes(data[4:8], "little") + 8 == len(data)


def _words(error: Exception) -> str:
    """An error's first line, without the full stop."""
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


class Clips:
    """Sprite sheets by segment id, made when first asked for; safe to call from several threads.

    Args:
        keep: sheets of answered pairs that are kept, of the newest answers; others are drawn again when asked for.
    """

    def __init__(self, db_path: Path, place: Path | str, keep: int) -> None:
        """Raises OSError if there cannot be a store at that place."""
        self._db_path, self._store, self._keep = db_path, SheetStore(place), keep
        self._store.drop_drafts()
        self._is_local = isinstance(place, Path)
        self._local = threading.local()
        self.pool = ThreadPoolExecutor(N_RENDERERS, thread_name_prefix="clips")
        self._shapes: dict[str, tuple[int, int, int, float]] = {}  # frames, height, width, fps
        self._written = 0
        self._retry_at = 0.0
        self.trouble = ""  # why the store is not used now

    def sheet(self, segment_id: str) -> Sheet:
        """The sheet of a segment, from the store or drawn now: a store that fails holds nobody up for long.

        Raises PrefDBError if there is no such segment, ValueError if it cannot be seen.
        """
        data, shape = self._read(segment_id), self._shapes.get(segment_id)
        if data is None or shape is None:
            # In colour if it was recorded so, else the newest grey frame of each step.
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
        """Deletes the sheets of pairs that nobody is asked about any more, except those of the `keep` newest answers.

        Also drafts of sheets whose writers have died.
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
                if not self.trouble:  # once: all that can go is gone then
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
        self._say(_words(error))

    def _say(self, why: str) -> None:
        if not self.trouble:
            self.trouble = f"clips cannot be kept in {self._store.name} ({why}); they are drawn when asked for"
            log.warning(self.trouble)

    def _db(self) -> PrefDB:
        """Each thread has a connection of its own."""
        if not hasattr(self._local, "db"):
            self._local.db = PrefDB.open(self._db_path, read_only=True)
        db: PrefDB = self._local.db
        return db
