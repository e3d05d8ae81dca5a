"""The state of objects as plain values for a checkpoint, and back: what a `--synchronous` run needs to go on exactly.

A class names its attributes with state in `KEPT`, or has methods `snapshot` and `restore`. Only values are stored, so
an object is restored into one that was made by the same settings.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections import deque
from enum import Enum
from typing import Any, cast

import numpy as np

ARRAY, BYTES = "an array", "bytes"  # mark the values that are stored as tensors


def state_of(value: Any) -> Any:
    """Returns a value as plain numbers, strings, lists, dicts and tensors, which `restored` takes."""
    if hasattr(value, "snapshot"):
        return value.snapshot()
    if hasattr(value, "KEPT"):
        return kept_of(value)
    if hasattr(value, "state_dict"):  # a network or an optimiser
        return value.state_dict()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.ndarray):
        return {ARRAY: _tensor(value)}
    if isinstance(value, bytes):
        return {BYTES: _tensor(np.frombuffer(value, np.uint8))}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, ctypes._SimpleCData | Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: state_of(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: state_of(item) for key, item in value.items()}
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, list | tuple | deque):
        return [state_of(item) for item in value]
    return value


def restored(now: Any, state: Any) -> Any:
    """Returns what takes the place of `now`: itself, changed to a state of `state_of`, or a new value of its kind."""
    if hasattr(now, "restore"):
        now.restore(state)
    elif hasattr(now, "KEPT"):
        restore_kept(now, state)
    elif hasattr(now, "load_state_dict"):
        now.load_state_dict(state)
    elif isinstance(now, np.random.Generator):
        now.bit_generator.state = state
    elif isinstance(now, ctypes._SimpleCData):
        now.value = state
    elif isinstance(now, deque):
        now.clear()
        now.extend(value_of(state))
    elif isinstance(now, Enum):
        return type(now)(state)
    elif dataclasses.is_dataclass(now) and not isinstance(now, type):
        return cast(Any, type(now))(**value_of(state))
    elif isinstance(now, set | tuple):
        return type(now)(value_of(state))
    else:
        return value_of(state)
    return now


def kept_of(value: Any) -> dict[str, Any]:
    """Returns the state of the attributes in `KEPT`."""
    return {name: state_of(getattr(value, name)) for name in value.KEPT}


def restore_kept(now: Any, state: dict[str, Any]) -> None:
    """Restores the attributes in `KEPT`."""
    for name in now.KEPT:
        setattr(now, name, restored(getattr(now, name), state[name]))


def _tensor(array: np.ndarray) -> Any:
    import torch  # slow to import, and other commands need none of it

    return torch.from_numpy(np.array(array))


def value_of(state: Any) -> Any:
    """Returns plain values with arrays and bytes as they were."""
    if isinstance(state, dict):
        if state.keys() == {ARRAY}:
            return state[ARRAY].numpy()
        if state.keys() == {BYTES}:
            return state[BYTES].numpy().tobytes()
        return {key: value_of(item) for key, item in state.items()}
    return [value_of(item) for item in state] if isinstance(state, list) else state
