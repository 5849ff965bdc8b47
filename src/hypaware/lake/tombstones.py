"""`lake/tombstones.db`: what was purged and must not come back. SQLite, synchronous FULL, hashes only.

`purges` has a row for each thing that was named (kind, mark of its value). Those of the kind `session` close the
session, those of the kind `before` close the time before theirs. `parts` has the key hash (as in `keys.db`) of each
purged row, so that a copy under another session's name does not come back either. `words` says what was asked for
while a purge is unfinished, and is wiped when it is done. It lies with the lake, so it outlives state and key index.

It cannot be made anew: where it cannot be read, nothing may enter the lake.
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
# More keys than this are compared in memory, where that holds all tombstones.
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
    """One thing that was named: a session, a source, a folder or a moment."""

    kind: str
    value: str
    words: str
    """The command that finishes its purge."""

    @property
    def mark(self) -> bytes:
        return mark_of(self.kind, self.value)

    @property
    def before(self) -> str | None:
        return self.value if self.kind == "before" else None


@dataclass(frozen=True)
class Tombstones:
    """As they are now, for whoever brings rows into the lake. Leaves no trace of the look."""

    path: Path
    closed: Closed = NOTHING
    has_parts: bool = False

    def find(self, hashes: Collection[bytes]) -> set[bytes]:
        """Those of the key hashes that were purged."""
        if not self.has_parts or not hashes:
            return set()
        with _looking(self.path) as db:
            if len(hashes) > _WORTH_ALL:
                some = db.execute("SELECT hash FROM parts LIMIT ?", (_ALL_FIT + 1,))
                held = {bytes(row[0]) for row in some}
                if len(held) <= _ALL_FIT:
                    return held.intersection(hashes)
            return set(_lookup(db, sorted(set(hashes))))

    def buried_at(self, hashes: Collection[bytes]) -> dict[bytes, float]:
        """Those of the hashes that were purged, and when, as a timestamp."""
        gone = sorted(self.find(hashes))
        found: dict[bytes, float] = {}
        if gone:
            with _looking(self.path) as db:
                for hash_ in gone:
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
        standing = db.execute("SELECT kind, mark, before FROM purges WHERE lifted_at IS NULL").fetchall()
        has_parts = db.execute("SELECT 1 FROM parts LIMIT 1").fetchone() is not None
    sessions = frozenset(bytes(mark) for kind, mark, _ in standing if kind == "session")
    closed = Closed(sessions, max((before for *_, before in standing if before), default=None))
    return Tombstones(home.tombstones, closed, has_parts)


def unfinished(home: Home) -> list[str]:
    """Commands that finish what was begun."""
    if not home.tombstones.is_file():
        return []
    with _looking(home.tombstones) as db:
        if not has_table(db, "purges"):
            return []
        return [words for (words,) in db.execute("SELECT words FROM purges WHERE words IS NOT NULL ORDER BY id")]


def set_up(home: Home, stones: Sequence[Stone], at: str) -> list[int]:
    """One for each, durable: from now on nothing enters that they close. Those that stand already stay."""
    with _changing(home) as db:
        for stone in stones:
            db.execute(
                "INSERT INTO purges (kind, mark, before, words, at) VALUES (?, ?, ?, ?, ?) ON CONFLICT (kind, mark)"
                " DO UPDATE SET words = excluded.words, lifted_at = NULL",
                (stone.kind, stone.mark, stone.before, stone.words, at),
            )
        return [_id_of(db, stone.kind, stone.mark) for stone in stones]


def bury(home: Home, purge: int, hashes: Iterable[bytes]) -> None:
    """Parts of one purge."""
    with _changing(home) as db:
        db.executemany("INSERT OR IGNORE INTO parts VALUES (?, ?)", sorted((each, purge) for each in hashes))


def finish(home: Home, purges: Iterable[int], rows: int, at: str) -> None:
    """All of it is done: what was asked for is forgotten, its marks stay."""
    with _changing(home) as db:
        for purge in purges:
            db.execute("UPDATE purges SET words = NULL, done_at = ?, rows = rows + ? WHERE id = ?", (at, rows, purge))


def standing(home: Home, stones: Sequence[Stone]) -> bool:
    """Whether there is anything to lift."""
    if not home.tombstones.is_file():
        return False
    with _looking(home.tombstones) as db:
        return has_table(db, "purges") and any(_standing(db, stone) for stone in stones)


def lift(home: Home, stones: Sequence[Stone], at: str) -> int:
    """What these have left may come back: how many were lifted. A moment lifts those of all moments before it."""
    if not home.tombstones.is_file():
        return 0
    lifted = 0
    with _changing(home) as db:
        for stone in stones:
            found = _standing(db, stone)
            for purge in found:
                db.execute("DELETE FROM parts WHERE purge = ?", (purge,))
                db.execute("UPDATE purges SET words = NULL, lifted_at = ? WHERE id = ?", (at, purge))
            lifted += len(found)
    return lifted


def _standing(db: sqlite3.Connection, stone: Stone) -> list[int]:
    found = db.execute(
        "SELECT id FROM purges WHERE lifted_at IS NULL AND kind = ? AND (mark = ? OR before <= ?)",
        (stone.kind, stone.mark, stone.before),
    )
    return [int(purge) for (purge,) in found]


def parts(home: Home, most: int | None = None) -> list[bytes]:
    """Key hashes that are kept out; some of them where there are more."""
    with _looking(home.tombstones) as db:
        return [
            bytes(found) for (found,) in db.execute("SELECT hash FROM parts LIMIT ?", (-1 if most is None else most,))
        ]


def count(home: Home) -> int:
    """Key hashes that are kept out."""
    if not home.tombstones.is_file():
        return 0
    with _looking(home.tombstones) as db:
        return int(db.execute("SELECT count(DISTINCT hash) FROM parts").fetchone()[0])


@contextmanager
def _changing(home: Home) -> Iterator[sqlite3.Connection]:
    """One transaction, durable when it returned; the file and its name too."""
    path = home.tombstones
    durable.make_dir(path.parent)
    # Made by us, so that SQLite's side files take its mode over.
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
            # The words of a finished purge must not stay in the log either.
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
        f"{path}, which says what was purged, cannot be used ({error}): nothing enters the lake, so that nothing comes "
        "back; restore it from a backup",
        kind="tombstones_unusable",
    )
