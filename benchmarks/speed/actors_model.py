"""A model of one learner with many actors: parts that were measured one by one, replayed for clusters that were not.

It takes for granted that actors are alike, that each has a core, that the learner computes on one core, and that
nothing else is on the link. An update begins when all actors have answered, as in the program.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ACTORS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ACTORS_PER_NODE = 16
LINKS = {"1 Gbit/s": 125e6, "10 Gbit/s": 1.25e9}  # bytes/s of the learner's link
FASTER = 10  # a learner so many times as fast, which is assumed and not measured
UPDATES = 20  # that are replayed
BUSY = 0.9  # of the time, from which on the learner is called saturated


@dataclass(frozen=True)
class Parts:
    """What was measured, in processor seconds of one core, and in bytes."""

    n_envs: int  # of each actor
    n_steps: int
    act: list[float]  # a rollout of one actor, with its packing; each of several
    take_weights: float  # of one actor, each update
    publish: float  # of the learner, each update
    call: float  # of the learner, each update and actor: what Ray takes for an order and its answer
    unpack: float  # of the learner, each step
    update: float  # of the learner, each step
    bytes_up: float  # each step
    bytes_weights: int  # each update and node

    @property
    def steps(self) -> int:
        """Agent steps of an actor in an update."""
        return self.n_envs * self.n_steps

    @classmethod
    def measure(cls, config: Any, rounds: int) -> Parts:
        """Measures all parts in this process, with Pong and random weights, and the settings of a run.

        Args:
            config: the `PolicyConfig` of a run, whose environments one actor has here.
        """
        learner = _Learner(config)
        follower = learner.follower
        weights, parcels, act = learner.weights(), [], []
        for _ in range(rounds + 1):
            noise = learner.policy.noise(config.n_steps, config.n_envs)
            begin = time.process_time()
            parcels.append(follower.act(weights, noise, None))
            act.append(time.process_time() - begin)
        seconds_of, steps = _of_one_call(rounds), config.n_envs * config.n_steps
        unpacking = seconds_of(lambda: learner.take(parcels[-1]))
        updating = seconds_of(learner.update)
        taking = seconds_of(lambda: learner.give(weights))
        follower.close()
        publish, call = _of_ray(learner.weights, parcels[-1], rounds)
        return cls(
            n_envs=config.n_envs,
            n_steps=config.n_steps,
            act=[one - taking for one in act[1:]],
            take_weights=taking,
            publish=publish,
            call=call,
            unpack=unpacking / steps,
            update=updating / steps,
            bytes_up=statistics.mean(len(parcel.content) for parcel in parcels[1:]) / steps,
            bytes_weights=sum(array.nbytes for array in weights),
        )


class _Learner:
    """A learner on the true reward of Pong, and one actor, in this process and without a cluster."""

    def __init__(self, config: Any) -> None:
        import torch

        from a2c.crew import Arena
        from a2c.learner import RolloutLearner
        from a2c.model import Policy
        from a2c.parcels import unpack_first
        from a2c.remote import RemoteFollower, RemoteSpec
        from a2c.runner import Rollout
        from benchmarks.speed.parts import PONG
        from envs import env_info

        torch.set_num_threads(1)
        self.config, self.info, self.mine = config, env_info(PONG), slice(0, config.n_envs)
        self.policy = Policy(self.info, config.policy_network)
        self.learner = RolloutLearner(self.info, config, self.policy)
        shape = (config.n_steps, config.n_envs)
        self.rollout = Rollout.allocate(self.info, *shape, Arena(), self.policy.channels_last)
        self.follower = RemoteFollower(RemoteSpec(PONG, config, self.mine, torch_version=torch.__version__))
        unpack_first(self.follower.begin(0), self.rollout, self.mine)
        self.rollout.observations[0], self.rollout.valid[:] = self.rollout.observations[-1], True

    def weights(self) -> list[np.ndarray]:
        from a2c.parcels import weights_of

        return weights_of(self.policy)

    def give(self, weights: list[np.ndarray]) -> None:
        from a2c.parcels import take_weights

        take_weights(self.follower.policy, weights)

    def take(self, parcel: Any) -> None:
        from a2c.parcels import unpack

        unpack(parcel, self.rollout, self.mine, self.info)

    def update(self) -> None:
        observations = self.learner.observations(self.rollout)
        self.learner.update(self.rollout, self.rollout.true_rewards, observations, self.config)


def _of_one_call(rounds: int) -> Callable[[Callable[[], Any]], float]:
    def seconds(body: Callable[[], Any]) -> float:
        found = []
        for _ in range(rounds + 1):
            begin = time.process_time()
            body()
            found.append(time.process_time() - begin)
        return statistics.median(found[1:])

    return seconds


class Echo:
    """An actor that answers with what it was made with."""

    def __init__(self, parcel: Any) -> None:
        self.parcel = parcel

    def act(self, *_: Any) -> Any:
        """Returns it."""
        return self.parcel


def _of_ray(weights: Callable[[], Any], parcel: Any, rounds: int) -> tuple[float, float]:
    """Returns this process's time to publish weights, and for an order with its answer."""
    from drlhp.runtime.ray_connection import connected

    with connected("ray", "--actors", 1) as ray:
        echo = ray.remote(Echo).options(num_cpus=1).remote(tuple(parcel))
        noise, seconds_of = np.zeros((5, 8, 6), np.float32), _of_one_call(10 * rounds)
        held = [ray.put(weights())]
        ray.get(echo.act.remote(held[0], noise, None))

        def publish() -> None:
            held[0] = ray.put(weights())

        def call() -> None:
            asked = echo.act.remote(held[0], noise, None)
            ray.wait([asked])
            ray.get(asked)

        return seconds_of(publish), seconds_of(call)


@dataclass(frozen=True)
class Point:
    """What the model says of so many actors."""

    n_actors: int
    steps_per_second: float
    learner_busy: float  # share of the time
    up_per_second: float  # bytes to the learner
    down_per_second: float  # bytes from it


def replay(parts: Parts, n_actors: int, link: float, faster: float = 1.0) -> Point:
    """Replays some updates: each actor's rollouts are drawn from those measured, and come in one after another.

    Args:
        link: bytes/s of the learner's link, each way.
        faster: how many times as fast as the one measured the learner is, in all but Ray's part.
    """
    rng, n_nodes = np.random.default_rng(n_actors), -(-n_actors // ACTORS_PER_NODE)
    down, up = parts.bytes_weights * n_nodes, parts.bytes_up * parts.steps
    now = busy = 0.0
    for _ in range(UPDATES):
        ordered = parts.publish / faster + n_actors * parts.call / 2
        sent = now + ordered + down / link
        done = sent + parts.take_weights + rng.choice(parts.act, n_actors)
        wire, learner = sent, now + ordered
        for at in np.sort(done):
            wire = max(wire, at) + up / link  # one after another over the link
            taken = parts.call / 2 + parts.unpack * parts.steps / faster
            learner = max(learner, wire) + taken
            busy += taken
        learning = parts.update * parts.steps * n_actors / faster
        busy += ordered + learning
        now = learner + learning
    per_second = UPDATES / now
    steps = parts.steps * n_actors
    return Point(n_actors, steps * per_second, busy / now, up * n_actors * per_second, down * per_second)


def curves(parts: Parts, link: float) -> dict[str, list[dict[str, float]]]:
    """Returns the points of the learner as measured, and of the faster one."""
    return {name: [vars(point) for point in points] for name, points in _curves(parts, link).items()}


def _curves(parts: Parts, link: float) -> dict[str, list[Point]]:
    speeds = {"learner as measured": 1.0, f"learner {FASTER} times as fast (assumed)": float(FASTER)}
    return {name: [replay(parts, n, link, faster) for n in ACTORS] for name, faster in speeds.items()}


def saturated(points: Sequence[Point]) -> Point | None:
    """Returns the first point at which the learner is busy nearly all the time."""
    return next((point for point in points if point.learner_busy >= BUSY), None)


def table(parts: dict[str, Parts]) -> str:
    """Returns the model's figures as a table for a page."""
    lines = [
        "| | link | learner | 1 actor | 16 actors | 256 actors | learner busy 90 % of the time from | to it, MB/s | "
        "from it, MB/s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for algo, part in parts.items():
        for link, rate in LINKS.items():
            for learner, points in _curves(part, rate).items():
                speeds = " | ".join(f"{points[ACTORS.index(n)].steps_per_second:,.0f}" for n in (1, 16, 256))
                full, last = saturated(points), points[-1]
                since = f"{full.n_actors} actors" if full else "never"
                lines.append(
                    f"| {algo.upper()} | {link} | {learner.removeprefix('learner ')} | {speeds} | {since} | "
                    f"{last.up_per_second / 1e6:.1f} | {last.down_per_second / 1e6:.1f} |"
                )
    return "\n".join(lines)


def draw(parts: dict[str, Parts], path: Path) -> None:
    """Draws the model's steps/s, and how busy its learner is, against the number of actors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.4), layout="constrained")
    figure.suptitle("A model: parts measured on one machine, replayed; no such cluster was measured")
    for (above, below), (algo, part) in zip(figure.subplots(2, len(parts)).T, parts.items(), strict=True):
        for link, rate in LINKS.items():
            for learner, points in _curves(part, rate).items():
                style = {"marker": ".", "linestyle": "-" if link == "10 Gbit/s" else ":", "label": f"{learner}, {link}"}
                above.plot(ACTORS, [point.steps_per_second for point in points], **style)
                below.plot(ACTORS, [100 * point.learner_busy for point in points], **style)
        above.set(title=algo.upper(), xscale="log", yscale="log", ylabel="agent steps/s")
        below.set(xscale="log", ylabel="learner busy, % of the time", xlabel="actors, one core each", ylim=(0, 105))
        for axes in (above, below):
            axes.set_xticks(ACTORS, [str(n) for n in ACTORS])
            axes.set_xticks([], minor=True)
            axes.grid(alpha=0.3)
        above.legend(fontsize="x-small")
    figure.savefig(path, dpi=110)
