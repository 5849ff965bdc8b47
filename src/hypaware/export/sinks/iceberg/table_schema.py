"""The columns and partitions of the destination's table, and whether an existing table fits.

A table created by the sink has the origin of each row (`OWN`), then the dataset's public columns; format v2, zstd,
partitioned by the day of the dataset's time column and by source. An existing table keeps its partitions and any
additional optional columns; missing columns are added, and columns that the dataset does not require become optional.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypaware.export.sink import DestinationDenied
from hypaware.model.columns import Column, ColumnType
from hypaware.model.datasets import Dataset

HYP_SEQ = "hyp_seq"
HYP_GATEWAY = "hyp_gateway_id"
HYP_INCARNATION = "hyp_incarnation"
HYP_SOURCE = "hyp_source"
ORIGIN_COLUMNS = (
    Column(HYP_SEQ, ColumnType.BIGINT, "Sequence of the row in the home that sent it.", required=True),
    Column(HYP_GATEWAY, ColumnType.STRING, "The installation that sent the row.", required=True),
    Column(
        HYP_INCARNATION, ColumnType.STRING, "Incarnation of that installation; scope of its sequences.", required=True
    ),
    Column(HYP_SOURCE, ColumnType.STRING, "Source of the row in its home.", required=True),
)
DATASET_PROPERTY = "hyp.dataset"
# Full column bounds, so that a search for rows of a stream does not have to read the files.
METRICS_PROPERTIES = {f"write.metadata.metrics.column.{column.name}": "full" for column in ORIGIN_COLUMNS}
NEW_TABLE_PROPERTIES = {
    **METRICS_PROPERTIES,
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # Many machines may commit at once: retry instead of giving up.
    "commit.retry.num-retries": "20",
}
_TYPES = {
    ColumnType.STRING: "string",
    ColumnType.INT: "int",
    ColumnType.BIGINT: "long",
    ColumnType.BOOLEAN: "boolean",
    ColumnType.TIMESTAMP: "timestamptz",
    ColumnType.JSON: "string",
}
_WIDER = {"int": "long"}
_TIME_TRANSFORMS = ("year", "month", "day", "hour")
_IDENTITY_TYPES = ("string", "int", "boolean")


@dataclass(frozen=True)
class SchemaField:
    id: int
    name: str
    type: str
    required: bool


@dataclass(frozen=True)
class PartitionField:
    column: str
    transform: str


@dataclass(frozen=True)
class TableLayout:
    """The columns and partitions that a data file of the table must have."""

    fields: tuple[SchemaField, ...]
    """The fields that the sink writes."""
    spec_id: int
    partitions: tuple[PartitionField, ...]


@dataclass(frozen=True)
class SchemaChanges:
    added: tuple[Column, ...]
    relaxed: tuple[str, ...]


def all_columns(dataset: Dataset) -> tuple[Column, ...]:
    return (*ORIGIN_COLUMNS, *dataset.columns)


def iceberg_type(column: Column) -> str:
    return _TYPES[column.type]


def new_schema(dataset: Dataset) -> str:
    """Return the schema in Iceberg's JSON format."""
    fields = [
        {
            "id": number,
            "name": column.name,
            "required": column.required,
            "type": iceberg_type(column),
            "doc": column.about,
        }
        for number, column in enumerate(all_columns(dataset), 1)
    ]
    return json.dumps({"type": "struct", "schema-id": 0, "fields": fields})


def new_partitions(dataset: Dataset) -> str:
    ids = {column.name: number for number, column in enumerate(all_columns(dataset), 1)}
    day, source = dataset.time_column, HYP_SOURCE
    fields = [
        {"name": f"{day}_day", "transform": "day", "source-id": ids[day], "field-id": 1000},
        {"name": source, "transform": "identity", "source-id": ids[source], "field-id": 1001},
    ]
    return json.dumps({"spec-id": 0, "fields": fields})


def plan_changes(dataset: Dataset, schema: str) -> SchemaChanges:
    """Return the changes that a table with this schema needs to accept the dataset's rows.

    Raises DestinationDenied if no change can make it fit.
    """
    existing = _parse_fields(schema)
    wanted = all_columns(dataset)
    names = {column.name for column in wanted}
    wrong = [
        f"{column.name} has type {existing[column.name].type} instead of {iceberg_type(column)}"
        for column in wanted
        if column.name in existing
        and existing[column.name].type not in (iceberg_type(column), _WIDER.get(iceberg_type(column)))
    ]
    wrong += [
        f"{field.name} is required, but the dataset has no such column"
        for field in existing.values()
        if field.required and field.name not in names
    ]
    if wrong:
        raise DestinationDenied(
            f"the columns of the table do not fit the dataset {dataset.name}: {'; '.join(wrong)}",
            kind="schema_conflict",
            repair="hyp config show",
        )
    return SchemaChanges(
        added=tuple(column for column in wanted if column.name not in existing),
        relaxed=tuple(
            column.name
            for column in wanted
            if not column.required and column.name in existing and existing[column.name].required
        ),
    )


def read_layout(dataset: Dataset, schema: str, spec: str) -> TableLayout:
    existing = _parse_fields(schema)
    return TableLayout(
        fields=tuple(existing[column.name] for column in all_columns(dataset)),
        spec_id=json.loads(spec)["spec-id"],
        partitions=tuple(_partition_field(field, existing) for field in json.loads(spec)["fields"]),
    )


def _partition_field(field: Mapping[str, Any], existing: Mapping[str, SchemaField]) -> PartitionField:
    column = next((found for found in existing.values() if found.id == field["source-id"]), None)
    transform = field["transform"]
    if transform == "void":
        return PartitionField("", transform)
    is_known = column is not None and (
        (transform == "identity" and column.type in _IDENTITY_TYPES)
        or (transform in _TIME_TRANSFORMS and column.type == "timestamptz")
    )
    if column is None or not is_known:
        raise DestinationDenied(
            f"the table is partitioned by {transform} of {column.name if column else 'a nested column'}, "
            "which this sink does not support: configure another table, or change its partitions",
            kind="partitions_unknown",
            repair="hyp config show",
        )
    return PartitionField(column.name, transform)


def _parse_fields(schema: str) -> dict[str, SchemaField]:
    """Return the fields by name. A nested type is called `nested` and fits no column."""
    return {
        field["name"]: SchemaField(
            field["id"],
            field["name"],
            field["type"] if isinstance(field["type"], str) else "nested",
            field["required"],
        )
        for field in json.loads(schema)["fields"]
    }
