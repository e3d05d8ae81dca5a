"""PyTorch's optimisers without its compiler, which else every process that trains imports, and never uses."""

from __future__ import annotations

import inspect

import torch
from torch.optim import Adam, AdamW, Optimizer


class Uncompiled(Optimizer):
    """What all optimisers have, without the decorators that speak to the compiler; to be named before another base."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)


class UncompiledAdam(Uncompiled, Adam):
    """Adam, bit for bit."""

    step = torch.no_grad()(inspect.unwrap(Adam.step))


class UncompiledAdamW(Uncompiled, AdamW):
    """AdamW, bit for bit."""

    step = torch.no_grad()(inspect.unwrap(AdamW.step))
