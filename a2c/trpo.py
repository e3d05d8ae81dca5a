"""Updates the policy by TRPO (Schulman et al. 2015, arXiv 1502.05477), the paper's choice on MuJoCo (appendix A.1).

The policy takes one long step along the natural gradient, bounded by the KL divergence from the old policy; the critic
takes several passes of Adam. On vectors the two share no weights (`networks.PolicyMLP`), so that neither step moves the
other: in a tensor that holds both networks, the other's weights have gradients of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, kl_divergence
from torch.nn import functional as F
from torch.optim import Optimizer

from a2c.config import PolicyConfig
from a2c.crew import ALONE, Crew
from a2c.model import Policy
from a2c.update import Batch

# The TRPO paper names the first (appendix C); the others are those of OpenAI's baselines.
CONJUGATE_GRADIENT_STEPS = 10
DAMPING = 0.1  # added to the Fisher matrix, because a batch hardly shows some directions of it
BACKTRACKS = 10  # of the line search, each half as long as the one before
VALUE_PASSES, VALUE_BATCH = 5, 64


def trpo_update(
    policy: Policy, optimizer: Optimizer, batch: Batch, config: PolicyConfig, crew: Crew = ALONE
) -> dict[str, float]:
    """Takes one step of the actor within the bound, then passes of the optimiser for the critic.

    The leader does it alone: only policies on vectors learn by TRPO, and they compute without a crew.
    """
    batch = batch.select(torch.nonzero(batch.valid).squeeze(1))
    if not len(batch):
        return {"policy_loss": 0.0, "value_loss": 0.0, "entropy": 0.0, "kl": 0.0}
    figures = improve_policy(policy, batch, config)
    return {**figures, "value_loss": fit_values(policy, optimizer, batch)}


def improve_policy(policy: Policy, batch: Batch, config: PolicyConfig) -> dict[str, float]:
    """Takes the longest step that is tried which improves the surrogate and keeps the mean KL within `max_kl`.

    If none does, the policy stays as it is.
    """
    parameters = actor_parameters(policy)
    advantages = batch.advantages - batch.advantages.mean()
    advantages = advantages / (advantages.square().mean().sqrt() + 1e-8)
    with torch.no_grad():
        old = policy.distribution(policy(batch.observations)[0])
        old_log_probs = old.log_prob(batch.actions)

    def surrogate_and_kl() -> tuple[Tensor, Tensor, Tensor]:
        """Returns expected advantage with entropy bonus, mean KL from the old policy, and entropy, as they are now."""
        now = policy.distribution(policy(batch.observations)[0])
        ratio, entropy = (now.log_prob(batch.actions) - old_log_probs).exp(), now.entropy().mean()
        return (ratio * advantages).mean() + config.ent_coef * entropy, mean_kl(old, now), entropy

    before, kl, entropy = surrogate_and_kl()
    gradient = _flat(torch.autograd.grad(before, parameters, retain_graph=True))
    fisher = Fisher(kl, parameters)
    direction = conjugate_gradient(fisher.damped, gradient)
    curvature = direction @ fisher.damped(direction)
    figures = {"policy_loss": -before.detach(), "entropy": entropy.detach(), "kl": torch.zeros(())}
    if curvature > 0:  # else all advantages are the same, and no step gains anything
        step = direction * (2 * config.max_kl / curvature).sqrt()
        start = _flat(parameters).clone()
        for backtrack in range(BACKTRACKS):
            _assign(parameters, start + 0.5**backtrack * step)
            with torch.no_grad():
                after, kl, _ = surrogate_and_kl()
            if after > before and kl <= config.max_kl:
                figures["kl"] = kl
                break
        else:
            _assign(parameters, start)
    return {name: float(value) for name, value in figures.items()}


def fit_values(policy: Policy, optimizer: Optimizer, batch: Batch) -> float:
    """Passes over shuffled minibatches that fit the critic to the returns; returns its mean squared error before."""
    with torch.no_grad():
        error = F.mse_loss(policy(batch.observations)[1], batch.returns)
    for _ in range(VALUE_PASSES):
        for rows in torch.randperm(len(batch)).split(VALUE_BATCH):
            part = batch.select(rows)
            loss = F.mse_loss(policy(part.observations)[1], part.returns)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return float(error)


def actor_parameters(policy: Policy) -> list[nn.Parameter]:
    """Returns the tensors that hold the actor's weights."""
    of_critic = {id(parameter) for parameter in policy.critic.parameters()}
    return [parameter for parameter in policy.parameters() if id(parameter) not in of_critic]


def mean_kl(old: Categorical | Independent, new: Categorical | Independent) -> Tensor:
    """KL(old || new), the mean over a batch of decisions."""
    return kl_divergence(old, new).mean()


class Fisher:
    """The Fisher matrix of a policy, the Hessian of its KL from itself, by products with vectors alone.

    Args:
        kl: of the policy from a fixed copy of itself, with a graph back to the parameters (appendix C).
    """

    def __init__(self, kl: Tensor, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self.gradient = _flat(torch.autograd.grad(kl, parameters, create_graph=True))

    def times(self, vector: Tensor) -> Tensor:
        """Returns the product with a vector (P,) -> (P,)."""
        return _flat(torch.autograd.grad(self.gradient @ vector, self.parameters, retain_graph=True))

    def damped(self, vector: Tensor) -> Tensor:
        """Returns the product with a vector, with DAMPING added to the diagonal."""
        return self.times(vector) + DAMPING * vector


def conjugate_gradient(times: Callable[[Tensor], Tensor], target: Tensor) -> Tensor:
    """Solves A x = target (P,) by products with the positive definite A, after CONJUGATE_GRADIENT_STEPS nearly."""
    x = torch.zeros_like(target)
    residual = direction = target
    norm = residual @ residual
    for _ in range(CONJUGATE_GRADIENT_STEPS):
        if norm < 1e-10:
            break
        product = times(direction)
        length = norm / (direction @ product)
        x = x + length * direction
        residual = residual - length * product
        norm, last = residual @ residual, norm
        direction = residual + norm / last * direction
    return x


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


@torch.no_grad()
def _assign(parameters: Sequence[nn.Parameter], values: Tensor) -> None:
    """Writes (P,) values over the parameters."""
    parts = values.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.copy_(part.view_as(parameter))
