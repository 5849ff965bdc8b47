"""Scan data files: one task per file, one row group in memory, and small results.

For work that reads every row and needs no SQL: rebuilding the key index and verifying row ids.
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
    max_rows: int | None = None
    own_gateway: str | None = None
    """The gateway id of this home, for `build.row_key`."""


@dataclass
class Keys:
    seqs: array[int] = field(default_factory=lambda: array("q"))
    hashes: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True)
class RowIds:
    checked: int
    missing: int
    wrong: int


def key_hashes(
    spark: SparkContext, dataset: str, files: Iterable[DataFile], after: int, own_gateway: str | None = None
) -> Iterator[Iterable[tuple[bytes, int]]]:
    """Yield (key hash, sequence) of every row above a sequence, some files at a time."""
    due = [
        FileScan(dataset, file.path, after, own_gateway=own_gateway)
        for file in files
        if file.max_seq is None or file.max_seq > after
    ]
    for start in range(0, len(due), _FILES_AT_ONCE):
        batch = due[start : start + _FILES_AT_ONCE]
        for found in spark.parallelize(batch, len(batch)).map(keys_of_file).collect():
            yield pairs(found.hashes, found.seqs)


def row_ids(spark: SparkContext, scans: Sequence[FileScan]) -> RowIds:
    """Count the rows without a row id, and those whose id does not match their content."""
    if not scans:
        return RowIds(0, 0, 0)
    found = spark.parallelize(scans, len(scans)).map(row_ids_of_file).collect()
    return RowIds(sum(one.checked for one in found), sum(one.missing for one in found), sum(one.wrong for one in found))


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
    checked = missing = wrong = 0
    for batch in _batches(scan, [ROW_ID, *(column.name for column in dataset.columns)]):
        for row in coerced_rows(dataset, batch):
            row_id = row.pop(ROW_ID, None)
            checked += 1
            missing += row_id is None
            # A settled row has native columns but keeps the row id of its live row.
            settled = dataset.match_rules is not None and dataset.match_rules.previous_keys(row)
            wrong += row_id is not None and not settled and row_id != canonical.row_id(row)
            if checked == scan.max_rows:
                return RowIds(checked, missing, wrong)
    return RowIds(checked, missing, wrong)


def _batches(scan: FileScan, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield batches with the given columns, as far as the file has them."""
    with pq.ParquetFile(scan.path) as file:
        present = [name for name in columns if name in file.schema_arrow.names]
        yield from file.iter_batches(_BATCH_ROWS, columns=present)
