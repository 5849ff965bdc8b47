"""A snapshot of the state, read without changing it: no migration, no repair, no damage marker.

It uses plain SQL, because importing the layer that writes the state would take half of the time of a status. Tables
that an older state does not have count as empty. `export.standing` and `state.flushes` implement the same rules; tests
compare the two.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hypaware.home import Home
from hypaware.looking import has_table, look_into
from hypaware.state.identity import Identity, from_json
from hypaware.status.diagnostic import reason_of

# If this is the last migration of a state, the list of all migrations need not be imported.
NEWEST_STEP = "0007_ignored"

StreamName = tuple[str, str, str]
"""Sink, dataset, source."""


@dataclass(frozen=True)
class Unfinished:
    """A flush that was reserved and is neither committed nor discarded."""

    dataset: str
    reserved_at: str


@dataclass(frozen=True)
class Failing:
    """The segments of a dataset that failed to flush."""

    dataset: str
    segments: int
    attempts: int


@dataclass(frozen=True)
class History:
    """The imported files of a client."""

    provider: str
    dataset: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Memory:
    condition: str = "none"
    """none, current, older, newer or unreadable."""
    error: str | None = None
    identity: Identity | None = None
    high_water: dict[str, dict[str, int]] = field(default_factory=dict)
    unfinished: tuple[Unfinished, ...] = ()
    failing: tuple[Failing, ...] = ()
    streams: dict[StreamName, dict[str, Any]] = field(default_factory=dict)
    pending: dict[StreamName, dict[str, int]] = field(default_factory=dict)
    dead_letters: Counter[StreamName] = field(default_factory=Counter)
    dead_letter_rows: int = 0
    history: tuple[History, ...] = ()
    holds: int = 0
    """How many days retention holds for a sink."""
    drops: int = 0
    """How often retention dropped rows that a sink had not received."""
    last_commit_at: str | None = None


def recall(home: Home) -> Memory:
    if not home.state.is_file():
        return Memory()
    try:
        with look_into(home.state) as db:
            db.row_factory = sqlite3.Row
            db.execute("BEGIN")
            return _read(db)
    except (OSError, sqlite3.Error, ValueError, KeyError, TypeError, AttributeError) as error:
        return Memory("unreadable", reason_of(error))


def first_commit_above(home: Home, dataset: str, seq: int) -> str | None:
    """Return when the first rows above the sequence were committed, as far back as the state records it."""
    with look_into(home.state) as db:
        found = db.execute(
            "SELECT min(finished_at) FROM flushes"
            " WHERE dataset = ? AND status = 'committed' AND seq_last > ? AND rows_written > 0",
            (dataset, seq),
        ).fetchone()
    return found[0] if found else None


def committed_segments(home: Home, dataset: str) -> set[str]:
    """Return the segments whose rows are in the lake. Some of their files may still exist."""
    with look_into(home.state) as db:
        return {
            name
            for (name,) in db.execute(
                "SELECT name FROM segments WHERE dataset = ? AND status = 'committed'", (dataset,)
            ).fetchall()
        }


def _read(db: sqlite3.Connection) -> Memory:
    applied = [row["name"] for row in _rows(db, "migrations", "SELECT name FROM migrations ORDER BY name")]
    if not applied:
        return Memory("unreadable", "it is empty")
    letters = _rows(db, "dead_letters", "SELECT sink, dataset, source, row_count FROM dead_letters")
    return Memory(
        condition=_version(applied),
        identity=_identity(db),
        high_water=_high_water(db),
        unfinished=tuple(
            Unfinished(row["dataset"], row["reserved_at"])
            for row in _rows(db, "flushes", "SELECT dataset, reserved_at FROM flushes WHERE status = 'reserved'")
        ),
        failing=tuple(
            Failing(row["dataset"], row["segments"], row["attempts"])
            for row in _rows(
                db,
                "segments",
                "SELECT dataset, count(*) AS segments, max(attempts) AS attempts FROM segments"
                " WHERE status = 'waiting' AND attempts > 0 GROUP BY dataset",
            )
        ),
        streams={_name(row): dict(row) for row in _rows(db, "streams", "SELECT * FROM streams")},
        pending=_pending(db),
        dead_letters=Counter(map(_name, letters)),
        dead_letter_rows=sum(row["row_count"] for row in letters),
        history=tuple(
            History(row["provider"], row["dataset"], row["files"], row["bytes"])
            for row in _rows(
                db,
                "sources",
                "SELECT provider, dataset, count(*) AS files, sum(consumed) AS bytes FROM sources"
                " GROUP BY provider, dataset ORDER BY provider, dataset",
            )
        ),
        holds=_count(db, "retention_holds"),
        drops=_count(db, "retention_drops"),
        last_commit_at=_only(
            db, "flushes", "SELECT max(finished_at) AS one FROM flushes WHERE status = 'committed' AND rows_written > 0"
        ),
    )


def _version(applied: Iterable[str]) -> str:
    if max(applied) == NEWEST_STEP:
        return "current"
    from hypaware.state.migrations import STEPS

    known = {name for name, _ in STEPS}
    if set(applied) - known:
        return "newer"
    return "older" if known - set(applied) else "current"


def _identity(db: sqlite3.Connection) -> Identity | None:
    found = _only(db, "meta", "SELECT value AS one FROM meta WHERE key = 'identity'")
    return from_json(json.loads(found)) if found else None


def _high_water(db: sqlite3.Connection) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in _rows(db, "high_water", "SELECT dataset, source, seq FROM high_water"):
        found.setdefault(row["dataset"], {})[row["source"]] = row["seq"]
    return found


def _pending(db: sqlite3.Connection) -> dict[StreamName, dict[str, int]]:
    """Return the range and chunk counts of each intent."""
    rows = _rows(
        db,
        "intents",
        "SELECT i.sink, i.dataset, i.source, i.seq_after AS after, i.seq_last AS last, count(c.id) AS chunks_total,"
        " coalesce(sum(c.status = 'settled'), 0) AS chunks_acked FROM intents i LEFT JOIN chunks c"
        " ON c.sink = i.sink AND c.dataset = i.dataset AND c.source = i.source GROUP BY i.sink, i.dataset, i.source",
    )
    return {_name(row): {name: row[name] for name in ("after", "last", "chunks_total", "chunks_acked")} for row in rows}


def _name(row: sqlite3.Row) -> StreamName:
    return row["sink"], row["dataset"], row["source"]


def _rows(db: sqlite3.Connection, table: str, sql: str) -> list[sqlite3.Row]:
    return db.execute(sql).fetchall() if has_table(db, table) else []


def _only(db: sqlite3.Connection, table: str, sql: str) -> Any:
    rows = _rows(db, table, sql)
    return rows[0]["one"] if rows else None


def _count(db: sqlite3.Connection, table: str) -> int:
    return int(_only(db, table, f"SELECT count(*) AS one FROM {table}") or 0)
