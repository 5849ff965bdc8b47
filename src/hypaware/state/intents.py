"""Intents: the durable plan of the next chunks of a stream, stored before the first byte is sent.

A stream has at most one intent. Its chunks are finished one by one, in order: acknowledged, replaced by their halves,
or stored as a dead letter. When all are finished, one transaction raises the watermark and deletes the intent. A chunk
that is not acknowledged may have arrived.
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
# The status of a chunk: it may have arrived, it is finished, or it is known not to have arrived.
_DUE, _FINISHED, _UNSENT = "due", "settled", "unsent"


@dataclass(frozen=True)
class PlannedChunk:
    id: str
    incarnation: str
    after: int
    last: int
    rows: int
    acked: bool = False
    unsent: bool = False
    """Whether it is known not to have arrived although it was tried: it was refused or deferred."""


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
        raise StateError(f"{intent.key} already has an intent, which must be finished first")
    connection.execute(
        insert(_intents).values(
            **streams.key_columns(intent.key), seq_after=intent.after, seq_last=intent.last, planned_at=streams.now()
        )
    )
    _insert(connection, intent.key, intent.chunks)
    streams.stepped(connection)


def acknowledge(connection: Connection, key: StreamKey, chunk: PlannedChunk, rows: int) -> None:
    """Record that the destination has the chunk. A second acknowledgement has no effect."""
    changed = connection.execute(
        update(_chunks).where(_same(key, chunk), _chunks.c.status != _FINISHED).values(status=_FINISHED)
    )
    if changed.rowcount:
        streams.add_exported(connection, key, rows)


def replace_chunk(connection: Connection, key: StreamKey, chunk: PlannedChunk, parts: Iterable[PlannedChunk]) -> None:
    """Replace a chunk that is known not to have arrived by smaller ones with their own ids."""
    removed = connection.execute(delete(_chunks).where(_same(key, chunk), _chunks.c.status != _FINISHED))
    if removed.rowcount != 1:
        raise StateError(f"chunk {chunk.id} of {key} is finished and cannot be split any more")
    _insert(connection, key, parts)
    streams.stepped(connection)


def note_unsent(connection: Connection, key: StreamKey, chunk: PlannedChunk) -> None:
    """Record that a chunk has not arrived, so that a later run need not ask the destination."""
    connection.execute(update(_chunks).where(_same(key, chunk), _chunks.c.status == _DUE).values(status=_UNSENT))


def about_to_send(connection: Connection, key: StreamKey, chunk: PlannedChunk) -> None:
    """Record, before a chunk is sent, that it may have arrived."""
    connection.execute(update(_chunks).where(_same(key, chunk), _chunks.c.status == _UNSENT).values(status=_DUE))
    streams.stepped(connection)


def drop_chunk(connection: Connection, key: StreamKey, chunk: PlannedChunk) -> None:
    """Finish a chunk without sending it: the destination already has its rows, or it is a dead letter."""
    connection.execute(update(_chunks).where(_same(key, chunk)).values(status=_FINISHED))


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
    """Return (after, last, number of chunks, number of finished chunks) for every pending intent."""
    joined = (
        select(
            _intents,
            func.count(_chunks.c.id).label("total"),
            func.count(_chunks.c.id).filter(_chunks.c.status == _FINISHED).label("acked"),
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
            **streams.key_columns(key),
            "seq_after": chunk.after,
            "seq_last": chunk.last,
            "id": chunk.id,
            "incarnation": chunk.incarnation,
            "row_count": chunk.rows,
            "status": _FINISHED if chunk.acked else _DUE,
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
        row.status == _FINISHED,
        row.status == _UNSENT,
    )
