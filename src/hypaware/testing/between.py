"""What goes wrong between a driver and any sink: files say how often, so that it outlives a killed process.

`lose_answer` (it arrived, the answer did not), `cut` (nothing arrived), `busy`, and `refuse`: message ids, one a line.
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

_FEW = 3


class Between:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def set(self, kind: str, value: str | int) -> None:
        (self._folder / kind).write_text(str(value))

    def clear(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()

    def happens(self, kind: str) -> bool:
        """Once less from now on."""
        path = self._folder / kind
        left = int(path.read_text()) if path.exists() else 0
        if left:
            path.write_text(str(left - 1))
        return left > 0

    def refused(self) -> list[str]:
        path = self._folder / "refuse"
        return path.read_text().split("\n") if path.exists() else []


class _Marked:
    """A payload that still knows which messages it holds."""

    def __init__(self, payload: Payload, messages: list[str]) -> None:
        self.payload = payload
        self.messages = messages

    @property
    def sizes(self) -> list[int]:
        return list(self.payload.sizes)

    def part(self, start: int, stop: int) -> _Marked:
        return _Marked(self.payload.part(start, stop), self.messages[start:stop])


class _FaultySink(Sink):
    """Chunks of a few rows, so that a small lake makes many."""

    def __init__(self, sink: Sink, faults: Between) -> None:
        self._sink = sink
        self._faults = faults
        self.wants_sequence = sink.wants_sequence

    async def open(self) -> Destination:
        found = await self._sink.open()
        self.limits = Limits(min(_FEW, self._sink.limits.rows), self._sink.limits.bytes)
        return found

    async def landed(self, chunk: Chunk) -> bool | None:
        return await self._sink.landed(chunk)

    async def delivered(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered | None:
        return await self._sink.delivered(stream, gateway_id, incarnation)

    def encode(self, rows: pa.Table) -> Payload:
        return _Marked(self._sink.encode(rows), rows.column("message_id").to_pylist())

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        assert isinstance(payload, _Marked)
        if self._faults.happens("busy"):
            raise Busy("asked to wait", 0.001)
        if self._faults.happens("cut"):
            raise Unreachable("the connection was cut")
        if bad := set(self._faults.refused()) & set(payload.messages):
            raise Refused(f"{min(bad)} is not taken")
        sent = await self._sink.ship(chunk, payload.payload, acked_to)
        if self._faults.happens("lose_answer"):
            raise Unreachable("the answer was lost")
        return sent

    async def close(self) -> None:
        await self._sink.close()


def wrapped(kind: SinkType, faults: Path) -> SinkType:
    """The kind, with those faults between it and its driver."""

    def make(settings: SinkSettings) -> Sink:
        return _FaultySink(kind.make(settings), Between(faults))

    return replace(kind, make=make)
