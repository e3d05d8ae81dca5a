"""The report's figures: each function draws one and returns it as a PNG."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter
from PIL import Image

from commands.charts import drawn
from commands.report.model import Bin, Clip, EpisodePlayed, Scored
from commands.report.references import Reference
from commands.report.runs import Curve, Experiment, over_seeds

# Okabe and Ito's colours, which people with any colour vision can tell apart.
BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9"
COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
GREY = "0.45"
DOTS = ((0, (1, 1.5)), (0, (1, 3)), (0, (4, 2, 1, 2)), (0, (6, 3)))  # line styles of references
POLICIES = {"sampled": ("-", "o"), "deterministic": ("--", "s")}  # line and marker of evaluations
DPI = 160
WIDTH, HEIGHT = 5.6, 3.6  # inches: a screen shows two side by side, a phone one, and the text is legible on both
LEGEND_LINE = 0.18  # inches
# PNGs of few colours are a third as large.
PALETTE = 128
CLIP_HEIGHT = 105  # pixels: the greatest height of a clip in the gallery, half of an Atari screen
CLIP_STRIDE = 2  # every second frame of a clip is kept
CLIP_COLOURS = 32
MERGED = 0.03  # references closer than this share of the axis are one line
CROWD = 3  # with more experiments than this, each gets only one curve
SHOWN_BEYOND = 0.3  # references up to this share of the axis beyond the curves are still drawn


def reward(experiments: Sequence[Experiment], x: str, references: Sequence[Reference]) -> bytes:
    """Draws the true episode reward of experiments in one environment, against `steps` or `labels`."""
    figure, axes = _axes()
    for experiment, colour in zip(experiments, _colours(len(experiments)), strict=True):
        plain = experiment.name.replace("$", r"\$")  # a bare $ would begin a formula
        name = f"{plain}: " if len(experiments) > 1 else ""
        _draw_experiment(axes, experiment, x, colour, name, few=len(experiments) > CROWD)
    axes.set(xlabel="agent steps" if x == "steps" else "labels", ylabel="true reward of an episode")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    _draw_references(axes, references, x)
    handles, texts = axes.get_legend_handles_labels()
    entries = dict(zip(texts, handles, strict=True))  # entries that experiments share appear once
    figure.set_figheight(HEIGHT - 0.4 + LEGEND_LINE * len(entries))
    figure.legend(entries.values(), entries.keys(), loc="outside lower left", fontsize=8, frameon=False)
    return _png(figure)


def _draw_experiment(axes: Axes, experiment: Experiment, x: str, colour: Any, name: str, *, few: bool) -> None:
    """Draws evaluations in front of training averages, and several seeds as their mean, lowest and highest.

    With `few`, one curve alone: what the verdict goes by.
    """
    runs = experiment.runs
    policies = [policy for policy in POLICIES if any(len(run.evaluation_curve(policy, x)[0]) for run in runs)]
    if few:
        policies = policies[:1]
    # Training averages are faint if there are evaluations, which matter more.
    if not (few and policies):
        training, alpha = f"{name}training, last 100 episodes", 0.4 if policies else 1
        _draw_curves(axes, [run.curve(x) for run in runs], training, colour, alpha=alpha, band=not policies)
    for i, policy in enumerate(policies):
        line, marker = POLICIES[policy]
        curves = [run.evaluation_curve(policy, x) for run in runs]
        evaluation = f"{name}evaluation, {policy} actions"
        _draw_curves(axes, curves, evaluation, colour, line=line, marker=marker, band=i == 0)
        if len(runs) == 1 and i == 0:
            rows = [row for row in runs[0].evaluations if row.policy == policy]
            axes.vlines(
                [getattr(row, x) for row in rows],
                [row.lowest for row in rows],
                [row.highest for row in rows],
                color=colour,
                alpha=0.35,
                linewidth=2.5,
                label="lowest to highest evaluation episode",
            )


def _draw_curves(
    axes: Axes,
    curves: Sequence[Curve],
    name: str,
    colour: Any,
    *,
    band: bool,
    alpha: float = 1.0,
    line: str = "-",
    marker: str = "",
) -> None:
    style: dict[str, Any] = {"color": colour, "alpha": alpha, "linestyle": line}
    common = over_seeds(curves)
    if common is None:
        for i, (x, y) in enumerate(curves):
            # A single point needs a marker, because it has no line.
            axes.plot(x, y, marker=marker or ("" if len(x) > 1 else "."), label="" if i else name, **style)
        return
    grid, values = common
    axes.plot(grid, values.mean(0), label=f"{name}, mean of {_how_many(values)}", **style)
    if marker:
        for x, y in curves:
            axes.plot(x, y, marker, markersize=3, color=colour, alpha=0.4)
    if band:
        low, high = values.min(0), values.max(0)
        axes.fill_between(grid, low, high, color=colour, alpha=0.2, linewidth=0, label="lowest to highest run")


def _how_many(values: np.ma.MaskedArray) -> str:
    """Returns how many seeds each mean covers, since some runs may be ahead of others, from values (seeds, G)."""
    least, most = (end(values.count(0)) for end in (min, max))
    return f"{most}" if least == most else f"{least} to {most}"


def _draw_references(axes: Axes, references: Sequence[Reference], x: str) -> None:
    """Draws dotted lines at others' final rewards, and points if their steps or labels are on the axis.

    Those far beyond the curves are left out, except the target; neighbours stand together as one line.
    """
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    beyond = SHOWN_BEYOND * (top - bottom)
    drawn = [r for r in references if not r.not_comparable]
    drawn = [r for r in drawn if r.is_target or bottom - beyond <= r.reward <= top + beyond]
    points = {r: place for r in drawn if left <= (place := _place(r, x)) <= right}
    ends = [r for r in drawn if r not in points and not r.on_the_way]
    rewards = [r.reward for r in (*points, *ends)]
    low, high = min(bottom, *rewards, top), max(top, *rewards, bottom)
    span = high - low
    axes.set_ylim(low - 0.04 * span * (low < bottom), high + 0.06 * span * (high > top))
    if points:
        axes.plot(
            list(points.values()),
            [r.reward for r in points],
            "D",
            markersize=5,
            markerfacecolor="none",
            markeredgecolor="0.3",
            label="others at this point (see the table)",
        )
    for i, group in enumerate(_neighbours(ends, MERGED * span)):
        rewards = [r.reward for r in group]
        numbers = f"{rewards[0]:g} to {rewards[-1]:g}" if rewards[0] < rewards[-1] else f"{rewards[0]:g}"
        who = group[0].who if len(group) == 1 else f"{len(group)} results of others (see the table)"
        goal = "".join(f"; the goal, {r.reward:g}" for r in group if r.is_target)
        axes.axhline(
            float(np.mean(rewards)),
            color=GREY,
            linestyle=DOTS[i % len(DOTS)],
            linewidth=1.5,
            label=f"{numbers}: {who}{goal}",
        )
    axes.set_xlim(left, right)


def _neighbours(references: Sequence[Reference], distance: float) -> list[list[Reference]]:
    """Returns references in groups, by rising reward: neighbours in a group are at most `distance` apart."""
    groups: list[list[Reference]] = []
    for reference in sorted(references, key=lambda r: r.reward):
        if groups and reference.reward - groups[-1][-1].reward <= distance:
            groups[-1].append(reference)
        else:
            groups.append([reference])
    return groups


def _place(reference: Reference, x: str) -> float:
    """Returns a reference's place on the axis; NaN if that is unknown, or if it used no labels."""
    place = reference.steps if x == "steps" else reference.labels or None
    return math.nan if place is None else place


def accuracy(curves: dict[str, Curve]) -> bytes:
    """Draws the share of answers that the predictor agrees with, against its training batches."""
    return _training_and_validation(
        curves, "accuracy", "answers predicted right", {"guessing": (0.5, (0, (1, 1.5)))}, percent=True
    )


def loss(curves: dict[str, Curve], *, of_returns: bool = False) -> bytes:
    """Draws the predictor's cross-entropy, or the squared error of its returns, against its training batches."""
    if of_returns:
        return _training_and_validation(curves, "loss", "squared error of a clip's return", {})
    return _training_and_validation(curves, "loss", "cross-entropy (nats)", {"guessing": (np.log(2), (0, (1, 1.5)))})


def _training_and_validation(
    curves: dict[str, Curve], name: str, ylabel: str, marks: dict[str, tuple[float, Any]], *, percent: bool = False
) -> bytes:
    figure, axes = _axes()
    for split, colour, line in (("training", SKY, "-"), ("validation", VERMILION, "-")):
        x, y = curves.get(f"reward_predictor/{split}_{name}", (np.array([]), np.array([])))
        known = np.isfinite(y)
        axes.plot(
            x[known],
            y[known],
            color=colour,
            linestyle=line,
            marker="." if known.sum() < 20 else "",
            label=f"{split} labels",
        )
    for mark, (value, dots) in marks.items():
        axes.axhline(value, color=GREY, linestyle=dots, label=mark)
    axes.set(xlabel="training batches of the reward predictor", ylabel=ylabel)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if percent:
        axes.set_ylim(min(0.4, axes.get_ylim()[0]), 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    figure.legend(loc="outside lower left", fontsize=9, frameon=False, ncols=3)
    return _png(figure)


def calibration(bins: Sequence[Bin]) -> bytes:
    """Draws predicted probabilities against shares of answers, with the number of labels at each point."""
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes, counts = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    predicted, observed = [b.predicted for b in bins], [b.observed for b in bins]
    axes.plot([0, 1], [0, 1], color=GREY, linestyle=(0, (1, 1.5)), label="perfect")
    axes.plot(predicted, observed, "o-", color=BLUE, label="this predictor")
    counts.bar(predicted, [b.count for b in bins], width=0.06, color=SKY)
    for b in bins:
        counts.annotate(f"{b.count}", (b.predicted, b.count), ha="center", va="bottom", fontsize=8)
    counts.margins(y=0.3)
    axes.set(ylabel="share answered A", xlim=(0, 1), ylim=(-0.03, 1.03))
    counts.set(xlabel="predicted probability that A is better", ylabel="labels")
    for part in (axes, counts):
        part.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        _tidy(part)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    counts.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.legend(loc="upper left", fontsize=9, frameon=False)
    return _png(figure)


def correlation(scored: Scored) -> bytes:
    """Draws predicted against true returns of stored segments."""
    figure, axes = _axes(height=4.2)
    axes.scatter(scored.true, scored.predicted, s=12, color=BLUE, alpha=0.35, linewidths=0)
    axes.set(xlabel="true return of the segment (sum of rewards)", ylabel="predicted return (sum of rewards)")
    return _png(figure)


def episode(played: EpisodePlayed) -> bytes:
    """Draws predicted reward along an episode, with marks at true rewards and at the filmstrip's frames."""
    figure, axes = _axes(width=2 * WIDTH, height=1.8 if played.predicted is None else 3.4)
    steps = np.arange(1, len(played.true) + 1)
    if played.predicted is not None:
        axes.plot(steps, played.predicted, color=BLUE, linewidth=1, label="predicted reward")
        axes.set_ylabel("predicted reward of a step")
        axes.margins(y=0.15)
    else:
        axes.set_yticks([])
    across = axes.get_xaxis_transform()  # x in steps, y in shares of the height
    marks = (("above zero", played.true > 0, GREEN, 0.985, "^"), ("below zero", played.true < 0, VERMILION, 0.015, "v"))
    for words, where, colour, height, marker in marks:
        if where.any():
            sparse = where.sum() <= 60
            axes.plot(
                steps[where],
                np.full(where.sum(), height),
                marker if sparse else "|",
                color=colour,
                markersize=7,
                transform=across,
                clip_on=False,
                label=f"true reward {words} ({where.sum():,} steps)",
            )
            if sparse:
                axes.vlines(steps[where], 0, 1, color=colour, alpha=0.3, linewidth=1, transform=across)
    for i, (t, _) in enumerate(played.frames):
        axes.axvline(t, color=GREY, linestyle=(0, (1, 3)), linewidth=1, label="frames below" if i == 0 else "")
    axes.set(xlabel="agent step of the episode", xlim=(0, len(played.true) + 1))
    figure.legend(loc="outside lower left", fontsize=9, frameon=False, ncols=4)
    return _png(figure)


def answer_times(seconds: np.ndarray) -> bytes:
    """Draws how long people took to answer; the slowest twentieth is one bar at the right end."""
    figure, axes = _axes()
    limit = max(float(np.quantile(seconds, 0.95)), 1e-3)
    axes.hist(np.minimum(seconds, limit), bins=min(30, max(5, len(seconds) // 4)), range=(0, limit), color=SKY)
    axes.axvline(float(np.median(seconds)), color=VERMILION, label=f"median {np.median(seconds):.1f} s")
    axes.set(xlabel=f"seconds for an answer (last bar: {limit:.1f} s and more)", ylabel="answers")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper right", fontsize=9, frameon=False)
    return _png(figure)


def speed(curve: Curve) -> bytes:
    """Draws agent steps per second of the whole run, against agent steps."""
    figure, axes = _axes()
    axes.plot(*curve, color=BLUE, marker="." if len(curve[0]) < 20 else "")
    axes.set(xlabel="agent steps", ylabel="agent steps per second", ylim=(0, None))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(EngFormatter(sep=""))
    return _png(figure)


def speed_of_parts(medians: dict[str, float]) -> bytes:
    """Draws the speed that each part alone would allow, the slowest first, and that of the whole run."""
    figure, axes = _axes()
    names = sorted(medians, key=lambda name: medians[name])
    colours = [VERMILION if name == "whole run" else SKY for name in names]
    bars = axes.barh(names, [medians[name] for name in names], color=colours)
    axes.bar_label(bars, [f"{medians[name]:,.0f}" for name in names], padding=3, fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xscale("log")
    axes.set_xlabel("agent steps per second, median (log scale)")
    return _png(figure)


def clip_gif(clip: Clip) -> bytes:
    """Returns a stored clip as a small animation at real speed."""
    frames = clip.frames[::CLIP_STRIDE]
    height, width = frames.shape[1:3]
    size = (round(width * min(1, CLIP_HEIGHT / height)), min(height, CLIP_HEIGHT))
    pictures = [
        Image.fromarray(frame).resize(size, Image.Resampling.BOX).quantize(CLIP_COLOURS, dither=Image.Dither.NONE)
        for frame in frames
    ]
    file = io.BytesIO()
    milliseconds = round(100 * CLIP_STRIDE / clip.fps) * 10  # a GIF counts in hundredths of a second
    pictures[0].save(file, "GIF", save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0)
    return file.getvalue()


def frame_png(frame: np.ndarray) -> bytes:
    """Returns one frame (H, W, 3) uint8 as a PNG."""
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "PNG", optimize=True)
    return file.getvalue()


def _axes(width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    _tidy(axes)
    return figure, axes


def _tidy(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _colours(n: int) -> list[Any]:
    """Returns a different colour for each of N experiments."""
    return list(COLOURS[:n]) if n <= len(COLOURS) else list(matplotlib.colormaps["turbo"](np.linspace(0.05, 0.95, n)))


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    drawn(figure, DPI).quantize(PALETTE, dither=Image.Dither.NONE).save(file, "PNG")
    return file.getvalue()
