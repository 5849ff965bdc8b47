"""Read the rows in a range of sequences for delivery, directly from the data files.

Manifests tell which files of the source can contain such rows, and footers tell which row groups; only those are read,
so per file at most one row group on each side of the range is read in vain. This needs no SQL, and Arrow reads a row at
a sixth of the cost of Spark (docs/decisions/0017). Files never change; if one is missing, another job has rewritten the
table, and the read is repeated with the newest metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake import metadata, row_groups, standing, windows
from hypaware.lake.arrow import read_schema
from hypaware.lake.metadata import DataFile
from hypaware.lake.row_groups import RowGroup
from hypaware.model import datasets
from hypaware.model.datasets import SEQ

T = TypeVar("T")

PAGE_ROWS = 50_000
# Compressed size on disk. Rows in memory take several times as much, and each active stream holds two pages.
PAGE_BYTES = 8 << 20


@dataclass(frozen=True)
class Found:
    """All rows in (after, reached], ordered by sequence, which is the first column."""

    rows: pa.Table
    reached: int
    scanned: int
    """Number of rows in the row groups that were read."""


def page(home: Home, dataset: str, source: str, after: int, until: int, max_rows: int = PAGE_ROWS) -> Found:
    """Read the next rows, at most `max_rows`, limited by memory. Advances by at least one sequence."""

    def read(files: list[DataFile]) -> Found:
        end = windows.next_end(files, after, until, rows=max_rows, bytes=PAGE_BYTES)
        return _read(dataset, files, after, end)

    return _with_files(home, dataset, source, until, read)


def between(home: Home, dataset: str, source: str, after: int, last: int) -> Found:
    return _with_files(home, dataset, source, last, lambda files: _read(dataset, files, after, last))


def _with_files(home: Home, dataset: str, source: str, through: int, read: Callable[[list[DataFile]], T]) -> T:
    # A lake that was rolled back lacks recorded rows: that must not pass for "nothing to deliver".
    standing.check(home, dataset, through)
    entry = metadata.entry(home, dataset)
    while True:
        if entry is None:
            return read([])
        try:
            return read(_files(entry, source))
        except FileNotFoundError as missing:
            previous, entry = entry, metadata.entry(home, dataset)
            if entry == previous:
                raise LakeError(
                    f"table {dataset}: a data file is missing ({missing}); "
                    "restore a backup with hyp restore, or rebuild the table from its files",
                    kind="lake_damaged",
                    repair=f"hyp maintain {dataset} --rebuild",
                ) from missing


def _files(entry: metadata.TableEntry, source: str) -> list[DataFile]:
    known = metadata.read(entry.metadata)
    if known.current and any(manifest.deletes for manifest in metadata.manifests(known.current)):
        raise LakeError(
            f"table {entry.name} has delete files, which another program wrote; compact the table with that program "
            "before its rows can be delivered",
            kind="delete_files",
        )
    return [file for file in metadata.remembered_files(known) if file.source == source]


def _read(dataset: str, files: list[DataFile], after: int, last: int) -> Found:
    schema = read_schema(datasets.get(dataset))
    parts, scanned = [schema.empty_table()], 0
    for file in files:
        if _may_hold(file.min_seq, file.max_seq, after, last):
            groups = [each for each in row_groups.of_file(file.path) if _group_may_hold(each, after, last)]
            part = _of_groups(schema, file, [group.index for group in groups]) if groups else schema.empty_table()
            scanned += len(part)
            seqs = part.column(SEQ)
            parts.append(part.filter(pc.and_(pc.greater(seqs, after), pc.less_equal(seqs, last))))
    found = pa.concat_tables(parts)
    return Found(found.take(pc.sort_indices(found.column(SEQ))), last, scanned)


def _of_groups(schema: pa.Schema, file: DataFile, groups: list[int]) -> pa.Table:
    """Read row groups of a file. Columns that the file lacks are null."""
    with pq.ParquetFile(file.path) as parquet:
        names = set(parquet.schema_arrow.names)
        rows = parquet.read_row_groups(groups, columns=[name for name in schema.names if name in names])
    columns = [
        rows.column(field.name).cast(field.type) if field.name in names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _group_may_hold(group: RowGroup, after: int, last: int) -> bool:
    return group.sequenced > 0 and _may_hold(group.min_seq, group.max_seq, after, last)


def _may_hold(lowest: int | None, highest: int | None, after: int, last: int) -> bool:
    """Tell whether rows can be in the range. True if the bounds are unknown."""
    if lowest is None or highest is None:
        return True
    return highest > after and lowest <= last
