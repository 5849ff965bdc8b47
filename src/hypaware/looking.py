"""Reading a SQLite file that others own, leaving no trace of it: no change, and no side files that were not there."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

# Side files cannot be made: the disk is full, or not to be written to.
_NO_SIDE_FILES = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


@contextmanager
def look_into(path: Path) -> Iterator[sqlite3.Connection]:
    """Read-only where the side files of a WAL database are there: nothing is made and nothing is taken away.

    Where they are not, such a connection would make them and leave them behind; an ordinary one, the last to close,
    removes them, and there is nothing for it to write back.
    """
    with _time_kept(path.with_name(f"{path.name}-shm")), closing(_open(path)) as connection:
        connection.execute("PRAGMA query_only=ON")
        yield connection


def _open(path: Path) -> sqlite3.Connection:
    wal = path.with_name(f"{path.name}-wal")
    connection = _connect(path, "mode=ro" if wal.exists() else "mode=rw")
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as trouble:
        connection.close()
        if trouble.sqlite_errorcode & 0xFF not in _NO_SIDE_FILES or (wal.exists() and wal.stat().st_size):
            raise
        # Nothing waits to be written back, and on a full disk nobody can write: the file is whole, and stays so.
        return _connect(path, "mode=ro&immutable=1")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, options: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, timeout=30)


@contextmanager
def _time_kept(index: Path) -> Iterator[None]:
    """SQLite notes its readers in the index of the log: what it holds is the same afterwards, and so is its time."""
    try:
        before = index.stat()
    except OSError:
        before = None
    try:
        yield
    finally:
        if before is not None:
            with suppress(OSError):
                os.utime(index, ns=(before.st_atime_ns, before.st_mtime_ns))


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None
