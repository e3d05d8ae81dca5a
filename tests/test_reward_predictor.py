"""The reward predictor's formulas, its networks, and the policy's copy of it."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import reward_predictor
from drlhp.data.segment import Segment
from drlhp.networks import architectures as networks
from drlhp.networks.architectures import RewardMLP
from drlhp.runtime.weights import WeightsBoard
from reward_predictor import (
    PredictorCopy,
    PredictorCopySpec,
    PredictorInputs,
    RewardPredictor,
    agreement,
    preference_loss,
    return_loss,
)
from tests.support.ring import DIMENSIONS, ENV_ID, SMALL, VECTORS, predicted_reward


def test_the_preference_loss_is_the_papers_cross_entropy() -> None:
    returns = [(0.0, 0.0), (1.0, -2.0), (-0.3, 0.4), (50.0, -50.0), (-80.0, 10.0)]
    answers = [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)]
    for mu in answers:
        batch = torch.tensor(returns).T
        losses = preference_loss(batch[0], batch[1], torch.tensor([mu] * len(returns)), 0.1)
        for loss, (a, b) in zip(losses.tolist(), returns, strict=True):
            p_a = 0.9 * math.exp(a) / (math.exp(a) + math.exp(b)) + 0.05
            assert loss == pytest.approx(-(mu[0] * math.log(p_a) + mu[1] * math.log(1 - p_a)), abs=1e-5)


def test_the_preference_loss_is_bounded_and_keeps_its_gradient_finite() -> None:
    differences = torch.tensor([-1e4, -30.0, 0.0, 30.0, 1e4], requires_grad=True)
    loss = preference_loss(differences, torch.zeros(5), torch.tensor([[1.0, 0.0]] * 5), 0.1)
    assert loss.max().item() == pytest.approx(-math.log(0.05), abs=1e-5)
    loss.sum().backward()
    assert differences.grad is not None and differences.grad.isfinite().all()
    differences.grad = None
    unbounded = preference_loss(differences, torch.zeros(5), torch.tensor([[1.0, 0.0]] * 5), 0.0)
    assert unbounded.tolist() == pytest.approx([1e4, 30, math.log(2), 0, 0], abs=1e-4)
    unbounded.sum().backward()
    assert differences.grad is not None and differences.grad.tolist() == pytest.approx([-1, -1, -0.5, 0, 0], abs=1e-4)


def test_the_return_loss_is_the_mean_squared_error_over_both_segments_of_a_pair() -> None:
    predicted = torch.tensor([[[1.0, -2.0], [0.5, 4.0]], [[3.0, 0.0], [-1.0, 2.0]]])  # of a and b: (members, B)
    true = torch.tensor([[2.0, -2.0], [0.0, 1.0]])
    losses = return_loss(predicted[0], predicted[1], true)
    for member in range(2):
        for pair in range(2):
            errors = [float(predicted[side, member, pair] - true[side, pair]) for side in range(2)]
            assert losses[member, pair].item() == pytest.approx((errors[0] ** 2 + errors[1] ** 2) / 2)


def test_agreement_leaves_ties_out() -> None:
    mu = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
    assert agreement(torch.tensor([2.0, -1.0, -3.0, 7.0]), mu) == (2, 3)


def test_settled_batch_norm_predicts_what_training_sees() -> None:
    torch.manual_seed(0)
    predictor = RewardPredictor(PredictorInputs("pixels", (4, 84, 84), 6, None), SMALL)
    observations = torch.randint(0, 256, (24, 4, 84, 84), dtype=torch.uint8) // torch.arange(1, 25).view(24, 1, 1, 1)
    actions = torch.zeros(24, dtype=torch.int64)
    with torch.no_grad():
        trained_on = predictor.train()(observations, actions)
        for norm in predictor.modules():
            if isinstance(norm, torch.nn.BatchNorm2d):  # what other weights have left behind
                norm.running_mean.normal_(0, 3)  # type: ignore[union-attr]
        unsettled = predictor.eval()(observations, actions)
        predictor.settle_batchnorm(observations, actions)
        settled = predictor(observations, actions)
    scale = trained_on.std(1).max()
    assert not predictor.training
    assert (settled - trained_on).abs().max() < 0.1 * scale < (unsettled - trained_on).abs().max()


def test_prediction_in_parts_is_that_of_the_whole() -> None:
    predictor = RewardPredictor(
        PredictorInputs("pixels", (4, 84, 84), 6, None), replace(SMALL, reward_predictor_uses_actions=True)
    )
    n = 2 * networks.PICTURES_AT_ONCE + 5
    observations, actions = torch.randint(0, 256, (n, 4, 84, 84), dtype=torch.uint8), torch.randint(0, 6, (n,))
    with torch.no_grad():
        whole = predictor(observations, actions)
        torch.testing.assert_close(
            predictor.predict(observations, actions), whole, atol=1e-2 * float(whole.std()), rtol=0
        )


@pytest.mark.parametrize("batchnorm", [True, False])
def test_a_folded_predictor_predicts_the_same(batchnorm: bool) -> None:
    torch.manual_seed(0)
    inputs = PredictorInputs("pixels", (4, 84, 84), 6, None)
    predictor = RewardPredictor(inputs, replace(SMALL, reward_predictor_uses_actions=True, batchnorm=batchnorm))
    predictor.autocast = False
    for norm in predictor.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):  # far from the identity, as training leaves it
            for values in (norm.weight.data, norm.bias.data, norm.running_mean):
                values.uniform_(-1, 1)  # type: ignore[union-attr]
            norm.running_var.uniform_(0.1, 3)  # type: ignore[union-attr]
    observations, actions = torch.randint(0, 256, (9, 4, 84, 84), dtype=torch.uint8), torch.randint(0, 6, (9,))
    folded, whole = predictor.folded(), predictor.member_rewards(observations, actions)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in folded.modules())
    np.testing.assert_allclose(folded.member_rewards(observations, actions), whole, rtol=1e-4, atol=1e-4 * whole.std())


def test_normalised_rewards_have_zero_mean_and_the_wanted_deviation_for_each_member() -> None:
    torch.manual_seed(0)
    predictor = RewardPredictor(VECTORS, replace(SMALL, reward_std=0.05))
    observations, actions = torch.randn(200, DIMENSIONS), torch.zeros(200, dtype=torch.int64)
    with torch.no_grad():
        raw = predictor(observations, actions) * torch.tensor([[1.0], [20.0], [300.0]]) + 5
    predictor.fit_normaliser(raw)
    normalised = torch.from_numpy(predictor.normalised(raw.numpy()))
    torch.testing.assert_close(normalised.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normalised.std(1), torch.full((3,), 0.05), atol=1e-4, rtol=0)


def test_a_copy_gives_the_members_raw_rewards_beside_the_normalised_ones() -> None:
    """Sums over clips of unequal length could not be compared without the members' zero."""
    torch.manual_seed(0)
    source = RewardPredictor(VECTORS, SMALL)
    board = WeightsBoard(source, None)
    observations, actions = torch.randn(40, DIMENSIONS), torch.zeros(40, dtype=torch.int64)
    raw = source(observations, actions).detach()
    source.fit_normaliser(raw + 3)
    board.publish(source)
    copy = PredictorCopySpec(VECTORS, SMALL, board).build()
    copy.refresh()
    found = copy.member_rewards(observations, actions)
    assert np.array_equal(found.raw, raw.numpy())
    assert np.array_equal(found.normalised, source.normalised(raw.numpy()))
    sums = source.normalised(raw.reshape(3, 8, 5).sum(2).numpy(), n_steps=5)
    np.testing.assert_allclose(sums, found.normalised.reshape(3, 8, 5).sum(2), atol=1e-5)


def test_the_predicted_reward_averages_members_that_were_normalised_one_by_one() -> None:
    torch.manual_seed(0)
    predictor = RewardPredictor(VECTORS, SMALL)
    observations, actions = np.random.default_rng(0).normal(size=(50, DIMENSIONS)).astype(np.float32), np.zeros(50, int)
    with torch.no_grad():
        predictor.out.weight[1] *= 1000  # a member that is loud must not drown the others
        raw = predictor(torch.from_numpy(observations), torch.from_numpy(actions)).numpy()
    predictor.fit_normaliser(torch.from_numpy(raw))
    normalised = (raw - raw.mean(1, keepdims=True)) / raw.std(1, ddof=1, keepdims=True) * predictor.reward_std
    np.testing.assert_allclose(predicted_reward(predictor, observations, actions), normalised.mean(0), atol=1e-5)


@pytest.mark.parametrize("inputs", [PredictorInputs("pixels", (4, 84, 84), 6, None), VECTORS])
def test_dropout_is_for_training_alone(inputs: PredictorInputs) -> None:
    torch.manual_seed(0)
    predictor = RewardPredictor(inputs, replace(SMALL, dropout=0.5))
    shape = (12, *inputs.observation_shape)
    observations = torch.randint(0, 256, shape, dtype=torch.uint8) if inputs.kind == "pixels" else torch.randn(shape)
    actions = torch.zeros(12, dtype=torch.int64)
    with torch.no_grad():
        predictor.train()
        assert not torch.equal(predictor(observations, actions), predictor(observations, actions))
        predictor.eval()
        predictor.settle_batchnorm(observations, actions)
        settled = copy.deepcopy(predictor)
        settled.settle_batchnorm(observations, actions)
    once, again = (predicted_reward(predictor, observations, actions) for _ in range(2))
    assert np.array_equal(once, again)
    assert np.array_equal(
        once, predicted_reward(settled, observations, actions)
    )  # nothing is dropped while it settles either


@pytest.mark.parametrize("network", ["cnn", "feature_points"])
def test_a_discrete_action_chooses_its_own_output(network: str) -> None:
    config = replace(SMALL, reward_predictor_network=network, reward_predictor_uses_actions=True)  # type: ignore[arg-type]
    torch.manual_seed(0)
    predictor = RewardPredictor(PredictorInputs("pixels", (4, 84, 84), 3, None), config)
    with torch.no_grad():
        predictor.out.weight.zero_()
        predictor.out.bias.copy_(
            torch.tensor([1.0, 2.0, 3.0]).expand(3, 1, 3) * torch.tensor([1, 10, 100])[:, None, None]
        )
        raw = predictor(torch.zeros(4, 4, 84, 84, dtype=torch.uint8), torch.tensor([2, 0, 1, 2]))
    assert raw.tolist() == [[3, 1, 2, 3], [30, 10, 20, 30], [300, 100, 200, 300]]


@pytest.mark.parametrize("uses", [True, False])
@pytest.mark.parametrize(("n_actions", "action_dim"), [(2, None), (None, 2)])
def test_actions_count_only_where_they_are_asked_for(n_actions: int | None, action_dim: int | None, uses: bool) -> None:
    torch.manual_seed(0)
    inputs = PredictorInputs("vector", (DIMENSIONS,), n_actions, action_dim)
    predictor = RewardPredictor(inputs, replace(SMALL, reward_predictor_uses_actions=uses))
    observations = np.ones((4, DIMENSIONS), np.float32)
    shape, dtype = ((4,), np.int64) if n_actions else ((4, 2), np.float32)
    idle, other = (predicted_reward(predictor, observations, np.full(shape, value, dtype)) for value in (0, 1))
    assert np.allclose(idle, other) != uses


def test_numbers_of_vectors_are_read_relative_to_the_segments_and_never_cut() -> None:
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(50, 3)) * (4, 1e-5, 1) + (20, 3, 0)).astype(np.float32)
    actions, rewards = np.zeros((50, 1), np.float32), np.zeros(50, np.float32)
    predictor = RewardPredictor(PredictorInputs("vector", (3,), None, 1), SMALL)
    predictor.observe([Segment(ENV_ID, vectors, actions, rewards, stack=1, policy_step=0, seed=0, fps=30.0)])
    assert isinstance(predictor.body, RewardMLP)
    read = predictor.body.reader(torch.from_numpy(vectors)).numpy()
    np.testing.assert_allclose(read, (vectors - vectors.mean(0)) / vectors.std(0).clip(0.01), atol=1e-2)
    far = predictor.body.reader(torch.tensor([[420.0, 3, 0]]))[0, 0]
    assert float(far) == pytest.approx((420 - vectors[:, 0].mean()) / vectors[:, 0].std(), rel=1e-3)


def a_source_and_its_copy(
    inputs: PredictorInputs, monkeypatch: pytest.MonkeyPatch
) -> tuple[RewardPredictor, WeightsBoard, PredictorCopy]:
    """The copy normalises on the newest hundred steps, all of them."""
    monkeypatch.setattr(reward_predictor, "NORMALISER_STEPS", 100)
    monkeypatch.setattr(reward_predictor, "NORMALISER_STRIDE", 1)
    torch.manual_seed(0)
    source = RewardPredictor(inputs, SMALL)
    board = WeightsBoard(source, None)
    return source, board, PredictorCopySpec(inputs, SMALL, board).build()


def test_new_weights_are_normalised_on_the_newest_steps_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the published statistics while there are few steps, then on what the policy has seen last."""
    source, board, copy = a_source_and_its_copy(VECTORS, monkeypatch)
    board.publish(source)
    rng, actions = np.random.default_rng(0), np.zeros(50, np.int64)
    rollouts = [rng.normal(loc=n, size=(50, DIMENSIONS)).astype(np.float32) for n in range(4)]
    for rollout in rollouts:
        copy.refresh()
        found = copy.member_rewards(rollout.copy(), actions)
        assert np.array_equal(found.normalised, source.normalised(source.member_rewards(rollout, actions)))
    board.publish(source)
    assert copy.refresh() == 2
    newest = torch.from_numpy(np.concatenate(rollouts[2:]))
    raw = copy.predictor(newest, torch.zeros(100, dtype=torch.int64)).detach()
    normalised = torch.from_numpy(copy.predictor.normalised(raw.numpy()))
    torch.testing.assert_close(normalised.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normalised.std(1), torch.full((3,), SMALL.reward_std), atol=1e-4, rtol=0)


@pytest.mark.parametrize("n_envs", [6, 7, 14])
def test_new_weights_are_normalised_on_all_environments_however_many(
    n_envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though only one step in seven is kept."""
    monkeypatch.setattr(reward_predictor, "NORMALISER_STEPS", 84)
    torch.manual_seed(0)
    source = RewardPredictor(VECTORS, SMALL)
    board = WeightsBoard(source, None)
    copy = PredictorCopySpec(VECTORS, SMALL, board).build()
    each = np.random.default_rng(0).normal(size=(n_envs, DIMENSIONS)).astype(np.float32)  # always sees the same
    for _ in range(84 * 7 // n_envs):
        copy.member_rewards(each, np.zeros(n_envs, np.int64))
    board.publish(source)
    copy.refresh()
    rewards = copy.member_rewards(each, np.zeros(n_envs, np.int64)).normalised
    np.testing.assert_allclose(rewards.mean(1), 0, atol=1e-5)
    np.testing.assert_allclose(rewards.std(1), SMALL.reward_std, rtol=0.01)


@pytest.mark.parametrize("inputs", [VECTORS, PredictorInputs("pixels", (4, 84, 84), 2, None)])
def test_rewards_of_vectors_stay_worth_the_same_and_those_of_pixels_are_rescaled(
    inputs: PredictorInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With weights that say the same in another measure, of what the policy saw after the first fit."""
    source, board, copy = a_source_and_its_copy(inputs, monkeypatch)
    rng, actions = np.random.default_rng(0), np.zeros(100, np.int64)

    def seen(scale: float) -> np.ndarray:
        if inputs.kind == "vector":
            return rng.normal(scale=scale, size=(100, *inputs.observation_shape)).astype(np.float32)
        return (scale * rng.integers(64, size=(100, *inputs.observation_shape))).astype(np.uint8)

    board.publish(source)
    copy.refresh()
    copy.member_rewards(seen(1.0), actions)
    board.publish(source)
    copy.refresh()  # the first fit
    wider = seen(3.0)
    before = copy.member_rewards(wider, actions).normalised
    assert before.std(1, ddof=1).min() > 1.5 * SMALL.reward_std
    with torch.no_grad():
        source.out.weight.mul_(2.0)
        source.out.bias.add_(5.0)
    board.publish(source)
    copy.refresh()
    after = copy.member_rewards(wider, actions).normalised
    if inputs.kind == "vector":
        np.testing.assert_allclose(after, before, atol=1e-4)
        resumed = PredictorCopySpec(inputs, SMALL, board).build()
        resumed.normaliser = copy.normaliser
        resumed.refresh()
        np.testing.assert_allclose(resumed.member_rewards(wider, actions).normalised, before, atol=1e-4)
    else:
        np.testing.assert_allclose(after.mean(1), 0, atol=1e-3)
        np.testing.assert_allclose(after.std(1, ddof=1), SMALL.reward_std, atol=1e-3)


@pytest.mark.parametrize(
    ("inputs", "noise"), [(VECTORS, 0.0), (VECTORS, 0.01), (PredictorInputs("pixels", (4, 84, 84), 2, None), 0.0)]
)
def test_steps_that_look_alike_do_not_make_later_rewards_huge(
    inputs: PredictorInputs, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy may begin with some, and come to some later; the scale of its rewards is that of steps that differ."""
    source, board, copy = a_source_and_its_copy(inputs, monkeypatch)
    rng, actions = np.random.default_rng(0), np.zeros(100, np.int64)

    def seen(scale: float) -> np.ndarray:
        if inputs.kind == "vector":
            return (1 + rng.normal(scale=scale, size=(100, *inputs.observation_shape))).astype(np.float32)
        return (255 * scale * rng.random(size=(100, *inputs.observation_shape))).astype(np.uint8)

    labelled = source.member_rewards(seen(1.0), actions)
    source.fit_normaliser(torch.from_numpy(labelled))

    def rewards_after(observations: np.ndarray) -> np.ndarray:
        copy.member_rewards(observations, actions)
        with torch.no_grad():
            source.out.bias.add_(0.01)
        board.publish(source)
        copy.refresh()
        return copy.member_rewards(seen(1.0), actions).normalised

    board.publish(source)
    copy.refresh()
    for scale in (noise, 1.0, 1.0, noise, noise, 1.0):
        deviations = rewards_after(seen(scale)).std(1) / SMALL.reward_std
        assert deviations.min() > 0.3 and deviations.max() < 3


def test_labelled_segments_that_look_alike_do_not_make_later_rewards_huge() -> None:
    torch.manual_seed(0)
    predictor = RewardPredictor(VECTORS, SMALL)
    actions = torch.zeros(64, dtype=torch.int64)
    with torch.no_grad():
        predictor.fit_normaliser(predictor(torch.ones(64, DIMENSIONS), actions))
    rewards = predicted_reward(predictor, torch.randn(64, DIMENSIONS), actions)
    assert 0 < np.abs(rewards).max() < 10 * SMALL.reward_std


# -- the same numbers as imitation -------------------------------------------------------------------------------------
# Written out after its published source (github.com/HumanCompatibleAI/imitation), because the package needs an older
# Gymnasium: `PreferenceModel.probability` and `CrossEntropyRewardLoss` in src/imitation/algorithms/
# preference_comparisons.py, and `RunningNorm` in src/imitation/util/networks.py.


def imitations_loss(rewards: torch.Tensor, preferences: torch.Tensor, noise_prob: float) -> torch.Tensor:
    """(2, B, T) rewards of both fragments, (B,) preferences for the first one -> the mean cross-entropy."""
    difference = (rewards[1] - rewards[0]).sum(1).clip(-50, 50)
    probability = noise_prob * 0.5 + (1 - noise_prob) / (1 + difference.exp())
    return torch.nn.functional.binary_cross_entropy(probability, preferences)


@pytest.mark.parametrize("noise_prob", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_preference_loss_is_imitations_with_its_noise(seed: int, noise_prob: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(2, 64, 25, generator=generator, dtype=torch.float64, requires_grad=True)
    preferences = torch.randint(0, 3, (64,), generator=generator).double() / 2  # 0.5: both are as good
    theirs = imitations_loss(rewards, preferences, noise_prob)
    (their_gradient,) = torch.autograd.grad(theirs, rewards)
    mu = torch.stack([preferences, 1 - preferences], 1)
    returns_a, returns_b = rewards.sum(2)
    ours = preference_loss(returns_a, returns_b, mu, noise_prob).mean()
    (our_gradient,) = torch.autograd.grad(ours, rewards)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-5, atol=1e-8)
    assert their_gradient.abs().max() > 1e-4


class ImitationsRunningNorm:
    """The moments of all values so far, batch by batch (Chan et al. 1979)."""

    def __init__(self) -> None:
        self.mean, self.var, self.count = 0.0, 1.0, 0

    def update(self, batch: np.ndarray) -> None:
        n, delta = len(batch), batch.mean() - self.mean
        total = self.count + n
        self.mean += delta * n / total
        self.var = (self.var * self.count + batch.var() * n + delta**2 * self.count * n / total) / total
        self.count = total

    def __call__(self, rewards: np.ndarray) -> np.ndarray:
        return (rewards - self.mean) / np.sqrt(self.var + 1e-5)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (-3.0, 0.2), (40.0, 9.0)])
def test_rewards_are_normalised_as_imitation_does(mean: float, std: float) -> None:
    """But for its epsilon, Bessel's correction, and the standard deviation that we want, which is not 1."""
    rng, predictor = np.random.default_rng(0), RewardPredictor(VECTORS, SMALL)
    raw = rng.normal(mean, std, (predictor.n_members, 4096)).astype(np.float32)
    predictor.fit_normaliser(torch.from_numpy(raw))
    segments = rng.normal(mean, std, (predictor.n_members, 10, 25)).astype(np.float32)
    ours, sums = predictor.normalised(raw), predictor.normalised(segments.sum(2), 25)
    for member, told in enumerate(raw):
        norm = ImitationsRunningNorm()
        for batch in np.split(told.astype(np.float64), 8):
            norm.update(batch)
        np.testing.assert_allclose(ours[member], norm(told) * predictor.reward_std, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(
            sums[member], norm(segments[member]).sum(1) * predictor.reward_std, rtol=2e-3, atol=1e-4
        )
