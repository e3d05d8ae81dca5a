"""What is done for speed changes no result: learning with it and without it, from the same seeds."""

import numpy as np
import pytest
import torch

import reward_predictor
from a2c.config import PolicyConfig
from a2c.model import Policy
from a2c.update import Batch, a2c_update, make_optimizer, ppo_update
from drlhp.networks import architectures as networks
from drlhp.networks import device
from drlhp.networks.batches import PairBatch
from drlhp.networks.convolutions import PICTURES_TO_FILTER
from drlhp.networks.device import CPU, cpu_has_bf16, trains_in_bf16
from drlhp.networks.readers import converted
from envs import EnvInfo, env_info
from reward_predictor import PredictorConfig, PredictorInputs, RewardPredictor, preference_loss

needs_bf16 = pytest.mark.skipif(
    not cpu_has_bf16(), reason="this processor is no quicker with bfloat16, so nothing differs"
)


@pytest.fixture(scope="module")
def pong() -> EnvInfo:
    return env_info("PongNoFrameskip-v4")


def pictures(rng: np.random.Generator, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stacks with a bright square in one of two halves, channels last as in training; and which half."""
    half = rng.integers(2, size=n)
    frames = rng.integers(0, 60, (n, 84, 84, 4), dtype=np.uint8)
    for picture, side in zip(frames, half, strict=True):
        row, column = rng.integers(8, 70), rng.integers(2, 32) + 42 * side
        picture[row : row + 6, column : column + 6] = 255
    return torch.from_numpy(np.moveaxis(frames, -1, 1)), torch.from_numpy(half)


def learn_to_point(pong: EnvInfo) -> list[float]:
    """Mean reward of each of 40 batches; the action that names the square's half is rewarded."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    policy = Policy(pong, "nature")
    config = PolicyConfig(algo="ppo", lr=3e-4, ppo_epochs=2, ppo_minibatches=2)
    optimizer, rewards = make_optimizer(policy, config), []
    for _ in range(40):
        observations, half = pictures(rng, 64)
        actions, log_probs, values = (torch.from_numpy(x) for x in policy.act(observations.numpy(), policy.noise(64)))
        reward = (actions == half).float()
        batch = Batch(observations, actions, log_probs, reward - values, reward, torch.ones(64))
        ppo_update(policy, optimizer, batch, config)
        rewards.append(reward.mean().item())
    return rewards


@needs_bf16
def test_a_policy_learns_alike_in_bfloat16_and_float32(pong: EnvInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = learn_to_point(pong)
    monkeypatch.setattr(device, "cpu_has_bf16", lambda: False)
    plain = learn_to_point(pong)
    for curve in (fast, plain):
        assert np.mean(curve[-10:]) > 0.7 > 0.4 > np.mean(curve[:3])  # one of six actions is right
    assert np.mean(fast[-10:]) == pytest.approx(np.mean(plain[-10:]), abs=0.12)


def flat(policy: Policy) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in policy.parameters()])


def a2c_step(pong: EnvInfo) -> torch.Tensor:
    """By how much one update moves each weight."""
    torch.manual_seed(0)
    policy, config = Policy(pong, "nature"), PolicyConfig()
    observations, half = pictures(np.random.default_rng(0), 80)
    before = flat(policy)
    advantages = half.float() - 0.5
    batch = Batch(observations, half, torch.full((80,), -1.8), advantages, advantages, torch.ones(80))
    a2c_update(policy, make_optimizer(policy, config), batch, config)
    return flat(policy) - before


@needs_bf16
def test_an_a2c_update_goes_the_same_way_in_bfloat16_and_float32(
    pong: EnvInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = a2c_step(pong)
    monkeypatch.setattr(device, "cpu_has_bf16", lambda: False)
    plain = a2c_step(pong)
    assert torch.cosine_similarity(fast, plain, dim=0) > 0.99
    assert fast.norm() == pytest.approx(plain.norm().item(), rel=0.05)


def update_after_acting(pong: EnvInfo, network: str, *, keeps: bool) -> torch.Tensor:
    """By how much an update on five steps of six environments moves each weight."""
    torch.manual_seed(0)
    policy, config = Policy(pong, network), PolicyConfig(n_steps=5, n_envs=6)
    if keeps:
        policy.keep(5, 6)
    before, memory = flat(policy), np.zeros((6, policy.memory_size), np.float32)
    memory[0] = 1.0
    observations, half = pictures(np.random.default_rng(0), 30)
    at_first = torch.from_numpy(memory.copy()).repeat(5, 1)
    for step, seen in enumerate(observations.split(6)):
        policy.act(seen.numpy(), policy.noise(6), memory, step=step)
    policy.act(observations[:6].numpy(), None, memory)  # of no step
    valid = torch.arange(30) % 7 > 0
    batch = Batch(observations, half, torch.full((30,), -1.8), half - 0.5, half * 1.0, valid, at_first)
    assert policy.keeps == keeps
    a2c_update(policy, make_optimizer(policy, config), batch, config)
    return flat(policy) - before


@pytest.mark.parametrize("network", ["nature", "nature_lstm"])
@pytest.mark.parametrize("in_bf16", [False, True])
def test_an_update_by_what_acting_computed_moves_the_weights_as_one_that_computes_it_anew(
    network: str, in_bf16: bool, pong: EnvInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "cpu_has_bf16", lambda: in_bf16)
    kept, anew = (update_after_acting(pong, network, keeps=keeps) for keeps in (True, False))
    assert anew.norm() > 0
    torch.testing.assert_close(kept, anew, rtol=0, atol=float(anew.abs().max()) * (2e-2 if in_bf16 else 1e-4))


def learn_preferences(pong: EnvInfo) -> tuple[list[float], float]:
    """Losses of 40 batches of pairs, in which more squares in the right half are preferred; and what was learned."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    inputs = PredictorInputs(pong.kind, pong.observation_shape, pong.n_actions, None)
    predictor = RewardPredictor(inputs, PredictorConfig())
    optimizer, losses = torch.optim.AdamW(predictor.parameters(), lr=1e-3), []
    segment = torch.repeat_interleave(torch.arange(16), 4)
    for _ in range(40):
        observations, half = pictures(rng, 64)
        right = half.view(8, 2, 4).sum(2)
        better = (right[:, 0] - right[:, 1]).sign() / 2 + 0.5
        batch = PairBatch(
            observations, half, segment, torch.stack([better, 1 - better], 1), torch.ones(3, 8), torch.zeros(2, 8)
        )
        predictor.train()
        loss = preference_loss(*batch.returns(predictor(observations, half)), batch.mu, 0.1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    observations, half = pictures(np.random.default_rng(1), 200)
    predictor.settle_batchnorm(observations, half)
    with torch.no_grad():
        raw = predictor(observations, half)
    return losses, torch.corrcoef(torch.stack([raw.mean(0), half.float()]))[0, 1].item()


@pytest.mark.parametrize("batchnorm", [True, False])
def test_the_first_convolution_in_parts_is_the_whole_one(batchnorm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = networks.RewardCNN(4, n_members=2, batchnorm=batchnorm, dropout=0.0)
    observations, _ = pictures(np.random.default_rng(0), 2 * PICTURES_TO_FILTER + 5)
    wanted = torch.randn(2, len(observations), 64)
    found = []
    for in_parts in (True, False):
        monkeypatch.setattr(device, "cpu_has_bf16", lambda whole=not in_parts: whole)
        features = net(observations)
        gradients = torch.autograd.grad((features * wanted).sum(), list(net.parameters()))
        found.append([features.detach(), *gradients])
    for part, whole in zip(*found, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-4 * float(whole.abs().max()))


@pytest.mark.skipif(not trains_in_bf16(CPU), reason="this processor has no bfloat16 arithmetic, so nothing differs")
def test_a_reward_predictor_learns_alike_in_bfloat16_and_float32(
    pong: EnvInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, fast_correlation = learn_preferences(pong)
    monkeypatch.setattr(device, "cpu_has_bf16", lambda: False)
    monkeypatch.setattr(reward_predictor, "trains_in_bf16", lambda _: False)
    plain, plain_correlation = learn_preferences(pong)
    assert np.mean(fast[-10:]) == pytest.approx(np.mean(plain[-10:]), abs=0.03)
    assert fast_correlation > 0.8 and plain_correlation > 0.8


def test_where_the_channels_lie_in_memory_changes_nothing(pong: EnvInfo) -> None:
    torch.manual_seed(0)
    last, _ = pictures(np.random.default_rng(0), 32)
    first = last.contiguous()
    assert last.stride() != first.stride()
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(converted(first, dtype), converted(last, dtype))
    policy, columns = Policy(pong, "nature"), [torch.arange(32.0)] * 5
    np.testing.assert_array_equal(policy.values(first.numpy()), policy.values(last.numpy()))
    indices = torch.randperm(32)[:7]
    for observations in (first, last):
        part = Batch(observations, *columns).select(indices)
        assert torch.equal(part.observations, first[indices]) and torch.equal(part.returns, indices.float())
