"""The state: its connections and transactions, on SQLite or PostgreSQL.

All access to the state is plain SQL through a `Connection`. Only the two modules of the databases depend on a driver:
`sqlite_database` for the state of a home, `postgres_database` for one that several machines share. A transaction is the
only one that writes while it runs, so its reads are still valid when it writes. A forked child process opens its own
connections.

@ref homes#state
"""

from __future__ import annotations

import contextlib
import json
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from hypaware import faults
from hypaware.errors import HypError, StateError
from hypaware.home.identity import Identity, parse_identity
from hypaware.state import schema
from hypaware.state.sqlite_database import SqliteDatabase

_before_commit = faults.crash_point("state.commit.before-commit", "a change of the state is complete and not committed")
_after_commit = faults.crash_point("state.commit.after-commit", "a change of the state is committed")

_IDENTITY_KEY = "identity"

Parameters = Mapping[str, Any] | Sequence[Any]
Row = dict[str, Any]

_open_stores: weakref.WeakSet[StateStore] = weakref.WeakSet()
_inherited: list[list[Any]] = []


class StateDatabase(Protocol):
    """A database that can hold the state. Its text in a message is its address, without a password."""

    @property
    def error_type(self) -> type[Exception]: ...

    @property
    def begin_writing(self) -> Sequence[str]:
        """The statements that begin a transaction and wait until no other one writes."""

    @property
    def begin_reading(self) -> Sequence[str]:
        """The statements that begin to read one consistent snapshot."""

    @property
    def find_table(self) -> str:
        """A query that returns a row if the table of the given name exists."""

    def prepare(self) -> None:
        """Create what must exist before the first transaction."""

    def connect(self) -> Any:
        """Return a connection of the driver, which has the methods of `sqlite3.Connection`."""

    def connect_readonly(self) -> AbstractContextManager[Any]:
        """Return a connection that changes nothing, not even the files next to the database."""

    def is_broken(self, driver: Any) -> bool:
        """Return whether the connection was lost and another one may work."""

    def to_error(self, error: Exception, *, read_only: bool) -> HypError:
        """Convert an error of the driver."""


class Connection:
    """One transaction on the state. Statements have named (`:name`) or positional (`?`) parameters."""

    def __init__(self, driver: Any, database: StateDatabase, *, read_only: bool = False) -> None:
        self.driver = driver
        self._database = database
        self._read_only = read_only

    def execute(self, sql: str, parameters: Parameters = ()) -> int:
        """Run a statement and return the number of rows that it changed."""
        with self.errors():
            changed: int = self.driver.execute(sql, parameters).rowcount
            return changed

    def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        with self.errors():
            cursor = self.driver.execute(sql, parameters)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def row(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """Return the first row, or None."""
        return next(iter(self.rows(sql, parameters)), None)

    def values(self, sql: str, parameters: Parameters = ()) -> list[Any]:
        """Return the first column of every row."""
        with self.errors():
            return [row[0] for row in self.driver.execute(sql, parameters)]

    def value(self, sql: str, parameters: Parameters = ()) -> Any:
        """Return the first column of the first row, or None."""
        return next(iter(self.values(sql, parameters)), None)

    def insert(self, table: str, *rows: Mapping[str, Any]) -> None:
        """Insert rows, which must have the same columns."""
        if rows:
            names = list(rows[0])
            sql = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"
            with self.errors():
                self.driver.executemany(sql, rows).close()

    def has_table(self, name: str) -> bool:
        return self.value(self._database.find_table, (name,)) is not None

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except self._database.error_type as error:
            raise self._database.to_error(error, read_only=self._read_only) from error


class StateStore:
    """The state, in the SQLite file at a path or in another database.

    With `read_only`, it changes no file and rejects transactions.
    """

    def __init__(self, at: Path | StateDatabase, *, read_only: bool = False) -> None:
        self.database: StateDatabase = SqliteDatabase(at) if isinstance(at, Path) else at
        self._read_only = read_only
        self._idle: list[Any] = []
        _open_stores.add(self)

    def migrate(self) -> None:
        """Apply the missing migrations. Raise StateError if the state has those of a newer version."""
        try:
            self.database.prepare()
        except self.database.error_type as error:
            raise self.database.to_error(error, read_only=False) from error
        with self.transaction() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY, applied_at TEXT NOT NULL)"
            )
            applied = set(connection.values("SELECT name FROM migrations"))
            for name, statements in schema.MIGRATIONS:
                if name not in applied:
                    for statement in statements:
                        connection.execute(statement)
                    connection.insert("migrations", {"name": name, "applied_at": schema.utc_now()})
            if unknown := applied - {name for name, _ in schema.MIGRATIONS}:
                raise StateError(
                    f"the state {self.database} was written by a newer version of hypaware "
                    f"(it has {', '.join(sorted(unknown))})",
                    kind="state_too_new",
                    repair="pip install --upgrade hypaware",
                )

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run a transaction. It is atomic, and durable when the context exits."""
        if self._read_only:
            raise AssertionError("a read-only state cannot be changed")
        with self._begun(self.database.begin_writing) as connection:
            yield connection
            _before_commit()
        _after_commit()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read one consistent snapshot, without waiting for writers or blocking them."""
        if not self._read_only:
            with self._begun(self.database.begin_reading) as connection:
                yield connection
            return
        with self.database.connect_readonly() as driver:
            for statement in self.database.begin_reading:
                driver.execute(statement)
            yield Connection(driver, self.database, read_only=True)

    def close(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()

    @contextmanager
    def _begun(self, statements: Sequence[str]) -> Iterator[Connection]:
        connection = self._begin(statements)
        try:
            yield connection
            with connection.errors():
                connection.driver.commit()
        except BaseException:
            self._roll_back(connection)
            raise
        self._idle.append(connection.driver)

    def _begin(self, statements: Sequence[str]) -> Connection:
        """Begin a transaction, on an idle connection that still works, or on a new one."""
        while True:
            driver = self._pop_idle()
            connection = self._connect() if driver is None else Connection(driver, self.database)
            try:
                for statement in statements:
                    connection.execute(statement)
                return connection
            except BaseException as error:
                was_lost = self.database.is_broken(connection.driver)
                self._roll_back(connection)
                if driver is None or not was_lost or not isinstance(error, HypError):
                    raise

    def _roll_back(self, connection: Connection) -> None:
        """Roll a transaction back. A connection that cannot roll back is not used again."""
        try:
            connection.driver.rollback()
        except self.database.error_type:
            with contextlib.suppress(self.database.error_type):
                connection.driver.close()
        else:
            self._idle.append(connection.driver)

    def _pop_idle(self) -> Any | None:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        return None

    def _connect(self) -> Connection:
        try:
            return Connection(self.database.connect(), self.database)
        except self.database.error_type as error:
            raise self.database.to_error(error, read_only=self._read_only) from error


def load_identity(connection: Connection) -> Identity | None:
    """Return the identity, or None in a new state, which may not have been migrated yet."""
    if not connection.has_table("meta"):
        return None
    found = schema.get_meta(connection, _IDENTITY_KEY)
    return parse_identity(json.loads(found)) if found else None


def save_identity(connection: Connection, identity: Identity) -> None:
    schema.set_meta(connection, _IDENTITY_KEY, json.dumps(asdict(identity)))


def _replace_pools_after_fork() -> None:
    """Open new connections in a child. The inherited ones are kept, unused: closing them could affect the parent."""
    for store in list(_open_stores):
        _inherited.append(store._idle)
        store._idle = []


os.register_at_fork(after_in_child=_replace_pools_after_fork)
