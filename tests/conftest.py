"""What all tests share."""

import torch

# One display for all of a process: a window that opens in it goes to the one where the first did.
from tests.support.display import display

__all__ = ["display"]  # a fixture: pytest finds it by name

# The tests' own arithmetic is tiny: one thread is faster than two that wait for each other on a busy machine.
torch.set_num_threads(1)
