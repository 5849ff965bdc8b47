"""Datasets as Arrow: the schema of a table's Parquet files, and coerced rows as columns of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from hypaware.model.columns import Column, Type
from hypaware.model.datasets import BATCH_ID, ROW_ID, SEQ, SOURCE, Dataset, Row

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_TYPES: dict[Type, pa.DataType] = {
    Type.STRING: pa.string(),
    Type.INT: pa.int32(),
    Type.BIGINT: pa.int64(),
    Type.BOOLEAN: pa.bool_(),
    Type.TIMESTAMP: _TIMESTAMP,
    Type.JSON: pa.string(),
}

# The sequence stands first, so that file statistics always cover it. They are never null in what we write, and
# nullable all the same: a taken-over table has rows without a sequence.
INTERNAL_COLUMNS = (
    Column(SEQ, Type.BIGINT, "Place of the row in the order of this home; unique, never given out again."),
    Column(SOURCE, Type.STRING, "Logical partition of the row."),
    Column(ROW_ID, Type.STRING, "sha256 of the coerced row."),
    Column(BATCH_ID, Type.STRING, "The flush that wrote the row."),
)


def table_columns(dataset: Dataset) -> tuple[Column, ...]:
    return (*INTERNAL_COLUMNS, *dataset.columns)


def file_schema(dataset: Dataset, field_ids: Mapping[str, int]) -> pa.Schema:
    """The schema of a data file; Iceberg knows a file's columns by their ids, not by their names."""
    return pa.schema(
        pa.field(
            column.name,
            _TYPES[column.type],
            nullable=not column.required,
            metadata={"PARQUET:field_id": str(field_ids[column.name])},
        )
        for column in table_columns(dataset)
    )


def to_batch(schema: pa.Schema, rows: Sequence[Row]) -> pa.RecordBatch:
    present = set().union(*rows)
    count = len(rows)
    return pa.RecordBatch.from_arrays(
        [
            _array(field.type, [row.get(field.name) for row in rows])
            if field.name in present
            else pa.nulls(count, field.type)
            for field in schema
        ],
        schema=schema,
    )


def _array(type_: pa.DataType, values: list[object]) -> pa.Array:
    if type_ == _TIMESTAMP:
        return pa.array(values, pa.string()).cast(_TIMESTAMP)
    return pa.array(values, type_)
