"""Several processes that share the policy's work: the same learning as one alone, and no orphans."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from a2c.config import PolicyConfig
from a2c.crew import Arena, allocate, crew_size, share
from a2c.follower import start_crew
from a2c.model import Policy
from a2c.worker import PolicyWorker, WorkerSpec, run_worker
from commands.flags import parse
from drlhp.networks.device import CPU
from drlhp.runtime.channels import Channels
from drlhp.runtime.processes import Children
from drlhp.runtime.pulse import Pulse
from envs import env_info
from tests.support.commands import (
    BRIEF_PPO,
    DEADLINE,
    DOT,
    PONG,
    UNEVALUATED,
    alive,
    children,
    here,
    policy_steps,
    progress,
    started,
    wait_for,
)

ENDURO = "EnduroNoFrameskip-v4"


class DistantEnv(gymnasium.Env):
    """A simulator at the other end of a line, which is cut at the tenth step."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        if self.steps == 10:
            raise ConnectionResetError("the simulator has hung up")
        return np.zeros(3, np.float32), 0.0, False, False, {}


@contextmanager
def leader(
    folder: Path, config: PolicyConfig, size: int, env_id: str = DOT, pulses: dict[str, Pulse] | None = None
) -> Iterator[PolicyWorker]:
    """A worker on the true reward in this process, with the others in theirs, whose pulses go to `pulses`."""
    channels = Channels.create(synchronous=False, take_turns=False)
    children = Children(channels)
    followers = start_crew(children, env_id, config, size)
    worker = PolicyWorker(WorkerSpec(env_id, config, folder, 0, followers=followers), channels)
    if pulses is not None:
        pulses |= children.patience.watched
    try:
        yield worker
    finally:
        worker.close()
        children.stop()
    assert [process.exitcode for process in children.processes.values()] == [0] * (size - 1)


def flat(worker: PolicyWorker) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in worker.policy.parameters()])


@pytest.mark.parametrize(
    ("algo", "network"), [("a2c", "nature"), ("ppo", "nature"), ("a2c", "nature_lstm"), ("ppo", "nature_lstm")]
)
def test_a_crew_acts_and_learns_as_one_process_does(algo: str, network: str, tmp_path: Path) -> None:
    """Three processes with unequal shares of their environments; sums in another order differ in their last bits."""
    words = ["train_policy_with_original_rewards", DOT, "--algo", algo, "--n_steps", "12"]
    words += ["--policy_network", network]
    n_envs = 5 if algo == "a2c" else 7  # of which PPO's minibatches are not too small for its threshold below
    config = replace(parse([*words, *UNEVALUATED]).policy, n_envs=n_envs, ppo_epochs=2, ppo_minibatches=2)
    rollouts, weights, before = [], [], []
    for size in (1, 3):
        with leader(tmp_path / str(size), config, size) as worker:
            before.append(flat(worker))
            worker.step()
            rollouts.append({name: array.copy() for name, array in vars(worker.runner.rollout).items()})
            weights.append(flat(worker))
            worker.step()
            assert worker.steps == 2 * 12 * n_envs
            observations = worker.runner.rollout.observations[-1]
            assert all(picture.any() for picture in observations), "everybody's environments go on"
    for name in ("observations", "noise", "actions", "true_rewards", "terminated", "valid"):
        assert np.array_equal(rollouts[0][name], rollouts[1][name]), name
    for name in ("values", "last_values", "log_probs", "advantages", "returns"):
        np.testing.assert_allclose(rollouts[0][name], rollouts[1][name], atol=0.02, err_msg=name)
    assert torch.equal(*before)
    moved, moved_by_crew = weights[0] - before[0], weights[1] - before[1]
    similarity = float(torch.cosine_similarity(moved, moved_by_crew, dim=0))
    assert similarity > (0.99 if algo == "a2c" else 0.9), (
        "Adam's first steps are as long for tiny gradients as for large"
    )
    assert float(moved_by_crew.norm()) == pytest.approx(float(moved.norm()), rel=0.03)


def test_nobody_is_said_to_start_for_ever(tmp_path: Path) -> None:
    """A process of the crew that waits for its leader, as during pretraining, takes no time of its own."""
    words = ["train_policy_with_original_rewards", DOT, "--n_steps", "2", "--n_envs", "2", *BRIEF_PPO]
    pulses = dict[str, Pulse]()
    with leader(tmp_path, parse([*words, *UNEVALUATED]).policy, 2, pulses=pulses) as worker:
        worker.step()
        deadline = time.monotonic() + DEADLINE
        while pulses["a2c 2"].what and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not pulses["a2c 2"].what


def test_a_crew_reads_vectors_by_the_same_running_statistics(tmp_path: Path) -> None:
    """Its leader alone computes the updates, so all is as without it, but for the last bits of smaller batches."""
    words = ["train_policy_with_original_rewards", "Reacher"]
    changes = {"n_envs": 8, "n_steps": 60, "ppo_epochs": 2, "eval_interval_million_timesteps": 0}
    config = replace(parse(words).policy, **changes)  # type: ignore[arg-type]
    rollouts, weights = [], []
    for size in (1, 2):
        with leader(tmp_path / str(size), config, size, "Reacher-v1") as worker:
            for _ in range(3):
                worker.step()
            rollouts.append({name: array.copy() for name, array in vars(worker.runner.rollout).items()})
            weights.append(flat(worker))
            assert isinstance(worker.policy, Policy) and worker.policy.statistics is not None
            assert int(worker.policy.statistics.count) == 3 * 60 * 8
    assert rollouts[0]["states"][:, 7].any()
    for name in ("observations", "actions", "states", "true_rewards", "values", "log_probs", "advantages"):
        np.testing.assert_allclose(rollouts[0][name], rollouts[1][name], atol=2e-3, err_msg=name)
    torch.testing.assert_close(*weights, atol=2e-3, rtol=0)


def test_learning_rate_and_entropy_bonus_fall_on_lines(tmp_path: Path) -> None:
    """Half of each at half of its way, nothing after it: then the policy stays as it is."""
    lines: dict[str, Any] = {
        "lr": 0.1,
        "lr_zero_million_timesteps": 80e-6,
        "ent_coef": 0.3,
        "ent_coef_zero_million_timesteps": 160e-6,
    }
    config = replace(PolicyConfig(), n_envs=2, n_steps=20, log_interval=1, eval_interval_million_timesteps=0, **lines)
    with leader(tmp_path, config, 2) as worker:
        before = [flat(worker)]
        for _ in range(4):
            worker.step()
            before.append(flat(worker))
    moved = [not torch.equal(a, b) for a, b in itertools.pairwise(before)]
    assert moved == [True, True, False, False]
    curves = EventAccumulator(str(tmp_path / "events" / "a2c")).Reload()
    names = ("policy/learning_rate", "policy/entropy_weight")
    rates, weights = ([event.value for event in curves.Scalars(name)] for name in names)
    assert rates == pytest.approx([0.1, 0.05, 0, 0])
    assert weights == pytest.approx([0.3, 0.225, 0.15, 0.075])


@pytest.mark.parametrize("whole_games", [False, True])
def test_each_process_trains_on_whole_games_of_enduro_if_asked(whole_games: bool, tmp_path: Path) -> None:
    steps = 3000 // 4 + 10  # the no-ops and FIRE at the start come on top
    config = PolicyConfig("ppo", whole_games=whole_games, n_envs=2, n_steps=steps, eval_interval_million_timesteps=0)
    config = replace(config, policy_network="feature_points")  # the fastest
    with leader(tmp_path, config, 2, ENDURO) as worker:
        worker.runner.collect()
        ended = (worker.runner.rollout.truncated | worker.runner.rollout.terminated).any(0)
    assert list(ended) == [not whole_games] * 2


def test_episodes_that_are_given_up_end_at_once_in_each_process(tmp_path: Path) -> None:
    config = PolicyConfig("ppo", n_envs=4, n_steps=20, eval_interval_million_timesteps=0)
    with leader(tmp_path, config, 2, "Reacher") as worker:
        worker.runner.collect()
        given_up = np.array([True, False, False, True])
        rollouts = [worker.runner.collect(which)[0].truncated.copy() for which in (given_up, None)]
    # Reacher's own are of 50 steps, of which each has a quarter less before it.
    ends = [np.flatnonzero(np.concatenate(rollouts)[:, i]).tolist() for i in range(4)]
    assert ends == [[0], [17], [4], [0]], "and no episode that began then"


def test_an_end_of_its_own_is_not_followed_by_that_of_giving_up(tmp_path: Path) -> None:
    config = PolicyConfig("ppo", n_envs=1, n_steps=50, eval_interval_million_timesteps=0)
    with leader(tmp_path, config, 1, "Reacher") as worker:
        assert worker.runner.collect()[0].truncated[-1].all()
        rollout, _ = worker.runner.collect(np.array([True]))
        assert not rollout.truncated.any() and not rollout.valid[0].any()


@pytest.mark.parametrize(
    ("first_episode_steps", "n_steps", "shortest"), [(0, 60, 1000), (45, 60, 60), (80, 60, 120), (10, 30, 60)]
)
def test_a_body_that_lies_there_begins_anew(
    first_episode_steps: int, n_steps: int, shortest: int, tmp_path: Path
) -> None:
    """A Walker's untrained policy falls within a second, and stays there; its clips are of 45 steps."""
    config = PolicyConfig(
        "ppo",
        n_envs=4,
        n_steps=n_steps,
        million_timesteps=1.0,
        ppo_epochs=1,
        ppo_minibatches=1,
        first_episode_steps=first_episode_steps,
        eval_interval_million_timesteps=0,
    )
    with leader(tmp_path, config, 2, "Walker") as worker:
        ends = list[np.ndarray]()
        for _ in range(24 if first_episode_steps else 22):  # in which one episode of the whole length ends
            worker.step()
            ends.append(worker.runner.rollout.truncated.copy())
            lengths = [np.diff(np.flatnonzero(column)) - 1 for column in np.concatenate(ends).T]
            longest_of_each = [length.max() for length in lengths if len(length)]
            if first_episode_steps and len(longest_of_each) == 4 and max(longest_of_each) > shortest:
                break
    if first_episode_steps:
        assert len(longest_of_each) == 4
        assert shortest - 5 <= min(length.min() for length in lengths) <= shortest < max(longest_of_each)
    else:
        assert set(longest_of_each) == {shortest}


def test_who_works_alone() -> None:
    config, cpu = PolicyConfig(), CPU
    assert crew_size(env_info(PONG), config, cpu, 2) == 2
    assert crew_size(env_info(PONG), config, cpu, 64) == 4, "four environments each"
    assert crew_size(env_info(PONG), replace(config, n_envs=3), cpu, 2) == 1
    assert crew_size(env_info(PONG), replace(config, policy_network="feature_points"), cpu, 2) == 1
    assert crew_size(env_info(PONG), config, torch.device("cuda"), 2) == 1
    assert crew_size(env_info("CartPole-v1"), config, cpu, 2) == 1
    assert crew_size(env_info("Hopper"), config, cpu, 2) == 2


def test_every_environment_belongs_to_one_process() -> None:
    for n_envs in (7, 16, 33):
        parts = [share(n_envs, 3, index) for index in range(3)]
        assert [i for part in parts for i in range(part.start, part.stop)] == list(range(n_envs))


def test_arenas_on_the_same_memory_hand_out_the_same_arrays() -> None:
    context = Channels.create(synchronous=False, take_turns=False).context
    assert context is not None
    memory = allocate(4096, context)
    ours, theirs = Arena(memory), Arena(memory)
    last = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for arena in (ours, theirs):
        arena.array((3,), np.bool_)
    matrix, tensor = ours.array((5, 2)), ours.tensor(last)
    matrix[:], tensor[:] = 7, 3
    assert theirs.array((5, 2)).tolist() == matrix.tolist()
    seen = theirs.tensor(last)
    assert torch.equal(seen, tensor) and seen.stride() == last.stride()
    assert ours.used == theirs.used <= 4096
    alone = Arena()
    alone.array((2,))[:] = 1
    assert not alone.array((2,)).any()


def learns(folder: Path) -> bool:
    return any(float(row["steps"] or 0) > 0 for row in progress(folder))


@pytest.mark.parametrize(("name", "env_id"), [("a2c", DOT), ("a2c 2", "Reacher")])
def test_a_run_whose_crew_loses_one_ends_with_his_name_and_a_checkpoint(name: str, env_id: str, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    flags = ("--n_envs", "8", "--n_steps", "8", "--policy_network", "nature", *BRIEF_PPO, *UNEVALUATED)
    with started(tmp_path, "train_policy_with_original_rewards", env_id, *flags, "--run_name", "a") as process:
        wait_for(lambda: learns(folder), process)
        parts = children(process.pid)
        if "a2c 2" not in parts:
            pytest.skip("on one core the policy's process works alone")
        os.kill(parts[name], signal.SIGKILL)
        output, _ = process.communicate(timeout=90)
    assert process.returncode == 1 and "Traceback" not in output
    assert f"the {name} process was killed by SIGKILL" in output
    deadline = time.monotonic() + 40
    while any(alive(pid) for pid in parts.values()):  # nothing is left running
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if name == "a2c 2":
        steps = policy_steps(folder)
        assert steps > 0, "what was learned is kept"
        more = ("--million_timesteps", str((steps + 200) / 1e6), "--n_envs", "1")
        here(tmp_path, "--resume", str(folder), *more)
        assert policy_steps(folder) >= steps + 200


def test_an_environment_whose_line_is_cut_is_not_taken_for_a_crew_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would end the process as if it had finished."""
    spec = EnvSpec("Distant-v0", entry_point="tests.a2c.test_crew:DistantEnv", max_episode_steps=50)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    config = PolicyConfig("a2c", n_envs=1, eval_interval_million_timesteps=0)
    channels = Channels.create(synchronous=True, take_turns=False)
    with pytest.raises(ConnectionResetError, match="the simulator has hung up"):
        run_worker(channels, WorkerSpec("Distant-v0", config, tmp_path, 0))
