"""A process of the policy's crew that does not lead: it acts in its environments and adds its share to gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from a2c.config import PolicyConfig
from a2c.crew import Arena, CrewBroken, allocate, linked, share
from a2c.model import Policy
from a2c.runner import Actor, Rollout, act_in_turns
from a2c.update import Batch, Descent, gradients
from drlhp.runtime.channels import Channels
from drlhp.runtime.processes import Children
from envs import env_info, make_vec_env


@dataclass(frozen=True)
class Shared:
    """What the processes of a crew all see, laid out in the same order in each of them."""

    policy: Policy
    rollout: Rollout
    gradients: list[list[torch.Tensor]]  # of each process but the leader

    @classmethod
    def lay_out(
        cls, policy: Policy, env_id: str, config: PolicyConfig, arena: Arena, size: int, *, leads: bool
    ) -> Shared:
        """Moves the policy to the arena: the leader with its weights, the others to those that they find there.

        A process that works alone leaves it where it is, which may be a card.
        """
        if size > 1:
            policy.move_to(arena, fill=leads)
        sizes = (config.n_steps, config.n_envs)
        rollout = Rollout.allocate(env_info(env_id), *sizes, arena, policy.channels_last, policy.memory_size)
        # In float32, whatever computes: each process then casts its own share.
        shares = [[arena.tensor(parameter) for parameter in policy.parameters()] for _ in range(size - 1)]
        return cls(policy, rollout, shares)


class Follower:
    """Carries out the leader's orders, each a method by its name."""

    def __init__(self, env_id: str, config: PolicyConfig, memory: Any, size: int, index: int) -> None:
        self.env_id, self.config, self.index = env_id, config, index
        self.mine = share(config.n_envs, size, index)
        policy = Policy(env_info(env_id), config.policy_network)
        self.shared = Shared.lay_out(policy, env_id, config, Arena(memory), size, leads=False)
        self.batch = Batch.of(self.shared.rollout)
        self.actor: Actor | None = None

    def begin(self, seed: int) -> None:
        """Starts this process's environments, of which environment i has the seed `seed + i`."""
        n_envs = self.mine.stop - self.mine.start
        first, whole_games = seed + self.mine.start, self.config.whole_games
        env = make_vec_env(self.env_id, n_envs, first, n_threads=1, whole_games=whole_games)
        if self.config.algo == "a2c":
            self.shared.policy.keep(self.config.n_steps, n_envs)
        self.actor = Actor(env, self.mine, self.shared.policy, self.shared.rollout)

    def act(self, given_up: NDArray[np.bool_] | None) -> None:
        """Fills this process's columns of the rollout."""
        assert self.actor is not None
        act_in_turns([self.actor], given_up)

    def descend(self, descent: Descent) -> list[float]:
        """Leaves its share of a gradient where the leader finds it; returns its share of the losses."""
        found, losses = gradients(self.shared.policy, self.batch, self.config, descent)
        torch._foreach_copy_(self.shared.gradients[self.index - 1], list(found))
        return losses.tolist()  # numbers: a tensor would travel as shared memory, by a connection of its own

    def close(self) -> None:
        """Ends the environments."""
        if self.actor is not None:
            self.actor.env.close()


def run_follower(
    channels: Channels, link: Connection, env_id: str, config: PolicyConfig, memory: Any, size: int, index: int
) -> None:
    """Body of the process: carries out orders until the leader closes its end."""
    torch.set_num_threads(1)
    follower = Follower(env_id, config, memory, size, index)
    try:
        while True:
            with linked():
                task, arguments = link.recv()
            method: Callable[..., Any] = getattr(follower, task)
            result = method(*arguments)
            with linked():
                link.send(result)
    except CrewBroken:
        pass  # the leader has left, or died, which the main process sees
    finally:
        follower.close()


def start_crew(children: Children, env_id: str, config: PolicyConfig, size: int) -> tuple[list[Connection], Any]:
    """Starts the processes but for the leader.

    Returns:
        The leader's ends of the links to them, and the memory that it shares with them, None if it is alone.
    """
    if size == 1:
        return [], None
    context = children.channels.context
    assert context is not None
    plan = Arena()
    Shared.lay_out(Policy(env_info(env_id), config.policy_network), env_id, config, plan, size, leads=False)
    memory = allocate(plan.used, context)
    links = [context.Pipe() for _ in range(size - 1)]
    for index, (_, link) in enumerate(links, start=1):
        children.start(f"a2c {index + 1}", run_follower, link, env_id, config, memory, size, index)
        link.close()  # that process has it now; a link ends when the process at its other end does
    return [ours for ours, _ in links], memory
