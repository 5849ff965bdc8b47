"""A snapshot of the state for readers that must not change it: one transaction, no migration, no damage marker.

Tables that an older state does not have count as empty. A state that cannot be read gives a snapshot with the reason.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.home.identity import Identity
from hypaware.state import dead_letters, flushes, schema, streams
from hypaware.state import store as state_store
from hypaware.state.location import has_state, open_store
from hypaware.state.store import Connection, Row
from hypaware.state.streams import Stream, StreamKey
from hypaware.text import summarize_error


@dataclass(frozen=True)
class DeliveryRecords:
    """The records of the state about the streams of all sinks."""

    identity: Identity | None = None
    streams: dict[StreamKey, Stream] = field(default_factory=dict)
    pending: dict[StreamKey, tuple[int, int, int, int]] = field(default_factory=dict)
    """(after, last, number of chunks, number of finished chunks) of each intent."""
    dead_letters: Counter[StreamKey] = field(default_factory=Counter)
    high_water: dict[str, dict[str, int]] = field(default_factory=dict)
    """The highest recorded sequence by dataset and source."""


@dataclass(frozen=True)
class StateSnapshot:
    condition: str = "none"
    """none, current, older, newer or unreadable."""
    error: str | None = None
    deliveries: DeliveryRecords = DeliveryRecords()
    unfinished: Sequence[Row] = ()
    """The `dataset` and `reserved_at` of each flush that is neither committed nor discarded."""
    failing: Sequence[Row] = ()
    """The `dataset`, `segments` and `attempts` of segments that failed to flush."""
    history: Sequence[Row] = ()
    """The `provider`, `dataset`, `files` and `bytes` of the imported history."""
    holds: int = 0
    """How many days retention holds for a sink."""
    drops: int = 0
    """How often retention dropped rows that a sink had not received."""
    last_commit_at: str | None = None

    @property
    def identity(self) -> Identity | None:
        return self.deliveries.identity

    @property
    def high_water(self) -> dict[str, dict[str, int]]:
        return self.deliveries.high_water


def read_snapshot(home: Home) -> StateSnapshot:
    if not has_state(home):
        return StateSnapshot()
    try:
        with open_store(home, read_only=True).reading() as connection:
            return _read(connection)
    except (HypError, OSError, sqlite3.Error, ValueError, KeyError, TypeError, AttributeError) as error:
        return StateSnapshot("unreadable", summarize_error(error.__cause__ or error))


def read_applied_migrations(home: Home) -> set[str] | None:
    """Return the names of the migrations that the state has, or None if there is no state that can be read."""
    with suppress(HypError, OSError, sqlite3.Error):
        if has_state(home):
            with open_store(home, read_only=True).reading() as connection:
                return set(connection.values("SELECT name FROM migrations"))
    return None


def read_deliveries(connection: Connection) -> DeliveryRecords:
    identity, high_water = state_store.load_identity(connection), flushes.load_high_water(connection)
    # One migration created all tables of the deliveries.
    if not connection.has_table("streams"):
        return DeliveryRecords(identity, high_water=high_water)
    return DeliveryRecords(
        identity=identity,
        streams={stream.key: stream for stream in streams.list_streams(connection)},
        pending=streams.intent_progress(connection),
        dead_letters=Counter(letter.key for letter in dead_letters.list_letters(connection)),
        high_water=high_water,
    )


def _read(connection: Connection) -> StateSnapshot:
    applied = set(connection.values("SELECT name FROM migrations")) if connection.has_table("migrations") else set()
    if not applied:
        return StateSnapshot("unreadable", "it is empty")

    def read(table: str, columns: str, rest: str) -> list[Row]:
        return connection.rows(f"SELECT {columns} FROM {table} {rest}") if connection.has_table(table) else []

    def count(table: str) -> int:
        return connection.value(f"SELECT count(*) FROM {table}") if connection.has_table(table) else 0

    known = {name for name, _ in schema.MIGRATIONS}
    condition = "older" if known - applied else "current"
    return StateSnapshot(
        condition="newer" if applied - known else condition,
        deliveries=read_deliveries(connection),
        unfinished=read("flushes", "dataset, reserved_at", "WHERE status = 'reserved'"),
        failing=read(
            "segments",
            "dataset, count(*) AS segments, max(attempts) AS attempts",
            "WHERE status = 'waiting' AND attempts > 0 GROUP BY dataset",
        ),
        history=read(
            "sources",
            "provider, dataset, count(*) AS files, sum(consumed) AS bytes",
            "GROUP BY provider, dataset ORDER BY provider, dataset",
        ),
        holds=count("retention_holds"),
        drops=count("retention_drops"),
        last_commit_at=connection.value(
            "SELECT max(finished_at) FROM flushes WHERE status = 'committed' AND rows_written > 0"
        ),
    )
