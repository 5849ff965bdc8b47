"""Reading a SQLite file that others own, leaving no trace of it: no change, and no side files that were not there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def look_into(path: Path) -> Iterator[sqlite3.Connection]:
    """Not `mode=ro`: such a connection leaves the side files of a WAL database behind that it had to make."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=30)) as connection:
        connection.execute("PRAGMA query_only=ON")
        yield connection


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None
