"""Named experiments: the paper's results as commands, each carried out on several seeds.

python run.py reproduce                      # lists them
python run.py reproduce pong-3.3k --seeds 3
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from commands import LOG_DIR
from commands.recorded import recorded
from commands.run_folder import read_config
from drlhp.cli import nearest
from drlhp.errors import ChildError, UserError
from drlhp.runtime.machine import n_cores
from drlhp.runtime.run_files import EVALUATIONS, PROGRESS

RUN = Path(__file__).resolve().parent.parent / "run.py"
CORES_PER_RUN = 2
BYTES_PER_RUN = 4e9  # memory of a run of Pong that holds 3,000 labels
MEMORY_FREE = Path("/proc/meminfo")
# The memory limit of a container, in the second and the first version of Linux's control groups.
MEMORY_LIMITS = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")

PREFERENCES, TRUE_REWARD = "train_policy_with_preferences", "train_policy_with_original_rewards"
PONG, ENDURO = "PongNoFrameskip-v4", "EnduroNoFrameskip-v4"
GLUCARDS_ENDURO = "ALE/Enduro-v5"
# What bodies have by default, for reasons that envs/tuned.py tells. It is spelled out, so that a command stays what its
# results were measured with, whatever becomes the default.
ALL_LABELS = ("--no_bootstrap", "--no_hold_out")
FEW_PASSES = ("--n_initial_epochs", "25")
HELD_OUT = ("--bootstrap", "--hold_out", "--n_initial_epochs", "200")  # the opposite: as the paper has it
BEGINNING_ANEW = ("--policy_reset_million_timesteps", "0.25")
BODIES_LABELS = {"Hopper": 700, "Walker": 700, "HalfCheetah": 700, "Swimmer": 700, "Reacher": 700, "Ant": 1400}


@dataclass(frozen=True)
class Experiment:
    """A command line without its seed and its run folder."""

    title: str
    command: tuple[str, ...]
    ordinary: str = ""  # the experiment whose agent plays beside this one's in the final video


def _quick(million_timesteps: int) -> tuple[str, ...]:
    """Returns PPO with one pass over large rollouts: the fastest way to learn Pong that we found on a small machine."""
    rollouts = ("--n_envs", "32", "--n_steps", "64", "--ppo_epochs", "1", "--ppo_minibatches", "8")
    length = ("--million_timesteps", str(million_timesteps), "--lr_zero_million_timesteps", str(million_timesteps))
    return ("--algo", "ppo", *rollouts, "--lr", "5e-4", *length)


def _with_labels(env_id: str, n_labels: int, *flags: str) -> tuple[str, ...]:
    return (PREFERENCES, env_id, "--synthetic_prefs", "--max_prefs", str(n_labels), *flags)


def _trick(title: str, env_id: str, teacher: str, n_labels: int, ordinary: str, *flags: str) -> Experiment:
    """Returns an experiment in which a teacher of examples/circus.py gives so many labels."""
    command = (PREFERENCES, env_id, "--teacher", f"examples.circus:{teacher}", "--max_prefs", str(n_labels), *flags)
    return Experiment(f"{title}, {n_labels:,} labels", command, ordinary)


def _bodies() -> dict[str, Experiment]:
    """Returns the paper's MuJoCo tasks on the true reward and on labels, and Gymnasium's tasks on the true reward."""
    found = {}
    for task, n_labels in BODIES_LABELS.items():
        name, env_id = task.lower(), f"{task}-v1"
        few_passes = () if task == "HalfCheetah" else FEW_PASSES  # which earned a little more with all passes
        beginning_anew = BEGINNING_ANEW if task in ("Walker", "Swimmer") else ()
        command = _with_labels(env_id, n_labels, *ALL_LABELS, *few_passes, *beginning_anew)
        found[f"{name}-{n_labels}"] = Experiment(f"{task}, {n_labels:,} labels", command)
        found[f"{name}-true"] = Experiment(f"{task} on the true reward", (TRUE_REWARD, env_id))
    for env_id in (
        *("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Swimmer-v5", "Reacher-v5", "Ant-v5"),
        *("InvertedPendulum-v5", "InvertedDoublePendulum-v5"),
        "Ant-v4",  # without contact forces; most published figures are of versions before 5
    ):
        length = ("--million_timesteps", "1")
        title = f"Gymnasium's {env_id}, unmodified, on its own reward"
        found[f"{env_id.lower()}-true"] = Experiment(title, (TRUE_REWARD, env_id, *length))
    return found


# glucard's set-up: whole games, PPO with a memory, as many steps, and a predictor that sees actions; a script replaces
# the person. Gas and steering take effect soon, hence the short discount.
BRIEF = (
    *("--whole_games", "--algo", "ppo", "--policy_network", "nature_lstm", "--n_envs", "8", "--n_steps", "64"),
    *("--ppo_epochs", "4", "--ppo_minibatches", "4", "--lr", "5e-4", "--lr_zero_million_timesteps", "0"),
    *("--gamma", "0.9", "--ent_coef", "0.03"),
    *("--million_timesteps", "0.030208", "--eval_interval_million_timesteps", "0.030208"),
)
# In so short a run each label has to be used often and early, and few clips should show the untrained agent.
BRIEF_ON_LABELS = (
    *(*BRIEF, "--reward_predictor_uses_actions", "--n_initial_prefs", "100"),
    *("--labels_per_step", "0.3", "--max_segs", "200"),
)
# Few labels have to be informative, so earlier labels decide which clips are compared.
FEW = (
    *("--explore_million_timesteps", "0.05", "--n_initial_rounds", "10"),
    *("--ensemble_size", "3", "--query_selection", "disagreement", "--query_candidates", "100"),
    *ALL_LABELS,
)
FIRST_LAPS = ("--no_whole_games", "--no_reward_predictor_uses_actions")  # as the paper has Enduro
AS_PEOPLE = (*_quick(5), "--whole_games", "--reward_predictor_uses_actions")
MOVING_DOT = (PREFERENCES, "MovingDotNoFrameskip-v0", "--synthetic_prefs")
# The ablations of figure 6, starting from this project's defaults; the paper started from dropout and adaptive L2.
ORIGINAL = _with_labels(PONG, 5500, *_quick(3))
EXPERIMENTS = {
    "moving-dot": Experiment("the moving dot, 500 labels", MOVING_DOT),
    "moving-dot-100": Experiment(
        "the moving dot, 100 labels, after exploring without any, each round of ten chosen by the last ones",
        (*MOVING_DOT, "--max_prefs", "100", "--n_initial_prefs", "100", *FEW),
    ),
    "pong-10k": Experiment("Pong, 10,000 labels", _with_labels(PONG, 10_000, *_quick(3))),
    "pong-5.6k": Experiment("Pong, 5,600 labels", _with_labels(PONG, 5600, *_quick(3))),
    "pong-3.3k": Experiment("Pong, 3,300 labels", _with_labels(PONG, 3300, *_quick(3))),
    "pong-true": Experiment("Pong on the true reward", (TRUE_REWARD, PONG, *_quick(3))),
    "pong-true-a2c": Experiment("Pong on the true reward, the paper's A2C", (TRUE_REWARD, PONG, "--algo", "a2c")),
    "pong-paper": Experiment(
        "Pong, 5,500 labels, the paper's settings where it names them", _with_labels(PONG, 5500, "--preset", "paper")
    ),
    "enduro": Experiment(
        "Enduro, judged by its score, 5,500 labels",
        _with_labels(ENDURO, 5500, "--teacher", "oracle", *_quick(10), *FIRST_LAPS),
    ),
    "enduro-as-people": _trick("Enduro, judged as people judge", ENDURO, "overtaking", 5500, "", *AS_PEOPLE),
    "enduro-true": Experiment("Enduro on the true reward", (TRUE_REWARD, ENDURO, *_quick(10), *FIRST_LAPS)),
    "enduro-290": _trick("Enduro in 30,208 steps", GLUCARDS_ENDURO, "racing", 290, "", *BRIEF_ON_LABELS),
    "enduro-290-true": Experiment("Enduro in 30,208 steps on the true reward", (TRUE_REWARD, GLUCARDS_ENDURO, *BRIEF)),
    "beamrider": Experiment("BeamRider, 5,500 labels", _with_labels("BeamRiderNoFrameskip-v4", 5500, *_quick(10))),
    "breakout": Experiment("Breakout, 5,500 labels", _with_labels("BreakoutNoFrameskip-v4", 5500, *_quick(10))),
    "ablation-none": Experiment("Pong, 5,500 labels, to compare the ablations with", ORIGINAL),
    "ablation-random-queries": Experiment("Pong, queries are random pairs", (*ORIGINAL, "--query_selection", "random")),
    "ablation-no-ensemble": Experiment(
        "Pong, one predictor instead of three, and so random queries", (*ORIGINAL, "--ensemble_size", "1")
    ),
    "ablation-no-l2": Experiment("Pong, no L2: the paper's 'no regularization'", (*ORIGINAL, "--l2", "0")),
    "ablation-no-regularisation": Experiment(
        "Pong, neither L2 nor dropout nor batch norm", (*ORIGINAL, "--l2", "0", "--dropout", "0", "--no_batchnorm")
    ),
    "ablation-no-online-queries": Experiment(
        "Pong, all 5,000 labels asked for before the policy learns",
        _with_labels(PONG, 5000, *_quick(3), "--n_initial_prefs", "5000"),
    ),
    "ablation-target": Experiment(
        "Pong, the predictor fitted to the clips' true returns", (*ORIGINAL, "--reward_target", "true_return")
    ),
    "ablation-no-segments": Experiment(
        "Pong, clips of one step; the paper's, on MuJoCo alone", (*ORIGINAL, "--clip_steps", "1")
    ),
    **_bodies(),
    # As many labels as the paper's people gave (section 3.2), if the paper has the trick.
    # An untrained Hopper lies most of the time, and clips of that cannot show anybody how it should jump.
    "circus-backflip": _trick(
        "Hopper turns backflips",
        *("Hopper-v1", "backflip", 900, "hopper-true"),
        *("--explore_million_timesteps", "0.2", "--n_initial_prefs", "450", *HELD_OUT),
    ),
    "circus-one-leg": _trick(
        "HalfCheetah runs on one leg", "HalfCheetah-v1", "on_one_leg", 800, "halfcheetah-true", *HELD_OUT
    ),
    "circus-ballet": _trick(
        "Walker stands on one leg",
        *("Walker-v1", "ballet", 800, "walker-true"),
        *(*HELD_OUT, "--policy_reset_million_timesteps", "0"),
    ),
    "circus-reacher": _trick(
        "Reacher keeps away from its target",
        *("Reacher-v1", "away_from_the_target", 300, "reacher-true"),
        *HELD_OUT,
    ),
    "circus-level": _trick(
        "Enduro, level with other cars",
        *(ENDURO, "level_with_others", 1300, "enduro-as-people"),
        *(*_quick(1), *FIRST_LAPS),
    ),
}


@dataclass(frozen=True)
class Job:
    """A run of an experiment: one seed, in one run folder."""

    experiment: str
    seed: int
    run: Path

    @property
    def flags(self) -> tuple[str, ...]:
        """The arguments of `run.py` that start the run."""
        place = ("--log_dir", str(self.run.parent), "--run_name", self.run.name)
        return (*EXPERIMENTS[self.experiment].command, "--seed", str(self.seed), *place)

    def check(self) -> None:
        """Raises UserError if the folder holds a run that was started with other settings."""
        # Slow to import, as is everything else that a function here imports: the list appears at once.
        from commands.config import RunConfig, settings
        from commands.flags import parse

        if not self.run.exists():
            return
        try:
            there = settings(RunConfig.from_dict(read_config(self.run)).as_dict())
        except UserError as error:
            raise UserError(f"{self.run} cannot be resumed: {error} Give another --log_dir to start anew.") from error
        wanted = settings(parse(list(self.flags)).as_dict())
        differing = [f"--{flag} {there[flag]}, not {value}" for flag, value in wanted.items() if there[flag] != value]
        if differing:
            raise UserError(
                f"{self.run} holds a run of other settings ({'; '.join(differing[:3])}); give another --log_dir to "
                "start anew."
            )


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
    """Folder that holds the run folders."""
    at_once: int | None = None
    """Number of parallel runs; by default as many as cores and memory allow."""


def reproduce_command(arguments: list[str]) -> None:
    """Carries out `run.py reproduce`. Raises UserError and ChildError."""
    reproduce(tyro.cli(ReproduceConfig, prog="run.py reproduce", args=arguments, use_underscores=True))


def reproduce(config: ReproduceConfig) -> int:
    """Carries out an experiment, or lists all of them.

    Raises:
        UserError: there is no such experiment, no folder for it, or one that holds another one's run.
        ChildError: a run failed.
    """
    name, seeds = config.name, config.seeds
    if name is None:
        _print_experiments()
        return 0
    if name not in EXPERIMENTS:
        raise UserError(f"there is no experiment '{name}'; {nearest(name, list(EXPERIMENTS))}")
    for flag, value in (("seeds", seeds), ("at_once", config.at_once)):
        if value is not None and value < 1:
            raise UserError(f"--{flag} must be 1 or more, not {value}.")
    folder, ordinary = Path(config.log_dir), EXPERIMENTS[name].ordinary
    jobs = [Job(name, seed, folder / f"{name}-seed{seed}") for seed in range(seeds)]
    beside = [Job(ordinary, 0, folder / f"{ordinary}-seed0")] if ordinary else []
    for job in (*jobs, *beside):
        job.check()
    page = _prepare(folder, name)
    n_left = sum(not is_done(job.run) for job in (*jobs, *beside))
    at_once = max(1, min(config.at_once or at_once_by_default(), n_left))  # the cores are divided between them
    print(f"{EXPERIMENTS[name].title}: {seeds} seeds, {at_once} at a time", flush=True)
    failed = _carry_out([*jobs, *beside], at_once)
    _write_report(jobs, page)
    if failed:
        raise ChildError(f"{', '.join(map(str, failed))} did not finish; the same command resumes them.")
    for other in beside:
        _film(jobs[0], other, folder / f"{name}.mp4")
    return 0


def _print_experiments() -> None:
    width = max(map(len, EXPERIMENTS))
    for key, experiment in EXPERIMENTS.items():
        print(f"{key:<{width}}  {experiment.title}\n{'':<{width}}  python run.py {' '.join(experiment.command)}")
        print(f"{'':<{width}}  time of a seed: {recorded(key)}")
    print("Times are those of the runs in results/; many had other work beside them (results/README.md).")


def _prepare(folder: Path, name: str) -> Path:
    """Makes the folder of the runs; returns the report's place, which is checked now and not after hours."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {folder} ({error.strerror}); choose another --log_dir.") from error
    page = folder / f"{name}-report"
    if page.exists():
        from commands.report.command import check_output

        try:
            check_output(page)
        except UserError as error:
            raise UserError(f"{page} is the report's place, and holds something else; move it.") from error
    return page


def _carry_out(jobs: list[Job], at_once: int) -> list[Path]:
    """Carries out the jobs, so many in parallel; returns the folders of those that failed."""
    processes: list[subprocess.Popen[str]] = []
    places: queue.Queue[set[int]] = queue.Queue()
    for cores in _cores(at_once):
        places.put(cores)
    with ThreadPoolExecutor(at_once) as pool:
        try:
            statuses = [pool.submit(_run, job, places, processes) for job in jobs]
            return [job.run for job, status in zip(jobs, statuses, strict=True) if status.result()]
        except (KeyboardInterrupt, BrokenPipeError):  # the latter: nobody reads any more what is printed
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.send_signal(signal.SIGINT)  # each writes its checkpoints
            raise


def _write_report(jobs: list[Job], page: Path) -> None:
    from commands import report
    from commands.environments import lend_environments

    lend_environments()
    if begun := [str(job.run) for job in jobs if (job.run / PROGRESS.name).exists()]:
        report.report_command([*begun, "--output", str(page)])


def _film(job: Job, beside: Job, video: Path) -> None:
    from commands import watch

    watch.watch_command([str(job.run), "--beside", str(beside.run), "--deterministic", "--output", str(video)])


def _cores(n_runs: int) -> list[set[int]]:
    """Returns the processor cores of each parallel run; empty sets if the system cannot pin processes."""
    if not hasattr(os, "sched_getaffinity"):
        return [set()] * n_runs
    cores = sorted(os.sched_getaffinity(0))
    return [set(cores[i::n_runs]) or set(cores) for i in range(n_runs)]


def at_once_by_default() -> int:
    """Returns how many runs the machine's cores and free memory allow."""
    memory = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    if MEMORY_FREE.exists():
        lines = MEMORY_FREE.read_text().splitlines()
        memory += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    limits = [path.read_text().strip() for path in MEMORY_LIMITS if path.exists()]
    memory += [int(limit) for limit in limits if limit.isdigit()]  # "max" means no limit
    return max(1, min(n_cores() // CORES_PER_RUN, int(min(memory) // BYTES_PER_RUN)))


def is_done(run: Path) -> bool:
    """Returns whether a run's policy was trained to its end, and evaluated there."""
    if not run.exists():
        return False
    from drlhp.runtime import checkpoint

    policy = read_config(run)["policy"]
    steps = [int(path.stem.removeprefix("step-")) for path in checkpoint.list_checkpoints(run / "policy")]
    if policy["eval_interval_million_timesteps"]:
        steps = [min(max(steps, default=0), int(row["steps"])) for row in EVALUATIONS.read_to_go_on(run)]
    return max(steps, default=0) >= round(policy["million_timesteps"] * 1e6)


def _run(job: Job, places: queue.Queue[set[int]], processes: list[subprocess.Popen[str]]) -> int:
    """Starts, resumes or skips a run, on cores that are free; returns the exit status."""
    if is_done(job.run):
        print(f"{job.run.name}: done, in {job.run}", flush=True)
        return 0
    arguments = ("--resume", str(job.run)) if job.run.exists() else job.flags
    cores = places.get()
    try:
        with subprocess.Popen(
            [sys.executable, str(RUN), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that only this process sends it Ctrl-C
            preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
        ) as process:
            processes.append(process)
            assert process.stdout is not None
            for line in process.stdout:
                print(f"{job.run.name}: {line}", end="", flush=True)
    finally:
        places.put(cores)
    return process.returncode
