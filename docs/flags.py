"""Writes docs/flags.md: every flag with its defaults and its help, from the dataclasses that the commands parse.

python docs/flags.py
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from a2c.config import PolicyConfig
from commands.config import RunConfig, settings
from commands.flags import parse
from commands.report import ReportConfig
from commands.reproduce import ReproduceConfig
from commands.sharing.load import LoadConfig
from commands.sharing.push import PushConfig
from commands.show_prefs import ShowPrefsConfig
from commands.watch import WatchConfig
from drlhp.cli.exchange import ExportConfig, ImportConfig
from drlhp.cli.label import LabelConfig
from drlhp.cli.restore import RestoreConfig
from drlhp.label_server.config import PageConfig
from pref_interface import PrefsConfig
from reward_predictor import PredictorConfig

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "flags.md"
DOMAINS = {"Atari": "PongNoFrameskip-v4", "vectors": "Hopper", "moving dot": "MovingDotNoFrameskip-v0"}
GROUPS = {
    "The run": RunConfig,
    "Preferences": PrefsConfig,
    "The labelling page": PageConfig,
    "The reward predictor": PredictorConfig,
    "The policy": PolicyConfig,
}
COMMANDS = {
    "label": LabelConfig,
    "watch": WatchConfig,
    "show_prefs": ShowPrefsConfig,
    "report": ReportConfig,
    "reproduce": ReproduceConfig,
    "export": ExportConfig,
    "import": ImportConfig,
    "restore": RestoreConfig,
    "push": PushConfig,
    "load": LoadConfig,
}
HEAD = f"""# Flags

`python docs/flags.py` writes this page from the code. `python run.py COMMAND ENV --help` prints the same for any
environment. Both `--n_envs` and `--n-envs` are understood. A switch that is on is turned off by `--no_NAME`. Steps are
agent steps everywhere (four frames each on Atari).

The defaults are those of `train_policy_with_preferences` with `--synthetic_prefs`.
They are for {", ".join(f"{domain} (`{env_id}`)" for domain, env_id in DOMAINS.items())}.
One value means that all are the same."""


def helps(config: type) -> Iterator[tuple[str, str]]:
    """Yields each field of a config with its help, which is the string below it."""
    (body,) = ast.parse(inspect.getsource(config)).body
    assert isinstance(body, ast.ClassDef)
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            yield field.target.id, " ".join(str(text.value.value).split())


def choices(config: type, name: str) -> str:
    """Returns the values that a field allows, if it names them."""
    kind = typing.get_type_hints(config)[name]
    options = [part for part in (kind, *typing.get_args(kind)) if typing.get_origin(part) is Literal]
    return f" One of {', '.join(f'`{value}`' for value in typing.get_args(options[0]))}." if options else ""


def as_typed(config: type, name: str) -> str:
    """Returns a field as the help names it: `--seeds`, or RUN for an argument without a flag."""
    parts = typing.get_args(typing.get_type_hints(config, include_extras=True)[name])
    if typing.get_args(tyro.conf.Positional[str])[1] not in parts:
        return f"--{name}"
    return next((str(part.metavar) for part in parts if getattr(part, "metavar", None)), name)


def shown(value: object) -> str:
    """Returns a default as the page writes it."""
    if value in (None, "", ()):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,g}" if isinstance(value, int | float) else f"`{value}`"


def rows(config: type, defaults: list[dict[str, Any]]) -> Iterator[str]:
    """Yields the rows of a table: flag, default, help."""
    for name, text in helps(config):
        if config is RunConfig and name in ("mode", "env_id"):
            continue  # the command and ENV
        values = [shown(one.get(name)) for one in defaults]
        default = values[0] if len(set(values)) == 1 else ", ".join(value or "none" for value in values)
        cell = f"{text}{choices(config, name)}".replace("|", "\\|")
        yield f"| `{as_typed(config, name)}` | {default} | {cell} |"


def table(config: type, defaults: list[dict[str, Any]]) -> str:
    return "\n".join(["| flag | default | |", "|---|---|---|", *rows(config, defaults)])


def page() -> str:
    """Returns the text of docs/flags.md."""
    parsed = [parse(["train_policy_with_preferences", one, "--synthetic_prefs"]).as_dict() for one in DOMAINS.values()]
    defaults = [{**one, **settings(one), **one["page"]} for one in parsed]
    parts = [HEAD, *(f"## {title}\n\n{table(config, defaults)}" for title, config in GROUPS.items())]
    parts.append("## Flags of the other commands")
    for command, config in COMMANDS.items():
        has_default = (field for field in dataclasses.fields(config) if field.default is not dataclasses.MISSING)
        own = {field.name: field.default for field in has_default}
        parts.append(f"### {command}\n\n{table(config, [own])}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"Written to {PAGE.relative_to(ROOT)}")
