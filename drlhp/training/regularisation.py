"""Regularisation of the reward predictor: each member's own validation labels, and the L2 that follows from them.

The method is section 2.2.3 of Christiano et al. 2017. It holds out a share of 1/e of the labels for each member and
adjusts the L2 coefficient so that the loss on these stays between 1.1 and 1.5 times the training loss. A bootstrap
leaves out that very share, so the labels that a member's bootstrap does not hold are its validation set.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

RATIOS = 1.1, 1.5  # of out-of-bag loss to training loss: paper, section 2.2.3
AVERAGED_BATCHES = 50  # in the running losses
# The paper names no step rule. Ibarz et al. 2018, its follow-up, moves the coefficient by 0.1 % each batch. Pretraining
# here can be over after some hundred batches, in which the coefficient must come to matter.
L2_FACTOR = 2.0
# A weight that every batch pushes the same way comes to rest at 1 / coefficient. At 0.01, AdamW's default, that holds
# nothing back; at 10 the weights of a layer of 64 inputs stay about where they started. A lower bound further down
# would only lengthen the way back up.
L2_BOUNDS = 0.01, 10.0
L2_START = 0.1


def adapted(coefficient: float, ratio: float) -> float:
    """A member's L2 coefficient after one step: half of it below 1.1, twice above 1.5, within `L2_BOUNDS`.

    Args:
        ratio: out-of-bag loss over training loss; NaN, while there is none, moves nothing.
    """
    if ratio > RATIOS[1]:
        coefficient *= L2_FACTOR
    elif ratio < RATIOS[0]:
        coefficient /= L2_FACTOR
    return min(max(coefficient, L2_BOUNDS[0]), L2_BOUNDS[1])


@torch.no_grad()
def decay(ensemble: nn.Module, coefficients: Sequence[float], learning_rate: float) -> None:
    """Shrinks every weight of each member by the share `learning_rate * coefficient`; one coefficient for each member.

    Apart from the gradient, as AdamW does with one coefficient for all (Loshchilov and Hutter 2019): so a coefficient
    that adapts means the same as one that was given, and Adam does not scale its effect away as it would a penalty's.
    """
    kept = 1 - learning_rate * torch.tensor(coefficients, device=next(ensemble.parameters()).device)
    for parameter in ensemble.parameters():
        members = parameter.unflatten(0, (len(kept), -1))  # they stand side by side in the first dimension
        members.mul_(kept.view(-1, *[1] * parameter.dim()))


class BagLosses(nn.Module):
    """Each member's running loss on the labels of its bootstrap and on those out of it.

    Both are of the passes that train: before the optimiser's step, with dropout, and with batch norm on the batch. So
    the one can be held against the other, and they cost nothing. Buffers, since they are part of a checkpoint.
    """

    sums: Tensor
    weights: Tensor

    def __init__(self, n_members: int) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(2, n_members))  # of the losses in the bag and out of it
        self.register_buffer("weights", torch.zeros(2, n_members))  # how many these are

    @torch.no_grad()
    def add(self, losses: Tensor, counts: Tensor) -> None:
        """Takes in a batch: losses, and how often each member's bootstrap holds the label, (members, B) each."""
        weights = torch.stack([counts, (counts == 0).float()])  # (2, members, B)
        self.sums.lerp_((losses * weights).sum(2), 1 / AVERAGED_BATCHES)
        self.weights.lerp_(weights.sum(2), 1 / AVERAGED_BATCHES)

    def means(self) -> tuple[list[float], list[float]]:
        """In-bag and out-of-bag loss of each member; NaN while there is no such label."""
        in_bag, out_of_bag = (self.sums / self.weights).tolist()
        return in_bag, out_of_bag
