"""`--config FILE`: settings of a training run from a file, each as if its flag stood on the command line."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import yaml

from commands.config import PARTS, RunConfig, settings
from commands.flags import defaults_for
from commands.run_folder import checked_record, damaged
from drlhp.cli.arguments import value_of
from drlhp.errors import UserError
from drlhp.runtime.regular_files import read_regular
from drlhp.runtime.run_files import MAX_CONFIG

POSITIONALS = ("mode", "env_id")


def with_config_file(arguments: list[str]) -> list[str]:
    """Returns a command line with the settings of its `--config FILE` as flags, before all other flags.

    Raises:
        UserError: the file cannot be read, or holds something else than flags with values.
    """
    found = value_of("config", arguments)
    if found is None:
        return arguments
    values, flags = _read(Path(found)), training_flags()
    for name, given in zip(POSITIONALS, arguments, strict=False):
        wanted = values.pop(name, given)
        if wanted != given and not given.startswith("-"):
            raise UserError(f"{found} is for {wanted}, not for {given}; name that one, or remove {name} from the file.")
    words = [word for name, value in values.items() for word in words_of(Path(found), name, value, flags)]
    return [*arguments[:2], *words, *arguments[2:]]


def read_yaml(path: Path, wanted: str, example: str) -> Any:
    """Returns what a YAML or JSON file holds.

    Args:
        wanted: the end of the sentence if there is no such file.
        example: the end of the sentence if it holds something else.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        return yaml.safe_load(read_regular(path, MAX_CONFIG))
    except FileNotFoundError:
        raise UserError(f"there is no file {path}; {wanted}") from None
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); give another file.") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"{path}{place} is no YAML; {example}") from error


def _read(path: Path) -> dict[str, Any]:
    """Returns the settings of a file by the names of their flags; those of a run's config.json that are no defaults."""
    example = "write a setting on each line, such as `n_envs: 8`."
    data = read_yaml(path, "give --config a YAML file, or the config.json of a run.", example)
    if isinstance(data, dict) and isinstance(data.get("config"), dict):
        with damaged(path):
            config = checked_record(data)["config"]
        return _of_a_run(config)
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise UserError(f"{path} holds no settings; write one on each line, such as `n_envs: 8`.")
    values = {name: value for name, value in data.items() if name not in PARTS}
    for part in PARTS:
        if isinstance(data.get(part), dict):
            values |= data[part]
    return values


def _of_a_run(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that make a run's results, but for those that its environment and algorithm bring along."""
    run = RunConfig.from_dict(config)
    defaults = settings(defaults_for(run, frozenset({"algo"})).as_dict())
    changed = {name: value for name, value in settings(config).items() if value != defaults.get(name)}
    return {"algo": run.policy.algo} | {name: value for name, value in changed.items() if name not in POSITIONALS}


def training_flags() -> dict[str, Any]:
    """Returns the flags that a file may set, with their defaults."""
    defaults = RunConfig("gather_initial_prefs", "").as_dict()
    flags = {**settings(defaults), **defaults, **defaults["page"]}
    return {name: value for name, value in flags.items() if name not in (*PARTS, *POSITIONALS, "config", "resume")}


def words_of(path: Path, name: str, value: Any, flags: dict[str, Any]) -> list[str]:
    """Returns a setting as it is given on a command line.

    Raises UserError if there is no such flag, or if it cannot take such a value.
    """
    if name not in flags:
        near = difflib.get_close_matches(name, flags, 1, cutoff=0.7)
        fix = f"did you mean {near[0]}?" if near else "remove it."
        raise UserError(f"{path} sets {name}, which is no flag of a training run; {fix}")
    if isinstance(value, bool) != isinstance(flags[name], bool):
        wanted = "true or false" if isinstance(flags[name], bool) else "another value than true or false"
        raise UserError(f"{path} sets {name} to {value!r:.40}; give it {wanted}.")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no_{name}"]
    if isinstance(value, (list, tuple, dict)):
        raise UserError(f"{path} sets {name} to several values; give it one.")
    return [f"--{name}={value}"]
