"""A real PostgreSQL server for the tests of one process, with a schema for each test that wants one."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pref_db import PrefDB

DEBIANS = Path("/usr/lib/postgresql")
NUMBERS = itertools.count()
KINDS = ("sqlite", "postgres")
SECRET = "open-sesame"  # of the role `locked`, the only one that needs a password


def programs() -> Path:
    """The folder of initdb and postgres. Skips the test if they are missing."""
    found = sorted(DEBIANS.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3].split(".")[0]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql-15)")
    return Path(on_path).resolve().parent


@functools.cache
def account() -> dict[str, int]:
    """Who runs the server: this user, or one without rights in place of root, for whom it does not start."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid}
    pytest.skip("PostgreSQL does not run as root, and there is no other user")


class PostgresServer:
    """A server on a Unix socket in a folder of its own."""

    def __init__(self, *, durable: bool = False) -> None:
        self.bin = programs()
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path has 103 characters at most
        if who := account():
            os.chown(self.folder, who["user"], who["group"])
        self.durable = durable
        data = str(self.folder / "data")
        words = [str(self.bin / "initdb"), "-D", data, "-U", "me", "-A", "trust"]
        words += ["--no-sync", "--no-locale", "-E", "UTF8"]
        subprocess.run(words, check=True, capture_output=True, cwd=self.folder, **account())  # type: ignore[call-overload]
        (self.folder / "data" / "pg_hba.conf").write_text("local all locked scram-sha-256\nlocal all all trust\n")
        self.process: subprocess.Popen[str] | None = None
        self.start()
        with contextlib.closing(self.connect()) as db:
            db.execute(f"CREATE ROLE locked LOGIN SUPERUSER PASSWORD '{SECRET}'")

    def start(self) -> None:
        """Returns when it takes connections."""
        settings = [f"unix_socket_directories={self.folder}", "listen_addresses=", "max_connections=60"]
        settings += ["shared_buffers=16MB", "logging_collector=off", "lc_messages=C"]
        settings += [] if self.durable else ["fsync=off"]
        words = [str(self.bin / "postgres"), "-D", str(self.folder / "data")]
        words += [word for setting in settings for word in ("-c", setting)]
        log = (self.folder / "log").open("a")
        self.process = subprocess.Popen(  # type: ignore[call-overload]
            words, cwd=self.folder, stderr=subprocess.PIPE, stdout=log, text=True, **account()
        )
        assert self.process is not None and self.process.stderr is not None
        told = []
        for line in self.process.stderr:
            told.append(line)
            if "ready to accept connections" in line:
                break
        else:
            raise AssertionError("".join(told))
        log.close()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Ends it and all connections; with SIGQUIT at once, as if it had crashed."""
        if self.process is None:
            return
        self.process.send_signal(how)
        self.process.communicate()
        self.process = None

    def connect(self):  # type: ignore[no-untyped-def]
        """A connection of the tests' own."""
        import psycopg

        return psycopg.connect(f"postgresql:///postgres?host={self.folder}&user=me", autocommit=True)

    def address(self, schema: str | None = None, user: str = "me") -> str:
        """The address of a schema, by default one that nobody has used."""
        name = schema or f"test_{next(NUMBERS)}"
        return f"postgresql:///postgres?host={self.folder}&user={user}&schema={name}"

    def close(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder)


@functools.cache
def _running() -> list[PostgresServer]:
    pytest.importorskip("psycopg")
    return [PostgresServer()]


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[list[PostgresServer]]:
    """Ends the server of this process, if a test has started it."""
    yield []
    if _running.cache_info().currsize:
        _running()[0].close()


@pytest.fixture
def postgres(shared_postgres: list[PostgresServer]) -> PostgresServer:
    """The server that the tests of this process share; no test stops it."""
    return _running()[0]


@pytest.fixture(params=KINDS)
def store_kind(request: pytest.FixtureRequest) -> str:
    """Lets a test run on both kinds of stores."""
    name: str = request.param
    if name == "postgres":
        request.getfixturevalue("postgres")
        if request.node.get_closest_marker("of_a_file"):
            pytest.skip("is about the file")
    return name


def make_store(path: Path, kind: str, env_id: str, length: int, run_id: str = "", address: str = "") -> Path:
    """A new store of this kind: the file, or the link to a schema. Returns its path."""
    if kind == "sqlite":
        PrefDB.create(path, env_id, length, run_id).close()
        return path
    from drlhp.data.postgres_copy import make

    with tempfile.TemporaryDirectory() as folder:
        path.parent.mkdir(parents=True, exist_ok=True)
        PrefDB.create(Path(folder) / "prefs.db", env_id, length, run_id).close()
        make(path, address or _running()[0].address(), Path(folder) / "prefs.db")
    return path
