"""Evaluates the policy while it trains: plays the same whole games each time, in environments of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from a2c.acting import ActingPolicy
from a2c.config import PolicyConfig
from a2c.film import Camera, filmed_steps
from drlhp.runtime.channels import Channels
from drlhp.runtime.pulse import doing
from drlhp.runtime.run_files import EVALUATIONS, POLICIES
from envs import EnvInfo, PreferenceVecEnv, make_vec_env

# Every run of every experiment is evaluated from the same starts: environment i has this seed and i more.
SEED = 500_000
# No training environment has a seed below.
FIRST_TRAINING_SEED = 2**20
# Agent steps: half an hour, Atari's own end of a game. It is for environments that have no end of their own.
MAX_EPISODE_STEPS = 27_000
# A policy may volley for ever, or wait for ever to serve. Once all cars of a day are passed Enduro has nothing to win
# for the rest of that day, 3,300 steps at most.
MAX_STEPS_WITHOUT_REWARD = 5_000


def training_seed(seed: int, updates: int) -> int:
    """Returns the seed of the first training environment of a run that begins to act after so many updates.

    Hashed, so that runs with neighbouring seeds share no start.
    """
    (drawn,) = np.random.SeedSequence((seed, updates)).generate_state(1)
    return FIRST_TRAINING_SEED + int(drawn) % (2**31 - 2 * FIRST_TRAINING_SEED)


@dataclass(frozen=True)
class Episodes:
    """One whole episode of each of N environments."""

    returns: np.ndarray  # (N,) sums of the environment's own rewards, unclipped
    lengths: np.ndarray  # (N,) agent steps
    capped: np.ndarray  # (N,) True if the episode was cut before its end

    def statistics(self) -> dict[str, float]:
        """Returns the statistics for evaluations.csv, by the names in STATISTICS; the variance is divided by N."""
        return {
            "episodes": len(self.returns),
            "mean": float(self.returns.mean()),
            "std": float(self.returns.std()),
            "lowest": float(self.returns.min()),
            "highest": float(self.returns.max()),
            "mean_length": float(self.lengths.mean()),
            "capped": int(self.capped.sum()),
        }


def play(
    env: PreferenceVecEnv,
    policy: ActingPolicy,
    channels: Channels,
    *,
    seed: int,
    sampled: bool,
    max_steps: int = MAX_EPISODE_STEPS,
    max_without_reward: int = MAX_STEPS_WITHOUT_REWARD,
    opening: list[np.ndarray] | None = None,
) -> Episodes | None:
    """Plays the first episode of every environment after a reset with `seed`; None if the run is stopped meanwhile.

    One episode each, because the first N to end would be the short ones. The environment ends an episode (its own time
    limit counts), or it is cut after `max_steps` agent steps, or after `max_without_reward` in a row without a reward.
    If `sampled`, actions are drawn as in training; else the most likely ones are taken. The policy's turn is held for
    one step at a time, so that the trainer gets on.

    Args:
        opening: gets the actions of the first environment's episode, as many as a film shows.
    """
    n, info = env.num_envs, env.info
    actions = np.zeros(n, np.int64) if info.n_actions else np.zeros((n, info.action_dim or 0), np.float32)
    returns, lengths, rewarded_at = np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.int64)
    memory = np.zeros((n, policy.memory_size), np.float32)
    capped, playing = np.zeros(n, np.bool_), np.ones(n, np.bool_)
    with channels.turns.policy():
        observations, _ = env.reset(seed=seed)
    while playing.any():
        if channels.stop.is_set():
            return None
        # Nobody is told that all of it takes long: that is usual, and the status line says what goes on.
        with doing("a step of an evaluation"), channels.turns.policy():
            noise = policy.noise(int(playing.sum()))
            if not sampled:
                noise[:] = 0.0
            remembered = memory[playing]
            actions[playing] = policy.act(observations[playing], noise, remembered)[0]
            memory[playing] = remembered
            if opening is not None and playing[0] and len(opening) < filmed_steps(info):
                opening.append(actions[0].copy())
            observations, rewards, terminated, truncated, _ = env.step(actions)
        returns[playing] += np.where(np.isinf(rewards), np.nan, rewards)[playing]  # no sum is infinity less infinity
        lengths[playing] += 1
        rewarded_at = np.where(rewards != 0, lengths, rewarded_at)
        playing &= ~(terminated | truncated)
        capped |= playing & ((lengths == max_steps) | (lengths - rewarded_at == max_without_reward))
        playing &= ~capped
    return Episodes(returns, lengths, capped)


class Evaluator:
    """Says when the policy is to be evaluated, and plays the episodes: those of fixed seeds, the same for every run.

    An evaluation leaves no trace in the training: it has environments and random numbers of its own. The environments
    are made for the first one, all in this process, and kept.

    Args:
        info: the environment.
        config: the interval and the number of episodes.
        run_dir: where the evaluations of a resumed run lie.
    """

    def __init__(self, info: EnvInfo, config: PolicyConfig, run_dir: Path) -> None:
        self.info, self.n_episodes = info, config.eval_episodes
        self.all_frames = config.all_frames
        self.interval = round(config.eval_interval_million_timesteps * 1e6)
        # The newest evaluation may be ahead of the checkpoint that the run goes on from; it is not repeated either.
        self.evaluated_at = max((int(row["steps"]) for row in EVALUATIONS.read_to_go_on(run_dir)), default=-1)
        self._env: PreferenceVecEnv | None = None
        self._camera = Camera(info, SEED, all_frames=self.all_frames)
        self._opening: list[np.ndarray] = []  # actions of the last evaluation's first episode

    def is_due(self, steps: int, *, last: bool) -> bool:
        """Returns whether to evaluate now: after 0 agent steps, at each multiple of the interval, and at the end.

        A rollout may step over a multiple; then the evaluation follows the rollout. No step is evaluated twice.
        """
        if not self.interval or steps <= self.evaluated_at:
            return False
        return last or steps // self.interval > self.evaluated_at // self.interval

    def evaluate(self, policy: ActingPolicy, channels: Channels, steps: int) -> dict[str, Episodes] | None:
        """Episodes by the names in POLICIES: the most likely actions (or means), and actions drawn at random.

        Both start alike. None if the run is stopped meanwhile.
        """
        if self._env is None:
            self._env = make_vec_env(
                self.info.env_id, self.n_episodes, SEED, in_process=True, whole_games=True, all_frames=self.all_frames
            )
        played, self._opening = dict[str, Episodes](), []
        # What `act` keeps of its observations for the update is overwritten by the next rollout, so it may stay.
        with torch.random.fork_rng([]):
            torch.manual_seed(SEED)
            for name in POLICIES:
                sampled = name == "sampled"
                opening = None if sampled else self._opening
                episodes = play(self._env, policy, channels, seed=SEED, sampled=sampled, opening=opening)
                if episodes is None:
                    return None
                played[name] = episodes
        self.evaluated_at = steps
        return played

    def film(self) -> bytes | None:
        """Returns a GIF of how the last evaluation's first episode began, by the most likely actions.

        None if the environment cannot be drawn.
        """
        return self._camera.film(self._opening)

    def close(self) -> None:
        """Ends the environments."""
        self._camera.close()
        if self._env is not None:
            self._env.close()
