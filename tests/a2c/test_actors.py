"""Actors on a real Ray cluster: they learn what a crew of this machine learns, and one that is killed is replaced."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from a2c.config import PolicyConfig
from a2c.crew import Cluster
from a2c.follower import start_crew
from a2c.ray_crew import RayCrew
from a2c.worker import PolicyWorker, WorkerSpec
from drlhp.errors import UserError
from drlhp.runtime.channels import Channels, drain
from drlhp.runtime.leash import descendants
from drlhp.runtime.processes import Children
from tests.support.commands import (
    BRIEF_PPO,
    DEADLINE,
    DOT,
    UNEVALUATED,
    alive,
    one_sentence,
    policy_steps,
    refused,
    started,
)
from tests.support.ray_cluster import RayCluster

pytestmark = pytest.mark.xdist_group("clusters")

CARTPOLE, TRUE_REWARDS = "CartPole-v1", "train_policy_with_original_rewards"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes of one core, so that each of two actors is on a node of its own."""
    with contextlib.closing(RayCluster.start(1, 1)) as cluster:
        yield cluster


@pytest.fixture
def connecting(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> RayCluster:
    """The cluster, whose address and token this process has."""
    for name, value in (cluster.variables() | {"RAY_ADDRESS": cluster.address}).items():
        monkeypatch.setenv(name, value)
    return cluster


@contextlib.contextmanager
def working(folder: Path, config: PolicyConfig, env_id: str, actors: int, **spec: Any) -> Iterator[PolicyWorker]:
    """A worker in this process, with a crew of two on this machine, itself included, or with so many actors."""
    channels = Channels.create(synchronous=False, take_turns=False)
    children = Children(channels)
    if actors:
        spec["cluster"] = Cluster("ray", actors)
    else:
        spec["followers"] = start_crew(children, env_id, config, 2)
    torch.set_num_threads(1)  # as in a process of the policy
    worker = PolicyWorker(WorkerSpec(env_id, config, folder, 0, **spec), channels)
    try:
        yield worker
    finally:
        worker.close()
        children.stop()


def actors_of(cluster: RayCluster) -> list[int]:
    """The processes of actors."""
    found = []
    for pid in (child for raylet in cluster.raylets for child in descendants(raylet)):
        with contextlib.suppress(OSError):
            if "RayActor" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return found


def wait_until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def evaluations(worker: PolicyWorker, n: int) -> list[dict[str, float]]:
    """What the worker's first n evaluations have found."""
    found: list[dict[str, float]] = []

    def all_found() -> bool:
        reports = [report for report in drain(worker.channels.reports) if report.source == "evaluation"]
        found.extend(report.values for report in reports if "sampled_mean" in report.values)
        return len(found) == n

    wait_until(all_found)
    return found


def weights(worker: PolicyWorker) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in worker.policy.state_dict().values()])


def test_actors_give_the_same_weights_as_a_crew_and_one_that_is_killed_is_replaced(
    tmp_path: Path, connecting: RayCluster
) -> None:
    """Over ends of episodes, bit for bit: vectors travel as they are, and so do the weights of their networks."""
    config = PolicyConfig("ppo", n_envs=4, n_steps=32, ppo_epochs=2, ppo_minibatches=2, eval_episodes=2)
    config = replace(config, million_timesteps=1.0, eval_interval_million_timesteps=0.001)
    found, n_ended = [], 0
    for actors in (0, 2):
        folder = tmp_path / str(actors)
        with working(folder, config, CARTPOLE, actors) as worker:
            for _ in range(10):
                worker.step()
                r = worker.runner.rollout
                n_ended += int((r.terminated | r.truncated).sum())
            found.append((weights(worker), list(worker.runner.finished_returns), evaluations(worker, 2)))
            if actors:
                check_replacement(worker, connecting)
    assert n_ended > 20
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]
    wait_until(lambda: not actors_of(connecting))


def check_replacement(worker: PolicyWorker, cluster: RayCluster) -> None:
    """Kills the second actor: its environments begin anew, those of the first go on, and so does the training."""
    r, crew = worker.runner.rollout, worker.crew
    assert isinstance(crew, RayCrew)
    lost = crew.ray.get(crew.actors[1].__ray_call__.remote(lambda _: os.getpid()))  # it may be on either node
    kept, before, updates = r.observations[-1].copy(), weights(worker), worker.updates
    os.kill(lost, signal.SIGKILL)
    worker.step()
    assert np.array_equal(r.observations[0, :2], kept[:2])
    assert not np.array_equal(r.observations[0, 2:], kept[2:])
    assert (np.abs(r.observations[0, 2:]) <= 0.05).all() and r.valid[0, 2:].all(), "as CartPole begins"
    assert np.isfinite(r.log_probs).all() and r.log_probs.all()
    assert worker.updates == updates + 1 and not torch.equal(weights(worker), before)
    worker.step()
    second, _ = sorted(actors_of(cluster), key=lambda pid: pid == lost)
    assert lost not in actors_of(cluster) and len(actors_of(cluster)) == 2 and alive(second)


def test_segments_and_recorded_episodes_are_those_of_a_crew(tmp_path: Path, connecting: RayCluster) -> None:
    """Pixels, of which only the newest frames travel, over the ends of episodes; people watch the first environment."""
    config = PolicyConfig(n_envs=4, n_steps=90, eval_interval_million_timesteps=0)
    found = []
    for actors in (0, 2):
        options: dict[str, Any] = {"n_watched": 2, "render_episodes": True}
        with working(tmp_path / str(actors), config, DOT, actors, **options) as worker:
            segments, episodes, rollouts = [], [], []
            for _ in range(3):
                rollout, ended = worker.runner.collect()
                episodes += ended
                segments += [candidate.segment for candidate in worker.runner.cut(0)]
                rollouts.append({name: array.copy() for name, array in vars(rollout).items()})
            found.append((segments, episodes, rollouts))
    (segments, episodes, rollouts), (theirs, their_episodes, their_rollouts) = found
    assert len(segments) >= 18 and [one.view for one in segments] == [one.view for one in theirs]
    assert all(one.view for one in segments)
    assert [one.content_id() for one in segments] == [one.content_id() for one in theirs]
    assert len(episodes) == 1 and episodes == their_episodes
    for ours, those in zip(rollouts, their_rollouts, strict=True):
        for name in ("observations", "actions", "true_rewards", "terminated", "truncated", "valid"):
            assert np.array_equal(ours[name], those[name]), name
        for name in ("values", "last_values", "log_probs"):  # the actors' convolutions have weights in bfloat16
            np.testing.assert_allclose(ours[name], those[name], atol=0.02, err_msg=name)


def test_a_run_that_is_stopped_leaves_no_actor(tmp_path: Path, connecting: RayCluster) -> None:
    few = ("--n_envs", "2", "--n_steps", "8", "--policy_ckpt_interval", "1")
    flags = ("--actors", "ray", *few, *BRIEF_PPO, *UNEVALUATED, "--run_name", "a")
    for number, status in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        with started(tmp_path / number.name, TRUE_REWARDS, CARTPOLE, *flags) as process:
            folder = tmp_path / number.name / "a"
            wait_until(lambda: policy_steps(folder) > 0 or process.poll() is not None)  # noqa: B023
            assert len(actors_of(connecting)) == 1
            process.send_signal(number)
            output, _ = process.communicate(timeout=DEADLINE)
        assert process.returncode == status and "Traceback" not in output
        wait_until(lambda: not actors_of(connecting))


def test_an_actor_that_ends_before_it_returned_a_rollout_ends_the_run_and_is_not_replaced(
    tmp_path: Path, connecting: RayCluster
) -> None:
    config = PolicyConfig("ppo", n_envs=1, n_steps=32, eval_interval_million_timesteps=0)
    told = r"actor 0 of 1 has died before it returned a rollout .* fewer --n_envs"
    with working(tmp_path, config, "tests.support.faulty:Leave-v0", 1) as worker, pytest.raises(UserError) as found:
        worker.step()
    assert re.match(told, str(found.value)), found.value
    assert "\n" not in str(found.value), "one sentence"
    wait_until(lambda: not actors_of(connecting))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--actors", "slurm"), "--actors takes `ray` for the Ray cluster of this machine, or ray://HOST:10001"),
        (("--actors", "ray://127.0.0.1:1"), "no Ray cluster answers at 127.0.0.1:1 (Connection refused); start one"),
        (("--n_actors", "2"), "--n_actors is for actors on a cluster; give --actors ray with it"),
        (("--actors", "ray", "--n_actors", "17"), "--n_actors must not exceed the 16 environments that they share"),
        (("--actors", "ray", "--synchronous"), "--synchronous runs all parts in one process"),
    ],
)
def test_what_cannot_work_is_one_sentence(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    assert sentence in one_sentence(refused(tmp_path / "runs", TRUE_REWARDS, CARTPOLE, *words))
    assert not (tmp_path / "runs").exists(), "nothing is made"


def test_without_the_package_the_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    told = refused(tmp_path / "runs", TRUE_REWARDS, CARTPOLE, "--actors", "ray")
    assert "run `python -m pip install 'ray[client]'`" in one_sentence(told)
