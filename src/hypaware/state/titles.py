"""The titles of sessions, as their clients wrote them: at most one by the user and one by the client for each session.

Titles are not rows: they are never delivered, and if they are lost with the state, the next import of the transcripts
stores them again. The user's title is preferred to the client's. A later one replaces an earlier one of its kind. An
empty title says that the user has removed theirs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from hypaware.home.sqlite_readonly import has_table, open_readonly
from hypaware.state.location import has_state

if TYPE_CHECKING:
    from hypaware.home import Home
    from hypaware.state.store import Connection

MAX_TITLE_LENGTH = 200
MAX_RAW_LENGTH = 2000
"""How much of a title is read: more than is stored, so that a secret at its end is recognised and redacted."""
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINER = "\u200d"
_UPSERT = """
    INSERT INTO titles (client, session_id, kind, title, at) VALUES (:client, :session_id, :kind, :title, :at)
    ON CONFLICT (client, session_id, kind) DO UPDATE SET title = excluded.title, at = excluded.at
    WHERE excluded.at >= titles.at"""
# A statement may have 999 parameters.
_VALUES_PER_STATEMENT = 500


class SessionTitle(NamedTuple):
    kind: Literal["user", "client"]
    title: str
    """As the client wrote it, up to `MAX_RAW_LENGTH`."""
    session_id: str = ""
    """Empty if the client names only a message of the session."""
    at: str = ""
    """The last time in the transcript before it, in canonical UTC text."""
    cwd: str | None = None
    """The session's folder, for privacy; not stored."""
    leaf: str | None = None
    """The message that the client names in place of the session; not stored."""


def clean_title(text: str) -> str:
    """Return the title on one line, of bounded length, without characters that a terminal interprets."""
    import unicodedata  # who reads titles does not need it

    safe = "".join(
        " " if char != _JOINER and unicodedata.category(char) in _UNSAFE_CATEGORIES else char
        for char in text[:MAX_RAW_LENGTH]
    )
    line = " ".join(safe.split())
    return line if len(line) <= MAX_TITLE_LENGTH else f"{line[: MAX_TITLE_LENGTH - 1].rstrip()}…"


def write_titles(connection: Connection, client: str, titles: Iterable[SessionTitle]) -> None:
    """Store titles in the order in which they were written. Those without a session are left out."""
    for each in titles:
        if each.session_id:
            connection.execute(
                _UPSERT,
                {
                    "client": client,
                    "session_id": each.session_id,
                    "kind": each.kind,
                    "title": clean_title(each.title),
                    "at": each.at,
                },
            )


class TitleResolver:
    """Finds the sessions of titles that name a message, among the sources that were read so far."""

    def __init__(self) -> None:
        self.leaves: dict[str, str] = {}
        self.unresolved: list[SessionTitle] = []

    def resolve(self, titles: Iterable[SessionTitle], leaves: Mapping[str, str]) -> list[SessionTitle]:
        """Add what a source contains, and return the titles whose session is now known."""
        self.leaves.update(leaves)
        found = [
            each if each.session_id else each._replace(session_id=self.leaves.get(each.leaf or "", ""))
            for each in (*self.unresolved, *titles)
        ]
        self.unresolved = [each for each in found if not each.session_id]
        return [each for each in found if each.session_id]


def remove_titles(
    connection: Connection,
    *,
    session_ids: Sequence[str] = (),
    clients: Sequence[str] = (),
    before: str | None = None,
) -> int:
    """Remove titles by session, by client, or from before a time; return how many. Their bytes are overwritten."""
    removed = 0
    for column, values in (("session_id", session_ids), ("client", clients)):
        for start in range(0, len(values), _VALUES_PER_STATEMENT):
            some = values[start : start + _VALUES_PER_STATEMENT]
            marks = ", ".join("?" * len(some))
            removed += connection.execute(f"DELETE FROM titles WHERE {column} IN ({marks})", some)
    if before is not None:
        removed += connection.execute("DELETE FROM titles WHERE at < ?", (before,))
    return removed


def read_titles(home: Home) -> dict[str, str]:
    """Return the title of each session that has one. Changes no file; a state that cannot be read gives none."""
    if not has_state(home):
        return {}
    try:
        # Without the classes of the state, whose import takes longer than the query.
        with open_readonly(home.state) as connection:
            if not has_table(connection, "titles"):
                return {}
            # The user's titles sort after the client's and replace them.
            rows = connection.execute("SELECT session_id, title FROM titles WHERE title <> '' ORDER BY kind")
            return dict(rows.fetchall())
    except (OSError, sqlite3.Error):
        return {}
