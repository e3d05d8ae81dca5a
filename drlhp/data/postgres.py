"""A schema of a PostgreSQL database as the store; every error becomes one sentence with the fix.

Writers take turns: each transaction that may write begins with a lock of its own for the schema. Under READ COMMITTED
alone two people would get the same pair, and a label that is committed late would get a seq that readers have passed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from drlhp.data.address import Address
from drlhp.data.schema import SCHEMA_VERSION
from drlhp.data.store import Rows
from drlhp.errors import LostConnectionError, PrefDBError, UserError, naming, reason_of

try:
    import psycopg
    from psycopg.adapt import Dumper
except ImportError as missing:
    raise UserError(
        "a store in PostgreSQL needs a package that is not installed: run `python -m pip install 'psycopg[binary]'`."
    ) from missing

T = TypeVar("T")
log = logging.getLogger("run")
logging.getLogger("psycopg").setLevel(logging.ERROR)  # it warns of lost connections, of which we tell ourselves

LAST_SEQ_GIVEN = "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('answer', 'seq')::regclass), 0)"
PATIENCE = 60.0  # seconds to wait for a database that does not answer any more
LOOK_SECONDS = 0.25  # between two looks at what others have stored: each is a journey to the database and back
SAID_AFTER = 1.0  # seconds of waiting before the person is told
# A process that was suspended in the middle of a transaction must not keep all others waiting for its lock.
SETTINGS = {
    **{"synchronous_commit": "on", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "60s"},
    # Our queries look up a few rows by an index, or follow one. The database counts its rows about once a minute. Until
    # then it takes a new table for an empty one, and would rather read it whole, a thousand times for one question.
    # What is ruled out so and done all the same is taken for so dear that it would be compiled, in half a second.
    **{"enable_seqscan": "off", "enable_bitmapscan": "off", "enable_sort": "off", "jit": "off"},
}
# A connection that ends without a word, as when a cable is pulled, is noticed within these seconds.
NETWORK: dict[str, Any] = {
    "connect_timeout": 5,
    **{"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 2, "tcp_user_timeout": 15_000},
}
LOST = ("57P01", "57P02", "25P03")  # the server stops, or has ended a transaction that stood still
FIXES = {
    "53100": "cannot grow, its disk is full: free some space there and answer again, earlier labels are safe",
    "53300": "has no connection left: end programs that use it, or raise max_connections there",
    "55P03": "is kept busy by another process: try again, or stop that process",
    "42501": "refuses this user that: let its owner GRANT the rights (docs/shared_store.md has the statements)",
    "25006": "takes no answers, it is read-only: give the address of the main server",
}


class _Flag(Dumper):
    """Passes True and False as 1 and 0, because both kinds of stores keep flags as numbers."""

    oid = 20  # BIGINT

    def dump(self, obj: Any) -> bytes:
        return b"1" if obj else b"0"


@functools.lru_cache(maxsize=512)
def _translated(query: str) -> str:
    return query.replace("%", "%%").replace("?", "%s")


class Connection:
    """Carries out statements that have `?` for each value. Raises psycopg.Error."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self.plain = connection

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Rows:
        return self.plain.execute(_translated(query), values)

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> None:
        with self.plain.cursor() as cursor:
            cursor.executemany(_translated(query), rows)


def connect(address: Address) -> psycopg.Connection[tuple[Any, ...]]:
    """Connects; each statement is committed by itself unless it follows a BEGIN. Raises PrefDBError.

    The password comes from where libpq looks for it: PGPASSWORD, or ~/.pgpass.
    """
    options = " ".join(f"-c {name}={value}" for name, value in {**SETTINGS, "search_path": address.schema}.items())
    try:
        plain = psycopg.connect(address.server, autocommit=True, options=options, **NETWORK)
    except psycopg.Error as error:
        reason = " ".join(str(error).rsplit("failed: ", 1)[-1].splitlines()[0].split())  # of the host tried last
        if "password" in reason:
            fix = "set PGPASSWORD to the password, or write it into ~/.pgpass"
        else:
            fix = "check the address, and that the server runs and takes connections from here"
        raise PrefDBError(f"{address} cannot be opened ({reason}): {fix}") from error
    plain.adapters.register_dumper(bool, _Flag)
    return plain


def explain(address: Address, error: psycopg.Error, connection: psycopg.Connection[Any]) -> PrefDBError:
    """Returns one sentence with the fix for what the database reports."""
    if connection.closed or error.sqlstate in LOST:
        return LostConnectionError(f"{address} does not answer now: answer again when it does, earlier labels are safe")
    fix = FIXES.get(error.sqlstate or "", f"failed in PostgreSQL ({reason_of(error)}): look at the server's log")
    return PrefDBError(f"{address} {fix}")


def schema_version(db: Connection, address: Address) -> int:
    """Returns the version of a store's schema; 0 if there is nothing yet.

    Raises psycopg.Error, and PrefDBError if it is of a newer version or holds something else.
    """
    tables = {row[0] for row in db.execute("SELECT tablename FROM pg_tables WHERE schemaname = ?", (address.schema,))}
    if not tables:
        return 0
    rows = db.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchall() if "meta" in tables else []
    if not rows:
        raise PrefDBError(f"{address} holds something else than labels: give another ?schema=NAME in the address")
    version = int(rows[0][0])
    if version > SCHEMA_VERSION:
        raise PrefDBError(f"{address} is from a newer version (schema {version}): update this program")
    return version


def join(path: Path, address: str) -> None:
    """Makes a link to a store, and its folder. Raises UserError if there is no store, or it cannot be opened."""
    store = PostgresSchema.open(path, address, read_only=True, patience=PATIENCE)
    store.close()
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        store.address.link_from(path)


class PostgresSchema:
    """An open schema for one thread; a `Store`. Use `open`, or `postgres_copy.make` for a new one.

    If the connection is lost, reads and the beginnings of transactions are tried again until `patience` is over, and so
    are the calls of `repeated`.
    """

    look_seconds = LOOK_SECONDS

    def __init__(self, path: Path, address: Address, *, read_only: bool = False, patience: float = PATIENCE) -> None:
        """Connects. Raises PrefDBError.

        Args:
            path: the link that leads here.
            patience: seconds.
        """
        self.path, self.address, self.patience = path, address, patience
        self._read_only, self._depth, self._failed, self._closed = read_only, 0, False, False
        digest = hashlib.sha256(f"drlhp {address.schema}".encode()).digest()
        self._turn = int.from_bytes(digest[:8], "big", signed=True)
        self._db = Connection(connect(address))
        try:
            self.version = schema_version(self._db, address)
        except psycopg.Error as error:
            failure = explain(address, error, self._db.plain)
            self.close()
            raise failure from error
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: Path, address: str, *, read_only: bool, patience: float) -> PostgresSchema:
        """Opens the store of a link. Raises PrefDBError if there is none, or it is newer or something else."""
        store = cls(path, Address.parse(address), read_only=read_only, patience=patience)
        if not store.version:
            store.close()
            raise PrefDBError(
                f"{store.address} holds no labels: check the address, make a run with it (--store), or restore a dump"
            )
        return store

    def close(self) -> None:
        """Ends the connection; may be called twice."""
        self._closed = True
        self._db.plain.close()

    def read(self, query: str, values: Sequence[object] = ()) -> list[tuple]:
        """Returns all rows of a query."""

        def rows() -> list[tuple]:
            with self._explained():
                return self._db.execute(query, values).fetchall()

        return self.repeated(rows)

    def transaction(self, *, in_step: bool = False) -> contextlib.AbstractContextManager[Connection]:
        """Commits at the end, or leaves the store as it was; other writers wait meanwhile.

        A statement is sent with the next one whose rows are fetched, or with the commit: each journey to the database
        costs more than most statements. So one that fails may raise its error only there, and who is not `repeated`
        hears of a connection that was lost before.
        A transaction inside another one is a part of it, which the outer one commits. If a part fails, it is undone
        with all of the outer one, because undoing it alone would take two journeys to the database more.
        Read results inside: an error after the commit would make the caller store the answer again.

        in_step: each statement is carried out before the next one, as copying needs it.
        """
        if self._read_only:
            raise PrefDBError(f"{self.path} was opened read-only: open it for writing to add answers")
        return self._part() if self._depth else self._whole(in_step)

    @contextlib.contextmanager
    def _whole(self, in_step: bool) -> Iterator[Connection]:
        db, self._failed = self._db.plain, False
        self._depth += 1
        try:
            with self._explained(), contextlib.nullcontext() if in_step else db.pipeline():
                db.execute("BEGIN")
                db.execute("SELECT pg_advisory_xact_lock(%s)", (self._turn,))
                yield self._db
                if self._failed:
                    raise PrefDBError(f"{self.address} was not changed, because a part of the change failed: try again")
                db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                db.execute("ROLLBACK")
            raise
        finally:
            self._depth -= 1

    @contextlib.contextmanager
    def _part(self) -> Iterator[Connection]:
        try:
            yield self._db
        except BaseException:
            self._failed = True
            raise

    def repeated(self, call: Callable[[], T]) -> T:
        """Returns what the call returns; connects and lets it begin again if the connection was lost meanwhile.

        Within a transaction all of that has to begin again. Raises PrefDBError when the patience is over.
        """
        if self._depth:
            return call()
        began: float | None = None
        while True:
            try:
                return call()
            except LostConnectionError as error:
                if self._closed:
                    raise PrefDBError(f"{self.path} was closed: open it again") from error
                began = time.monotonic() if began is None else began
                self._connect_again(began + self.patience)

    @property
    def in_transaction(self) -> bool:
        """Returns whether a transaction has begun and not ended."""
        return self._depth > 0

    def last_seq_given(self) -> int:
        """Returns the seq that an answer got last, also if a restored dump lacks that answer."""
        return int(self.read(LAST_SEQ_GIVEN)[0][0])

    def back_up(self, path: Path) -> None:
        """Copies everything at one moment to a new SQLite file, even while other processes write."""
        from drlhp.data.postgres_copy import back_up

        with self._explained():
            back_up(self._db, path)

    def check_place(self) -> None:
        """Returns at once: a database stays where it is, and one that is gone fails with the next statement."""

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise explain(self.address, error, self._db.plain) from error

    def _connect_again(self, until: float) -> None:
        """Connects, and waits until the database answers; tells the person once what it waits for."""
        say_at: float | None = time.monotonic() + SAID_AFTER
        pause = 0.05
        while True:
            try:
                new = connect(self.address)
            except PrefDBError as error:
                now = time.monotonic()
                if now >= until:
                    raise PrefDBError(
                        f"{self.address} has not answered for {self.patience:.0f} seconds: start it again or mend the "
                        "network, earlier labels are safe"
                    ) from error
                if say_at is not None and now >= say_at:
                    say_at = None
                    self._say(f"{self.address} does not answer; trying again for up to {until - now:.0f} seconds")
                time.sleep(min(pause, max(0.0, until - now)))
                pause = min(2 * pause, 1.0)
            else:
                if say_at is None:
                    self._say(f"{self.address} answers again; nothing was lost")
                self._db.plain.close()
                self._db = Connection(new)
                return

    @staticmethod
    def _say(sentence: str) -> None:
        log.info(sentence)
        if multiprocessing.parent_process() is None:  # else the main process says it too
            print(f"{sentence}.", flush=True)
