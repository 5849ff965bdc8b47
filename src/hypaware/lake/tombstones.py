"""Tombstones, `lake/tombstones.db`: what was purged and must not come back. SQLite, synchronous FULL, hashes only.

`purges` has a row for each purged value (kind, hash of the value in `mark`). A purge of the kind `session` excludes the
session, one of the kind `before` excludes everything before its time. `parts` has the key hash (as in `keys.db`) of
each purged row, so that a copy of it in another session does not come back either. `words` holds the command that
finishes an unfinished purge and is erased when the purge is done. The file is part of the lake, so it survives the loss
of state and key index.

It cannot be rebuilt: if it cannot be read, no row may enter the lake.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hypaware import durable, faults
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake.closed import NOTHING, Closed, mark_of
from hypaware.looking import has_table, look_into

_before_commit = faults.point("lake.tombstones.before-commit", "tombstones are written and not durable")
_after_commit = faults.point("lake.tombstones.after-commit", "tombstones are durable")

_LOOKUP = 500
# Above this number of keys, load all tombstones if they fit into memory.
_WORTH_ALL = 20_000
_ALL_FIT = 1_000_000
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS purges (
        id INTEGER PRIMARY KEY, kind TEXT NOT NULL, mark BLOB NOT NULL, before TEXT, words TEXT, at TEXT NOT NULL,
        done_at TEXT, lifted_at TEXT, rows INTEGER NOT NULL DEFAULT 0, UNIQUE (kind, mark))""",
    """CREATE TABLE IF NOT EXISTS parts (
        hash BLOB NOT NULL, purge INTEGER NOT NULL, PRIMARY KEY (hash, purge)) WITHOUT ROWID""",
)


@dataclass(frozen=True)
class Stone:
    """A purged value: a session, a source, a folder or a time."""

    kind: str
    value: str
    command: str
    """The command that finishes the purge."""

    @property
    def value_hash(self) -> bytes:
        return mark_of(self.kind, self.value)

    @property
    def before(self) -> str | None:
        return self.value if self.kind == "before" else None


@dataclass(frozen=True)
class Tombstones:
    """The current tombstones. Reading them leaves no trace on disk."""

    path: Path
    purge_filter: Closed = NOTHING
    has_parts: bool = False

    def find(self, hashes: Collection[bytes]) -> set[bytes]:
        """Return the key hashes that were purged."""
        if not self.has_parts or not hashes:
            return set()
        with _looking(self.path) as db:
            if len(hashes) > _WORTH_ALL:
                loaded = {bytes(row[0]) for row in db.execute("SELECT hash FROM parts LIMIT ?", (_ALL_FIT + 1,))}
                if len(loaded) <= _ALL_FIT:
                    return loaded.intersection(hashes)
            return set(_lookup(db, sorted(set(hashes))))

    def purged_at(self, hashes: Collection[bytes]) -> dict[bytes, float]:
        """Return the hashes that were purged, with the time of the purge as a timestamp."""
        purged = sorted(self.find(hashes))
        found: dict[bytes, float] = {}
        if purged:
            with _looking(self.path) as db:
                for hash_ in purged:
                    found[hash_] = _when(db, hash_)
        return found


def _when(db: sqlite3.Connection, hash_: bytes) -> float:
    (at,) = db.execute(
        "SELECT max(at) FROM parts JOIN purges ON purges.id = parts.purge WHERE hash = ?", (hash_,)
    ).fetchone()
    return datetime.fromisoformat(at).timestamp()


def read(home: Home) -> Tombstones:
    if not home.tombstones.is_file():
        return Tombstones(home.tombstones)
    with _looking(home.tombstones) as db:
        if not has_table(db, "parts"):
            return Tombstones(home.tombstones)
        active = db.execute("SELECT kind, mark, before FROM purges WHERE lifted_at IS NULL").fetchall()
        has_parts = db.execute("SELECT 1 FROM parts LIMIT 1").fetchone() is not None
    sessions = frozenset(bytes(mark) for kind, mark, _ in active if kind == "session")
    purge_filter = Closed(sessions, max((before for *_, before in active if before), default=None))
    return Tombstones(home.tombstones, purge_filter, has_parts)


def unfinished(home: Home) -> list[str]:
    """Return the commands that finish unfinished purges."""
    if not home.tombstones.is_file():
        return []
    with _looking(home.tombstones) as db:
        if not has_table(db, "purges"):
            return []
        return [words for (words,) in db.execute("SELECT words FROM purges WHERE words IS NOT NULL ORDER BY id")]


def set_up(home: Home, stones: Sequence[Stone], at: str) -> list[int]:
    """Create tombstones that exclude rows from now on. Durable. Existing ones are reactivated. Return their ids."""
    with _changing(home) as db:
        for stone in stones:
            db.execute(
                "INSERT INTO purges (kind, mark, before, words, at) VALUES (?, ?, ?, ?, ?) ON CONFLICT (kind, mark)"
                " DO UPDATE SET words = excluded.words, lifted_at = NULL",
                (stone.kind, stone.value_hash, stone.before, stone.command, at),
            )
        return [_id_of(db, stone.kind, stone.value_hash) for stone in stones]


def bury(home: Home, purge: int, hashes: Iterable[bytes]) -> None:
    """Add key hashes of purged rows to a purge. Durable."""
    with _changing(home) as db:
        db.executemany("INSERT OR IGNORE INTO parts VALUES (?, ?)", sorted((each, purge) for each in hashes))


def finish(home: Home, purges: Iterable[int], rows: int, at: str) -> None:
    """Mark purges as done and erase their commands. Their hashes stay."""
    with _changing(home) as db:
        for purge in purges:
            db.execute("UPDATE purges SET words = NULL, done_at = ?, rows = rows + ? WHERE id = ?", (at, rows, purge))


def standing(home: Home, stones: Sequence[Stone]) -> bool:
    """Tell whether any of the tombstones is active."""
    if not home.tombstones.is_file():
        return False
    with _looking(home.tombstones) as db:
        return has_table(db, "purges") and any(_standing(db, stone) for stone in stones)


def lift(home: Home, stones: Sequence[Stone], at: str) -> int:
    """Revoke tombstones, so that their rows may return. A time revokes all earlier times too. Return their number."""
    if not home.tombstones.is_file():
        return 0
    revoked = 0
    with _changing(home) as db:
        for stone in stones:
            found = _standing(db, stone)
            for purge in found:
                db.execute("DELETE FROM parts WHERE purge = ?", (purge,))
                db.execute("UPDATE purges SET words = NULL, lifted_at = ? WHERE id = ?", (at, purge))
            revoked += len(found)
    return revoked


def _standing(db: sqlite3.Connection, stone: Stone) -> list[int]:
    found = db.execute(
        "SELECT id FROM purges WHERE lifted_at IS NULL AND kind = ? AND (mark = ? OR before <= ?)",
        (stone.kind, stone.value_hash, stone.before),
    )
    return [int(purge) for (purge,) in found]


def parts(home: Home, limit: int | None = None) -> list[bytes]:
    """Return the excluded key hashes, at most `limit`."""
    with _looking(home.tombstones) as db:
        return [
            bytes(found) for (found,) in db.execute("SELECT hash FROM parts LIMIT ?", (-1 if limit is None else limit,))
        ]


def count(home: Home) -> int:
    """Count the excluded key hashes."""
    if not home.tombstones.is_file():
        return 0
    with _looking(home.tombstones) as db:
        return int(db.execute("SELECT count(DISTINCT hash) FROM parts").fetchone()[0])


@contextmanager
def _changing(home: Home) -> Iterator[sqlite3.Connection]:
    """Run one transaction. It is durable when it returns, and so is the file's directory entry."""
    path = home.tombstones
    durable.make_dir(path.parent)
    # Create the file first, so that SQLite's side files inherit its mode.
    path.touch(mode=0o600)
    try:
        with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as db:
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON"):
                db.execute(f"PRAGMA {pragma}")
            db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                db.execute(statement)
            yield db
            _before_commit()
            db.execute("COMMIT")
            # The command of a finished purge must not remain in the write-ahead log.
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        durable.fsync_dir(path.parent)
        _after_commit()
    except sqlite3.Error as error:
        raise _unusable(path, error) from error


@contextmanager
def _looking(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with look_into(path) as db:
            yield db
    except sqlite3.Error as error:
        raise _unusable(path, error) from error


def _lookup(db: sqlite3.Connection, hashes: Sequence[bytes]) -> Iterator[bytes]:
    for start in range(0, len(hashes), _LOOKUP):
        some = hashes[start : start + _LOOKUP]
        marks = ",".join("?" * len(some))
        for (found,) in db.execute(f"SELECT hash FROM parts WHERE hash IN ({marks})", some):
            yield bytes(found)


def _id_of(db: sqlite3.Connection, kind: str, mark: bytes) -> int:
    return int(db.execute("SELECT id FROM purges WHERE kind = ? AND mark = ?", (kind, mark)).fetchone()[0])


def _unusable(path: Path, error: sqlite3.Error) -> LakeError:
    return LakeError(
        f"the tombstones {path} cannot be read ({error}); no rows are added to the lake, so that purged rows do not "
        "return; restore the file from a backup",
        kind="tombstones_unusable",
    )
