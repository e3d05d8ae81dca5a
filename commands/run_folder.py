"""The run folder: the settings that a run was started with, and everything that it writes."""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from drlhp.errors import UserError
from drlhp.runtime.locks import FolderLock
from drlhp.runtime.machine import machine
from drlhp.runtime.regular_files import read_regular
from drlhp.runtime.run_files import MAX_CONFIG

log = logging.getLogger("run")

BEGAN_AS = ("mode", "env_id")  # settings that no flag can change later, so they are recorded twice
PACKAGES = ("torch", "numpy", "gymnasium", "ale-py", "pyglet")

# What else than settings config.json holds.
RECORD: dict[str, type] = {
    **{"run_id": str, "began_as": dict, "command": list, "started": str, "git_revision": str},
    **{"loaded_from": str, "machine": dict, "versions": dict, "history": list},
}


class LogFile(logging.FileHandler):
    """The handler of log.txt, whose failures do not end a run: files that matter more report a full disk."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignores the error; a traceback would land on the user's screen."""

    def close(self) -> None:
        """Closes the file even if its last lines cannot be written."""
        with contextlib.suppress(OSError):
            super().close()


class RunFolder:
    """`<log_dir>/<run_name>/`, locked while a run uses it.

    Holds config.json, prefs.db, policy/, reward_predictor/, events/, progress.csv, evaluations.csv, curves.png and
    log.txt.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.run_id = path, read_run_id(path)
        try:
            self._lock = FolderLock(path)
        except BlockingIOError:
            raise UserError(f"{path} is in use by another process; wait until that has ended, or stop it.") from None
        except OSError as error:
            raise UserError(f"cannot write in {path} ({error.strerror}); allow that, or copy it elsewhere.") from error
        self._handler = LogFile(path / "log.txt", encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger().addHandler(self._handler)

    @classmethod
    def create(cls, path: Path, config: dict[str, Any]) -> RunFolder:
        """Makes a new folder and records the resolved config in it.

        Raises:
            UserError: the folder exists or cannot be made.
        """
        record = {
            "run_id": uuid.uuid4().hex,
            "began_as": {name: config.get(name) for name in BEGAN_AS},
            "config": config,
            "command": sys.argv,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "git_revision": git_revision(),
            "machine": machine(),
            "versions": {name: metadata.version(name) for name in PACKAGES},
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except OSError as error:
            if path.exists():
                raise UserError(
                    f"{path} already exists; go on with it by `python run.py --resume {shlex.quote(str(path))}`, or "
                    "choose another --run_name."
                ) from None
            raise UserError(f"cannot make {path} ({error.strerror}); choose another --log_dir.") from error
        try:
            (path / "config.json").write_text(json.dumps(record, indent=2) + "\n")
        except OSError as error:
            shutil.rmtree(path)  # an empty folder would block the name, and could not be resumed
            raise UserError(f"cannot write in {path} ({error.strerror}); choose another --log_dir.") from error
        return cls(path)

    @classmethod
    def resume(cls, path: Path, config: dict[str, Any]) -> RunFolder:
        """Opens the folder of an earlier run, and records the config that it continues with.

        The earlier config stays under `history` in config.json.

        Raises:
            UserError: there is no run, or it is in use.
        """
        folder, file = cls(path), path / "config.json"
        config = json.loads(json.dumps(config | {"resume": None}))  # as JSON would return it
        try:
            record = read_record(path)  # now that nobody else can change it
            if config != record["config"]:
                now = datetime.now(UTC).isoformat(timespec="seconds")
                record["history"] = [*record.get("history", []), {"until": now, "config": record["config"]}]
                draft = file.with_suffix(".new")
                draft.write_text(json.dumps(record | {"config": config}, indent=2) + "\n")
                draft.replace(file)
        except BaseException:
            folder.close()  # so that the folder is free again, in this process too
            raise
        return folder

    def check(self) -> None:
        """Raises UserError if the folder was removed or renamed."""
        self._lock.check()

    def close(self) -> None:
        """Releases the lock; may be called twice."""
        logging.getLogger().removeHandler(self._handler)
        self._handler.close()
        self._lock.close()


def read_config(path: Path) -> dict[str, Any]:
    """Returns the resolved config that a run was started with; raises what `read_record` does."""
    config: dict[str, Any] = read_record(path)["config"]
    return config


def read_record(path: Path) -> dict[str, Any]:
    """Returns all that config.json holds: the resolved config, and the circumstances of the start.

    Raises:
        UserError: the folder is no run folder, or its config.json is damaged.
    """
    file = path / "config.json"
    if not path.is_dir():
        what = "is no folder" if path.exists() else "does not exist"
        raise UserError(f"{path} {what}; give the folder of an earlier run, such as runs/NAME.")
    if not file.exists():
        raise UserError(f"{path} is no run folder (it has no config.json); give one such as runs/NAME.")
    data = read_regular(file, MAX_CONFIG)
    with damaged(file):
        return checked_record(json.loads(data))


@contextlib.contextmanager
def damaged(file: Path) -> Iterator[None]:
    """Raises UserError in place of what the reading of a record raises."""
    try:
        yield
    except (ValueError, KeyError, TypeError, RecursionError, UserError) as error:
        reason = str(error).rstrip(".")
        raise UserError(f"{file} is damaged ({reason}); restore it.") from error


def checked_record(record: Any) -> dict[str, Any]:
    """Returns what config.json holds if that is what a run writes; older runs write less.

    Raises:
        ValueError, KeyError, TypeError, UserError: it is something else, or a setting cannot work.
    """
    from commands.config import check_values  # slow to import, which the list of experiments need not wait for

    config = record["config"]
    if not isinstance(config, dict):
        raise ValueError("no settings in it")
    for name, kind in RECORD.items():
        if not isinstance(record.get(name, kind()), kind):
            raise ValueError(f"no {name} in it")
    for name, value in record.get("began_as", {}).items():
        if name in BEGAN_AS and config.get(name) != value:
            raise ValueError(f"its {name} is {config.get(name)}, and the run began with {value}")
    check_values(config)
    return dict(record)


def read_run_id(path: Path) -> str:
    """Returns the id of a run, which its store and its checkpoints carry too; "" in a run older than these ids.

    Raises what `read_config` does.
    """
    return str(read_record(path).get("run_id", ""))


def short_revision(revision: str) -> str:
    """Returns a `git_revision` for a table: twelve digits, and "+changes" if the tree had changes."""
    commit, *changes = revision.split("+")
    return "+".join([commit[:12], *changes])


def git_revision() -> str:
    """Returns the checked-out commit, with `+changes` if the tree differs from it; `unknown` outside a clone.

    Recorded results do not count: the next run of the same code would be marked because of the last one.
    """
    root = Path(__file__).parent
    try:
        revision = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changes = subprocess.run(
            # The option keeps git from locking the index, which would disturb a commit at the same time.
            [
                *("git", "-C", str(root), "--no-optional-locks", "status", "--porcelain", "-uno"),
                *("--", ":/", ":(top,exclude)results"),
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return revision + ("+changes" if changes.strip() else "")
