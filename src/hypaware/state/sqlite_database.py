"""The state in SQLite: the file `state.db` of a home.

WAL with synchronous FULL: a committed transaction is on disk. A transaction takes the write lock when it begins (BEGIN
IMMEDIATE), so its reads are still valid when it writes. A process that detects damage creates the marker file
`state.db.suspect`, so that the next process that opens the state checks all of it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from hypaware.errors import HypError, Retryable, StateCorrupt, StateError
from hypaware.home.sqlite_readonly import open_readonly

_BUSY_MILLISECONDS = 30_000
_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "busy_timeout={busy}", "secure_delete=ON")


@dataclass(frozen=True)
class SqliteDatabase:
    path: Path
    busy_milliseconds: int = _BUSY_MILLISECONDS
    """How long a statement waits for the lock of another process."""

    error_type = sqlite3.Error
    begin_writing = ("BEGIN IMMEDIATE",)
    begin_reading = ("BEGIN",)
    find_table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"

    def __str__(self) -> str:
        return str(self.path)

    def prepare(self) -> None:
        """SQLite creates the file with the first connection."""

    def connect(self) -> sqlite3.Connection:
        # Without an isolation level, the driver begins no transactions of its own. Any thread may use the connection,
        # but only one at a time.
        driver = sqlite3.connect(
            self.path, timeout=self.busy_milliseconds / 1000, isolation_level=None, check_same_thread=False
        )
        for pragma in _PRAGMAS:
            driver.execute(f"PRAGMA {pragma.format(busy=self.busy_milliseconds)}").close()
        return driver

    def connect_readonly(self) -> AbstractContextManager[sqlite3.Connection]:
        return open_readonly(self.path)

    def is_broken(self, driver: sqlite3.Connection) -> bool:
        """A file has no connection that can break."""
        return False

    def to_error(self, error: Exception, *, read_only: bool) -> HypError:
        """Convert an error of the driver. Damage leaves the marker file, unless the state is only read."""
        if isinstance(error, sqlite3.OperationalError):
            folder = self.path.parent
            reason = str(error) if os.access(folder, os.W_OK) else f"{folder} is not writable"
            return Retryable(f"cannot write the state {self.path}: {reason}", kind="state_unavailable")
        if type(error) is sqlite3.DatabaseError:
            if not read_only:
                with contextlib.suppress(OSError):
                    suspect_marker(self.path).touch(mode=0o600)
            return StateCorrupt(f"the state {self.path} is damaged: {error}")
        return StateError(f"a change of the state {self.path} failed: {error}")


def suspect_marker(path: Path) -> Path:
    """Return the path of the marker file of a state in which damage was detected."""
    return path.with_name(f"{path.name}.suspect")


def is_intact(path: Path) -> bool:
    """Return whether the database passes a full check. An empty file is new, not damaged."""
    uri = f"{path.absolute().as_uri()}?mode=rw"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_MILLISECONDS / 1000)) as driver:
            return bool(driver.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
    except sqlite3.OperationalError as error:
        raise Retryable(f"cannot check the state {path}: {error}", kind="state_unavailable") from error
    except sqlite3.DatabaseError:
        return False
