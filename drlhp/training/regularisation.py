"""Regularisation of the reward predictor: each member's own validation labels set its L2 coefficient.

The method is section 2.2.3 of Christiano et al. 2017. It holds out a share of 1/e of the labels for each member and
adjusts the L2 coefficient so that the loss on these stays between 1.1 and 1.5 times the training loss. A bootstrap
leaves out the same share, so a member's validation set is the labels that its bootstrap does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

RATIOS = 1.1, 1.5  # least and greatest out-of-bag loss over training loss: paper, section 2.2.3
AVERAGED_BATCHES = 50  # batches over which the running losses are averaged
# The paper names no step rule. Ibarz et al. 2018, its follow-up, moves the coefficient by 0.1 % each batch. Here
# pretraining can end after a few hundred batches, so the coefficient has to change faster to have an effect.
L2_FACTOR = 2.0
# A weight that every batch pushes in the same direction settles at 1 / coefficient. At 0.01, AdamW's default, that has
# no effect; at 10 the weights of a layer of 64 inputs stay about where they started. With a smaller lower bound, the
# coefficient would only take longer to rise again.
L2_BOUNDS = 0.01, 10.0
L2_START = 0.1


def adapted(coefficient: float, ratio: float) -> float:
    """Returns a member's next L2 coefficient: half if the ratio is below 1.1, twice if above 1.5, within `L2_BOUNDS`.

    Args:
        ratio: out-of-bag loss over training loss; NaN if there is none, and then the coefficient stays.
    """
    if ratio > RATIOS[1]:
        coefficient *= L2_FACTOR
    elif ratio < RATIOS[0]:
        coefficient /= L2_FACTOR
    return min(max(coefficient, L2_BOUNDS[0]), L2_BOUNDS[1])


@torch.no_grad()
def decay(ensemble: nn.Module, coefficients: Sequence[float], learning_rate: float) -> None:
    """Shrinks every weight of each member by the share `learning_rate * coefficient`; one coefficient for each member.

    This is separate from the gradient, as in AdamW with one coefficient for all (Loshchilov and Hutter 2019). So Adam
    does not scale the effect away, as it would with a penalty, and adapted and given coefficients mean the same.
    """
    kept = 1 - learning_rate * torch.tensor(coefficients, device=next(ensemble.parameters()).device)
    for parameter in ensemble.parameters():
        members = parameter.unflatten(0, (len(kept), -1))  # The first dimension holds the members one after another.
        members.mul_(kept.view(-1, *[1] * parameter.dim()))


class BagLosses(nn.Module):
    """Each member's running loss on the labels in its bootstrap, and on the other labels.

    Both come from the training passes: before the optimiser's step, with dropout, and with batch norm on the batch. So
    they can be compared with each other, and cost nothing. They are buffers because a checkpoint holds them.
    """

    sums: Tensor
    weights: Tensor

    def __init__(self, n_members: int) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(2, n_members))  # sums of the in-bag and out-of-bag losses
        self.register_buffer("weights", torch.zeros(2, n_members))  # numbers of these losses

    @torch.no_grad()
    def add(self, losses: Tensor, counts: Tensor) -> None:
        """Adds a batch: losses, and how often each member's bootstrap holds the label, (members, B) each."""
        weights = torch.stack([counts, (counts == 0).float()])  # (2, members, B)
        self.sums.lerp_((losses * weights).sum(2), 1 / AVERAGED_BATCHES)
        self.weights.lerp_(weights.sum(2), 1 / AVERAGED_BATCHES)

    def means(self) -> tuple[list[float], list[float]]:
        """Returns the in-bag and the out-of-bag loss of each member; NaN while there is no such label."""
        in_bag, out_of_bag = (self.sums / self.weights).tolist()
        return in_bag, out_of_bag
