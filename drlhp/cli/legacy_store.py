"""Converts stores of the original project to the form that `export` writes. It is the program of a child process.

What the stores name is replaced by the classes here, which hold dictionaries, lists, numbers and arrays.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import sys
import time
import uuid
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from drlhp.cli.pickles import BoundedStream, PickleReader
from drlhp.cli.segment_files import EXCHANGE_VERSION, check_values, write_segment
from drlhp.data.comparison import MU, Choice, Comparison
from drlhp.data.segment import Segment
from drlhp.data.views import compress, decompress
from drlhp.errors import UserError, reason_of, told
from drlhp.runtime.regular_files import open_regular

LEGACY_CHOICES = {mu: choice for choice, mu in MU.items()}
# The original keeps 3000 labels at most, of 6000 segments of 0.7 MB. Its older form has them all in one pickle.
MAX_STORE_BYTES = 2**33
MAX_SEGMENT_BYTES = 2**26
MAX_MEMORY = 3 * 2**29  # of this process; segments are kept compressed, and take a third of it at most
MAX_SECONDS = 3600  # of this process's computing; 3000 labels take a few minutes


class LegacyObject:
    """Holds the attributes of an object, such as `pref_db.PrefDB` with its `segments` and `prefs`."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def build(self, state: dict[str, Any]) -> None:
        self.state = dict(state)


class LegacyDB(LegacyObject):
    """Replaces `pref_db.PrefDB`: segments by hash, and (hash, hash, mu) of each label."""


class LegacyDict(LegacyObject):
    """Replaces `pref_db.CompressedDict`, whose `store` has a pickle by hash, compressed by zlib."""


class LegacyDtype:
    """Replaces NumPy's dtype, because a pickle could set that one's state to anything."""

    def __init__(self, name: object, *_flags: object) -> None:
        if not isinstance(name, str) or np.dtype(name).kind not in "biuf":
            raise ValueError("an array of something other than numbers")
        self.dtype = np.dtype(name)

    def build(self, _state: object) -> None: ...


class LegacyArray:
    """Replaces NumPy's array, and holds nothing but compressed bytes, a number type and a shape."""

    axes: tuple[int, ...] | None = None  # the order of the axes in memory, if it is not that of the shape

    @classmethod
    def reconstruct(cls, *_arguments: object) -> LegacyArray:
        """Returns an empty array that is filled later, as NumPy's `_reconstruct` does."""
        return cls()

    @classmethod
    def from_buffer(
        cls,
        data: bytes,
        dtype: LegacyDtype,
        shape: tuple[int, ...],
        order: str,
        axes: tuple[int, ...] | None = None,
    ) -> LegacyArray:
        """Returns an array of these bytes, as NumPy's `_frombuffer` does, which pickle protocol 5 names."""
        self = cls()
        self.build((1, shape, dtype, order == "F", data))
        self.axes = axes if order == "K" else None
        return self

    def build(self, state: tuple[int, tuple[int, ...], LegacyDtype, bool, bytes]) -> None:
        """Fills the array. Raises ValueError if it is empty, or has more or fewer bytes than its shape."""
        _, self.shape, dtype, is_fortran, data = state
        self.dtype, self.order = dtype.dtype, "F" if is_fortran else "C"
        self.n_bytes, self.packed = len(data), compress(bytes(data))
        if not np.frombuffer(data, self.dtype).reshape(self.shape).size:
            raise ValueError(f"an empty picture, {self.shape}")

    def decode(self) -> np.ndarray:
        """Returns the array."""
        raw = decompress(self.packed, self.n_bytes)
        array = np.frombuffer(raw, self.dtype).reshape(self.shape, order=self.order)  # type: ignore[call-overload]
        return array if self.axes is None else array.transpose(self.axes)


def encoded(text: str, encoding: str) -> bytes:
    """Returns bytes that protocol 2 holds as text: `_codecs.encode` with the one encoding that pickle uses."""
    if type(text) is not str or encoding != "latin1":
        raise ValueError("it asks for an encoding that no store of labels needs")
    return text.encode("latin1")


ADMITTED = {
    ("pref_db", "PrefDB"): LegacyDB,
    ("pref_db", "CompressedDict"): LegacyDict,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): LegacyArray.reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): LegacyArray.from_buffer for core in ("core", "_core")},
    ("numpy", "ndarray"): "ndarray",  # A pickle names this class, but never calls it.
    ("numpy", "dtype"): LegacyDtype,
    ("_codecs", "encode"): encoded,
}


class Conversion:
    """Writes the labels of stores, and the segments that they compare, into a folder."""

    def __init__(self, folder: Path, env_id: str, fps: float, n_actions: int | None) -> None:
        self.folder, self.env_id, self.fps, self.n_actions = folder, env_id, fps, n_actions
        self.rows: list[dict[str, Any]] = []
        self.length = 0  # of the longest segment
        self.bytes_left = MAX_STORE_BYTES

    def convert(self, files: list[Path]) -> None:
        """Converts the files. Raises UserError if one cannot be read, or there are no labels."""
        (self.folder / "segments").mkdir()
        for file in files:
            try:
                with open_regular(file) as packed, gzip.open(packed) as stream:
                    self._convert(
                        PickleReader(ADMITTED).read(BoundedStream(stream, MAX_STORE_BYTES, MAX_SEGMENT_BYTES))
                    )
            except UserError:
                raise
            except MemoryError as error:
                raise UserError(f"{file} needs more memory than a store of labels; nothing was imported.") from error
            except Exception as error:  # A damaged file can raise anything.
                raise UserError(f"{file} is no store of labels ({reason_of(error)}); nothing was imported.") from error
        if not self.rows:
            raise UserError(f"{files[0]} holds no labels; nothing was imported.")
        about = {"schema": EXCHANGE_VERSION, "env_id": self.env_id, "segment_length": self.length}
        (self.folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        (self.folder / "export.json").write_text(json.dumps(about))

    def _convert(self, stored: Any) -> None:
        """Writes what one store holds."""
        if not isinstance(stored, LegacyDB):
            raise ValueError("it holds no PrefDB")
        segments = stored.state["segments"]
        frames = segments.state["store"] if isinstance(segments, LegacyDict) else segments
        for first, second, mu in stored.state["prefs"]:
            if first not in frames or second not in frames or tuple(mu) not in LEGACY_CHOICES:
                raise ValueError("a label that names no answer, or a segment that is not there")
            a, b = self._segment(frames[first]), self._segment(frames[second])
            if a.id == b.id:  # A label between two equal clips has no information.
                continue
            for segment in (a, b):
                if not (self.folder / "segments" / f"{segment.id}.npz").exists():
                    write_segment(self.folder / "segments", segment)
                self.length = max(self.length, len(segment))
            self.rows.append(_row(a.id, b.id, LEGACY_CHOICES[tuple(mu)]))

    def _segment(self, frames: Any) -> Segment:
        """Returns a segment of a list of frames or an array, or of the compressed pickle of one."""
        if isinstance(frames, bytes):
            unpacked = zlib.decompressobj()
            pickled = unpacked.decompress(frames, MAX_SEGMENT_BYTES)
            if not unpacked.eof:
                raise ValueError("a segment that is cut off, or too large")
            frames = PickleReader(ADMITTED).read(io.BytesIO(pickled))
        arrays = frames if isinstance(frames, list) else [frames]
        if not arrays or not all(isinstance(array, LegacyArray) for array in arrays):
            raise ValueError("a segment that is no array")
        n_bytes = sum(array.n_bytes for array in arrays)
        self.bytes_left -= n_bytes
        if n_bytes > MAX_SEGMENT_BYTES or self.bytes_left < 0:
            raise ValueError("it unpacks to more than a store of labels holds")
        stacked = np.stack([array.decode() for array in arrays]) if isinstance(frames, list) else frames.decode()
        segment = segment_of(stacked, self.env_id, self.fps)
        check_values(segment, self.n_actions)
        return segment


def segment_of(stacked: np.ndarray, env_id: str, fps: float) -> Segment:
    """Returns a segment of (T, H, W, stack) uint8 observations, in which the newest of the frames is last.

    True rewards are not known and become 0. So do actions, unless `take_actions` finds them. Each frame is kept once,
    unless an observation does not repeat those of the one before: the original fills up the last clip of an episode.
    Raises ValueError if the observations have another form.
    """
    if stacked.ndim != 4 or stacked.dtype != np.uint8:
        raise ValueError(f"a segment of shape {stacked.shape} {stacked.dtype}")
    planes = np.ascontiguousarray(np.moveaxis(stacked, 3, 1))  # (T, stack, H, W)
    actions, steps, stack = take_actions(planes), len(planes), planes.shape[1]
    if stack > 1 and np.array_equal(planes[1:, :-1], planes[:-1, 1:]):
        planes = Segment.unique_frames(planes)
    else:
        stack = 1
    return Segment(env_id, planes, actions, np.zeros(steps, np.float32), stack, policy_step=0, seed=0, fps=fps)


def take_actions(planes: np.ndarray) -> np.ndarray:
    """Returns the actions (T,) int64 that are drawn in the observations (T, stack, H, W), and removes them there.

    The original writes the moving dot's action into the first pixel of the newest frame. The next observation holds the
    same frame without it. If no such pixel is found, actions are not known and become 0.
    """
    if planes.shape[1] == 1:
        return np.zeros(len(planes), np.int64)
    differs = planes[1:, :-1] != planes[:-1, 1:]
    in_corner = differs[:, -1, 0, 0].copy()
    differs[:, -1, 0, 0] = False
    follows = ~differs.any(axis=(1, 2, 3))  # the observation repeats the frames of the one before, but for the corner
    if not (in_corner & follows).any():
        return np.zeros(len(planes), np.int64)
    actions = planes[:, -1, 0, 0].astype(np.int64)
    planes[:-1, -1, 0, 0] = planes[1:, -2, 0, 0]
    planes[-1, -1, 0, 0] = planes[-1, -2, 0, 0]
    return actions


def _row(a: str, b: str, choice: Choice) -> dict[str, Any]:
    """Returns a label as a row of labels.jsonl."""
    person = {"teacher": "mrahtz", "labeller": None, "shown_at": None, "answered_at": time.time(), "watched_ms": None}
    rest = {"flip": False, "replays": 0, "speed": 1.0, "late": False, "flag": False, "note": ""}
    ids = {"client_id": uuid.uuid4().hex, "comparison_id": Comparison.id_of(a, b), "a": a, "b": b}
    return {"schema": EXCHANGE_VERSION, **ids, "choice": choice.value, **person, **rest}


def _limit_this_process() -> None:
    """Limits this process's memory and computing time, if the system can."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such module, and macOS no such limit.
        import resource

        for kind, most in ((resource.RLIMIT_CPU, MAX_SECONDS), (resource.RLIMIT_AS, MAX_MEMORY)):
            _, hard = resource.getrlimit(kind)
            resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def main(facts: str, folder: str, *files: str) -> int:
    """Converts files; returns the exit status: 2 if standard error says what is wrong."""
    _limit_this_process()
    try:
        Conversion(Path(folder), **json.loads(facts)).convert([Path(file) for file in files])
    except (UserError, OSError) as error:
        print(told(error), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
