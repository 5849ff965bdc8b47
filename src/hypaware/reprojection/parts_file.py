"""Temporary storage of request body parts during a reprojection, as a day of work may not fit into memory.

A SQLite file in its own folder under `<home>/engine/tmp`, which is removed at the end of the run; the next engine
removes one that a killed run has left. Parts are stored by session and day (`capture.body_parts`); those of older days
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

    def add(self, session: str, day: str, parts: Mapping[str, str]) -> None:
        self._db.executemany(
            "INSERT OR IGNORE INTO parts VALUES (?, ?, ?, ?)",
            [(day, session, name, text) for name, text in parts.items()],
        )
        if day not in self._days:
            self._days.add(day)
            # An exchange that spans midnight may follow exchanges of the next day: keep two days.
            for old in sorted(self._days)[:-2]:
                self._db.execute("DELETE FROM parts WHERE day = ?", (old,))
                self._days.remove(old)

    def lookup(self, session: str, day: str) -> Lookup:
        def lookup(name: str) -> str | None:
            query = "SELECT text FROM parts WHERE day = ? AND session = ? AND name = ?"
            found = self._db.execute(query, (day, session, name)).fetchone()
            return found[0] if found else None

        return lookup


@contextmanager
def opened(home: Home) -> Iterator[PartsFile]:
    parent = home.engine / "tmp"
    durable.make_dir(parent)
    scratch = Scratch.create(parent)
    try:
        with closing(sqlite3.connect(scratch.path / "parts.db", isolation_level=None)) as db:
            for pragma in ("journal_mode=OFF", "synchronous=OFF", "temp_store=MEMORY", f"cache_size=-{_CACHE_KIB}"):
                db.execute(f"PRAGMA {pragma}").close()
            # One transaction that is never committed: the file is not read after this run.
            db.execute("BEGIN")
            yield PartsFile(db)
    finally:
        scratch.remove()
