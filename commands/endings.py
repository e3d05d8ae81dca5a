"""What a training run prints when it ends: finished, stopped or failed."""

from __future__ import annotations

import contextlib
import logging
import shlex
import sys
import traceback
from dataclasses import replace
from pathlib import Path

from commands.config import RunConfig, gathers
from commands.progress import Progress, draw_curves, summary
from commands.watchers import Watchers
from drlhp.cli import label
from drlhp.errors import USER_ERRORS, ChildError, reason_of, told
from pref_db import PrefDB

log = logging.getLogger("run")


def finished(config: RunConfig, path: Path, progress: Progress) -> None:
    """Draws the curves and prints the summary, the report's verdict and the next commands."""
    from commands.report.runs import Run  # slow to import, like what draws the curves
    from commands.verdict import last_words, rewards

    draw_curves(path)
    run = replace(Run.load(path), status="finished")
    numbers = summary(
        progress, rewards=rewards(run) if run.trains_policy else "", uses_preferences=config.uses_preferences
    )
    text = f"{numbers}\n{last_words(run)}" if gathers(config) or config.mode != "gather_initial_prefs" else numbers
    log.info("finished\n%s", text)
    print(f"Finished.\n{text}", flush=True)


def label_later(path: Path, n_clips: int) -> None:
    """Prints how to label the clips that a run has stored."""
    print(f"Label the {n_clips} clips with: python run.py label {shlex.quote(str(path))}", flush=True)


def stopped(path: Path) -> None:
    """Prints how to resume a run that was stopped, and draws its curves."""
    print(f"Stopped. {go_on(path)}", flush=True)
    try:
        if (path / "progress.csv").exists():
            draw_curves(path)
    except (Exception, KeyboardInterrupt):
        log.exception("no curves")


def failed(config: RunConfig, path: Path, watchers: Watchers, error: Exception) -> None:
    """Reports why a run failed to the user, the labellers and the log, and prints how to resume it.

    The traceback of a mistake of ours belongs in the log, not on the user's screen; with --debug it is raised again.
    """
    foreseen = isinstance(error, (ChildError, *USER_ERRORS))
    details = error.child_traceback if isinstance(error, ChildError) else ""
    if foreseen:
        log.error("%s\n%s", error, details, exc_info=True)
        reason, line = told(error), told(error)
    else:
        log.exception("unexpected error")
        reason = f"{type(error).__name__}: {reason_of(error)}"
        line = f"{reason}; the details are in {path / 'log.txt'}."
    watchers.fail(reason)
    print(f"run.py: {line}", file=sys.stderr)
    if path.is_dir():  # else the line says what became of it
        print(go_on(path), flush=True)
    if config.debug and foreseen:
        print(details or traceback.format_exc(), file=sys.stderr)
    elif config.debug:
        raise error


def go_on(path: Path) -> str:
    """Returns the sentence that says how to resume a run."""
    return f"Carry on with: python run.py --resume {shlex.quote(str(path))}"


def label_on(config: RunConfig, path: Path, watchers: Watchers, goal_labels: int) -> None:
    """Prints how to label after a failure; on the page, labelling goes on here until Ctrl-C."""
    page, options = watchers.page, config.page
    if page is not None:  # browsers look for the page at its old port, even if that was any free port
        options = replace(options, web_port=page.server.address.port)
    words = [str(path), "--ui", config.prefs.ui, "--max_prefs", str(goal_labels), *options.flags()]
    print(f"Label meanwhile with: python run.py label {shlex.join(words)}", flush=True)
    if page is None:
        return
    try:
        with contextlib.closing(PrefDB.open(path / "prefs.db", read_only=True)) as db:
            something_to_ask = len(db.segment_ids()) >= 2 and db.n_labels() < goal_labels
        if something_to_ask:
            print("This command does so now, so the page goes on; press Ctrl-C before you resume.", flush=True)
            label.label_command(words, trouble=page.trouble)
    except USER_ERRORS as error:
        print(f"run.py: {told(error)}", file=sys.stderr)
    except KeyboardInterrupt:
        return
