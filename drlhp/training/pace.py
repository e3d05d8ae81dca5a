"""The pace of the training: so many labels are trained on for each agent step of the policy."""

from __future__ import annotations

from reward_predictor import PredictorConfig

BACKLOG_BATCHES = 10  # a trainer that fell behind makes up for these beside the last rollout; the rest is let go


class Pace:
    """Counts the batches that the trainer owes, so that neither the policy nor the trainer starves the other.

    Args:
        rollout_steps: agent steps that the policy takes at a time.
    """

    KEPT = ("_owed", "_steps_seen")

    def __init__(self, config: PredictorConfig, rollout_steps: int) -> None:
        self._rate, self._size = config.labels_per_step, config.label_batch_size
        self._most = BACKLOG_BATCHES * self._size + rollout_steps * self._rate
        self._owed, self._steps_seen = 0.0, 0  # labels to train on, by the agent steps so far

    def follow(self, agent_steps: int) -> None:
        """Owes labels for the steps that the policy has taken since the last call."""
        self._owed = min(self._owed + (agent_steps - self._steps_seen) * self._rate, self._most)
        self._steps_seen = agent_steps

    def take_batches(self) -> int:
        """Returns the number of whole batches that are owed, and counts them as trained."""
        n_batches = int(self._owed // self._size)
        self._owed -= n_batches * self._size
        return n_batches
