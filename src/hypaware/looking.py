"""Reading a SQLite file that others own, leaving no trace of it: no change, and no side files that were not there.

Side files that come and go leave the time of the folder, and who reads beside them may write into the index of the log.
Who promises that nothing at all changes reads `without_trace`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

# Side files cannot be made: the disk is full, or not to be written to.
_NO_SIDE_FILES = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
_AS_IT_LIES = "mode=ro&immutable=1"
_leaves_no_trace = False


@contextmanager
def look_into(path: Path) -> Iterator[sqlite3.Connection]:
    """Read-only where the side files of a WAL database are there: nothing is made and nothing is taken away.

    Where they are not, such a connection would make them and leave them behind; an ordinary one, the last to close,
    removes them, and there is nothing for it to write back.
    """
    with _time_kept(path.with_name(f"{path.name}-shm")), closing(_open(path)) as connection:
        connection.execute("PRAGMA query_only=ON")
        yield connection


@contextmanager
def without_trace() -> Iterator[None]:
    """For a process that only tells what it would do: within this, files are read as if nobody wrote to them."""
    global _leaves_no_trace
    _leaves_no_trace = True
    try:
        yield
    finally:
        _leaves_no_trace = False


def _open(path: Path) -> sqlite3.Connection:
    wal = path.with_name(f"{path.name}-wal")
    trouble: sqlite3.OperationalError | None = None
    for way in _ways(wal):
        try:
            return _connect(path, way)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _NO_SIDE_FILES:
                raise
            trouble = error
    assert trouble is not None
    if not path.is_file() or _waits(wal):
        raise trouble
    # Nothing waits to be written back, and on a full disk nobody can write: the file is whole, and stays so.
    return _connect(path, _AS_IT_LIES)


def _ways(wal: Path) -> tuple[str, ...]:
    if not wal.exists():
        return (_AS_IT_LIES,) if _leaves_no_trace else ("mode=rw",)
    return ("mode=ro&readonly_shm=1", "mode=ro") if _leaves_no_trace else ("mode=ro",)


def _waits(wal: Path) -> bool:
    return wal.exists() and wal.stat().st_size > 0


def _connect(path: Path, way: str) -> sqlite3.Connection:
    """A connection that has read: only then it is known whether it can."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{way}", uri=True, timeout=30)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


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
