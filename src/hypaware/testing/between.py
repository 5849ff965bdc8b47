"""Inject faults between the driver and any sink. Files hold the fault counters, so that they survive a killed process.

Faults: `lose_answer` (the chunk is stored, the response is lost), `cut` (nothing is stored), `busy`, and `refuse`:
message ids, one per line.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hypaware.export.sink import (
    Busy,
    Chunk,
    Delivered,
    Destination,
    Limits,
    Refused,
    Sink,
    SinkSettings,
    SinkType,
    Unreachable,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from hypaware.export.payload import Payload
    from hypaware.state.stream_key import StreamKey

_CHUNK_ROWS = 3


class Between:
    """The faults to inject, as files in a folder: each holds how often its fault still occurs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def set(self, kind: str, value: str | int) -> None:
        (self._folder / kind).write_text(str(value))

    def clear(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()

    def occurs(self, kind: str) -> bool:
        """Return whether the fault occurs now, and count it down."""
        path = self._folder / kind
        left = int(path.read_text()) if path.exists() else 0
        if left:
            path.write_text(str(left - 1))
        return left > 0

    def refused_ids(self) -> frozenset[str]:
        path = self._folder / "refuse"
        return frozenset(path.read_text().split("\n")) if path.exists() else frozenset()


class _Marked:
    """A payload together with the message ids of its rows."""

    def __init__(self, payload: Payload, messages: list[str]) -> None:
        self.payload = payload
        self.messages = messages

    @property
    def sizes(self) -> list[int]:
        return list(self.payload.sizes)

    def slice(self, start: int, stop: int) -> _Marked:
        return _Marked(self.payload.slice(start, stop), self.messages[start:stop])


class _FaultySink(Sink):
    """A sink with injected faults. Its chunks hold few rows, so that a small lake gives many of them."""

    def __init__(self, sink: Sink, faults: Between) -> None:
        self._sink = sink
        self._faults = faults
        self.wants_sequence = sink.wants_sequence

    async def open(self) -> Destination:
        found = await self._sink.open()
        self.limits = Limits(min(_CHUNK_ROWS, self._sink.limits.rows), self._sink.limits.bytes)
        return found

    async def has_chunk(self, chunk: Chunk) -> bool | None:
        return await self._sink.has_chunk(chunk)

    async def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered | None:
        return await self._sink.coverage(stream, gateway_id, incarnation)

    def encode(self, rows: pa.Table) -> Payload:
        return _Marked(self._sink.encode(rows), rows.column("message_id").to_pylist())

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        assert isinstance(payload, _Marked)
        if self._faults.occurs("busy"):
            raise Busy("asked to wait", 0.001)
        if self._faults.occurs("cut"):
            raise Unreachable("the connection was cut")
        if bad := self._faults.refused_ids() & set(payload.messages):
            raise Refused(f"{min(bad)} is refused")
        sent = await self._sink.ship(chunk, payload.payload, acked_to)
        if self._faults.occurs("lose_answer"):
            raise Unreachable("the response was lost")
        return sent

    async def close(self) -> None:
        await self._sink.close()


def wrapped(kind: SinkType, faults: Path) -> SinkType:
    """Return the kind with the faults of that folder injected between each sink and its driver."""

    def make(settings: SinkSettings) -> Sink:
        return _FaultySink(kind.make(settings), Between(faults))

    return replace(kind, make=make)
