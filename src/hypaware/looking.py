"""Reading a SQLite file that others own, leaving no trace of it: no change, and no side files that were not there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def look_into(path: Path) -> Iterator[sqlite3.Connection]:
    """Read-only where the side files of a WAL database are there: nothing is made and nothing is taken away.

    Where they are not, such a connection would make them and leave them behind; an ordinary one, the last to close,
    removes them, and there is nothing for it to write back.
    """
    mode = "ro" if path.with_name(f"{path.name}-wal").exists() else "rw"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=30)) as connection:
        connection.execute("PRAGMA query_only=ON")
        yield connection


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None
