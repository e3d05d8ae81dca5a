"""A SQLite file with the store's settings for durability; every SQLite error becomes one sentence with the fix."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from drlhp.data.damage import damage
from drlhp.data.schema import APPLICATION_ID, SCHEMA_VERSION, migrate
from drlhp.errors import DamagedStoreError, PrefDBError
from drlhp.runtime.locks import leads_to

T = TypeVar("T")
BUSY_SECONDS = 10.0
LAST_SEQ_GIVEN = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'answer'"
# An old log of writes beside a good copy would damage that too.
DAMAGED = (
    "is damaged: restore a copy, without the -wal and -shm files that lie here (the command `restore RUN COPY` does "
    "both; with RUN in place of COPY it keeps what is whole)"
)


def _code(error: sqlite3.Error) -> int:
    """Returns SQLite's primary result code, 0 if there is none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def explain(path: Path, error: sqlite3.Error) -> PrefDBError:
    """Returns one sentence with the fix for what SQLite reports about the file at `path`."""
    safe = ", earlier labels are safe"
    fixes = {
        sqlite3.SQLITE_FULL: f"cannot grow, the disk is full: free some space and answer again{safe}",
        sqlite3.SQLITE_IOERR: f"cannot be read or written: check the disk and its free space{safe}",
        sqlite3.SQLITE_NOTADB: "is not a preference database: give the prefs.db of a run",
        sqlite3.SQLITE_BUSY: "is kept busy by another process: try again, or stop that process",
        sqlite3.SQLITE_READONLY: "cannot be written: check its permissions and its folder's",
        sqlite3.SQLITE_CANTOPEN: "cannot be opened: check permissions, and that no -wal file was left out",
    }
    if _code(error) == sqlite3.SQLITE_CORRUPT or "Could not decode to UTF-8" in str(error):
        return DamagedStoreError(f"{path} {DAMAGED}")
    return PrefDBError(f"{path} {fixes.get(_code(error), f'failed in SQLite ({error}): check the file')}")


def connect(path: Path, query: str) -> sqlite3.Connection:
    """Connects with every durability setting in place; `query` is the URI's (mode=rw, ...). Raises sqlite3.Error."""
    uri = f"{path.absolute().as_uri()}?{query}"
    db = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = FULL")  # a committed answer survives a power cut
        db.execute("PRAGMA foreign_keys = ON")
    except UnicodeDecodeError as error:  # of the message about a damaged schema
        db.close()
        raise DamagedStoreError(f"{path} {DAMAGED}") from error
    except BaseException:
        db.close()
        raise
    return db


def check_kind(db: sqlite3.Connection, path: Path) -> int:
    """Returns the version of a store's schema. Raises sqlite3.Error, and PrefDBError if it is none or newer."""
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise PrefDBError(f"{path} is not a preference database: give the prefs.db of a run")
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise PrefDBError(f"{path} is from a newer version (schema {version}): update this program")
    return version


def connect_checked(path: Path, query: str) -> sqlite3.Connection:
    """Connects to an existing file. Raises sqlite3.Error, or PrefDBError if it is not a store or is damaged."""
    db = connect(path, query)
    try:
        version = check_kind(db, path)
        if db.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
            raise DamagedStoreError(f"{path} {DAMAGED}")
        if (what := damage(db, version)) is not None:
            raise DamagedStoreError(f"{path} {DAMAGED} ({what})")
    except BaseException:
        db.close()
        raise
    return db


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Connects for reading, also in a folder where nothing can be written. Raises as `connect_checked` does."""
    try:
        return connect_checked(path, "mode=ro")
    except sqlite3.OperationalError as error:
        wal = path.with_name(path.name + "-wal")
        # In a folder where SQLite may not create its -shm file, only an immutable database can be read. SQLite then
        # ignores the -wal file, so this is right only if that file is empty.
        unwritable = _code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        if not unwritable or (wal.exists() and wal.stat().st_size > 0):
            raise
        return connect_checked(path, "mode=ro&immutable=1")


def is_open_elsewhere(path: Path) -> bool:
    """Returns whether another connection, of any process, has the store open; False for what is no database."""
    try:
        with contextlib.closing(connect(path, "mode=rw")) as db:
            db.execute("PRAGMA busy_timeout = 0")
            db.execute("PRAGMA locking_mode = EXCLUSIVE")  # Every other connection keeps a lock, even when it is idle.
            db.execute("BEGIN EXCLUSIVE")
            db.execute("ROLLBACK")
    except sqlite3.Error as error:
        return _code(error) == sqlite3.SQLITE_BUSY
    except PrefDBError:
        return False
    return False


def remove_empty_log(path: Path) -> None:
    """Removes the empty -wal file, and the -shm file, that a reader leaves unless others have the store open too.

    A reader may not do so itself: only a connection for writing removes them when it is the last one.
    """
    with contextlib.suppress(OSError, sqlite3.Error, PrefDBError):
        if path.with_name(f"{path.name}-wal").stat().st_size == 0:
            with contextlib.closing(connect(path, "mode=rw")) as db:
                db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()


class SqliteFile:
    """An open file for one thread; a `Store`. Use `create` or `open`."""

    look_seconds = 0.0  # a look costs some microseconds

    def __init__(self, path: Path, db: sqlite3.Connection, read_only: bool) -> None:
        self.path = path
        self._db: sqlite3.Connection | None = db
        self._read_only = read_only
        self._file, self._folder = path.stat(), path.absolute().parent.stat()
        self._trouble = ""  # what `check_place` has found
        self.version = int(self.read("PRAGMA user_version")[0][0])

    @classmethod
    def create(cls, path: Path, meta: Mapping[str, str]) -> SqliteFile:
        """Makes a new file that holds `meta`, and opens it; never overwrites one. Raises PrefDBError."""
        if path.exists():
            raise PrefDBError(f"{path} already exists: resume that run or choose another run name")
        # Created under another name, so that a process killed half-way leaves no half-made prefs.db.
        draft = path.with_name(path.name + ".new")
        try:
            draft.unlink(missing_ok=True)
            with contextlib.closing(connect(draft, "mode=rwc")) as db:
                migrate(db)
                db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
                db.execute("PRAGMA journal_mode = WAL")
            os.replace(draft, path)
        except sqlite3.Error as error:
            raise explain(path, error) from error
        except OSError as error:
            reason = error.strerror
            raise PrefDBError(f"{path} cannot be created ({reason}): choose another folder") from error
        return cls.open(path)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> SqliteFile:
        """Opens a file. Raises PrefDBError if it is damaged, newer or something else."""
        try:
            db = connect_read_only(path) if read_only else connect_checked(path, "mode=rw")
            if not read_only:
                migrate(db)
        except sqlite3.Error as error:
            raise explain(path, error) from error
        return cls(path, db, read_only)

    def repeated(self, call: Callable[[], T]) -> T:
        """Returns what the call returns: there is no connection that could be lost."""
        return call()

    @property
    def in_transaction(self) -> bool:
        """Returns whether a transaction has begun and not ended."""
        return self._connection().in_transaction

    def last_seq_given(self) -> int:
        """Returns the seq that an answer got last, also if that answer is not in the file."""
        return int(self.read(LAST_SEQ_GIVEN)[0][0])

    def close(self) -> None:
        """Folds the write-ahead log into the file, so that it can be copied alone; may be called twice.

        A reader leaves a log that holds something to those who write.
        """
        if self._db is None:
            return
        db, self._db = self._db, None
        if not self._read_only:
            # If the disk is full, the log stays beside the file, and the next open finds it there.
            with contextlib.suppress(sqlite3.Error):
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()
        if self._read_only:
            remove_empty_log(self.path)

    def back_up(self, path: Path) -> None:
        """Copies everything at one moment to a new file, even while other processes write."""
        try:
            self._connection().execute("VACUUM INTO ?", (str(path),))
            with contextlib.closing(connect(path, "mode=rw")) as copy:
                copy.execute("PRAGMA journal_mode = WAL")  # VACUUM does not copy this setting
        except sqlite3.Error as error:
            raise explain(path, error) from error

    def read(self, query: str, values: Sequence[object] = ()) -> list[tuple]:
        """Returns all rows of a query at once: an unfinished statement would keep the write-ahead log from folding."""
        try:
            return self._connection().execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise explain(self.path, error) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commits (with fsync) at the end, or leaves the file as it was.

        A transaction inside another one is a part of it, which the outer one commits. If it fails, it is undone alone.
        Read results inside: an error after the commit would make the caller store the answer again.

        Raises PrefDBError, also after the commit if the file is not at its place any more.
        """
        db = self._connection()
        if self._read_only:
            raise PrefDBError(f"{self.path} was opened read-only: open it for writing to add answers")
        is_part = db.in_transaction
        done = False
        try:
            db.execute("SAVEPOINT part" if is_part else "BEGIN IMMEDIATE")
            yield db
            db.execute("RELEASE part" if is_part else "COMMIT")
            done = True
            if not is_part:
                self.check_place()
        except sqlite3.Error as error:
            raise explain(self.path, error) from error
        finally:
            if db.in_transaction and not done:
                with contextlib.suppress(sqlite3.Error):
                    db.execute("ROLLBACK TO part" if is_part else "ROLLBACK")

    def check_place(self) -> None:
        """Raises PrefDBError if the path leads to another file than the open one, or to none.

        The open file still has all answers. They are saved beside the path, unless the folder is another one too.
        """
        if not self._trouble and not leads_to(self.path, self._file):
            if not leads_to(self.path.absolute().parent, self._folder):
                self._trouble = f"{self.path} is gone, its folder was removed or renamed: give that back its name"
            else:
                saved = self.path.with_name(f"{self.path.stem}-saved-{time.time_ns()}.db")
                self.back_up(saved)
                self._trouble = (
                    f"{self.path} was removed or replaced while answers were stored in it: end what uses it, and put "
                    f"{saved} in its place, which has them all (the command `restore RUN COPY`)"
                )
        if self._trouble:
            raise PrefDBError(self._trouble)

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            raise PrefDBError(f"{self.path} was closed: open it again")
        return self._db
