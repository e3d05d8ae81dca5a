"""The command line of a training run: flags, their defaults per environment, and checks of their arithmetic."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
import tyro

import checkpoint
from a2c.config import ALGORITHMS_DEFAULTS, PolicyConfig
from envs import env_info
from pref_interface import PrefsConfig
from processes import UserError
from reward_predictor import PredictorConfig
from run_folder import read_config
from teachers import check_name
from web import PageConfig

Mode = Literal[
    "train_policy_with_preferences",
    "train_policy_with_original_rewards",
    "gather_initial_prefs",
    "pretrain_reward_predictor",
]
MODES: tuple[str, ...] = get_args(Mode)
# Settings that say where a run is kept or how it is shown, and not what it does.
INCIDENTAL = ("run_name", "log_dir", "resume", "render_episodes", "debug", "page")
# Settings of what a run's folder holds: its networks' weights and its clips.
FIXED = (
    *("policy_network", "reward_predictor_network", "reward_predictor_uses_actions", "ensemble_size", "batchnorm"),
    *("clip_steps", "load_prefs_dir"),
    # And what it began with.
    *("load_policy_ckpt_dir", "load_reward_predictor_ckpt_dir", "demonstrations", "init_noise_std"),
    *("explore_million_timesteps", "n_initial_rounds"),
)
OF_AN_ALGORITHM = ("n_envs", "n_steps", "lr", "lr_zero_million_timesteps", "ppo_epochs", "ppo_minibatches")
MOST_SEEDS = 2**62  # PyTorch takes 64 bits, and environments have seeds some way beyond the run's
LARGEST = 2**31 - 1  # of what is counted
INITIAL_SHARE = 0.25  # of all labels, gathered before training; vector observations alone (paper, appendix A.1)


@dataclass(frozen=True)
class RunConfig:
    """A training run."""

    mode: tyro.conf.Positional[Mode]
    """What to do: everything at once, policy training on the true reward, or one stage."""
    env_id: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """Environment, for example MovingDotNoFrameskip-v0, PongNoFrameskip-v4, EnduroNoFrameskip-v4, CartPole-v1 or
    Hopper."""
    seed: int = 0
    """Seed of every random generator."""
    run_name: str | None = None
    """Name of the run's folder; by default the environment and the time."""
    log_dir: str = "runs"
    """Folder that holds the run folders."""
    resume: str | None = None
    """Run folder to carry on with, as far as it came; its settings hold unless a flag says otherwise."""
    render_episodes: bool = False
    """Show the last full episode in a window."""
    synchronous: bool = False
    """Run all parts in one process in lockstep: slower, and the same seed gives the same result bit for bit."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the networks compute: `auto` takes a CUDA card for pixels if there is one, but for `--synchronous` the CPU,
    since sums on a card differ in their last bits from run to run; the networks of bodies are too small for a card."""
    debug: bool = False
    """Print tracebacks, and more to log.txt."""
    prefs: tyro.conf.OmitArgPrefixes[PrefsConfig] = field(default_factory=PrefsConfig)
    predictor: tyro.conf.OmitArgPrefixes[PredictorConfig] = field(default_factory=PredictorConfig)
    policy: tyro.conf.OmitArgPrefixes[PolicyConfig] = field(default_factory=PolicyConfig)
    page: tyro.conf.OmitArgPrefixes[PageConfig] = field(default_factory=PageConfig)

    @property
    def uses_preferences(self) -> bool:
        return self.mode != "train_policy_with_original_rewards"

    @property
    def trains_policy(self) -> bool:
        return self.mode.startswith("train_policy")

    def torch_device(self) -> torch.device:
        """The device that `device` stands for on this machine."""
        if self.device == "auto":
            suits = torch.cuda.is_available() and not self.synchronous and env_info(self.env_id).kind == "pixels"
            return torch.device("cuda" if suits else "cpu")
        return torch.device(self.device)

    def run_path(self) -> Path:
        """Where the run's folder is, or will be."""
        if self.resume:
            return Path(self.resume)
        name = self.run_name or f"{self.env_id.replace('/', '-')}-{datetime.now():%Y%m%d-%H%M%S}"
        return Path(self.log_dir) / name

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for config.json."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunConfig:
        """Rebuilds a config from config.json; raises UserError if it is from another version."""
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


def settings(config: dict[str, Any]) -> dict[str, Any]:
    """What decides a run's course, of its config as plain values, by the names of the flags."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        if name not in INCIDENTAL:
            values.update(value if isinstance(value, dict) else {name: value})
    return values


def nulls(config: dict[str, Any]) -> list[str]:
    """What has no value in a run's config as plain values, and needs one."""
    defaults = RunConfig("gather_initial_prefs", "").as_dict()
    defaults |= settings(defaults)
    return [name for name, value in settings(config).items() if value is None and defaults.get(name) is not None]


def parse(arguments: list[str]) -> RunConfig:
    """The config of a training run from the command line.

    Defaults depend on the environment, the algorithm and what is loaded, so the line is read twice: for these, then
    with the defaults that they give.

    Raises:
        UserError, EnvError: a value that cannot work, in one sentence with the fix.
    """
    arguments = _with_resumed_mode(arguments)
    plain = [argument for argument in arguments if argument not in ("-h", "--help")]
    positionals = [argument for argument in plain[:2] if not argument.startswith("-")]
    if len(positionals) < 2 and plain != arguments:
        return _cli(arguments, None)  # prints what is missing, or the help
    first = _named_in_full(_cli(plain, None))
    flags = [argument.split("=")[0] for argument in plain if argument.startswith("--")]
    named = frozenset(flag.removeprefix("--").replace("-", "_") for flag in flags)
    if first.resume:
        defaults = RunConfig.from_dict(read_config(Path(first.resume)))
        if (first.mode, first.env_id) != (defaults.mode, defaults.env_id):
            raise UserError(
                f"{first.resume} is a run of {defaults.mode} {defaults.env_id}; resume it with these two words."
            )
        defaults = dataclasses.replace(defaults, resume=first.resume)
    else:
        defaults = defaults_for(first, named)
    if "million_timesteps" in named and defaults.policy.lr_zero_million_timesteps:
        lr_zero = max(defaults.policy.lr_zero_million_timesteps, first.policy.million_timesteps)
        policy = dataclasses.replace(defaults.policy, lr_zero_million_timesteps=lr_zero)
        defaults = dataclasses.replace(defaults, policy=policy)
    if any(name == "teacher" or name.startswith("teacher_") for name in named):
        defaults = dataclasses.replace(defaults, prefs=dataclasses.replace(defaults.prefs, synthetic_prefs=True))
    config = _named_in_full(_cli(arguments, defaults))
    validate(config)
    if "ui" in named and config.prefs.synthetic_prefs and config.uses_preferences:
        raise UserError(
            "--ui is for people, and a synthetic teacher answers here; leave it out, or leave out --synthetic_prefs "
            "and --teacher (a run that is resumed: give --no_synthetic_prefs)."
        )
    if first.resume:
        folder = Path(first.resume).resolve()
        moves = "log_dir" in named and Path(first.log_dir).resolve() != folder.parent
        if moves or ("run_name" in named and first.run_name != folder.name):
            raise UserError("a run that is resumed stays where it is; leave out --run_name and --log_dir.")
        before, now = settings(defaults.as_dict()), settings(config.as_dict())
        _check_resumed(before, now)
        if any(now[name] != before[name] for name in ("query_selection", "disagreement_bonus")):
            _validate_ensemble(config)
    return config


def _check_resumed(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises UserError if something is to change that a run's folder holds already."""
    for name in FIXED:
        if now[name] != before[name]:
            raise UserError(
                f"--{name} is {before[name]} for good in a run that is resumed; leave it out, or start a new run."
            )


def _named_in_full(config: RunConfig) -> RunConfig:
    """The same with the environment's full id: Hopper is short for Hopper-v1."""
    return dataclasses.replace(config, env_id=env_info(config.env_id).env_id)


def _cli(arguments: list[str], default: RunConfig | None) -> RunConfig:
    options: dict[str, Any] = {} if default is None else {"default": default}
    words = [argument for argument in arguments[:2] if not argument.startswith("-")]  # mode and environment
    return tyro.cli(RunConfig, prog=" ".join(["run.py", *words]), args=arguments, use_underscores=True, **options)


def _with_resumed_mode(arguments: list[str]) -> list[str]:
    """`run.py --resume FOLDER` alone means the mode and environment of that run."""
    if arguments and arguments[0] == "--resume" and len(arguments) > 1:
        values = read_config(Path(arguments[1]))
        return [str(values.get("mode")), str(values.get("env_id")), *arguments]
    return arguments


def defaults_for(first: RunConfig, named: frozenset[str]) -> RunConfig:
    """The paper's defaults, changed by the algorithm, the environment and what is loaded that `first` names.

    Args:
        named: the flags that were given, of which some come before what is tuned.
    """
    info = env_info(first.env_id)
    tuned = dict(info.tuned)
    if first.mode == "gather_initial_prefs" and "max_prefs" in named:
        tuned["n_initial_prefs"] = first.prefs.max_prefs  # there are no others
    elif info.kind == "vector" and "max_prefs" in named:
        tuned["n_initial_prefs"] = max(1, round(INITIAL_SHARE * first.prefs.max_prefs))
    algo = str(first.policy.algo if "algo" in named else tuned.get("algo", first.policy.algo))
    values: dict[str, Any] = {"clip_steps": info.segment_length, **tuned, "algo": algo}
    if algo != tuned.get("algo", PolicyConfig().algo):  # what was tuned was another algorithm
        values = {name: value for name, value in values.items() if name not in OF_AN_ALGORITHM}
        values |= ALGORITHMS_DEFAULTS[algo]
    elif info.kind == "vector" and first.policy.million_timesteps != PolicyConfig().million_timesteps:
        values["lr_zero_million_timesteps"] = first.policy.million_timesteps  # falls to 0 by the end, whenever that is
    if first.policy.load_policy_ckpt_dir:
        place = Path(first.policy.load_policy_ckpt_dir)
        state = checkpoint.load(checkpoint.find(place, "policy"), kind="policy", env_id=first.env_id)
        values["policy_network"] = state["network"]
    if first.predictor.load_reward_predictor_ckpt_dir:
        place = Path(first.predictor.load_reward_predictor_ckpt_dir)
        path = checkpoint.find(place, "reward_predictor")
        state = checkpoint.load(path, kind="reward_predictor", env_id=first.env_id)
        if not state.get("pretrained", True) and not first.prefs.load_prefs_dir:
            raise UserError(
                f"the training of {path} was stopped before its end; finish it with "
                f"`python run.py --resume {shlex.quote(str(path.parent.parent))}`, or give --load_prefs_dir."
            )
        values |= state["config"]
        # A predictor that is loaded needs no labels: more are asked for only if a number of them is.
        values["n_initial_prefs"] = 0
        values["gather_prefs"] = "max_prefs" in named
    ensemble_size = first.predictor.ensemble_size
    if (ensemble_size if "ensemble_size" in named else values.get("ensemble_size", ensemble_size)) == 1:
        values["query_selection"] = "random"  # one network disagrees with nobody
    return RunConfig(
        first.mode,
        first.env_id,
        prefs=PrefsConfig(**_of(PrefsConfig, values)),
        predictor=PredictorConfig(**_of(PredictorConfig, values)),
        policy=PolicyConfig(**_of(PolicyConfig, values)),
    )


def _of(part: type, values: dict[str, Any]) -> dict[str, Any]:
    """Those of the values that are fields of a part of the config."""
    return {field.name: values[field.name] for field in dataclasses.fields(part) if field.name in values}


def validate(config: RunConfig) -> None:
    """Checks what types cannot: raises UserError with one sentence that says the fix."""
    policy, predictor, prefs = config.policy, config.predictor, config.prefs
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda finds no CUDA card that PyTorch can use; give --device cpu.")
    positive = {
        "million_timesteps": policy.million_timesteps,
        "lr": policy.lr,
        "max_kl": policy.max_kl,
        "init_noise_std": policy.init_noise_std,
    }
    for name, number in positive.items():
        if not 0 < number < float("inf"):
            raise UserError(f"--{name} must be a number above 0, not {number}.")
    at_least = {
        "n_envs": (policy.n_envs, 1),
        "n_steps": (policy.n_steps, 1),
        "ppo_epochs": (policy.ppo_epochs, 1),
        "ppo_minibatches": (policy.ppo_minibatches, 1),
        "policy_ckpt_interval": (policy.policy_ckpt_interval, 1),
        "log_interval": (policy.log_interval, 1),
        "eval_episodes": (policy.eval_episodes, 1),
        "lr_zero_million_timesteps": (policy.lr_zero_million_timesteps, 0),
        "ent_coef": (policy.ent_coef, 0),
        "ent_coef_zero_million_timesteps": (policy.ent_coef_zero_million_timesteps, 0),
        "disagreement_bonus": (policy.disagreement_bonus, 0),
        "explore_million_timesteps": (policy.explore_million_timesteps, 0),
        "policy_reset_million_timesteps": (policy.policy_reset_million_timesteps, 0),
        "first_episode_steps": (policy.first_episode_steps, 0),
        "max_prefs": (prefs.max_prefs, 0),
        "n_initial_prefs": (prefs.n_initial_prefs, 0),  # which may come from the former
        "n_initial_rounds": (prefs.n_initial_rounds, 1),
        "max_segs": (prefs.max_segs, 2),
        "clip_steps": (prefs.clip_steps, 1),
        "query_candidates": (prefs.query_candidates, 1),
        "teacher_end_penalty": (prefs.teacher_end_penalty, 0),
        "teacher_equal": (0.0 if prefs.teacher_equal is None else prefs.teacher_equal, 0),
    }
    for name, (value, least) in at_least.items():
        if not least <= value < float("inf"):
            raise UserError(f"--{name} must be {least} or more{' and finite' * (value > least)}, not {value}.")
        if value > LARGEST:
            raise UserError(f"--{name} must be {LARGEST} or less, not {value}.")
    predictor.check("--")
    check_seed(config.seed)
    if prefs.teacher_end_penalty and ":" in prefs.teacher:
        raise UserError(
            "--teacher_end_penalty must be left out with a function as --teacher, since it changes the true reward, "
            "whose place the function takes."
        )
    if round(policy.million_timesteps * 1e6) < 1:
        raise UserError(f"--million_timesteps must be 0.000001, one step, or more, not {policy.million_timesteps}.")
    if 0 < policy.lr_zero_million_timesteps < policy.million_timesteps:
        raise UserError(
            f"the learning rate would be 0 from {policy.lr_zero_million_timesteps:g} million steps on; give "
            f"--lr_zero_million_timesteps {policy.million_timesteps:g} or more, or 0 to keep it constant."
        )
    if policy.policy_reset_million_timesteps >= policy.million_timesteps:
        raise UserError(
            f"--policy_reset_million_timesteps must be below the {policy.million_timesteps:g} million steps of the "
            f"training, not {policy.policy_reset_million_timesteps:g}."
        )
    interval = policy.eval_interval_million_timesteps
    if interval and not 1 <= interval * 1e6 < float("inf"):
        raise UserError(
            "--eval_interval_million_timesteps must be 0.000001, one step, or more, or 0 for no evaluations, not "
            f"{policy.eval_interval_million_timesteps}."
        )
    shares = {
        "gamma": policy.gamma,
        "gae_lambda": policy.gae_lambda,
        "teacher_gamma": prefs.teacher_gamma,
        "teacher_mistake": prefs.teacher_mistake,
        "teacher_skip": prefs.teacher_skip,
    }
    for name, share in shares.items():
        if share is not None and not 0 <= share <= 1:
            raise UserError(f"--{name} must lie between 0 and 1, not {share}.")
    if not config.resume:
        _validate_ensemble(config)
    if isinstance(prefs.wait_for_labels, float) and not 0 <= prefs.wait_for_labels <= 1:
        raise UserError(
            f"--wait_for_labels must be never, initial or a share from 0 to 1, not {prefs.wait_for_labels}."
        )
    if predictor.crop_steps >= prefs.clip_steps:
        raise UserError(
            f"--crop_steps must be below the {prefs.clip_steps} steps of a clip, not {predictor.crop_steps}."
        )
    if predictor.reward_target == "true_return" and (not prefs.synthetic_prefs or ":" in prefs.teacher):
        raise UserError(
            "--reward_target true_return needs the true reward as its teacher; give --synthetic_prefs, and no function "
            "as --teacher."
        )
    if policy.n_envs * policy.n_steps < policy.ppo_minibatches and policy.algo == "ppo":
        raise UserError("--ppo_minibatches must not exceed n_envs * n_steps; lower it or collect more.")
    if policy.algo == "trpo" and env_info(config.env_id).kind == "pixels":
        raise UserError(f"--algo trpo learns from vectors, and {config.env_id} shows pixels; give --algo ppo.")
    if policy.first_episode_steps:
        _validate_first_episodes(config)
    if policy.policy_network == "nature_lstm":
        if env_info(config.env_id).kind != "pixels":
            raise UserError(f"--policy_network nature_lstm reads pixels, and {config.env_id} shows none; leave it out.")
        if policy.demonstrations:
            raise UserError("--demonstrations are imitated step by step; give --policy_network nature with them.")
    if config.run_name is not None and (config.run_name in ("", ".", "..") or "/" in config.run_name):
        raise UserError(f"--run_name must be the plain name of a folder, not '{config.run_name}'.")
    places = {
        "resume": config.resume,
        "load_prefs_dir": prefs.load_prefs_dir,
        "load_reward_predictor_ckpt_dir": predictor.load_reward_predictor_ckpt_dir,
        "load_policy_ckpt_dir": policy.load_policy_ckpt_dir,
        "demonstrations": policy.demonstrations,
    }
    for name, place in places.items():
        if place == "":  # as of a variable of the shell that is not set
            raise UserError(f"--{name} must name a file or folder, not ''; leave it out to do without.")
    if prefs.teacher_beta is not None and not prefs.teacher_beta > 0:
        raise UserError(f"--teacher_beta must be a number above 0, or inf, not {prefs.teacher_beta}.")
    for name in ("demonstrations", "load_policy_ckpt_dir"):
        for forgetting in ("explore_million_timesteps", "policy_reset_million_timesteps"):
            if getattr(policy, name) and getattr(policy, forgetting) and not config.resume:
                raise UserError(f"--{forgetting} makes the policy forget the --{name} that it starts from; give one.")
    if policy.demonstrations and policy.load_policy_ckpt_dir:
        raise UserError("--demonstrations and --load_policy_ckpt_dir both say what the policy starts from; give one.")
    check_name(prefs.teacher)
    config.page.check()
    _validate_stages(config)


def _validate_first_episodes(config: RunConfig) -> None:
    """Episodes that cannot be given up."""
    info, first = env_info(config.env_id), config.policy.first_episode_steps
    if not info.state_size or info.max_episode_frames is None:
        raise UserError(
            f"--first_episode_steps is for bodies in MuJoCo with a time limit, and {config.env_id} is none; leave it "
            "out."
        )
    if first > info.max_episode_frames:
        raise UserError(
            f"--first_episode_steps must not exceed the {info.max_episode_frames} steps of an episode of "
            f"{config.env_id}; give fewer, or 0."
        )
    if config.policy.continuing_episodes:
        raise UserError(
            "--continuing_episodes goes on with the next episode's rewards, so that a body would learn to be given up; "
            "give --first_episode_steps 0 with it."
        )


def check_seed(seed: int) -> None:
    """Raises UserError unless generators of random numbers and environments take it."""
    if not 0 <= seed < MOST_SEEDS:
        raise UserError(f"--seed must be 0 or more, and below 2^62, not {seed}.")


def _validate_ensemble(config: RunConfig) -> None:
    """What asks for disagreement, which one network alone has none of."""
    if config.predictor.ensemble_size > 1:
        return
    if config.prefs.query_selection == "disagreement" and config.prefs.gather_prefs and config.uses_preferences:
        raise UserError("--query_selection disagreement needs an ensemble; give --ensemble_size 3, or random.")
    if config.policy.disagreement_bonus:
        raise UserError("--disagreement_bonus needs an ensemble; give --ensemble_size 3, or leave it out.")


def _validate_stages(config: RunConfig) -> None:
    """Flags that contradict each other or lack what they need."""
    predictor, prefs = config.predictor, config.prefs
    loads_labels = bool(prefs.load_prefs_dir or config.resume)
    if config.mode == "pretrain_reward_predictor" and not loads_labels:
        raise UserError(
            "pretrain_reward_predictor needs labels: give --load_prefs_dir with the folder of a run that has some."
        )
    if predictor.l2 == "adaptive" and not predictor.hold_out and not predictor.bootstraps:
        raise UserError(
            "--l2 adaptive needs labels that were not trained on: leave out --no_hold_out, or give an ensemble with "
            "bootstraps."
        )
    if prefs.n_initial_rounds > 1:
        if not prefs.gather_prefs:
            raise UserError("--n_initial_rounds above 1 needs labels that are asked for; leave out --no_gather_prefs.")
        if config.mode != "train_policy_with_preferences":
            raise UserError(
                "--n_initial_rounds above 1 needs a reward predictor that learns meanwhile, as it does in "
                "train_policy_with_preferences; leave it out here."
            )
        if prefs.query_selection not in ("disagreement", "entropy"):
            raise UserError(
                "--n_initial_rounds above 1 needs pairs that the reward predictor chooses: give --query_selection "
                f"disagreement or entropy, not {prefs.query_selection}."
            )
        if prefs.n_initial_rounds > prefs.labels_to_start():
            raise UserError(
                f"--n_initial_rounds {prefs.n_initial_rounds} must not exceed the labels that training starts with, "
                f"which are {prefs.labels_to_start()}."
            )
    if config.mode == "gather_initial_prefs" and prefs.gather_prefs and prefs.n_initial_prefs < 1:
        raise UserError("--n_initial_prefs must be 1 or more; --no_gather_prefs gathers segments without labels.")
    if config.mode == "train_policy_with_preferences":
        if not prefs.gather_prefs and not (loads_labels or predictor.load_reward_predictor_ckpt_dir):
            raise UserError(
                "--no_gather_prefs leaves nothing to learn from: give --load_reward_predictor_ckpt_dir or "
                "--load_prefs_dir."
            )
        loads = loads_labels or predictor.load_reward_predictor_ckpt_dir
        if prefs.gather_prefs and prefs.synthetic_prefs and prefs.n_initial_prefs < 1 and not loads:
            raise UserError("--n_initial_prefs must be 1 or more, since the policy starts from these labels.")
        if prefs.gather_prefs and prefs.max_prefs < prefs.n_initial_prefs:
            raise UserError(
                f"--max_prefs {prefs.max_prefs} is below --n_initial_prefs {prefs.n_initial_prefs}, so training would "
                "never start; raise the one or lower the other."
            )
