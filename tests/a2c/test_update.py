"""The updates against their formulas written out, and whether they learn."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from a2c.config import PolicyConfig
from a2c.crew import Arena
from a2c.model import Policy
from a2c.runner import Rollout
from a2c.update import MAX_GRAD_NORM, Batch, RMSProp, a2c_update, make_optimizer, ppo_update
from envs import EnvInfo

Update = Callable[[Policy, Optimizer, Batch, PolicyConfig], dict[str, float]]

SIZE = 12
ONE_PASS = PolicyConfig(algo="ppo", ppo_epochs=1, ppo_minibatches=1)


def env(n_actions: int | None) -> EnvInfo:
    """Vectors of 3 numbers; three numbers as an action where there are no discrete ones."""
    action_dim = 3 if n_actions is None else None
    names = tuple(str(action) for action in range(n_actions or 0))
    return EnvInfo("Test-v0", "vector", (3,), n_actions, action_dim, 5, 30.0, 1, (), None, names, {})


def random_batch(policy: Policy, seed: int = 0, size: int = SIZE) -> Batch:
    """Decisions of the policy as it is, with random advantages; all are valid."""
    torch.manual_seed(seed)
    observations = torch.randn(size, 3)
    actions, log_probs, values = policy.act(observations.numpy(), policy.noise(len(observations)))
    advantages = torch.randn(size)
    return Batch(
        observations=observations,
        actions=torch.from_numpy(actions),
        log_probs=torch.from_numpy(log_probs),
        advantages=advantages,
        returns=torch.from_numpy(values) + advantages,
        valid=torch.ones(size, dtype=torch.bool),
    )


@pytest.mark.parametrize("n_actions", [4, None])
def test_a_rollout_laid_flat_keeps_each_decision_together(n_actions: int | None) -> None:
    rollout = Rollout.allocate(env(n_actions), 5, 2, Arena(), channels_last=False)
    for step in range(5):
        for i in range(2):
            rollout.observations[step, i] = rollout.actions[step, i] = rollout.returns[step, i] = 10 * step + i
    batch = Batch.of(rollout)
    expected = [10 * step + i for step in range(5) for i in range(2)]
    assert batch.returns.tolist() == expected and batch.observations.tolist() == [[n] * 3 for n in expected]
    assert batch.actions.tolist() == (expected if n_actions else [[n] * 3 for n in expected])


def new_policy(n_actions: int | None = 4) -> Policy:
    torch.manual_seed(1)
    policy = Policy(env(n_actions), "nature")
    with torch.no_grad():
        policy.actor.weight.mul_(100)  # far from uniform, so that no term of the loss is small
    return policy


def flat(policy: Policy) -> Tensor:
    return torch.cat([param.detach().reshape(-1) for param in policy.parameters()])


def literal_log_probs_and_entropy(policy: Policy, batch: Batch) -> tuple[Tensor, Tensor]:
    head = policy(batch.observations)[0]
    if policy.log_std is None:
        logs = head - torch.logsumexp(head, 1, keepdim=True)
        return logs[torch.arange(len(batch)), batch.actions], -(logs.exp() * logs).sum(1)
    std = policy.log_std.exp()
    log_probs = -0.5 * ((batch.actions - head) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)
    entropy = (0.5 + 0.5 * math.log(2 * math.pi) + std.log()).sum()
    return log_probs.sum(1), entropy.expand(len(batch))


def literal_gradient(policy: Policy, batch: Batch, policy_loss: Tensor, entropy: Tensor, ent_coef: float) -> Tensor:
    """Autograd's gradient of policy loss - entropy bonus + half the squared error of the values."""
    values = policy(batch.observations)[1]
    loss = policy_loss - ent_coef * entropy.mean() + 0.5 * ((values - batch.returns) ** 2).mean()
    return torch.cat([grad.reshape(-1) for grad in torch.autograd.grad(loss, list(policy.parameters()))])


def clipped(gradient: Tensor) -> Tensor:
    return gradient * min(1.0, MAX_GRAD_NORM / float(gradient.norm()))


def test_rmsprop_follows_tensorflows_formula() -> None:
    rng = np.random.default_rng(0)
    start = rng.normal(size=(4, 2)).astype(np.float32)
    weight, unused = torch.nn.Parameter(torch.from_numpy(start.copy())), torch.nn.Parameter(torch.ones(2))
    optimizer = RMSProp([weight, unused], lr=0.1, alpha=0.9, eps=1e-3)
    expected, mean_square = start.astype(np.float64), np.ones((4, 2))
    for _ in range(5):
        gradient = rng.normal(scale=0.01, size=(4, 2)).astype(np.float32)
        weight.grad = torch.from_numpy(gradient)
        optimizer.step()
        mean_square = 0.9 * mean_square + 0.1 * gradient.astype(np.float64) ** 2
        expected -= 0.1 * gradient / np.sqrt(mean_square + 1e-3)
        np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-5)
    assert unused.tolist() == [1, 1]


def test_rmsprop_goes_on_from_its_saved_state() -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = RMSProp([weight], lr=0.1)
    weight.grad = torch.full((3,), 5.0)
    optimizer.step()
    other = torch.nn.Parameter(weight.detach().clone())
    restored = RMSProp([other], lr=0.5)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other.grad = weight.grad.clone()
    optimizer.step()
    restored.step()
    assert torch.equal(other, weight)


def test_rmsprop_goes_on_from_the_average_that_older_checkpoints_hold() -> None:
    weights = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    new, old = (RMSProp([weight], lr=0.1) for weight in weights)
    state = old.state_dict()
    state["state"][0] = {"square_avg": torch.ones(3)}  # what every average begins with
    old.load_state_dict(state)
    for weight, optimizer in zip(weights, (new, old), strict=True):
        weight.grad = torch.tensor([0.1, -2.0, 0.0])
        optimizer.step()
    assert weights[0].tolist() == pytest.approx(weights[1].tolist(), rel=1e-5) and weights[0][0] < 0


@pytest.mark.parametrize("scale", [0.001, 100.0])
@pytest.mark.parametrize("n_actions", [4, None])
def test_a2c_descends_the_literal_gradient_clipped_in_norm(n_actions: int | None, scale: float) -> None:
    policy = new_policy(n_actions)
    batch = random_batch(policy)
    values = policy(batch.observations)[1].detach()
    advantages = batch.advantages * scale
    batch = replace(batch, advantages=advantages, returns=values + advantages)
    log_probs, entropy = literal_log_probs_and_entropy(policy, batch)
    gradient = literal_gradient(policy, batch, -(log_probs * advantages).mean(), entropy, ent_coef=0.02)
    assert (float(gradient.norm()) > MAX_GRAD_NORM) == (scale > 1)
    before = flat(policy)
    figures = a2c_update(policy, SGD(policy.parameters(), lr=1.0), batch, PolicyConfig(ent_coef=0.02))
    torch.testing.assert_close(before - flat(policy), clipped(gradient), atol=2e-6, rtol=1e-3)
    assert figures["grad_norm"] == pytest.approx(float(gradient.norm()), rel=1e-4)
    assert figures["entropy"] == pytest.approx(entropy.mean().item(), rel=1e-5)
    assert figures["value_loss"] == pytest.approx((advantages**2).mean().item(), rel=1e-3)


def test_ppo_descends_the_literal_clipped_surrogate() -> None:
    policy = new_policy()
    batch = random_batch(policy)
    batch = replace(batch, log_probs=batch.log_probs + 0.5 * torch.randn(SIZE))  # as if taken by an older policy
    log_probs, entropy = literal_log_probs_and_entropy(policy, batch)
    ratio = torch.exp(log_probs - batch.log_probs)
    assert ((ratio - 1).abs() > 0.2).any() and ((ratio - 1).abs() < 0.2).any()
    advantages = (batch.advantages - batch.advantages.mean()) / batch.advantages.std()
    surrogate = torch.minimum(ratio * advantages, torch.clip(ratio, 0.8, 1.2) * advantages)
    gradient = literal_gradient(policy, batch, -surrogate.mean(), entropy, ONE_PASS.ent_coef)
    before = flat(policy)
    ppo_update(policy, SGD(policy.parameters(), lr=1.0), batch, ONE_PASS)
    torch.testing.assert_close(before - flat(policy), clipped(gradient), atol=2e-6, rtol=1e-3)


def test_the_first_pass_of_ppo_is_a2c_with_normalised_advantages() -> None:
    by_ppo, by_a2c = new_policy(), new_policy()
    batch = random_batch(by_ppo)
    ppo_update(by_ppo, SGD(by_ppo.parameters(), lr=0.1), batch, ONE_PASS)
    normalised = (batch.advantages - batch.advantages.mean()) / batch.advantages.std()
    a2c_update(by_a2c, SGD(by_a2c.parameters(), lr=0.1), replace(batch, advantages=normalised), ONE_PASS)
    torch.testing.assert_close(flat(by_ppo), flat(by_a2c), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("update", [a2c_update, ppo_update])
def test_decisions_of_resetting_environments_change_nothing(update: Update) -> None:
    """The update is that of the batch without them, whatever they hold."""
    valid = torch.ones(SIZE)
    valid[[2, 7, 11]] = 0
    kept = torch.nonzero(valid).squeeze(1)
    results = []
    for case in ("garbage", "left out"):
        policy = new_policy()
        batch = random_batch(policy)
        if case == "garbage":
            advantages = torch.where(valid > 0, batch.advantages, 50.0)
            returns = torch.where(valid > 0, batch.returns, -30.0)
            batch = replace(batch, advantages=advantages, returns=returns, valid=valid)
        else:
            batch = batch.select(kept)
        update(policy, SGD(policy.parameters(), lr=0.1), batch, ONE_PASS)
        results.append(flat(policy))
    torch.testing.assert_close(results[0], results[1], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("update", [a2c_update, ppo_update])
def test_a_batch_without_one_valid_decision_keeps_the_policy_finite(update: Update) -> None:
    policy = new_policy()
    batch = replace(random_batch(policy), valid=torch.zeros(SIZE))
    before = flat(policy)
    update(policy, SGD(policy.parameters(), lr=0.1), batch, ONE_PASS)
    assert torch.equal(flat(policy), before)


def test_minibatches_of_one_decision_keep_the_policy_finite() -> None:
    policy = new_policy()
    config = PolicyConfig(algo="ppo", ppo_epochs=1, ppo_minibatches=SIZE)
    ppo_update(policy, make_optimizer(policy, config), random_batch(policy), config)
    assert flat(policy).isfinite().all()


@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_the_policy_learns_which_action_pays(algo: str) -> None:
    """A bandit whose paying action is told by the sign of the first number."""
    config = PolicyConfig(algo="ppo", ppo_minibatches=2) if algo == "ppo" else PolicyConfig()
    config = replace(config, lr=1e-2)
    torch.manual_seed(0)
    policy = Policy(env(2), "nature")
    optimizer = make_optimizer(policy, config)
    update = ppo_update if algo == "ppo" else a2c_update
    for _ in range(400 if algo == "a2c" else 60):  # TensorFlow's RMSProp starts slowly: its averages start at 1
        observations = torch.randn(64, 3)
        actions, log_probs, values = (
            torch.from_numpy(array) for array in policy.act(observations.numpy(), policy.noise(len(observations)))
        )
        rewards = (actions == (observations[:, 0] > 0)).float()
        batch = Batch(observations, actions, log_probs, rewards - values, rewards, torch.ones(64))
        update(policy, optimizer, batch, config)
    observations = torch.randn(500, 3)
    chosen, _, valued = policy.act(observations.numpy(), policy.noise(len(observations)))
    assert np.mean(chosen == (observations[:, 0] > 0).numpy()) > 0.9
    assert float(np.mean(valued)) > 0.6  # a coin would earn 0.5
