"""Defines what the store of labels may lie in: a SQLite file, or a schema of a PostgreSQL database."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

LINK_BYTES = 4096  # more than an address has, and no more than the smallest SQLite file of ours
SCHEMES = (b"postgresql://", b"postgres://")


class Rows(Protocol):
    """The outcome of a statement."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Statements(Protocol):
    """Takes SQL that both SQLite and PostgreSQL understand, with `?` for each value."""

    def execute(self, query: str, values: Sequence[Any] = ..., /) -> Rows: ...

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> object: ...


class Store(Protocol):
    """An open store, for one thread. Every method raises PrefDBError if the store fails, or after `close`."""

    path: Path  # the file, or the link to the database
    look_seconds: float  # between two looks at what others have stored, for those who look all the time

    @property
    def version(self) -> int:
        """Returns the version of the schema."""

    @property
    def in_transaction(self) -> bool:
        """Returns whether a transaction of this object has begun and not ended."""

    def read(self, query: str, values: Sequence[object] = ()) -> list[tuple]:
        """Returns all rows of a query."""

    def transaction(self) -> contextlib.AbstractContextManager[Statements]:
        """Commits at the end, or leaves the store as it was; others wait meanwhile if they want to write.

        A transaction inside another one is a part of it, which the outer one commits. If a part fails, so must
        the whole.
        """

    def repeated(self, call: Callable[[], T]) -> T:
        """Returns what the call returns; lets it begin again if the connection was lost before all was committed."""

    def last_seq_given(self) -> int:
        """Returns the seq that an answer got last, also if that answer is not in the store."""

    def back_up(self, path: Path) -> None:
        """Copies everything at one moment to a new SQLite file, even while other processes write."""

    def check_place(self) -> None:
        """Raises PrefDBError if the store is no longer at its place."""

    def close(self) -> None:
        """Ends its use; may be called twice."""


def repeated(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Lets a method of PrefDB, or of a class with a `db`, begin again if the connection was lost meanwhile.

    The first try may have been committed, so the method has to find what it has stored already.
    """

    @functools.wraps(method)
    def carried_out(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        owner: Any = self
        store: Store = getattr(owner, "db", owner).store
        return store.repeated(lambda: method(self, *args, **kwargs))

    return carried_out


def link_of(path: Path) -> str | None:
    """Returns the address in a file that leads to a PostgreSQL store; None for any other file.

    A SQLite file is not opened: when a file is closed, the system drops all locks that this process has on it, also
    those of SQLite. Another process would then take itself for the last one, and remove the log that answers go to.
    """
    try:
        if path.stat().st_size >= LINK_BYTES:
            return None
        with path.open("rb") as file:
            start = file.read(LINK_BYTES)
    except OSError:
        return None  # SQLite says why
    return start.decode("utf-8", "replace").strip() if start.startswith(SCHEMES) else None
