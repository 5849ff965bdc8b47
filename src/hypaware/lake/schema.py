"""The schema of a dataset's table: in Arrow, in SQL and in Iceberg; creation and evolution of the table.

Tables have format v2, are copy-on-write and partitioned by source and day. Schema evolution only adds nullable columns
and makes required columns nullable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from hypaware.errors import LakeError
from hypaware.home.identity import Identity
from hypaware.iceberg.metadata import (
    CATALOG,
    GATEWAY_ID_PROPERTY,
    INCARNATION_PROPERTY,
    NAMESPACE,
    TableField,
    file_location,
)
from hypaware.model.columns import Column, ColumnType
from hypaware.model.datasets import BATCH_ID, ROW_ID, SEQ, SOURCE, Dataset

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_ARROW_TYPES: dict[ColumnType, pa.DataType] = {
    ColumnType.STRING: pa.string(),
    ColumnType.INT: pa.int32(),
    ColumnType.BIGINT: pa.int64(),
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.TIMESTAMP: _TIMESTAMP,
    ColumnType.JSON: pa.string(),
}
# The sequence comes first, so that file statistics always cover it. HypAware never writes null here, but the columns
# are nullable because an adopted table has rows without a sequence.
INTERNAL_COLUMNS = (
    Column(SEQ, ColumnType.BIGINT, "Position of the row in this home's order; unique, never reused."),
    Column(SOURCE, ColumnType.STRING, "Logical partition of the row."),
    Column(ROW_ID, ColumnType.STRING, "sha256 of the coerced row."),
    Column(BATCH_ID, ColumnType.STRING, "The flush that wrote the row."),
)
TABLE_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.row-group-size-bytes": str(4 << 20),
    "write.delete.mode": "copy-on-write",
    "write.update.mode": "copy-on-write",
    "write.merge.mode": "copy-on-write",
    # Bound the metadata of many small commits; a rollback after a power cut needs the previous version.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest.min-count-to-merge": "50",
    "write.metadata.metrics.default": "truncate(16)",
}
SQL_TYPES = {
    ColumnType.STRING: "STRING",
    ColumnType.INT: "INT",
    ColumnType.BIGINT: "BIGINT",
    ColumnType.BOOLEAN: "BOOLEAN",
    ColumnType.TIMESTAMP: "TIMESTAMP",
    ColumnType.JSON: "STRING",
}
ICEBERG_TYPES = {
    ColumnType.STRING: "string",
    ColumnType.INT: "int",
    ColumnType.BIGINT: "long",
    ColumnType.BOOLEAN: "boolean",
    ColumnType.TIMESTAMP: "timestamptz",
    ColumnType.JSON: "string",
}


def table_columns(dataset: Dataset) -> tuple[Column, ...]:
    return (*INTERNAL_COLUMNS, *dataset.columns)


def file_schema(dataset: Dataset, field_ids: Mapping[str, int]) -> pa.Schema:
    """Return the schema of a data file. Iceberg identifies columns by field id, not by name."""
    return pa.schema(
        pa.field(
            column.name,
            _ARROW_TYPES[column.type],
            nullable=not column.required,
            metadata={"PARQUET:field_id": str(field_ids[column.name])},
        )
        for column in table_columns(dataset)
    )


def page_schema(dataset: Dataset) -> pa.Schema:
    """Return the schema of a page of rows: the sequence, then the public columns."""
    return pa.schema([(SEQ, pa.int64()), *((column.name, _ARROW_TYPES[column.type]) for column in dataset.columns)])


def table_from_json_lines(schema: pa.Schema, lines: Sequence[bytes], internal: Mapping[str, pa.Array]) -> pa.Table:
    """Convert rows to a table: public columns from coerced rows in JSON, internal columns from `internal`.

    Parsing the JSON that the row id was computed from takes Arrow half as long as building a list per column.
    """
    data = b"\n".join(lines)
    # Timestamps are parsed as text and cast, because Arrow ignores zones.
    parsed = pa.schema(
        (field.name, pa.string() if field.type == _TIMESTAMP else field.type)
        for field in schema
        if field.name not in internal
    )
    read = pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=parsed, newlines_in_values=False, unexpected_field_behavior="error"
        ),
    )
    arrays = [
        internal[field.name] if field.name in internal else read.column(field.name).cast(field.type) for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def full_table_name(dataset: str, namespace: str = NAMESPACE) -> str:
    return f"{CATALOG}.{namespace}.{dataset}"


def table_exists(spark: Any, dataset: str) -> bool:
    return bool(spark.catalog.tableExists(full_table_name(dataset)))


def create_table(
    spark: Any, dataset: Dataset, identity: Identity, namespace: str = NAMESPACE, location: Path | None = None
) -> None:
    properties = {
        **TABLE_PROPERTIES,
        GATEWAY_ID_PROPERTY: identity.gateway_id,
        INCARNATION_PROPERTY: identity.incarnation,
    }
    columns = ", ".join(
        f"`{column.name}` {SQL_TYPES[column.type]}{' NOT NULL' if column.required else ''}"
        for column in table_columns(dataset)
    )
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    location_clause = ""
    if location:
        escaped = file_location(location).replace("\\", "\\\\").replace("'", "\\'")
        location_clause = f"LOCATION '{escaped}' "
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{namespace}")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {full_table_name(dataset.name, namespace)} ({columns}) USING iceberg "
        f"PARTITIONED BY ({SOURCE}, days({dataset.time_column})) {location_clause}TBLPROPERTIES ({listed})"
    )


def evolve_table(table: Any, jvm: Any, dataset: Dataset, known: Mapping[str, TableField]) -> bool:
    """Add missing columns to an Iceberg table (Java object) with the known fields. Tell whether it changed."""
    added, relaxed = [], []
    for column in table_columns(dataset):
        if (field := known.get(column.name)) is None:
            added.append(column)
        elif field.type != ICEBERG_TYPES[column.type]:
            raise LakeError(
                f"table {dataset.name}: column {column.name} is {field.type} in the lake and "
                f"{ICEBERG_TYPES[column.type]} in the dataset; the type of a column cannot change",
                kind="schema_conflict",
            )
        elif field.required and not column.required:
            relaxed.append(column)
    if not added and not relaxed:
        return False
    change = table.updateSchema()
    for column in added:
        type_ = jvm.org.apache.iceberg.types.Types.fromPrimitiveString(ICEBERG_TYPES[column.type])
        change = change.addColumn(column.name, type_)
    for column in relaxed:
        change = change.makeColumnOptional(column.name)
    change.commit()
    return True
