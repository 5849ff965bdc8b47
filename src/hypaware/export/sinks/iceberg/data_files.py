"""Write a chunk as Parquet files, one for each partition of its rows.

The files are written to a temporary folder of the engine's JVM, which copies them to the table's location. This works
with any store and is faster than passing the bytes to Java. No snapshot names the files yet.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.export.sink import Chunk, ChunkRefused
from hypaware.export.sinks.iceberg.table_schema import (
    HYP_GATEWAY,
    HYP_INCARNATION,
    HYP_SEQ,
    HYP_SOURCE,
    PartitionField,
    TableLayout,
)
from hypaware.model.datasets import SEQ

_ROW_GROUP_ROWS = 50_000
_ROW_GROUP_BYTES = 32 << 20
_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "boolean": pa.bool_(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
_MICROSECONDS = {"day": 86_400_000_000, "hour": 3_600_000_000}
PartitionValues = tuple[Any, ...]


@dataclass(frozen=True)
class PartitionFile:
    path: Path
    bytes: int
    partition: PartitionValues
    """One value per partition field, as Iceberg's transforms return them."""


def write_data_files(table: pa.Table, chunk: Chunk, shape: TableLayout, folder: Path) -> list[PartitionFile]:
    """Write the chunk to the folder. Raises ChunkRefused if the table's columns cannot hold the rows."""
    try:
        rows = _table_rows(table, chunk, shape)
    except pa.ArrowException as error:
        raise ChunkRefused(f"the table's columns cannot hold these rows: {error}") from error
    parts: list[PartitionFile] = []
    try:
        for partition, part in _split_by_partition(rows, shape.partitions):
            path = folder / f"part-{secrets.token_hex(8)}.parquet"
            parts.append(PartitionFile(path, 0, partition))
            _write_file(part, path)
            parts[-1] = PartitionFile(path, path.stat().st_size, partition)
    except BaseException:
        delete_data_files(parts)
        raise
    return parts


def delete_data_files(parts: Sequence[PartitionFile]) -> None:
    for part in parts:
        part.path.unlink(missing_ok=True)


def _table_rows(table: pa.Table, chunk: Chunk, shape: TableLayout) -> pa.Table:
    own = {
        HYP_SEQ: table.column(SEQ),
        HYP_GATEWAY: chunk.gateway_id,
        HYP_INCARNATION: chunk.incarnation,
        HYP_SOURCE: chunk.stream.source,
    }
    schema = pa.schema(
        pa.field(
            field.name,
            _TYPES[field.type],
            nullable=not field.required,
            metadata={"PARQUET:field_id": str(field.id)},
        )
        for field in shape.fields
    )
    arrays = []
    for field in schema:
        found = own.get(field.name)
        if isinstance(found, str):
            arrays.append(pa.repeat(found, table.num_rows))
            continue
        column = table.column(field.name) if found is None else found
        if not field.nullable and column.null_count:
            raise pa.ArrowInvalid(f"{field.name} may not be null")
        arrays.append(column.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def _split_by_partition(rows: pa.Table, fields: Sequence[PartitionField]) -> list[tuple[PartitionValues, pa.Table]]:
    values = [_partition_values(rows, field) for field in fields]
    indices: dict[PartitionValues, list[int]] = {}
    for index, partition in enumerate(zip(*values, strict=True) if values else [()] * rows.num_rows):
        indices.setdefault(partition, []).append(index)
    if len(indices) == 1:
        return [(next(iter(indices)), rows)]
    return [(partition, rows.take(pa.array(members))) for partition, members in indices.items()]


def _partition_values(rows: pa.Table, field: PartitionField) -> list[Any]:
    if field.transform == "void":
        return [None] * rows.num_rows
    column = rows.column(field.column)
    if field.transform == "identity":
        found: list[Any] = column.to_pylist()
        return found
    if field.transform in _MICROSECONDS:
        width = _MICROSECONDS[field.transform]
        return [None if time is None else time // width for time in column.cast(pa.int64()).to_pylist()]
    times = column.cast(pa.timestamp("us"))
    years = [None if year is None else year - 1970 for year in pc.year(times).to_pylist()]
    if field.transform == "year":
        return years
    months = pc.month(times).to_pylist()
    return [None if year is None else year * 12 + month - 1 for year, month in zip(years, months, strict=True)]


def _write_file(rows: pa.Table, path: Path) -> None:
    by_size = rows.num_rows * _ROW_GROUP_BYTES // max(rows.nbytes, 1)
    group = max(1, min(_ROW_GROUP_ROWS, by_size))
    path.touch(mode=0o600)
    pq.write_table(rows, path, row_group_size=group, compression="zstd", store_schema=False)
