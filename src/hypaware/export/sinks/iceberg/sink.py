"""The Iceberg sink. One chunk, step by step: what is there already? · build · store the files · commit · secure.

Whether a chunk landed is told by the record in the table, which moves with the rows: exact, also when snapshots have
expired, rows were compacted, or were deleted by the destination's owner. Where the record is gone the rows tell: none
in the range, it did not land; some, then `landed` cannot say whether all (None), and `ship`, which has the rows at
hand, compares. Neither looks at snapshots, which expire.

A table belongs to one dataset, and its id is Iceberg's: dropped and made anew, it is another destination.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from hypaware.export.payload import Payload, Rows
from hypaware.export.sink import (
    Busy,
    Chunk,
    Delivered,
    Denied,
    Destination,
    Limits,
    OnSpark,
    Overlap,
    Sink,
    SinkSettings,
    Unreachable,
)
from hypaware.export.sinks.iceberg import catalog, parts, record, troubles
from hypaware.export.sinks.iceberg.opening import open_table
from hypaware.export.sinks.iceberg.parts import Part
from hypaware.export.sinks.iceberg.record import Record
from hypaware.export.sinks.iceberg.table import Conflict, IcebergTable
from hypaware.model import datasets
from hypaware.model.datasets import SEQ
from hypaware.state.stream_key import StreamKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_TRIES = 5


class IcebergSink(Sink):
    limits = Limits(rows=50_000, bytes=64 << 20)
    wants_sequence = True

    def __init__(self, settings: SinkSettings) -> None:
        if settings.on_spark is None:
            raise ValueError("the Iceberg sink runs inside an engine")
        self._on_spark: OnSpark = settings.on_spark
        self._settings = settings
        self._address = catalog.address_of(settings)
        self._opened: IcebergTable | None = None

    async def open(self) -> Destination:
        (dataset,) = self._settings.datasets
        name = str(self._settings.options["table"])
        if "." not in name.strip("."):
            raise Denied(
                f"the sink's table is {name}: write it with its namespace, as in team.{name}",
                kind="destination_misconfigured",
                repair="hyp config show",
            )
        found = catalog.settings_of(self._settings.options)

        def work(spark: SparkSession) -> str:
            if self._opened is None:
                self._opened = open_table(spark, found, name, datasets.get(dataset))
            self._opened.secure()
            return self._opened.uuid

        return Destination(self._address, await self._told(work))

    async def landed(self, chunk: Chunk) -> bool | None:
        def work(_spark: SparkSession) -> bool | None:
            table = self._fresh()
            known = table.record_of(record.chunk_key(chunk))
            if known and known.covers(chunk.after, chunk.last):
                table.secure()
                return True
            return None if table.sequences(chunk) else False

        return await self._told(work)

    async def delivered(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered:
        return await self._told(lambda _spark: self._fresh().delivered(stream, gateway_id, incarnation))

    def encode(self, rows: pa.Table) -> Payload:
        return Rows(rows)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        assert isinstance(payload, Rows)
        rows, table = payload.table, self._table
        built = await asyncio.to_thread(parts.build, rows, chunk, table.shape, table.scratch)
        began = False

        def work(_spark: SparkSession) -> int:
            nonlocal began
            began = True
            try:
                return self._append(chunk, built, set(rows.column(SEQ).to_pylist()))
            finally:
                parts.discard(built)

        try:
            return await self._told(work)
        finally:
            # Cancelled before its turn; in its turn the work goes on to its end, and needs them.
            if not began:
                parts.discard(built)

    async def close(self) -> None:
        if self._opened is not None:
            table, self._opened = self._opened, None
            # What was shipped is durable; a destination that is gone needs no farewell.
            with suppress(Denied, Busy, Unreachable):
                await self._told(lambda _spark: table.close())

    def _append(self, chunk: Chunk, built: Sequence[Part], seqs: set[int]) -> int:
        """The bytes that were stored: none where all of it was there."""
        table = self._table
        files: list[Any] = []
        for _ in range(_TRIES):
            known = self._standing(chunk, seqs)
            if known is None:
                table.discard(files)
                table.secure()
                return 0
            files = files or table.upload(built)
            try:
                table.commit(chunk, files, known)
            except Conflict:
                continue
            except Exception as error:
                self._settle(chunk, files, error)
            table.secure()
            return sum(part.bytes for part in built)
        table.discard(files)
        raise Busy(f"{self._address}: another engine is delivering the same rows")

    def _settle(self, chunk: Chunk, files: Sequence[Any], error: Exception) -> None:
        """An exception is no answer: the commit may have landed before it was raised. Raises it if it did not."""
        try:
            known = self._fresh().record_of(record.chunk_key(chunk))
        except Exception:
            raise error from None
        if known and known.covers(chunk.after, chunk.last):
            return
        if troubles.is_a(error, "CommitFailedException"):
            self._table.discard(files)
        # Else it may still be under way: its files are the destination's to clean up.
        raise error

    def _standing(self, chunk: Chunk, seqs: set[int]) -> Record | None:
        """What the stream's record says before this chunk; None if all of it is there. Overlap if some of it is."""
        table = self._fresh()
        known = table.record_of(record.chunk_key(chunk)) or Record()
        if known.covers(chunk.after, chunk.last):
            return None
        if known.touches(chunk.after, chunk.last):
            raise Overlap(known.delivered)
        there = table.sequences(chunk)
        if there and not seqs <= there:
            missing = [seq for seq in sorted(seqs - there) if seq < max(there)]
            raise Overlap(Delivered(max(there), tuple((seq - 1, seq) for seq in missing)))
        return None if there else known

    @property
    def _table(self) -> IcebergTable:
        assert self._opened is not None, "open() comes first"
        return self._opened

    def _fresh(self) -> IcebergTable:
        """As it is now; another catalog's cache or an earlier look may be old."""
        self._table.refresh()
        return self._table

    async def _told(self, work: Callable[[SparkSession], T]) -> T:
        with troubles.told(self._address):
            return await self._on_spark(work)
