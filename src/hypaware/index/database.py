"""The files of the index: `index.db`, a SQLite database in WAL mode, and its side files.

A new database gets its tables under a temporary name and is then renamed, so `index.db` is always complete. A file of
another version, with other settings or with damage is removed and created again. Every write happens under the lock
`run/index.lock`; readers need no lock. Nothing here is ever the only copy of anything, so nothing is fsynced beyond
what SQLite needs to keep the file intact.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from hypaware import faults
from hypaware.errors import Retryable
from hypaware.home import Home, durable_files, locks
from hypaware.index.schema import APPLICATION_ID, TABLES, VERSION, is_current, is_damage, read_meta, write_meta

__all__ = [
    "LOCK_SECONDS",
    "count_bytes",
    "hold_lock",
    "is_current",
    "is_damage",
    "is_unwritable",
    "list_files",
    "lock_path",
    "open_existing",
    "open_for_writing",
    "read_meta",
    "remove_files",
    "write_meta",
]

_before_rename = faults.crash_point("index.create.before-rename", "an empty index exists under a temporary name")
_after_rename = faults.crash_point("index.create.after-rename", "the index exists and is empty")
_PAGE_BYTES = 4096
_CACHE_KIB = 8 << 10
_BUSY_SECONDS = 30
_POLL_SECONDS = 0.02
LOCK_SECONDS = 60.0
"""How long a process waits for another writer."""
_NO_SPACE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


def lock_path(home: Home) -> Path:
    return home.run / "index.lock"


@contextmanager
def hold_lock(home: Home, wait_seconds: float) -> Iterator[None]:
    """Hold the lock of the one writer. Raise BlockingIOError if another process holds it for longer."""
    path = lock_path(home)
    deadline = time.monotonic() + wait_seconds
    while (lock := locks.try_lock(path)) is None:
        if time.monotonic() >= deadline:
            raise BlockingIOError(f"process {locks.lock_holder(path)} is writing the index")
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        locks.unlock(lock)


def list_files(home: Home) -> list[Path]:
    """Return the files of the index that exist: the database, its side files, and those of a killed creation."""
    found = [
        home.index,
        *(home.index.with_name(f"{home.index.name}{suffix}") for suffix in ("-wal", "-shm", "-journal")),
    ]
    return [path for path in (*found, *home.root.glob(f".{home.index.name}.*")) if path.exists()]


def count_bytes(home: Home) -> int:
    """Return the size of the index on disk. A file that is removed at the same time counts as empty."""
    size = 0
    for path in list_files(home):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def remove_files(home: Home) -> None:
    """Remove the index. The caller holds the lock, or has no need for one because the home is not in use."""
    # The database first: without it, side files mean nothing, but with foreign ones it would be read wrongly.
    for path in list_files(home):
        path.unlink(missing_ok=True)


@contextmanager
def open_for_writing(home: Home, *, with_text: bool, replace_newer: bool = True) -> Iterator[sqlite3.Connection]:
    """Open the index, and create it if it is missing, damaged, of another version or with other settings.

    The caller holds the lock. Transactions are explicit. Without `replace_newer`, raise Retryable if the index is of a
    newer version: a process that was started before an update must not replace what newer commands have built.
    """
    connection = _open_current(home, with_text)
    if connection is None and not replace_newer and (version := _read_version(home)) > VERSION:
        raise Retryable(f"{home.index} is of the newer version {version}", kind="index_newer")
    if connection is None:
        remove_files(home)
        _create(home, with_text)
        connection = _connect(home.index)
    with closing(connection):
        yield connection


@contextmanager
def open_existing(home: Home) -> Iterator[sqlite3.Connection]:
    """Open an index that is known to be current, for writing. The caller holds the lock."""
    with closing(_connect(home.index)) as connection:
        yield connection


def is_unwritable(error: BaseException) -> bool:
    """Return whether the disk is full or read-only, or the home belongs to another user."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _NO_SPACE
    return isinstance(error, OSError)


def _read_version(home: Home) -> int:
    with suppress(sqlite3.Error), closing(sqlite3.connect(home.index)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    return 0


def _open_current(home: Home, with_text: bool) -> sqlite3.Connection | None:
    if not home.index.is_file():
        return None
    connection = None
    try:
        connection = _connect(home.index)
        if is_current(connection, with_text=with_text):
            return connection
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and not is_damage(error):
            if connection is not None:
                connection.close()
            raise
    if connection is not None:
        connection.close()
    return None


def _create(home: Home, with_text: bool) -> None:
    temporary = home.index.with_name(f".{home.index.name}.{secrets.token_hex(4)}")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("BEGIN")
            for statement in TABLES:
                connection.execute(statement)
            write_meta(connection, "text", int(with_text))
            write_meta(connection, "id", secrets.token_hex(8))
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={VERSION}")
            connection.execute("COMMIT")
        durable_files.fsync_file(temporary)
        _before_rename()
        temporary.rename(home.index)
        _after_rename()
    except BaseException:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                temporary.with_name(temporary.name + suffix).unlink(missing_ok=True)
        raise


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        # Foreign files are detected by their header, before anything is written.
        ((mode,),) = connection.execute("PRAGMA journal_mode=WAL")
        if mode != "wal":
            raise Retryable(f"{path} cannot be written next to its readers (journal mode {mode})", kind="index_mode")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA secure_delete=ON")
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
    except BaseException:
        connection.close()
        raise
    return connection
