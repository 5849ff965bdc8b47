"""Tombstones, `lake/tombstones.db`: what was purged and must not come back. SQLite, synchronous FULL, hashes only.

`purges` has a row for each purged value (kind, hash of the value in `mark`). A purge of the kind `session` excludes the
session, one of the kind `before` excludes everything before its time. `parts` has the key hash (as in `keys.db`) of
each purged row, so that a copy of it in another session does not come back either. `words` holds the command that
finishes an unfinished purge and is erased when the purge is done. The file cannot be rebuilt: if it cannot be read, no
row may enter the lake.

Those of a shared lake are tables of the same names in its database, so that they keep rows out on every machine.

@ref keeping#purge
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from hypaware import faults
from hypaware.config.shared_lake import find_shared_lake
from hypaware.errors import LakeError
from hypaware.home import Home, durable_files
from hypaware.home.sqlite_readonly import has_table, open_readonly
from hypaware.model.datasets import Dataset
from hypaware.state.location import open_store

SESSION_COLUMN = "session_id"
PURGE_HASH_BYTES = 16
RowPredicate = Callable[[Mapping[str, Any]], bool]
"""Tells whether a coerced row is purged."""
_before_commit = faults.crash_point("lake.tombstones.before-commit", "tombstones are written and not durable")
_after_commit = faults.crash_point("lake.tombstones.after-commit", "tombstones are durable")
_LOOKUP_SIZE = 500
# Above this number of keys, load all tombstones if they fit into memory.
_LOAD_ALL_ABOVE = 20_000
_MAX_LOADED = 1_000_000
_NO_LIMIT = 1 << 62
_ACTIVE = "SELECT id FROM purges WHERE lifted_at IS NULL AND kind = ? AND (mark = ? OR before <= ?)"
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS purges (
        id INTEGER PRIMARY KEY, kind TEXT NOT NULL, mark BLOB NOT NULL, before TEXT, words TEXT, at TEXT NOT NULL,
        done_at TEXT, lifted_at TEXT, rows INTEGER NOT NULL DEFAULT 0, UNIQUE (kind, mark))""",
    """CREATE TABLE IF NOT EXISTS parts (
        hash BLOB NOT NULL, purge INTEGER NOT NULL, PRIMARY KEY (hash, purge))""",
)


@dataclass(frozen=True)
class PurgeFilter:
    """The purged sessions and the time before which everything is purged: a small value that is sent to tasks."""

    sessions: frozenset[bytes] = frozenset()
    """Hashes of their ids."""
    before: str | None = None
    """In the form of `timestamp_text`, which sorts by time."""

    def has_session(self, session_id: str) -> bool:
        return bool(self.sessions) and hash_purged_value("session", session_id) in self.sessions

    def predicate(self, dataset: Dataset) -> RowPredicate | None:
        """Return the check for rows of a dataset, or None if it has nothing to check."""
        sessions = self.sessions if SESSION_COLUMN in dataset.coercers else frozenset[bytes]()
        before, time_column = self.before, dataset.time_column
        if not sessions and before is None:
            return None
        # Rows of a session are adjacent: hash each session once, not each row.
        known: dict[Any, bool] = {}

        def is_purged(row: Mapping[str, Any]) -> bool:
            if sessions:
                session = row.get(SESSION_COLUMN)
                if session not in known:
                    known[session] = hash_purged_value("session", str(session)) in sessions
                if known[session]:
                    return True
            return before is not None and (at := row.get(time_column)) is not None and at < before

        return is_purged


NO_PURGES = PurgeFilter()


def hash_purged_value(kind: str, value: str) -> bytes:
    """Hash the value that a purge names; only the hash is stored."""
    return sha256(f"{kind}:{value}".encode("utf-8", "surrogatepass")).digest()[:PURGE_HASH_BYTES]


@dataclass(frozen=True)
class Tombstone:
    """A purged value: a session, a source, a folder or a time."""

    kind: str
    value: str
    command: str
    """The command that finishes the purge."""

    @property
    def value_hash(self) -> bytes:
        return hash_purged_value(self.kind, self.value)

    @property
    def before(self) -> str | None:
        return self.value if self.kind == "before" else None


@dataclass(frozen=True)
class Tombstones:
    """The current tombstones. Reading them leaves no trace on disk."""

    home: Home | None = None
    purge_filter: PurgeFilter = NO_PURGES
    has_parts: bool = False

    def find(self, hashes: Collection[bytes]) -> set[bytes]:
        if self.home is None or not self.has_parts or not hashes:
            return set()
        with _reading(self.home) as db:
            if len(hashes) > _LOAD_ALL_ABOVE:
                loaded = {bytes(row[0]) for row in db.execute("SELECT hash FROM parts LIMIT ?", (_MAX_LOADED + 1,))}
                if len(loaded) <= _MAX_LOADED:
                    return loaded.intersection(hashes)
            wanted, found = sorted(set(hashes)), set[bytes]()
            for start in range(0, len(wanted), _LOOKUP_SIZE):
                some = wanted[start : start + _LOOKUP_SIZE]
                query = f"SELECT hash FROM parts WHERE hash IN ({','.join('?' * len(some))})"
                found.update(bytes(hash_) for (hash_,) in db.execute(query, some))
            return found

    def purged_at(self, hashes: Collection[bytes]) -> dict[bytes, float]:
        """Return the hashes that were purged, with the time of the purge as a timestamp."""
        purged = sorted(self.find(hashes))
        found: dict[bytes, float] = {}
        if self.home is not None and purged:
            with _reading(self.home) as db:
                for hash_ in purged:
                    query = "SELECT max(at) FROM parts JOIN purges ON purges.id = parts.purge WHERE hash = ?"
                    (at,) = db.execute(query, (hash_,)).fetchone()
                    found[hash_] = datetime.fromisoformat(at).timestamp()
        return found


NO_TOMBSTONES = Tombstones()


def read_tombstones(home: Home) -> Tombstones:
    with _reading(home) as db:
        if db is None:
            return NO_TOMBSTONES
        active = db.execute("SELECT kind, mark, before FROM purges WHERE lifted_at IS NULL").fetchall()
        has_parts = db.execute("SELECT 1 FROM parts LIMIT 1").fetchone() is not None
    sessions = frozenset(bytes(mark) for kind, mark, _ in active if kind == "session")
    purge_filter = PurgeFilter(sessions, max((before for *_, before in active if before), default=None))
    return Tombstones(home, purge_filter, has_parts)


def list_unfinished_purges(home: Home) -> list[str]:
    """Return the commands that finish unfinished purges."""
    return [words for (words,) in _select(home, "SELECT words FROM purges WHERE words IS NOT NULL ORDER BY id")]


def create_tombstones(home: Home, stones: Sequence[Tombstone], at: str) -> list[int]:
    """Create tombstones that exclude rows from now on. Durable. Existing ones are reactivated. Return their ids."""
    with _transaction(home) as db:
        for stone in stones:
            db.execute(
                "INSERT INTO purges (id, kind, mark, before, words, at)"
                " VALUES ((SELECT coalesce(max(id), 0) + 1 FROM purges), ?, ?, ?, ?, ?) ON CONFLICT (kind, mark)"
                " DO UPDATE SET words = excluded.words, lifted_at = NULL",
                (stone.kind, stone.value_hash, stone.before, stone.command, at),
            )
        query = "SELECT id FROM purges WHERE kind = ? AND mark = ?"
        return [int(db.execute(query, (stone.kind, stone.value_hash)).fetchone()[0]) for stone in stones]


def add_parts(home: Home, purge: int, hashes: Iterable[bytes]) -> None:
    """Add key hashes of purged rows to a purge. Durable."""
    with _transaction(home) as db:
        rows = sorted({(each, purge) for each in hashes})
        db.executemany("INSERT INTO parts VALUES (?, ?) ON CONFLICT DO NOTHING", rows)


def finish_purges(home: Home, purges: Iterable[int], rows: int, at: str) -> None:
    """Mark purges as done and erase their commands. Their hashes stay."""
    with _transaction(home) as db:
        for purge in purges:
            db.execute("UPDATE purges SET words = NULL, done_at = ?, rows = rows + ? WHERE id = ?", (at, rows, purge))


def has_active(home: Home, stones: Sequence[Tombstone]) -> bool:
    return any(_select(home, _ACTIVE, stone.kind, stone.value_hash, stone.before) for stone in stones)


def revoke(home: Home, stones: Sequence[Tombstone], at: str) -> int:
    """Revoke tombstones, so that their rows may return. A time revokes all earlier times too. Return their number."""
    with _reading(home) as existing:
        if existing is None:
            return 0
    revoked = 0
    with _transaction(home) as db:
        for stone in stones:
            found = db.execute(_ACTIVE, (stone.kind, stone.value_hash, stone.before)).fetchall()
            for (purge,) in found:
                db.execute("DELETE FROM parts WHERE purge = ?", (purge,))
                db.execute("UPDATE purges SET words = NULL, lifted_at = ? WHERE id = ?", (at, purge))
            revoked += len(found)
    return revoked


def list_parts(home: Home, limit: int = _NO_LIMIT) -> list[bytes]:
    return [bytes(hash_) for (hash_,) in _select(home, "SELECT hash FROM parts LIMIT ?", limit)]


def count_parts(home: Home) -> int:
    found = _select(home, "SELECT count(DISTINCT hash) FROM parts")
    return int(found[0][0]) if found else 0


def _select(home: Home, query: str, *values: object) -> list[Any]:
    """Return the rows of a query; none if nothing was ever purged."""
    with _reading(home) as db:
        return [] if db is None else db.execute(query, values).fetchall()


@contextmanager
def _transaction(home: Home) -> Iterator[Any]:
    """Run one transaction. It is durable when it returns, and so is the file's directory entry."""
    if find_shared_lake(home) is not None:
        with closing(open_store(home)) as store, store.transaction() as connection, connection.errors():
            for statement in _SCHEMA:
                connection.execute(statement)
            yield connection.driver
            _before_commit()
        _after_commit()
        return
    path = home.tombstones
    durable_files.make_dir(path.parent)
    # Create the file first, so that SQLite's side files inherit its mode.
    path.touch(mode=0o600)
    try:
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as db:
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
                db.execute(f"PRAGMA {pragma}")
            db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                # SQLite keeps such a table in its primary key.
                db.execute(f"{statement} WITHOUT ROWID" if "TABLE IF NOT EXISTS parts" in statement else statement)
            yield db
            _before_commit()
            db.execute("COMMIT")
            # The command of a finished purge must not remain in the write-ahead log.
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        durable_files.fsync_dir(path.parent)
        _after_commit()
    except sqlite3.Error as error:
        raise _unusable_error(path, error) from error


@contextmanager
def _reading(home: Home) -> Iterator[Any]:
    """Yield a connection that reads, or None if nothing was ever purged."""
    if find_shared_lake(home) is not None:
        with closing(open_store(home)) as store, store.reading() as connection, connection.errors():
            yield connection.driver if connection.has_table("parts") else None
        return
    path = home.tombstones
    if not path.is_file():
        yield None
        return
    try:
        with open_readonly(path) as db:
            yield db if has_table(db, "parts") else None
    except sqlite3.Error as error:
        raise _unusable_error(path, error) from error


def _unusable_error(path: Path, error: sqlite3.Error) -> LakeError:
    return LakeError(
        f"the tombstones {path} cannot be read ({error}); no rows are added to the lake, so that purged rows do not "
        "return; restore the file from a backup",
        kind="tombstones_unusable",
    )
