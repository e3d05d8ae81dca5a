"""`run.py reproduce`: carries out a named experiment on several seeds.

python run.py reproduce                      # lists them
python run.py reproduce pong-3.3k --seeds 3
python run.py reproduce pong-3.3k --grid lr.yaml --on ray
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated

import tyro

from commands import LOG_DIR, parallel
from commands.experiments import EXPERIMENTS
from commands.jobs import Job, is_done
from commands.recorded import recorded
from drlhp.cli import nearest
from drlhp.errors import ChildError, UserError
from drlhp.runtime.run_files import PROGRESS


@dataclass(frozen=True)
class ReproduceConfig:
    """Carries out a named experiment on seeds 0, 1, ..., and writes a report about them.

    Finished runs stay as they are, and stopped ones are resumed. An experiment that teaches a trick also trains one
    ordinary agent of the same body, and ends in a video of the first seed's agent beside it.
    """

    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[NAME]")] = None
    """The experiment; without a name, all of them are listed."""
    seeds: int = 3
    """Number of seeds."""
    log_dir: str = LOG_DIR
    """Folder that holds the run folders; with --on, on storage that all nodes share."""
    at_once: int | None = None
    """Number of parallel runs; by default as many as cores and memory allow, or as the cluster has room for."""
    grid: str | None = None
    """YAML or JSON file of a sweep. It has flags with lists of values, of which all combinations are carried out on all
    seeds, or a list of such combinations."""
    on: str | None = None
    """`ray` carries the runs out on the Ray cluster that this machine belongs to (or that RAY_ADDRESS names), else on a
    Ray of their own; ray://HOST:10001 on the cluster whose head is HOST."""
    cores_per_run: int | None = None
    """Processor cores of each run; by default 2 if the policy sees pictures, else 1, because a second one helps it
    little."""
    gpus_per_run: float = 0
    """GPUs of each run, with --on; 0.5 lets two runs share one."""


def reproduce_command(arguments: list[str]) -> None:
    """Carries out `run.py reproduce`. Raises UserError and ChildError."""
    reproduce(tyro.cli(ReproduceConfig, prog="run.py reproduce", args=arguments, use_underscores=True))


def reproduce(config: ReproduceConfig) -> int:
    """Carries out an experiment, or lists all of them.

    Raises:
        UserError: there is no such experiment, no folder for it, or one that holds another one's run; or the grid or
            the cluster cannot be used.
        ChildError: a run failed.
    """
    if config.name is None:
        _print_experiments()
        return 0
    if config.name not in EXPERIMENTS:
        raise UserError(f"there is no experiment '{config.name}'; {nearest(config.name, list(EXPERIMENTS))}")
    for flag, value in (("seeds", config.seeds), ("at_once", config.at_once)):
        if value is not None and value < 1:
            raise UserError(f"--{flag} must be 1 or more, not {value}.")
    needs = Needs.of(config)
    needs.check(config.on)
    plan = Plan.make(config.name, config.seeds, Path(config.log_dir), config.grid)
    return _carry_out(plan, config.on, config.at_once, needs)


@dataclass(frozen=True)
class Plan:
    """All runs of a command.

    Args:
        name: the experiment, and its grid if there is one.
        title: the same in words.
        jobs: the runs that the report is about.
        beside: the run of the ordinary agent that a trick is shown beside.
    """

    name: str
    title: str
    log_dir: Path
    jobs: list[Job]
    beside: list[Job]

    @classmethod
    def make(cls, name: str, seeds: int, log_dir: Path, grid: str | None) -> Plan:
        """Returns the runs of an experiment. Raises UserError if the grid cannot be used."""
        title, ordinary = EXPERIMENTS[name].title, EXPERIMENTS[name].ordinary
        title += ": 1 seed" if seeds == 1 else f": {seeds} seeds"
        if grid is None:
            jobs = [Job(name, seed, log_dir / f"{name}-seed{seed}") for seed in range(seeds)]
            beside = [Job(ordinary, 0, log_dir / f"{ordinary}-seed0")] if ordinary else []
            return cls(name, title, log_dir, jobs, beside)
        from commands.grid import read_grid  # it needs PyTorch

        rows = read_grid(Path(grid), name)
        jobs = [
            Job(name, seed, log_dir / f"{'-'.join(filter(None, [name, row.name]))}-seed{seed}", row.words)
            for row in rows
            for seed in range(seeds)
        ]
        return cls(f"{name}-{Path(grid).stem}", f"{title} for each of {len(rows)} settings", log_dir, jobs, [])

    @property
    def all(self) -> list[Job]:
        return [*self.jobs, *self.beside]


@dataclass(frozen=True)
class Needs:
    """What each run needs of the machine that carries it out."""

    cores: int
    memory: float  # bytes
    gpus: float

    @classmethod
    def of(cls, config: ReproduceConfig) -> Needs:
        """Returns what the experiment's runs make use of, or what the user gives them. Raises EnvError."""
        from envs import env_info  # slow to import

        assert config.name is not None
        # The memory is that of Pong with 3,000 labels, and of SAC.
        cores, memory = (2, 4e9) if env_info(EXPERIMENTS[config.name].command[1]).kind == "pixels" else (1, 2e9)
        return cls(cores if config.cores_per_run is None else config.cores_per_run, memory, config.gpus_per_run)

    def check(self, on: str | None) -> None:
        """Raises UserError if nothing can have that, or if --on names nothing."""
        if self.cores < 1:
            raise UserError(f"--cores_per_run must be 1 or more, not {self.cores}.")
        if not 0 <= self.gpus < math.inf or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise UserError(f"--gpus_per_run must be a whole number, or a share of one GPU, not {self.gpus:g}.")
        if self.gpus and on is None:
            raise UserError(
                "--gpus_per_run is for clusters (--on); here each run finds the GPU itself, so leave it out."
            )


def _carry_out(plan: Plan, on: str | None, at_once: int | None, needs: Needs) -> int:
    """Carries out all runs, and writes the report and the video. Raises UserError, and ChildError if a run failed."""
    for job in plan.all:
        job.check()
    with ray_for(on, needs) as ray:
        page = _prepare(plan)
        failed = _carry_out_here(plan, at_once, needs) if ray is None else _carry_out_on(ray, plan, at_once, needs)
    _write_report(plan.jobs, page)
    if failed:
        raise ChildError(f"{', '.join(map(str, failed))} did not finish; the same command resumes them.")
    for other in plan.beside:
        _film(plan.jobs[0], other, plan.log_dir / f"{plan.name}.mp4")
    return 0


@contextlib.contextmanager
def ray_for(on: str | None, needs: Needs) -> Iterator[ModuleType | None]:
    """Connects to the cluster for the block, and yields Ray, or None without --on. Raises UserError if that fails."""
    if on is None:
        yield None
        return
    from drlhp.runtime.ray_connection import connected  # without --on nothing of Ray is imported

    with connected(on, "--on", needs.cores) as ray:
        yield ray


def _carry_out_here(plan: Plan, at_once: int | None, needs: Needs) -> list[Path]:
    """Carries out the runs on this machine; returns the folders of those that failed."""
    at_once = parallel.at_once_by_default(needs.cores, needs.memory) if at_once is None else at_once
    n_left = sum(not is_done(job.run) for job in plan.all)
    at_once = max(1, min(at_once, n_left))  # the cores are divided between them
    print(f"{plan.title}, {at_once} at a time", flush=True)
    return parallel.carry_out(plan.all, at_once)


def _carry_out_on(ray: ModuleType, plan: Plan, at_once: int | None, needs: Needs) -> list[Path]:
    """Carries out the runs on a cluster; returns the folders of those that failed."""
    from commands.ray_runs import carry_out, sign_on

    with sign_on(plan.log_dir, plan.name) as sign:
        print(f"{plan.title}, each on {needs.cores} cores of a node", flush=True)
        return carry_out(ray, plan.all, needs.cores, needs.gpus, at_once, sign)


def _print_experiments() -> None:
    width = max(map(len, EXPERIMENTS))
    for key, experiment in EXPERIMENTS.items():
        print(f"{key:<{width}}  {experiment.title}\n{'':<{width}}  python run.py {' '.join(experiment.command)}")
        print(f"{'':<{width}}  time of a seed: {recorded(key)}")
    print("Times are those of the runs in results/; many had other work beside them (results/README.md).")


def _prepare(plan: Plan) -> Path:
    """Makes the folder of the runs; returns the report's place, which is checked now and not after hours."""
    try:
        plan.log_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {plan.log_dir} ({error.strerror}); choose another --log_dir.") from error
    page = plan.log_dir / f"{plan.name}-report"
    if page.exists():
        from commands.report.command import check_output

        try:
            check_output(page)
        except UserError as error:
            raise UserError(f"{page} is the report's place, and holds something else; move it.") from error
    return page


def _write_report(jobs: list[Job], page: Path) -> None:
    from commands import report
    from commands.environments import lend_environments

    lend_environments()
    if begun := [str(job.run) for job in jobs if (job.run / PROGRESS.name).exists()]:
        report.report_command([*begun, "--output", str(page)])


def _film(job: Job, beside: Job, video: Path) -> None:
    from commands import watch

    watch.watch_command([str(job.run), "--beside", str(beside.run), "--deterministic", "--output", str(video)])
