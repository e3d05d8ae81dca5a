"""The runs of an experiment: the command that starts each, and what its folder holds already."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from commands.experiments import EXPERIMENTS
from commands.run_folder import read_config
from drlhp.errors import UserError
from drlhp.runtime.run_files import EVALUATIONS

RUN = Path(__file__).resolve().parent.parent / "run.py"


@dataclass(frozen=True)
class Job:
    """A run of an experiment: one seed, in one run folder.

    Args:
        changes: flags that replace those of the experiment.
    """

    experiment: str
    seed: int
    run: Path
    changes: tuple[str, ...] = ()

    @property
    def flags(self) -> tuple[str, ...]:
        """The arguments of `run.py` that start the run."""
        place = ("--log_dir", str(self.run.parent), "--run_name", self.run.name)
        return (*EXPERIMENTS[self.experiment].command, *self.changes, "--seed", str(self.seed), *place)

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
