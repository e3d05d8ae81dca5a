"""Network bodies, ensembles, and the policy's heads."""

import itertools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from a2c import model
from a2c.model import Policy
from drlhp.networks import device
from drlhp.networks.architectures import (
    EnsembleLinear,
    FeaturePoints,
    NatureCNN,
    PolicyMLP,
    RewardCNN,
    RewardMLP,
    halved,
)
from drlhp.networks.device import cpu_has_bf16, use_threads
from envs import EnvInfo
from envs.moving_dot import CENTRE, MOVES, MovingDotVectorEnv

MEMBERS = 3
BODIES: dict[str, Callable[[int], nn.Module]] = {
    "cnn with batch norm": lambda n: RewardCNN(4, n, batchnorm=True, dropout=0.5),
    "cnn": lambda n: RewardCNN(4, n, batchnorm=False, dropout=0.0),
    "feature points": lambda n: FeaturePoints(n),
    "mlp": lambda n: RewardMLP(5, n, dropout=0.5),
}


def pixels(batch: int = 6, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (batch, 4, 84, 84), dtype=np.uint8))


def inputs(name: str) -> Tensor:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(0)) if name == "mlp" else pixels()


def disturb(module: nn.Module) -> None:
    """Random batch norm statistics and scales, as after training."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            assert layer.running_mean is not None and layer.running_var is not None
            nn.init.normal_(layer.running_mean, std=0.1)
            nn.init.uniform_(layer.running_var, 0.5, 2)
            nn.init.uniform_(layer.weight, 0.5, 2)
            nn.init.normal_(layer.bias, std=0.1)


def member_weights(ensemble: nn.Module, single: nn.Module, i: int) -> dict[str, Tensor]:
    """The i-th equal part of each tensor: members stand side by side in the first dimension."""
    parts = {}
    for name, tensor in single.state_dict().items():
        whole = ensemble.state_dict()[name]
        parts[name] = whole if whole.shape == tensor.shape else whole.chunk(MEMBERS)[i]
    return parts


def test_a_threads_number_of_arithmetic_threads_is_its_own() -> None:
    ours = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(1) as beside:
            beside.submit(use_threads, 1).result()
            use_threads(3)
            assert beside.submit(torch.get_num_threads).result() == 1
            assert torch.get_num_threads() == 3
    finally:
        use_threads(ours)


@pytest.mark.parametrize("name", BODIES)
def test_an_ensemble_equals_its_members_one_by_one(name: str) -> None:
    torch.manual_seed(0)
    ensemble = BODIES[name](MEMBERS).eval()
    disturb(ensemble)
    single = BODIES[name](1).eval()
    together = ensemble(inputs(name))
    assert together.shape == (MEMBERS, 6, 64)
    for i in range(MEMBERS):
        single.load_state_dict(member_weights(ensemble, single, i))
        torch.testing.assert_close(together[i], single(inputs(name))[0], atol=1e-5, rtol=1e-4)
        assert not torch.allclose(together[i], together[i - 1], atol=1e-3)


@pytest.mark.parametrize("name", BODIES)
def test_a_members_loss_reaches_no_other_member(name: str) -> None:
    torch.manual_seed(0)
    ensemble = BODIES[name](MEMBERS).train()
    ensemble(inputs(name))[1].square().sum().backward()
    for param in ensemble.parameters():
        assert param.grad is not None
        first, own, last = param.grad.chunk(MEMBERS)
        assert not first.any() and not last.any()
        assert own.any()


def test_ensemble_linear_takes_one_input_for_all_or_one_for_each() -> None:
    layer = EnsembleLinear(MEMBERS, 5, 7)
    shared, own = torch.randn(4, 5), torch.randn(MEMBERS, 4, 5)
    for i in range(MEMBERS):
        weight, bias = layer.weight[i], layer.bias[i]
        torch.testing.assert_close(layer(shared)[i], shared @ weight + bias)
        torch.testing.assert_close(layer(own)[i], own[i] @ weight + bias)


def test_policy_bodies_have_their_stated_width() -> None:
    assert NatureCNN(4)(pixels(2)).shape == (2, NatureCNN.n_features) == (2, 512)
    assert PolicyMLP(5)(torch.randn(7, 5)).shape == (2, 7, PolicyMLP.n_features)
    assert FeaturePoints()(pixels(2)).shape == (1, 2, FeaturePoints.n_features)


def test_bodies_leave_their_input_as_it_was() -> None:
    for body in (NatureCNN(4), RewardCNN(4, 1, batchnorm=True, dropout=0.0), FeaturePoints()):
        picture = pixels()
        body(picture)
        assert torch.equal(picture, pixels())


def test_feature_points_follow_a_dot_and_see_the_newest_frame_alone() -> None:
    """The positions are those of the dot, whatever the older frames show."""
    body = FeaturePoints()
    with torch.no_grad():
        body.filters.weight.fill_(1)
        body.fc1.weight.zero_()[0, :2] = torch.eye(2, 64)  # the first point's row and column, as they are
        body.fc1.bias.zero_()
        body.fc2.weight.copy_(torch.eye(64)[None])
        body.fc2.bias.zero_()
    picture = torch.zeros(2, 4, 84, 84, dtype=torch.uint8)
    picture[:, -1, 60:62, 20:22] = 255  # row 15 and column 5 of 21
    picture[1, :-1] = 99
    row, column = (2 * 15 / 20 - 1, 2 * 5 / 20 - 1)
    expected = torch.tanh(torch.tanh(body.scale * torch.tensor([row, column])))
    for seen in body(picture)[0]:
        torch.testing.assert_close(seen[:2], expected, atol=0.02, rtol=0)


def test_feature_points_of_an_older_checkpoint_mean_what_they_meant() -> None:
    """It names no scale, and its layers were trained on positions enlarged by four."""
    torch.manual_seed(0)
    trained, loaded = FeaturePoints(), FeaturePoints()
    trained.scale.fill_(4)
    weights = trained.state_dict()
    del weights["scale"]
    loaded.load_state_dict(weights)
    assert torch.equal(loaded(pixels()), trained(pixels()))


@pytest.mark.parametrize("side", [84, 83])
def test_halved_pictures_are_those_of_pytorch_to_the_last_bit(side: int) -> None:
    given = pixels()[..., :side, :side]
    assert torch.equal(halved(given), F.avg_pool2d(given.float(), 2))


def test_feature_points_see_every_step_of_the_moving_dot() -> None:
    """Whatever the filters: what looks alike cannot be left by the same action."""
    env = MovingDotVectorEnv(1, seed=0)
    env.reset()
    for direction in range(1, 5):
        body, seen = FeaturePoints(), list[Tensor]()
        env._position[:] = CENTRE - 48 * MOVES[direction]
        for _ in range(25):
            observations = torch.from_numpy(env.step(np.array([direction]))[0])
            seen.append(body._points(observations[:, -1:]).detach().flatten())
        steps = [float((after - before).abs().max()) for before, after in itertools.pairwise(seen)]
        assert min(steps) > 0.02, direction


def info(kind: str, n_actions: int | None) -> EnvInfo:
    action_dim = 2 if n_actions is None else None
    names = tuple(str(action) for action in range(n_actions or 0))
    if kind == "pixels":
        return EnvInfo("Test-v0", "pixels", (4, 84, 84), n_actions, action_dim, 25, 15.0, 4, (), None, names, {})
    return EnvInfo("Test-v0", "vector", (5,), n_actions, action_dim, 25, 30.0, 1, (), None, names, {})


def vectors(batch: int = 6) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(batch, 5)).astype(np.float32)


@pytest.mark.parametrize("network", ["nature", "feature_points"])
def test_a_policy_on_pixels_acts_and_values(network: str) -> None:
    policy = Policy(info("pixels", 6), network)
    actions, log_probs, values = policy.act(pixels().numpy(), policy.noise(6))
    assert (actions.shape, log_probs.shape, values.shape) == ((6,), (6,), (6,))
    assert actions.dtype == np.int64 and set(actions) <= set(range(6))
    assert np.array_equal(values, policy.values(pixels().numpy()))
    evaluation = policy.evaluate(pixels(), torch.from_numpy(actions))
    np.testing.assert_allclose(evaluation.log_probs.detach(), log_probs, atol=1e-5)
    np.testing.assert_allclose(evaluation.values.detach(), values, atol=1e-5)
    np.testing.assert_allclose(evaluation.entropy.detach(), math.log(6), atol=0.01)  # near uniform at the start


def test_deterministic_actions_are_the_likeliest() -> None:
    discrete, continuous = Policy(info("vector", 4), "nature"), Policy(info("vector", None), "nature")
    heads = [policy(torch.from_numpy(vectors()))[0].detach().numpy() for policy in (discrete, continuous)]
    actions, log_probs, _ = discrete.act(vectors(), None)
    assert np.array_equal(actions, heads[0].argmax(1))
    logs = torch.log_softmax(torch.from_numpy(heads[0]), 1).max(1).values
    np.testing.assert_allclose(log_probs, logs, atol=1e-6)
    assert np.array_equal(continuous.act(vectors(), None)[0], heads[1])


def test_a_gaussian_policy_has_the_formulas_log_probabilities_and_entropy() -> None:
    policy = Policy(info("vector", None), "nature")
    assert policy.log_std is not None
    with torch.no_grad():
        policy.log_std.copy_(torch.tensor([-1.0, 0.5]))
    actions, log_probs, _ = policy.act(vectors(), policy.noise(6))
    assert actions.shape == (6, 2) and actions.dtype == np.float32
    mean, std = policy(torch.from_numpy(vectors()))[0].detach().numpy(), np.exp([-1.0, 0.5])
    densities = np.exp(-0.5 * ((actions - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    np.testing.assert_allclose(log_probs, np.log(densities.prod(1)), rtol=1e-4, atol=1e-5)
    entropy = policy.evaluate(torch.from_numpy(vectors()), torch.from_numpy(actions)).entropy
    np.testing.assert_allclose(entropy.detach(), np.log(std * math.sqrt(2 * math.pi * math.e)).sum(), rtol=1e-5)


def test_sampled_actions_have_the_distributions_frequencies() -> None:
    torch.manual_seed(0)
    policy = Policy(info("vector", 3), "nature")
    with torch.no_grad():
        policy.actor.weight.zero_()
        policy.actor.bias.copy_(torch.log(torch.tensor([0.7, 0.2, 0.1])))
    actions = policy.act(np.repeat(vectors(1), 4000, axis=0), policy.noise(4000))[0]
    np.testing.assert_allclose(np.bincount(actions) / 4000, [0.7, 0.2, 0.1], atol=0.03)
    gaussian = Policy(info("vector", None), "nature")
    assert gaussian.log_std is not None
    with torch.no_grad():
        gaussian.log_std.copy_(torch.tensor([-1.0, 0.5]))
    many = np.repeat(vectors(1), 4000, axis=0)
    drawn = gaussian.act(many, gaussian.noise(4000))[0]
    np.testing.assert_allclose(drawn.mean(0), gaussian.act(many, None)[0][0], atol=0.08)
    np.testing.assert_allclose(drawn.std(0), np.exp([-1.0, 0.5]), rtol=0.05)


@pytest.fixture
def fast_policies(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Policy]:
    """Makes policies with a bfloat16 copy, on any processor."""
    monkeypatch.setattr(device, "cpu_has_bf16", lambda: True)
    return lambda: Policy(info("pixels", 6), "nature")


def float32_outputs(policy: Policy) -> tuple[Tensor, Tensor]:
    features = policy.body(pixels())
    return policy.actor(features), policy.critic(features).squeeze(-1)


def test_the_fast_copy_follows_the_weights(fast_policies: Callable[[], Policy]) -> None:
    torch.manual_seed(0)
    policy, other = fast_policies(), fast_policies()

    def error(of: Policy) -> float:
        return float((of(pixels())[1] - float32_outputs(of)[1]).detach().abs().max())

    assert 0 < error(policy) < 0.05  # rounded to bfloat16, and the same otherwise
    with torch.no_grad():
        for param in policy.body.parameters():
            param.mul_(1.1)
    assert error(policy) > 0.1
    policy.refresh()
    assert error(policy) < 0.05
    policy.load_state_dict(other.state_dict())
    assert torch.equal(policy(pixels())[0], other(pixels())[0])


def test_pixels_are_read_relative_to_their_first_statistics(
    fast_policies: Callable[[], Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a picture that is 200 all over but for three columns: half the time 150 and 250, always 7, seldom 0."""
    monkeypatch.setattr(model, "PIXEL_STEPS", 50)
    frames = np.full((60, 4, 84, 84), 200, np.uint8)
    frames[::2, -1, :, 0], frames[1::2, -1, :, 0] = 150, 250
    frames[..., 1], frames[:1, -1, :, 2] = 7, 0
    policy = fast_policies()
    policy.observe(frames[:20])
    policy.observe(frames[20:])
    assert isinstance(policy.body, NatureCNN) and policy.body.reader.shift.shape == (1, 4, 84, 84)
    gain = policy.body.reader.gain[0, 3, 5]
    mean = -policy.body.reader.shift[0, 0, 5] / gain
    np.testing.assert_allclose(mean[:4], [200, 7, 200 - 200 / 60, 200], rtol=1e-4)
    # deviations of 50, 0 and 200 sqrt(59) / 60, but 25.5 at least
    np.testing.assert_allclose(gain[:4], [1 / 50, 1 / 25.5, 60 / 200 / 59**0.5, 1 / 25.5], rtol=1e-4)
    outputs = policy(pixels())[1]
    np.testing.assert_allclose(outputs.detach(), float32_outputs(policy)[1].detach(), rtol=0.03, atol=0.05)
    policy.observe(pixels().numpy())  # after the first steps nothing changes any more
    assert torch.equal(policy(pixels())[1], outputs)
    other = fast_policies()
    other.load_state_dict(policy.state_dict())
    assert torch.equal(other(pixels())[1], outputs)


def test_vectors_are_read_relative_to_the_statistics_of_all_so_far() -> None:
    """One number of mean 30 and deviation 5, one that hardly changes, and one that is far out once."""
    rng, policy = np.random.default_rng(0), Policy(info("vector", None), "nature")
    vectors = rng.normal(size=(400, 5)) * (5, 1e-4, 1, 1, 1) + (30, 7, 0, 0, 0)
    vectors = vectors.astype(np.float32)
    for part in np.split(vectors, 4):
        policy.observe(part)
    assert isinstance(policy.body, PolicyMLP)
    read = policy.body.reader(torch.from_numpy(vectors)).numpy()
    expected = (vectors - vectors.mean(0, np.float64)) / vectors.std(0, dtype=np.float64).clip(0.01)
    np.testing.assert_allclose(read, expected, atol=2e-3)
    assert policy.body.reader(torch.tensor([[1e9, 7, -1e9, 0, 0]])).tolist()[0][:3:2] == [10, -10]
    other = Policy(info("vector", None), "nature")
    other.load_state_dict(policy.state_dict())
    assert torch.equal(other.body(torch.ones(2, 5)), policy.body(torch.ones(2, 5)))
    policy.observe(vectors + 100)  # and on they go
    assert not torch.equal(other.body(torch.ones(2, 5)), policy.body(torch.ones(2, 5)))


def test_actor_and_critic_of_vectors_share_nothing() -> None:
    policy = Policy(info("vector", None), "nature")
    assert isinstance(policy.body, PolicyMLP)
    weights = [policy.body.fc1.weight, policy.body.fc2.weight]
    for output, theirs in ((0, 1), (1, 0)):
        gradients = torch.autograd.grad(policy(torch.randn(6, 5))[output].sum(), weights)
        assert all(gradient[output].any() and not gradient[theirs].any() for gradient in gradients)


def test_the_fast_copy_is_neither_saved_nor_optimised(
    fast_policies: Callable[[], Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = fast_policies()
    monkeypatch.setattr(device, "cpu_has_bf16", lambda: False)
    plain = Policy(info("pixels", 6), "nature")
    assert list(fast.state_dict()) == list(plain.state_dict())
    assert len(list(fast.parameters())) == len(list(plain.parameters()))
    assert {tensor.dtype for tensor in (*fast.state_dict().values(), *fast.parameters())}.isdisjoint({torch.bfloat16})


def test_gradients_of_the_fast_copy_reach_the_float32_weights_once(fast_policies: Callable[[], Policy]) -> None:
    torch.manual_seed(0)
    policy = fast_policies()
    params = list(policy.parameters())
    expected = torch.autograd.grad(float32_outputs(policy)[1].sum(), params, allow_unused=True)
    for n_shares in (2, 1):  # the second time nothing of the first is left
        halves = pixels().tensor_split(n_shares)
        shares = [
            torch.autograd.grad(policy(half)[1].sum(), policy.weights(), materialize_grads=True) for half in halves
        ]
        assert shares[0][0].dtype == torch.bfloat16
        policy.set_gradients(shares)
    for param, gradient in zip(params, expected, strict=True):
        assert param.grad is not None and param.grad.dtype == torch.float32
        if gradient is not None:  # the values have nothing to do with the actor
            similarity = torch.cosine_similarity(param.grad.flatten(), gradient.flatten(), dim=0)
            assert similarity > 0.99
            assert param.grad.norm() == pytest.approx(float(gradient.norm()), rel=0.1)


@pytest.mark.parametrize(
    ("capabilities", "pays"),
    [
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": False}, False),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, True),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True}, True),
        ({"cpu_name": "AMD EPYC", "avx512_bf16": False}, False),
        ({"bf16": True}, True),
        ({}, False),
    ],
)
def test_bfloat16_is_for_processors_that_are_quicker_with_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool | str], pays: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert cpu_has_bf16() is pays
