"""The Iceberg sink. Steps for one chunk: check the delivery record · write Parquet files · upload · commit · fsync.

The delivery record in the table decides whether a chunk has arrived. It changes together with the rows, so it stays
exact after snapshots expire, rows are compacted, or the destination's owner deletes rows. If the record is missing, the
rows decide: with none in the range, the chunk has not arrived; with some, `has_chunk` cannot know whether all of them
have (None), and `ship`, which has the rows, compares. Neither looks at snapshots, which expire. Of a disputed chunk,
rows that the table has under another incarnation are left out, by their dedupe keys.

A table belongs to one dataset. Its id is Iceberg's UUID: a table that is dropped and created again is another
destination.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.export.sink import (
    Chunk,
    ChunkLimits,
    Destination,
    DestinationBusy,
    DestinationDenied,
    DestinationUnreachable,
    Payload,
    RangeOverlap,
    Sink,
    SinkSettings,
    SparkRunner,
    StreamCoverage,
    TablePayload,
)
from hypaware.export.sinks.iceberg import data_files, java_errors, read_catalog_settings, table_address
from hypaware.export.sinks.iceberg.data_files import PartitionFile
from hypaware.export.sinks.iceberg.iceberg_table import CommitConflict, DeliveryRecord, IcebergTable, open_table
from hypaware.model import datasets
from hypaware.model.datasets import SEQ
from hypaware.state.streams import StreamKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_ATTEMPTS = 5


class IcebergSink(Sink):
    limits = ChunkLimits(rows=50_000, bytes=64 << 20)
    wants_sequence = True

    def __init__(self, settings: SinkSettings) -> None:
        if settings.on_spark is None:
            raise ValueError("the Iceberg sink runs only inside an engine")
        self._on_spark: SparkRunner = settings.on_spark
        self._settings = settings
        self._address = table_address(settings)
        self._opened: IcebergTable | None = None

    async def open(self) -> Destination:
        (dataset,) = self._settings.datasets
        name = str(self._settings.options["table"])
        if "." not in name.strip("."):
            raise DestinationDenied(
                f"the sink's table is {name}: add its namespace, as in team.{name}",
                kind="destination_misconfigured",
                repair="hyp config show",
            )
        found = read_catalog_settings(self._settings.options)

        def work(spark: SparkSession) -> str:
            if self._opened is None:
                self._opened = open_table(spark, found, name, datasets.get(dataset))
            self._opened.fsync_commit()
            return self._opened.uuid

        return Destination(self._address, await self._run(work))

    async def has_chunk(self, chunk: Chunk) -> bool | None:
        def work(_spark: SparkSession) -> bool | None:
            known = self._table.read_record(chunk)
            if known and known.covers(chunk.after, chunk.last):
                self._table.fsync_commit()
                return True
            return None if self._table.find_sequences(chunk) else False

        return await self._run(work)

    async def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> StreamCoverage:
        return await self._run(lambda _spark: self._table.coverage(stream, gateway_id, incarnation))

    def drops_known_rows(self) -> bool:
        return True

    def encode(self, rows: pa.Table) -> Payload:
        return TablePayload(rows)

    async def ship(self, chunk: Chunk, payload: Payload, acked_to: int) -> int:
        assert isinstance(payload, TablePayload)
        rows, table = payload.table, self._table
        if chunk.is_disputed:
            known = await self._run(lambda _spark: table.find_known(chunk, rows))
            rows = rows.filter(pc.invert(pc.is_in(rows.column(SEQ), pa.array(sorted(known), pa.int64()))))
        built = await asyncio.to_thread(data_files.write_data_files, rows, chunk, table.shape, table.scratch)
        started = False

        def work(_spark: SparkSession) -> int:
            nonlocal started
            started = True
            try:
                return self._append(chunk, built, set(rows.column(SEQ).to_pylist()))
            finally:
                data_files.delete_data_files(built)

        try:
            return await self._run(work)
        finally:
            # Cancelled before it started. Once started, the work runs to its end and needs the files.
            if not started:
                data_files.delete_data_files(built)

    async def close(self) -> None:
        if self._opened is not None:
            table, self._opened = self._opened, None
            # Delivered chunks are durable, so a failure to close does not matter.
            with suppress(DestinationDenied, DestinationBusy, DestinationUnreachable):
                await self._run(lambda _spark: table.close())

    def _append(self, chunk: Chunk, built: Sequence[PartitionFile], seqs: set[int]) -> int:
        """Commit the chunk. Returns the bytes stored, 0 if the table had the chunk already."""
        table = self._table
        files: list[Any] = []
        for _ in range(_ATTEMPTS):
            known = self._find_record(chunk, seqs)
            if known is None:
                table.discard(files)
                table.fsync_commit()
                return 0
            files = files or table.upload(built)
            try:
                table.commit(chunk, files, known)
            except CommitConflict:
                continue
            except Exception as error:
                self._check_commit(chunk, files, error)
            table.fsync_commit()
            return sum(part.bytes for part in built)
        table.discard(files)
        raise DestinationBusy(f"{self._address}: another engine is delivering the same rows")

    def _check_commit(self, chunk: Chunk, files: Sequence[Any], error: Exception) -> None:
        """Raise the error of a commit unless the commit succeeded nevertheless, before the error was raised."""
        try:
            known = self._table.read_record(chunk)
        except Exception:
            raise error from None
        if known and known.covers(chunk.after, chunk.last):
            return
        if java_errors.is_iceberg_error(error, "CommitFailedException"):
            self._table.discard(files)
        # Otherwise it may still be in progress: its files are left to the destination's orphan cleanup.
        raise error

    def _find_record(self, chunk: Chunk, seqs: set[int]) -> DeliveryRecord | None:
        """Return the stream's record before this chunk; None if the table has the chunk. RangeOverlap for a part."""
        known = self._table.read_record(chunk) or DeliveryRecord()
        if known.covers(chunk.after, chunk.last) and not chunk.is_fresh:
            return None
        if known.overlaps(chunk.after, chunk.last):
            raise RangeOverlap(known.coverage)
        stored = self._table.find_sequences(chunk)
        if stored and (chunk.is_fresh or not seqs <= stored):
            missing = [seq for seq in sorted(seqs - stored) if seq < max(stored)]
            raise RangeOverlap(StreamCoverage(max(stored), tuple((seq - 1, seq) for seq in missing)))
        return None if stored else known

    @property
    def _table(self) -> IcebergTable:
        assert self._opened is not None, "call open() first"
        return self._opened

    async def _run(self, work: Callable[[SparkSession], T]) -> T:
        with java_errors.translate_java_errors(self._address):
            return await self._on_spark(work)
