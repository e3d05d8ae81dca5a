"""A `--synchronous` run that was stopped anywhere ends with the same weights and answers as one that never stopped."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete

from a2c.worker import PolicyWorker
from drlhp.runtime import checkpoint
from tests.support.commands import DOT, SYNC, UNEVALUATED, answers, here, policy_steps

FEW = (
    *("--synthetic_prefs", "--n_initial_prefs", "8", "--max_prefs", "16", "--max_segs", "10", "--clip_steps", "15"),
    *("--n_initial_epochs", "2", "--eval_episodes", "1", SYNC),
)
PREFERENCES, ORIGINAL = "train_policy_with_preferences", "train_policy_with_original_rewards"
RUNS = {
    "a2c on pixels": (
        *(PREFERENCES, DOT, *FEW, "--n_envs", "3", "--million_timesteps", "0.0004"),
        *("--query_selection", "ordering", "--policy_ckpt_interval", "10", *UNEVALUATED),
    ),
    "ppo on pixels with a memory": (
        *(PREFERENCES, DOT, *FEW, "--n_envs", "2", "--million_timesteps", "0.0002", "--algo", "ppo", "--n_steps", "20"),
        *("--ppo_epochs", "1", "--ppo_minibatches", "2", "--policy_network", "nature_lstm", "--teacher", "mistake"),
        *UNEVALUATED,
    ),
    "labels alone": (
        *("gather_initial_prefs", DOT, *FEW, "--n_envs", "2", "--query_selection", "newest", "--teacher", "stoc"),
        *("--n_steps", "10"),
    ),
    "ppo on vectors": (
        *(PREFERENCES, "CartPole-v1", *FEW, "--n_envs", "1", "--million_timesteps", "0.0006", "--n_steps", "32"),
        *(
            "--ppo_epochs",
            "2",
            "--ppo_minibatches",
            "2",
            "--query_selection",
            "k_center",
            "--dropout",
            "0.2",
            "--l2",
            "adaptive",
            "--weigh_labellers",
            *UNEVALUATED,
        ),
    ),
    "trpo on bodies": (
        *(PREFERENCES, "Hopper", *FEW, "--n_envs", "4", "--million_timesteps", "0.0005", "--algo", "trpo"),
        *("--n_steps", "20", "--first_episode_steps", "20", "--n_initial_rounds", "2", "--max_prefs", "16"),
        *("--explore_million_timesteps", "0.0002", *UNEVALUATED),
        *("--policy_reset_million_timesteps", "0.00015", "--policy_resets", "2"),  # the best is chosen before the end
    ),
    "sac on bodies": (
        *(PREFERENCES, "InvertedPendulum-v1", *FEW, "--n_envs", "16", "--million_timesteps", "0.006"),
        *("--algo", "sac", "--replay_ratio", "0.02", *UNEVALUATED),
    ),
    "a2c on true rewards": (
        *(ORIGINAL, "CartPole-v1", "--n_envs", "1", "--million_timesteps", "0.0003", "--algo", "a2c", SYNC),
        *("--eval_episodes", "1"),
    ),
}


def state(folder: Path, part: str) -> dict[str, Any]:
    """Returns what the newest checkpoint of a run holds, without the name that each run has of its own."""
    held = checkpoint.read(checkpoint.find(folder, part))
    return {name: value for name, value in held.items() if name != "run_id"}


def same(a: Any, b: Any) -> bool:
    """Returns whether two checkpoints hold the same, bit for bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and np.array_equal(a.numpy(), b.numpy(), equal_nan=a.is_floating_point())
    return bool(a == b) or (a != a and b != b)


def assert_same_run(whole: Path, stopped: Path) -> None:
    for part in ("policy", "reward_predictor"):
        assert (whole / part).exists() == (stopped / part).exists()
        if (whole / part).exists():
            assert same(state(whole, part), state(stopped, part)), part
    if (whole / "prefs.db").exists():
        first, then = ([row[1:] for row in answers(folder)] for folder in (whole, stopped))
        assert first == then and len(first) in (8, 16)


class Whole(NamedTuple):
    words: tuple[str, ...]
    folder: Path
    turns: int


@pytest.fixture(scope="module", params=RUNS)
def whole(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[tuple[str, ...], Path, int]:
    """A run that never stops: its words, its folder, and its turns."""
    torch.set_num_threads(1)
    folder, words = tmp_path_factory.mktemp("runs"), RUNS[request.param]
    here(folder, *words, "--run_name", "whole")
    turns = checkpoint.read(checkpoint.find(folder / "whole" / "synchronous", ""))["step"]
    return Whole(words, folder / "whole", turns)


def test_a_resumed_run_equals_the_one_that_never_stopped(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken off in the middle of a turn, it leaves answers in the store that are newer than its snapshot."""
    words, folder, turns = whole
    stopped = folder.parent / "stopped"

    def stop_after(n_steps: int, how: str, *command: str) -> None:
        step, steps_left = PolicyWorker.step, n_steps

        def stopped_step(worker: PolicyWorker) -> bool:
            nonlocal steps_left
            steps_left -= 1
            if steps_left == 0 and how == "Ctrl-C":
                os.kill(os.getpid(), signal.SIGINT)
            worked = step(worker)
            if steps_left == 0 and how != "Ctrl-C":
                raise KeyboardInterrupt
            return worked

        with monkeypatch.context() as patch:
            patch.setattr(PolicyWorker, "step", stopped_step)
            here(folder.parent if command[0] != "--resume" else None, *command, status=130)

    stop_after(round(0.4 * turns), "broken off", *words, "--run_name", "stopped")
    stop_after(round(0.3 * turns), "Ctrl-C", "--resume", str(stopped))
    here(None, "--resume", str(stopped))
    assert_same_run(folder, stopped)


def test_other_settings_and_older_folders_go_on_from_the_checkpoints(tmp_path: Path) -> None:
    """As they always did: in new environments, and with all labels."""
    words = (*RUNS["a2c on true rewards"], "--run_name", "a")
    here(tmp_path, *words)
    folder, before = tmp_path / "a", policy_steps(tmp_path / "a")
    here(None, "--resume", str(folder), "--gamma", "0.9", "--million_timesteps", "0.0004")
    assert "the settings or the program have changed" in (folder / "log.txt").read_text()
    assert before < policy_steps(folder) and "goes on from turn" not in (folder / "log.txt").read_text()
    shutil.rmtree(folder / "synchronous")  # older runs have none
    here(None, "--resume", str(folder), "--million_timesteps", "0.0005")
    assert policy_steps(folder) >= 500 and "goes on from turn" not in (folder / "log.txt").read_text()
    here(None, "--resume", str(folder), "--million_timesteps", "0.0006")
    assert policy_steps(folder) >= 600 and "goes on from turn" in (folder / "log.txt").read_text()


def test_a_longer_run_goes_on_as_if_it_had_been_that_long_from_the_start(tmp_path: Path) -> None:
    words = RUNS["a2c on true rewards"]
    here(tmp_path, *words, "--run_name", "short")
    here(None, "--resume", str(tmp_path / "short"), "--million_timesteps", "0.0005")
    here(tmp_path, *words, "--run_name", "long", "--million_timesteps", "0.0005")
    assert_same_run(tmp_path / "long", tmp_path / "short")


class Clock(gymnasium.Env[Any, Any]):
    """Observes the time of day, so that no two runs of it are the same."""

    observation_space, action_space = Box(-np.inf, np.inf, (1,)), Discrete(2)
    metadata = {"render_modes": []}  # noqa: RUF012  # as Gymnasium has it

    def __init__(self, render_mode: str | None = None) -> None: ...

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return np.full(1, time.monotonic(), np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.full(1, time.monotonic(), np.float32), 0.0, False, False, {}


def test_an_environment_that_does_not_repeat_itself_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        gymnasium.registry, "Clock-v0", EnvSpec("Clock-v0", "tests.commands.test_snapshots:Clock", max_episode_steps=50)
    )
    few = ("--n_envs", "1", "--eval_episodes", "1", SYNC, "--run_name", "a", "--million_timesteps")
    here(tmp_path, ORIGINAL, "Clock-v0", *few, "0.0002")
    here(None, "--resume", str(tmp_path / "a"), "--million_timesteps", "0.0004")
    assert "Clock-v0 does not repeat itself" in (tmp_path / "a" / "log.txt").read_text()
    assert policy_steps(tmp_path / "a") >= 400
