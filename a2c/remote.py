"""An actor on any machine: acts in environments of its own, and sends what a central learner needs of it."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from a2c.config import PolicyConfig
from a2c.crew import Arena
from a2c.environments import make_share
from a2c.model import Policy
from a2c.parcels import Parcel, pack, pack_first, take_weights
from a2c.runner import Actor, Rollout, act_in_turns
from drlhp.data.views import encode_view
from drlhp.errors import UserError
from drlhp.runtime.leash import end_with_parent, without_main
from envs import env_info


@dataclass(frozen=True)
class RemoteSpec:
    """All that an actor works with."""

    env_id: str
    config: PolicyConfig
    mine: slice  # its environments of the rollout
    n_shown: int = 0  # environments that draw what people see
    torch_version: str = ""  # of the learner


class RemoteFollower:
    """Acts as a local `Follower` does, in a rollout that has its own columns alone."""

    def __init__(self, spec: RemoteSpec) -> None:
        end_with_parent()  # Ray ends its processes only if their node ends in order
        torch.set_num_threads(1)
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # weights in Ray's store: only read
        if torch.__version__.split("+")[0] != spec.torch_version.split("+")[0]:
            raise UserError(
                f"{socket.gethostname()} has PyTorch {torch.__version__}, and the learner {spec.torch_version}; "
                "install the same versions on all machines."
            )
        self.spec, self.info = spec, env_info(spec.env_id)
        self.policy, n_envs = Policy(self.info, spec.config.policy_network), spec.mine.stop - spec.mine.start
        self.rollout = Rollout.allocate(
            self.info, spec.config.n_steps, n_envs, Arena(), self.policy.channels_last, self.policy.memory_size
        )
        self.ended = np.zeros(n_envs, np.bool_)  # by the last step of the rollout before
        self.actor: Actor | None = None

    def begin(self, seed: int) -> Parcel:
        """Starts the environments, of which environment i has the seed `seed + i`; returns their observations."""
        spec, config = self.spec, self.spec.config
        with without_main():
            env = make_share(spec.env_id, config, spec.mine, seed, n_shown=spec.n_shown)
        phases = np.arange(config.n_envs)[spec.mine] / config.n_envs
        self.actor = Actor(env, slice(0, env.num_envs), self.policy, self.rollout, phases)
        return pack_first(self.rollout.observations[-1])

    def act(self, weights: Sequence[np.ndarray], noise: np.ndarray, given_up: NDArray[np.bool_] | None) -> Parcel:
        """Acts for a rollout with these weights and this noise (T, N, A); returns what has come of it."""
        assert self.actor is not None
        r = self.rollout
        take_weights(self.policy, weights)
        r.noise[:] = noise
        act_in_turns([self.actor], given_up, watch=self.spec.n_shown > 0)
        done = r.terminated | r.truncated
        began = np.concatenate([self.ended[None], done[:-1]])
        self.ended = done[-1]
        views = [encode_view(np.stack(seen)) for seen in zip(*self.actor.views, strict=True)]
        return pack(r, self.info, began, views)

    def close(self) -> None:
        """Ends the environments."""
        if self.actor is not None:
            self.actor.env.close()


def as_plain(spec: RemoteSpec) -> dict[str, Any]:
    """Returns what `spec_of` takes, in types that a node knows before it has found the clone."""
    return {**vars(spec), "config": vars(spec.config)}


def spec_of(config: dict[str, Any], **rest: Any) -> RemoteSpec:
    """Returns the spec that `as_plain` made plain."""
    return RemoteSpec(config=PolicyConfig(**config), **rest)


def spec_for(spec: RemoteSpec, mine: slice, *, first: bool) -> RemoteSpec:
    """Returns the spec of one actor; people watch environments of the first one alone."""
    n_shown = min(spec.n_shown, mine.stop - mine.start) if first else 0
    return replace(spec, mine=mine, n_shown=n_shown)
