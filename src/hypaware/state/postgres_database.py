"""The state in PostgreSQL, which several machines share. The statements of the state are the same as for SQLite.

The tables are in a schema of their own. One transaction writes at a time, as in SQLite: it begins with an advisory lock
of the schema, which the server releases when the transaction ends. A reader gets one snapshot and never waits.

A client that is stopped or cut off in a transaction loses it: the server ends a session that is idle in a transaction
for `idle_seconds`, which is shorter than others wait for the lock. What the client tries afterwards fails.

A COMMIT whose answer is lost may have happened. The caller gets a retryable error, as after a crash at that point.

Differences that are hidden here: the form of the parameters, the names of types, the order of text (by code point, as
in SQLite), and NUL characters, which PostgreSQL cannot store in text: they are stored as U+FFFD.

@ref homes#postgresql
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.adapt import Loader
from psycopg.types.string import StrDumperUnknown

from hypaware.errors import HypError, Retryable, StateError
from hypaware.iceberg.catalog import LEASE_LOST_SQLSTATE

DEFAULT_SCHEMA = "hypaware"
_CONNECT_SECONDS = 10
_IDLE_SECONDS, _LOCK_SECONDS = 20, 30
_MARKERS = re.compile(r"'(?:[^']|'')*'|%|\?|(?<!:):([a-z_]\w*)")
_DDL = ("CREATE TABLE", "ALTER TABLE")
_TYPES = {"TEXT": 'TEXT COLLATE "C"', "BLOB": "BYTEA"}
# Errors that a later attempt may not meet: lost connections, locks and resources that ran out, a server that stops or
# is read-only, and a session that was ended because its transaction was idle.
_PASSING = ("08", "25006", "25P03", "40", "53", "55", "57", "58")


@dataclass(frozen=True)
class PostgresDatabase:
    uri: str
    """The address without a password: `postgresql://host:port/database`, with `sslmode` and others as its query."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    schema: str = DEFAULT_SCHEMA
    idle_seconds: float = _IDLE_SECONDS
    lock_seconds: float = _LOCK_SECONDS
    lease: tuple[str, int] | None = None
    """The lake and the epoch of the lease that this process holds. After it has lost the lease, no transaction begins.
    None in a process that does not commit to the lake."""

    error_type = psycopg.Error
    begin_reading = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",)
    find_table = "SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = ?"

    @property
    def begin_writing(self) -> Sequence[str]:
        begin = ("BEGIN ISOLATION LEVEL READ COMMITTED", f"SELECT pg_advisory_xact_lock({lock_number(self.schema)})")
        if self.lease is None:
            return begin
        lake, epoch = self.lease
        return (*begin, f"SELECT {self.schema}.require_epoch('{lake}', {epoch:d})")

    def __str__(self) -> str:
        return urlsplit(self.uri)._replace(query="").geturl()

    def connect(self) -> PostgresDriver:
        settings = {
            # A name that is not in quotes: it must not depend on the case in which it is written.
            "search_path": self.schema,
            "synchronous_commit": "on",
            "lock_timeout": f"{self.lock_seconds * 1000:.0f}",
            "idle_in_transaction_session_timeout": f"{self.idle_seconds * 1000:.0f}",
        }
        connection = psycopg.connect(
            self.uri,
            user=self.user,
            password=self.password,
            autocommit=True,
            # A statement that is prepared for `SELECT *` fails after a migration by another process.
            prepare_threshold=None,
            connect_timeout=_CONNECT_SECONDS,
            tcp_user_timeout=_CONNECT_SECONDS * 1000,
            application_name="hypaware",
            options=" ".join(f"-c {name}={value}" for name, value in settings.items()),
        )
        connection.adapters.register_dumper(str, _TextDumper)
        connection.adapters.register_loader("numeric", _IntegerLoader)
        return PostgresDriver(connection)

    @contextmanager
    def connect_readonly(self) -> Iterator[PostgresDriver]:
        with closing(self.connect()) as driver:
            yield driver

    def is_broken(self, driver: PostgresDriver) -> bool:
        return bool(driver.connection.closed)

    def to_error(self, error: Exception, *, read_only: bool) -> HypError:
        state = getattr(error, "sqlstate", None)
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if state == LEASE_LOST_SQLSTATE:
            return StateError(f"another machine has taken over the lake: {reason}", kind="lease_lost")
        if state.startswith(_PASSING) if state else isinstance(error, psycopg.OperationalError):
            message = f"the state {self} (lake.state) is not available: {reason}"
            return Retryable(message, kind="state_unavailable")
        return StateError(f"a change of the state {self} (lake.state) failed: {reason}")

    def prepare(self) -> None:
        """Create the schema of the state if it does not exist."""
        with closing(self.connect()) as driver:
            # Two sessions that create it at the same time do not see each other's.
            driver.execute("SELECT pg_advisory_lock(?)", (lock_number(self.schema),))
            driver.execute(f"CREATE SCHEMA IF NOT EXISTS {self.schema}")

    def rewrite_tables(self, names: Sequence[str]) -> None:
        """Write tables again, if they exist, without what was deleted from them.

        Raise Retryable if one is in use for too long.
        """
        try:
            with closing(self.connect()) as driver:
                for name in names:
                    if driver.execute(self.find_table, (name,)).fetchone():
                        driver.execute(f"VACUUM (FULL) {name}")
        except psycopg.Error as error:
            raise self.to_error(error, read_only=False) from error


class PostgresDriver:
    """A connection of psycopg with the methods of `sqlite3.Connection` that the state uses."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def execute(self, sql: str, parameters: Mapping[str, Any] | Sequence[Any] = ()) -> psycopg.Cursor[Any]:
        return self.connection.execute(translate(sql), parameters)

    def executemany(self, sql: str, rows: Sequence[Mapping[str, Any]]) -> psycopg.Cursor[Any]:
        cursor = self.connection.cursor()
        cursor.executemany(translate(sql), rows)
        # The rows are sent as a pipeline, whose last message stops the server's clock for idle transactions until the
        # next statement.
        self.connection.execute("SELECT 1")
        return cursor

    def commit(self) -> None:
        # The server answers the COMMIT of a failed transaction with ROLLBACK, and without an error.
        if self.connection.execute("COMMIT").statusmessage != "COMMIT":
            raise psycopg.InternalError("a statement of the transaction failed, so nothing of it was stored")

    def rollback(self) -> None:
        self.connection.execute("ROLLBACK")

    def close(self) -> None:
        self.connection.close()


class _TextDumper(StrDumperUnknown):  # type: ignore[misc]
    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace("\0", "\ufffd"))


class _IntegerLoader(Loader):  # type: ignore[misc]
    """Loads sums of BIGINT, which are the only NUMERIC values, as integers."""

    def load(self, data: Any) -> int:
        return int(bytes(data))


@lru_cache(maxsize=1024)
def translate(sql: str) -> str:
    """Convert a statement that is written for SQLite."""
    if sql.lstrip().startswith(_DDL):
        sql = re.sub(r"\b(TEXT|BLOB)\b", lambda found: _TYPES[found[1]], sql)
    return _MARKERS.sub(_convert_marker, sql)


def _convert_marker(found: re.Match[str]) -> str:
    if found[1]:
        return f"%({found[1]})s"
    return "%s" if found[0] == "?" else found[0].replace("%", "%%")


@lru_cache
def lock_number(name: str) -> int:
    """Return the number of the advisory lock of that name, which is the same in every process."""
    return int.from_bytes(hashlib.sha256(f"hypaware {name}".encode()).digest()[:8], "big", signed=True)
