"""The schema of a dataset's table: in Arrow, in SQL and in Iceberg; creation and evolution of the table.

Tables have format v2, are copy-on-write and partitioned by source and day. Schema evolution only adds nullable columns
and makes required columns nullable.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hypaware.iceberg.metadata import (
    CATALOG,
    NAMESPACE,
)
from hypaware.model.columns import Column, ColumnType
from hypaware.model.datasets import BATCH_ID, ROW_ID, SEQ, SOURCE, Dataset

TIMESTAMP = pa.timestamp("us", tz="UTC")
_ARROW_TYPES: dict[ColumnType, pa.DataType] = {
    ColumnType.STRING: pa.string(),
    ColumnType.INT: pa.int32(),
    ColumnType.BIGINT: pa.int64(),
    ColumnType.DOUBLE: pa.float64(),
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.TIMESTAMP: TIMESTAMP,
    ColumnType.JSON: pa.string(),
}
# The sequence comes first, so that file statistics always cover it. HypAware never writes null here, but the columns
# are nullable because an adopted table has rows without a sequence.
INTERNAL_COLUMNS = (
    Column(SEQ, ColumnType.BIGINT, "Position of the row in this home's order; unique, never reused.", distinct=True),
    Column(SOURCE, ColumnType.STRING, "Logical partition of the row."),
    Column(ROW_ID, ColumnType.STRING, "sha256 of the coerced row.", distinct=True),
    Column(BATCH_ID, ColumnType.STRING, "The flush that wrote the row."),
)
_DISTINCT = "hyp.distinct"
"""Marks columns whose values are distinct in the schema of a writer; the mark is not stored."""
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
    ColumnType.DOUBLE: "DOUBLE",
    ColumnType.BOOLEAN: "BOOLEAN",
    ColumnType.TIMESTAMP: "TIMESTAMP",
    ColumnType.JSON: "STRING",
}
ICEBERG_TYPES = {
    ColumnType.STRING: "string",
    ColumnType.INT: "int",
    ColumnType.BIGINT: "long",
    ColumnType.DOUBLE: "double",
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
            metadata={"PARQUET:field_id": str(field_ids[column.name]), **({_DISTINCT: ""} if column.distinct else {})},
        )
        for column in table_columns(dataset)
    )


def parquet_writer(
    path: Path | pa.NativeFile, schema: pa.Schema, footer: list[pq.FileMetaData] | None = None
) -> pq.ParquetWriter:
    """Return a writer of data files. When it is closed, it adds the footer to the list."""
    repeated = [field.name for field in schema if _DISTINCT.encode() not in (field.metadata or {})]
    options = {"compression": "zstd", "compression_level": 1, "store_schema": False, "use_dictionary": repeated}
    return pq.ParquetWriter(path, schema, metadata_collector=footer, **options)


def page_schema(dataset: Dataset) -> pa.Schema:
    """Return the schema of a page of rows: the sequence, then the public columns."""
    return pa.schema([(SEQ, pa.int64()), *((column.name, _ARROW_TYPES[column.type]) for column in dataset.columns)])


def full_table_name(dataset: str, namespace: str = NAMESPACE) -> str:
    return f"{CATALOG}.{namespace}.{dataset}"


def table_exists(spark: Any, dataset: str) -> bool:
    return bool(spark.catalog.tableExists(full_table_name(dataset)))
