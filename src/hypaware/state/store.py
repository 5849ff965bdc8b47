"""The state database and its transactions. This is the only module of the state that depends on SQLite.

WAL with synchronous FULL: a committed transaction is on disk. A transaction takes the write lock when it begins
(BEGIN IMMEDIATE), so its reads are still valid when it writes. A process that detects damage creates the marker file
`state.db.suspect`, so that the next process that opens the state checks all of it. A forked child process opens its own
connections.

@ref homes#state
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import Connection, event
from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError

from hypaware import faults
from hypaware.errors import HypError, Retryable, StateCorrupt, StateError
from hypaware.state import migrations

_before_commit = faults.point("state.commit.before-commit", "a change of the state is complete and not committed")
_after_commit = faults.point("state.commit.after-commit", "a change of the state is committed")

_BUSY_MILLISECONDS = 30_000
_stores: weakref.WeakSet[Store] = weakref.WeakSet()
_inherited: list[sqlalchemy.Pool] = []


class Store:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._engine = sqlalchemy.create_engine(
            sqlalchemy.URL.create("sqlite", database=str(path)), connect_args={"timeout": _BUSY_MILLISECONDS / 1000}
        )
        event.listen(self._engine, "connect", _prepare)
        event.listen(self._engine, "begin", _begin)
        _stores.add(self)

    def migrate(self) -> None:
        with self.transaction() as connection:
            try:
                migrations.migrate(connection)
            except migrations.FromTheFuture as unknown:
                raise StateError(
                    f"the state {self.path} was written by a newer version of hypaware (it has {unknown})",
                    kind="state_too_new",
                    repair="pip install --upgrade hypaware",
                ) from None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run a transaction. It is atomic, and durable when the context exits."""
        try:
            with self._engine.connect() as connection, connection.begin():
                yield connection
                _before_commit()
            _after_commit()
        except DBAPIError as error:
            raise self._to_hyp_error(error) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read one consistent snapshot, without waiting for writers or blocking them."""
        try:
            with self._engine.connect().execution_options(hyp_read_only=True) as connection, connection.begin():
                yield connection
        except DBAPIError as error:
            raise self._to_hyp_error(error) from error

    def close(self) -> None:
        self._engine.dispose()

    def _to_hyp_error(self, error: DBAPIError) -> HypError:
        reason = str(error.orig)
        if isinstance(error, OperationalError):
            if not os.access(self.path.parent, os.W_OK):
                reason = f"{self.path.parent} is not writable"
            return Retryable(f"cannot write the state {self.path}: {reason}", kind="state_unavailable")
        if isinstance(error, DatabaseError) and type(error.orig) is sqlite3.DatabaseError:
            with contextlib.suppress(OSError):
                suspicion(self.path).touch(mode=0o600)
            return StateCorrupt(f"the state {self.path} is damaged: {reason}")
        return StateError(f"a change of the state {self.path} failed: {reason}")


def suspicion(path: Path) -> Path:
    """Return the path of the marker file of a state in which damage was detected."""
    return path.with_name(f"{path.name}.suspect")


def is_sound(path: Path) -> bool:
    """Report whether the database passes a full check. An empty file is new, not damaged."""
    uri = f"{path.absolute().as_uri()}?mode=rw"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_MILLISECONDS / 1000)) as connection:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.OperationalError as error:
        raise Retryable(f"cannot check the state {path}: {error}", kind="state_unavailable") from error
    except sqlite3.DatabaseError:
        return False


def _prepare(connection: Any, _record: object) -> None:
    # Otherwise the driver begins transactions itself, late and deferred. `_begin` does it instead.
    connection.isolation_level = None
    for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={_BUSY_MILLISECONDS}", "secure_delete=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin(connection: Connection) -> None:
    read_only = connection.get_execution_options().get("hyp_read_only", False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _forget_in_child() -> None:
    """Replace the connection pool after a fork. The old one is kept, unused: closing it could affect the parent."""
    for store in list(_stores):
        _inherited.append(store._engine.pool)
        store._engine.dispose(close=False)


os.register_at_fork(after_in_child=_forget_in_child)
