"""Remove deleted data from the pages and logs of the databases.

The state is rewritten (VACUUM): it is small, and its dead letters were the only rows in it. The key index holds hashes
and overwrites them when it deletes (`KeyIndex.remove_rows`), so only its log is truncated: rewriting gigabytes of it
would remove nothing more.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from hypaware import faults
from hypaware.home import Home

_after_clean = faults.point("maintain.purge.after-clean", "the databases hold no data of deleted rows")
_TIMEOUT = 15.0
_POLL = 0.1


def clean(home: Home, note: Callable[[str], None]) -> None:
    """Clean the databases; note those that are in use."""
    for path, vacuum in ((home.state, True), (home.keys, False), (home.tombstones, False)):
        if path.is_file() and not _clean_database(path, vacuum):
            note(f"{path.name} is in use, so its log was not truncated and may still hold deleted data")
    _after_clean()


def _clean_database(path: Path, vacuum: bool) -> bool:
    """Return False if the database is in use the whole time."""
    with closing(sqlite3.connect(path, timeout=_TIMEOUT, isolation_level=None)) as db:
        db.execute("PRAGMA secure_delete=ON").close()
        # Not in a temporary directory outside the home.
        db.execute("PRAGMA temp_store=MEMORY").close()
        try:
            if vacuum:
                db.execute("VACUUM").close()
        except sqlite3.OperationalError:
            return False
        deadline = time.monotonic() + _TIMEOUT
        while True:
            busy, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not busy:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
