"""Arrow schemas of datasets, and conversion of coerced rows to Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.json as pj

from hypaware.model.columns import Column, Type
from hypaware.model.datasets import BATCH_ID, INTERNAL, ROW_ID, SEQ, SOURCE, Dataset

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_TYPES: dict[Type, pa.DataType] = {
    Type.STRING: pa.string(),
    Type.INT: pa.int32(),
    Type.BIGINT: pa.int64(),
    Type.BOOLEAN: pa.bool_(),
    Type.TIMESTAMP: _TIMESTAMP,
    Type.JSON: pa.string(),
}

# The sequence comes first, so that file statistics always cover it. HypAware never writes null here, but the columns
# are nullable because an adopted table has rows without a sequence.
INTERNAL_COLUMNS = (
    Column(SEQ, Type.BIGINT, "Position of the row in this home's order; unique, never reused."),
    Column(SOURCE, Type.STRING, "Logical partition of the row."),
    Column(ROW_ID, Type.STRING, "sha256 of the coerced row."),
    Column(BATCH_ID, Type.STRING, "The flush that wrote the row."),
)


def table_columns(dataset: Dataset) -> tuple[Column, ...]:
    return (*INTERNAL_COLUMNS, *dataset.columns)


def file_schema(dataset: Dataset, field_ids: Mapping[str, int]) -> pa.Schema:
    """Return the schema of a data file. Iceberg identifies columns by field id, not by name."""
    return pa.schema(
        pa.field(
            column.name,
            _TYPES[column.type],
            nullable=not column.required,
            metadata={"PARQUET:field_id": str(field_ids[column.name])},
        )
        for column in table_columns(dataset)
    )


def read_schema(dataset: Dataset) -> pa.Schema:
    """Return the schema of a page of rows: the sequence, then the public columns."""
    return pa.schema([(SEQ, pa.int64()), *((column.name, _TYPES[column.type]) for column in dataset.columns)])


def from_json_lines(schema: pa.Schema, lines: Sequence[bytes], internal: Mapping[str, pa.Array]) -> pa.Table:
    """Convert rows to a table: public columns from coerced rows in JSON, internal columns from `internal`.

    Parsing the JSON that the row id was computed from takes Arrow half as long as building a list per column.
    """
    data = b"\n".join(lines)
    read = pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=_read_schema(schema), newlines_in_values=False, unexpected_field_behavior="error"
        ),
    )
    arrays = [
        internal[field.name] if field.name in internal else read.column(field.name).cast(field.type) for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _read_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema to parse JSON with. Timestamps are parsed as text and cast, because Arrow ignores zones."""
    return pa.schema(
        (field.name, pa.string() if field.type == _TIMESTAMP else field.type)
        for field in schema
        if field.name not in INTERNAL
    )
