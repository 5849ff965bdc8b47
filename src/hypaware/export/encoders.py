"""File formats of blob sinks, registered by entry points in the group `hypaware.encoders`.

- JSON lines: one object per line, without null columns, JSON columns as values, times as UTC text. The lines are those
  of `export.ndjson`, compressed with gzip, which everything reads, or with zstd, which is smaller and faster.
- Parquet: zstd, row groups of at most 50,000 rows and 32 MiB, timestamps in microseconds of UTC, JSON as text.

Arrow has one type for text and JSON, so a blob sink marks JSON columns with the field metadata `hyp.type` = `JSON`
before it passes a table to an encoder.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.export import ndjson

_MARK = b"hyp.type"
_JSON = b"JSON"
_BLOCK_ROWS = 8192
_GZIP_LEVEL = 1
_GROUP_ROWS = 50_000
_GROUP_BYTES = 32 << 20
# Overhead of a text value in the file: its length and its dictionary index.
_TEXT_OVERHEAD = 8


@dataclass(frozen=True)
class Encoder:
    name: str
    extension: str
    """Suffix of object names, without a leading dot: `parquet`, `jsonl.gz`."""
    content_type: str
    write: Callable[[pa.Table, BinaryIO], None]
    """Must write the same bytes for the same rows."""


def mark_json_columns(table: pa.Table, json_columns: Collection[str]) -> pa.Table:
    """Mark these columns as JSON and remove all other field metadata, so that it cannot affect the encoded bytes."""
    fields = [
        field.with_metadata({_MARK: _JSON}) if field.name in json_columns else field.remove_metadata()
        for field in table.schema
    ]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))


def marked_json_columns(table: pa.Table) -> frozenset[str]:
    """Return the columns that `mark_json_columns` marked."""
    return frozenset(field.name for field in table.schema if (field.metadata or {}).get(_MARK) == _JSON)


def _write_gzip(table: pa.Table, file: BinaryIO) -> None:
    # Without a name and a time, so that the same rows give the same bytes.
    with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as out:
        for block in _line_blocks(table):
            out.write(block)


def _write_zstd(table: pa.Table, file: BinaryIO) -> None:
    # A single frame: some readers stop at the end of the first one.
    compressed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(compressed, "zstd") as out:
        for block in _line_blocks(table):
            out.write(block)
    file.write(compressed.getvalue())


def _line_blocks(table: pa.Table) -> Iterator[bytes]:
    json_columns = marked_json_columns(table)
    for start in range(0, len(table), _BLOCK_ROWS):
        yield b"".join(ndjson.encode_ndjson(table.slice(start, _BLOCK_ROWS), json_columns).lines)


JSONL = Encoder("jsonl", "jsonl.gz", "application/gzip", _write_gzip)


JSONL_ZSTD = Encoder("jsonl-zstd", "jsonl.zst", "application/zstd", _write_zstd)


def _write_parquet(table: pa.Table, file: BinaryIO) -> None:
    schema = pa.schema([field.remove_metadata() for field in table.schema])
    plain = pa.Table.from_arrays(table.columns, schema=schema)
    with pq.ParquetWriter(file, schema, compression="zstd", compression_level=3, store_schema=False) as writer:
        for start, stop in _row_groups(plain):
            # As a single chunk, so that the chunks of the input do not affect the bytes.
            writer.write_table(plain.slice(start, stop - start).combine_chunks(), row_group_size=stop - start)


def _row_groups(table: pa.Table) -> Iterator[tuple[int, int]]:
    start = weight = 0
    for row, size in enumerate(_row_sizes(table)):
        weight += size
        if row > start and (weight > _GROUP_BYTES or row - start >= _GROUP_ROWS):
            yield start, row
            start, weight = row, size
    if len(table):
        yield start, len(table)


def _row_sizes(table: pa.Table) -> list[int]:
    """Return an upper bound of the bytes of each row. A null counts as nothing."""
    total = pa.array([0] * len(table), pa.int64())
    for column in table.columns:
        if column.null_count < len(column):
            is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
            value = (
                pc.add(pc.binary_length(column), _TEXT_OVERHEAD) if is_text else pc.if_else(pc.is_valid(column), 8, 0)
            )
            total = pc.add(total, pc.fill_null(value, 0).combine_chunks().cast(pa.int64()))
    sizes: list[int] = total.to_pylist()
    return sizes


PARQUET = Encoder("parquet", "parquet", "application/vnd.apache.parquet", _write_parquet)
