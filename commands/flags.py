"""The command line of a training run: flags to a config, with defaults for the environment."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tyro

from a2c.config import ALGORITHMS_DEFAULTS, Algo, PolicyConfig
from commands import LOG_DIR
from commands.config import PARTS, RunConfig, settings
from commands.rules import check_ensemble, validate
from commands.run_folder import read_config, read_record
from drlhp.cli.arguments import ABSENT, lacks, value_of
from drlhp.cli.runs import find_run
from drlhp.data.address import Address
from drlhp.errors import UserError
from drlhp.labelling.notices import FEW_LABELS
from drlhp.runtime import checkpoint
from envs import env_info, with_key
from envs.tuned import LEARNED_BETTER, VECTOR_DEFAULTS, papers_settings
from pref_db import store_path
from pref_interface import PrefsConfig
from reward_predictor import PredictorConfig

# Settings that a resumed run cannot change.
FIXED = (
    # They describe what the run's folder holds: its networks' weights and its clips.
    *("policy_network", "reward_predictor_network", "reward_predictor_uses_actions", "ensemble_size", "batchnorm"),
    *("clip_steps", "load_prefs_dir", "all_frames"),
    "preset",  # it says what the others started from
    # They say what the run began with.
    *("load_policy_ckpt_dir", "load_reward_predictor_ckpt_dir", "demonstrations", "init_noise_std"),
    *("explore_million_timesteps", "n_initial_rounds"),
)


OF_AN_ALGORITHM = ("n_envs", "n_steps", "lr", "lr_zero_million_timesteps", "ppo_epochs", "ppo_minibatches")
OF_A_GAME = (*OF_AN_ALGORITHM, "million_timesteps")  # how long a game takes to learn depends on the algorithm too
# SAC needs fewer steps. It rewards all its steps anew, so it loses early habits without being reset.
OF_STARTS = ("policy_reset_million_timesteps", "policy_resets")
OF_ROLLOUTS = (*OF_A_GAME, *OF_STARTS)


# Share of all labels that are gathered before training; for vector observations only (paper, appendix A.1).
INITIAL_SHARE = 0.25
# Flags that say how many labels are gathered first: themselves, or because a loaded predictor needs none.
NAMES_INITIAL = ("n_initial_prefs", "load_reward_predictor_ckpt_dir", "resume")


def parse(arguments: list[str]) -> RunConfig:
    """Returns the config of a training run from the command line.

    Defaults depend on the environment, the algorithm and loaded checkpoints. So the line is parsed for these first, and
    what it names then replaces the defaults that follow from them.

    Raises:
        UserError, EnvError: a value that cannot work, in one sentence with the fix.
    """
    arguments = _with_resumed_mode(arguments)
    plain = [argument for argument in arguments if argument not in ("-h", "--help")]
    positionals = [argument for argument in plain[:2] if not argument.startswith("-")]
    if len(positionals) < 2 and plain != arguments:
        return _cli(arguments, None)  # prints the help
    given = _cli(plain, RunConfig("train_policy_with_preferences", ABSENT))
    if given.env_id == ABSENT:
        raise lacks(["ENV"], f"{given.mode} MovingDotNoFrameskip-v0")
    first = _in_full(given)
    flags = [argument.split("=")[0] for argument in plain if argument.startswith("--")]
    named = frozenset(flag.removeprefix("--").replace("-", "_") for flag in flags)
    defaults = _recorded(first) if first.resume else defaults_for(first, named)
    length = (first if "million_timesteps" in named else defaults).policy.million_timesteps
    if 0 < defaults.policy.lr_zero_million_timesteps < length:
        policy = dataclasses.replace(defaults.policy, lr_zero_million_timesteps=length)
        defaults = dataclasses.replace(defaults, policy=policy)
    if any(name == "teacher" or name.startswith("teacher_") for name in named):
        defaults = dataclasses.replace(defaults, prefs=dataclasses.replace(defaults.prefs, synthetic_prefs=True))
    if plain != arguments:
        return _cli(arguments, defaults)  # prints the help
    config = _in_full(_with_named(defaults, given, named))
    validate(config)
    if "ui" in named and config.prefs.synthetic_prefs and config.uses_preferences:
        raise UserError(
            "--ui is for people, and a synthetic teacher answers here; leave it out, or leave out --synthetic_prefs "
            "and --teacher (when you resume a run: give --no_synthetic_prefs)."
        )
    if first.resume:
        _check_place(Path(first.resume).resolve(), first, named)
        _check_changes(defaults, config)
    for sentence in _notes(config, first, named):
        print(sentence, flush=True)
    return config


def _with_named(defaults: RunConfig, given: RunConfig, named: frozenset[str]) -> RunConfig:
    """Returns the defaults with the settings that the command line names; `--no_batchnorm` names batchnorm."""
    said = {"mode", "env_id", *(name.removeprefix("no_") for name in named)}

    def replaced(part: Any, source: Any) -> Any:
        names = said & {field.name for field in dataclasses.fields(part)}
        return dataclasses.replace(part, **{name: getattr(source, name) for name in names})

    parts = {name: replaced(getattr(defaults, name), getattr(given, name)) for name in PARTS}
    return dataclasses.replace(replaced(defaults, given), **parts)


def _notes(config: RunConfig, first: RunConfig, named: frozenset[str]) -> Iterator[str]:
    """Yields what a user may not expect of the defaults."""
    prefs = config.prefs
    if config.mode == "train_policy_with_preferences" and (fewer := _fewer_initial_labels(first, named)):
        yield f"Training starts after {fewer} of the {prefs.max_prefs} labels; --n_initial_prefs changes that."
    asks_teacher = prefs.synthetic_prefs and prefs.gather_prefs and config.uses_preferences
    if asks_teacher and "teacher" not in named and not first.resume and prefs.teacher != PrefsConfig.teacher:
        yield (
            f"The synthetic teacher is {prefs.teacher}, because the true reward cannot tell the first clips of this "
            "game apart; --teacher oracle judges by it."
        )


def _recorded(first: RunConfig) -> RunConfig:
    """Returns the config of the run that is to be resumed."""
    record = read_record(Path(first.resume or ""))
    if "loaded_from" in record:  # its settings are somebody else's, and may name modules to run
        raise UserError(
            f"{first.resume} was loaded from {record['loaded_from']}, so there is no run to resume; start one with "
            f"--load_policy_ckpt_dir or --load_reward_predictor_ckpt_dir {shlex.quote(first.resume or '')}."
        )
    was = RunConfig.from_dict(record["config"])
    if (first.mode, first.env_id) != (was.mode, was.env_id):
        raise UserError(f"{first.resume} is a run of {was.mode} {was.env_id}; resume it with these two words.")
    return dataclasses.replace(was, resume=first.resume)


def _check_place(folder: Path, first: RunConfig, named: frozenset[str]) -> None:
    """Raises UserError if a flag would move a resumed run."""
    moves = "log_dir" in named and Path(first.log_dir).resolve() != folder.parent
    if moves or ("run_name" in named and first.run_name != folder.name):
        raise UserError("a resumed run stays where it is; leave out --run_name and --log_dir.")


def _check_changes(before: RunConfig, now: RunConfig) -> None:
    """Raises UserError if a flag changes a setting that a resumed run has to keep."""
    old, new = settings(before.as_dict()), settings(now.as_dict())
    if now.store != before.store:
        place = Path(now.resume or "") / "prefs.db"
        if before.store is None:
            raise UserError("this run keeps its labels in a file; leave out --store, or start a new run.")
        raise UserError(
            f"--store stays {before.store} in a resumed run; leave it out, and write the new address of a database "
            f"that has moved into {place}."
        )
    for name in FIXED:
        if new[name] != old[name]:
            raise UserError(f"--{name} stays {old[name]} in a resumed run; leave it out, or start a new run.")
    if any(new[name] != old[name] for name in ("query_selection", "disagreement_bonus")):
        check_ensemble(now)


def _in_full(config: RunConfig) -> RunConfig:
    """Returns the config with the environment's full id, and with the places of the runs that it names.

    Hopper is short for Hopper-v1, and a key is a part of the id.
    """

    def place(name: str | None) -> str | None:
        return str(find_run(name, config.log_dir)) if name else name

    prefs, policy, predictor = config.prefs, config.policy, config.predictor
    loaded = place(predictor.load_reward_predictor_ckpt_dir)
    return dataclasses.replace(
        config,
        env_id=env_info(with_key(config.env_id, config.observation_key)).env_id,
        store=str(Address.parse(config.store)) if config.store else config.store,
        resume=place(config.resume),
        prefs=dataclasses.replace(prefs, load_prefs_dir=place(prefs.load_prefs_dir)),
        policy=dataclasses.replace(policy, load_policy_ckpt_dir=place(policy.load_policy_ckpt_dir)),
        predictor=dataclasses.replace(predictor, load_reward_predictor_ckpt_dir=loaded),
    )


def _cli(arguments: list[str], default: RunConfig | None) -> RunConfig:
    options: dict[str, Any] = {} if default is None else {"default": default}
    words = [argument for argument in arguments[:2] if not argument.startswith("-")]  # mode and environment
    return tyro.cli(RunConfig, prog=" ".join(["run.py", *words]), args=arguments, use_underscores=True, **options)


def _with_resumed_mode(arguments: list[str]) -> list[str]:
    """Completes `run.py --resume RUN` by the mode and environment of that run, and by its place."""
    if arguments[:1] != ["--resume"]:
        return arguments
    if len(arguments) == 1 or arguments[1].startswith("-"):
        raise UserError(f"--resume needs the folder of a run; give it, as in `python run.py --resume {LOG_DIR}/NAME`.")
    run = find_run(arguments[1], value_of("log_dir", arguments[2:]) or LOG_DIR)
    config = RunConfig.from_dict(read_config(run))
    return [config.mode, config.env_id, "--resume", str(run), *arguments[2:]]


def defaults_for(first: RunConfig, named: frozenset[str]) -> RunConfig:
    """Returns the defaults for the algorithm, the environment, the preset and the checkpoints that `first` names.

    Args:
        named: the flags on the command line; some of them take precedence over tuned defaults.
    """
    loaded = _loaded_policy(first)
    values = _of_environment(first, named, loaded.get("algo"))
    if first.prefs.load_prefs_dir:
        values |= _seen_by(store_path(Path(first.prefs.load_prefs_dir)).parent)
    if loaded:
        values |= _of_policy(loaded, first)
    if first.predictor.load_reward_predictor_ckpt_dir:
        place = Path(first.predictor.load_reward_predictor_ckpt_dir)
        path = checkpoint.find(place, "reward_predictor")
        state = checkpoint.load(path, kind="reward_predictor", env_id=first.env_id)
        if not state.get("pretrained", True) and not first.prefs.load_prefs_dir:
            raise UserError(
                f"the training of {path} was stopped before its end; finish it with "
                f"`python run.py --resume {shlex.quote(str(path.parent.parent))}`, or give --load_prefs_dir."
            )
        with checkpoint.entries(path):
            values |= state["config"]
        if not first.policy.load_policy_ckpt_dir:
            values |= _seen_by(path.parent.parent)
        # A loaded predictor needs no labels, so people are asked only if --max_prefs says for how many.
        values["n_initial_prefs"] = 0
        values["gather_prefs"] = "max_prefs" in named
    ensemble_size = first.predictor.ensemble_size
    if (ensemble_size if "ensemble_size" in named else values.get("ensemble_size", ensemble_size)) == 1:
        values["query_selection"] = "random"  # a single network has no disagreement
    return RunConfig(
        first.mode,
        first.env_id,
        prefs=PrefsConfig(**_of(PrefsConfig, values)),
        predictor=PredictorConfig(**_of(PredictorConfig, values)),
        policy=PolicyConfig(**_of(PolicyConfig, values)),
    )


def _of_environment(first: RunConfig, named: frozenset[str], loaded: Algo | None) -> dict[str, Any]:
    """Returns the settings of the environment and the preset, changed for the algorithm, by flag.

    Args:
        loaded: the algorithm of the policy that training starts from, if there is one.
    """
    info = env_info(first.env_id)
    tuned = _tuned(first)
    better = LEARNED_BETTER.get(info.env_id, {}) if first.preset != "paper" else {}
    algo: Algo = first.policy.algo if "algo" in named else {**tuned, **better}.get("algo", first.policy.algo)
    if "algo" not in named and loaded and "sac" in (algo, loaded):  # all others have the same networks
        algo = loaded
    if algo != tuned.get("algo", PolicyConfig.algo):  # the tuned settings are for another algorithm
        others: tuple[str, ...] = OF_ROLLOUTS if algo == "sac" else OF_AN_ALGORITHM
        if info.kind == "pixels" and tuned.get("algo") == "ppo":
            others = OF_A_GAME
        tuned = {name: value for name, value in tuned.items() if name not in others}
        if algo == "sac" and tuned.get("gamma") == VECTOR_DEFAULTS["gamma"]:
            del tuned["gamma"]  # a discount that the task itself needs stays
    if algo == better.get("algo"):
        tuned |= better
    if (initial := _initial_labels(first, named)) is not None:
        tuned["n_initial_prefs"] = initial
    values: dict[str, Any] = {"clip_steps": info.segment_length, **ALGORITHMS_DEFAULTS[algo], **tuned, "algo": algo}
    length = values.get("million_timesteps", PolicyConfig.million_timesteps)
    lr_zero = values.get("lr_zero_million_timesteps", PolicyConfig.lr_zero_million_timesteps)
    if "million_timesteps" in named:
        if lr_zero == length:  # so that it reaches 0 at the end of a shorter run too
            values["lr_zero_million_timesteps"] = first.policy.million_timesteps
        n_starts = 1 + values.get("policy_resets", PolicyConfig.policy_resets)
        if values.get("policy_reset_million_timesteps", 0) * n_starts >= first.policy.million_timesteps:
            values.pop("policy_reset_million_timesteps", None)  # so short a run has no time for another start
    return values


def _tuned(first: RunConfig) -> dict[str, Any]:
    """Returns what the environment and the preset bring along, by flag."""
    info = env_info(first.env_id)
    if first.preset == "paper":
        return papers_settings(info.env_id, info.kind)
    tuned: dict[str, Any] = dict(info.tuned)
    starts_from = first.policy.load_policy_ckpt_dir or first.policy.demonstrations
    # The true reward does not change, so there are no early habits to lose, and a reset would forget what was loaded.
    if starts_from or not first.uses_preferences:
        for name in OF_STARTS:
            tuned.pop(name, None)
    return tuned


def _loaded_policy(first: RunConfig) -> dict[str, Any]:
    """Returns the checkpoint of the policy that training starts from; empty if it starts from none."""
    place = first.policy.load_policy_ckpt_dir
    return checkpoint.load(checkpoint.find(Path(place), "policy"), kind="policy", env_id=first.env_id) if place else {}


def _of_policy(state: dict[str, Any], first: RunConfig) -> dict[str, Any]:
    """Returns the settings that the policy of a checkpoint brings along, by flag."""
    with checkpoint.entries(Path(str(first.policy.load_policy_ckpt_dir))):
        all_frames = bool(state.get("all_frames", False))  # which older policies did not have
        return {"policy_network": state["network"], "all_frames": all_frames}


def _seen_by(folder: Path) -> dict[str, bool]:
    """Returns which frames the networks and clips of a run were made with, by flag; nothing if the folder is no run's.

    Raises UserError if its config.json is damaged.
    """
    if not (folder / "config.json").exists():
        return {}
    return {"all_frames": bool(read_config(folder)["policy"].get("all_frames", False))}


def _initial_labels(first: RunConfig, named: frozenset[str]) -> int | None:
    """Returns the initial labels that follow from --max_prefs; None if the environment's default stays."""
    if "max_prefs" not in named:
        return None
    if first.mode == "gather_initial_prefs":
        return max(0, first.prefs.max_prefs)  # there are no others; a negative --max_prefs is refused
    if env_info(first.env_id).kind == "vector":
        return max(1, round(INITIAL_SHARE * first.prefs.max_prefs))
    return _fewer_initial_labels(first, named) or None


def _fewer_initial_labels(first: RunConfig, named: frozenset[str]) -> int:
    """Returns the initial labels if --max_prefs leaves fewer than the environment's default; 0 if that stays."""
    info, n_labels, tuned = env_info(first.env_id), first.prefs.max_prefs, _tuned(first)
    usual = tuned.get("n_initial_prefs", PrefsConfig.n_initial_prefs)
    if info.kind == "vector" or not named.isdisjoint(NAMES_INITIAL) or "max_prefs" not in named or n_labels >= usual:
        return 0
    share = usual / tuned.get("max_prefs", PrefsConfig.max_prefs)
    return max(1, min(n_labels, max(FEW_LABELS, round(share * n_labels))))


def _of(part: type, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that are fields of a part of the config."""
    return {field.name: values[field.name] for field in dataclasses.fields(part) if field.name in values}
