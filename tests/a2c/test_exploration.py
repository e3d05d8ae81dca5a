"""Exploration without labels: states far from those seen are worth more, and a policy learns to reach them."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from a2c.config import PPO_DEFAULTS, PolicyConfig
from a2c.exploration import KEPT, NEIGHBOUR, REWARD_STD, StateEntropy, described, neighbour_distance
from a2c.rewards import disagreement_bonus, with_bonus
from a2c.worker import PolicyWorker, WorkerSpec
from drlhp.runtime.channels import Channels
from envs import make_vec_env


def test_the_distance_is_that_to_the_k_th_nearest_other_state() -> None:
    seen = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    scaled = (seen / seen.std(0)).numpy()
    for i, distance in enumerate(neighbour_distance(seen, seen)):
        others = np.sort(np.linalg.norm(np.delete(scaled, i, 0) - scaled[i], axis=1))
        assert float(distance) == pytest.approx(others[NEIGHBOUR - 1], abs=1e-4)


def test_the_first_state_alone_is_worth_a_number() -> None:
    assert np.isfinite(StateEntropy(0).rewards(torch.ones(1, 3))).all()


def test_what_is_new_is_worth_more_until_it_is_known() -> None:
    explorer, rng = StateEntropy(0), np.random.default_rng(0)
    usual = torch.from_numpy(rng.normal(size=(400, 2)).astype(np.float32))
    explorer.rewards(usual)
    new = usual.clone()
    new[:20] += 8
    first = explorer.rewards(new)
    assert first[:20].mean() > first[20:].mean() + 2 * REWARD_STD
    for _ in range(2 * KEPT // 256):
        explorer.rewards(usual[:256] + 8)  # by now the one place is as well known as the other
    later = explorer.rewards(new)
    assert later[:20].mean() < first[:20].mean() - REWARD_STD


def test_pictures_are_compared_by_their_newest_frame() -> None:
    pictures = torch.zeros(2, 4, 84, 84, dtype=torch.uint8)
    pictures[1, :3] = 255
    assert torch.equal(*described(pictures))
    pictures[1, 3, :7, :7] = 255
    assert described(pictures)[1].nonzero().tolist() == [[0]]


def positions_reached(tmp_path: Path, million_timesteps: float) -> float:
    """How far the car gets from the bottom of its valley, out of which it needs speed, after so much exploration."""
    config = PolicyConfig(
        algo="ppo",
        **{**PPO_DEFAULTS, "n_steps": 64, "lr": 5e-3, "ppo_minibatches": 4},  # type: ignore[arg-type]
        n_envs=8,
        million_timesteps=0.0005,
        gamma=0.95,
        explore_million_timesteps=million_timesteps,
        eval_interval_million_timesteps=0,
    )
    spec = WorkerSpec("MountainCar-v0", config, tmp_path, 1)
    worker = PolicyWorker(spec, Channels.create(synchronous=True, take_turns=False))
    reached = []
    while not worker.finished:
        worker.step()
        reached.append(np.abs(worker.runner.rollout.observations[..., 0] + 0.5).max())
    worker.close()
    return float(np.mean(reached[-3:]))


def test_a_policy_that_explored_gets_farther_than_a_random_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = functools.partial(make_vec_env, in_process=True)  # the same environments without their processes' imports
    monkeypatch.setattr("a2c.environments.make_vec_env", here)
    assert positions_reached(tmp_path / "a", 0.01) > 1.5 * positions_reached(tmp_path / "b", 0)


@pytest.mark.parametrize(("steps", "weight"), [(0, 0.5), (500, 0.25), (1000, 0.0)])
def test_the_bonus_is_the_deviation_of_the_members_and_falls_to_nothing(steps: int, weight: float) -> None:
    """RUNE's (Liang et al. 2022), whose weight falls as the run goes on."""
    bonus = disagreement_bonus(PolicyConfig(disagreement_bonus=0.5), steps, 1000)
    predicted = np.array([[[1.0, 2.0]], [[3.0, 2.0]], [[8.0, 2.0]]], np.float32)  # (members, T, N)
    deviation = np.sqrt(((1 - 4) ** 2 + (3 - 4) ** 2 + (8 - 4) ** 2) / 3)
    assert with_bonus(predicted, bonus) == pytest.approx(np.array([[4 + weight * deviation, 2.0]]))
