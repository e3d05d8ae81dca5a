"""Writes and reads the npz files of exported segments, and checks what they hold."""

from __future__ import annotations

import math
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from drlhp.data.segment import Segment
from drlhp.data.views import decode_view, unpacked_size
from drlhp.errors import UserError, reason_of
from drlhp.runtime.regular_files import open_regular

EXCHANGE_VERSION = 1
MAX_SEGMENT_BYTES = 2**28  # unpacked, once for the arrays and once for the clip; a segment of the paper has 0.2 MB
NUMBERS = ("stack", "policy_step", "seed", "fps")


def write_segment(folder: Path, segment: Segment) -> None:
    """Writes `folder/ID.npz`. Raises OSError if it cannot."""
    arrays: dict[str, Any] = {name: getattr(segment, name) for name in ("observations", "actions", "rewards")}
    if segment.view is not None:
        arrays["view"] = np.frombuffer(segment.view, np.uint8)
    arrays |= {name: np.array(getattr(segment, name)) for name in NUMBERS}
    with (folder / f"{segment.id}.npz").open("wb") as file:
        np.savez_compressed(file, schema=np.array(EXCHANGE_VERSION), env_id=np.array(segment.env_id), **arrays)


def read_segment(path: Path, n_actions: int | None) -> Segment:
    """Returns a segment that `write_segment` wrote.

    Args:
        n_actions: of the environment; None if it is not known, or if actions are vectors.

    Raises:
        UserError: it is damaged, its id does not fit its contents, or it holds values that no environment gives.
    """
    try:
        with open_regular(path) as file:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                # Python unpacks other kinds in large pieces, whatever size they claim to have.
                if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in members):
                    raise ValueError("it is packed in a way that NumPy does not use")
                if sum(info.file_size for info in members) > MAX_SEGMENT_BYTES:
                    raise ValueError("it unpacks to more than a segment can hold")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                segment = _segment(arrays)
        if segment.view is not None:
            if unpacked_size(segment.view) > MAX_SEGMENT_BYTES:
                raise ValueError("its clip unpacks to more than a segment can hold")
            decode_view(segment.view)  # This raises an error if the clip is damaged.
        numbers_fit = all(-(2**63) <= number < 2**63 for number in (segment.policy_step, segment.seed))
        segment = replace(segment, given_id=path.stem)
        if not segment.can_have_id(path.stem) or not 0 < segment.fps < math.inf or not numbers_fit:
            raise ValueError("its contents are not what its name says")
        check_values(segment, n_actions)
    except Exception as error:  # The errors of zipfile, NumPy and Segment have no common base class.
        raise UserError(f"{path} is no segment ({reason_of(error)}).") from error
    return segment


def _segment(arrays: Any) -> Segment:
    """Returns the segment that the arrays of a file describe."""
    if int(arrays["schema"]) != EXCHANGE_VERSION:
        raise ValueError(f"schema {arrays['schema']}")
    return Segment(
        str(arrays["env_id"]),
        arrays["observations"],
        arrays["actions"],
        arrays["rewards"],
        stack=int(arrays["stack"]),
        policy_step=int(arrays["policy_step"]),
        seed=int(arrays["seed"]),
        fps=float(arrays["fps"]),
        view=arrays["view"].tobytes() if "view" in arrays else None,
    )


def check_values(segment: Segment, n_actions: int | None) -> None:
    """Raises ValueError if a segment holds values that no environment gives: training would fail, or learn nothing.

    Args:
        n_actions: of the environment; None if it is not known, or if actions are vectors.
    """
    for name in ("observations", "actions", "rewards"):
        array = getattr(segment, name)
        if array.size == 0:
            raise ValueError(f"its {name} are empty: {' x '.join(map(str, array.shape))}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"its {name} are not all finite numbers")
    if segment.actions.dtype == np.int64:
        outside = [int(a) for a in (segment.actions.min(), segment.actions.max()) if not 0 <= a < (n_actions or 2**31)]
        if outside:
            raise ValueError(f"it holds the action {outside[0]}, which {segment.env_id} does not have")


def form_of(segment: Segment) -> tuple[object, ...]:
    """Returns what all segments of one store share: shape and type of an observation and of an action."""
    shown = segment.stacked()
    return shown.shape[1:], shown.dtype, segment.actions.shape[1:], segment.actions.dtype
