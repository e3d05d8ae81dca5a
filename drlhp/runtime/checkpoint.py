"""Checkpoints: plain dicts of tensors and numbers, written whole or not at all, and loaded without running code."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from drlhp.errors import UserError, reason_of
from drlhp.runtime.regular_files import open_regular

FORMAT = 1
# The types of what a checkpoint may hold; those of other versions and other kinds lack some.
TYPES: dict[str, type | tuple[type, ...]] = {
    **{"kind": str, "env_id": str, "run_id": str, "step": int, "optimizer": dict},
    **{"random": torch.Tensor, "network": str, "algo": str, "updates": int, "finished_returns": list},
    **{"episodes": int, "true_reward_total": (float, int), "config": dict, "inputs": dict, "own_network": bool},
    **{"pretrained": bool, "newest_seq": int, "epochs": int, "l2": list, "bag_losses": dict},
}
OLDER = "move it away, and an older one beside it is used"
KEEP = 3
MAX_SECONDS = 120.0  # A run that learns saves at its next update if the last checkpoint is older than this.


class CheckpointError(UserError):
    """A checkpoint cannot be read or does not fit; the message is one sentence with the fix."""


def save(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Writes `folder/step-<step>.pt` (temporary file, fsync, rename), and deletes all but the newest three.

    Tensors are written as CPU tensors, wherever they are. Returns the path of the new file.

    Raises:
        OSError: the disk is full or the folder cannot be written; the earlier checkpoints stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:012d}.pt"
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            torch.save({"format": FORMAT, "step": step, **_on_cpu(state)}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError if a write fails.
        why = f"({reason_of(error)}): free some space on its disk, or allow to write in its folder."
        raise OSError(f"{path} could not be written {why}") from error
    finally:
        with contextlib.suppress(OSError):  # The file was renamed or never made, or cannot be deleted either.
            temporary.unlink()
    for old in list_checkpoints(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def check_run_folder(folder: Path) -> None:
    """Raises UserError if the run that `folder` belongs to was removed or renamed; to save would make it anew."""
    if not folder.parent.is_dir():
        raise UserError(f"{folder.parent} was removed or renamed while a run used it; give it back its name.")


def _on_cpu(value: Any) -> Any:
    """Returns the same plain values with all tensors on the CPU; tensors that are there already are not copied."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    return [_on_cpu(item) for item in value] if isinstance(value, list) else value


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints of a folder, oldest first."""
    return sorted(path for path in folder.glob("step-*.pt") if re.fullmatch(r"step-\d+\.pt", path.name))


def find(place: Path, part: str) -> Path:
    """Returns the newest checkpoint at `place`: a checkpoint, a folder of them, or a run folder with a `part` folder.

    Raises:
        CheckpointError: there is no checkpoint.
    """
    if place.is_file():
        return place
    found = list_checkpoints(place) or list_checkpoints(place / part)
    if not found:
        what = "holds no checkpoint (step-*.pt)" if place.is_dir() else "does not exist"
        raise CheckpointError(f"{place} {what}; give a run folder, its {part} folder, or a checkpoint file.")
    return found[-1]


def load(path: Path, *, kind: str, env_id: str) -> dict[str, Any]:
    """Reads a checkpoint of the given kind (`policy` or `reward_predictor`) for the given environment.

    Raises:
        CheckpointError: the file is damaged, from a newer version, of another kind, or of another environment.
    """
    state = read(path)
    if state["kind"] != kind:
        raise CheckpointError(f"{path} is a {state['kind']} checkpoint, not one of a {kind}; give the {kind} folder.")
    if state["env_id"] != env_id:
        raise CheckpointError(
            f"{path} was trained on {state['env_id']}, not on {env_id}; run it with {state['env_id']}."
        )
    return state


def read(path: Path) -> dict[str, Any]:
    """Reads a checkpoint of any kind, with tensors and plain values only (`weights_only`).

    Raises:
        CheckpointError: the file is damaged, no checkpoint of this project, or from a newer version.
        OSError: the file cannot be opened.
    """
    with open_regular(path) as file:
        try:
            state = torch.load(file, weights_only=True, map_location="cpu")
        except Exception as error:  # torch's errors for damaged input have no common base class.
            raise CheckpointError(f"{path} is damaged or no checkpoint of ours; {OLDER}.") from error
    if not isinstance(state, dict) or not isinstance(state.get("format"), int) or not {"kind", "env_id"} <= set(state):
        raise CheckpointError(f"{path} is no checkpoint of ours; give a step-*.pt file from the folder of a run.")
    if state["format"] > FORMAT:
        raise CheckpointError(
            f"{path} was written by a newer version (format {state['format']}); update this checkout."
        )
    for name, kind in TYPES.items():
        value = state.get(name)
        is_no_number = kind is int and (isinstance(value, bool) or (isinstance(value, int) and value < 0))
        if name in state and (is_no_number or not isinstance(value, kind)):
            raise CheckpointError(f"{path} is damaged (no {name} in it); {OLDER}.")
    return state


@contextlib.contextmanager
def entries(path: Path) -> Iterator[None]:
    """Raises CheckpointError if the block does not find in the checkpoint of `path` what it takes from there."""
    try:
        yield
    except CheckpointError:
        raise
    except (UserError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        what = f"no {error.args[0]} in it" if isinstance(error, KeyError) else reason_of(error)
        raise CheckpointError(f"{path} is damaged ({what}); {OLDER}.") from error


def is_finite(weights: dict[str, Any]) -> bool:
    """Returns whether all weights are numbers."""
    return all(bool(torch.isfinite(values).all()) for values in weights.values() if isinstance(values, torch.Tensor))


def fill(module: torch.nn.Module, weights: dict[str, Any], path: Path) -> None:
    """Loads weights into a module built from the settings.

    Raises:
        CheckpointError: the settings describe another network, or some weights are not finite.
    """
    if not is_finite(weights):
        raise CheckpointError(f"{path} holds weights that are not finite, because the training diverged; {OLDER}.")
    try:
        module.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} holds another network than the flags describe; use those, and the version of this program, that "
            "it was trained with."
        ) from error


def fill_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads what an optimiser has seen of the gradients.

    Raises what `entries` takes for damage if it was another network's.
    """
    optimizer.load_state_dict(state)
    for weights, seen in optimizer.state.items():
        for name, values in seen.items():
            expected = torch.Size() if name == "step" else weights.shape
            if torch.as_tensor(values).shape != expected:
                raise ValueError(f"the optimiser's {name} does not fit the weights")
