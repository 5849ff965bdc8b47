"""The destination's table through Iceberg's Java API: open, query, append. Everything here runs on Spark's thread.

A chunk is one commit: its files, its id and range in the snapshot summary, and the delivery record of its stream.
Between the check of the record and the commit another engine may deliver the same rows (a copied home, a JVM presumed
dead). The append is therefore an overwrite that replaces nothing and conflicts with any new rows of this stream since
the checked snapshot: Iceberg validates this each time it retries the commit, and fails instead of duplicating rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware import faults
from hypaware.export.sink import Chunk, DestinationDenied, StreamCoverage
from hypaware.export.sinks.iceberg import CatalogSettings, data_files, java_errors
from hypaware.export.sinks.iceberg.data_files import (
    DATASET_PROPERTY,
    HYP_GATEWAY,
    HYP_SEQ,
    PartitionFile,
    TableLayout,
)
from hypaware.home import durable_files
from hypaware.home.storage import parse_location
from hypaware.lake.build import encode_path_name
from hypaware.model.datasets import GATEWAY, SEQ, Dataset
from hypaware.state.streams import StreamKey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SequenceRange = tuple[int, int]
_after_files = faults.crash_point(
    "export.iceberg.after-files", "a chunk's files are uploaded and fsynced, no snapshot names them"
)
_before_commit = faults.crash_point(
    "export.iceberg.before-commit", "a chunk's commit is prepared, the table is unchanged"
)
_after_commit = faults.crash_point(
    "export.iceberg.after-commit", "a chunk is committed, nothing is fsynced or recorded"
)
_NAME_MAX = 120
# Messages of SQLite and of PostgreSQL.
_ALREADY_EXISTS = re.compile(r"duplicate column name|already exists")


class CommitConflict(Exception):
    """Another engine delivered rows of this stream at the same time. Nothing was committed."""


class IcebergTable:
    def __init__(self, spark: SparkSession, catalog: Any, table: Any, dataset: Dataset) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._catalog = catalog
        self._table = table
        self._dataset = dataset
        self.uuid = str(table.uuid().toString())
        self.scratch = Path(str(self._jvm.java.lang.System.getProperty("java.io.tmpdir")))
        """A folder that is deleted with the JVM."""
        parsers = self._jvm.org.apache.iceberg
        self.shape: TableLayout = data_files.read_layout(
            dataset,
            str(parsers.SchemaParser.toJson(table.schema())),
            str(parsers.PartitionSpecParser.toJson(table.spec())),
        )

    def close(self) -> None:
        _close_catalog(self._jvm, self._catalog)

    def read_record(self, chunk: Chunk) -> DeliveryRecord | None:
        """Refresh the table, and return the delivery record of the chunk's stream."""
        self._table.refresh()
        key = chunk_record_key(chunk)
        found = self._table.properties().get(key)
        return parse_record(key, str(found)) if found else None

    def find_sequences(self, chunk: Chunk) -> set[int]:
        """Return the sequences in the chunk's range that the table holds, independent of the record."""
        if not self._may_have_rows(self._filter(chunk, in_range=True)):
            return set()
        found = self._rows(chunk)
        inside = found.where(found[HYP_SEQ] > chunk.after).where(found[HYP_SEQ] <= chunk.last)
        return set(inside.select(HYP_SEQ).toArrow().column(HYP_SEQ).to_pylist())

    def find_known(self, chunk: Chunk, rows: pa.Table) -> set[int]:
        """Return the sequences of those rows that the table has from this gateway, by their dedupe keys."""
        from pyspark.sql import functions as F

        from hypaware.lake.spark_table import dedupe_key_sql

        self._table.refresh()
        key = f"{dedupe_key_sql(self._dataset)} AS row_key"
        names = {SEQ, GATEWAY, self._dataset.key_column, *self._dataset.key_parts} & set(rows.column_names)
        if self._table.currentSnapshot() is None:
            return set()
        rows_of_gateway = self._all_rows().where(F.col(HYP_GATEWAY) == F.lit(chunk.gateway_id))
        stored = rows_of_gateway.selectExpr(key)
        sent = self._spark.createDataFrame(rows.select(sorted(names))).selectExpr(SEQ, key)
        return set(sent.join(stored, "row_key", "left_semi").select(SEQ).toArrow().column(SEQ).to_pylist())

    def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> StreamCoverage:
        """Return the coverage from the record; if it is missing, from the rows, which do not show refused ranges."""
        everything = Chunk("", stream, gateway_id, incarnation, 0, 0)
        found = self.read_record(everything)
        if found is not None:
            return found.coverage
        if not self._may_have_rows(self._filter(everything)):
            return StreamCoverage(0)
        highest = self._rows(everything).agg({HYP_SEQ: "max"}).first()
        return StreamCoverage((highest[0] or 0) if highest else 0)

    def upload(self, parts: Sequence[PartitionFile]) -> list[Any]:
        """Copy the files to the table's location and fsync them. Returns Iceberg data files that no snapshot names."""
        found = [self._upload(part) for part in parts]
        fsync_files(str(self._table.location()), [str(file.location()) for file in found])
        _after_files()
        return found

    def discard(self, files: Sequence[Any]) -> None:
        """Delete uploaded files that are certainly in no snapshot."""
        for file in files:
            self._table.io().deleteFile(str(file.location()))

    def commit(self, chunk: Chunk, files: Sequence[Any], known: DeliveryRecord) -> None:
        """Commit on top of the last refreshed snapshot. Raises Conflict if another engine added rows of the stream."""
        checked = self._table.currentSnapshot()
        try:
            transaction = self._table.newTransaction()
            append = transaction.newOverwrite()
            if checked is not None:
                append = append.validateFromSnapshot(checked.snapshotId())
            append = append.conflictDetectionFilter(self._filter(chunk)).validateNoConflictingData()
            for file in files:
                append = append.addFile(file)
            append.set("hyp.chunk-id", chunk.id).set("hyp.range", f"{chunk.after}-{chunk.last}").commit()
            extended = known.with_range(chunk.after, chunk.last)
            transaction.updateProperties().set(chunk_record_key(chunk), extended.text).commit()
            _before_commit()
            transaction.commitTransaction()
            _after_commit()
        except Exception as error:
            if java_errors.is_iceberg_error(error, "ValidationException"):
                raise CommitConflict from error
            raise
        self._table.refresh()

    def fsync_commit(self) -> None:
        """Make the newest commit survive a power cut. Its data files were fsynced before it."""
        written = [str(self._table.operations().current().metadataFileLocation())]
        if not is_local(written[0]):
            return
        if (snapshot := self._table.currentSnapshot()) is not None:
            written.append(str(snapshot.manifestListLocation()))
            written += [str(manifest.path()) for manifest in snapshot.allManifests(self._table.io())]
        fsync_files(str(self._table.location()), written)

    def _upload(self, part: PartitionFile) -> Any:
        iceberg, table = self._jvm.org.apache.iceberg, self._table
        spec = table.specs().get(self.shape.spec_id)
        partition = iceberg.PartitionData(spec.partitionType())
        for index, value in enumerate(part.partition):
            partition.set(index, value)
        # Values that are too long for a folder name are shortened: readers use the table's metadata, never the names.
        folders = [
            name if len(name) <= _NAME_MAX else f"{name[:80]}~{sha256(name.encode()).hexdigest()[:16]}"
            for name in str(spec.partitionToPath(partition)).split("/")
            if name
        ]
        location = str(table.locationProvider().newDataLocation("/".join([*folders, part.path.name])))
        stream = table.io().newOutputFile(location).create()
        try:
            self._jvm.java.nio.file.Files.copy(self._jvm.java.io.File(str(part.path)).toPath(), stream)
        finally:
            stream.close()
        stored = table.io().newInputFile(location)
        metrics = iceberg.parquet.ParquetUtil.fileMetrics(stored, iceberg.MetricsConfig.forTable(table))
        builder = iceberg.DataFiles.builder(spec).withInputFile(stored).withFormat("parquet")
        return builder.withPartition(partition).withMetrics(metrics).build()

    def _may_have_rows(self, wanted: Any) -> bool:
        """Decide by the statistics of the files alone."""
        if self._table.currentSnapshot() is None:
            return False
        files = self._table.newScan().filter(wanted).planFiles()
        try:
            return bool(files.iterator().hasNext())
        finally:
            files.close()

    def _rows(self, chunk: Chunk) -> DataFrame:
        """Return all rows of the chunk's stream and incarnation."""
        from pyspark.sql import functions as F

        rows = self._all_rows()
        for column, value in data_files.origin_values(chunk).items():
            rows = rows.where(F.col(column) == F.lit(value))
        return rows

    def _all_rows(self) -> DataFrame:
        from pyspark.sql import DataFrame

        loaded = self._jvm.org.apache.iceberg.spark.SparkTableUtil.loadTable(
            self._spark._jsparkSession, self._table, self._table.currentSnapshot().snapshotId()
        )
        return DataFrame(loaded, self._spark)

    def _filter(self, chunk: Chunk, *, in_range: bool = False) -> Any:
        """Return the filter for the rows of the chunk's stream and incarnation, of all of them or of its range."""
        expressions = self._jvm.org.apache.iceberg.expressions.Expressions
        terms = [expressions.equal(column, value) for column, value in data_files.origin_values(chunk).items()]
        if in_range:
            terms += [expressions.greaterThan(HYP_SEQ, chunk.after), expressions.lessThanOrEqual(HYP_SEQ, chunk.last)]
        return reduce(getattr(expressions, "and"), terms)


def open_table(spark: SparkSession, settings: CatalogSettings, name: str, dataset: Dataset) -> IcebergTable:
    """Open the table; create it if it is missing, and add the dataset's columns that it lacks.

    The catalog is not registered with Spark, so no setting of the session holds its credentials.
    """
    jvm: Any = spark._jvm
    iceberg = jvm.org.apache.iceberg
    catalog = _open_catalog(spark, settings)
    try:
        identifier = iceberg.catalog.TableIdentifier.parse(name)
        try:
            table = catalog.loadTable(identifier)
        except Exception as error:
            if not java_errors.is_iceberg_error(error, "NoSuchTableException", "NoSuchNamespaceException"):
                raise
            table = _create_table(jvm, catalog, identifier, dataset)
        _extend_table(jvm, table, dataset)
        return IcebergTable(spark, catalog, table, dataset)
    except BaseException:
        _close_catalog(jvm, catalog)
        raise


def _close_catalog(jvm: Any, catalog: Any) -> None:
    if jvm.java.lang.Class.forName("java.io.Closeable").isInstance(catalog):
        catalog.close()


def _open_catalog(spark: SparkSession, settings: CatalogSettings) -> Any:
    """Open the catalog. A JDBC catalog creates its own tables and fails if another engine does so at the same time."""
    try:
        return _build_catalog(spark, settings)
    except Exception as error:
        if not any(_ALREADY_EXISTS.search(cause.message) for cause in java_errors.java_causes(error)):
            raise
        return _build_catalog(spark, settings)


def _build_catalog(spark: SparkSession, settings: CatalogSettings) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
        settings.name, _java_map(jvm, settings.properties), spark.sparkContext._jsc.hadoopConfiguration()
    )


def _create_table(jvm: Any, catalog: Any, identifier: Any, dataset: Dataset) -> Any:
    """Create the table. If another engine creates it at the same time, use that one."""
    parsers = jvm.org.apache.iceberg
    namespace = identifier.namespace()
    if not catalog.namespaceExists(namespace):
        try:
            catalog.createNamespace(namespace, _java_map(jvm, {}))
        except Exception:
            if not catalog.namespaceExists(namespace):
                raise
    schema = parsers.SchemaParser.fromJson(data_files.new_schema(dataset))
    spec = parsers.PartitionSpecParser.fromJson(schema, data_files.new_partitions(dataset))
    properties = {**data_files.NEW_TABLE_PROPERTIES, DATASET_PROPERTY: dataset.name}
    try:
        return catalog.createTable(identifier, schema, spec, _java_map(jvm, properties))
    except Exception as error:
        if java_errors.is_iceberg_error(error, "AlreadyExistsException"):
            return catalog.loadTable(identifier)
        raise


def _extend_table(jvm: Any, table: Any, dataset: Dataset) -> None:
    """Add whatever the table lacks to accept the dataset's rows."""
    holds = table.properties().get(DATASET_PROPERTY)
    if holds not in (None, dataset.name):
        raise DestinationDenied(
            f"the table holds rows of {holds}, not of {dataset.name}: configure another table",
            kind="wrong_table",
            repair="hyp config show",
        )
    schema = str(jvm.org.apache.iceberg.SchemaParser.toJson(table.schema()))
    added, relaxed = data_files.plan_changes(dataset, schema)
    if added or relaxed:
        change = table.updateSchema()
        for column in added:
            type_ = jvm.org.apache.iceberg.types.Types.fromPrimitiveString(data_files.iceberg_type(column))
            change = change.addColumn(column.name, type_, column.about)
        for name in relaxed:
            change = change.makeColumnOptional(name)
        change.commit()
    wanted = {**data_files.METRICS_PROPERTIES, DATASET_PROPERTY: dataset.name}
    missing = {key: value for key, value in wanted.items() if table.properties().get(key) is None}
    if missing:
        update = table.updateProperties()
        for key, value in missing.items():
            update = update.set(key, value)
        update.commit()


def _java_map(jvm: Any, values: Mapping[str, str]) -> Any:
    result = jvm.java.util.HashMap()
    for key, value in values.items():
        result.put(key, value)
    return result


@dataclass(frozen=True)
class DeliveryRecord:
    """The delivered ranges of one stream, in a property of the table.

    `hyp.delivered.<gateway>.<incarnation>.<source>` = `0-100,101-250`: the ranges (after, last], sorted, with adjacent
    ones joined; names are escaped as in a path. The record changes in the commit that adds the rows.
    """

    ranges: tuple[SequenceRange, ...] = ()

    def covers(self, after: int, last: int) -> bool:
        return any(start <= after and last <= end for start, end in self.ranges)

    def overlaps(self, after: int, last: int) -> bool:
        return any(start < last and after < end for start, end in self.ranges)

    def with_range(self, after: int, last: int) -> DeliveryRecord:
        return DeliveryRecord(_join_ranges([*self.ranges, (after, last)]))

    @property
    def text(self) -> str:
        return ",".join(f"{after}-{last}" for after, last in self.ranges)

    @property
    def coverage(self) -> StreamCoverage:
        return StreamCoverage.from_ranges(self.ranges)


def record_key(gateway_id: str, incarnation: str, source: str) -> str:
    return f"hyp.delivered.{encode_path_name(gateway_id)}.{encode_path_name(incarnation)}.{encode_path_name(source)}"


def chunk_record_key(chunk: Chunk) -> str:
    return record_key(chunk.gateway_id, chunk.incarnation, chunk.stream.source)


def parse_record(key: str, text: str) -> DeliveryRecord:
    try:
        ranges = [(int(after), int(last)) for after, last in (part.split("-") for part in text.split(","))]
        if any(after >= last for after, last in ranges):
            raise ValueError
    except ValueError:
        raise DestinationDenied(
            f"the table's property {key} is {text[:100]!r}, not a list of ranges: it was changed by another program. "
            "Remove the property, and delivery looks at the rows instead",
            kind="destination_damaged",
        ) from None
    return DeliveryRecord(_join_ranges(ranges))


def _join_ranges(ranges: Iterable[SequenceRange]) -> tuple[SequenceRange, ...]:
    found: list[SequenceRange] = []
    for after, last in sorted(ranges):
        if found and after <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((after, last))
    return tuple(found)


def is_local(location: str) -> bool:
    return location.startswith(("file:", "/"))


def fsync_files(table_location: str, files: Iterable[str]) -> None:
    """Fsync local files and all folders above them, up to the one that holds the table's namespace.

    Iceberg does not fsync its files; other stores do not need it. A chunk is reported as delivered only after this.
    """
    paths = [parse_location(file) for file in files if is_local(file)]
    folders = {path.parent for path in paths}
    if paths and is_local(table_location):
        table = parse_location(table_location)
        folders |= {folder for path in paths for folder in path.parents if folder.is_relative_to(table)}
        folders.update(table.parents[:2])
    for path in paths:
        durable_files.fsync_file(path)
    for folder in sorted(folders, reverse=True):
        durable_files.fsync_dir(folder)
