"""`open_index`: the index for reading commands, brought up to date first.

If few rows are missing, the command adds them itself. If many are, a background process builds the index, newest rows
first, and the command answers from the rows that are indexed; `Index.progress` counts them. If the index cannot be
written (the disk is full or read-only, the home belongs to another user), the command also answers from those rows. In
these cases `note` receives a message for the user.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection
from contextlib import ExitStack
from types import TracebackType

from hypaware.errors import NotReady, Retryable
from hypaware.home import Home
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.index import freshness, schema
from hypaware.index.schema import FIRST_MONTH, LAST_MONTH

Note = Callable[[str], None]
Update = Callable[[Home, Note], None]
"""Brings the index of a home up to date: `bring_up_to_date`, unless a process must not read data files itself."""
FindHidden = Callable[[sqlite3.Connection], Collection[int]]
"""Returns the numbers (`sessions.id`) of the sessions that a reader must not see."""
_CACHE_KIB = 32 << 10
# Adding this many rows takes about half a second.
_INLINE_ROWS = 10_000
# How long a command waits for rows that are added in the background, and for another writer.
_BUILD_SECONDS = 1.5
_LOCK_SECONDS = 1.0
# The tables that hold something of a session, with the column of its number. All other content is reached through them.
_SESSION_COLUMNS = {
    "sessions": "id",
    **dict.fromkeys(
        ("parts", "usage", "activity", "totals", "long_prompts", "long_totals", "tools", "tool_totals"), "session"
    ),
}


class Index:
    """An open index. All reads see the same state of it, until `refresh`.

    Close it soon, or refresh it: until then the write-ahead log keeps everything that others write. With `find_hidden`,
    no query finds anything of the sessions that it returns: temporary views take the place of the tables.
    """

    def __init__(
        self,
        home: Home,
        *,
        note: Note | None = None,
        find_hidden: FindHidden | None = None,
        update: Update | None = None,
    ) -> None:
        self.home = home
        self._note = note or (lambda _message: None)
        self._find_hidden = find_hidden
        self._update = update or bring_up_to_date
        self._stack = ExitStack()
        self._open()

    connection: sqlite3.Connection
    id: str | None
    """Another one after the index was built again: its numbers of sessions and messages then mean something else."""
    progress: float | None
    """The part of the lake's rows that is indexed while the index is being built, otherwise None."""
    holds_text: bool
    """Whether the index holds text: `index.text` was true when it was built."""
    hides_sessions: bool
    """Whether the full text holds words of sessions that are hidden."""

    def refresh(self) -> None:
        """Bring the index up to date and see its new state."""
        self._stack.close()
        self._update(self.home, self._note)
        self._open()

    def text_tables(self, since: int | None = None, until: int | None = None) -> list[str]:
        """Return the full-text tables that can hold rows from `since` until before `until`, newest first."""
        from hypaware.index.filters import month_of

        first = FIRST_MONTH if since is None else month_of(since)
        last = LAST_MONTH if until is None else month_of(until)
        query = "SELECT month FROM months WHERE month BETWEEN ? AND ? AND row_count > 0 ORDER BY month DESC"
        return [f"text_{month}" for (month,) in self.connection.execute(query, (first, last))]

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if isinstance(error, sqlite3.Error) and schema.is_damage(error):
            raise self._remove_damaged() from error

    def _remove_damaged(self) -> Retryable:
        from hypaware.index import database

        database.remove_files(self.home)
        message = f"{self.home.index} was damaged and has been removed; run the command again to build it again"
        return Retryable(message, kind="index_damaged")

    def _open(self) -> None:
        try:
            connection = self._stack.enter_context(open_readonly(self.home.index))
            connection.row_factory = sqlite3.Row
            # Enough for the inner pages of the largest tables.
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            # One transaction, so that all statements of a command see the same rows.
            connection.execute("BEGIN")
            if not schema.is_current(connection):
                raise sqlite3.DatabaseError("it is not an index of this version")
            self.id = schema.read_meta(connection, "id")
            self.progress = schema.progress_of(connection)
            self.holds_text = schema.read_meta(connection, "text") != 0
            connection.create_function("machines_of", 1, self._list_machines, deterministic=True)
            hidden = self._find_hidden(connection) if self._find_hidden else ()
            self.hides_sessions = bool(hidden)
            if hidden:
                _hide_sessions(connection, hidden)
        except (OSError, sqlite3.Error) as error:
            self._stack.close()
            if isinstance(error, sqlite3.Error) and schema.is_damage(error):
                raise self._remove_damaged() from error
            raise Retryable(
                f"the index {self.home.index} cannot be read, and not be created either: {error}",
                kind="index_unavailable",
                repair="hyp index rebuild",
            ) from error
        except BaseException:
            # The sessions to hide are not known, so nothing may be read.
            self._stack.close()
            raise
        self.connection = connection

    def _list_machines(self, person: str) -> str:
        """Return the ids of a person's machines as JSON, for `Filters.person`."""
        from hypaware.state.machines import read_machines

        return json.dumps(sorted(read_machines(self.home).machines_of(person)))


def open_index(
    home: Home,
    *,
    note: Note | None = None,
    find_hidden: FindHidden | None = None,
    build_seconds: float = _BUILD_SECONDS,
    lock_seconds: float = _LOCK_SECONDS,
) -> Index:
    """Open the index of a home, after bringing it up to date. Raise NotReady if there is no home.

    Wait `build_seconds` for a builder and `lock_seconds` for another writer. After that, the answer lacks some rows.
    """
    bring_up_to_date(home, note or (lambda _message: None), build_seconds, lock_seconds)
    return Index(home, note=note, find_hidden=find_hidden)


def _hide_sessions(connection: sqlite3.Connection, sessions: Collection[int]) -> None:
    """Put a view without these sessions before each table. A name without a schema means the view."""
    connection.execute("PRAGMA query_only=OFF")
    connection.execute("CREATE TEMP TABLE hidden_sessions (id INTEGER PRIMARY KEY)")
    connection.executemany("INSERT INTO hidden_sessions VALUES (?)", ((each,) for each in sessions))
    for table, column in _SESSION_COLUMNS.items():
        connection.execute(
            f"CREATE TEMP VIEW {table} AS SELECT * FROM main.{table} "
            f"WHERE {column} NOT IN (SELECT id FROM hidden_sessions)"
        )
    connection.execute("PRAGMA query_only=ON")


def bring_up_to_date(
    home: Home, note: Note, build_seconds: float = _BUILD_SECONDS, lock_seconds: float = _LOCK_SECONDS
) -> None:
    """Add the missing rows if they are few, or have them added in the background."""
    is_fresh, warning = freshness.is_fresh(home)
    if is_fresh:
        if warning:
            note(warning)
        return
    # Importing them takes longer than most answers.
    from hypaware.index import builder, database, refresh

    try:
        if not builder.is_building(home) or builder.wait_for_builder(home, build_seconds):
            report = refresh.refresh_index(home, at_most_rows=_INLINE_ROWS, wait_seconds=lock_seconds)
            if report.warning:
                note(report.warning)
    except refresh.IndexBehind:
        builder.start_builder(home)
        builder.wait_for_builder(home, build_seconds)
    except BlockingIOError:
        if builder.read_progress(home) is None:
            note("another process is writing the index; the newest rows may be missing in this answer")
    except (OSError, sqlite3.Error) as error:
        if not database.is_unwritable(error):
            raise
        note(f"the index cannot be written ({error}); the newest rows may be missing in this answer")
    if (progress := builder.read_progress(home)) is not None:
        note(f"the index is being built, newest rows first: {progress:.0%} done; older rows are missing in this answer")
    elif builder.has_lost_rows(home):
        note("rows that the lake has lost are being removed from the index; some may still be in this answer")


def drop_index(home: Home) -> None:
    """Remove the index. The next reading command builds it again."""
    from hypaware.index import database

    try:
        with database.hold_lock(home, database.LOCK_SECONDS):
            database.remove_files(home)
    except BlockingIOError as error:
        raise NotReady(f"the index of {home.root} could not be removed: {error}", kind="index_in_use") from error
