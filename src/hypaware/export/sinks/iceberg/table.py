"""Query and append to the destination's table through Iceberg's Java API. Everything here runs on Spark's thread.

A chunk is one commit: its files, its id and range in the snapshot summary, and the delivery record of its stream.
Between the check of the record and the commit another engine may deliver the same rows (a copied home, a JVM presumed
dead). The append is therefore an overwrite that replaces nothing and conflicts with any new rows of this stream since
the checked snapshot: Iceberg validates this each time it retries the commit, and fails instead of duplicating rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware import faults
from hypaware.export.sink import Chunk, Delivered
from hypaware.export.sinks.iceberg import record, secured, shape, troubles
from hypaware.export.sinks.iceberg.parts import Part
from hypaware.export.sinks.iceberg.record import Record
from hypaware.export.sinks.iceberg.shape import HYP_GATEWAY, HYP_INCARNATION, HYP_SEQ, HYP_SOURCE, Shape
from hypaware.model.datasets import Dataset
from hypaware.state.stream_key import StreamKey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_after_files = faults.point(
    "export.iceberg.after-files", "a chunk's files are uploaded and fsynced, no snapshot names them"
)
_before_commit = faults.point("export.iceberg.before-commit", "a chunk's commit is prepared, the table is unchanged")
_after_commit = faults.point("export.iceberg.after-commit", "a chunk is committed, nothing is fsynced or recorded")

CHUNK_ID = "hyp.chunk-id"
RANGE = "hyp.range"
_NAME_MAX = 120


class Conflict(Exception):
    """Another engine delivered rows of this stream at the same time. Nothing was committed."""


class IcebergTable:
    def __init__(self, spark: SparkSession, catalog: Any, table: Any, dataset: Dataset) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._catalog = catalog
        self._table = table
        self.uuid = str(table.uuid().toString())
        self.scratch = Path(str(self._jvm.java.lang.System.getProperty("java.io.tmpdir")))
        """A folder that is deleted with the JVM."""
        parsers = self._jvm.org.apache.iceberg
        self.shape: Shape = shape.shape_of(
            dataset,
            str(parsers.SchemaParser.toJson(table.schema())),
            str(parsers.PartitionSpecParser.toJson(table.spec())),
        )

    def close(self) -> None:
        if self._jvm.java.lang.Class.forName("java.io.Closeable").isInstance(self._catalog):
            self._catalog.close()

    def refresh(self) -> None:
        self._table.refresh()

    def read_record(self, key: str) -> Record | None:
        found = self._table.properties().get(key)
        return record.parse(key, str(found)) if found else None

    def find_sequences(self, chunk: Chunk) -> set[int]:
        """Return the sequences in the chunk's range that the table holds, independent of the record."""
        if not self._may_have_rows(self._filter(chunk.stream, chunk.gateway_id, chunk.incarnation, chunk)):
            return set()
        found = self._rows(chunk.stream, chunk.gateway_id, chunk.incarnation)
        inside = found.where(found[HYP_SEQ] > chunk.after).where(found[HYP_SEQ] <= chunk.last)
        return set(inside.select(HYP_SEQ).toArrow().column(HYP_SEQ).to_pylist())

    def coverage(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered:
        """Return the coverage from the record; if it is missing, from the rows, which do not show refused ranges."""
        found = self.read_record(record.key_of(gateway_id, incarnation, stream.source))
        if found is not None:
            return found.coverage
        if not self._may_have_rows(self._filter(stream, gateway_id, incarnation)):
            return Delivered(0)
        highest = self._rows(stream, gateway_id, incarnation).agg({HYP_SEQ: "max"}).first()
        return Delivered((highest[0] or 0) if highest else 0)

    def upload(self, parts: Sequence[Part]) -> list[Any]:
        """Copy the files to the table's location and fsync them. Returns Iceberg data files that no snapshot names."""
        found = [self._upload(part) for part in parts]
        secured.secure(str(self._table.location()), [str(file.location()) for file in found])
        _after_files()
        return found

    def discard(self, files: Sequence[Any]) -> None:
        """Delete uploaded files that are certainly in no snapshot."""
        for file in files:
            self._table.io().deleteFile(str(file.location()))

    def commit(self, chunk: Chunk, files: Sequence[Any], known: Record) -> None:
        """Commit on top of the last refreshed snapshot. Raises Conflict if another engine added rows of the stream."""
        checked = self._table.currentSnapshot()
        try:
            transaction = self._table.newTransaction()
            append = transaction.newOverwrite()
            if checked is not None:
                append = append.validateFromSnapshot(checked.snapshotId())
            ours = self._filter(chunk.stream, chunk.gateway_id, chunk.incarnation)
            append = append.conflictDetectionFilter(ours).validateNoConflictingData()
            for file in files:
                append = append.addFile(file)
            append.set(CHUNK_ID, chunk.id).set(RANGE, f"{chunk.after}-{chunk.last}").commit()
            extended = known.with_range(chunk.after, chunk.last)
            transaction.updateProperties().set(record.chunk_key(chunk), extended.text).commit()
            _before_commit()
            transaction.commitTransaction()
            _after_commit()
        except Exception as error:
            if troubles.is_a(error, "ValidationException"):
                raise Conflict from error
            raise
        self._table.refresh()

    def fsync_commit(self) -> None:
        """Make the newest commit survive a power cut. Its data files were fsynced before it."""
        written = [str(self._table.operations().current().metadataFileLocation())]
        if not secured.is_local(written[0]):
            return
        if (snapshot := self._table.currentSnapshot()) is not None:
            written.append(str(snapshot.manifestListLocation()))
            written += [str(manifest.path()) for manifest in snapshot.allManifests(self._table.io())]
        secured.secure(str(self._table.location()), written)

    def _upload(self, part: Part) -> Any:
        iceberg, table = self._jvm.org.apache.iceberg, self._table
        spec = table.specs().get(self.shape.spec_id)
        partition = iceberg.PartitionData(spec.partitionType())
        for index, value in enumerate(part.partition):
            partition.set(index, value)
        folders = _short_names(str(spec.partitionToPath(partition)))
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

    def _rows(self, stream: StreamKey, gateway_id: str, incarnation: str) -> DataFrame:
        from pyspark.sql import DataFrame
        from pyspark.sql import functions as F

        loaded = self._jvm.org.apache.iceberg.spark.SparkTableUtil.loadTable(
            self._spark._jsparkSession, self._table, self._table.currentSnapshot().snapshotId()
        )
        rows = DataFrame(loaded, self._spark)
        for column, value in _identity(stream, gateway_id, incarnation):
            rows = rows.where(F.col(column) == F.lit(value))
        return rows

    def _filter(self, stream: StreamKey, gateway_id: str, incarnation: str, chunk: Chunk | None = None) -> Any:
        expressions = self._jvm.org.apache.iceberg.expressions.Expressions
        terms = [expressions.equal(column, value) for column, value in _identity(stream, gateway_id, incarnation)]
        if chunk is not None:
            terms += [
                expressions.greaterThan(HYP_SEQ, chunk.after),
                expressions.lessThanOrEqual(HYP_SEQ, chunk.last),
            ]
        joined = terms[0]
        for term in terms[1:]:
            joined = getattr(expressions, "and")(joined, term)
        return joined


def _identity(stream: StreamKey, gateway_id: str, incarnation: str) -> Iterator[tuple[str, str]]:
    yield HYP_SOURCE, stream.source
    yield HYP_GATEWAY, gateway_id
    yield HYP_INCARNATION, incarnation


def _short_names(path: str) -> list[str]:
    """Shorten values that are too long for a folder name. Readers use the table's metadata, never the names."""
    return [
        name if len(name) <= _NAME_MAX else f"{name[:80]}~{sha256(name.encode()).hexdigest()[:16]}"
        for name in path.split("/")
        if name
    ]
