"""Parts of requests' bodies while a reprojection runs, on disk: a day of work may not fit into memory.

A SQLite file in a folder of its own under `<home>/engine/tmp`, which goes when the run ends; one that a killed run left
is removed by the next engine. Parts live with their session and day (`capture.body_parts`); those of days long past
are dropped.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from hypaware import durable
from hypaware.capture.body_parts import Lookup
from hypaware.engine.scratch import Scratch
from hypaware.home import Home

_CACHE_KIB = 16 << 10


class PartsFile:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._days: set[str] = set()
        db.execute(
            "CREATE TABLE parts (day TEXT, session TEXT, name TEXT, text TEXT, PRIMARY KEY (day, session, name))"
            " WITHOUT ROWID"
        )

    def keep(self, session: str, day: str, parts: Mapping[str, str]) -> None:
        self._db.executemany(
            "INSERT OR IGNORE INTO parts VALUES (?, ?, ?, ?)",
            [(day, session, name, text) for name, text in parts.items()],
        )
        if day not in self._days:
            self._days.add(day)
            # What began before midnight and ended after it stands behind rows of the next day.
            for old in sorted(self._days)[:-2]:
                self._db.execute("DELETE FROM parts WHERE day = ?", (old,))
                self._days.remove(old)

    def of(self, session: str, day: str) -> Lookup:
        def lookup(name: str) -> str | None:
            asked = "SELECT text FROM parts WHERE day = ? AND session = ? AND name = ?"
            found = self._db.execute(asked, (day, session, name)).fetchone()
            return found[0] if found else None

        return lookup


@contextmanager
def opened(home: Home) -> Iterator[PartsFile]:
    parent = home.engine / "tmp"
    durable.make_dir(parent)
    scratch = Scratch.make(parent)
    try:
        with closing(sqlite3.connect(scratch.path / "parts.db", isolation_level=None)) as db:
            for pragma in ("journal_mode=OFF", "synchronous=OFF", "temp_store=MEMORY", f"cache_size=-{_CACHE_KIB}"):
                db.execute(f"PRAGMA {pragma}").close()
            # One transaction that is never committed: nobody reads this after us.
            db.execute("BEGIN")
            yield PartsFile(db)
    finally:
        scratch.remove()
