"""A run's output for people: the progress line, its tables, the curves and the summary at the end."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from commands.charts import drawn
from commands.run_folder import read_config
from drlhp.runtime.channels import Report, peak_memory_mb
from drlhp.runtime.run_files import EVALUATIONS, POLICIES, PROGRESS, STATISTICS, as_number

log = logging.getLogger("run")

CLIPS = re.compile(r"(?P<clips>\d+)/(?P<all>\d+)(?P<labels_wait> \(labels wait for all\))?")
PLAIN_SECONDS = 10.0  # between lines, if the output is no terminal or a person types answers


def say(sentence: str) -> None:
    """Prints a sentence about the run, and logs it."""
    log.info("%s", sentence)
    print(sentence, flush=True)


class Progress:
    """Collects the child processes' numbers, and shows them in one line with the time left.

    Args:
        initial_labels: labels before pretraining.
        goal_labels: labels in all.
        live: redraw one line in place; otherwise a line is printed every ten seconds.
        people_label: people label beside it, on a screen that says how long that takes.
    """

    def __init__(
        self, folder: Path, *, initial_labels: int, goal_labels: int, live: bool, people_label: bool = False
    ) -> None:
        self.people_label = people_label
        self.folder, self.initial_labels, self.goal_labels = folder, initial_labels, goal_labels
        self.values: dict[str, dict[str, float]] = {"a2c": {}, "reward predictor": {}, "evaluation": {}}
        for row in EVALUATIONS.read_to_go_on(folder):  # a resumed run shows its newest evaluation until the next one
            self.values["evaluation"] |= {f"{row['policy']}_{name}": float(row[name]) for name in STATISTICS}
        self._evaluating: dict[str, float] = {}  # time, step and labels at which the present evaluation began
        self._memory: dict[str, float] = {}
        self.labels, self.clips = 0, ""
        self._start = self._printed = time.monotonic()
        self._stage_starts: dict[str, tuple[float, float]] = {}
        self._got_on: tuple[str, float] = ("", 0.0)  # the stage and its progress, when its end was last estimated
        self._end = 0.0  # the estimate, by the monotonic clock
        self._seconds_before = self._read_before()
        self._goes_on = self._seconds_before > 0  # and the first row tells from which step on
        self._rows = PROGRESS.open(folder)
        self._live = Live(console=Console(), refresh_per_second=4, transient=True) if live else None
        if self._live:
            self._live.start()

    def _read_before(self) -> float:
        """Reads the rows of a resumed run; returns the seconds that it has taken so far."""
        seconds = 0.0
        for row in PROGRESS.read_to_go_on(self.folder):
            seconds = max(seconds, float(row["seconds"] or 0))
        return seconds

    def update(self, report: Report, labels: int) -> None:
        """Takes a child's report."""
        source = report.source
        if source == "evaluation":
            self._update_evaluation(report.values, labels)
            return
        if source == "starts":
            say(_turn(**report.values))
            return
        self.values[source] = report.values
        if source in ("demonstrations", "exploration"):
            return  # sent by the policy's process, which reports its memory itself
        self._memory[source] = report.peak_memory_mb
        self.labels = labels
        a2c = self.values["a2c"]
        if source == "a2c":
            row = {
                **self.values["reward predictor"],
                **a2c,
                "labels": labels,
                "seconds": round(self.seconds, 1),
                "peak_memory_mb": sum(self._memory.values()) + peak_memory_mb(),
            }
            if self._goes_on:  # the run was stopped some steps after its newest checkpoint
                self._goes_on = False
                PROGRESS.cut(self.folder, "steps", a2c["steps"])
            self._rows.append(row)

    def _update_evaluation(self, values: dict[str, float], labels: int) -> None:
        """Takes one of the two reports of an evaluation: the first marks its beginning, the second has the results.

        Each policy gets a row in evaluations.csv. Its time and labels are those of the beginning, because the policy
        does not change during an evaluation.
        """
        if values["running"]:
            self._evaluating = {"seconds": round(self.seconds, 1), "steps": values["steps"], "labels": labels}
            log.info("evaluation begins at %d steps", values["steps"])
            return
        with contextlib.closing(EVALUATIONS.open(self.folder)) as rows:
            for policy in POLICIES:
                statistics = {name: values[f"{policy}_{name}"] for name in STATISTICS}
                rows.append({**self._evaluating, "policy": policy, **statistics})
        self.values["evaluation"], self._evaluating = values, {}
        log.info("evaluation at %d steps: %s", values["steps"], _both_means(values))

    def show(self, labels: int, clips: str, *, true_reward: bool = True) -> None:
        """Draws the line, on request without the true reward; `clips` is the number of clips to ask about."""
        self.labels, self.clips = labels, clips
        now = time.monotonic()
        line = self.line(true_reward=true_reward)
        if self._live:
            self._live.update(Text(line))
        if now - self._printed >= PLAIN_SECONDS:
            self._printed = now
            log.info(self.line())
            if not self._live:
                print(line, flush=True)

    @property
    def seconds(self) -> float:
        """Returns the time that the run has taken, including the time before it was resumed."""
        return self._seconds_before + time.monotonic() - self._start

    def line(self, *, true_reward: bool = True) -> str:
        """Returns stage, numbers and time left in one line; without the true reward for labellers, whom it biases."""
        a2c, predictor, evaluation = (self.values[name] for name in ("a2c", "reward predictor", "evaluation"))
        if self._evaluating:
            parts = [f"Evaluating the policy at {self._evaluating['steps']:,.0f} steps"]
        elif a2c.get("training"):
            parts = [
                f"Training the policy {a2c['steps'] / max(a2c['max_steps'], 1):.0%}",
                f"{a2c['steps']:,.0f}/{a2c['max_steps']:,.0f} steps",
                f"{a2c['steps_per_second']:,.0f} steps/s",
            ]
            if math.isnan(a2c["episode_return"]):
                parts.append("no episode has ended yet")
            elif true_reward:
                parts.append(f"true reward {a2c['episode_return']:z.1f}")
            if evaluation and true_reward:
                parts.append(f"evaluation {_both_means(evaluation)}")
        elif steps_left := self.values.get("exploration", {}).get("steps_left"):
            parts = [f"Exploring before anything is learned, {steps_left:,.0f} steps left"]
        elif (imitation := self.values.get("demonstrations")) and not (a2c or predictor.get("epochs")):
            parts = [f"Imitating the demonstrations, epoch {imitation['epoch']:.0f}"]
        elif predictor.get("pretrained"):
            parts = ["The reward predictor is pretrained"]
        elif predictor.get("epochs"):
            epochs = f"epoch {predictor['epochs']:.0f} of {predictor['ends_at_epoch']:.0f} or more"
            parts = [f"Pretraining the reward predictor, {epochs}"]
        elif self.labels < self.goal_labels:
            parts = ["Gathering labels", f"clips {self.clips}"]
        elif self.clips and not self.goal_labels:
            parts = [f"Gathering clips {self.clips}"]
        else:
            parts = ["Starting"]
        if self.goal_labels or self.labels:
            parts.append(f"labels {self.labels}" + (f"/{self.goal_labels}" if self.goal_labels else ""))
        if not math.isnan(predictor.get("validation_accuracy", math.nan)):
            parts.append(f"validation accuracy {predictor['validation_accuracy']:.0%}")
        # People who label see the time left to the goal beside the clips, which follows from their own pace.
        left = None if self.people_label and self._stage()[0] == "gathering" else self._seconds_left()
        parts.append(f"{_clock(self.seconds)} gone" + ("" if left is None else f", {_clock(left)} left"))
        return " · ".join(parts)

    def _stage(self) -> tuple[str, float, float]:
        """Returns the present stage, its progress, and its end as far as it is known."""
        a2c, predictor = self.values["a2c"], self.values["reward predictor"]
        if a2c.get("training"):
            return "training", a2c["steps"], a2c["max_steps"]
        if self._evaluating:
            return "evaluating", 0, 1  # nobody knows how long it takes
        if steps_left := self.values.get("exploration", {}).get("steps_left"):
            return "exploring", -steps_left, 0
        if predictor.get("epochs"):
            return "pretraining", predictor["epochs"], predictor["ends_at_epoch"]
        if (waits := CLIPS.match(self.clips)) and (not self.goal_labels or waits["labels_wait"]):
            return "gathering clips", int(waits["clips"]), int(waits["all"])
        return "gathering", self.labels, self.initial_labels

    def _seconds_left(self) -> float | None:
        """Returns the time left of the present stage, from its mean pace; None if that is unknown.

        While the stage stands still, as the training does during an evaluation, the time runs down.
        """
        now, (stage, done, end) = time.monotonic(), self._stage()
        since, done_then = self._stage_starts.setdefault(stage, (now, done))
        if done == done_then or done >= end:
            return None
        if self._got_on != (stage, done):
            self._got_on, self._end = (stage, done), now + (end - done) * (now - since) / (done - done_then)
        return max(self._end - now, 0)

    def close(self) -> None:
        """Ends the live line; may be called twice."""
        if self._live:
            self._live.stop()
        with contextlib.suppress(OSError):  # reported when the row was written
            self._rows.close()


def summary(progress: Progress, *, rewards: str, uses_preferences: bool) -> str:
    """Returns the results of a run in numbers: rewards, number of labels, and places of files.

    rewards: the true rewards before and after, in words; empty if no policy was trained.
    """
    a2c, predictor, folder = progress.values["a2c"], progress.values["reward predictor"], progress.folder
    rows: list[tuple[str, str]] = []
    if uses_preferences:
        rows.append(("labels used", f"{progress.labels}"))
    if not math.isnan(predictor.get("validation_accuracy", math.nan)):
        rows.append(("validation accuracy", f"{predictor['validation_accuracy']:.1%}"))
    if a2c.get("steps"):
        if rewards:
            rows.append(("true episode reward", rewards))
        rows.append(("agent steps", f"{a2c['steps']:,.0f}"))
    if due := int(predictor.get("batches_due", 0)):
        rows.append(("batches of labels", f"{predictor['batches_trained']:,.0f} trained, {due:,} due"))
    if evaluation := progress.values["evaluation"]:
        rows.append((f"evaluation ({evaluation['deterministic_episodes']:.0f} episodes)", _both_means(evaluation)))
    rows.append(("time", _clock(progress.seconds)))
    rows.append(("run folder", str(folder)))
    rows += [(f"{path.name} checkpoint", str(newest)) for path, newest in _newest_checkpoints(folder)]
    if (folder / "curves.png").exists():
        rows.append(("curves", str(folder / "curves.png")))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)


def _newest_checkpoints(folder: Path) -> list[tuple[Path, Path]]:
    found = [(folder / part, sorted((folder / part).glob("step-*.pt"))) for part in ("policy", "reward_predictor")]
    return [(path, checkpoints[-1]) for path, checkpoints in found if checkpoints]


def draw_curves(folder: Path) -> None:
    """Draws a run's progress.csv and evaluations.csv as `curves.png`: true reward, accuracy, labels, by agent steps."""
    from matplotlib.figure import Figure  # slow to import

    rows = [row for row in PROGRESS.read(folder) if row["steps"]]
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for name in ("episode_return", "training_accuracy", "validation_accuracy", "labels"):
        points = [(float(row["steps"]), as_number(row[name])) for row in rows if not math.isnan(as_number(row[name]))]
        curves[name] = ([x for x, _ in points], [y for _, y in points])
    if not any(x for x, _ in curves.values()):
        return
    has_labels = any(curves["labels"][1])
    width = 11 if has_labels else 6  # inches, of which the margins are for titles, numbers and legends
    figure = Figure(figsize=(width, 4.8))
    figure.subplots_adjust(left=0.9 / width, right=1 - (0.7 if has_labels else 0.2) / width, bottom=0.25, top=0.9)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "frameon": False}  # where a legend hides nothing
    config = read_config(folder)
    figure.suptitle(f"{config['mode']} {config['env_id']}, seed {config['seed']}")
    axes: Any = figure.subplots(1, 2 if has_labels else 1, squeeze=False)[0]
    axes[0].plot(*curves["episode_return"], label="in training, mean of the last 100")
    evaluations = EVALUATIONS.read(folder)
    for policy in POLICIES if evaluations else ():
        points = [(float(row["steps"]), float(row["mean"])) for row in evaluations if row["policy"] == policy]
        axes[0].plot(*zip(*points, strict=True), marker=".", label=f"evaluation, {policy}")
    axes[0].set(xlabel="agent steps", ylabel="true episode reward")
    axes[0].legend(**below)
    if has_labels:
        axes[1].plot(*curves["training_accuracy"], label="accuracy on training labels")
        if curves["validation_accuracy"][0]:  # some labels were held out
            axes[1].plot(*curves["validation_accuracy"], label="accuracy on validation labels")
        axes[1].set(xlabel="agent steps", ylabel="accuracy", ylim=(0.4, 1.02))
        right = axes[1].twinx()
        right.plot(*curves["labels"], color="0.6", linestyle="--")
        right.set(ylabel="labels (dashed)", ylim=(0, None))
        axes[1].legend(**below)
    for axis in axes:
        axis.grid(alpha=0.3)
    drawn(figure, 110).save(folder / "curves.png")


def _turn(number: float, of: float, **worths: float) -> str:
    """Returns a sentence about a new start of the policy, or about the choice among all."""
    if not worths:
        return (
            f"Start {number:.0f} of {of:.0f} of the policy begins, with untrained weights; the best start will go on."
        )
    each = ", ".join(f"{worth:.2f}" for worth in worths.values())
    return f"Start {number:.0f} of {of:.0f} of the policy goes on; on average, a step of each start earned {each}."


def is_terminal() -> bool:
    """Returns whether the terminal can redraw a line in place."""
    return sys.stdout.isatty() and not Console().is_dumb_terminal


def _both_means(evaluation: dict[str, float]) -> str:
    return ", ".join(f"{policy} {evaluation[f'{policy}_mean']:z.1f}" for policy in POLICIES)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
