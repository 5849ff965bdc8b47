"""Create a dataset's table and add the columns that the dataset gains.

Tables have format v2, are copy-on-write and partitioned by source and day. The sequence is the first column, and row
groups have a few MiB, so that a read after a sequence skips most of a file. Schema evolution only adds nullable columns
and makes required columns nullable.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypaware.errors import LakeError
from hypaware.lake.arrow import table_columns
from hypaware.lake.metadata import CATALOG, GATEWAY_ID, INCARNATION, NAMESPACE, Field, location_of
from hypaware.model.columns import Column, Type
from hypaware.model.datasets import SOURCE, Dataset
from hypaware.state.identity import Identity

PROPERTIES = {
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

_SQL_TYPES = {
    Type.STRING: "STRING",
    Type.INT: "INT",
    Type.BIGINT: "BIGINT",
    Type.BOOLEAN: "BOOLEAN",
    Type.TIMESTAMP: "TIMESTAMP",
    Type.JSON: "STRING",
}
_ICEBERG_TYPES = {
    Type.STRING: "string",
    Type.INT: "int",
    Type.BIGINT: "long",
    Type.BOOLEAN: "boolean",
    Type.TIMESTAMP: "timestamptz",
    Type.JSON: "string",
}


def full_name(dataset: str, namespace: str = NAMESPACE) -> str:
    return f"{CATALOG}.{namespace}.{dataset}"


def exists(spark: Any, dataset: str) -> bool:
    return bool(spark.catalog.tableExists(full_name(dataset)))


def create(
    spark: Any, dataset: Dataset, identity: Identity, namespace: str = NAMESPACE, location: Path | None = None
) -> None:
    properties = {**PROPERTIES, GATEWAY_ID: identity.gateway_id, INCARNATION: identity.incarnation}
    columns = ", ".join(_declared(column) for column in table_columns(dataset))
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    location_clause = f"LOCATION '{sql_text(location_of(location))}' " if location else ""
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{namespace}")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {full_name(dataset.name, namespace)} ({columns}) USING iceberg "
        f"PARTITIONED BY ({SOURCE}, days({dataset.time_column})) {location_clause}TBLPROPERTIES ({listed})"
    )


def evolve(table: Any, jvm: Any, dataset: Dataset, known: Mapping[str, Field]) -> bool:
    """Add missing columns to an Iceberg table (Java object) with the known fields. Tell whether it changed."""
    added = [column for column in table_columns(dataset) if column.name not in known]
    relaxed = [column for column in table_columns(dataset) if not column.required and _is_required(column, known)]
    for column in table_columns(dataset):
        if column.name in known and known[column.name].type != _ICEBERG_TYPES[column.type]:
            raise LakeError(
                f"table {dataset.name}: column {column.name} is {known[column.name].type} in the lake and "
                f"{_ICEBERG_TYPES[column.type]} in the dataset; the type of a column cannot change",
                kind="schema_conflict",
            )
    if not added and not relaxed:
        return False
    change = table.updateSchema()
    for column in added:
        type_ = jvm.org.apache.iceberg.types.Types.fromPrimitiveString(_ICEBERG_TYPES[column.type])
        change = change.addColumn(column.name, type_)
    for column in relaxed:
        change = change.makeColumnOptional(column.name)
    change.commit()
    return True


def _is_required(column: Column, known: Mapping[str, Field]) -> bool:
    return column.name in known and known[column.name].required


def sql_text(value: str) -> str:
    """Escape a value for a SQL string in single quotes."""
    return value.replace("\\", "\\\\").replace("'", "\\'")


def _declared(column: Column) -> str:
    return f"`{column.name}` {_SQL_TYPES[column.type]}{' NOT NULL' if column.required else ''}"
