"""Reads SQLite databases of other processes without changing them or leaving side files behind.

Side files that are created and removed change the folder's modification time, and a reader may write to the WAL
index. Use `immutable_reads` when not even timestamps may change.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

# Side files cannot be created: the disk is full or read-only.
_NO_SIDE_FILES = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
_IMMUTABLE = "mode=ro&immutable=1"
_immutable_mode = False


@contextmanager
def open_readonly(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for reading.

    If the side files of a WAL database exist, the connection is read-only and creates and removes nothing. If they do
    not exist, a read-only connection would create them and leave them behind. An ordinary connection removes them
    when it closes as the last one, and has nothing to write back.
    """
    with _keep_mtime(path.with_name(f"{path.name}-shm")), closing(_open(path)) as connection:
        connection.execute("PRAGMA query_only=ON")
        yield connection


@contextmanager
def immutable_reads() -> Iterator[None]:
    """Read databases as immutable files within this context, for dry runs."""
    global _immutable_mode
    _immutable_mode = True
    try:
        yield
    finally:
        _immutable_mode = False


def _open(path: Path) -> sqlite3.Connection:
    wal = path.with_name(f"{path.name}-wal")
    failure: sqlite3.OperationalError | None = None
    if wal.exists():
        modes = ("mode=ro&readonly_shm=1", "mode=ro") if _immutable_mode else ("mode=ro",)
    else:
        modes = (_IMMUTABLE,) if _immutable_mode else ("mode=rw",)
    for mode in modes:
        try:
            return _connect(path, mode)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _NO_SIDE_FILES:
                raise
            failure = error
    assert failure is not None
    if not path.is_file() or (wal.exists() and wal.stat().st_size > 0):
        raise failure
    # There is nothing to write back, and no process can write to a full disk: the file is complete.
    return _connect(path, _IMMUTABLE)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """Return a connection that has read once, which shows that it can."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=30)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _keep_mtime(index: Path) -> Iterator[None]:
    """Restore the modification time of the WAL index, in which SQLite registers its readers."""
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
