"""The state database (`state.db`): its connections and transactions.

All access to the state is plain SQL through a `Connection`. This module alone depends on the database driver, which is
SQLite. WAL with synchronous FULL: a committed transaction is on disk. A transaction takes the write lock when it begins
(BEGIN IMMEDIATE), so its reads are still valid when it writes. A process that detects damage creates the marker file
`state.db.suspect`, so that the next process that opens the state checks all of it. A forked child process opens its own
connections.

@ref homes#state
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypaware import faults
from hypaware.errors import HypError, Retryable, StateCorrupt, StateError
from hypaware.home.identity import Identity, parse_identity
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.state import schema

_before_commit = faults.crash_point("state.commit.before-commit", "a change of the state is complete and not committed")
_after_commit = faults.crash_point("state.commit.after-commit", "a change of the state is committed")

_BUSY_MILLISECONDS = 30_000
_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "busy_timeout={busy}", "secure_delete=ON")
_IDENTITY_KEY = "identity"

Parameters = Mapping[str, Any] | Sequence[Any]
Row = dict[str, Any]

_open_stores: weakref.WeakSet[StateStore] = weakref.WeakSet()
_inherited: list[list[sqlite3.Connection]] = []


class Connection:
    """One transaction on the state. Statements have named (`:name`) or positional (`?`) parameters."""

    def __init__(self, driver: sqlite3.Connection, path: Path, *, read_only: bool = False) -> None:
        self.driver = driver
        self._path = path
        self._read_only = read_only

    def execute(self, sql: str, parameters: Parameters = ()) -> int:
        """Run a statement and return the number of rows that it changed."""
        with self._errors():
            return self.driver.execute(sql, parameters).rowcount

    def rows(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        with self._errors():
            cursor = self.driver.execute(sql, parameters)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def row(self, sql: str, parameters: Parameters = ()) -> Row | None:
        """Return the first row, or None."""
        return next(iter(self.rows(sql, parameters)), None)

    def values(self, sql: str, parameters: Parameters = ()) -> list[Any]:
        """Return the first column of every row."""
        with self._errors():
            return [row[0] for row in self.driver.execute(sql, parameters)]

    def value(self, sql: str, parameters: Parameters = ()) -> Any:
        """Return the first column of the first row, or None."""
        return next(iter(self.values(sql, parameters)), None)

    def insert(self, table: str, *rows: Mapping[str, Any]) -> None:
        """Insert rows, which must have the same columns."""
        if rows:
            names = list(rows[0])
            sql = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"
            with self._errors():
                self.driver.executemany(sql, rows).close()

    def has_table(self, name: str) -> bool:
        return self.value("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)) is not None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise to_state_error(self._path, error, mark_damage=not self._read_only) from error


class StateStore:
    """The state of a home. With `read_only`, it changes no file and rejects transactions."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._read_only = read_only
        self._idle: list[sqlite3.Connection] = []
        _open_stores.add(self)

    def migrate(self) -> None:
        """Apply the missing migrations. Raise StateError if the state has those of a newer version."""
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
                    f"the state {self.path} was written by a newer version of hypaware "
                    f"(it has {', '.join(sorted(unknown))})",
                    kind="state_too_new",
                    repair="pip install --upgrade hypaware",
                )

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run a transaction. It is atomic, and durable when the context exits."""
        if self._read_only:
            raise AssertionError("a read-only state cannot be changed")
        with self._begun("BEGIN IMMEDIATE") as connection:
            yield connection
            _before_commit()
        _after_commit()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read one consistent snapshot, without waiting for writers or blocking them."""
        if not self._read_only:
            with self._begun("BEGIN") as connection:
                yield connection
            return
        with open_readonly(self.path) as driver:
            driver.execute("BEGIN")
            yield Connection(driver, self.path, read_only=True)

    def close(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()

    @contextmanager
    def _begun(self, begin: str) -> Iterator[Connection]:
        connection = self._connect()
        try:
            connection.execute(begin)
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            # A connection that cannot roll back is not used again.
            with contextlib.suppress(sqlite3.Error):
                connection.driver.rollback()
                self._idle.append(connection.driver)
            raise
        self._idle.append(connection.driver)

    def _connect(self) -> Connection:
        with contextlib.suppress(IndexError):
            return Connection(self._idle.pop(), self.path)
        try:
            # Without an isolation level, the driver begins no transactions of its own. Any thread may use the
            # connection, but only one at a time.
            driver = sqlite3.connect(
                self.path, timeout=_BUSY_MILLISECONDS / 1000, isolation_level=None, check_same_thread=False
            )
            for pragma in _PRAGMAS:
                driver.execute(f"PRAGMA {pragma.format(busy=_BUSY_MILLISECONDS)}").close()
        except sqlite3.Error as error:
            raise to_state_error(self.path, error) from error
        return Connection(driver, self.path)


def to_state_error(path: Path, error: sqlite3.Error, *, mark_damage: bool = True) -> HypError:
    """Convert an error of the driver. Damage leaves the marker file, unless the state is only read."""
    if isinstance(error, sqlite3.OperationalError):
        reason = str(error) if os.access(path.parent, os.W_OK) else f"{path.parent} is not writable"
        return Retryable(f"cannot write the state {path}: {reason}", kind="state_unavailable")
    if type(error) is sqlite3.DatabaseError:
        if mark_damage:
            with contextlib.suppress(OSError):
                suspect_marker(path).touch(mode=0o600)
        return StateCorrupt(f"the state {path} is damaged: {error}")
    return StateError(f"a change of the state {path} failed: {error}")


def suspect_marker(path: Path) -> Path:
    """Return the path of the marker file of a state in which damage was detected."""
    return path.with_name(f"{path.name}.suspect")


def is_intact(path: Path) -> bool:
    """Report whether the database passes a full check. An empty file is new, not damaged."""
    uri = f"{path.absolute().as_uri()}?mode=rw"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_MILLISECONDS / 1000)) as driver:
            return bool(driver.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.OperationalError as error:
        raise Retryable(f"cannot check the state {path}: {error}", kind="state_unavailable") from error
    except sqlite3.DatabaseError:
        return False


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
