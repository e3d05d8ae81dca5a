"""The CPU or GPU of the networks: its number formats, its threads, and transfers to it."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

CPU = torch.device("cpu")


def is_forked() -> bool:
    """Returns whether this process was forked.

    With more than one CPU thread, a forked process would wait forever for the threads of its parent.
    """
    return type(multiprocessing.current_process()).__name__ == "ForkProcess"


def use_threads(n: int) -> None:
    """Lets the calling thread compute with so many CPU threads from now on, or with one if the process was forked."""
    # A thread that never asked for the number would later adopt the number that any thread set last.
    torch.get_num_threads()
    torch.set_num_threads(1 if is_forked() else n)


def cpu_has_bf16() -> bool:
    """Returns whether the CPU is faster with bfloat16 than with float32; most CPUs emulate it.

    With AVX-512, AMD's CPUs are twice as fast. Intel's are not, because they multiply two float32 in that time; only
    their matrix unit (AMX) makes them faster.
    """
    has = torch.cpu.get_capabilities()
    by_avx512 = has.get("avx512_bf16", False) and not has.get("cpu_name", "").startswith("Intel")
    return by_avx512 or has.get("amx_bf16", False) or has.get("bf16", False)


def has_bf16(device: torch.device) -> bool:
    """Returns whether the device is faster with bfloat16."""
    return torch.cuda.is_bf16_supported(including_emulation=False) if device.type == "cuda" else cpu_has_bf16()


def trains_in_bf16(device: torch.device) -> bool:
    """Returns whether the device multiplies bfloat16 itself.

    Training in bfloat16 then takes half the memory, in about the same time.
    """
    has = torch.cpu.get_capabilities()
    return has_bf16(device) or (device.type == "cpu" and has.get("avx512_bf16", False))


def to_device(values: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """Returns values for the networks on `device`: no copy on a CPU, no wait for the transfer to a GPU.

    The transfer is from pinned memory, which PyTorch keeps for the next one; the memory layout stays.
    """
    tensor = torch.as_tensor(values)
    if device.type != "cuda" or tensor.is_cuda:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def joined(*tensors: Tensor) -> Tensor:
    """Joins tensors (N, ...) to (N, columns) float32, for one transfer from a GPU; whole numbers must be below 2^24."""
    return torch.cat([tensor.reshape(len(tensor), -1).float() for tensor in tensors], 1)


class Recorded:
    """A function of tensors on a GPU, recorded after a few calls with the same shapes, and then played back.

    Playing back costs the CPU a tenth of launching each operation. Everything else that the function reads, such as
    weights, must keep its place in memory. The next call overwrites the results. If it cannot be recorded, the function
    is simply called.
    """

    launched_before = 3  # In the first calls, libraries choose their algorithms, and that cannot be recorded.

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self.function, self.records = function, True
        self._calls: Counter[tuple[torch.Size, ...]] = Counter()
        self._recordings: dict[tuple[torch.Size, ...], tuple[Any, list[Tensor], tuple[Tensor, ...]]] = {}

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        shapes = tuple(tensor.shape for tensor in inputs)
        self._calls[shapes] += 1
        if self.records and shapes not in self._recordings and self._calls[shapes] > self.launched_before:
            self._record(shapes, inputs)
        if shapes not in self._recordings:
            return self.function(*inputs)
        graph, places, results = self._recordings[shapes]
        for place, tensor in zip(places, inputs, strict=True):
            place.copy_(tensor)
        graph.replay()
        return results

    def _record(self, shapes: tuple[torch.Size, ...], inputs: Sequence[Tensor]) -> None:
        places = [tensor.clone() for tensor in inputs]
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                results = self.function(*places)
        except RuntimeError:  # The GPU or its driver cannot record.
            self.records = False
        else:
            self._recordings[shapes] = graph, places, results
