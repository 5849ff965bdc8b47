"""Streams: how far each (sink, dataset, source) has been delivered, and to whom.

`watermark` is None while nobody knows it; `history` then says why: `none` (nothing was ever sent, as far as this
state goes back) or `lost` (an earlier state may have sent some). A held stream waits for its user.
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
# Why a stream waits for its user: its sink points elsewhere now, nobody knows what was delivered, or a chunk may have
# arrived and is refused now.
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
    """A stream that this state has never seen; the one of a sink that was only renamed is taken over instead."""
    history = LOST if is_memory_lost(connection) else NONE
    values = {"address": address, "history": history, "exported_rows": 0, "attempts": 0, "updated_at": now()}
    connection.execute(insert(_streams).values(**_of(key), **values))
    found = load(connection, key)
    assert found is not None
    return found


def restore(connection: Connection, stream: Stream) -> None:
    """As the side file remembers it."""
    forget(connection, stream.key)
    connection.execute(
        insert(_streams).values(
            **_of(stream.key),
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
    """The sink has another name in the config now: the stream, its plan and its dead letters go with it.

    Chunks keep their ids: what may have arrived under one must be asked for under the same.
    """
    for table in (_streams, tables.intents, tables.chunks, tables.dead_letters):
        connection.execute(update(table).where(of(table, key)).values(sink=sink))
    stepped(connection)
    return StreamKey(sink, key.dataset, key.source)


def exchange(connection: Connection, one: StreamKey, other: StreamKey) -> None:
    """Each gets the name of the other's sink."""
    aside = rename(connection, one, f"{one.sink} aside")
    rename(connection, other, one.sink)
    rename(connection, aside, other.sink)


def bind(connection: Connection, key: StreamKey, address: str, destination_id: str | None) -> None:
    _change(connection, key, address=address, destination_id=destination_id)
    stepped(connection)


def hold(connection: Connection, key: StreamKey, why: str, message: str) -> None:
    _change(connection, key, held=why, last_error=message)


def release(connection: Connection, key: StreamKey) -> None:
    _change(connection, key, held=None, last_error=None, attempts=0, retry_at=None)


def forget_watermark(connection: Connection, key: StreamKey) -> None:
    """All of it shall go again; a destination that can be asked still says what it has."""
    _change(connection, key, watermark=None, history=NONE, exported_rows=0)
    stepped(connection)


def raise_watermark(connection: Connection, key: StreamKey, seq: int) -> None:
    known = load(connection, key)
    if known and (known.watermark is None or known.watermark < seq):
        _change(connection, key, watermark=seq)


def lower_watermarks(connection: Connection, dataset: str, floor: int) -> None:
    """The user has given up the rows above the floor, and their sequences are never given out again."""
    lower = and_(_streams.c.dataset == dataset, _streams.c.watermark > floor)
    connection.execute(update(_streams).where(lower).values(watermark=floor, updated_at=now()))
    # Plans end there too, else they would raise the watermarks again, above what the lake has.
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
    """An earlier state has sent rows, and nobody remembers which."""
    if not is_memory_lost(connection):
        connection.execute(insert(_meta).values(key=_LOST, value=now()))


def is_memory_lost(connection: Connection) -> bool:
    return _value(connection, _LOST) is not None


def step(connection: Connection) -> int:
    """Grows with everything that the side file must know before the first byte leaves."""
    return int(_value(connection, _STEP) or 0)


def stepped(connection: Connection, at_least: int = 0) -> None:
    following = max(step(connection) + 1, at_least)
    connection.execute(delete(_meta).where(_meta.c.key == _STEP))
    connection.execute(insert(_meta).values(key=_STEP, value=str(following)))


def of(table: Table, key: StreamKey) -> ColumnElement[bool]:
    return and_(table.c.sink == key.sink, table.c.dataset == key.dataset, table.c.source == key.source)


def now() -> str:
    return datetime.now(UTC).isoformat()


def _of(key: StreamKey) -> dict[str, str]:
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
