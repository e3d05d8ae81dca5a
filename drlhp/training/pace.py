"""The pace of the training: so many labels are trained on for each agent step of the policy, and for each label."""

from __future__ import annotations

import math
from typing import Any

from reward_predictor import PredictorConfig

BACKLOG_BATCHES = 10  # a trainer may fall behind by these beside the last rollout


class Pace:
    """Counts the batches that the trainer owes, so that neither the policy nor the trainer starves the other.

    A policy that can wait does so while the trainer is behind, so that the load of a machine does not change what is
    learned. Of one that cannot, because it is somebody else's program, what is owed beyond the backlog is let go.

    Args:
        rollout_steps: agent steps that the policy takes at a time.
        policy_waits: whether the policy can wait.
    """

    KEPT = ("due", "trained", "labels_trained", "_owed", "_steps_seen")

    def __init__(self, config: PredictorConfig, rollout_steps: int, *, policy_waits: bool) -> None:
        self._rate, self._size = config.labels_per_step, config.label_batch_size
        self._passes = math.inf if config.label_passes is None else config.label_passes
        self._most = BACKLOG_BATCHES * self._size + rollout_steps * self._rate
        self._policy_waits = policy_waits
        self.due, self.trained = 0.0, 0  # batches for the agent steps so far; the trainer counts the latter
        self.labels_trained = 0  # in all, also before the policy started; the trainer counts them
        self._owed = 0.0  # labels to train on
        self._steps_seen: int | None = 0  # None: a checkpoint does not say

    @property
    def behind(self) -> bool:
        """Whether the policy should wait."""
        return self._policy_waits and self._owed > self._most

    def room(self, n_labels: int) -> float:
        """Returns how many labels more may be owed, given the number of different ones: `--label_passes`."""
        return max(0.0, self._passes * n_labels - self.labels_trained - self._owed) if n_labels else 0.0

    def follow(self, agent_steps: int, n_labels: int) -> None:
        """Owes labels for the steps that the policy has taken since the last call.

        Args:
            n_labels: different labels to train on; without any, nothing is due.
        """
        if self._steps_seen is None:
            if not agent_steps:  # the policy has not said yet where it goes on
                return
            self._steps_seen = agent_steps
        # A policy that went on from an older checkpoint takes some steps again, which the trainer has followed.
        labels = min(max(0, agent_steps - self._steps_seen) * self._rate, self.room(n_labels))
        self._steps_seen = max(self._steps_seen, agent_steps)
        self.due += labels / self._size
        self._owed += labels
        if not self._policy_waits:
            self._owed = min(self._owed, self._most)

    def take_batches(self) -> int:
        """Returns the number of whole batches that are owed, and owes them no more."""
        n_batches = int(self._owed // self._size)
        self._owed -= n_batches * self._size
        return n_batches

    def state(self) -> dict[str, Any]:
        """Returns the entries of a checkpoint."""
        return {"pace": {name: getattr(self, name) for name in self.KEPT}}

    def load(self, state: dict[str, Any]) -> None:
        """Continues from a checkpoint; older ones do not say how many steps were followed."""
        self._steps_seen = None
        for name, value in state.get("pace", {}).items():
            setattr(self, name, value)
