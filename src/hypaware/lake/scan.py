"""Going through data files as files: a task per file, one row group in memory, and only small answers come back.

For what must look at every row (the key index made anew, row ids computed again) and needs no SQL.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from hypaware.lake.build import row_key
from hypaware.lake.coerced import coerced_rows
from hypaware.lake.keys import pairs
from hypaware.lake.metadata import DataFile
from hypaware.model import canonical, datasets
from hypaware.model.datasets import GATEWAY, ROW_ID, SEQ

if TYPE_CHECKING:
    from pyspark import SparkContext

_BATCH_ROWS = 2_000
_FILES_AT_ONCE = 16


@dataclass(frozen=True)
class FileScan:
    dataset: str
    path: Path
    after: int = 0
    most: int | None = None
    """Stop after so many rows."""
    own_gateway: str | None = None
    """Whose home this is, as `build.row_key` asks."""


@dataclass
class Keys:
    seqs: array[int] = field(default_factory=lambda: array("q"))
    hashes: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True)
class RowIds:
    looked: int
    missing: int
    wrong: int


def key_hashes(
    spark: SparkContext, dataset: str, files: Iterable[DataFile], after: int, own_gateway: str | None = None
) -> Iterator[Iterable[tuple[bytes, int]]]:
    """(key hash, sequence) of every row above a sequence, some files at a time."""
    due = [
        FileScan(dataset, file.path, after, own_gateway=own_gateway)
        for file in files
        if file.max_seq is None or file.max_seq > after
    ]
    for start in range(0, len(due), _FILES_AT_ONCE):
        lot = due[start : start + _FILES_AT_ONCE]
        for found in spark.parallelize(lot, len(lot)).map(keys_of_file).collect():
            yield pairs(found.hashes, found.seqs)


def row_ids(spark: SparkContext, scans: Sequence[FileScan]) -> RowIds:
    """How many rows have no id, or one that their content does not give."""
    if not scans:
        return RowIds(0, 0, 0)
    found = spark.parallelize(scans, len(scans)).map(row_ids_of_file).collect()
    return RowIds(sum(one.looked for one in found), sum(one.missing for one in found), sum(one.wrong for one in found))


def keys_of_file(scan: FileScan) -> Keys:
    dataset = datasets.get(scan.dataset)
    found = Keys()
    for batch in _batches(scan, list(dict.fromkeys([SEQ, GATEWAY, dataset.key_column, *dataset.key_parts]))):
        for row in batch.to_pylist():
            key = row_key(dataset, row, scan.own_gateway)
            if key is not None and row[SEQ] is not None and row[SEQ] > scan.after:
                found.seqs.append(row[SEQ])
                found.hashes += key
    return found


def row_ids_of_file(scan: FileScan) -> RowIds:
    dataset = datasets.get(scan.dataset)
    looked = missing = wrong = 0
    for batch in _batches(scan, [ROW_ID, *(column.name for column in dataset.columns)]):
        for row in coerced_rows(dataset, batch):
            told = row.pop(ROW_ID, None)
            looked += 1
            missing += told is None
            # A settled row has its native columns, and the id that it was recorded under.
            settled = dataset.settling is not None and dataset.settling.former_keys(row)
            wrong += told is not None and not settled and told != canonical.row_id(row)
            if looked == scan.most:
                return RowIds(looked, missing, wrong)
    return RowIds(looked, missing, wrong)


def _batches(scan: FileScan, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """A file that is older than a column does not have it."""
    with pq.ParquetFile(scan.path) as file:
        present = [name for name in columns if name in file.schema_arrow.names]
        yield from file.iter_batches(_BATCH_ROWS, columns=present)
