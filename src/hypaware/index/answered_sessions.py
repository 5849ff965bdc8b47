"""Whether the index knows a session in which a model has answered. Reads one row, and needs no refresh or PyArrow."""

from __future__ import annotations

import sqlite3

from hypaware.home import Home
from hypaware.home.sqlite_readonly import has_table, open_readonly


def is_answered(home: Home, session_id: str) -> bool:
    """Return whether a session has messages other than prompts. False if the index does not exist or is damaged."""
    if not home.index.is_file():
        return False
    try:
        with open_readonly(home.index) as database:
            if not has_table(database, "sessions"):
                return False
            query = "SELECT 1 FROM sessions WHERE session_id = ? AND messages > turns"
            return database.execute(query, (session_id,)).fetchone() is not None
    except (OSError, sqlite3.Error):
        return False
