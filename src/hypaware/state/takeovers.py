"""Watermarks of rows that a takeover imports, which another program has already delivered.

Like the checkpoints of sources, they are pending while their flush runs and become valid when it is recorded, together
with its rows. If the flush is not committed, they are discarded.
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
    """The destination at this address has everything of the stream up to `seq`."""

    key: StreamKey
    address: str
    seq: int


def pend(connection: Connection, flush_id: str, watermarks: Iterable[Raised]) -> None:
    """Store the watermarks that become valid when the flush is committed."""
    values = [
        {**asdict(each.key), "flush_id": flush_id, "address": each.address, "watermark": each.seq}
        for each in watermarks
    ]
    if values:
        connection.execute(insert(_pending), values)


def promote(connection: Connection, flush_id: str) -> None:
    """Apply the watermarks of a committed flush. A watermark is only raised."""
    for row in connection.execute(select(_pending).where(_pending.c.flush_id == flush_id)).all():
        key = StreamKey(row.sink, row.dataset, row.source)
        if streams.load(connection, key) is None:
            streams.create(connection, key, row.address)
        streams.raise_watermark(connection, key, row.watermark)
        streams.stepped(connection)
    discard(connection, flush_id)


def discard(connection: Connection, flush_id: str) -> None:
    connection.execute(delete(_pending).where(_pending.c.flush_id == flush_id))
