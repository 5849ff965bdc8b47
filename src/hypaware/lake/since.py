"""Rows of a range of sequences for those who deliver them, read from the data files as files.

Manifests say which files of the source can hold such rows, footers say which row groups; only those are read, and no
more than one row group of a file on each side of the range is read in vain. No SQL is needed for that, and Arrow
reads a row for a sixth of what it costs to carry it through Spark (docs/decisions/0017). Files never change; where one
is gone, somebody has rewritten the table, and the newest metadata is asked.
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
# As stored, compressed. Rows in memory take a multiple of it, and two pages of each stream at work are at hand.
PAGE_BYTES = 8 << 20


@dataclass(frozen=True)
class Found:
    """All rows in (after, reached], the sequence first, in its order."""

    rows: pa.Table
    reached: int
    scanned: int
    """Rows of the row groups that were read."""


def page(home: Home, dataset: str, source: str, after: int, until: int, most: int = PAGE_ROWS) -> Found:
    """The next rows, as many as fit into memory and no more than `most`, at least one sequence further."""

    def look(files: list[DataFile]) -> Found:
        end = windows.next_end(files, after, until, rows=most, bytes=PAGE_BYTES)
        return _read(dataset, files, after, end)

    return _with_files(home, dataset, source, until, look)


def between(home: Home, dataset: str, source: str, after: int, last: int) -> Found:
    return _with_files(home, dataset, source, last, lambda files: _read(dataset, files, after, last))


def _with_files(home: Home, dataset: str, source: str, through: int, look: Callable[[list[DataFile]], T]) -> T:
    # A lake that was rolled back has nothing to show for what was recorded: that is not "nothing to deliver".
    standing.check(home, dataset, through)
    entry = metadata.entry(home, dataset)
    while True:
        if entry is None:
            return look([])
        try:
            return look(_files(entry, source))
        except FileNotFoundError as missing:
            looked_at, entry = entry, metadata.entry(home, dataset)
            if entry == looked_at:
                raise LakeError(
                    f"table {dataset}: a data file is missing ({missing}): restore a backup, or save what is left",
                    kind="lake_damaged",
                    repair=f"hyp maintain {dataset} --rebuild",
                ) from missing


def _files(entry: metadata.TableEntry, source: str) -> list[DataFile]:
    known = metadata.read(entry.metadata)
    if known.current and any(manifest.deletes for manifest in metadata.manifests(known.current)):
        raise LakeError(
            f"table {entry.name} has delete files, which another program has written: they must be compacted away "
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
            part = _of_groups(schema, file, [group.place for group in groups]) if groups else schema.empty_table()
            scanned += len(part)
            seqs = part.column(SEQ)
            parts.append(part.filter(pc.and_(pc.greater(seqs, after), pc.less_equal(seqs, last))))
    found = pa.concat_tables(parts)
    return Found(found.take(pc.sort_indices(found.column(SEQ))), last, scanned)


def _of_groups(schema: pa.Schema, file: DataFile, places: list[int]) -> pa.Table:
    """Columns that are younger than the file are null."""
    with pq.ParquetFile(file.path) as held:
        names = set(held.schema_arrow.names)
        rows = held.read_row_groups(places, columns=[name for name in schema.names if name in names])
    columns = [
        rows.column(field.name).cast(field.type) if field.name in names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _group_may_hold(group: RowGroup, after: int, last: int) -> bool:
    return group.numbered > 0 and _may_hold(group.min_seq, group.max_seq, after, last)


def _may_hold(lowest: int | None, highest: int | None, after: int, last: int) -> bool:
    """Where nobody knows, it may."""
    if lowest is None or highest is None:
        return True
    return highest > after and lowest <= last
