"""`run.py load`: brings shared networks or labels here, and checks them before anything uses them."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from commands.agent import Agent, load_predictor
from commands.run_folder import read_record
from commands.sharing.layout import PARTS, Kind, check_archive, wanted
from commands.sharing.places import Place, check_new, place_of
from drlhp.cli.arguments import read_arguments
from drlhp.cli.exchange import import_folder
from drlhp.errors import UserError
from drlhp.runtime import checkpoint
from drlhp.runtime.run_files import EVALUATIONS, PROGRESS
from envs import env_info


@dataclass(frozen=True)
class LoadConfig:
    """Load what `push` has shared: a policy and a reward predictor, or labels."""

    repository: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="REPO")]
    """USER/NAME on the Hugging Face Hub, a folder here (./NAME), or a URL, such as s3://BUCKET/NAME."""
    output: Path | None = None
    """New folder; by default runs/NAME. Nothing is overwritten."""
    prefs: bool = False
    """Load labels with their segments, which `push --prefs` has shared."""
    revision: str | None = None
    """Branch, tag or commit on the Hub; by default the newest."""
    env_id: str | None = None
    """Environment of the repository; needed only if its name begins with a module (MODULE:ENV), which runs."""


def load_command(arguments: list[str]) -> None:
    """Runs `load`. Raises UserError, PrefDBError and OSError; nothing is then left behind."""
    needs = {"repository": "REPO"}
    config = read_arguments(LoadConfig, "load", arguments, needs=needs, example="USER/NAME")
    kind: Kind = "dataset" if config.prefs else "model"
    place = place_of(config.repository, kind, revision=config.revision)
    target = config.output or Path("runs", Path(config.repository).name)
    check_new(target)
    files = wanted(kind, place.sizes(), place.name)
    print(f"Loading {len(files)} files, {sum(files.values()) / 1e6:.1f} MB, from {place.name}", flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".load-") as folder:
        draft = Path(folder) / "draft"
        draft.mkdir()
        place.fetch(files, draft)
        shutil.rmtree(draft / ".cache", ignore_errors=True)  # the Hub's client keeps its notes there
        for name, size in files.items():
            if (draft / name).stat().st_size != size:
                raise UserError(f"{place.name} has given another {name} than it listed; try again.")
        if config.prefs:
            with _told(place, draft):
                n_labels = import_folder(draft, target)
            print(f"{n_labels} labels in {target / 'prefs.db'}.", flush=True)
            print(f"Train on them with --load_prefs_dir {shlex.quote(str(target))}", flush=True)
            return
        with _told(place, draft):
            env_id = env_id_of(draft)
        if env_id != (config.env_id or env_id) or (":" in env_id and config.env_id is None):
            module = "whose module runs when it is made, so " if ":" in env_id else ""
            raise UserError(f"{place.name} is of {env_id}, {module}give --env_id {env_id} if that is what you want.")
        with _told(place, draft):
            check_networks(draft, env_id)
        note_source(draft, place)
        draft.rename(target)
        tell(target, env_id)


@contextlib.contextmanager
def _told(place: Place, draft: Path) -> Iterator[None]:
    """Raises UserError that names the place if the block finds a file of it damaged."""
    try:
        yield
    except UserError as error:
        why = str(error).replace(f"{draft}/", "").split(";")[0].rstrip(".")
        raise UserError(f"{place.name} cannot be loaded ({why}); ask whoever pushed it to push it again.") from error


def env_id_of(draft: Path) -> str:
    """Returns the environment that all networks and settings in a folder are of, before anything is made of them.

    Raises:
        UserError: a file is damaged, or of another environment than the others.
    """
    env_ids = set()
    for part in PARTS:
        for path in checkpoint.list_checkpoints(draft / part):
            check_archive(path)
            state = checkpoint.read(path)
            with checkpoint.entries(path):
                if any(tensor.nbytes > tensor.untyped_storage().nbytes() for tensor in tensors(state)):
                    raise ValueError("it holds tensors of more numbers than it has room for")
            env_ids.add(state["env_id"])
    if (draft / "config.json").exists():
        env_ids.add(str(read_record(draft)["config"].get("env_id")))
    if len(env_ids) != 1:
        raise UserError(f"its files are of several environments: {', '.join(sorted(env_ids))}")
    return str(env_ids.pop())


def check_networks(draft: Path, env_id: str) -> None:
    """Raises UserError if the networks or the tables in a folder cannot be used."""
    if checkpoint.list_checkpoints(draft / "policy"):
        Agent.load(draft)
    else:
        load_predictor(draft / "reward_predictor", env_info(env_id))
    for table in (PROGRESS, EVALUATIONS):
        table.read_to_go_on(draft)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yields all tensors within dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from tensors(one)


def note_source(draft: Path, place: Place) -> None:
    """Writes into config.json where it is from: such a folder can be watched and trained on from, but not resumed."""
    file, commit = draft / "config.json", getattr(place, "commit", "")
    if file.exists():
        source = f"{place.name}@{commit}" if commit else place.name
        file.write_text(json.dumps(read_record(draft) | {"loaded_from": source}, indent=2) + "\n")


def tell(target: Path, env_id: str) -> None:
    """Prints what was loaded, and what can be done with it."""
    parts, quoted = [part for part in PARTS if (target / part).is_dir()], shlex.quote(str(target))
    print(f"Loaded a {' and a '.join(part.replace('_', ' ') for part in parts)} of {env_id} into {target}.", flush=True)
    if "policy" in parts:
        print(f"Watch it with: python run.py watch {quoted}", flush=True)
    flags = " or ".join(f"--load_{part}_ckpt_dir {quoted}" for part in parts)
    print(f"Start a run from it with: {flags}", flush=True)
