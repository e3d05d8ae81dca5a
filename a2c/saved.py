"""The checkpoints of the policy: what they hold, and how a run goes on from one."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch

from a2c.config import Algo, PolicyConfig
from a2c.learner import Learner
from a2c.rewards import Rewarder
from a2c.starts import Starts
from drlhp.runtime import checkpoint
from drlhp.runtime.snapshot import restore_kept, state_of


@dataclass(frozen=True)
class Course:
    """How far a training is."""

    steps: int = 0  # agent steps that the policy has learned from
    updates: int = 0
    finished_returns: list[float] = field(default_factory=list)  # true rewards of the newest episodes
    n_episodes: int = 0
    true_reward_total: float = 0.0  # of all steps; NaN if the run is older than this count


class PolicyCheckpoints:
    """Writes the checkpoints of a run's policy, and loads the newest one.

    Args:
        folder: the run's `policy` folder.
        run_id: goes into the checkpoints, which no other run resumes from.
    """

    def __init__(
        self,
        folder: Path,
        env_id: str,
        config: PolicyConfig,
        learner: Learner,
        starts: Starts,
        rewarder: Rewarder | None,
        run_id: str = "",
    ) -> None:
        self.folder, self.env_id, self.config, self.run_id = folder, env_id, config, run_id
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.learner, self.starts, self.rewarder = learner, starts, rewarder
        self._save_by = time.monotonic() + checkpoint.MAX_SECONDS

    def is_due(self, updates: int) -> bool:
        """Returns whether to save after so many updates."""
        return updates % self.config.policy_ckpt_interval == 0 or time.monotonic() > self._save_by

    def save(self, course: Course) -> Path:
        """Writes a checkpoint; returns its path. Raises what `checkpoint.save` does."""
        checkpoint.check_run_folder(self.folder)
        self._save_by = time.monotonic() + checkpoint.MAX_SECONDS
        return checkpoint.save(
            self.folder,
            course.steps,
            {
                "kind": "policy",
                "env_id": self.env_id,
                "run_id": self.run_id,
                "network": self.config.policy_network,
                "algo": self.config.algo,
                "all_frames": self.config.all_frames,
                "updates": course.updates,
                "weights": self.learner.policy.state_dict(),
                "optimizer": self.learner.optimizer.state_dict(),
                "finished_returns": course.finished_returns,
                "episodes": course.n_episodes,
                "true_reward_total": course.true_reward_total,
                "random": torch.get_rng_state(),
                "value_units": self.learner.units.state(),
                "starts": state_of(self.starts),
                "reward_normaliser": self.rewarder.normaliser if self.rewarder else None,
            },
        )

    def load(self, *, resume: bool) -> Course:
        """Goes on from this run's newest checkpoint, or starts from the weights of another run."""
        if resume and checkpoint.list_checkpoints(self.folder):
            path = checkpoint.find(self.folder, "policy")
        elif self.config.load_policy_ckpt_dir:
            path = checkpoint.find(Path(self.config.load_policy_ckpt_dir), "policy")
        else:
            return Course()
        return self.take(checkpoint.load(path, kind="policy", env_id=self.env_id), path)

    def take(self, state: dict[str, Any], path: Path) -> Course:
        """Goes on from the checkpoint of `path`, which is loaded; raises CheckpointError if it does not fit."""
        with checkpoint.entries(path):
            if state["network"] != self.config.policy_network:
                raise ValueError(f"a network {state['network']}, not {self.config.policy_network}")
            checkpoint.fill(self.learner.policy, state["weights"], path)
            return self._course(state, own=path.parent == self.folder)

    def _course(self, state: dict[str, Any], *, own: bool) -> Course:
        """Takes over all but the weights; of another run that is little."""
        learner = self.learner
        if not own:
            # Only the true reward is the same in both runs: each run scales its predicted rewards anew.
            if self.rewarder is None and not state.get("reward_normaliser") and "value_units" in state:
                learner.units.load(state["value_units"])
            return Course()
        if state["algo"] not in get_args(Algo):
            raise ValueError(f"an algorithm {state['algo']}")
        if state["algo"] == self.config.algo:  # the averages of another algorithm's optimiser mean something else
            checkpoint.fill_optimizer(learner.optimizer, state["optimizer"])
            if "starts" in state:  # older checkpoints have none
                restore_kept(self.starts, state["starts"])
        torch.set_rng_state(state["random"])
        if "value_units" in state:  # older checkpoints have none
            learner.units.load(state["value_units"])
        if self.rewarder and state.get("reward_normaliser"):  # older checkpoints have none
            self.rewarder.normaliser = state["reward_normaliser"]
        returns = state["finished_returns"]
        n_episodes, total = state.get("episodes", len(returns)), state.get("true_reward_total", math.nan)
        return Course(state["step"], state["updates"], returns, n_episodes, total)
