"""Measures actors on a Ray cluster beside the crew of one machine, and models how many a learner can keep busy.

python -m benchmarks.speed.actors cpu      # processor time per step, side by side
python -m benchmarks.speed.actors link     # bytes per step on a virtual link between two network namespaces; as root
python -m benchmarks.speed.actors model    # measures the parts, replays them for 1 to 256 actors, and draws that
python -m benchmarks.speed.actors pages    # puts the tables into docs/

All of it goes to results/actors.json.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tyro

from benchmarks import ROOT
from benchmarks.pages import PICTURES, write_between
from benchmarks.speed.actors_model import LINKS, Parts, curves, draw, table
from benchmarks.speed.virtual_link import VirtualLink
from commands.run_folder import git_revision, short_revision
from drlhp.runtime.leash import descendants, everything_ends_here
from drlhp.runtime.machine import machine

REVISION = git_revision()  # before any result of ours changes the tree
RESULTS = ROOT / "results" / "actors.json"
ALGORITHMS = ("a2c", "ppo")
TICK = os.sysconf("SC_CLK_TCK")
Reading = dict[str, Any]


@contextlib.contextmanager
def acting(config: Any, n_actors: int) -> Iterator[Any]:
    """The policy's worker on the true reward in this process, with actors on the cluster of this machine."""
    from a2c.crew import Cluster
    from a2c.worker import PolicyWorker, WorkerSpec
    from benchmarks.speed.parts import PONG, scratch_folder
    from drlhp.runtime.channels import Channels

    channels = Channels.create(synchronous=False, take_turns=False)
    with scratch_folder() as folder:
        worker = PolicyWorker(WorkerSpec(PONG, config, folder, 0, cluster=Cluster("ray", n_actors)), channels)
        try:
            yield worker
        finally:
            worker.close()


def pong(algo: str, **changes: Any) -> Any:
    """The settings of Pong, without evaluations and checkpoints."""
    from benchmarks.speed.parts import pong_config

    changes |= {"eval_interval_million_timesteps": 0, "policy_ckpt_interval": 10**9}
    return dataclasses.replace(pong_config(algo).policy, **changes)  # type: ignore[arg-type]


def processor_seconds() -> tuple[float, float]:
    """Returns what this process and its children have taken so far: without Ray's, and Ray's alone."""
    own = [os.getpid(), *descendants(os.getpid())]
    rays = set()
    for pid in own:
        with contextlib.suppress(OSError):
            if any(name in Path(f"/proc/{pid}/cmdline").read_text() for name in ("raylet", "gcs_server")):
                rays |= {pid, *descendants(pid)}
    return _ticks(set(own) - rays) / TICK, _ticks(rays) / TICK


def _ticks(pids: set[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(words[11]) + int(words[12])
    return total


def cpu(rounds: int = 5, seconds: float = 5.0) -> None:
    """Processor time per agent step of two actors and a learner, beside that of a crew of two with as many steps."""
    from benchmarks.speed.parts import leading

    found = {}
    for algo in ALGORITHMS:
        config, readings = pong(algo), []
        with leading(config) as crew, acting(config, 2) as actors:
            for worker in (crew, actors):
                worker.step()
            updates = _updates_in(crew, seconds)
            for _ in range(rounds):
                of_crew, of_actors = _per_step(crew, updates, rays=False), _per_step(actors, updates, rays=True)
                readings.append({"crew_ms": of_crew, "actors_ms": of_actors, "ratio": of_actors / of_crew})
                print(algo, {name: round(value, 3) for name, value in readings[-1].items()}, flush=True)
        medians = {name: statistics.median(one[name] for one in readings) for name in readings[0]}
        found[algo] = {**medians, "n_envs": config.n_envs, "n_steps": config.n_steps, "readings": readings}
        _keep("cpu", found)


def _updates_in(worker: Any, seconds: float) -> int:
    """Returns how many updates take about so long."""
    begin = time.perf_counter()
    worker.step()
    return max(1, round(seconds / (time.perf_counter() - begin)))


def _per_step(worker: Any, updates: int, *, rays: bool) -> float:
    """Returns the processor time of a step, in ms; Ray's is counted if it acts."""
    ours, theirs = processor_seconds()
    for _ in range(updates):
        worker.step()
    ours_now, theirs_now = processor_seconds()
    taken = ours_now - ours + (theirs_now - theirs if rays else 0.0)
    return 1e3 * taken / (updates * worker.runner.rollout.n_decisions)


def link(updates: int = 30) -> None:
    """Bytes per agent step between a learner and a node with two actors; PPO's updates are longer, so it has fewer."""
    found = {}
    with VirtualLink() as wire:
        for algo in ALGORITHMS:
            config = pong(algo)
            os.environ.update(wire.start(2))
            try:
                with acting(config, 2) as worker:
                    worker.step()
                    n, before, began = updates if algo == "a2c" else updates // 10, wire.counted(), time.perf_counter()
                    for _ in range(n):
                        worker.step()
                    took, now = time.perf_counter() - began, wire.counted()
                steps = n * worker.runner.rollout.n_decisions
            finally:
                wire.stop()
            up, down = ((now[i] - before[i]) / steps for i in range(2))
            found[algo] = {
                "up": up,
                "down": down,
                "down_per_update": down * steps / n,
                "steps": steps,
                "seconds": took,
            }
            print(algo, {name: round(value) for name, value in found[algo].items()}, flush=True)
    _keep("link", found)


def model(rounds: int = 5) -> None:
    """Measures the parts of an update one by one, and replays them for 1 to 256 actors. It measures no such cluster."""
    parts = {algo: Parts.measure(pong(algo), rounds) for algo in ALGORITHMS}
    found = {
        algo: {"parts": dataclasses.asdict(part), "curves": {name: curves(part, rate) for name, rate in LINKS.items()}}
        for algo, part in parts.items()
    }
    _keep("model", found)
    draw(parts, PICTURES / "actors.png")


def _keep(name: str, found: Reading) -> None:
    """Puts a part's findings into the results, beside those of the others."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[name] = {"machine": machine(), "git_revision": REVISION, **found}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def pages() -> None:
    """Writes the tables of results/actors.json into docs/."""
    results = json.loads(RESULTS.read_text())
    lines = ["| | A2C | PPO |", "|---|---|---|"]
    rows = (
        ("processor time per step, crew of two", "cpu", "crew_ms", "{:.2f} ms"),
        ("processor time per step, learner and two actors", "cpu", "actors_ms", "{:.2f} ms"),
        ("ratio, median of rounds side by side", "cpu", "ratio", "{:.2f}"),
        ("bytes per step to the learner, on the link", "link", "up", "{:.0f}"),
        ("bytes per update to a node, on the link", "link", "down_per_update", "{:,.0f}"),
    )
    for title, part, key, form in rows:
        lines.append(f"| {title} | " + " | ".join(form.format(results[part][algo][key]) for algo in ALGORITHMS) + " |")
    about = results["cpu"]["machine"]
    note = (
        f"Pong; {about['processor']}, {about['cores']} cores; commit {short_revision(results['cpu']['git_revision'])}."
    )
    write_between("actors", "\n".join([*lines, "", note]))
    parts = {algo: Parts(**results["model"][algo]["parts"]) for algo in ALGORITHMS}
    write_between("actors-model", table(parts))


def main() -> None:
    environment = dict(os.environ)
    # Late: `run` sets environment variables for its children, which have to be there when a process starts.
    import torch

    from benchmarks.speed.parts import pong_config
    from run import n_threads, take_turns

    if dict(os.environ) != environment:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    torch.set_num_threads(n_threads(take_turns(pong_config()), torch.device("cpu")))  # as the policy's process has
    commands = {"cpu": cpu, "link": link, "model": model, "pages": pages}
    tyro.extras.subcommand_cli_from_dict(commands)  # type: ignore[arg-type]


if __name__ == "__main__":
    with everything_ends_here():
        main()
