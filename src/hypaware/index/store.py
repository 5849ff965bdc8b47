"""`open_index`: the index for reading commands, brought up to date first.

If few rows are missing, the command adds them itself. If many are, a background process builds the index, newest rows
first, and the command answers from what is there; `Index.progress` says how far it is. If the index cannot be written
(the disk is full or read-only, the home belongs to another user), the command also answers from what is there. In these
cases `note` receives a message for the user.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType

from hypaware.errors import NotReady, Retryable
from hypaware.home import Home
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.index import builder, database, refresh
from hypaware.index.refresh import IndexBehind
from hypaware.index.schema import FIRST_MONTH, LAST_MONTH

Note = Callable[[str], None]
_CACHE_KIB = 32 << 10
# Adding this many rows takes about half a second.
_INLINE_ROWS = 10_000
# How long a command waits for rows that are added in the background, and for another writer.
_BUILD_SECONDS = 1.5
_LOCK_SECONDS = 1.0


class Index:
    """An open index. All reads see the same state of it, until `refresh`.

    Close it soon, or refresh it: meanwhile the write-ahead log keeps everything that others write.
    """

    def __init__(self, home: Home, *, note: Note | None = None) -> None:
        self.home = home
        self._note = note or (lambda _message: None)
        self._stack = ExitStack()
        self._open()

    connection: sqlite3.Connection
    progress: float | None
    """The part of the lake's rows that is indexed while the index is being built, otherwise None."""

    def refresh(self) -> None:
        """Bring the index up to date and see its new state."""
        self._stack.close()
        bring_up_to_date(self.home, self._note)
        self._open()

    def text_tables(self, since: int | None = None, until: int | None = None) -> list[str]:
        """Return the full-text tables that can hold rows from `since` until before `until`, newest first."""
        from hypaware.index.parts import month_of

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
        if isinstance(error, sqlite3.DatabaseError) and database.is_damage(error):
            database.remove_files(self.home)
            raise Retryable(
                f"{self.home.index} was damaged and has been removed; run the command again to build it again",
                kind="index_damaged",
            ) from error

    def _open(self) -> None:
        try:
            connection = self._stack.enter_context(open_readonly(self.home.index))
            connection.row_factory = sqlite3.Row
            # Enough for the inner pages of the largest tables.
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            # One transaction, so that all statements of a command see the same rows.
            connection.execute("BEGIN")
            if not database.is_current(connection):
                raise sqlite3.DatabaseError("it is not an index of this version")
            self.progress = builder.progress_of(connection)
        except (OSError, sqlite3.Error) as error:
            self._stack.close()
            raise Retryable(
                f"the index {self.home.index} cannot be read, and not be created either: {error}",
                kind="index_unavailable",
                repair="hyp index rebuild",
            ) from error
        self.connection = connection


def open_index(home: Home, *, note: Note | None = None) -> Index:
    """Open the index of a home, after bringing it up to date. Raise NotReady if there is no home."""
    bring_up_to_date(home, note or (lambda _message: None))
    return Index(home, note=note)


def bring_up_to_date(home: Home, note: Note) -> None:
    """Add the missing rows if they are few, or have them added in the background."""
    try:
        if not builder.is_building(home) or builder.wait_for_builder(home, _BUILD_SECONDS):
            report = refresh.refresh_index(home, at_most_rows=_INLINE_ROWS, wait_seconds=_LOCK_SECONDS)
            if report.warning:
                note(report.warning)
    except IndexBehind:
        builder.start_builder(home)
        builder.wait_for_builder(home, _BUILD_SECONDS)
    except BlockingIOError:
        if builder.read_progress(home) is None:
            note("another process is writing the index; the newest rows may be missing in this answer")
    except (OSError, sqlite3.Error) as error:
        if not database.is_unwritable(error):
            raise
        note(f"the index cannot be written ({error}); the newest rows may be missing in this answer")
    if (progress := builder.read_progress(home)) is not None:
        note(f"the index is being built, newest rows first: {progress:.0%} done; older rows are missing in this answer")


def drop_index(home: Home) -> None:
    """Remove the index. The next reading command builds it again."""
    try:
        with database.hold_lock(home, refresh.LOCK_SECONDS):
            database.remove_files(home)
    except BlockingIOError as error:
        raise NotReady(f"the index of {home.root} could not be removed: {error}", kind="index_in_use") from error
