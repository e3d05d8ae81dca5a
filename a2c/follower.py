"""A process of the policy's crew that does not lead: acts in its environments and adds its share to gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from a2c.acting import ActingPolicy
from a2c.config import PolicyConfig
from a2c.crew import Arena, CrewBroken, Followers, allocate, linked, share
from a2c.environments import make_share
from a2c.model import Policy
from a2c.runner import Actor, Rollout, act_in_turns
from a2c.update import Batch, Descent, gradients
from drlhp.runtime.channels import Channels
from drlhp.runtime.processes import Children
from drlhp.runtime.pulse import doing
from envs import env_info


@dataclass(frozen=True)
class Shared:
    """What all processes of a crew see, laid out in the same order in each of them."""

    rollout: Rollout
    gradients: list[list[torch.Tensor]]  # of each process but the leader

    @classmethod
    def lay_out(
        cls, policy: ActingPolicy, env_id: str, config: PolicyConfig, arena: Arena, size: int, *, leads: bool
    ) -> Shared:
        """Moves the policy to the arena: the leader writes its weights there, the others take over what they find.

        A process that works alone leaves the policy where it is, perhaps on a GPU.
        """
        if size > 1:
            assert isinstance(policy, Policy)
            policy.move_to(arena, fill=leads)
        sizes = (config.n_steps, config.n_envs)
        rollout = Rollout.allocate(env_info(env_id), *sizes, arena, policy.channels_last, policy.memory_size)
        # In float32 on every device: each process casts its own share.
        shares = [[arena.tensor(parameter) for parameter in policy.parameters()] for _ in range(size - 1)]
        return cls(rollout, shares)


@dataclass(frozen=True)
class FollowerSpec:
    """All that a process of the crew works with, besides the channels."""

    link: Connection  # to the leader
    env_id: str
    config: PolicyConfig
    memory: Any  # that the whole crew shares, of `allocate`
    size: int  # processes of the crew, the leader included
    index: int  # of this one; the leader's is 0


class Follower:
    """Carries out the leader's orders, each of which names a method."""

    def __init__(self, spec: FollowerSpec) -> None:
        self.spec, self.config = spec, spec.config
        self.mine = share(spec.config.n_envs, spec.size, spec.index)
        self.policy, arena = Policy(env_info(spec.env_id), spec.config.policy_network), Arena(spec.memory)
        self.shared = Shared.lay_out(self.policy, spec.env_id, spec.config, arena, spec.size, leads=False)
        self.batch = Batch.of(self.shared.rollout)
        self.actor: Actor | None = None

    def begin(self, seed: int) -> None:
        """Starts this process's environments; environment i of the rollout has the seed `seed + i`."""
        env = make_share(self.spec.env_id, self.config, self.mine, seed)
        if self.config.algo == "a2c":
            self.policy.keep(self.config.n_steps, env.num_envs)
        self.actor = Actor(env, self.mine, self.policy, self.shared.rollout)

    def act(self, given_up: NDArray[np.bool_] | None) -> None:
        """Fills this process's columns of the rollout."""
        assert self.actor is not None
        act_in_turns([self.actor], given_up)

    def descend(self, descent: Descent) -> list[float]:
        """Writes its share of a gradient to the shared memory; returns its share of the losses."""
        found, losses = gradients(self.policy, self.batch, self.config, descent)
        torch._foreach_copy_(self.shared.gradients[self.spec.index - 1], list(found))
        return losses.tolist()  # numbers: a tensor would travel as shared memory, by a connection of its own

    def close(self) -> None:
        """Ends the environments."""
        if self.actor is not None:
            self.actor.env.close()


def run_follower(channels: Channels, spec: FollowerSpec) -> None:
    """Body of the process: carries out orders until the leader closes its end."""
    torch.set_num_threads(1)
    follower, link = Follower(spec), spec.link
    try:
        while True:
            with linked(), doing(""):  # whoever waits for the next order waits for the leader
                task, arguments = link.recv()
            method: Callable[..., Any] = getattr(follower, task)
            with doing("its part of a step"):
                result = method(*arguments)
            with linked():
                link.send(result)
    except CrewBroken:
        pass  # the leader has left or died, and the main process sees that
    finally:
        follower.close()


def start_crew(children: Children, env_id: str, config: PolicyConfig, size: int) -> Followers:
    """Starts all processes of a crew but the leader; returns the leader's share in them."""
    if size == 1:
        return Followers()
    context = children.channels.context
    assert context is not None
    plan = Arena()
    Shared.lay_out(Policy(env_info(env_id), config.policy_network), env_id, config, plan, size, leads=False)
    memory = allocate(plan.used, context)
    links = [context.Pipe() for _ in range(size - 1)]
    for index, (_, link) in enumerate(links, start=1):
        children.start(f"a2c {index + 1}", run_follower, FollowerSpec(link, env_id, config, memory, size, index))
        link.close()  # the child has it now; a link ends when the process at its other end does
    return Followers([ours for ours, _ in links], memory)
