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

from hypaware.lake import metadata, tables, windows
from hypaware.model import datasets
from hypaware.model.datasets import SEQ, SOURCE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from hypaware.engine.jobs import JobContext

_PAGE_ROWS = 50_000
# Compressed size on disk; rows in memory take several times as much.
_PAGE_BYTES = 4 << 20
_BATCH_ROWS = 5_000
_FAR = 2**63 - 1


@dataclass(frozen=True)
class Range:
    dataset: str
    source: str | None = None
    since: int = 0
    until: int | None = None
    include_legacy: bool = False


def page(context: JobContext, wanted: Range) -> dict[str, Any]:
    """Emit the first window of a range as Arrow IPC. Return `{rows, next}`; `next` is None at the end."""
    from hypaware.lake.spark_table import SparkTable

    spark = context.spark
    if not tables.exists(spark, datasets.get(wanted.dataset).name):
        return {"rows": 0, "next": None}
    known = SparkTable(spark, datasets.get(wanted.dataset)).metadata
    files = [file for file in metadata.remembered_files(known) if wanted.source in (None, file.source)]
    # A table has no rows above its floor.
    last = min(known.floor, wanted.until if wanted.until is not None else _FAR)
    since = wanted.since
    while True:
        end = windows.next_end(files, since, last, rows=_PAGE_ROWS, bytes=_PAGE_BYTES)
        found = rows_since(spark, replace(wanted, since=since, until=end))
        if found.num_rows or end >= last:
            _emit(context, found)
            return {"rows": found.num_rows, "next": end if end < last else None}
        since = end


def rows_since(spark: SparkSession, wanted: Range) -> pa.Table:
    """Return the rows of a range, ordered by sequence, which is the first column. Legacy rows come first."""
    from pyspark.sql import functions as F

    dataset = datasets.get(wanted.dataset)
    in_range = _in_range(wanted)
    if wanted.include_legacy:
        in_range |= F.col(SEQ).isNull()
    public = [column.name for column in dataset.columns]
    # A window is small. Sorting it here saves a shuffle, for which Spark would read the files twice.
    found = _of_source(spark, wanted).where(in_range).select(SEQ, *public).toArrow()
    return found.take(pc.sort_indices(pc.fill_null(found.column(SEQ), -1)))


def read_page(chunks: bytes) -> Iterator[tuple[dict[str, Any], int | None]]:
    """Yield (row, sequence) of a page that `page` emitted."""
    if chunks:
        with pa.ipc.open_stream(chunks) as reader:
            for batch in reader:
                for row in batch.to_pylist():
                    yield row, row.pop(SEQ)


def _of_source(spark: SparkSession, wanted: Range) -> DataFrame:
    from pyspark.sql import functions as F

    found = spark.table(tables.full_name(wanted.dataset))
    return found if wanted.source is None else found.where(F.col(SOURCE) == F.lit(wanted.source))


def _in_range(wanted: Range) -> Column:
    from pyspark.sql import functions as F

    inside = F.col(SEQ) > F.lit(wanted.since)
    return inside if wanted.until is None else inside & (F.col(SEQ) <= F.lit(wanted.until))


def _emit(context: JobContext, table: pa.Table) -> None:
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            writer.write_batch(batch)
            context.emit(buffer.getvalue())
            buffer.seek(0)
            buffer.truncate()
    context.emit(buffer.getvalue())
