"""What a shell offers while you type: ids of sessions and values of filters, from the index as it is.

Nothing is brought up to date and nothing is written, because a shell waits for the answer. Without a current index
there are no values.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from hypaware.home import Home
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.index.filters import project_of
from hypaware.index.schema import is_current
from hypaware.text import escape_cell

_MOST = 200
_LONGEST = 500
_TITLE = 60
_VALUES = {
    "project": "SELECT DISTINCT n.name FROM totals t JOIN names n ON n.id = t.cwd",
    "model": "SELECT DISTINCT n.name FROM totals t JOIN names n ON n.id = t.model",
    "client": "SELECT DISTINCT n.name FROM sessions s JOIN names n ON n.id = s.client",
    "machine": "SELECT DISTINCT n.name FROM sessions s JOIN names n ON n.id = s.machine",
}


def complete_sessions(home: Home, start: str) -> list[tuple[str, str]]:
    """Return the newest sessions whose ids begin like this, each with its title."""
    statement = """SELECT session_id, title FROM sessions
        WHERE session_id >= :start AND session_id < :start || char(1114111) ORDER BY ended_at DESC LIMIT :most"""
    with _open(home) as connection:
        if connection is None:
            return []
        rows = connection.execute(statement, {"start": start, "most": _MOST}).fetchall()
    return [(found, escape_cell(" ".join((title or "").split())[:_TITLE])) for found, title in rows if _fits(found)]


def complete_filter(home: Home, filter_: str, start: str) -> list[str]:
    """Return the recorded values of a filter that begin like this. A project is offered by its last folder too."""
    with _open(home) as connection:
        names = [] if connection is None else [row[0] for row in connection.execute(_VALUES[filter_])]
    values = set(names)
    if filter_ == "project":
        # A path is offered once a slash was typed.
        values = {name if start.startswith("/") else project_of(name) or name for name in names}
    return sorted(value for value in values if value.startswith(start) and _fits(value))[:_MOST]


def _fits(value: str) -> bool:
    """Leave out values that only hostile rows have: a shell would take each of their lines for another value."""
    return len(value) <= _LONGEST and value.isprintable() and " " not in value


@contextmanager
def _open(home: Home) -> Iterator[sqlite3.Connection | None]:
    if not home.index.is_file():
        yield None
        return
    with open_readonly(home.index) as connection:
        yield connection if is_current(connection) else None
