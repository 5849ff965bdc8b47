"""Parquet: zstd, row groups of at most 50,000 rows and 32 MiB, timestamps in microseconds of UTC, JSON as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.export.encoders.encoder import Encoder

_GROUP_ROWS = 50_000
_GROUP_BYTES = 32 << 20
# Overhead of a text value in the file: its length and its dictionary index.
_BESIDE = 8


def _write(table: pa.Table, file: BinaryIO) -> None:
    schema = pa.schema([field.remove_metadata() for field in table.schema])
    plain = pa.Table.from_arrays(table.columns, schema=schema)
    with pq.ParquetWriter(file, schema, compression="zstd", compression_level=3, store_schema=False) as writer:
        for start, stop in _row_groups(plain):
            # As a single chunk, so that the chunks of the input do not affect the bytes.
            writer.write_table(plain.slice(start, stop - start).combine_chunks(), row_group_size=stop - start)


def _row_groups(table: pa.Table) -> Iterator[tuple[int, int]]:
    start = weight = 0
    for row, size in enumerate(_sizes(table)):
        weight += size
        if row > start and (weight > _GROUP_BYTES or row - start >= _GROUP_ROWS):
            yield start, row
            start, weight = row, size
    if len(table):
        yield start, len(table)


def _sizes(table: pa.Table) -> list[int]:
    """Return an upper bound of the bytes of each row. A null counts as nothing."""
    total = pa.array([0] * len(table), pa.int64())
    for column in table.columns:
        if column.null_count < len(column):
            is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
            value = pc.add(pc.binary_length(column), _BESIDE) if is_text else pc.if_else(pc.is_valid(column), 8, 0)
            total = pc.add(total, pc.fill_null(value, 0).combine_chunks().cast(pa.int64()))
    sizes: list[int] = total.to_pylist()
    return sizes


PARQUET = Encoder("parquet", "parquet", "application/vnd.apache.parquet", _write)
