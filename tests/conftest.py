"""What all tests share."""

import torch

# The tests' own arithmetic is tiny: one thread is faster than two that wait for each other on a busy machine.
torch.set_num_threads(1)
