"""Fault injection for tests: a registered kind of sink with faults, and a child process that a crash point may kill.

Faults occur between the driver and any sink: `lose_answer` (the chunk is stored, the response is lost), `cut` (nothing
is stored), `busy`, and `refuse`: message ids, one per line. Files hold the counters, so that they survive a killed
process.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from hypaware import faults
from hypaware.export.sink import (
    Chunk,
    ChunkLimits,
    ChunkRefused,
    Destination,
    DestinationBusy,
    DestinationUnreachable,
    Payload,
    Sink,
    SinkType,
    StreamCoverage,
)
from hypaware.export.sink_registry import sink_kinds
from hypaware.state.streams import StreamKey

_CHUNK_ROWS = 3


@contextmanager
def register_kind(kind: SinkType) -> Iterator[None]:
    """Register a kind in this process, or replace the one of that name, within the context: for tests of sinks."""
    before = dict(sink_kinds())
    sink_kinds()[kind.name] = kind
    try:
        yield
    finally:
        sink_kinds().clear()
        sink_kinds().update(before)


def wrap_kind(kind: SinkType, faults: Path) -> SinkType:
    """Return the kind with the faults of that folder injected between each sink and its driver."""
    return replace(kind, make=lambda settings: _FaultySink(kind.make(settings), Faults(faults)))


class Faults:
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

    @contextmanager
    def around_send(self) -> Iterator[None]:
        if self.occurs("busy"):
            raise DestinationBusy("asked to wait", 0.001)
        if self.occurs("cut"):
            raise DestinationUnreachable("the connection was cut")
        yield
        if self.occurs("lose_answer"):
            raise DestinationUnreachable("the response was lost")

    def has_stored(self, chunk_id: str) -> bool:
        return (self._folder / f"stored-{chunk_id}").exists()

    def note_stored(self, chunk_id: str) -> None:
        (self._folder / f"stored-{chunk_id}").touch()

    def refuse(self, messages: list[str]) -> None:
        path = self._folder / "refuse"
        if path.exists() and (bad := set(path.read_text().split("\n")) & set(messages)):
            raise ChunkRefused(f"{min(bad)} is refused")


class _FaultySink(Sink):
    """A sink with injected faults. Its chunks hold few rows, so that a small lake gives many of them."""

    def __init__(self, sink: Sink, faults: Faults) -> None:
        self._sink = sink
        self._faults = faults
        self.wants_sequence = sink.wants_sequence
        self.keeps_ids = sink.keeps_ids

    async def open(self) -> Destination:
        found = await self._sink.open()
        self.limits = ChunkLimits(min(_CHUNK_ROWS, self._sink.limits.rows), self._sink.limits.bytes)
        return found

    async def has_chunk(self, chunk: Chunk) -> bool | None:
        return await self._sink.has_chunk(chunk)

    async def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> StreamCoverage | None:
        return await self._sink.coverage(stream, gateway_id, incarnation)

    async def highest(self, stream: StreamKey, gateway_id: str, incarnation: str, above: int) -> int | None:
        return await self._sink.highest(stream, gateway_id, incarnation, above)

    def drops_known_rows(self) -> bool:
        return self._sink.drops_known_rows()

    def encode(self, rows: pa.Table) -> Payload:
        return _MarkedPayload(self._sink.encode(rows), rows.column("message_id").to_pylist())

    def pack(self, payload: Payload) -> Payload:
        assert isinstance(payload, _MarkedPayload)
        return _MarkedPayload(self._sink.pack(payload.payload), payload.messages)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        assert isinstance(payload, _MarkedPayload)
        with self._faults.around_send():
            if not (self.keeps_ids and self._faults.has_stored(chunk.id)):
                self._faults.refuse(payload.messages)
            sent = await self._sink.ship(chunk, payload.payload, acked_to)
            self._faults.note_stored(chunk.id)
            return sent

    async def close(self) -> None:
        await self._sink.close()


class _MarkedPayload:
    """A payload together with the message ids of its rows."""

    def __init__(self, payload: Payload, messages: list[str]) -> None:
        self.payload = payload
        self.messages = messages

    @property
    def sizes(self) -> list[int]:
        return list(self.payload.sizes)

    def slice(self, start: int, stop: int) -> _MarkedPayload:
        return _MarkedPayload(self.payload.slice(start, stop), self.messages[start:stop])


def run_in_child(work: Callable[[], object], crash_at: str | None = None) -> bool:
    """Run the work in a forked child, optionally killed at a crash point.

    Returns True if the child finished and False if it was killed by SIGKILL; fails on any other exit.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            with faults.arm(crash_at):
                work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(70)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), f"the child exited with {code}"
    return code == 0
