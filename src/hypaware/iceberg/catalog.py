"""The catalog of the lake: which metadata file each table has. `catalog.db` (SQLite), or PostgreSQL for a shared lake.

Both have the tables of Iceberg's JDBC catalog, so the same statements read and change them. A change of a shared
catalog carries the epoch of the lease that this process holds (`hold_lease`); the database rejects any other one.

@ref engine#lease
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hypaware import extras
from hypaware.config.shared_lake import SharedLake, find_shared_lake
from hypaware.errors import LakeError, Retryable
from hypaware.home import Home
from hypaware.home.sqlite_readonly import has_table, open_readonly

if TYPE_CHECKING:
    import psycopg

TABLES = "iceberg_tables"
LEASE_LOST_SQLSTATE = "HY115"
"""The SQLSTATE of a change that is rejected because the lease on the lake is lost (`state.lake_lease`)."""
EPOCH_SETTING = "hypaware.epoch"
_CONNECT_SECONDS = 10
Execute = Callable[[str, Sequence[Any]], list[Any]]
"""Runs a statement with `?` parameters and returns its rows."""

_epoch: int | None = None
_idle = threading.local()


def hold_lease(epoch: int | None) -> None:
    """Set the epoch under which this process changes the shared lake, or None after it has given up the lease."""
    global _epoch
    _epoch = epoch


def held_epoch() -> int | None:
    return _epoch


def epoch_options(epoch: int) -> str:
    """Return the value of `options` in the address of the catalog, for connections under this epoch."""
    return f"-c {EPOCH_SETTING}={epoch}"


@contextmanager
def read_catalog(home: Home) -> Iterator[Execute | None]:
    """Yield a function that reads the catalog, or None if it has no tables."""
    if (shared := find_shared_lake(home)) is not None:
        with _shared_errors(shared), _connected(shared) as connection:
            found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (TABLES,)).fetchone()
            yield _execute_on(connection) if found and found[0] else None
        return
    if not home.catalog.is_file():
        yield None
        return
    with open_readonly(home.catalog) as catalog:
        yield (lambda sql, values: catalog.execute(sql, values).fetchall()) if has_table(catalog, TABLES) else None


@contextmanager
def change_catalog(home: Home) -> Iterator[Execute]:
    """Yield a function that changes the catalog, in one durable transaction."""
    if (shared := find_shared_lake(home)) is not None:
        with _shared_errors(shared), closing(connect_shared(shared, _epoch)) as connection, connection.transaction():
            yield _execute_on(connection)
        return
    with closing(sqlite3.connect(home.catalog, timeout=30, isolation_level=None)) as catalog:
        catalog.execute("PRAGMA synchronous=FULL")
        catalog.execute("BEGIN IMMEDIATE")
        yield lambda sql, values: catalog.execute(sql, values).fetchall()
        catalog.execute("COMMIT")


def describe(home: Home) -> str:
    """Return the catalog's place, for messages."""
    shared = find_shared_lake(home)
    return str(home.catalog) if shared is None else shared.address


def connect_shared(shared: SharedLake, epoch: int | None = None) -> psycopg.Connection[Any]:
    extras.require("team")
    import psycopg

    return psycopg.connect(
        shared.uri,
        user=shared.user,
        password=shared.password,
        autocommit=True,
        prepare_threshold=None,
        connect_timeout=_CONNECT_SECONDS,
        tcp_user_timeout=_CONNECT_SECONDS * 1000,
        application_name="hypaware",
        options="-c synchronous_commit=on" + (f" {epoch_options(epoch)}" if epoch is not None else ""),
    )


class _IdleConnection:
    """A connection that a thread keeps. It is closed when the thread ends, in the process that has opened it."""

    def __init__(self, shared: SharedLake) -> None:
        self.pid, self.shared = os.getpid(), shared
        self.connection = connect_shared(shared)

    def __del__(self) -> None:
        # After a fork, the connection belongs to the parent process: closing it here would end the parent's session.
        with suppress(Exception):
            if self.pid == os.getpid():
                self.connection.close()


@contextmanager
def _connected(shared: SharedLake) -> Iterator[psycopg.Connection[Any]]:
    """Yield this thread's connection for reading. It is used again unless an error occurs."""
    held: _IdleConnection | None = getattr(_idle, "connection", None)
    _idle.connection = None
    if held is None or held.pid != os.getpid() or held.shared != shared or not _is_alive(held.connection):
        held = _IdleConnection(shared)
    yield held.connection
    _idle.connection = held


def _is_alive(connection: psycopg.Connection[Any]) -> bool:
    import psycopg

    try:
        connection.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True


def _execute_on(connection: psycopg.Connection[Any]) -> Execute:
    def execute(sql: str, values: Sequence[Any]) -> list[Any]:
        cursor = connection.execute(sql.replace("?", "%s"), values)
        return cursor.fetchall() if cursor.description else []

    return execute


@contextmanager
def _shared_errors(shared: SharedLake) -> Iterator[None]:
    extras.require("team")
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if error.sqlstate == LEASE_LOST_SQLSTATE:
            raise LakeError(f"another machine has taken over the lake: {reason}", kind="lease_lost") from error
        message = f"the catalog {shared.address} (lake.catalog) is not available: {reason}"
        raise Retryable(message, kind="catalog_unavailable") from error
