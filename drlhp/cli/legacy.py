"""Reads the stores of mrahtz's learning-from-human-preferences: train.pkl.gz and val.pkl.gz.

The unpickler builds dictionaries, lists, numbers and arrays, and nothing else.
"""

from __future__ import annotations

import gzip
import pickle
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from drlhp.cli.program import program
from drlhp.data.comparison import MU, Choice, Comparison
from drlhp.data.segment import Segment
from drlhp.errors import UserError

LEGACY_FILES = ("train.pkl.gz", "val.pkl.gz")
LEGACY_CHOICES = {mu: choice for choice, mu in MU.items()}


class LegacyDB:
    """Holds the data of mrahtz's `pref_db.PrefDB`: segments by hash, and (hash, hash, mu) of each label."""

    segments: Any = None
    prefs: Any = None


class LegacyDtype:
    """Replaces NumPy's dtype, because a pickle could set that one's state to anything."""

    def __init__(self, name: object, *_flags: object) -> None:
        if not isinstance(name, str) or np.dtype(name).kind not in "biuf":
            raise pickle.UnpicklingError("an array of something other than numbers")
        self.dtype = np.dtype(name)

    def __setstate__(self, _state: object) -> None: ...


class LegacyArray:
    """Replaces NumPy's array, and makes an array from nothing but bytes, a number type and a shape."""

    array: np.ndarray

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
        """Returns an array of these bytes, as NumPy's `_frombuffer` does, which pickle protocol 5 names.

        Args:
            axes: the order of its axes in memory, used if `order` is K.
        """
        self = cls()
        self.__setstate__((1, shape, dtype, order == "F", data))
        if order == "K" and axes is not None:
            self.array = self.array.transpose(axes)
        return self

    def __setstate__(self, state: tuple[int, tuple[int, ...], LegacyDtype, bool, bytes]) -> None:
        _, shape, dtype, is_fortran, data = state
        self.array = np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if is_fortran else "C")


ADMITTED = {
    ("pref_db", "PrefDB"): LegacyDB,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): LegacyArray.reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): LegacyArray.from_buffer for core in ("core", "_core")},
    ("numpy", "ndarray"): "ndarray",  # A pickle names this class, but never calls it.
    ("numpy", "dtype"): LegacyDtype,
}


class LegacyUnpickler(pickle.Unpickler):
    """Builds plain values and the classes in ADMITTED, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no store of labels holds")
        return ADMITTED[(module, name)]


def read_legacy(files: list[Path], env_id: str) -> tuple[str, int, list[Segment], list[dict[str, Any]]]:
    """Returns the parts of a store: environment, length of the longest segment, segments, and rows of answers.

    The pickles hold neither true rewards nor actions; both become 0. Raises UserError if a file cannot be read.
    """
    fps = program().pixels_fps(env_id)
    if fps is None:
        raise UserError(f"{files[0]} holds pictures, and {env_id} shows none; give the --env_id of what was played.")
    segments: dict[str, Segment] = {}
    rows: list[dict[str, Any]] = []
    for file in files:
        try:
            with gzip.open(file) as stream:
                stored = LegacyUnpickler(stream).load()
            if not isinstance(stored, LegacyDB) or not isinstance(stored.segments, dict):
                raise ValueError("it holds no PrefDB")
            by_hash = {key: _legacy_segment(frames, env_id, fps) for key, frames in stored.segments.items()}
            for first, second, (p_a, p_b) in stored.prefs:
                a, b = by_hash[first], by_hash[second]
                if a.id != b.id:  # A label between two equal clips has no information.
                    segments |= {a.id: a, b.id: b}
                    rows.append(_legacy_row(a.id, b.id, LEGACY_CHOICES[float(p_a), float(p_b)]))
        except Exception as error:  # A hostile pickle can raise anything.
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{file} is no store of labels ({reason}); nothing was imported.") from error
    if not rows:
        raise UserError(f"{files[0]} holds no labels; nothing was imported.")
    return env_id, max(len(segment) for segment in segments.values()), list(segments.values()), rows


def _legacy_segment(frames: Any, env_id: str, fps: float) -> Segment:
    """Returns a segment of (T, 84, 84, 4) uint8 observations, in which the newest of four frames is last.

    Raises ValueError if the frames have another form.
    """
    listed = frames if isinstance(frames, list) else [frames]
    arrays = [one.array for one in listed if isinstance(one, LegacyArray)]
    if len(arrays) != len(listed):
        raise ValueError("a segment that is no array")
    stacked = np.stack(arrays) if isinstance(frames, list) else arrays[0]
    if stacked.ndim != 4 or stacked.dtype != np.uint8 or not len(stacked):
        raise ValueError(f"a segment of shape {stacked.shape} {stacked.dtype}")
    steps, stack = len(stacked), stacked.shape[3]
    unique = np.ascontiguousarray(Segment.unique_frames(np.moveaxis(stacked, 3, 1)))
    nothing = (np.zeros(steps, np.int64), np.zeros(steps, np.float32))
    return Segment(env_id, unique, *nothing, stack, policy_step=0, seed=0, fps=fps)


def _legacy_row(a: str, b: str, choice: Choice) -> dict[str, Any]:
    person = {"teacher": "mrahtz", "labeller": None, "shown_at": None, "answered_at": time.time(), "watched_ms": None}
    rest = {"flip": False, "replays": 0, "speed": 1.0, "late": False, "flag": False, "note": ""}
    ids = {"client_id": uuid.uuid4().hex, "comparison_id": Comparison.id_of(a, b), "a": a, "b": b}
    return {**ids, "choice": choice.value, **person, **rest}
