"""Streams: the watermark and the destination of each (sink, dataset, source).

`watermark` is None while it is unknown. `history` then gives the reason: `none` (this state has sent nothing) or `lost`
(an earlier state may have sent rows). A held stream waits for the user.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, insert, select, update

from hypaware.state import tables
from hypaware.state.stream_key import StreamKey

_streams, _meta = tables.streams, tables.meta
_STEP = "deliveries.step"
_LOST = "deliveries.lost"

NONE, LOST = "none", "lost"
# Why a stream is held: its sink has another destination, the delivery record was lost, or a chunk that may have
# arrived is refused.
ELSEWHERE, HISTORY, OUTCOME = "elsewhere", "history", "outcome"


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


def load(connection: Connection, key: StreamKey) -> Stream | None:
    row = connection.execute(select(_streams).where(of(_streams, key))).first()
    return _stream(row) if row else None


def all_streams(connection: Connection) -> list[Stream]:
    return [_stream(row) for row in connection.execute(select(_streams).order_by(*_streams.primary_key))]


def create(connection: Connection, key: StreamKey, address: str) -> Stream:
    """Create a stream that is new to this state. The stream of a renamed sink is renamed instead."""
    history = LOST if is_memory_lost(connection) else NONE
    values = {"address": address, "history": history, "exported_rows": 0, "attempts": 0, "updated_at": now()}
    connection.execute(insert(_streams).values(**key_columns(key), **values))
    found = load(connection, key)
    assert found is not None
    return found


def restore(connection: Connection, stream: Stream) -> None:
    """Store a stream as the mirror has it."""
    forget(connection, stream.key)
    connection.execute(
        insert(_streams).values(
            **key_columns(stream.key),
            address=stream.address,
            destination_id=stream.destination_id,
            watermark=stream.watermark,
            history=stream.history,
            exported_rows=stream.exported_rows,
            held=stream.held,
            attempts=0,
            updated_at=now(),
        )
    )


def forget(connection: Connection, key: StreamKey) -> None:
    connection.execute(delete(_streams).where(of(_streams, key)))


def rename(connection: Connection, key: StreamKey, sink: str) -> StreamKey:
    """Rename the sink of a stream, of its intent and of its dead letters.

    Chunks keep their ids, because a chunk that may have arrived must be looked up under the same id.
    """
    for table in (_streams, tables.intents, tables.chunks, tables.dead_letters):
        connection.execute(update(table).where(of(table, key)).values(sink=sink))
    stepped(connection)
    return StreamKey(sink, key.dataset, key.source)


def exchange(connection: Connection, one: StreamKey, other: StreamKey) -> None:
    """Swap the sinks of two streams."""
    parked = rename(connection, one, f"{one.sink} aside")
    rename(connection, other, one.sink)
    rename(connection, parked, other.sink)


def bind(connection: Connection, key: StreamKey, address: str, destination_id: str | None) -> None:
    _change(connection, key, address=address, destination_id=destination_id)
    stepped(connection)


def hold(connection: Connection, key: StreamKey, reason: str, message: str) -> None:
    _change(connection, key, held=reason, last_error=message)


def release(connection: Connection, key: StreamKey) -> None:
    _change(connection, key, held=None, last_error=None, attempts=0, retry_at=None)


def forget_watermark(connection: Connection, key: StreamKey) -> None:
    """Deliver the whole stream again, except for rows that the destination reports to have."""
    _change(connection, key, watermark=None, history=NONE, exported_rows=0)
    stepped(connection)


def raise_watermark(connection: Connection, key: StreamKey, seq: int) -> None:
    known = load(connection, key)
    if known and (known.watermark is None or known.watermark < seq):
        _change(connection, key, watermark=seq)


def lower_watermarks(connection: Connection, dataset: str, floor: int) -> None:
    """Lower the watermarks to the floor, after the user gave up the rows above it. Their sequences are not reused."""
    lower = and_(_streams.c.dataset == dataset, _streams.c.watermark > floor)
    connection.execute(update(_streams).where(lower).values(watermark=floor, updated_at=now()))
    # Intents end there too; otherwise they would raise the watermarks above the rows in the lake.
    planned, chunks = tables.intents, tables.chunks
    connection.execute(
        update(planned).where(planned.c.dataset == dataset, planned.c.seq_last > floor).values(seq_last=floor)
    )
    connection.execute(delete(chunks).where(chunks.c.dataset == dataset, chunks.c.seq_after >= floor))
    stepped(connection)


def succeeded(connection: Connection, key: StreamKey) -> None:
    _change(connection, key, attempts=0, retry_at=None, last_error=None, held=None, last_success_at=now())


def failed(connection: Connection, key: StreamKey, error: str, retry_at: datetime | None, attempts: int) -> None:
    _change(connection, key, last_error=error, attempts=attempts, retry_at=retry_at.isoformat() if retry_at else None)


def add_exported(connection: Connection, key: StreamKey, rows: int) -> None:
    connection.execute(
        update(_streams)
        .where(of(_streams, key))
        .values(exported_rows=_streams.c.exported_rows + rows, updated_at=now())
    )


def lost_memory(connection: Connection) -> None:
    """Record that an earlier state has sent rows that are unknown to this one."""
    if not is_memory_lost(connection):
        connection.execute(insert(_meta).values(key=_LOST, value=now()))


def is_memory_lost(connection: Connection) -> bool:
    return _value(connection, _LOST) is not None


def step(connection: Connection) -> int:
    """Return a number that increases with every change that must be in the mirror before a byte is sent."""
    return int(_value(connection, _STEP) or 0)


def stepped(connection: Connection, at_least: int = 0) -> None:
    following = max(step(connection) + 1, at_least)
    connection.execute(delete(_meta).where(_meta.c.key == _STEP))
    connection.execute(insert(_meta).values(key=_STEP, value=str(following)))


def of(table: Table, key: StreamKey) -> ColumnElement[bool]:
    return and_(table.c.sink == key.sink, table.c.dataset == key.dataset, table.c.source == key.source)


def now() -> str:
    return datetime.now(UTC).isoformat()


def key_columns(key: StreamKey) -> dict[str, str]:
    return {"sink": key.sink, "dataset": key.dataset, "source": key.source}


def _change(connection: Connection, key: StreamKey, **values: object) -> None:
    connection.execute(update(_streams).where(of(_streams, key)).values(**values, updated_at=now()))


def _value(connection: Connection, key: str) -> str | None:
    found: str | None = connection.execute(select(_meta.c.value).where(_meta.c.key == key)).scalar()
    return found


def _stream(row: Any) -> Stream:
    return Stream(
        key=StreamKey(row.sink, row.dataset, row.source),
        address=row.address,
        destination_id=row.destination_id,
        watermark=row.watermark,
        history=row.history,
        exported_rows=row.exported_rows,
        held=row.held,
        attempts=row.attempts,
        retry_at=_time(row.retry_at),
        last_error=row.last_error,
        last_success_at=_time(row.last_success_at),
        updated_at=_time(row.updated_at),
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
