"""The settings of a training run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from a2c.config import PolicyConfig
from a2c.crew import Cluster
from commands import LOG_DIR, Mode
from commands.trackers import Track
from drlhp.bounds import SEED, at_least, check
from drlhp.errors import UserError
from drlhp.label_server.config import PageConfig
from envs import env_info
from pref_interface import PrefsConfig
from reward_predictor import PredictorConfig

PARTS = ("prefs", "predictor", "policy", "page")  # in which a config, and config.json, keeps most of its settings
# Settings of where a run is kept and how it is shown, which do not change its results.
INCIDENTAL = (
    *("config", "run_name", "log_dir", "store", "resume"),
    *("render_episodes", "debug", "track", "metrics", "page"),
)


@dataclass(frozen=True)
class RunConfig:
    """A training run."""

    mode: tyro.conf.Positional[Mode]
    """What to do: all stages, policy training on the true reward, or one stage."""
    env_id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """Environment, for example MovingDotNoFrameskip-v0, PongNoFrameskip-v4, EnduroNoFrameskip-v4, CartPole-v1 or
    Hopper."""
    config: str | None = None
    """File with settings under the names of their flags: YAML, or the config.json of a run. Flags given here win."""
    preset: Literal["measured", "paper"] = "measured"
    """What other flags start from: the settings that gave the best measured results, or the paper's."""
    observation_key: str | None = None
    """Part of a Dict observation that the networks read, for example `image`. The run's environment is then called
    `ENV[image]`. By default they read all parts, flattened."""
    seed: Annotated[int, SEED] = 0
    """Seed of every random generator."""
    run_name: str | None = None
    """Name of the run's folder; by default the environment and the time."""
    log_dir: str = LOG_DIR
    """Folder that holds the run folders."""
    store: str | None = None
    """Address of a PostgreSQL database for the labels, which people on several machines can then give:
    postgresql://USER@HOST/DATABASE?schema=NAME, with a schema for each run, by default drlhp. The password comes from
    PGPASSWORD or ~/.pgpass. By default the labels are in a file of the run folder."""
    resume: str | None = None
    """Run folder to resume from its newest checkpoints; its settings hold unless a flag says otherwise."""
    render_episodes: bool = False
    """Show the last full episode in a window."""
    synchronous: bool = False
    """Run all parts in one process in lockstep: slower, but the same seed gives the same result bit for bit."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the networks. `auto` takes a CUDA GPU for pixels if there is one, because the networks of vectors are
    too small for it. With `--synchronous` it takes the CPU, because sums on a GPU differ in their last bits between
    runs."""
    actors: str = "local"
    """Who acts in the environments: processes of this machine, or actors on a cluster, for a learner on this machine.
    `ray` is the Ray cluster of this machine, ray://HOST:10001 the one whose head is HOST (docs/clusters.md)."""
    n_actors: Annotated[int, at_least(1)] = 1
    """Actors on the cluster, which share the environments; each needs a core."""
    debug: bool = False
    """Print tracebacks, and more to log.txt."""
    track: Track = "none"
    """Send the curves of TensorBoard, the settings and the command to Weights & Biases or MLflow too."""
    metrics: str | None = None
    """Serve the run's numbers to Prometheus at this port of this machine, or at HOST:PORT."""
    prefs: tyro.conf.OmitArgPrefixes[PrefsConfig] = field(default_factory=PrefsConfig)
    predictor: tyro.conf.OmitArgPrefixes[PredictorConfig] = field(default_factory=PredictorConfig)
    policy: tyro.conf.OmitArgPrefixes[PolicyConfig] = field(default_factory=PolicyConfig)
    page: tyro.conf.OmitArgPrefixes[PageConfig] = field(default_factory=PageConfig)

    @property
    def uses_preferences(self) -> bool:
        return self.mode != "train_policy_with_original_rewards"

    @property
    def cluster(self) -> Cluster | None:
        return None if self.actors == "local" else Cluster(self.actors, self.n_actors)

    @property
    def trains_policy(self) -> bool:
        return self.mode.startswith("train_policy")

    def torch_device(self) -> torch.device:
        """Returns the device that `device` means on this machine."""
        if self.device == "auto":
            suits = torch.cuda.is_available() and not self.synchronous and env_info(self.env_id).kind == "pixels"
            return torch.device("cuda" if suits else "cpu")
        return torch.device(self.device)

    def run_path(self) -> Path:
        """Returns the place of the run's folder, which may not exist yet."""
        if self.resume:
            return Path(self.resume)
        env = self.env_id.replace("/", "-").replace("[", "-").replace("]", "")
        name = self.run_name or f"{env}-{datetime.now():%Y%m%d-%H%M%S}"
        return Path(self.log_dir) / name

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values, for config.json."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunConfig:
        """Rebuilds a config from config.json; raises UserError if another version wrote it."""
        try:
            if empty := nulls(values):
                raise TypeError(f"no {empty[0]} in them")
            parts = {
                "prefs": PrefsConfig(**values["prefs"]),
                "predictor": PredictorConfig(**values["predictor"]),
                "policy": PolicyConfig(**values["policy"]),
                "page": PageConfig(**values.get("page", {})),
            }
            return cls(**{**values, **parts})
        except (TypeError, KeyError) as error:
            raise UserError(
                f"the run was made by another version of the settings ({error}); start a new run."
            ) from error


def check_values(values: dict[str, Any]) -> None:
    """Checks a run's config as plain values, each as the command line checks its flag.

    Values that another version of the settings lacks or does not know are not checked, and neither are `nulls`.

    Raises:
        UserError: a value cannot work.
    """
    whole = RunConfig("gather_initial_prefs", "")
    parts: dict[str, Any] = {
        "prefs": whole.prefs,
        "predictor": whole.predictor,
        "policy": whole.policy,
        "page": whole.page,
    }
    for place, part in {"config": whole, **parts}.items():
        found = values if part is whole else values.get(place)
        if found is None:
            continue
        if not isinstance(found, dict):
            raise UserError(f"{place} must hold settings, not {found!r:.40}.")
        names = ({one.name for one in dataclasses.fields(part)} - parts.keys()) & found.keys()
        may_lack = () if part is whole.page else names.difference(INCIDENTAL)
        known = {name: found[name] for name in names if found[name] is not None or name not in may_lack}
        check(dataclasses.replace(part, **known))


def settings(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that decide a run's results, by flag, from its config as plain values."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        if name not in INCIDENTAL:
            values.update(value if isinstance(value, dict) else {name: value})
    return values


def nulls(config: dict[str, Any]) -> list[str]:
    """Returns the flags that lack a value in a run's config as plain values, and need one."""
    defaults = RunConfig("gather_initial_prefs", "").as_dict()
    defaults |= settings(defaults)
    return [name for name, value in settings(config).items() if value is None and defaults.get(name) is not None]


def gathers(config: RunConfig) -> bool:
    """Returns whether the run asks for labels."""
    return config.mode in ("gather_initial_prefs", "train_policy_with_preferences") and config.prefs.gather_prefs
