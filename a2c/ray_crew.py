"""The learner's side of actors on a Ray cluster: sends weights, takes rollouts, and replaces actors that have died."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a2c import ray_actor
from a2c.crew import Cluster, Crew, CrewBroken, Found, share
from a2c.evaluation import training_seed
from a2c.model import Policy
from a2c.parcels import Parcel, unpack, unpack_first, weights_of
from a2c.remote import RemoteSpec, as_plain, spec_for
from a2c.runner import Rollout
from drlhp.data.views import decode_view
from drlhp.errors import UserError, reason_of
from drlhp.runtime.pulse import doing
from drlhp.runtime.ray_connection import connected
from drlhp.runtime.turns import StopFlag
from envs import env_info

log = logging.getLogger("run")

FLAG = "--actors"
CLONE = Path(__file__).resolve().parent.parent
POLL_SECONDS = 0.5  # in which a wait notices that the run is to end
LEAVE_SECONDS = 10.0  # for the end of a rollout, if the run is to end


class RayCrew(Crew):
    """All environments are those of actors, each a process on a node of a Ray cluster; the learner has none.

    An actor that dies is replaced by a new one, with new environments. One that dies before it has returned a rollout
    is not, because that would go on for ever.

    Args:
        spec: what all actors have in common.
        policy: whose weights they act with.
        rollout: that they fill.
        stop: the run is to end.
    """

    def __init__(self, cluster: Cluster, spec: RemoteSpec, policy: Policy, rollout: Rollout, stop: StopFlag) -> None:
        super().__init__()
        self.policy, self.rollout, self.stop = policy, rollout, stop
        self.info, n = env_info(spec.env_id), cluster.n_actors
        self.specs = [spec_for(spec, share(spec.config.n_envs, n, i), first=i == 0) for i in range(n)]
        self.n_watched = self.specs[0].n_shown
        self._connection = contextlib.ExitStack()
        self.ray = self._connection.enter_context(connected(cluster.on, FLAG, n, warns=False))
        self.ray.cloudpickle.register_pickle_by_value(ray_actor)  # the nodes cannot import it yet
        self.actors: list[Any] = []
        self.seed, self.n_replaced = 0, 0
        self._untried = set(range(n))  # actors that have not returned a rollout yet
        self._asked: dict[Any, tuple[int, Callable[[int, Parcel], None]]] = {}  # actors, by what they are to return
        self._weights: Any = None  # of the present rollout, in Ray's store
        self._acts = False
        self._found = Found()

    def begin(self, seed: int) -> None:
        """Starts the actors and their environments; environment i of the rollout has the seed `seed + i`."""
        self.seed, self.actors = seed, [self._started(spec) for spec in self.specs]
        for index in range(len(self.actors)):
            self._begin(index, seed)

    def act(self, given_up: NDArray[np.bool_] | None) -> None:
        """Lets the actors act with the policy as it is now."""
        self._weights = self.ray.put(weights_of(self.policy))  # for all actors; each node fetches one copy
        self._acts, self._found = True, Found(anew=np.zeros(self.rollout.rewards.shape[1], np.bool_))
        for index, spec in enumerate(self.specs):
            self._act(index, None if given_up is None else given_up[spec.mine])
        r = self.rollout
        r.observations[0], r.memory[0] = r.observations[-1], r.memory[-1]

    def wait(self) -> Found:
        """Waits until all actors have begun or acted.

        Raises:
            CrewBroken: the run is to end meanwhile.
            UserError: an actor cannot go on. What an environment raises is raised here, too.
        """
        lost = (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError)
        start = f"the start of {len(self.actors)} actors on the cluster, each on a core of its own,"
        with doing("the actors' part of a step" if self._acts else start):
            while self._asked:
                ref = self._next()
                index, take = self._asked.pop(ref)
                try:
                    take(index, self.ray.get(ref))
                except lost as error:
                    self._replace(index, error)
                except self.ray.exceptions.RayTaskError as error:
                    raise error.cause from error
        return self._found

    def close(self) -> None:
        """Ends the actors."""
        for actor in self.actors:
            self.ray.kill(actor)
        self._connection.close()

    def _started(self, spec: RemoteSpec) -> Any:
        """Returns a new actor, which waits for a free core of any node."""
        actor = self.ray.remote(ray_actor.RayActor).options(num_cpus=1, max_restarts=0)
        return actor.remote(str(CLONE), as_plain(spec))

    def _begin(self, index: int, seed: int) -> None:
        self._asked[self.actors[index].begin.remote(seed)] = index, self._take_first

    def _act(self, index: int, given_up: NDArray[np.bool_] | None) -> None:
        noise = np.ascontiguousarray(self.rollout.noise[:, self.specs[index].mine])
        self._asked[self.actors[index].act.remote(self._weights, noise, given_up)] = index, self._take_rollout

    def _next(self) -> Any:
        """Waits for the next of what the actors return."""
        until = None
        while True:
            ready, _ = self.ray.wait(list(self._asked), timeout=POLL_SECONDS)
            if ready:
                return ready[0]
            if self.stop.is_set():
                until = until or time.monotonic() + (LEAVE_SECONDS if self._acts else 0)
                if time.monotonic() > until:
                    raise CrewBroken("the run ends before its actors have answered")

    def _take_first(self, index: int, parcel: Parcel | str) -> None:
        """Takes the first observations of an actor; one that replaces another then acts at once."""
        if isinstance(parcel, str):
            raise UserError(parcel)
        r, mine = self.rollout, self.specs[index].mine
        unpack_first(parcel, r, mine)
        if self._acts:
            r.observations[0, mine], r.memory[0, mine] = r.observations[-1, mine], 0.0
            self._act(index, None)

    def _take_rollout(self, index: int, parcel: Parcel) -> None:
        unpack(parcel, self.rollout, self.specs[index].mine, self.info)
        self._untried.discard(index)
        if parcel.views:
            views = [decode_view(view) for view in parcel.views]  # (T, H, W, 3) each
            self._found = self._found._replace(views=list(np.stack(views, axis=1)))

    def _replace(self, index: int, error: Exception) -> None:
        """Starts an actor in place of one that has died. Raises UserError if that one had not returned a rollout."""
        if index in self._untried:
            raise UserError(
                f"actor {index} of {len(self.actors)} has died before it returned a rollout ({reason_of(error)}); see "
                "the logs of its node, and give more memory, or fewer --n_envs."
            ) from error
        self._untried.add(index)
        self.n_replaced += 1
        log.warning("Actor %d has died, and a new one takes its place, in new environments.", index)
        self.actors[index] = self._started(self.specs[index])
        self._begin(index, training_seed(self.seed, self.n_replaced))
        assert self._found.anew is not None
        self._found.anew[self.specs[index].mine] = True
