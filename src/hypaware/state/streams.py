"""Streams: the watermark, the destination and the intent of each (sink, dataset, source).

`watermark` is None while it is unknown. `history` then gives the reason: `none` (this state has sent nothing) or `lost`
(an earlier state may have sent rows). A held stream waits for the user. `planned_to` is the highest sequence that was
ever part of an intent: under the current incarnation, no destination can have a higher one.

If one has, the home was rolled back in place. Rows above the watermark then have sequences that may belong to other
rows at the destination: `history` is `rolled back` until they are delivered, or the user has chosen to skip those that
may have arrived (`skip`) or to send them all (`resend`).

An intent is the durable plan of the next chunks of a stream, stored before the first byte is sent. A stream has at most
one. Its chunks are finished one by one, in order: acknowledged, replaced by their halves, or stored as a dead letter.
When all are finished, one transaction raises the watermark and deletes the intent. A chunk that is not acknowledged may
have arrived.

The delivery step is a number that increases with every change that must be in the mirror before a byte is sent.

Watermarks of rows that a takeover imports, which another program has already delivered, are pending while their flush
runs. They become valid when it is recorded, together with its rows, and are discarded if it is not committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hypaware.errors import StateError
from hypaware.state.schema import get_meta, set_meta, utc_now

if TYPE_CHECKING:
    from hypaware.state.store import Connection

NO_HISTORY, HISTORY_LOST = "none", "lost"
ROLLED_BACK, SKIP_DISPUTED, RESEND_DISPUTED = AFTER_ROLLBACK = "rolled back", "skip", "resend"
# Why a stream is held: its sink has another destination, the delivery record was lost, a chunk that may have arrived is
# refused, the home was rolled back, or it was copied with rows in its spool.
HELD_ADDRESS_CHANGED, HELD_HISTORY_LOST, HELD_OUTCOME_UNKNOWN = "elsewhere", "history", "outcome"
HELD_ROLLED_BACK, HELD_COPIED = "rolled_back", "copied"
# The history of a stream whose user wants rows sent that were in the spool when the home was copied.
RESEND_INHERITED = "resend spool"

# The condition for the rows of one stream; its parameters are `asdict(key)`.
OF_STREAM = "sink = :sink AND dataset = :dataset AND source = :source"
# The fields of a stream that the mirror keeps, except its key. Retries are not kept.
MIRRORED_FIELDS = ("address", "destination_id", "watermark", "history", "exported_rows", "held", "planned_to")
_OF_CHUNK = f"{OF_STREAM} AND seq_after = :seq_after AND seq_last = :seq_last"
# The status of a chunk: it may have arrived, it is finished, or it is known not to have arrived.
_DUE, _FINISHED, _UNSENT = "due", "settled", "unsent"
_STEP_KEY = "deliveries.step"
_LOST_KEY = "deliveries.lost"
_ROLLED_BACK_KEY = "deliveries.rolled_back"


@dataclass(frozen=True, order=True)
class StreamKey:
    sink: str
    dataset: str
    source: str

    def __str__(self) -> str:
        return f"{self.sink}: {self.dataset} of {self.source}"


@dataclass(frozen=True)
class Stream:
    key: StreamKey
    address: str
    destination_id: str | None
    watermark: int | None
    history: str
    exported_rows: int = 0
    held: str | None = None
    attempts: int = 0
    retry_at: datetime | None = None
    last_error: str | None = None
    last_success_at: datetime | None = None
    updated_at: datetime | None = None
    planned_to: int = 0


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


@dataclass(frozen=True)
class PendingWatermark:
    """The destination at this address has everything of the stream up to `seq`."""

    key: StreamKey
    address: str
    seq: int


def key_of(row: Mapping[str, Any]) -> StreamKey:
    return StreamKey(row["sink"], row["dataset"], row["source"])


def load_stream(connection: Connection, key: StreamKey) -> Stream | None:
    row = connection.row(f"SELECT * FROM streams WHERE {OF_STREAM}", asdict(key))
    return _to_stream(row) if row else None


def list_streams(connection: Connection) -> list[Stream]:
    return [_to_stream(row) for row in connection.rows("SELECT * FROM streams ORDER BY sink, dataset, source")]


def create_stream(connection: Connection, key: StreamKey, address: str) -> Stream:
    """Create a stream that is new to this state. The stream of a renamed sink is renamed instead."""
    history = HISTORY_LOST if is_history_lost(connection) else NO_HISTORY
    created = Stream(key, address, None, None, history)
    if was_rolled_back(connection):
        created = Stream(key, address, None, 0, ROLLED_BACK)
    _insert(connection, created)
    found = load_stream(connection, key)
    assert found is not None
    return found


def restore_stream(connection: Connection, stream: Stream) -> None:
    """Store a stream as the mirror has it, without its retries."""
    forget_stream(connection, stream.key)
    _insert(connection, stream)


def _insert(connection: Connection, stream: Stream) -> None:
    values = {name: getattr(stream, name) for name in MIRRORED_FIELDS}
    connection.insert("streams", {**asdict(stream.key), **values, "attempts": 0, "updated_at": utc_now()})


def forget_stream(connection: Connection, key: StreamKey) -> None:
    connection.execute(f"DELETE FROM streams WHERE {OF_STREAM}", asdict(key))


def rename_stream(connection: Connection, key: StreamKey, sink: str) -> StreamKey:
    """Rename the sink of a stream, of its intent and of its dead letters.

    Chunks keep their ids, because a chunk that may have arrived must be looked up under the same id.
    """
    for table in ("streams", "intents", "chunks", "dead_letters"):
        connection.execute(f"UPDATE {table} SET sink = :new WHERE {OF_STREAM}", {**asdict(key), "new": sink})
    advance_delivery_step(connection)
    return StreamKey(sink, key.dataset, key.source)


def swap_streams(connection: Connection, one: StreamKey, other: StreamKey) -> None:
    """Swap the sinks of two streams."""
    parked = rename_stream(connection, one, f"{one.sink} aside")
    rename_stream(connection, other, one.sink)
    rename_stream(connection, parked, other.sink)


def bind_stream(connection: Connection, key: StreamKey, address: str, destination_id: str | None) -> None:
    _update(connection, key, address=address, destination_id=destination_id)
    advance_delivery_step(connection)


def hold_stream(connection: Connection, key: StreamKey, reason: str, message: str) -> None:
    _update(connection, key, held=reason, last_error=message)


def release_stream(connection: Connection, key: StreamKey) -> None:
    _update(connection, key, held=None, last_error=None, attempts=0, retry_at=None)


def reset_watermark(connection: Connection, key: StreamKey) -> None:
    """Deliver the whole stream again, except for rows that the destination reports to have."""
    _update(connection, key, watermark=None, history=NO_HISTORY, exported_rows=0)
    advance_delivery_step(connection)


def raise_watermark(connection: Connection, key: StreamKey, seq: int) -> None:
    known = load_stream(connection, key)
    if known and (known.watermark is None or known.watermark < seq):
        _update(connection, key, watermark=seq)


def set_history(connection: Connection, key: StreamKey, history: str) -> None:
    _update(connection, key, history=history)
    advance_delivery_step(connection)


def note_rollback(connection: Connection) -> None:
    """Record that streams created from now on are to be marked as well."""
    set_meta(connection, _ROLLED_BACK_KEY, utc_now())


def was_rolled_back(connection: Connection) -> bool:
    return get_meta(connection, _ROLLED_BACK_KEY) is not None


def mark_rolled_back(connection: Connection) -> None:
    """Mark every stream: rows above its watermark may have the sequences of other rows at its destination."""
    note_rollback(connection)
    for stream in list_streams(connection):
        _update(connection, stream.key, watermark=stream.watermark or 0, history=ROLLED_BACK)
    advance_delivery_step(connection)


def abandon_intent(connection: Connection, key: StreamKey, at: int) -> None:
    """Drop the rest of an intent; nothing of it above this sequence was sent."""
    cancel_intent(connection, key)
    raise_watermark(connection, key, at)
    _update(connection, key, planned_to=at)


def lower_watermarks(connection: Connection, dataset: str, floor: int) -> None:
    """Lower the watermarks to the floor, after the user gave up the rows above it. Their sequences are not reused."""
    parameters = {"dataset": dataset, "floor": floor, "now": utc_now()}
    connection.execute(
        "UPDATE streams SET watermark = :floor, updated_at = :now WHERE dataset = :dataset AND watermark > :floor",
        parameters,
    )
    # Intents end there too; otherwise they would raise the watermarks above the rows in the lake.
    connection.execute(
        "UPDATE intents SET seq_last = :floor WHERE dataset = :dataset AND seq_last > :floor", parameters
    )
    connection.execute("DELETE FROM chunks WHERE dataset = :dataset AND seq_after >= :floor", parameters)
    advance_delivery_step(connection)


def record_success(connection: Connection, key: StreamKey) -> None:
    _update(connection, key, attempts=0, retry_at=None, last_error=None, held=None, last_success_at=utc_now())


def record_failure(
    connection: Connection, key: StreamKey, error: str, retry_at: datetime | None, attempts: int
) -> None:
    _update(connection, key, last_error=error, attempts=attempts, retry_at=retry_at.isoformat() if retry_at else None)


def replace_error(connection: Connection, key: StreamKey, error: str) -> None:
    """Replace the recorded error of a stream, which may quote a purged row."""
    connection.execute(f"UPDATE streams SET last_error = :error WHERE {OF_STREAM}", {**asdict(key), "error": error})


def add_exported_rows(connection: Connection, key: StreamKey, rows: int) -> None:
    connection.execute(
        f"UPDATE streams SET exported_rows = exported_rows + :rows, updated_at = :now WHERE {OF_STREAM}",
        {**asdict(key), "rows": rows, "now": utc_now()},
    )


def mark_history_lost(connection: Connection) -> None:
    """Record that an earlier state has sent rows that are unknown to this one."""
    if not is_history_lost(connection):
        set_meta(connection, _LOST_KEY, utc_now())


def is_history_lost(connection: Connection) -> bool:
    return get_meta(connection, _LOST_KEY) is not None


def delivery_step(connection: Connection) -> int:
    return int(get_meta(connection, _STEP_KEY) or 0)


def advance_delivery_step(connection: Connection, at_least: int = 0) -> None:
    set_meta(connection, _STEP_KEY, str(max(delivery_step(connection) + 1, at_least)))


def load_intent(connection: Connection, key: StreamKey) -> Intent | None:
    row = connection.row(f"SELECT seq_after, seq_last FROM intents WHERE {OF_STREAM}", asdict(key))
    if row is None:
        return None
    columns = "id, incarnation, seq_after AS after, seq_last AS last, row_count AS rows, status"
    sql = f"SELECT {columns} FROM chunks WHERE {OF_STREAM} ORDER BY seq_after, seq_last"
    chunks = []
    for chunk in connection.rows(sql, asdict(key)):
        status = chunk.pop("status")
        chunks.append(PlannedChunk(**chunk, acked=status == _FINISHED, unsent=status == _UNSENT))
    return Intent(key, row["seq_after"], row["seq_last"], tuple(chunks))


def streams_with_intent(connection: Connection) -> set[StreamKey]:
    return {key_of(row) for row in connection.rows("SELECT * FROM intents")}


def save_intent(connection: Connection, intent: Intent) -> None:
    if load_intent(connection, intent.key):
        raise StateError(f"{intent.key} already has an intent, which must be finished first")
    values = {"seq_after": intent.after, "seq_last": intent.last, "planned_at": utc_now()}
    connection.insert("intents", {**asdict(intent.key), **values})
    connection.execute(
        f"UPDATE streams SET planned_to = :last WHERE {OF_STREAM} AND planned_to < :last",
        {**asdict(intent.key), "last": intent.last},
    )
    _insert_chunks(connection, intent.key, intent.chunks)
    advance_delivery_step(connection)


def acknowledge_chunk(connection: Connection, key: StreamKey, chunk: PlannedChunk, rows: int) -> None:
    """Record that the destination has the chunk. A second acknowledgement has no effect."""
    if _set_status(connection, key, chunk, _FINISHED, f"status <> '{_FINISHED}'"):
        add_exported_rows(connection, key, rows)


def replace_chunk(connection: Connection, key: StreamKey, chunk: PlannedChunk, parts: Iterable[PlannedChunk]) -> None:
    """Replace a chunk that is known not to have arrived by smaller ones with their own ids."""
    sql = f"DELETE FROM chunks WHERE {_OF_CHUNK} AND status <> '{_FINISHED}'"
    if connection.execute(sql, _chunk_key(key, chunk)) != 1:
        raise StateError(f"chunk {chunk.id} of {key} is finished and cannot be split any more")
    _insert_chunks(connection, key, parts)
    advance_delivery_step(connection)


def mark_unsent(connection: Connection, key: StreamKey, chunk: PlannedChunk) -> None:
    """Record that a chunk has not arrived, so that a later run need not ask the destination."""
    _set_status(connection, key, chunk, _UNSENT, f"status = '{_DUE}'")


def mark_sending(connection: Connection, key: StreamKey, chunk: PlannedChunk) -> None:
    """Record, before a chunk is sent, that it may have arrived."""
    _set_status(connection, key, chunk, _DUE, f"status = '{_UNSENT}'")
    advance_delivery_step(connection)


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
    raise_watermark(connection, key, intent.last)
    record_success(connection, key)


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
    rows = []
    for chunk in chunks:
        status = _FINISHED if chunk.acked else _DUE
        values = {"id": chunk.id, "incarnation": chunk.incarnation, "row_count": chunk.rows, "status": status}
        rows.append({**_chunk_key(key, chunk), **values})
    connection.insert("chunks", *rows)


def _set_status(
    connection: Connection, key: StreamKey, chunk: PlannedChunk, status: str, condition: str = "TRUE"
) -> int:
    sql = f"UPDATE chunks SET status = :status WHERE {_OF_CHUNK} AND {condition}"
    return connection.execute(sql, {**_chunk_key(key, chunk), "status": status})


def _chunk_key(key: StreamKey, chunk: PlannedChunk) -> dict[str, Any]:
    return {**asdict(key), "seq_after": chunk.after, "seq_last": chunk.last}


def add_pending_watermarks(connection: Connection, flush_id: str, watermarks: Iterable[PendingWatermark]) -> None:
    """Store the watermarks that become valid when the flush is committed."""
    connection.insert(
        "pending_watermarks",
        *(
            {**asdict(each.key), "flush_id": flush_id, "address": each.address, "watermark": each.seq}
            for each in watermarks
        ),
    )


def promote_watermarks(connection: Connection, flush_id: str) -> None:
    """Apply the watermarks of a committed flush. A watermark is only raised."""
    for row in connection.rows("SELECT * FROM pending_watermarks WHERE flush_id = ?", (flush_id,)):
        key = key_of(row)
        if load_stream(connection, key) is None:
            create_stream(connection, key, row["address"])
        raise_watermark(connection, key, row["watermark"])
        advance_delivery_step(connection)
    discard_watermarks(connection, flush_id)


def discard_watermarks(connection: Connection, flush_id: str) -> None:
    connection.execute("DELETE FROM pending_watermarks WHERE flush_id = ?", (flush_id,))


def _update(connection: Connection, key: StreamKey, **values: object) -> None:
    values["updated_at"] = utc_now()
    changes = ", ".join(f"{name} = :{name}" for name in values)
    connection.execute(f"UPDATE streams SET {changes} WHERE {OF_STREAM}", {**values, **asdict(key)})


def _to_stream(row: Mapping[str, Any]) -> Stream:
    # A state of an older version, which is only read, lacks some of the columns.
    values = {field.name: row[field.name] for field in fields(Stream) if field.name in row}
    for name in ("retry_at", "last_success_at", "updated_at"):
        values[name] = datetime.fromisoformat(values[name]) if values[name] else None
    return Stream(key_of(row), **values)
