"""TRPO's parts against their definitions, its promises about each update, and that it learns."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence
from torch.func import functional_call

from a2c.config import TRPO_DEFAULTS, PolicyConfig
from a2c.crew import Arena
from a2c.model import Policy
from a2c.returns import advantages
from a2c.runner import Rollout, Runner
from a2c.trpo import VALUE_PASSES, Fisher, actor_parameters, conjugate_gradient, mean_kl, trpo_update
from a2c.update import Batch, make_optimizer
from a2c.worker import PolicyWorker, WorkerSpec
from drlhp.runtime.channels import Channels
from envs import EnvInfo, env_info, make_vec_env
from tests.a2c.test_update import random_batch

SIZE = 64
CONFIG = PolicyConfig(algo="trpo", **TRPO_DEFAULTS)  # type: ignore[arg-type]


def new_policy(n_actions: int | None) -> Policy:
    """Vectors of 3 numbers; two numbers as an action where there are no discrete ones."""
    action_dim = 2 if n_actions is None else None
    names = tuple(str(action) for action in range(n_actions or 0))
    torch.manual_seed(1)
    info = EnvInfo("Test-v0", "vector", (3,), n_actions, action_dim, 5, 30.0, 1, (), None, names, {})
    policy = Policy(info, "nature")
    with torch.no_grad():
        policy.actor.weight.mul_(30)  # far from uniform
    return policy


def flat(tensors: list[nn.Parameter]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


@pytest.mark.parametrize("n_actions", [3, None])
def test_fisher_vector_products_are_those_of_the_hessian_of_the_kl(n_actions: int | None) -> None:
    policy = new_policy(n_actions)
    policy.body, policy.actor = nn.Linear(3, 2), nn.Linear(2, 3 if n_actions else 2)  # small enough for a Hessian
    observations = torch.randn(SIZE, 3)
    with torch.no_grad():
        old = policy.distribution(policy.actor(policy.body(observations)))
    parameters = actor_parameters(policy)
    fisher = Fisher(mean_kl(old, policy.distribution(policy.actor(policy.body(observations)))), parameters)
    names = [name for name, _ in policy.named_parameters() if not name.startswith("critic")]
    sizes = [parameter.numel() for parameter in parameters]

    def kl(values: Tensor) -> Tensor:
        parts = zip(names, values.split(sizes), parameters, strict=True)
        weights = {name: part.view_as(parameter) for name, part, parameter in parts}
        head = functional_call(policy.actor, _under("actor", weights), _body(policy, weights, observations))
        if n_actions:
            now: Tensor = kl_divergence(old, torch.distributions.Categorical(logits=head)).mean()
            return now
        std = weights["log_std"].exp()
        return kl_divergence(old.base_dist, torch.distributions.Normal(head, std)).sum(1).mean()  # type: ignore[union-attr]

    hessian = torch.autograd.functional.hessian(kl, flat(parameters))
    for _ in range(3):
        vector = torch.randn(len(hessian))
        torch.testing.assert_close(fisher.times(vector), hessian @ vector, atol=1e-5, rtol=1e-3)
    assert float(hessian.diagonal().max()) > 0.01


def _under(module: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(f"{module}."): value for name, value in weights.items() if name.startswith(f"{module}.")}


def _body(policy: Policy, weights: dict[str, Tensor], observations: Tensor) -> Tensor:
    features: Tensor = functional_call(policy.body, _under("body", weights), observations)
    return features


def test_conjugate_gradients_solve_for_a_positive_definite_matrix() -> None:
    torch.manual_seed(0)
    root = torch.randn(8, 8)
    matrix, target = root @ root.T + torch.eye(8), torch.randn(8)
    torch.testing.assert_close(conjugate_gradient(matrix.mv, target), torch.linalg.solve(matrix, target))
    assert conjugate_gradient(matrix.mv, torch.zeros(8)).tolist() == [0] * 8


@pytest.mark.parametrize("max_kl", [0.001, 0.01, 0.3])
@pytest.mark.parametrize("n_actions", [3, None])
def test_an_update_improves_the_surrogate_within_the_bound(n_actions: int | None, max_kl: float) -> None:
    policy = new_policy(n_actions)
    old, batch = copy.deepcopy(policy), random_batch(policy, size=SIZE)
    config = replace(CONFIG, max_kl=max_kl, ent_coef=0.0)
    figures = trpo_update(policy, make_optimizer(policy, config), batch, config)
    with torch.no_grad():
        before, after = (one.distribution(one(batch.observations)[0]) for one in (old, policy))
        kl = float(kl_divergence(before, after).mean())
        gain = (after.log_prob(batch.actions) - before.log_prob(batch.actions)).exp() - 1
        normalised = (batch.advantages - batch.advantages.mean()) / batch.advantages.std()
    assert 0.1 * max_kl < kl <= max_kl and figures["kl"] == pytest.approx(kl, rel=1e-3)
    assert float((gain * normalised).mean()) > 0


def test_the_critic_alone_learns_where_no_action_was_better_than_another() -> None:
    policy = new_policy(3)
    batch = replace(random_batch(policy, size=SIZE), advantages=torch.zeros(SIZE), returns=torch.full((SIZE,), 2.0))
    config, acted = replace(CONFIG, ent_coef=0.0), policy(batch.observations)[0]
    optimizer = make_optimizer(policy, config)
    errors = [trpo_update(policy, optimizer, batch, config)["value_loss"] for _ in range(30)]
    assert torch.equal(policy(batch.observations)[0], acted)
    assert errors[-1] < 0.1 * errors[0]


def test_decisions_of_resetting_environments_change_nothing() -> None:
    results = []
    for garbage in (0.0, 50.0):
        policy = new_policy(None)
        batch = random_batch(policy, size=SIZE)
        batch.valid[[2, 7]] = False
        for column in (batch.advantages, batch.returns, batch.observations):
            column[[2, 7]] = garbage
        trpo_update(policy, make_optimizer(policy, CONFIG), batch, CONFIG)
        results.append(flat(list(policy.parameters())))
    assert torch.equal(*results)
    policy, batch = new_policy(3), random_batch(new_policy(3), size=SIZE)
    before = flat(list(policy.parameters()))
    none = replace(batch, valid=torch.zeros(SIZE, dtype=torch.bool))
    trpo_update(policy, make_optimizer(policy, CONFIG), none, CONFIG)
    assert torch.equal(flat(list(policy.parameters())), before)


def test_it_learns_to_balance_a_pole() -> None:
    """A random policy keeps CartPole's pole up for some 22 steps."""
    torch.manual_seed(0)
    info, config = env_info("CartPole-v1"), replace(CONFIG, gamma=0.99)
    env, policy = make_vec_env(info.env_id, 8, seed=0, in_process=True), Policy(info, "nature")
    rollout = Rollout.allocate(info, config.n_steps, 8, Arena(), channels_last=False)
    runner = Runner([env], info, policy, rollout, 0, watch=False, record=False)
    optimizer = make_optimizer(policy, config)
    for _ in range(10):
        r, _ = runner.collect()
        arrays = (r.rewards, r.values, r.last_values, r.terminated, r.truncated)
        r.advantages[:] = advantages(*arrays, gamma=config.gamma, gae_lambda=config.gae_lambda)
        r.returns[:] = r.advantages + r.values
        trpo_update(policy, optimizer, Batch.of(r), config)
    env.close()
    assert np.mean(list(runner.finished_returns)[-20:]) > 100


def test_a_resumed_run_goes_on_with_its_critics_optimiser(tmp_path: Path) -> None:
    config = replace(CONFIG, n_envs=1, n_steps=64, million_timesteps=0.001, eval_interval_million_timesteps=0.0)
    states = []
    for resume in (False, True):
        channels = Channels.create(synchronous=True, take_turns=False)
        worker = PolicyWorker(WorkerSpec("CartPole-v1", config, tmp_path, 0, resume=resume), channels)
        if not resume:
            for _ in range(2):
                worker.step()
        states.append((worker.steps, worker.learner.optimizer.state_dict()["state"], worker.policy.state_dict()))
        worker.close()
    (steps, moments, weights), (resumed_steps, resumed_moments, resumed_weights) = states
    assert steps == resumed_steps == 128 and len(moments) == 6  # weights and biases of two layers and the head
    for name in moments:
        assert moments[name]["step"] == resumed_moments[name]["step"] == 2 * VALUE_PASSES
        assert torch.equal(moments[name]["exp_avg_sq"], resumed_moments[name]["exp_avg_sq"])
    assert all(torch.equal(weights[name], resumed_weights[name]) for name in weights)
