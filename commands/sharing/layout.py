"""The layout of a shared repository: the names of its files, and how large each may be.

A model repository holds checkpoints as a run folder does. A dataset repository holds labels as `export` writes them.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from drlhp.cli.segment_files import MAX_SEGMENT_BYTES
from drlhp.errors import UserError
from drlhp.runtime.checkpoint import CheckpointError
from drlhp.runtime.regular_files import open_regular
from drlhp.runtime.run_files import MAX_CONFIG

Kind = Literal["model", "dataset"]
PARTS = ("policy", "reward_predictor")  # folders of a model repository
CARD = "README.md"
# A pattern of the names of the files that are loaded, and the most bytes of each; all others stay where they are.
FILES: dict[Kind, dict[str, int]] = {
    "model": {
        r"README\.md": 2**20,
        r"config\.json": MAX_CONFIG,
        r"(progress|evaluations)\.csv": 2**28,
        rf"({'|'.join(PARTS)})/step-[0-9]{{1,18}}\.pt": 2**32,
    },
    "dataset": {
        r"export\.json": 2**16,
        r"labels\.jsonl": 2**32,
        r"segments/[0-9a-f]{64}\.npz": MAX_SEGMENT_BYTES,
    },
}
MOST_FILES = 100_000
NOUNS: dict[Kind, str] = {
    "model": "no checkpoint (policy/step-*.pt or reward_predictor/step-*.pt)",
    "dataset": "no labels",
}


def wanted(kind: Kind, sizes: Mapping[str, int], where: str) -> dict[str, int]:
    """Returns the files of a repository that are loaded, with their sizes; of checkpoints the newest of each part.

    Raises:
        UserError: there is nothing to load, or more than there can be.
    """
    found = {name: size for name, size in sizes.items() if _most_bytes(kind, name) is not None}
    for part in PARTS:
        checkpoints = sorted((name for name in found if name.startswith(f"{part}/")), key=_step)
        for older in checkpoints[:-1]:
            del found[older]
    if not any(name.endswith(".pt") or name == "export.json" for name in found):
        other = ", or add --prefs if it holds labels" if kind == "model" else ", or leave out --prefs"
        raise UserError(f"{where} holds {NOUNS[kind]}; give another repository{other}.")
    too_large = [name for name, size in found.items() if size > (_most_bytes(kind, name) or 0)]
    if too_large or len(found) > MOST_FILES:
        what = f"{too_large[0]} is larger" if too_large else f"it holds more than {MOST_FILES:,} files, more"
        raise UserError(f"{where} cannot be loaded: {what} than anything that `push` writes.")
    return found


def _most_bytes(kind: Kind, name: str) -> int | None:
    """Returns the most bytes that a file of this name may have; None if it is not loaded."""
    return next((most for pattern, most in FILES[kind].items() if re.fullmatch(pattern, name)), None)


def _step(name: str) -> int:
    return int(Path(name).stem.removeprefix("step-"))


def check_archive(path: Path) -> None:
    """Raises CheckpointError if a checkpoint would unpack to more than its size: PyTorch packs nothing."""
    with open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise CheckpointError(f"{path.name} is damaged or no checkpoint of ours ({error}).") from error
    packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if packed or sum(member.file_size for member in members) > path.stat().st_size:
        raise CheckpointError(f"{path.name} is packed in a way that PyTorch does not use, so it is not read.")
