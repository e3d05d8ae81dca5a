"""Reports how the policy's training goes: to the main process about once a second, and as TensorBoard curves."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import numpy as np

from a2c.config import PolicyConfig
from a2c.evaluation import Episodes
from a2c.runner import Runner
from a2c.starts import Turn
from drlhp.runtime.channels import Channels, Report
from drlhp.runtime.curves import Curves

REPORT_SECONDS = 1.0


class Pace:
    """A clock of agent steps per second since the last mark."""

    def __init__(self, steps: int) -> None:
        self.mark(steps)

    def mark(self, steps: int) -> None:
        """Starts anew at so many agent steps."""
        self.since, self.steps_then = time.monotonic(), steps

    def pause(self, seconds: float) -> None:
        """Leaves these seconds out."""
        self.since += seconds

    def taken(self, steps: int) -> tuple[int, float]:
        """Returns the agent steps and the seconds since the mark."""
        return steps - self.steps_then, time.monotonic() - self.since


class Telemetry:
    """Reports how the training goes.

    Args:
        predicts: the policy learns from predicted rewards.
    """

    def __init__(self, channels: Channels, curves: Curves, *, steps: int, max_steps: int, predicts: bool) -> None:
        self._reports, self._curves = channels.reports, curves
        self._max_steps, self._predicts = max_steps, predicts
        self._predicted_reward = math.nan  # per step, mean since the last point of the curves
        self.report_pace, self.curve_pace = Pace(steps), Pace(steps)

    def learned(
        self,
        runner: Runner,
        rewards: np.ndarray,
        losses: Mapping[str, float],
        config: PolicyConfig,
        *,
        steps: int,
        updates: int,
        dropped_segments: int,
    ) -> None:
        """Counts an update; every `log_interval` updates writes a point of the curves, means since the last one.

        Args:
            config: the settings of this update.
        """
        source = "reward/predicted" if self._predicts else "reward/used"
        self._curves.count(
            {
                source: float(rewards.mean()),
                "reward/true": float(runner.rollout.rewards.mean()),
                **{f"policy/{name}": value for name, value in losses.items()},
            }
        )
        if updates % config.log_interval:
            return
        scalars = self._curves.means()
        self._predicted_reward = scalars.get("reward/predicted", math.nan)
        scalars |= {"policy/learning_rate": config.lr, "segments/dropped": dropped_segments}
        if config.algo != "sac":  # SAC finds its weight itself, and reports it among its losses
            scalars["policy/entropy_weight"] = config.ent_coef
        taken, seconds = self.curve_pace.taken(steps)
        scalars["speed/agent_steps_per_second"] = taken / seconds
        for name, spent in runner.stopwatch.seconds.items():
            scalars[f"speed/{name.replace(' ', '_')}_steps_per_second"] = taken / max(spent, 1e-9)
        if runner.finished_returns:
            scalars["episode/true_return_last_100"] = float(np.mean(runner.finished_returns))
        self._curves.add(scalars, steps)
        runner.stopwatch.seconds.clear()
        self.curve_pace.mark(steps)

    def report(self, runner: Runner, *, steps: int, dropped_segments: int, training: bool) -> None:
        """Reports the training's progress, if the last report is a second old or this is the end."""
        taken, seconds = self.report_pace.taken(steps)
        if seconds < REPORT_SECONDS and steps < self._max_steps:
            return
        returns = runner.finished_returns
        values = {
            "steps": float(steps),
            "max_steps": float(self._max_steps),
            "steps_per_second": taken / max(seconds, 1e-9),
            "episodes": float(runner.n_episodes),
            "episode_return": float(np.mean(returns)) if returns else float("nan"),
            "dropped_segments": float(dropped_segments),
            "training": float(training),
            "predicted_reward": self._predicted_reward,
            "true_reward_total": runner.true_reward_total,
        }
        self._reports.put(Report("a2c", values))
        self.report_pace.mark(steps)

    def explored(self, steps_left: int, *, steps: int) -> None:
        """Reports how many steps of exploration are left, about once a second and at the end."""
        if self.report_pace.taken(steps)[1] >= REPORT_SECONDS or steps_left <= 0:
            self._reports.put(Report("exploration", {"steps_left": float(max(0, steps_left))}))
            self.report_pace.mark(steps)
            self.curve_pace.mark(steps)

    def turned(self, turn: Turn) -> None:
        """Reports that a start of the policy is over, and what follows."""
        worths = {f"worth {i}": worth for i, worth in enumerate(turn.worths, start=1)}
        self._reports.put(Report("starts", {"number": turn.number, "of": turn.of, **worths}))

    def evaluation_begins(self, steps: int) -> None:
        """Reports that an evaluation begins."""
        self._reports.put(Report("evaluation", {"steps": steps, "running": 1}))

    def evaluated(self, played: Mapping[str, Episodes], film: bytes | None, *, steps: int, seconds: float) -> None:
        """Reports an evaluation's result and adds it to the curves; its seconds do not count for the speeds.

        Args:
            film: a GIF of its first episode's beginning, if there is one.
        """
        values: dict[str, float] = {"steps": steps, "running": 0}
        for policy, episodes in played.items():
            statistics = episodes.statistics()
            values |= {f"{policy}_{name}": value for name, value in statistics.items()}
            self._curves.add({f"evaluation/{policy}_mean": statistics["mean"]}, steps)
        self._reports.put(Report("evaluation", values))
        if film is not None:
            self._curves.add_film("evaluation/deterministic_film", film, steps)
        for pace in (self.report_pace, self.curve_pace):
            pace.pause(seconds)
