"""Remove every byte of removed rows from the index, after a purge.

Removing a row leaves its words in the pages of the full-text table until they are merged, names that only it used, and
pages of SQLite that are not overwritten. So the full-text tables that have lost rows are written again from the blocks,
unused names are deleted, the database is written again (VACUUM), and the write-ahead log is emptied. If that cannot be
done, the index is deleted; the next reading command builds it from the lake.
"""

from __future__ import annotations

import sqlite3

from hypaware import faults
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.index import database, refresh
from hypaware.index.writer import IndexWriter
from hypaware.state.home_opener import read_identity

_before_vacuum = faults.crash_point(
    "index.scrub.before-vacuum", "no table of the index has purged rows, pages of its file may"
)
_after_vacuum = faults.crash_point("index.scrub.after-vacuum", "the index holds nothing of purged rows")


def scrub_index(home: Home, lock_seconds: float = database.LOCK_SECONDS) -> None:
    """Bring the index up to date and remove everything of rows that are not in the lake or the spool any more."""
    if not database.list_files(home):
        return
    try:
        own_gateway = read_identity(home, make=False).gateway_id
        with database.hold_lock(home, lock_seconds):
            if not refresh.refresh_locked(home, own_gateway).is_whole:
                # Rows of replaced data files stay in the index until the new files can be read.
                raise OSError("a data file or a segment of the spool cannot be read")
            _scrub(home)
    except (OSError, sqlite3.Error, HypError):
        # A process that has it open keeps the unlinked file.
        database.remove_files(home)
    _after_vacuum()


def _scrub(home: Home) -> None:
    with database.open_existing(home) as connection:
        with_text = bool(database.read_meta(connection, "text"))
        writer = IndexWriter(connection, with_text=with_text)
        query = "SELECT month FROM months WHERE removed > 0"
        writer.rewrite_months([month for (month,) in connection.execute(query).fetchall()])
        writer.remove_unused_names()
        writer.commit()
        _before_vacuum()
        connection.execute("VACUUM")
        ((busy, *_),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if busy:
            raise BlockingIOError("a reader holds the write-ahead log of the index")
