"""The columns and partitions of the destination's table, and the Parquet files of a chunk, one for each partition.

A table created by the sink has the origin of each row (`ORIGIN_COLUMNS`), then the dataset's public columns; format v2,
zstd, partitioned by the day of the dataset's time column and by source. An existing table keeps its partitions and any
additional optional columns; missing columns are added, and columns that the dataset does not require become optional.

The files are written to a temporary folder of the engine's JVM, which copies them to the table's location. This works
with any store and is faster than passing the bytes to Java. No snapshot names the files yet.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware.export.sink import Chunk, ChunkRefused, DestinationDenied
from hypaware.model.columns import Column, ColumnType
from hypaware.model.datasets import SEQ, Dataset

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
_ICEBERG_TYPES = {
    ColumnType.STRING: "string",
    ColumnType.INT: "int",
    ColumnType.BIGINT: "long",
    ColumnType.DOUBLE: "double",
    ColumnType.BOOLEAN: "boolean",
    ColumnType.TIMESTAMP: "timestamptz",
    ColumnType.JSON: "string",
}
_WIDER = {"int": "long"}
_ROW_GROUP_ROWS = 50_000
_ROW_GROUP_BYTES = 32 << 20
_ARROW_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
_MICROSECONDS = {"day": 86_400_000_000, "hour": 3_600_000_000}
PartitionValues = tuple[Any, ...]


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


def origin_values(chunk: Chunk) -> dict[str, str]:
    """Return the values that all rows of the chunk's stream and incarnation share."""
    return {HYP_SOURCE: chunk.stream.source, HYP_GATEWAY: chunk.gateway_id, HYP_INCARNATION: chunk.incarnation}


def all_columns(dataset: Dataset) -> tuple[Column, ...]:
    return (*ORIGIN_COLUMNS, *dataset.columns)


def iceberg_type(column: Column) -> str:
    return _ICEBERG_TYPES[column.type]


def new_schema(dataset: Dataset) -> str:
    """Return the schema in Iceberg's JSON format."""
    fields = [
        {"id": number, "name": each.name, "required": each.required, "type": iceberg_type(each), "doc": each.about}
        for number, each in enumerate(all_columns(dataset), 1)
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


def plan_changes(dataset: Dataset, schema: str) -> tuple[list[Column], list[str]]:
    """Return the columns to add to a table with this schema, and the columns to make optional, for the dataset's rows.

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
    added = [column for column in wanted if column.name not in existing]
    relaxed = [
        column.name
        for column in wanted
        if not column.required and column.name in existing and existing[column.name].required
    ]
    return added, relaxed


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
        (transform == "identity" and column.type in ("string", "int", "boolean"))
        or (transform in ("year", "month", "day", "hour") and column.type == "timestamptz")
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
        values = [_partition_values(rows, field) for field in shape.partitions]
        indices: dict[PartitionValues, list[int]] = {}
        for index, partition in enumerate(zip(*values, strict=True) if values else [()] * rows.num_rows):
            indices.setdefault(partition, []).append(index)
        for partition, members in indices.items():
            part = rows if len(indices) == 1 else rows.take(pa.array(members))
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
    origin = origin_values(chunk)
    schema = pa.schema(
        pa.field(each.name, _ARROW_TYPES[each.type], not each.required, {"PARQUET:field_id": str(each.id)})
        for each in shape.fields
    )
    arrays = []
    for field in schema:
        if field.name in origin:
            arrays.append(pa.repeat(origin[field.name], table.num_rows))
            continue
        column = table.column(SEQ if field.name == HYP_SEQ else field.name)
        if not field.nullable and column.null_count:
            raise pa.ArrowInvalid(f"{field.name} may not be null")
        arrays.append(column.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


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
