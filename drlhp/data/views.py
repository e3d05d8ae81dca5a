"""Views: what people see of a segment, as compressed frames or as states that frames are drawn from."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable

import numpy as np
import zstandard

from drlhp.errors import DamagedError

ZSTD_LEVEL = 3  # 84x84 segments: 1-8 kB in 0.1 ms; level 6 saves 5-15 % for three times the time
VIEW_HEADER = struct.Struct("<4s3I")  # magic, frames, height, width
VIEW_MAGIC = b"DRV1"
STATES_HEADER = struct.Struct("<4s2I")  # magic, steps, numbers of a state
STATES_MAGIC = b"DRS1"


def encode_frames(frames: np.ndarray) -> bytes:
    """Compresses a clip without loss: (T, H, W, 3) uint8 -> bytes. Raises ValueError on another form."""
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3:
        raise ValueError(f"expected frames (T, H, W, 3) uint8; received {frames.shape} {frames.dtype}")
    delta = frames.copy()
    delta[1:] ^= frames[:-1]  # halves colour clips with a moving background (but enlarges 84x84 grey ones)
    return VIEW_HEADER.pack(VIEW_MAGIC, *frames.shape[:3]) + compress(delta.tobytes())


def decode_frames(data: bytes) -> np.ndarray:
    """Undoes encode_frames: bytes -> (T, H, W, 3) uint8. Raises PrefDBError if the bytes are damaged."""
    if len(data) < VIEW_HEADER.size or not data.startswith(VIEW_MAGIC):
        raise DamagedError("a clip is damaged: restore prefs.db from a copy")
    _, *shape = VIEW_HEADER.unpack_from(data)
    raw = decompress(data[VIEW_HEADER.size :], math.prod(shape) * 3)
    frames = np.frombuffer(raw, np.uint8).reshape(*shape, 3)
    for previous, frame in itertools.pairwise(frames):
        frame ^= previous
    return frames


def encode_view(steps: np.ndarray) -> bytes:
    """Compresses a view: frames (T, H, W, 3) uint8, or states (T, S) float32 that frames are drawn from.

    Raises ValueError on another form.
    """
    if steps.ndim != 2:
        return encode_frames(steps)
    if steps.dtype != np.float32:
        raise ValueError(f"expected states (T, S) float32; received {steps.shape} {steps.dtype}")
    return STATES_HEADER.pack(STATES_MAGIC, *steps.shape) + compress(np.ascontiguousarray(steps).tobytes())


def unpacked_size(view: bytes) -> int:
    """Returns how many bytes decode_view will return, by the header. Raises ZstdError."""
    header = STATES_HEADER if view.startswith(STATES_MAGIC) else VIEW_HEADER
    size: int = zstandard.frame_content_size(view[header.size :])
    return size


def decode_view(data: bytes) -> np.ndarray:
    """Undoes encode_view. Raises PrefDBError if the bytes are damaged."""
    if not data.startswith(STATES_MAGIC) or len(data) < STATES_HEADER.size:
        return decode_frames(data)
    _, *shape = STATES_HEADER.unpack_from(data)
    raw = decompress(data[STATES_HEADER.size :], math.prod(shape) * 4)
    return np.frombuffer(raw, np.float32).reshape(shape)


Drawer = Callable[[str, np.ndarray], np.ndarray]  # environment id, states (T, S) -> frames (T, H, W, 3)
_drawers: list[Drawer] = []


def draw_with(drawer: Drawer) -> None:
    """Sets the drawer that makes frames of states in this process."""
    _drawers[:] = [drawer]


def shown(view: bytes, env_id: str) -> np.ndarray:
    """Returns the frames (T, H, W, 3) of an encoded view, drawn if it holds states.

    Raises PrefDBError if the bytes are damaged, ValueError if this process cannot draw, and what its drawer raises.
    """
    steps = decode_view(view)
    if steps.ndim == 4:
        return steps
    if not _drawers:
        raise ValueError(f"a segment of {env_id} was not drawn yet: ask about it with run.py, which draws it")
    return _drawers[0](env_id, steps)


def compress(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).compress(data)


def decompress(data: bytes, size: int) -> bytearray:
    """Decompresses to a writable buffer of exactly `size` bytes (torch warns about read-only arrays)."""
    try:
        # Compared first, so that a damaged header does not allocate gigabytes.
        if zstandard.frame_content_size(data) == size > 0:
            return bytearray(zstandard.ZstdDecompressor().decompress(data))
    except zstandard.ZstdError as error:
        raise DamagedError("a stored segment or clip is damaged: restore prefs.db from a copy") from error
    raise DamagedError("a stored segment or clip has the wrong size: restore prefs.db from a copy")
