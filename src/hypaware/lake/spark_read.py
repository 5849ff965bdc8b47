"""Read the public columns of a dataset through Spark: all rows, or those after a sequence.

A read covers the sequences `(since, until]`, in order, with an optional source as partition filter, and is pruned by
file and row-group statistics. Rows without a sequence (of an adopted table) come first, and only if requested. A page
covers a bounded window of sequences, so neither side holds more than one page.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.iceberg import metadata
from hypaware.lake import read, schema
from hypaware.model import datasets
from hypaware.model.datasets import SEQ, SOURCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hypaware.engine.jobs import JobContext

_PAGE_ROWS = 50_000
# Compressed size on disk; rows in memory take several times as much.
_PAGE_BYTES = 4 << 20
_BATCH_ROWS = 5_000
_MAX_SEQUENCE = 2**63 - 1


@dataclass(frozen=True)
class ReadRange:
    dataset: str
    source: str | None = None
    since: int = 0
    until: int | None = None
    include_legacy: bool = False


def emit_page(context: JobContext, wanted: ReadRange) -> dict[str, Any]:
    """Emit the first window of a range as Arrow IPC. Return `{rows, next}`; `next` is None at the end."""
    from hypaware.lake.spark_table import SparkTable

    spark = context.spark
    if not schema.table_exists(spark, datasets.get(wanted.dataset).name):
        return {"rows": 0, "next": None}
    known = SparkTable(spark, datasets.get(wanted.dataset)).metadata
    files = [file for file in metadata.iter_cached_files(known) if wanted.source in (None, file.source)]
    # A table has no rows above its floor.
    last = min(known.floor, wanted.until if wanted.until is not None else _MAX_SEQUENCE)
    since = wanted.since
    while True:
        end = read.find_window_end(files, since, last, rows=_PAGE_ROWS, bytes=_PAGE_BYTES)
        found = read_rows(spark, replace(wanted, since=since, until=end))
        if found.num_rows or end >= last:
            _emit_table(context, found)
            return {"rows": found.num_rows, "next": end if end < last else None}
        since = end


def read_rows(spark: SparkSession, wanted: ReadRange) -> pa.Table:
    """Return the rows of a range, ordered by sequence, which is the first column. Legacy rows come first."""
    from pyspark.sql import functions as F

    rows = spark.table(schema.full_table_name(wanted.dataset))
    if wanted.source is not None:
        rows = rows.where(F.col(SOURCE) == F.lit(wanted.source))
    in_range = F.col(SEQ) > F.lit(wanted.since)
    if wanted.until is not None:
        in_range &= F.col(SEQ) <= F.lit(wanted.until)
    if wanted.include_legacy:
        in_range |= F.col(SEQ).isNull()
    public = [column.name for column in datasets.get(wanted.dataset).columns]
    # A window is small. Sorting it here saves a shuffle, for which Spark would read the files twice.
    found = rows.where(in_range).select(SEQ, *public).toArrow()
    return found.take(pc.sort_indices(pc.fill_null(found.column(SEQ), -1)))


def decode_page(chunks: bytes) -> Iterator[tuple[dict[str, Any], int | None]]:
    """Yield (row, sequence) of a page that `emit_page` emitted."""
    if chunks:
        with pa.ipc.open_stream(chunks) as reader:
            for batch in reader:
                for row in batch.to_pylist():
                    yield row, row.pop(SEQ)


def _emit_table(context: JobContext, table: pa.Table) -> None:
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            writer.write_batch(batch)
            context.emit(buffer.getvalue())
            buffer.seek(0)
            buffer.truncate()
    context.emit(buffer.getvalue())
