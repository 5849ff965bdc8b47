"""What the state remembers, read without changing it: no migration, no repair, no mark of suspicion.

Plain SQL, for the layer that the state is written through takes half of the time that a status may. Tables that an
older state does not have are empty. `export.standing` and `state.flushes` say the same at more length; tests hold
them together.
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

# Where it is the last one that a state has had, the list of all need not be loaded.
NEWEST_STEP = "0007_ignored"

StreamName = tuple[str, str, str]
"""Sink, dataset, source."""


@dataclass(frozen=True)
class Unfinished:
    """A flush that was reserved and is neither committed nor burnt."""

    dataset: str
    reserved_at: str


@dataclass(frozen=True)
class Failing:
    """Segments that flushes have failed with."""

    dataset: str
    segments: int
    attempts: int


@dataclass(frozen=True)
class History:
    """Files of a client that were imported."""

    provider: str
    dataset: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Memory:
    state: str = "none"
    """none, current, older, newer or unreadable."""
    trouble: str | None = None
    identity: Identity | None = None
    high_water: dict[str, dict[str, int]] = field(default_factory=dict)
    unfinished: tuple[Unfinished, ...] = ()
    failing: tuple[Failing, ...] = ()
    streams: dict[StreamName, dict[str, Any]] = field(default_factory=dict)
    pending: dict[StreamName, dict[str, int]] = field(default_factory=dict)
    letters: Counter[StreamName] = field(default_factory=Counter)
    letter_rows: int = 0
    history: tuple[History, ...] = ()
    holds: int = 0
    """How many days of rows retention waits with."""
    drops: int = 0
    """How often rows were dropped that a sink had not had."""
    last_commit_at: str | None = None


def recall(home: Home) -> Memory:
    if not home.state.is_file():
        return Memory()
    try:
        with look_into(home.state) as db:
            db.row_factory = sqlite3.Row
            db.execute("BEGIN")
            return _read(db)
    except (OSError, sqlite3.Error, ValueError, KeyError, TypeError, AttributeError) as trouble:
        return Memory("unreadable", reason_of(trouble))


def first_commit_above(home: Home, dataset: str, seq: int) -> str | None:
    """When the first rows above the sequence were committed, as far back as the state remembers."""
    with look_into(home.state) as db:
        found = db.execute(
            "SELECT min(finished_at) FROM flushes"
            " WHERE dataset = ? AND status = 'committed' AND seq_last > ? AND rows_written > 0",
            (dataset, seq),
        ).fetchone()
    return found[0] if found else None


def committed_segments(home: Home, dataset: str) -> set[str]:
    """Segments whose rows are in the lake; of some of them the file may still be there."""
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
        state=_version(applied),
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
        letters=Counter(map(_name, letters)),
        letter_rows=sum(row["row_count"] for row in letters),
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
    """Of each intent its range, its chunks, and how many of them are settled."""
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
