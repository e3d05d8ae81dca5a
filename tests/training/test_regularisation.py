"""The step rule of the L2 coefficients, decay member by member, and losses in and out of the bootstraps."""

import math

import pytest
import torch

from drlhp.training.regularisation import AVERAGED_BATCHES, L2_BOUNDS, L2_START, BagLosses, adapted, decay
from reward_predictor import PredictorConfig, PredictorInputs, RewardPredictor

LOWEST, HIGHEST = L2_BOUNDS


@pytest.mark.parametrize(
    ("coefficient", "ratio", "expected"),
    [
        (1.0, 1.09, 0.5),
        (1.0, 0.2, 0.5),
        (1.0, 1.1, 1.0),
        (1.0, 1.3, 1.0),
        (1.0, 1.5, 1.0),
        (1.0, 1.51, 2.0),
        (1.0, 40.0, 2.0),
        (1.0, math.nan, 1.0),
        (LOWEST, 1.0, LOWEST),
        (LOWEST, 2.0, 2 * LOWEST),
        (0.7 * HIGHEST, 2.0, HIGHEST),
        (HIGHEST, 2.0, HIGHEST),
    ],
)
def test_the_coefficient_follows_the_ratio_of_the_losses(coefficient: float, ratio: float, expected: float) -> None:
    assert adapted(coefficient, ratio) == expected


def test_the_coefficient_starts_where_it_can_go_either_way() -> None:
    assert adapted(L2_START, 1.0) < L2_START < adapted(L2_START, 2.0)


PIXELS, VECTORS = PredictorInputs("pixels", (4, 84, 84), 3, None), PredictorInputs("vector", (3,), None, 2)


@pytest.mark.parametrize(
    ("inputs", "config"),
    [
        (PIXELS, PredictorConfig(reward_predictor_uses_actions=True)),
        (PIXELS, PredictorConfig(batchnorm=False)),
        (PIXELS, PredictorConfig(reward_predictor_network="feature_points")),
        (VECTORS, PredictorConfig(reward_predictor_uses_actions=True)),
    ],
)
def test_decay_shrinks_each_member_by_its_own_coefficient(inputs: PredictorInputs, config: PredictorConfig) -> None:
    torch.manual_seed(0)
    predictor = RewardPredictor(inputs, config)
    before = {name: parameter.detach().clone() for name, parameter in predictor.named_parameters()}
    decay(predictor, [0.0, 5.0, 100.0], 1e-3)
    for name, parameter in predictor.named_parameters():
        parts = zip(parameter.chunk(3), before[name].chunk(3), (1.0, 0.995, 0.9), strict=True)
        for shrunk, whole, kept in parts:
            torch.testing.assert_close(shrunk, whole * kept)


def test_one_coefficient_for_all_decays_as_adamw_does() -> None:
    torch.manual_seed(0)
    ours, theirs = (RewardPredictor(PIXELS, PredictorConfig()) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-3, weight_decay=7.0)
    for parameter in theirs.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    decay(ours, [7.0] * 3, 1e-3)
    torch.testing.assert_close(dict(ours.named_parameters()), dict(theirs.named_parameters()))


def test_losses_in_and_out_of_the_bag_are_running_means_over_labels() -> None:
    """Against a loop over batches, members and labels; the newest batch counts most."""
    torch.manual_seed(0)
    batches = [(torch.rand(2, 16), torch.poisson(torch.ones(2, 16))) for _ in range(20)]
    bag_losses = BagLosses(2)
    assert all(math.isnan(mean) for means in bag_losses.means() for mean in means)
    for losses, counts in batches:
        bag_losses.add(losses, counts)
    for member in range(2):
        sums, weights = [0.0, 0.0], [0.0, 0.0]
        for age, (losses, counts) in enumerate(reversed(batches)):
            for loss, count in zip(losses[member].tolist(), counts[member].tolist(), strict=True):
                share = (1 - 1 / AVERAGED_BATCHES) ** age
                out = int(count == 0)
                sums[out] += share * loss * (1 if out else count)
                weights[out] += share * (1 if out else count)
        for out in range(2):
            assert bag_losses.means()[out][member] == pytest.approx(sums[out] / weights[out], rel=1e-4)


def test_a_batch_that_a_bootstrap_holds_whole_says_nothing_about_labels_out_of_it() -> None:
    bag_losses = BagLosses(1)
    bag_losses.add(torch.full((1, 4), 0.5), torch.ones(1, 4))
    in_bag, out_of_bag = bag_losses.means()
    assert in_bag == [0.5] and math.isnan(out_of_bag[0])
    bag_losses.add(torch.tensor([[0.5, 0.25]]), torch.tensor([[1.0, 0.0]]))
    for _ in range(3 * AVERAGED_BATCHES):
        bag_losses.add(torch.full((1, 4), 0.75), torch.ones(1, 4))
    in_bag, out_of_bag = bag_losses.means()
    assert in_bag == pytest.approx([0.75], abs=0.02) and out_of_bag == pytest.approx([0.25])
