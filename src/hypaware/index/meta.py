"""What an index says about itself: its version, its settings, and how much of the lake it holds.

This module imports nothing that only a writer needs: a reading command starts with it.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from hypaware.index.schema import VERSION

APPLICATION_ID = 0x68797069
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def read_meta(connection: sqlite3.Connection, key: str) -> Any:
    found = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return found[0] if found else None


def write_meta(connection: sqlite3.Connection, key: str, value: str | int | None) -> None:
    connection.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))


def progress_of(connection: sqlite3.Connection) -> float | None:
    """Return the part of the lake's rows that is indexed, or None if all of them are."""
    missing, rows = (read_meta(connection, key) or 0 for key in ("missing", "rows"))
    return max(0.0, 1 - missing / rows) if missing and rows else None


def is_current(connection: sqlite3.Connection, *, with_text: bool | None = None) -> bool:
    """Tell whether this is an index of this version, and with these settings if given. Raise on damage."""
    ((version,),) = connection.execute("PRAGMA user_version")
    ((application,),) = connection.execute("PRAGMA application_id")
    if (version, application) != (VERSION, APPLICATION_ID):
        return False
    return with_text is None or read_meta(connection, "text") == int(with_text)


def is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE
