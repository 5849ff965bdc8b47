"""Deleted bytes of the databases: gone from their pages and from their logs.

The state is written anew (VACUUM); it is small, and dead letters were its only rows. The key index holds hashes, and
deletes by overwriting them (`KeyIndex.forget`), so only its log is emptied: writing gigabytes of it anew would hide
nothing more.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from hypaware import faults
from hypaware.home import Home

_after_clean = faults.point("maintain.purge.after-clean", "the databases hold nothing of deleted rows")
_PATIENCE = 15.0
_POLL = 0.1


def clean(home: Home, note: Callable[[str], None]) -> None:
    for path, anew in ((home.state, True), (home.keys, False), (home.tombstones, False)):
        if path.is_file() and not _cleaned(path, anew):
            note(f"{path.name} is in use, so its log could not be emptied; it may still hold what was deleted")
    _after_clean()


def _cleaned(path: Path, anew: bool) -> bool:
    """False while somebody reads or writes all the time."""
    with closing(sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)) as db:
        db.execute("PRAGMA secure_delete=ON").close()
        # Not in a folder for temporary files, which is outside of the home.
        db.execute("PRAGMA temp_store=MEMORY").close()
        try:
            if anew:
                db.execute("VACUUM").close()
        except sqlite3.OperationalError:
            return False
        deadline = time.monotonic() + _PATIENCE
        while True:
            busy, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not busy:
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
