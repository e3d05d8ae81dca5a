"""The same numbers as Stable-Baselines3 on random inputs: returns, advantages, losses and gradients of A2C and PPO.

`test_returns.py` and `test_update.py` compare with each formula written out; here the other side is code that many use.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn
from torch.optim import SGD

from a2c.config import PolicyConfig
from a2c.model import Policy
from a2c.returns import advantages
from a2c.update import MAX_GRAD_NORM, VALUE_COEF, Batch, a2c_update, ppo_update
from drlhp.networks.architectures import PolicyMLP
from envs import EnvInfo
from tests.a2c.test_returns import ENVS, STEPS, random_rollout

sb3 = pytest.importorskip("stable_baselines3")

SIZE, ENT_COEF = 24, 0.03
NUMBERS = Box(-np.inf, np.inf, (3,), np.float32)


class Spaces(gymnasium.Env[Any, Any]):
    """An environment of which only the spaces are used."""

    def __init__(self, actions: Any) -> None:
        self.observation_space, self.action_space = NUMBERS, actions


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_advantages_are_those_of_its_rollout_buffer(seed: int, lambda_: float) -> None:
    """Its environments reset within a step, and it adds the value after a time limit to that step's reward."""
    from stable_baselines3.common.buffers import RolloutBuffer

    rollout, gamma = random_rollout(seed), 0.9
    ours = advantages(**rollout, gamma=gamma, gae_lambda=lambda_)
    compared = 0
    for env in range(ENVS):
        column = {name: values[..., env] for name, values in rollout.items()}
        done = column["terminated"] | column["truncated"]
        steps = [t for t in range(STEPS) if t == 0 or not done[t - 1]]  # the others only reset
        after = np.append(column["values"][1:], column["last_values"])
        limited = column["truncated"] & ~column["terminated"]
        rewards = column["rewards"] + gamma * after * limited
        buffer = RolloutBuffer(len(steps), NUMBERS, Discrete(2), "cpu", gae_lambda=lambda_, gamma=gamma)
        for t in steps:
            started = t > 1 and done[t - 2]
            value, log_prob = torch.tensor([column["values"][t]]), torch.zeros(1)
            buffer.add(np.zeros((1, 3)), np.zeros(1), rewards[t : t + 1], np.array([started]), value, log_prob)
        buffer.compute_returns_and_advantage(torch.tensor([after[steps[-1]]]), done[steps[-1] : steps[-1] + 1])
        np.testing.assert_allclose(ours[steps, env], buffer.advantages[:, 0], atol=2e-5)
        np.testing.assert_allclose((ours + rollout["values"])[steps, env], buffer.returns[:, 0], atol=2e-5)
        compared += len(steps)
    assert compared > STEPS * ENVS / 2


def our_policy(n_actions: int | None) -> Policy:
    info = EnvInfo("Test-v0", "vector", (3,), n_actions, None if n_actions else 2, 5, 30.0, 1, (), None, (), {})
    torch.manual_seed(0)
    policy = Policy(info, "nature")
    with torch.no_grad():
        for parameter in policy.parameters():  # so that no two actions are about equally likely
            parameter.add_(0.3 * torch.randn_like(parameter))
    return policy


class Pair(NamedTuple):
    """A weight of ours and theirs of the same meaning."""

    ours: nn.Parameter
    theirs: nn.Parameter
    member: int | None = None  # of our weight, if it is of several networks

    def in_their_layout(self, values: Tensor | None) -> Tensor:
        """Returns our weight or gradient as theirs lies."""
        assert values is not None
        if self.member is None:
            return values.detach()
        of_member = values[self.member].detach()
        return of_member[0] if len(of_member) == 1 else of_member.T


def pairs_of(ours: Policy, theirs: Any) -> list[Pair]:
    """Returns all weights of both policies, beside each other."""
    pairs = [Pair(getattr(ours.actor, name), getattr(theirs.action_net, name)) for name in ("weight", "bias")]
    pairs += [Pair(getattr(ours.critic, name), getattr(theirs.value_net, name)) for name in ("weight", "bias")]
    if ours.log_std is not None:
        pairs.append(Pair(ours.log_std, theirs.log_std))
    assert isinstance(ours.body, PolicyMLP)
    for member, network in enumerate((theirs.mlp_extractor.policy_net, theirs.mlp_extractor.value_net)):
        for layer, linear in ((ours.body.fc1, network[0]), (ours.body.fc2, network[2])):
            pairs += [Pair(getattr(layer, name), getattr(linear, name), member) for name in ("weight", "bias")]
    assert {id(pair.theirs) for pair in pairs} == {id(parameter) for parameter in theirs.parameters()}
    return pairs


@pytest.mark.parametrize("n_actions", [4, None])
@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_losses_and_gradients_are_those_of_its_algorithms(algo: Literal["a2c", "ppo"], n_actions: int | None) -> None:
    """PPO's decisions are by an older policy, so that ratios are clipped on both sides."""
    from stable_baselines3.common.logger import configure

    policy, rng = our_policy(n_actions), np.random.default_rng(1)
    observations = rng.normal(size=(SIZE, 3)).astype(np.float32)
    torch.manual_seed(1)
    actions, log_probs, values = policy.act(observations, policy.noise(SIZE))
    log_probs = log_probs + rng.normal(0, 0.3, SIZE).astype(np.float32) * (algo == "ppo")
    gained = rng.normal(size=SIZE).astype(np.float32)

    columns = [torch.from_numpy(x) for x in (observations, actions, log_probs, gained, values + gained)]
    batch = Batch(*[*columns, torch.ones(SIZE, dtype=torch.bool)])
    config = PolicyConfig(algo=algo, ent_coef=ENT_COEF, n_envs=1, n_steps=SIZE, ppo_epochs=1, ppo_minibatches=1)
    update = a2c_update if algo == "a2c" else ppo_update
    shared: dict[str, Any] = {
        "ent_coef": ENT_COEF,
        "vf_coef": VALUE_COEF,
        "max_grad_norm": MAX_GRAD_NORM,
        "n_steps": SIZE,
    }
    shared |= {"device": "cpu", "policy_kwargs": {"optimizer_class": SGD, "optimizer_kwargs": {}}, "learning_rate": 1.0}
    env = Spaces(Discrete(n_actions) if n_actions else Box(-9, 9, (2,), np.float32))
    if algo == "a2c":
        model = sb3.A2C("MlpPolicy", env, use_rms_prop=False, **shared)
    else:
        model = sb3.PPO("MlpPolicy", env, batch_size=SIZE, n_epochs=1, **shared)
    pairs = pairs_of(policy, model.policy)
    with torch.no_grad():
        for pair in pairs:
            pair.theirs.copy_(pair.in_their_layout(pair.ours))
    before = [pair.theirs.detach().clone() for pair in pairs]

    buffer = model.rollout_buffer
    for i in range(SIZE):
        value, log_prob = torch.tensor(values[i : i + 1]), torch.tensor(log_probs[i : i + 1])
        buffer.add(observations[i : i + 1], actions[i : i + 1], np.zeros(1), np.zeros(1), value, log_prob)
    buffer.advantages[:, 0], buffer.returns[:, 0] = gained, values + gained
    model.set_logger(configure(None, []))
    model.train()
    losses = update(policy, SGD(list(policy.parameters()), lr=1.0), batch, config)

    logged = model.logger.name_to_value
    named = {"policy_loss": "policy_gradient_loss" if algo == "ppo" else "policy_loss", "value_loss": "value_loss"}
    for our_name, their_name in named.items():
        assert losses[our_name] == pytest.approx(logged[f"train/{their_name}"], rel=1e-4, abs=1e-6)
    assert losses["entropy"] == pytest.approx(-logged["train/entropy_loss"], rel=1e-4)
    if algo == "ppo":
        assert 0.1 < logged["train/clip_fraction"] < 0.9
    for pair, old in zip(pairs, before, strict=True):
        assert pair.theirs.grad is not None and not torch.equal(old, pair.theirs)
        np.testing.assert_allclose(pair.in_their_layout(pair.ours.grad), pair.theirs.grad, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(pair.in_their_layout(pair.ours), pair.theirs.detach(), rtol=1e-4, atol=1e-5)
