"""Intents: the durable plan of the next chunks of a stream, stored before the first byte is sent.

A stream has at most one intent. Its chunks are finished one by one, in order: acknowledged, replaced by their halves,
or stored as a dead letter. When all are finished, one transaction raises the watermark and deletes the intent. A chunk
that is not acknowledged may have arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hypaware.errors import StateError
from hypaware.state import streams
from hypaware.state.schema import utc_now
from hypaware.state.streams import OF_STREAM, StreamKey, key_of

if TYPE_CHECKING:
    from hypaware.state.store import Connection

# The status of a chunk: it may have arrived, it is finished, or it is known not to have arrived.
_DUE, _FINISHED, _UNSENT = "due", "settled", "unsent"
_OF_CHUNK = f"{OF_STREAM} AND seq_after = :after AND seq_last = :last"


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


def load_intent(connection: Connection, key: StreamKey) -> Intent | None:
    row = connection.row(f"SELECT seq_after, seq_last FROM intents WHERE {OF_STREAM}", asdict(key))
    if row is None:
        return None
    chunks = connection.rows(f"SELECT * FROM chunks WHERE {OF_STREAM} ORDER BY seq_after, seq_last", asdict(key))
    return Intent(key, row["seq_after"], row["seq_last"], tuple(map(_to_chunk, chunks)))


def streams_with_intent(connection: Connection) -> set[StreamKey]:
    return {key_of(row) for row in connection.rows("SELECT * FROM intents")}


def save_intent(connection: Connection, intent: Intent) -> None:
    if load_intent(connection, intent.key):
        raise StateError(f"{intent.key} already has an intent, which must be finished first")
    values = {"seq_after": intent.after, "seq_last": intent.last, "planned_at": utc_now()}
    connection.insert("intents", {**asdict(intent.key), **values})
    _insert_chunks(connection, intent.key, intent.chunks)
    streams.advance_delivery_step(connection)


def acknowledge_chunk(connection: Connection, key: StreamKey, chunk: PlannedChunk, rows: int) -> None:
    """Record that the destination has the chunk. A second acknowledgement has no effect."""
    if _set_status(connection, key, chunk, _FINISHED, f"status <> '{_FINISHED}'"):
        streams.add_exported_rows(connection, key, rows)


def replace_chunk(connection: Connection, key: StreamKey, chunk: PlannedChunk, parts: Iterable[PlannedChunk]) -> None:
    """Replace a chunk that is known not to have arrived by smaller ones with their own ids."""
    sql = f"DELETE FROM chunks WHERE {_OF_CHUNK} AND status <> '{_FINISHED}'"
    if connection.execute(sql, _chunk_key(key, chunk)) != 1:
        raise StateError(f"chunk {chunk.id} of {key} is finished and cannot be split any more")
    _insert_chunks(connection, key, parts)
    streams.advance_delivery_step(connection)


def mark_unsent(connection: Connection, key: StreamKey, chunk: PlannedChunk) -> None:
    """Record that a chunk has not arrived, so that a later run need not ask the destination."""
    _set_status(connection, key, chunk, _UNSENT, f"status = '{_DUE}'")


def mark_sending(connection: Connection, key: StreamKey, chunk: PlannedChunk) -> None:
    """Record, before a chunk is sent, that it may have arrived."""
    _set_status(connection, key, chunk, _DUE, f"status = '{_UNSENT}'")
    streams.advance_delivery_step(connection)


def finish_unsent_chunk(connection: Connection, key: StreamKey, chunk: PlannedChunk) -> None:
    """Finish a chunk without sending it: the destination already has its rows, or it is a dead letter."""
    _set_status(connection, key, chunk, _FINISHED)


def finish_intent(connection: Connection, key: StreamKey) -> None:
    intent = load_intent(connection, key)
    if intent is None:
        return
    if intent.due:
        raise StateError(f"{key} still has {len(intent.due)} chunks to deliver")
    cancel_intent(connection, key)
    streams.raise_watermark(connection, key, intent.last)
    streams.record_success(connection, key)


def cancel_intent(connection: Connection, key: StreamKey) -> None:
    for table in ("chunks", "intents"):
        connection.execute(f"DELETE FROM {table} WHERE {OF_STREAM}", asdict(key))


def intent_progress(connection: Connection) -> dict[StreamKey, tuple[int, int, int, int]]:
    """Return (after, last, number of chunks, number of finished chunks) for every pending intent."""
    rows = connection.rows(
        "SELECT intents.*, count(chunks.id) AS total, count(CASE chunks.status WHEN 'settled' THEN 1 END) AS finished"
        " FROM intents LEFT JOIN chunks ON chunks.sink = intents.sink AND chunks.dataset = intents.dataset"
        " AND chunks.source = intents.source GROUP BY intents.sink, intents.dataset, intents.source"
    )
    return {key_of(row): (row["seq_after"], row["seq_last"], row["total"], row["finished"]) for row in rows}


def _insert_chunks(connection: Connection, key: StreamKey, chunks: Iterable[PlannedChunk]) -> None:
    connection.insert(
        "chunks",
        *(
            {
                **asdict(key),
                "seq_after": chunk.after,
                "seq_last": chunk.last,
                "id": chunk.id,
                "incarnation": chunk.incarnation,
                "row_count": chunk.rows,
                "status": _FINISHED if chunk.acked else _DUE,
            }
            for chunk in chunks
        ),
    )


def _set_status(
    connection: Connection, key: StreamKey, chunk: PlannedChunk, status: str, condition: str = "TRUE"
) -> int:
    return connection.execute(
        f"UPDATE chunks SET status = :status WHERE {_OF_CHUNK} AND {condition}",
        {**_chunk_key(key, chunk), "status": status},
    )


def _chunk_key(key: StreamKey, chunk: PlannedChunk) -> dict[str, Any]:
    return {**asdict(key), "after": chunk.after, "last": chunk.last}


def _to_chunk(row: Mapping[str, Any]) -> PlannedChunk:
    return PlannedChunk(
        row["id"],
        row["incarnation"],
        row["seq_after"],
        row["seq_last"],
        row["row_count"],
        row["status"] == _FINISHED,
        row["status"] == _UNSENT,
    )
