"""The part of `lake/keys.db` that knows by what rows can meet another record of the same thing.

`matches` holds a key of a row (hash, sequence, mark, time), `met` the sequences of rows that have met, `matching` the
datasets for which it is kept: from the first fallback row on that comes into a table, when all its rows are taken in
once. `settlements` names the files that were taken in. Derived like the keys: lost, it is made anew from the rows, and
from the settlements that wait. What it forgets then, which native row a dropped one had met, settles the same again.
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
    """Rows of the lake that have such a key, and have not met yet."""
    found: list[Met] = []
    asked = sorted(set(hashes))
    for start in range(0, len(asked), _LOOKUP):
        some = asked[start : start + _LOOKUP]
        marks = ",".join("?" * len(some))
        rows = db.execute(
            f"SELECT hash, seq, mark, at FROM matches WHERE hash IN ({marks})"
            " AND NOT EXISTS (SELECT 1 FROM met WHERE met.seq = matches.seq)",
            some,
        )
        found += (Met(bytes(hash_), seq, mark, at) for hash_, seq, mark, at in rows)
    return sorted(found, key=lambda met: met.seq)


def add(db: sqlite3.Connection, meetings: Iterable[Met], met: Iterable[int]) -> None:
    db.executemany("INSERT OR REPLACE INTO matches VALUES (?, ?, ?, ?)", sorted(meetings))
    db.executemany("INSERT OR IGNORE INTO met VALUES (?)", ((seq,) for seq in met))


def taken_in(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM settlements")}


def note_taken_in(db: sqlite3.Connection, dataset: str, names: Iterable[str]) -> None:
    """All that are there now; those that were carried out are forgotten."""
    db.execute("DELETE FROM settlements WHERE name LIKE ?", (f"{dataset}/%",))
    db.executemany("INSERT INTO settlements VALUES (?)", ((name,) for name in sorted(names)))


def forget(db: sqlite3.Connection, chosen: str) -> None:
    """`chosen` is a query for the sequences of rows that go."""
    db.execute(f"DELETE FROM matches WHERE seq IN ({chosen})")
    db.execute(f"DELETE FROM met WHERE seq IN ({chosen})")


def forget_above(db: sqlite3.Connection, floor: int) -> None:
    db.execute("DELETE FROM matches WHERE seq > ?", (floor,))
    db.execute("DELETE FROM met WHERE seq > ?", (floor,))
