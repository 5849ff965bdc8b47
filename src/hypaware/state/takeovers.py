"""How far rows that are being taken over were delivered before they came here.

Pending while their flush is under way, like the marks of its sources (`sources`): rows and watermarks come to be
together, when the flush is recorded, by whoever records it. A flush that did not land leaves neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, insert, select

from hypaware.state import streams, tables
from hypaware.state.stream_key import StreamKey

_pending = tables.pending_watermarks


@dataclass(frozen=True)
class Raised:
    """The stream has everything up to `seq` at this address."""

    key: StreamKey
    address: str
    seq: int


def pend(connection: Connection, flush_id: str, raised: Iterable[Raised]) -> None:
    """What will be true of the streams, if the flush lands."""
    values = [
        {**asdict(each.key), "flush_id": flush_id, "address": each.address, "watermark": each.seq} for each in raised
    ]
    if values:
        connection.execute(insert(_pending), values)


def promote(connection: Connection, flush_id: str) -> None:
    """The flush landed: the streams go on from there. Their watermarks only rise."""
    for row in connection.execute(select(_pending).where(_pending.c.flush_id == flush_id)).all():
        key = StreamKey(row.sink, row.dataset, row.source)
        if streams.load(connection, key) is None:
            streams.create(connection, key, row.address)
        streams.raise_watermark(connection, key, row.watermark)
        streams.stepped(connection)
    discard(connection, flush_id)


def discard(connection: Connection, flush_id: str) -> None:
    connection.execute(delete(_pending).where(_pending.c.flush_id == flush_id))
