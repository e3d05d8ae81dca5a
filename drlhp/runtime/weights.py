"""Publishes the reward predictor's weights to the processes that use them."""

from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from drlhp.runtime.snapshot import state_of, value_of
from drlhp.runtime.start import Context

if TYPE_CHECKING:
    from torch import nn


class WeightsBoard:
    """The newest weights of the reward predictor; a slow reader misses versions, but never waits.

    Version 0 means that nothing was published yet. Every entry of the state dict travels as float32, and so do the
    normaliser's statistics.
    """

    def __init__(self, module: nn.Module, context: Context | None) -> None:
        n_values = sum(tensor.numel() for tensor in module.state_dict().values())
        if context is None:
            self._shared: Any = (ctypes.c_float * n_values)()
            self._version: Any = ctypes.c_int64(0)
            self._lock: Any = contextlib.nullcontext()
        else:
            self._shared = context.RawArray(ctypes.c_float, n_values)
            self._version = context.RawValue(ctypes.c_int64, 0)
            self._lock = context.Lock()

    def snapshot(self) -> dict[str, Any]:
        """Returns what `restore` takes."""
        return state_of({"values": np.frombuffer(self._shared, dtype=np.float32), "version": self.version})

    def restore(self, state: dict[str, Any]) -> None:
        """Publishes the weights that were the newest, under their version."""
        values = value_of(state)
        np.frombuffer(self._shared, dtype=np.float32)[:] = values["values"]
        self._version.value = values["version"]

    @property
    def version(self) -> int:
        """Returns how many times weights were published."""
        return int(self._version.value)

    def publish(self, module: nn.Module) -> None:
        """Makes the module's weights and buffers the newest ones."""
        import torch  # slow to import, and `warm_up` needs none of it

        flat = torch.cat([tensor.detach().reshape(-1).float() for tensor in module.state_dict().values()]).cpu()
        with self._lock:
            np.frombuffer(self._shared, dtype=np.float32)[:] = flat.numpy()
            self._version.value += 1

    def fetch(self, module: nn.Module) -> int:
        """Copies the newest weights into the module and returns their version."""
        import torch

        with self._lock:
            flat = torch.from_numpy(np.frombuffer(self._shared, dtype=np.float32).copy())
            version = self.version
        tensors = list(module.state_dict().values())
        flat = flat.to(tensors[0].device)
        for tensor, values in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(values.reshape(tensor.shape))
        return version
