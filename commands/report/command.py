"""`run.py report`: reads run folders and writes the page with its figures."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import tyro

from commands.report.markup import GENERATOR
from commands.report.offer import offer
from commands.report.page import build
from commands.report.runs import Run, experiments
from drlhp.cli.arguments import lacks
from drlhp.cli.runs import find_run, runs_in
from drlhp.errors import UserError

PAGE = "report.html"


@dataclass(frozen=True)
class ReportConfig:
    """Writes one page about one or several runs: whether the agent learned, and everything that explains why."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...")]
    """Run folders. Runs that differ only in their seed are drawn as their mean and spread."""
    output: Path | None = None
    """Folder for the page and its figures; by default RUN/report for one run, else report-DATE-TIME here. Only an
    earlier report is ever overwritten."""


def report_command(arguments: list[str]) -> None:
    """Writes a report about finished or unfinished runs, without changing their folders.

    Raises:
        UserError, OSError: a folder is no run, or the report cannot be written.
    """
    config = tyro.cli(ReportConfig, prog="run.py report", args=arguments, use_underscores=True)
    if not config.runs:
        raise lacks(["RUN"], "report RUN")
    if len(config.runs) == 1 and config.output is None and (held := runs_in(config.runs[0])):
        print(offer(config.runs[0], held), flush=True)
        return
    paths = list({path.resolve(): path for path in map(find_run, config.runs)}.values())  # each run once
    groups = experiments([Run.load(path) for path in paths])
    alone = paths[0] / "report" if len(paths) == 1 else Path(f"report-{datetime.now():%Y%m%d-%H%M%S}")
    folder = config.output or alone
    old_files = check_output(folder)
    page, files = build(groups)
    write(folder, page, files, old_files)
    print(f"Report: {folder / PAGE}", flush=True)


def check_output(folder: Path) -> set[str]:
    """Returns the names of an earlier report's files in the folder, which may be overwritten; none for a new folder.

    Raises:
        UserError: the folder holds something else, or cannot be made or written to.
    """
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise UserError(f"--output {there} is a file; give the name of a new folder.")
    if not os.access(there, os.W_OK):
        raise UserError(f"{there} may not be written to; give --output with a folder elsewhere.")
    if there != folder or not any(folder.iterdir()):
        return set()
    head = ""
    if (folder / PAGE).is_file():
        with (folder / PAGE).open(encoding="utf-8", errors="replace") as file:
            head = file.read(2000)
    if f'<meta name="generator" content="{GENERATOR}">' not in head:
        raise UserError(f"{folder} holds other files than a report; give --output with the name of a new folder.")
    listed = re.search(r'<meta name="files" content="([^"]*)">', head)
    return {name for name in (listed[1].split() if listed else []) if re.fullmatch(r"[\w-]+\.png", name)}


def write(folder: Path, page: str, files: dict[str, bytes], old_files: set[str]) -> None:
    """Writes the page, which marks the folder as a report, and then the figures, replacing an earlier report's.

    Raises:
        UserError: a figure's name is taken by a file that is not of the earlier report.
        OSError: the folder cannot be written.
    """
    foreign = [name for name in files if name not in old_files and (folder / name).exists()]
    if foreign:
        raise UserError(f"{folder / foreign[0]} is not of a report; move it, or give --output with a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for name in old_files - files.keys():
        (folder / name).unlink(missing_ok=True)
    draft = folder / f".{PAGE}.new"  # the page appears whole or not at all
    try:
        draft.write_text(page, encoding="utf-8")
        os.replace(draft, folder / PAGE)
    finally:
        draft.unlink(missing_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
