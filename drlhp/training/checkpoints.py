"""The trainer's checkpoints, in the run's folder."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from drlhp.bounds import check
from drlhp.runtime import checkpoint
from drlhp.training.learner import Learner
from drlhp.training.pace import Pace
from drlhp.training.pretraining import Pretraining
from reward_predictor import ARCHITECTURE

if TYPE_CHECKING:
    from drlhp.training.trainer import TrainerSpec

PART = "reward_predictor"  # the folder of a run that holds the checkpoints, and their kind


class Checkpoints:
    """Saves a learner, the end of its pretraining and its pace, and loads them again."""

    def __init__(self, spec: TrainerSpec, learner: Learner, pretraining: Pretraining, pace: Pace) -> None:
        self.spec, self.learner, self.pretraining, self.pace = spec, learner, pretraining, pace
        self.folder = spec.run_dir / PART
        self._due_at = time.monotonic() + checkpoint.MAX_SECONDS

    @property
    def due(self) -> bool:
        """Whether the newest checkpoint is so old that another is wanted."""
        return time.monotonic() > self._due_at

    def save(self, *, pretrained: bool, newest_seq: int) -> Path:
        """Writes a checkpoint, and returns its path.

        Args:
            newest_seq: of the answers that the trainer has read.
        """
        checkpoint.check_run_folder(self.folder)
        self._due_at = time.monotonic() + checkpoint.MAX_SECONDS
        state = {
            "kind": PART,
            "env_id": self.spec.env_id,
            "run_id": self.spec.run_id,
            "newest_seq": newest_seq,
            "config": {name: getattr(self.spec.config, name) for name in ARCHITECTURE},
            "inputs": self.spec.inputs.as_dict(),
            "own_network": self.spec.make_network is not None,
            "pretrained": pretrained,
            **self.pretraining.state(),
            **self.learner.state(),
            **self.pace.state(),
            "random": torch.get_rng_state(),
        }
        return checkpoint.save(self.folder, self.learner.batches, state)

    @staticmethod
    def keep(path: Path) -> None:
        """Copies a checkpoint to `saved-...`, which no newer checkpoint removes."""
        shutil.copy(path, path.with_name(f"saved-{path.name}"))

    def find(self) -> Path | None:
        """Returns this run's newest checkpoint to resume from, or the one of another run to start from."""
        other = self.spec.config.load_reward_predictor_ckpt_dir
        if self.spec.resume and checkpoint.list_checkpoints(self.folder):
            return checkpoint.find(self.folder, PART)
        return checkpoint.find(Path(other), PART) if other else None

    def load(self, path: Path) -> bool:
        """Loads what `find` returned: all of this run's own state, or the weights of another run.

        Returns whether it is pretrained.

        Raises:
            CheckpointError: it cannot be used.
        """
        return self.take(checkpoint.load(path, kind=PART, env_id=self.spec.env_id), path)

    def take(self, state: dict[str, Any], path: Path) -> bool:
        """Does what `load` does with the checkpoint of `path`, which is loaded."""
        with checkpoint.entries(path):
            check(replace(self.spec.config, **state["config"]))
            self.learner.take(state["weights"], path)
            if self.is_own(path):
                self.learner.load(state)
                self.pretraining.load(state)
                self.pace.load(state)
                torch.set_rng_state(state["random"])
            return bool(state["pretrained"])

    def is_own(self, path: Path) -> bool:
        """Returns whether the checkpoint is one of this run."""
        return path.parent == self.folder
