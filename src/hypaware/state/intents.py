"""Intents: what is being delivered, written down before its first byte leaves.

A stream has at most one. Its chunks are settled one by one, in order: acknowledged, split into halves that take the
chunk's place, or buried as a dead letter. When all are, the watermark rises and the intent is gone, in one
transaction. A chunk that is here and not acknowledged may have arrived.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from hypaware.errors import StateError
from hypaware.state import streams, tables
from hypaware.state.stream_key import StreamKey
from hypaware.state.streams import of

_intents, _chunks = tables.intents, tables.chunks
# The status of a chunk: it may have arrived, it is settled, or it is known not to have arrived.
_DUE, _SETTLED, _UNSENT = "due", "settled", "unsent"


@dataclass(frozen=True)
class PlannedChunk:
    id: str
    incarnation: str
    after: int
    last: int
    rows: int
    acked: bool = False
    unsent: bool = False
    """Whether it is known not to have arrived, though somebody has tried: it was refused, or they were told to wait."""


@dataclass(frozen=True)
class Intent:
    key: StreamKey
    after: int
    last: int
    chunks: tuple[PlannedChunk, ...]

    @property
    def due(self) -> list[PlannedChunk]:
        return [chunk for chunk in self.chunks if not chunk.acked]


def pending(connection: Connection, key: StreamKey) -> Intent | None:
    row = connection.execute(select(_intents).where(of(_intents, key))).first()
    if row is None:
        return None
    found = connection.execute(
        select(_chunks).where(of(_chunks, key)).order_by(_chunks.c.seq_after, _chunks.c.seq_last)
    )
    return Intent(key, row.seq_after, row.seq_last, tuple(_chunk(each) for each in found))


def with_pending(connection: Connection) -> set[StreamKey]:
    return {StreamKey(row.sink, row.dataset, row.source) for row in connection.execute(select(_intents))}


def plan(connection: Connection, intent: Intent) -> None:
    if pending(connection, intent.key):
        raise StateError(f"{intent.key} has a plan already; it is finished first")
    connection.execute(
        insert(_intents).values(
            **_of(intent.key), seq_after=intent.after, seq_last=intent.last, planned_at=streams.now()
        )
    )
    _insert(connection, intent.key, intent.chunks)
    streams.stepped(connection)


def acknowledge(connection: Connection, key: StreamKey, chunk: PlannedChunk, rows: int) -> None:
    """The destination has the chunk. A second acknowledgement changes nothing."""
    settled = connection.execute(
        update(_chunks).where(_same(key, chunk), _chunks.c.status != _SETTLED).values(status=_SETTLED)
    )
    if settled.rowcount:
        streams.add_exported(connection, key, rows)


def replace_chunk(connection: Connection, key: StreamKey, chunk: PlannedChunk, parts: Iterable[PlannedChunk]) -> None:
    """Others take the chunk's place, under ids of their own: it is known not to have arrived."""
    removed = connection.execute(delete(_chunks).where(_same(key, chunk), _chunks.c.status != _SETTLED))
    if removed.rowcount != 1:
        raise StateError(f"chunk {chunk.id} of {key} is settled, it cannot be cut any more")
    _insert(connection, key, parts)
    streams.stepped(connection)


def note_unsent(connection: Connection, key: StreamKey, chunk: PlannedChunk) -> None:
    """Whoever finds the intent need not ask whether it has arrived."""
    connection.execute(update(_chunks).where(_same(key, chunk), _chunks.c.status == _DUE).values(status=_UNSENT))


def about_to_send(connection: Connection, key: StreamKey, chunk: PlannedChunk) -> None:
    """From now on it may have arrived."""
    connection.execute(update(_chunks).where(_same(key, chunk), _chunks.c.status == _UNSENT).values(status=_DUE))
    streams.stepped(connection)


def drop_chunk(connection: Connection, key: StreamKey, chunk: PlannedChunk) -> None:
    """It is settled some other way: the destination had its rows before, or it is a dead letter now."""
    connection.execute(update(_chunks).where(_same(key, chunk)).values(status=_SETTLED))


def finish(connection: Connection, key: StreamKey) -> None:
    intent = pending(connection, key)
    if intent is None:
        return
    if intent.due:
        raise StateError(f"{key} still has {len(intent.due)} chunks to deliver")
    cancel(connection, key)
    streams.raise_watermark(connection, key, intent.last)
    streams.succeeded(connection, key)


def cancel(connection: Connection, key: StreamKey) -> None:
    for table in (_chunks, _intents):
        connection.execute(delete(table).where(of(table, key)))


def progress(connection: Connection) -> dict[StreamKey, tuple[int, int, int, int]]:
    """(after, last, chunks in all, chunks acknowledged) of every pending intent."""
    joined = (
        select(
            _intents,
            func.count(_chunks.c.id).label("total"),
            func.count(_chunks.c.id).filter(_chunks.c.status == _SETTLED).label("acked"),
        )
        .select_from(
            _intents.outerjoin(
                _chunks,
                (_intents.c.sink == _chunks.c.sink)
                & (_intents.c.dataset == _chunks.c.dataset)
                & (_intents.c.source == _chunks.c.source),
            )
        )
        .group_by(*_intents.c)
    )
    return {
        StreamKey(row.sink, row.dataset, row.source): (row.seq_after, row.seq_last, row.total, int(row.acked))
        for row in connection.execute(joined)
    }


def _insert(connection: Connection, key: StreamKey, chunks: Iterable[PlannedChunk]) -> None:
    values = [
        {
            **_of(key),
            "seq_after": chunk.after,
            "seq_last": chunk.last,
            "id": chunk.id,
            "incarnation": chunk.incarnation,
            "row_count": chunk.rows,
            "status": _SETTLED if chunk.acked else _DUE,
        }
        for chunk in chunks
    ]
    if values:
        connection.execute(insert(_chunks), values)


def _same(key: StreamKey, chunk: PlannedChunk) -> Any:
    return of(_chunks, key) & (_chunks.c.seq_after == chunk.after) & (_chunks.c.seq_last == chunk.last)


def _chunk(row: Any) -> PlannedChunk:
    return PlannedChunk(
        row.id,
        row.incarnation,
        row.seq_after,
        row.seq_last,
        row.row_count,
        row.status == _SETTLED,
        row.status == _UNSENT,
    )


def _of(key: StreamKey) -> dict[str, str]:
    return {"sink": key.sink, "dataset": key.dataset, "source": key.source}
