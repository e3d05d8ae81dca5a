"""TODO."""

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
    """Whether this process was forked: more than one thread of arithmetic would wait for its parent's for ever."""
    return type(multiprocessing.current_process()).__name__ == "ForkProcess"


def use_threads(n: int) -> None:
    """So many threads of arithmetic from now on in the calling thread, or one where it was forked."""
    torch.get_num_threads()  # a thread that never asked would take over, later, what was last set anywhere
    torch.set_num_threads(1 if is_forked() else n)


def cpu_has_bf16() -> bool:
    """True where the processor is quicker with bfloat16 than with float32; most have to emulate it.

    Of those that multiply it by AVX-512, AMD's are twice as quick, but not Intel's, which multiply two of float32
    meanwhile: these gain by their matrix unit (AMX) alone.
    """
    has = torch.cpu.get_capabilities()
    by_avx512 = has.get("avx512_bf16", False) and not has.get("cpu_name", "").startswith("Intel")
    return by_avx512 or has.get("amx_bf16", False) or has.get("bf16", False)


def has_bf16(device: torch.device) -> bool:
    """True where the device is quicker with bfloat16."""
    return torch.cuda.is_bf16_supported(including_emulation=False) if device.type == "cuda" else cpu_has_bf16()


def trains_in_bf16(device: torch.device) -> bool:
    """True where the device multiplies bfloat16 itself: training takes half the memory, in about the same time."""
    has = torch.cpu.get_capabilities()
    return has_bf16(device) or (device.type == "cpu" and has.get("avx512_bf16", False))


def to_device(values: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """Values for the networks on `device`: without a copy on a CPU, without waiting for the transfer to a card.

    The transfer is from pinned memory, which PyTorch keeps for the next one; the memory layout stays as it is.
    """
    tensor = torch.as_tensor(values)
    if device.type != "cuda" or tensor.is_cuda:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def joined(*tensors: Tensor) -> Tensor:
    """Tensors (N, ...) -> (N, columns) float32, to be brought from a card in one transfer: whole numbers below 2^24."""
    return torch.cat([tensor.reshape(len(tensor), -1).float() for tensor in tensors], 1)


class Recorded:
    """A function of tensors on a card, recorded once it was called a few times with such shapes, and then played back.

    That costs the processor a tenth of launching each operation. What it reads besides must stay where it is in memory,
    as weights do; what it returns is overwritten by the next call. Where nothing can be recorded it is just called.
    """

    launched_before = 3  # calls in which libraries choose their algorithms, which cannot be recorded

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
        except RuntimeError:  # neither this card nor its driver can
            self.records = False
        else:
            self._recordings[shapes] = graph, places, results
