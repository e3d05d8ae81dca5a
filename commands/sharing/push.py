"""`run.py push`: shares a run's networks, or its labels, in a folder, at a URL or on the Hugging Face Hub."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from commands.report.runs import Run
from commands.sharing.cards import dataset_card, model_card, reward_pictures
from commands.sharing.layout import CARD, PARTS, Kind
from commands.sharing.places import FolderPlace, place_of
from drlhp.cli.arguments import read_arguments
from drlhp.cli.exchange import export
from drlhp.cli.runs import find_run
from drlhp.errors import UserError
from drlhp.runtime import checkpoint
from drlhp.runtime.run_files import EVALUATIONS, PROGRESS
from pref_db import PrefDB, store_path

# What config.json tells of a run elsewhere. The command line and the machine stay here: they hold paths and names.
TOLD = ("run_id", "began_as", "started", "git_revision", "versions")
# Settings of this machine, which are shared as if they had not been given.
OF_THIS_MACHINE: dict[str, Any] = {
    **{"config": None, "log_dir": "runs", "store": None, "resume": None, "metrics": None},
    "page": {},
}
PATHS = {
    "prefs": ("load_prefs_dir",),
    "predictor": ("load_reward_predictor_ckpt_dir",),
    "policy": ("load_policy_ckpt_dir", "demonstrations"),
}


@dataclass(frozen=True)
class PushConfig:
    """Share the newest policy and reward predictor of a run, or its labels, with a card that tells about them."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Run folder; with --prefs any folder with a prefs.db in it."""
    repository: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="REPO")]
    """USER/NAME on the Hugging Face Hub, a new folder here (./NAME), or a URL, such as s3://BUCKET/NAME. Nothing is
    overwritten."""
    prefs: bool = False
    """Share the labels with their segments, as a dataset."""
    names_and_notes: bool = False
    """With --prefs: share the labellers' names and notes too; otherwise they are person-1, person-2 and so on."""
    public: bool = False
    """Let everybody read the new repository on the Hub; otherwise only you and those that you let in there."""


def push_command(arguments: list[str]) -> None:
    """Runs `push`. Raises UserError, PrefDBError and OSError; a folder or repository is then as it was."""
    needs = {"run": "RUN", "repository": "REPO"}
    config = read_arguments(PushConfig, "push", arguments, needs=needs, example="RUN USER/NAME")
    if config.names_and_notes and not config.prefs:
        raise UserError("--names_and_notes is about labels; add --prefs, or leave it out.")
    kind: Kind = "dataset" if config.prefs else "model"
    place = place_of(config.repository, kind, public=config.public)
    name = f"./{place.folder.name}" if isinstance(place, FolderPlace) else config.repository
    with tempfile.TemporaryDirectory() as draft:
        if config.prefs:
            what = draw_up_labels(find_run(config.run), Path(draft), name, with_names=config.names_and_notes)
        else:
            what = draw_up_networks(find_run(config.run), Path(draft), name)
        print(f"Pushed {what}: {place.write(Path(draft))}", flush=True)


def draw_up_networks(path: Path, draft: Path, name: str) -> str:
    """Writes the files of a model repository into a folder; returns what they are, in words.

    Raises:
        UserError: it is no run folder, or has no checkpoint.
    """
    run = Run.load(path)
    parts = [part for part in PARTS if checkpoint.list_checkpoints(path / part)]
    if not parts:
        raise UserError(f"{path} holds no checkpoint yet; push it when its training has begun.")
    for part in parts:
        newest = checkpoint.find(path / part, part)
        checkpoint.load(newest, kind=part, env_id=run.env_id)  # what cannot be read here can be read nowhere
        (draft / part).mkdir()
        shutil.copyfile(newest, draft / part / newest.name)
    for table in (PROGRESS, EVALUATIONS):
        if (path / table.name).is_file():
            shutil.copyfile(path / table.name, draft / table.name)
    pictures = reward_pictures(run)
    for file, data in pictures.items():
        (draft / file).write_bytes(data)
    (draft / "config.json").write_text(json.dumps(shared_record(run.record), indent=2) + "\n")
    (draft / CARD).write_text(model_card(run, parts, name, list(pictures)), encoding="utf-8")
    return f"the {' and the '.join(part.replace('_', ' ') for part in parts)} of {path}"


def shared_record(record: dict[str, Any]) -> dict[str, Any]:
    """Returns what config.json tells of a run elsewhere: its settings, without paths and addresses of this machine."""
    config = record["config"] | OF_THIS_MACHINE
    for part, names in PATHS.items():
        if isinstance(config.get(part), dict):
            config[part] = config[part] | {name: None for name in names if name in config[part]}
    return {name: record[name] for name in TOLD if name in record} | {"config": config}


def draw_up_labels(path: Path, draft: Path, name: str, *, with_names: bool) -> str:
    """Writes the files of a dataset repository into a folder; returns what they are, in words.

    Raises:
        UserError, PrefDBError: the store cannot be read, or holds no answers.
    """
    with tempfile.TemporaryDirectory(dir=draft.parent) as folder:
        exported = Path(folder)
        with contextlib.closing(PrefDB.open(store_path(path), read_only=True)) as db:
            n_answers, _ = export(db, exported)
        if n_answers == 0:
            raise UserError(f"{path} holds no answers yet; gather some with gather_initial_prefs, or with label.")
        for file in ("export.json", "labels.jsonl", "segments"):  # and not the store, which has all names and notes
            shutil.move(exported / file, draft / file)
    labels = draft / "labels.jsonl"
    rows = [json.loads(line) for line in labels.read_text(encoding="utf-8").splitlines()]
    if not with_names:
        rows = without_names(rows)
        labels.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    about = json.loads((draft / "export.json").read_text())
    (draft / CARD).write_text(dataset_card(about, rows, name, with_names=with_names), encoding="utf-8")
    return f"{n_answers} answers of {path}"


def without_names(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns rows of labels.jsonl without notes, and with numbers instead of names, in the order of first answers."""
    names = dict.fromkeys(row["labeller"] for row in rows if row["labeller"] is not None)
    numbers = {name: f"person-{number}" for number, name in enumerate(names, start=1)}
    return [row | {"labeller": numbers.get(row["labeller"]), "note": ""} for row in rows]
