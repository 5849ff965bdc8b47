"""A lightweight lake for tests: implements the protocols of `lake.table` with PyIceberg, without Spark."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import And, EqualTo, GreaterThan, LessThanOrEqual
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import BooleanType, DoubleType, IntegerType, LongType, NestedField, StringType, TimestamptzType
from sqlalchemy import make_url

from hypaware.config.shared_lake import find_shared_lake
from hypaware.home import Home, durable_files
from hypaware.home.storage import arrow_source, format_location, parse_location
from hypaware.iceberg.fsync import fsync_commit
from hypaware.iceberg.metadata import (
    CATALOG,
    FLOOR_PROPERTY,
    FLUSH_ID_PROPERTY,
    GATEWAY_ID_PROPERTY,
    NAMESPACE,
    SEGMENTS_PROPERTY,
    read_metadata,
)
from hypaware.lake.build import BuildFailure, BuildResult, BuildWatcher, BuiltFile, Task, run_catching
from hypaware.lake.schema import TABLE_PROPERTIES, table_columns
from hypaware.lake.snapshots import list_expirable
from hypaware.lake.table import NotCommitted, TableChange
from hypaware.model.columns import ColumnType
from hypaware.model.datasets import BATCH_ID, SEQ, SOURCE, Dataset
from hypaware.state.flushes import Flush
from hypaware.state.home_opener import read_identity

# PyIceberg's overwrite shares one stateful manifest evaluator between its threads. With several workers it sometimes
# skips a manifest and reports "Missing required files to delete".
os.environ.setdefault("PYICEBERG_MAX_WORKERS", "1")

_TYPES = {
    ColumnType.STRING: StringType(),
    ColumnType.INT: IntegerType(),
    ColumnType.BIGINT: LongType(),
    ColumnType.DOUBLE: DoubleType(),
    ColumnType.BOOLEAN: BooleanType(),
    ColumnType.TIMESTAMP: TimestamptzType(),
    ColumnType.JSON: StringType(),
}


def open_catalog(home: Home) -> SqlCatalog:
    """Return the catalog of a home, or that of a shared lake, whose keys are in the environment."""
    if (shared := find_shared_lake(home)) is None:
        return SqlCatalog(
            CATALOG, uri=f"sqlite:///{home.catalog}", warehouse=f"file://{home.warehouse}", init_catalog_tables="true"
        )
    address = make_url(shared.uri).set(drivername="postgresql+psycopg2", username=shared.user, password=shared.password)
    return SqlCatalog(
        CATALOG,
        uri=address.render_as_string(hide_password=False),
        warehouse=shared.warehouse,
        **{"s3.endpoint": shared.s3.endpoint, "s3.region": shared.s3.region},
    )


class LightLake:
    def __init__(self, home: Home) -> None:
        durable_files.make_dir(home.lake)
        self._home = home
        self.catalog = open_catalog(home)
        self._background = ThreadPoolExecutor(2, "build")

    def close(self) -> None:
        self._background.shutdown()
        self.catalog.close()

    def table(self, dataset: Dataset) -> LightTable:
        identifier = (NAMESPACE, dataset.name)
        if not self.catalog.table_exists(identifier):
            self.catalog.create_namespace_if_not_exists(NAMESPACE)
            schema, spec = _schema(dataset)
            owner = {GATEWAY_ID_PROPERTY: read_identity(self._home).gateway_id}
            self.catalog.create_table(identifier, schema, partition_spec=spec, properties={**TABLE_PROPERTIES, **owner})
            fsync_commit(self._home, dataset.name)
        return LightTable(self.catalog.load_table(identifier), dataset)

    def run(self, tasks: Sequence[Task]) -> list[BuildResult | BuildFailure]:
        return [run_catching(task) for task in tasks]

    def start(
        self, tasks: Sequence[Task], watch: BuildWatcher | None = None
    ) -> Future[list[BuildResult | BuildFailure]]:
        return self._background.submit(self.run, tasks)


class LightTable:
    def __init__(self, table: Any, dataset: Dataset) -> None:
        self._table = table
        self._dataset = dataset

    @property
    def uuid(self) -> str:
        return str(self._table.metadata.table_uuid)

    @property
    def floor(self) -> int:
        return int(self._table.properties.get(FLOOR_PROPERTY, 0))

    @property
    def gateway_id(self) -> str | None:
        found = self._table.properties.get(GATEWAY_ID_PROPERTY)
        return str(found) if found else None

    @property
    def rebuilt_from(self) -> str | None:
        return None

    @property
    def field_ids(self) -> Mapping[str, int]:
        return {field.name: field.field_id for field in self._table.schema().fields}

    @property
    def data_root(self) -> Path:
        return parse_location(self._table.location()) / "data"

    def find_flush(self, flush: Flush) -> dict[str, tuple[int, int]]:
        in_range = And(GreaterThan(SEQ, flush.after), LessThanOrEqual(SEQ, flush.last))
        rows = self._table.scan(And(in_range, EqualTo(BATCH_ID, flush.id)), selected_fields=(SEQ, SOURCE)).to_arrow()
        by_source: dict[str, tuple[int, int]] = {}
        for row in rows.to_pylist():
            highest, count = by_source.get(row[SOURCE], (0, 0))
            by_source[row[SOURCE]] = (max(highest, row[SEQ]), count + 1)
        return by_source

    def commit(self, flush: Flush, files: Sequence[BuiltFile]) -> None:
        summary = {
            FLUSH_ID_PROPERTY: flush.id,
            "hyp.seq-range": f"{flush.after}-{flush.last}",
            SEGMENTS_PROPERTY: ",".join(segment.name for segment in flush.segments),
        }
        with self._table.transaction() as transaction:
            with transaction.update_snapshot(snapshot_properties=summary).fast_append() as append:
                for file in files:
                    append.append_data_file(self._data_file(file))
            transaction.set_properties({FLOOR_PROPERTY: str(flush.last)})

    def append(self, file: BuiltFile) -> None:
        """Add a file as another program does that knows nothing of floors and flushes."""
        with self._table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            append.append_data_file(self._data_file(file))

    def replace_files(self, change: TableChange) -> None:
        live = {task.file.file_path: task.file for task in self._table.scan().plan_files()}
        if any(file.location not in live for file in change.removed):
            raise NotCommitted("a file that should go is not part of the table any more")
        with self._table.transaction() as transaction:
            if change.removed or change.added:
                with transaction.update_snapshot(snapshot_properties=dict(change.summary)).overwrite() as overwrite:
                    for file in change.removed:
                        overwrite.delete_data_file(live[file.location])
                    for built in change.added:
                        overwrite.append_data_file(self._data_file(built))
            if change.properties:
                transaction.set_properties(dict(change.properties))

    def expire(self, horizon: float, keep: int = 1) -> int:
        known = read_metadata(parse_location(self._table.metadata_location))
        gone = [snapshot.id for snapshot in list_expirable(known, horizon, keep)]
        if gone:
            self._table.maintenance.expire_snapshots().by_ids(gone).commit()
        return len(gone)

    def _data_file(self, file: BuiltFile) -> DataFile:
        schema = self._table.schema()
        statistics = data_file_statistics_from_parquet_metadata(
            pq.read_metadata(arrow_source(file.path)),
            stats_columns=compute_statistics_plan(schema, self._table.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        days = (date.fromisoformat(file.day) - date(1970, 1, 1)).days
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=format_location(file.path),
            file_format=FileFormat.PARQUET,
            partition=Record(file.source, days),
            file_size_in_bytes=file.bytes,
            sort_order_id=None,
            spec_id=self._table.spec().spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def read_lake(home: Home, dataset: str) -> list[dict[str, Any]]:
    """Return every row with its internal columns, through an independent reader."""
    with closing(open_catalog(home)) as catalog:
        if not catalog.table_exists((NAMESPACE, dataset)):
            return []
        return list(catalog.load_table((NAMESPACE, dataset)).scan().to_arrow().to_pylist())


def _schema(dataset: Dataset) -> tuple[Schema, PartitionSpec]:
    fields = [
        NestedField(place, column.name, _TYPES[column.type], required=column.required)
        for place, column in enumerate(table_columns(dataset), 1)
    ]
    ids = {field.name: field.field_id for field in fields}
    spec = PartitionSpec(
        PartitionField(ids[SOURCE], 1000, IdentityTransform(), SOURCE),
        PartitionField(ids[dataset.time_column], 1001, DayTransform(), f"{dataset.time_column}_day"),
    )
    return Schema(*fields), spec
