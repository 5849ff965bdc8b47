"""The match-key tables of `lake/keys.db`.

`matches` holds the match keys of rows (hash, sequence, flags, time), `met` the sequences of matched rows, `matching`
the datasets with match keys, and `settlements` the names of the indexed settlement files. A dataset gets match keys
when its first live row without an own id arrives; then all rows of its table are indexed once. Like the keys, these
tables are derived and can be rebuilt from the rows and the pending settlements. A rebuild loses which native row a
superseded live row was matched with; matching the row again gives the same result.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from hypaware.lake.meetings import Met

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS matches (
        hash BLOB, seq INTEGER, mark INTEGER, at INTEGER, PRIMARY KEY (hash, seq)) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS met (seq INTEGER PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS matching (dataset TEXT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS settlements (name TEXT PRIMARY KEY)",
)
_LOOKUP = 500


def is_kept(db: sqlite3.Connection, dataset: str) -> bool:
    return db.execute("SELECT 1 FROM matching WHERE dataset = ?", (dataset,)).fetchone() is not None


def keep(db: sqlite3.Connection, dataset: str) -> None:
    db.execute("INSERT OR IGNORE INTO matching VALUES (?)", (dataset,))


def free(db: sqlite3.Connection, hashes: Iterable[bytes]) -> list[Met]:
    """Return the match keys with one of the hashes whose rows are not matched yet, by sequence."""
    found: list[Met] = []
    wanted = sorted(set(hashes))
    for start in range(0, len(wanted), _LOOKUP):
        some = wanted[start : start + _LOOKUP]
        marks = ",".join("?" * len(some))
        rows = db.execute(
            f"SELECT hash, seq, mark, at FROM matches WHERE hash IN ({marks})"
            " AND NOT EXISTS (SELECT 1 FROM met WHERE met.seq = matches.seq)",
            some,
        )
        found += (Met(bytes(hash_), seq, flags, at) for hash_, seq, flags, at in rows)
    return sorted(found, key=lambda match_key: match_key.seq)


def add(db: sqlite3.Connection, match_keys: Iterable[Met], matched: Iterable[int]) -> None:
    db.executemany("INSERT OR REPLACE INTO matches VALUES (?, ?, ?, ?)", sorted(match_keys))
    db.executemany("INSERT OR IGNORE INTO met VALUES (?)", ((seq,) for seq in matched))


def taken_in(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM settlements")}


def note_taken_in(db: sqlite3.Connection, dataset: str, names: Iterable[str]) -> None:
    """Record the pending settlements of a dataset; applied ones are dropped."""
    db.execute("DELETE FROM settlements WHERE name LIKE ?", (f"{dataset}/%",))
    db.executemany("INSERT INTO settlements VALUES (?)", ((name,) for name in sorted(names)))


def forget(db: sqlite3.Connection, chosen: str) -> None:
    """Remove the match keys of the rows whose sequences the query `chosen` selects."""
    db.execute(f"DELETE FROM matches WHERE seq IN ({chosen})")
    db.execute(f"DELETE FROM met WHERE seq IN ({chosen})")


def forget_above(db: sqlite3.Connection, floor: int) -> None:
    db.execute("DELETE FROM matches WHERE seq > ?", (floor,))
    db.execute("DELETE FROM met WHERE seq > ?", (floor,))
