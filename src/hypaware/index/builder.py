"""Build the index in the background, and report its progress.

The builder is a process of its own that holds `run/index-build.lock` and refreshes the index in steps, newest rows
first. The daemon starts it after each commit, and a reading command if too many rows are missing to add them itself. It
may be killed at any time; the next one continues.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware.errors import Retryable
from hypaware.home import Home, locks
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.iceberg import metadata
from hypaware.index import database, refresh, schema, spool_rows
from hypaware.index.schema import DATASET, SPOOLED

if TYPE_CHECKING:
    from subprocess import Popen

_STEP_ROWS = 40_000
# Between two steps, so that a waiting process can write too.
_PAUSE_SECONDS = 0.05
_POLL_SECONDS = 0.05
_LOG_LIMIT = 1 << 20
_NICENESS = 5


def builder_lock_path(home: Home) -> Path:
    return home.run / "index-build.lock"


def is_building(home: Home) -> bool:
    return locks.is_locked(builder_lock_path(home))


def is_behind(home: Home) -> bool:
    """Return whether the lake has changed since the index was last complete. Reads no data and needs no lock."""
    found = metadata.find_table(home, DATASET)
    with suppress(OSError, sqlite3.Error), open_readonly(home.index) as connection:
        location = refresh.relative_path(home, found.metadata) if found else ""
        return not database.is_current(connection) or database.read_meta(connection, "metadata") != location
    return found is not None


def start_builder(home: Home) -> Popen[bytes] | None:
    """Start the builder, unless one is running, and return its process."""
    from hypaware.engine.launcher import start_detached

    if is_building(home):
        return None
    command = [sys.executable, "-m", "hypaware.index.builder", str(home.root)]
    environment = {**os.environ, "HYP_HOME": str(home.root)}
    process, _ = start_detached(command, home.logs / "index.log", _LOG_LIMIT, environment)
    return process


def wait_for_builder(home: Home, seconds: float) -> bool:
    """Wait until the index is complete, and return whether it is."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if read_progress(home) is None and not is_building(home):
            return True
        time.sleep(_POLL_SECONDS)
    return False


def read_progress(home: Home) -> float | None:
    """Return the part of the lake's rows that is indexed, or None if all of them are."""
    with suppress(OSError, sqlite3.Error), open_readonly(home.index) as connection:
        return schema.progress_of(connection)
    return 0.0


def has_lost_rows(home: Home) -> bool:
    """Return whether the index is known to have rows that the lake has lost."""
    with suppress(OSError, sqlite3.Error), open_readonly(home.index) as connection:
        return bool(schema.read_meta(connection, "lost"))
    return False


def build_index(home: Home) -> None:
    """Bring the index up to date in steps. Return immediately if another builder is running."""
    lock = locks.try_lock(builder_lock_path(home))
    if lock is None:
        return
    try:
        while locks.is_file_at(builder_lock_path(home), lock):
            if refresh.refresh_index(home, limit_rows=_STEP_ROWS, replace_newer=False).complete:
                return
            time.sleep(_PAUSE_SECONDS)
    finally:
        locks.unlock(lock)


def read_index_status(home: Home) -> dict[str, Any]:
    """Return the document of `hyp index status`. Changes nothing, and needs no lock."""
    document: dict[str, Any] = {
        "rows": 0,
        "through_seq": None,
        "lag_rows": 0,
        "bytes": database.count_bytes(home),
        "building": is_building(home),
        "version": None,
    }
    spool = spool_rows.list_spool(home)
    with suppress(OSError, sqlite3.Error), open_readonly(home.index) as connection:
        ((document["version"],),) = connection.execute("PRAGMA user_version")
        if database.is_current(connection):
            ((document["rows"],),) = connection.execute("SELECT count(*) FROM parts")
            query = "SELECT max(seq) FROM parts WHERE seq < ?"
            ((document["through_seq"],),) = connection.execute(query, (SPOOLED,))
            plan = refresh.plan_lake(home, connection)
            document["lag_rows"] = plan.missing_rows if plan else 0
            document["lag_rows"] += spool_rows.count_unread(connection, spool)
            return document
    document["lag_rows"] = refresh.count_lake_rows(home) + spool_rows.count_unread(None, spool)
    return document


if __name__ == "__main__":
    os.nice(_NICENESS)
    with suppress(Retryable):  # a newer version of the program builds the index
        build_index(Home(Path(sys.argv[1])))
