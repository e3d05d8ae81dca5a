"""Recorded play: kept as it was seen, imitated far better than by chance, and refused where it does not fit."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import run
from a2c.demonstrations import MIN_STD, Demonstrations, clone, joined, log_probability, record
from a2c.model import Policy
from commands import watch
from drlhp.errors import UserError
from envs import env_info
from tests.support.commands import BRIEF_PPO, SYNC, here

CARTPOLE, DOT, PENDULUM = "CartPole-v1", "MovingDotNoFrameskip-v0", "Pendulum-v1"


class Player:
    """Plays by a rule, in place of a policy, and remembers what it saw."""

    memory_size = 0

    def __init__(self, rule: Callable[[np.ndarray], Any]) -> None:
        self.rule, self.saw = rule, list[np.ndarray]()

    def act(self, observations: np.ndarray, noise: None, memory: np.ndarray) -> tuple[np.ndarray, None, None]:
        self.saw.append(observations[0].copy())
        return np.array([self.rule(observations[0])]), None, None


def balance(observation: np.ndarray) -> int:
    """Keeps the pole up for a whole episode of 500 steps."""
    return int(observation[2] + 0.3 * observation[3] + 0.05 * observation[1] > 0)


def around_the_centre(observation: np.ndarray) -> int:
    """On the right up, above to the left, on the left down, below to the right."""
    light = observation[-1].astype(float)
    y, x = (light.sum(axis) @ np.arange(84) / light.sum() - 41.5 for axis in (1, 0))
    if abs(x) > abs(y):
        return 3 if x > 0 else 1
    return 4 if y < 0 else 2


def swing(observation: np.ndarray) -> np.ndarray:
    return np.array([1.5 * observation[2] - 0.5 * observation[0]], np.float32)


RULES: dict[str, Callable[[np.ndarray], Any]] = {CARTPOLE: balance, DOT: around_the_centre, PENDULUM: swing}


def recorded(env_id: str, episodes: int, seed: int = 0) -> tuple[Demonstrations, Player]:
    player = Player(RULES[env_id])
    played = record(env_info(env_id), player, episodes=episodes, seed=seed, deterministic=True)  # type: ignore[arg-type]
    return joined(list(played)), player


def new_policy(env_id: str) -> Policy:
    torch.manual_seed(0)
    return Policy(env_info(env_id), "feature_points" if env_id == DOT else "nature")


@pytest.mark.parametrize("env_id", RULES)
def test_a_recording_is_what_was_seen_and_done_and_stays_so_in_its_file(env_id: str, tmp_path: Path) -> None:
    made, player = recorded(env_id, 2)
    made.save(tmp_path / "play.npz")
    read = Demonstrations.load(tmp_path / "play.npz", env_info(env_id))
    everything = np.arange(len(read))
    assert np.array_equal(read.observations(everything), player.saw)
    assert np.array_equal(read.observations(everything[::-3]), player.saw[::-3])
    assert np.array_equal(read.actions, [RULES[env_id](seen) for seen in player.saw])
    assert read.lengths.sum() == len(read) and len(read.lengths) == 2
    starts = np.cumsum(read.lengths) - read.lengths
    for i, start in enumerate(starts):
        assert read.rewards[start : start + read.lengths[i]].sum() == pytest.approx(
            made.rewards[start : start + read.lengths[i]].sum()
        )
    if env_id == DOT:
        assert len(read.frames) == 2 * (250 + 3), "frames are kept once, not four times"
        assert (tmp_path / "play.npz").stat().st_size < read.frames.nbytes / 20


def test_a_folder_of_recordings_is_one_recording(tmp_path: Path) -> None:
    for seed in range(2):
        recorded(DOT, 1, seed)[0].save(tmp_path / f"{seed}.npz")
    both = Demonstrations.load(tmp_path, env_info(DOT))
    parts = [Demonstrations.load(tmp_path / f"{seed}.npz", env_info(DOT)) for seed in range(2)]
    assert both.lengths.tolist() == [250, 250]
    steps = np.array([0, 249, 250, 499])
    expected = np.concatenate([part.observations(np.array([0, 249])) for part in parts])
    assert np.array_equal(both.observations(steps), expected)


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    made, _ = recorded(PENDULUM, 1)
    made.save(tmp_path / "play.npz")
    with pytest.raises(FileExistsError):
        made.save(tmp_path / "play.npz")


def test_a_pipe_in_place_of_a_recording_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "play.npz")
    with pytest.raises(UserError, match=r"play\.npz is no regular file"):
        Demonstrations.load(tmp_path, env_info(PENDULUM))


@pytest.mark.parametrize(("env_id", "episodes", "least"), [(CARTPOLE, 4, 0.9), (DOT, 3, 0.75)])
def test_a_clone_does_what_was_recorded_in_episodes_that_it_has_not_seen(
    env_id: str, episodes: int, least: float
) -> None:
    """Chance is a half on CartPole and a fifth on the moving dot; no action is right much more often."""
    policy = new_policy(env_id)
    critic = policy.critic.weight.clone()
    # Fifteen epochs are enough for that.
    clone(policy, recorded(env_id, episodes)[0], seed=0, normalise_pixels=True, report=lambda epoch, _: epoch < 15)
    unseen, _ = recorded(env_id, 3, seed=77)
    actions = policy.act(unseen.observations(np.arange(len(unseen))), None)[0]
    assert np.bincount(unseen.actions).max() / len(unseen) < 0.6
    assert (actions == unseen.actions).mean() > least
    assert torch.equal(policy.critic.weight, critic), "what the play is worth is not learned from it"


def test_some_deviation_is_left_to_one_who_always_does_the_same() -> None:
    policy, (shown, _) = new_policy(PENDULUM), recorded(PENDULUM, 1)
    assert policy.log_std is not None
    torch.nn.init.constant_(policy.log_std, -4)  # where long training on such a recording leads
    clone(policy, shown, seed=0, normalise_pixels=True, report=lambda epoch, likelihood: False)
    assert policy.log_std.exp().item() == pytest.approx(MIN_STD, rel=0.1)


def test_continuous_actions_are_cloned() -> None:
    policy, (shown, _) = new_policy(PENDULUM), recorded(PENDULUM, 4)
    everything = np.arange(len(shown))
    before = log_probability(policy, shown, everything)
    clone(policy, shown, seed=0, normalise_pixels=True)
    assert log_probability(policy, shown, everything) > before + 0.5
    unseen, _ = recorded(PENDULUM, 2, seed=77)
    means = policy.act(unseen.observations(np.arange(len(unseen))), None)[0]
    assert np.corrcoef(means[:, 0], unseen.actions[:, 0])[0, 1] > 0.95


def test_cloning_ends_with_the_weights_that_did_best_on_what_is_held_out() -> None:
    policy, (shown, _) = new_policy(CARTPOLE), recorded(CARTPOLE, 1)
    epochs = list[float]()

    def told(epoch: int, likelihood: float) -> bool:
        epochs.append(likelihood)
        if epoch == 2:
            torch.nn.init.normal_(policy.actor.weight, std=50)  # from here on it can only be worse
        return epoch < 5

    best = clone(policy, shown, seed=0, normalise_pixels=True, report=told)
    assert len(epochs) <= 5 and best == max(epochs[:2]) > max(epochs[2:])
    held_out = np.arange(round(0.9 * len(shown)), len(shown))
    assert log_probability(policy, shown, held_out) == pytest.approx(best, abs=1e-5)


# What does not fit


def changed(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: replace(recorded(PENDULUM, 1)[0], **arrays).save(path)


def truncated(path: Path) -> None:
    changed()(path)
    path.write_bytes(path.read_bytes()[:-500])


def pickled(path: Path) -> None:
    np.savez(path, schema_version=1, env_id=np.array([print], dtype=object))


def newer(path: Path) -> None:
    made = recorded(PENDULUM, 1)[0]
    np.savez(path, schema_version=9, **vars(made))


NAN = np.full((200, 1), np.nan, np.float32)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: recorded(CARTPOLE, 1)[0].save(path), "was recorded in CartPole-v1, not in Pendulum-v1"),
        (changed(frames=np.zeros((200, 4), np.float32)), "frames should be float32 (200, 3), and are"),
        (changed(actions=np.zeros(200, np.int64)), "actions should be float32 (200, 1), and are int64"),
        (changed(actions=NAN), "actions should be finite"),
        (changed(lengths=np.array([100])), "should be"),
        (changed(lengths=np.array([], np.int64)), "expected episodes"),
        (truncated, "is damaged"),
        (pickled, "is damaged"),
        (lambda path: path.write_text("no archive"), "is damaged"),
        (newer, "version 9"),
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "holds no .npz file"),
    ],
)
def test_what_is_no_recording_of_this_environment_is_refused(
    tmp_path: Path, write: Callable[[Path], None], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "play.npz"
    write(path)
    words = ["train_policy_with_original_rewards", PENDULUM, "--demonstrations", str(path)]
    assert run.main([*words, "--log_dir", str(tmp_path / "runs"), "--run_name", "a"]) == 2
    message = capsys.readouterr().err.strip()
    assert reason in message and message.endswith(".") and "\n" not in message
    assert not (tmp_path / "runs").exists(), "nothing is made for a run that cannot be"


def test_actions_that_there_are_not_are_refused(tmp_path: Path) -> None:
    made, _ = recorded(CARTPOLE, 1)
    replace(made, actions=made.actions + 1).save(tmp_path / "play.npz")
    with pytest.raises(UserError, match="from 0 to 1"):
        Demonstrations.load(tmp_path / "play.npz", env_info(CARTPOLE))


# The command line


def test_a_run_starts_from_what_was_recorded_and_goes_on_as_usual(tmp_path: Path) -> None:
    recorded(CARTPOLE, 3)[0].save(tmp_path / "play.npz")
    length = ("--million_timesteps", "0.0002", "--eval_episodes", "1", "--n_envs", "1", *BRIEF_PPO, SYNC)
    demonstrations = ("--demonstrations", str(tmp_path / "play.npz"))
    here(tmp_path, "train_policy_with_original_rewards", CARTPOLE, *length, *demonstrations, "--run_name", "a")
    with (tmp_path / "a" / "evaluations.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert (first["steps"], first["policy"]) == ("0", "deterministic")
    assert float(first["mean"]) > 100, "an untrained policy has about 10"
    assert list((tmp_path / "a" / "policy").glob("step-*.pt"))

    # And what it learned can be recorded in its turn.
    place = str(tmp_path / "again.npz")
    watch.watch_command([str(tmp_path / "a"), "--record_demonstrations", place, "--episodes", "2"])
    watch.watch_command([str(tmp_path / "a"), "--record_demonstrations", place, "--episodes", "1"])
    again = [Demonstrations.load(tmp_path / name, env_info(CARTPOLE)) for name in ("again.npz", "again-2.npz")]
    assert [len(one.lengths) for one in again] == [2, 1]
    for words, reason in (
        (["again.mp4"], "end it in .npz"),
        (["no/a.npz"], "make"),
        (["b.npz", "--output", "v.mp4"], "leave one out"),
    ):
        with pytest.raises(UserError, match=reason):
            watch.watch_command([str(tmp_path / "a"), "--record_demonstrations", str(tmp_path / words[0]), *words[1:]])
