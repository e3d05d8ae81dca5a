"""True rewards that are no numbers change nothing if people or a function answer."""

from __future__ import annotations

import math
from pathlib import Path

import gymnasium
import pytest
import torch
from gymnasium.envs.registration import EnvSpec

from tests.commands.test_snapshots import FEW, PREFERENCES, same, state
from tests.support.commands import answers, here, progress, refused

NAN, INF = math.nan, math.inf
POISON = {"NaN": [NAN], "a mixture": [1.0, NAN, 1e30, -INF, INF, 0.0]}
FAST_NETWORKS = ("--policy_network", "feature_points", "--reward_predictor_network", "feature_points")
TASKS = {
    "Poisoned-v0": ("PoisonedPole", "ppo", ("--n_steps", "32", "--ppo_epochs", "2", "--ppo_minibatches", "2")),
    "PoisonedPicture-v0": ("PoisonedPicture", "a2c", ("--disagreement_bonus", "0.1", *FAST_NETWORKS)),
}


def give(monkeypatch: pytest.MonkeyPatch, env_id: str, rewards: list[float]) -> None:
    """Registers an environment whose true rewards are these, under the same id as before."""
    place = f"tests.support.poisoned:{TASKS[env_id][0]}"
    spec = EnvSpec(env_id, place, max_episode_steps=40, kwargs={"rewards": rewards})
    monkeypatch.setitem(gymnasium.registry, env_id, spec)


@pytest.mark.parametrize(("env_id", "name"), list(zip(TASKS, POISON, strict=True)))
def test_poisoned_rewards_change_no_weight_and_no_answer(
    env_id: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    algo, flags = TASKS[env_id][1:]
    words = (
        *(PREFERENCES, env_id, *FEW, "--teacher", "tests.support.poisoned:to_the_right", "--n_envs", "1"),
        *("--algo", algo, "--million_timesteps", "0.0002", *flags),
    )
    for run_name, rewards in {"clean": [1.0, 0.5, -2.0], "poisoned": POISON[name]}.items():
        give(monkeypatch, env_id, rewards)
        here(tmp_path, *words, "--run_name", run_name)
    clean, poisoned = (tmp_path / "clean", tmp_path / "poisoned")
    policy, other = state(clean, "policy"), state(poisoned, "policy")
    assert not same(other["true_reward_total"], policy["true_reward_total"])
    told = ("finished_returns", "episodes", "true_reward_total")  # what they say about the true reward
    assert same({**other, **{key: policy[key] for key in told}}, policy)
    assert same(state(poisoned, "reward_predictor"), state(clean, "reward_predictor"))
    assert [row[1:] for row in answers(poisoned)] == [row[1:] for row in answers(clean)]
    assert progress(poisoned), "it goes on telling the progress"


@pytest.mark.parametrize("rewards", POISON.values(), ids=POISON.keys())
def test_an_oracle_and_a_policy_that_need_them_say_so_in_one_sentence(
    rewards: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, "Poisoned-v0", rewards)
    few = (*FEW, "--n_envs", "1", "--million_timesteps", "0.0004")
    assert "finite number" in refused(tmp_path, PREFERENCES, "Poisoned-v0", *few)
    assert "finite number" in refused(tmp_path, "train_policy_with_original_rewards", "Poisoned-v0", "--synchronous")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [PREFERENCES, "train_policy_with_original_rewards"])
def test_a_reward_that_is_poisoned_later_ends_the_run_in_one_sentence(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, "Poisoned-v0", [1.0] * 20 + [NAN])
    few = FEW if mode == PREFERENCES else ("--synchronous", "--eval_episodes", "1")
    done = here(tmp_path, mode, "Poisoned-v0", *few, "--n_envs", "1", "--run_name", "a", status=1)
    assert (
        "is NaN or infinity" in done.stderr and "Traceback" not in done.stderr and "fix the environment" in done.stderr
    )
