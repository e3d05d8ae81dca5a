"""Measures the speed of the project's parts, of whole runs made of them, and of other implementations beside them.

python -m benchmarks.speed.bench              # all of this project's measurements, to results/bench.json
python -m benchmarks.speed.bench --peers      # and those of the other implementations, in the same rounds
python -m benchmarks.speed.bench scaling      # cost against size, to results/scaling.json and a picture for docs/
python -m benchmarks.speed.bench pages        # puts the table of results/bench.json into docs/

Every measurement has a process of its own, and they take turns: a machine that slows down does so for all of them.
What is compared is measured one right after the other.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from a2c.config import PPO_DEFAULTS, PolicyConfig
from benchmarks import ROOT
from benchmarks.pages import PICTURES, write_between
from benchmarks.speed.scaling import AXES, draw
from commands.run_folder import PACKAGES, git_revision, short_revision
from drlhp.errors import UserError
from drlhp.runtime.machine import machine
from reward_predictor import PredictorConfig

REVISION = git_revision()  # before any result of ours changes the tree
RESULTS = ROOT / "results"
TRIALS = ROOT / "runs"  # what --quick and --only write must not replace whole results
PEERS = ROOT / "benchmarks" / "speed" / "peers"
SHORT = ("--seconds", "0.5")
PPO = PolicyConfig(algo="ppo", **PPO_DEFAULTS)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Measurement:
    """A row of the table."""

    title: str
    command: tuple[str, ...]  # of measure.py, or of a peer's script
    quick: tuple[str, ...] = SHORT  # more flags, for a smoke test
    labels: int = 0  # that the store holds which it needs
    peer: str | None = None  # the folder of another implementation


MEASUREMENTS = {
    "emulator": Measurement("Emulator alone", ("emulator",)),
    "policy_forward": Measurement("Policy choosing actions", ("policy_forward",)),
    "policy_update_a2c": Measurement("A2C update", ("policy_update", "--algo", "a2c")),
    "policy_update_ppo": Measurement("PPO update, per pass over the rollout", ("policy_update", "--algo", "ppo")),
    "predictor_forward_a2c": Measurement("Predictor on an A2C rollout", ("predictor_forward", "--algo", "a2c")),
    "predictor_forward_ppo": Measurement("Predictor on a PPO rollout", ("predictor_forward", "--algo", "ppo")),
    "predictor_update": Measurement("Predictor's training", ("predictor_update",), labels=500),
    "true_reward_a2c": Measurement("Run: A2C on true rewards", ("true_reward", "--algo", "a2c"), ("--seconds", "3")),
    "true_reward_ppo": Measurement("Run: PPO on true rewards", ("true_reward", "--algo", "ppo"), ("--seconds", "6")),
    "preferences_a2c": Measurement(
        "Run: A2C on preferences", ("preferences", "--algo", "a2c"), ("--seconds", "3"), 500
    ),
    "preferences_ppo": Measurement(
        "Run: PPO on preferences", ("preferences", "--algo", "ppo"), ("--seconds", "6"), 500
    ),
    "preferences_pong": Measurement(
        "Run: Pong on preferences, with the settings of `reproduce`",
        ("preferences", "--reproduces", "pong-3.3k"),
        ("--seconds", "6"),
        500,
    ),
    "synthetic_labels": Measurement("Synthetic teacher's labels to disk", ("synthetic_labels",), labels=500),
    "clip_delay": Measurement("From clip cut to clip askable", ("clip_delay",)),
    "memory": Measurement("Memory of a run on preferences, 3,000 labels", ("memory",), ("--seconds", "2"), 3000),
    "pretraining": Measurement("Pretraining on 500 labels", ("pretraining",), ("--n-initial-epochs", "1"), labels=500),
    "demo": Measurement("make demo, from start to end", ("demo",), ("--million-timesteps", "0.004")),
}
PEER_MEASUREMENTS = {
    "sb3_a2c": Measurement("Stable-Baselines3 A2C", ("a2c",), ("--steps", "500"), peer="sb3"),
    "sb3_ppo": Measurement("Stable-Baselines3 PPO", ("ppo",), ("--steps", "2048"), peer="sb3"),
    "imitation": Measurement(
        "imitation's preference comparisons, PPO as in ours", (), ("--steps", "2048"), peer="imitation"
    ),
    "imitation_default": Measurement(
        "imitation's preference comparisons, PPO as it is by default",
        ("--default_ppo",),
        ("--steps", "2048"),
        peer="imitation",
    ),
}
# Ours with the settings of theirs; then with our own for the same game.
OUR_COUNTERPARTS = {
    "sb3_a2c": ("true_reward_a2c",),
    "sb3_ppo": ("true_reward_ppo",),
    "imitation": ("preferences_ppo", "preferences_pong"),
    "imitation_default": ("preferences_ppo", "preferences_pong"),
}


# The parts of an agent step of a run, each with the measurement that gives its speed.
PARTS = {
    "emulator": "emulator",
    "acting": "policy_forward",
    "policy update": "policy_update_{algo}",
    "predicting rewards": "predictor_forward_{algo}",
    "training the predictor": "predictor_update",
}


def costs(run: str, medians: Mapping[str, float]) -> dict[str, float]:
    """Seconds that each part takes of an agent step of a run; empty where the speed of one was not measured."""
    kind, _, algo = run.rpartition("_")
    if kind not in ("true_reward", "preferences"):
        return {}
    # How often a part works for each agent step.
    policy = PPO if algo == "ppo" else PolicyConfig()
    times = {
        "acting": (policy.n_steps + 1) / policy.n_steps,  # the value of what comes after a rollout is wanted too
        "policy update": policy.ppo_epochs if algo == "ppo" else 1,
        "training the predictor": PredictorConfig().labels_per_step,
    }
    parts = list(PARTS)[: 3 if kind == "true_reward" else None]
    rates = {part: medians.get(PARTS[part].format(algo=algo)) for part in parts}
    return {part: times.get(part, 1) / rate for part, rate in rates.items() if rate} if all(rates.values()) else {}


def bounds(medians: Mapping[str, float]) -> dict[str, float]:
    """Agent steps/s of each run, if it spent no time but in its parts, one after another."""
    return {run: 1 / sum(parts.values()) for run in medians if (parts := costs(run, medians))}


def bench(rounds: int = 3, only: tuple[str, ...] = (), quick: bool = False, peers: bool = False) -> None:
    """Measures everything, and prints and records the table.

    Args:
        rounds: how often each measurement is taken.
        only: names of the measurements to take; the table then goes to runs/bench.json.
        quick: short ones, to see whether all works; the table then goes to runs/bench.json.
        peers: measure the other implementations too.
    """
    chosen = MEASUREMENTS | (PEER_MEASUREMENTS if peers else {})
    if unknown := set(only) - set(chosen):
        raise UserError(f"no measurement is called {sorted(unknown)[0]}; --only takes {', '.join(chosen)}.")
    chosen = {name: chosen[name] for name in _order() if name in chosen and (name in only or not only)}
    for name in sorted({measurement.peer for measurement in chosen.values() if measurement.peer}):
        _run([sys.executable, str(PEERS / "install.py"), name])
    readings: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    path = (TRIALS if quick or only else RESULTS) / "bench.json"
    TRIALS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=TRIALS) as folder:
        sizes = {measurement.labels for measurement in chosen.values() if measurement.labels}
        stores = {size: _store(Path(folder), size // 10 if quick else size, quick) for size in sizes}
        jobs = {name: _command(measurement, stores, quick) for name, measurement in chosen.items()}
        for name, reading in _in_turns(jobs, rounds):
            readings[name].append(reading)
            _write(path, {"peers": peers, "rounds": rounds, "quick": quick}, {"measurements": _summary(readings)})
    _print(json.loads(path.read_text()))
    print(f"Written to {path.relative_to(ROOT)}")


def scaling(rounds: int = 3, quick: bool = False) -> None:
    """Measures how cost grows with size, and draws it.

    Args:
        rounds: how often each measurement is taken.
        quick: short ones of the smallest sizes, to see whether all works; the results then go to runs/.
    """
    folder = TRIALS if quick else RESULTS
    folder.mkdir(exist_ok=True)
    jobs = {}
    for axis in AXES:
        for size in axis.sizes[: 2 if quick else None]:
            seconds = () if "label_store" in axis.command else ("--seconds", "0.5" if quick else "5")
            jobs[f"{axis.name}={size}"] = _ours(*axis.command, axis.flag, str(size), *seconds)
    readings: dict[str, list[dict[str, Any]]] = {name: [] for name in jobs}
    for name, reading in _in_turns(jobs, rounds):
        readings[name].append(reading)
    _write(folder / "scaling.json", {"rounds": rounds, "quick": quick}, {"measurements": _summary(readings)})
    picture = (TRIALS if quick else PICTURES) / "scaling.png"
    draw(readings, picture)
    print(f"Written to {picture.relative_to(ROOT)}, and every reading to {(folder / 'scaling.json').relative_to(ROOT)}")


def _order() -> Iterator[str]:
    """All measurements; each of another implementation right after ours that it is compared with."""
    for name in MEASUREMENTS:
        yield name
        yield from (theirs for theirs, ours in OUR_COUNTERPARTS.items() if ours[-1] == name)


def _ours(*flags: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.speed.measure", *flags]


def _command(measurement: Measurement, stores: Mapping[int, Path], quick: bool) -> list[str]:
    flags = measurement.command + (measurement.quick if quick else ())
    if measurement.peer:
        script = PEERS / measurement.peer / "run.py"
        return [str(PEERS / f".venv-{measurement.peer}" / "bin" / "python"), str(script), *flags]
    return _ours(*flags, *(("--store", str(stores[measurement.labels])) if measurement.labels else ()))


def _store(folder: Path, n_labels: int, quick: bool) -> Path:
    """A run folder with so many labels of real segments of Pong."""
    flags = ("--n_initial_prefs", str(n_labels), *(("--max_segs", "40") if quick else ()))
    place = ("--log_dir", str(folder), "--run_name", f"store-{n_labels}")
    print(f"Gathering {n_labels} labels to measure with (about half a minute)", flush=True)
    mode = ("gather_initial_prefs", "PongNoFrameskip-v4", "--synthetic_prefs")
    _run([sys.executable, str(ROOT / "run.py"), *mode, *flags, *place])
    return folder / f"store-{n_labels}"


def _in_turns(jobs: Mapping[str, list[str]], rounds: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Carries out A B C .. A B C ..; yields (name, reading), and says how far it is and how long it may take."""
    done, start, total = 0, time.monotonic(), rounds * len(jobs)
    for _ in range(rounds):
        for name, command in jobs.items():
            reading = json.loads(_run(command).strip().split("\n")[-1])
            done += 1
            left = (time.monotonic() - start) / done * (total - done) / 60
            figure = f"{reading['value']:,.5g} {reading['unit']}"
            print(f"[{done}/{total}] {name}: {figure} (about {left:.0f} min left)", flush=True)
            yield name, reading


def _run(command: list[str]) -> str:
    """The standard output of a command.

    Raises:
        UserError: it failed; the message ends with the last line of its errors.
    """
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        last_line = (result.stderr.strip() or result.stdout.strip()).split("\n")[-1]
        raise UserError(f"'{' '.join(command[1:])}' failed: {last_line}")
    return result.stdout


def _summary(readings: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Median, lowest, highest and every reading of what was measured so far."""
    summary = {}
    for name, taken in readings.items():
        if taken:
            values = [reading["value"] for reading in taken]
            figures = {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
            summary[name] = {"unit": taken[0]["unit"], **figures, "readings": taken}
    return summary


def _write(path: Path, settings: dict[str, Any], result: dict[str, Any]) -> None:
    """Records a result with what it depends on."""
    versions = {name: metadata.version(name) for name in PACKAGES}
    about = {"settings": settings, "machine": machine(), "versions": versions, "git_revision": REVISION}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**about, **result}, indent=2) + "\n")


HEAD = ("what", "median", "lowest to highest", "share of the bound", "ours / theirs")


def table(measurements: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The rows of the table, each with as many cells as `HEAD`."""
    medians = {name: float(measurement["median"]) for name, measurement in measurements.items()}
    limits, rows = bounds(medians), list[tuple[str, ...]]()
    for name, measurement in (MEASUREMENTS | PEER_MEASUREMENTS).items():
        if name not in medians:
            continue
        taken, unit = measurements[name], measurements[name]["unit"]
        ours = [measurements[run]["readings"] for run in OUR_COUNTERPARTS.get(name, ()) if run in medians]
        share = f"{medians[name] / limits[name]:.0%} of {limits[name]:,.0f}" if name in limits else ""
        ratio = "; with our settings ".join(f"{_ratio(readings, taken['readings']):.1f}" for readings in ours)
        spread = f"{_figure(taken['lowest'])} to {_figure(taken['highest'])}"
        title = measurement.title + _aside(name, taken["readings"])
        rows.append((title, f"{_figure(medians[name])} {unit}", spread, share, ratio))
    return rows


def _ratio(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> float:
    """How many times as fast; of readings of the same round, between which a machine changes least."""
    return statistics.median(a["value"] / b["value"] for a, b in zip(ours, theirs, strict=False))


def _aside(name: str, readings: list[dict[str, Any]]) -> str:
    """What else a reading says that belongs into the table."""
    if name == "clip_delay":
        return f" (worst {max(reading['worst'] for reading in readings):.0f} ms)"
    if name == "pretraining":
        accuracy = statistics.median(reading["validation_accuracy"] for reading in readings)
        return f" (validation accuracy {accuracy:.0%})"
    if "median" in readings[0]:
        return f" (median of its seconds {statistics.median(reading['median'] for reading in readings):,.0f})"
    return ""


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


SHARES_HEAD = ("of an agent step", *PARTS)


def shares(measurements: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The rows of the table of where the time of a run goes, each with as many cells as `SHARES_HEAD`."""
    medians = {name: float(measurement["median"]) for name, measurement in measurements.items()}
    rows = list[tuple[str, ...]]()
    for name in MEASUREMENTS:
        if parts := costs(name, medians):
            cells = (f"{parts[part] / sum(parts.values()):.0%}" if part in parts else "" for part in PARTS)
            rows.append((MEASUREMENTS[name].title, *cells))
    return rows


def _print(result: dict[str, Any]) -> None:
    measurements = result["measurements"]
    for head, rows in ((HEAD, table(measurements)), (SHARES_HEAD, shares(measurements))):
        shown = Table(*head)
        for row in rows:
            shown.add_row(*row)
        Console().print(shown)


def _markdown(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]


def pages() -> None:
    """Writes the table of results/bench.json into docs/."""
    result = json.loads((RESULTS / "bench.json").read_text())
    measurements = result["measurements"]
    about, readings = result["machine"], [len(measurement["readings"]) for measurement in measurements.values()]
    n_readings = "/".join(str(n) for n in sorted({min(readings), max(readings)}))
    note = (
        f"Machine: {about['processor']}, {about['cores']} cores, Python {about['python']}; commit "
        f"{short_revision(result['git_revision'])}; {n_readings} readings of each. The bound is the speed of a run "
        "that spends no time but in its parts, one after another, at the speeds above; its time would go to:"
    )
    tables = (_markdown(HEAD, table(measurements)), _markdown(SHARES_HEAD, shares(measurements)))
    text = "\n".join([*tables[0], "", note, "", *tables[1]])
    write_between("bench", text)


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or (arguments[0].startswith("--") and arguments[0] != "--help"):
        arguments = ["bench", *arguments]
    try:
        commands: dict[str, Callable[..., Any]] = {"bench": bench, "scaling": scaling, "pages": pages}
        tyro.extras.subcommand_cli_from_dict(commands, args=arguments)
    except (UserError, OSError) as error:
        sys.exit(f"bench.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
