"""Read or count the rows in a range of sequences, directly from the data files.

Manifests tell which files of a source can contain such rows, and footers tell which row groups; only those are read.
Arrow reads a row at a sixth of the cost of Spark (docs/decisions/0017). Files never change; if one is missing, another
job has rewritten the table, and the read is repeated with the newest metadata. Only a table from which another program
has deleted rows is read through Spark, which applies its delete files.

A page is a window of sequences that contains a limited number of rows and bytes. How the rows of a file or row group (a
span) are distributed over its range is unknown, but each sequence belongs to one row. So up to any end a span has at
most as many rows as there are sequences, and at most all of its rows. Stored bytes measure the cost of a read, not its
size in memory, because a text that every row repeats is stored once; so rows in memory have a limit of their own.
"""

from __future__ import annotations

import io
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.home.storage import arrow_source
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import DataFile
from hypaware.lake import health, parquet
from hypaware.lake.parquet import RowGroup
from hypaware.lake.schema import full_table_name, page_schema, table_exists
from hypaware.model import datasets
from hypaware.model.datasets import SEQ, SOURCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hypaware.engine.jobs import JobContext

_MAX_UNPACKED_BYTES = 64 << 20
_SESSION = "session_id"
PAGE_ROWS = 50_000
# Compressed size on disk. Rows in memory take several times as much, and each active stream holds two pages.
PAGE_BYTES = 8 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EMITTED_ROWS = 5_000


@dataclass(frozen=True)
class RowPage:
    """All rows in (after, reached], ordered by sequence, which is the first column."""

    rows: pa.Table
    reached: int
    scanned: int
    """Number of rows in the row groups that were read."""


class LakeRowReader:
    """The rows of a home's lake, read from its data files."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def page(self, dataset: str, source: str, after: int, until: int, most: int | None = None) -> RowPage:
        """Read the rows in (after, until], or with `most` the next rows: at most so many, limited by memory.

        Advances by at least one sequence.
        """
        # A lake that was rolled back lacks recorded rows: that must not pass for "nothing to deliver".
        health.check_floor(self._home, dataset, until)
        entry = metadata.find_table(self._home, dataset)
        while entry is not None:
            try:
                known = metadata.read_metadata(entry.metadata)
                if metadata.has_delete_files(known):
                    raise LakeError(
                        f"table {entry.name} has delete files, which another program wrote; its rows can be delivered "
                        "after a rebuild, which applies them",
                        kind="delete_files",
                        repair=f"hyp maintain {entry.name} --rebuild",
                    )
                files = [file for file in metadata.iter_cached_files(known) if file.source == source]
                end = until
                if most is not None:
                    end = find_window_end(files, after, until, rows=most, bytes=PAGE_BYTES)
                return read_files(dataset, files, after, end)
            except FileNotFoundError as missing:
                previous, entry = entry, metadata.find_table(self._home, dataset)
                if entry == previous:
                    raise LakeError(
                        f"table {dataset}: a data file is missing ({missing}); "
                        "restore a backup with hyp restore, or rebuild the table from its files",
                        kind="lake_damaged",
                        repair=f"hyp maintain {dataset} --rebuild",
                    ) from missing
        return read_files(dataset, [], after, until)

    def count(self, dataset: str, source: str, after: int, last: int) -> int:
        return count_rows_between(self._home, dataset, source, after, last)


def read_files(dataset: str, files: list[DataFile], after: int, last: int, include_legacy: bool = False) -> RowPage:
    """Read the rows of a range. With `include_legacy`, rows without a sequence come first."""
    schema = page_schema(datasets.get(dataset))
    parts, scanned = [schema.empty_table()], 0

    def is_due(rows: DataFile | RowGroup) -> bool:
        return (rows.sequenced > 0 and _may_hold(rows, after, last)) or (include_legacy and _may_hold_legacy(rows))

    for file in filter(is_due, files):
        if groups := [group.index for group in parquet.read_row_groups(file.path) if is_due(group)]:
            with pq.ParquetFile(arrow_source(file.path)) as source_file:
                names = set(source_file.schema_arrow.names)
                rows = source_file.read_row_groups(groups, columns=[name for name in schema.names if name in names])
            part = parquet.conform_rows(rows, schema)
            scanned += len(part)
            seqs = part.column(SEQ)
            in_range = pc.and_(pc.greater(seqs, after), pc.less_equal(seqs, last))
            parts.append(part.filter(pc.fill_null(in_range, include_legacy)))
    found = pa.concat_tables(parts)
    return RowPage(_sort_rows(found), last, scanned)


def _sort_rows(rows: pa.Table) -> pa.Table:
    """Sort rows by sequence. Rows without one come first."""
    return rows.take(pc.sort_indices(pc.fill_null(rows.column(SEQ), -1)))


def _may_hold(rows: DataFile | RowGroup, after: int, last: int) -> bool:
    """Return whether rows can be in the range. True if the bounds are unknown."""
    return rows.min_seq is None or rows.max_seq is None or (rows.max_seq > after and rows.min_seq <= last)


def _may_hold_legacy(rows: DataFile | RowGroup) -> bool:
    """Return whether rows without a sequence can be among them. True if the statistics do not tell."""
    return rows.sequenced < rows.rows or rows.min_seq is None


def find_window_end(files: Sequence[DataFile], since: int, until: int, *, rows: int, bytes: int) -> int:
    """Return the largest end <= until such that (since, end] contains at most so many rows and stored bytes.

    All files are of one source. The end is at least one above `since`, however large that row is. Gaps cost nothing.
    """
    due = [file for file in files if file.max_seq is None or file.max_seq > since]
    group_spans: dict[Path, list[_Span]] = {}
    while True:
        whole = [file for file in due if file.path not in group_spans]
        spans = [_make_span(file, file.bytes, since, until) for file in whole]
        end = _bisect_end(sorted(chain(spans, *group_spans.values())), since, until, rows, bytes)
        touched = [file for file in whole if file.min_seq is None or file.min_seq <= end]
        if not touched:
            return end
        # Only a row group can then be overestimated, not a file.
        for file in touched:
            group_spans[file.path] = [
                _make_span(group, group.unpacked, since, until)
                for group in parquet.read_row_groups(file.path)
                if group.max_seq is None or group.max_seq > since
            ]


def _make_span(rows: DataFile | RowGroup, unpacked: int, since: int, until: int) -> _Span:
    """Return a span. Without statistics its rows can have any sequence."""
    first = max(since + 1, rows.min_seq or 0)
    last = rows.max_seq if rows.max_seq is not None else until
    count = max(rows.sequenced, 1)
    return _Span(first, last, max(0, min(rows.sequenced, last - first + 1)), rows.bytes / count, unpacked / count)


def _bisect_end(spans: Sequence[_Span], since: int, until: int, max_rows: int, max_bytes: int) -> int:
    """Find the end by bisection over the spans that the window can reach. They are sorted by `first`."""
    # At the sequence `reach`, the first spans alone exceed the limit.
    reach = seen = 0
    for span in spans:
        reach, seen = max(reach, span.first + span.rows - 1), seen + span.rows
        if seen > max_rows:
            break
    near = spans[: bisect_right(spans, reach, key=lambda span: span.first)]

    def fits(end: int) -> bool:
        rows, stored, unpacked = 0, 0.0, 0.0
        for span in near:
            found = max(0, min(span.rows, end - span.first + 1))
            rows += found
            stored += found * span.bytes_per_row
            unpacked += found * span.unpacked_per_row
            if rows > max_rows or stored > max_bytes or unpacked > _MAX_UNPACKED_BYTES:
                return False
        return True

    low = min(since + 1, until)
    return low + max(0, bisect_left(range(low, until + 1), True, key=lambda end: not fits(end)) - 1)


@dataclass(frozen=True, order=True)
class _Span:
    """The rows that a file or row group can have above `since`: from `first` on, none above `last`."""

    first: int
    last: int
    rows: int
    bytes_per_row: float
    unpacked_per_row: float


def list_session_ids(home: Home, left_out: Collection[str] = ()) -> set[str]:
    """Return the ids of all sessions in the tables that are not left out. Reads one column of every data file.

    Of a damaged table, the files on disk are read that can be.
    """
    found: set[str] = set()
    damaged = health.find_damaged_tables(home)
    for entry in metadata.list_tables(home):
        if entry.name in left_out:
            continue
        if entry.name in damaged:
            for path in metadata.list_files_on_disk(home, entry.name):
                with suppress(OSError, pa.ArrowException):
                    found |= _read_session_ids(path)
        else:
            for file in metadata.iter_live_files(metadata.read_metadata(entry.metadata)):
                found |= _read_session_ids(file.path)
    return found


def _read_session_ids(path: Path) -> set[str]:
    with pq.ParquetFile(arrow_source(path)) as data:
        if _SESSION not in data.schema_arrow.names:
            return set()
        return set(pc.unique(data.read([_SESSION])[_SESSION]).drop_null().to_pylist())


def count_rows_between(home: Home, dataset: str, source: str, after: int, last: int) -> int:
    """Count the live rows of a source with a sequence in (after, last]. Return 0 if there is no table."""
    table = metadata.find_table(home, dataset)
    while table is not None and last > after:
        try:
            files = metadata.iter_cached_files(metadata.read_metadata(table.metadata))
            return sum(_count_file(file, after, last) for file in files if file.source == source)
        except FileNotFoundError:
            # A purge removes files immediately; the table then has a new metadata file.
            previous, table = table, metadata.find_table(home, dataset)
            if table == previous:
                raise
    return 0


def _count_file(file: DataFile, after: int, last: int) -> int:
    counted = _count_if_whole(file, after, last)
    if counted is not None:
        return counted
    counted, cut = 0, []
    for group in parquet.read_row_groups(file.path):
        inside = _count_if_whole(group, after, last) if group.exact else None
        counted += inside or 0
        if inside is None:
            cut.append(group.index)
    if cut:
        with pq.ParquetFile(arrow_source(file.path)) as source_file:
            seqs = source_file.read_row_groups(cut, columns=[SEQ]).column(SEQ)
        counted += pc.sum(pc.and_(pc.greater(seqs, after), pc.less_equal(seqs, last))).as_py() or 0
    return counted


def _count_if_whole(rows: DataFile | RowGroup, after: int, last: int) -> int | None:
    """Return the count if all or none are inside the range; None if the range splits them or bounds are unknown."""
    if rows.sequenced == 0:
        return 0
    if rows.min_seq is None or rows.max_seq is None:
        return None
    if not _may_hold(rows, after, last):
        return 0
    return rows.sequenced if after < rows.min_seq and rows.max_seq <= last else None


@dataclass(frozen=True)
class ReadRange:
    dataset: str
    source: str | None = None
    since: int = 0
    until: int | None = None
    include_legacy: bool = False


def run_read(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Run the job `read` with the fields of `ReadRange`: emit the first window as Arrow IPC, return `{rows, next}`."""
    from hypaware.lake.spark_table import SparkTable

    spark, wanted = context.spark, ReadRange(**args)
    if not table_exists(spark, datasets.get(wanted.dataset).name):
        return {"rows": 0, "next": None}
    known = SparkTable(spark, datasets.get(wanted.dataset)).metadata
    files = [file for file in metadata.iter_cached_files(known) if wanted.source in (None, file.source)]
    # A table has no rows above its floor.
    last = known.floor if wanted.until is None else min(known.floor, wanted.until)
    since = wanted.since
    while True:
        end = find_window_end(files, since, last, rows=PAGE_ROWS, bytes=PAGE_BYTES)
        if metadata.has_delete_files(known):
            found = read_rows(spark, replace(wanted, since=since, until=end))
        else:
            found = read_files(wanted.dataset, files, since, end, wanted.include_legacy).rows
        if found.num_rows or end >= last:
            break
        since = end
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, found.schema) as writer:
        for batch in found.to_batches(max_chunksize=_EMITTED_ROWS):
            writer.write_batch(batch)
            context.emit(buffer.getvalue())
            buffer.seek(0)
            buffer.truncate()
    context.emit(buffer.getvalue())
    return {"rows": found.num_rows, "next": end if end < last else None}


def read_rows(spark: SparkSession, wanted: ReadRange) -> pa.Table:
    """Return the rows of a range through Spark, as `run_read` needs them."""
    from pyspark.sql import functions as F

    rows = spark.table(full_table_name(wanted.dataset))
    if wanted.source is not None:
        rows = rows.where(F.col(SOURCE) == F.lit(wanted.source))
    in_range = F.col(SEQ) > F.lit(wanted.since)
    if wanted.until is not None:
        in_range &= F.col(SEQ) <= F.lit(wanted.until)
    if wanted.include_legacy:
        in_range |= F.col(SEQ).isNull()
    public = [column.name for column in datasets.get(wanted.dataset).columns]
    # A window is small. Sorting it here saves a shuffle, for which Spark would read the files twice.
    return _sort_rows(rows.where(in_range).select(SEQ, *public).toArrow())


def decode_page(chunks: bytes) -> Iterator[tuple[dict[str, Any], int | None]]:
    """Yield (row, sequence) of a page that `run_read` emitted."""
    if chunks:
        with pa.ipc.open_stream(chunks) as reader:
            for batch in reader:
                seqs, *columns = (_decode_column(column) for column in batch.columns)
                names = batch.schema.names[1:]
                for seq, values in zip(seqs, zip(*columns, strict=True), strict=True):
                    yield dict(zip(names, values, strict=True)), seq


def _decode_column(column: pa.Array) -> Iterable[Any]:
    """Return the values of a column. Arrow would look up the time zone for each time, which takes 5 µs."""
    if column.null_count == len(column):
        return repeat(None, len(column))
    if pa.types.is_timestamp(column.type):
        values = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        return [None if value is None else _EPOCH + timedelta(0, 0, value) for value in values]
    found: list[Any] = column.to_pylist()
    return found
