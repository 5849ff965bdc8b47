"""The destination's table through Iceberg's Java API: asked, appended to. Everything here runs on Spark's thread.

A chunk is one commit: its files, its id and range in the summary, the record of its stream. Between asking what is
there and the commit another engine may deliver the same rows (a copied home; a JVM that was thought dead). So the
append is made as an overwrite of nothing that must not meet new rows of this very stream since the snapshot that was
asked: Iceberg looks again each time it has to try the commit anew, and gives up instead of doubling them.
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
    "export.iceberg.after-files", "a chunk's files are stored and synced, no snapshot names them"
)
_before_commit = faults.point("export.iceberg.before-commit", "a chunk's commit is prepared, the table is as it was")
_after_commit = faults.point("export.iceberg.after-commit", "a chunk is committed, nothing of it is synced or recorded")

CHUNK_ID = "hyp.chunk-id"
RANGE = "hyp.range"
_NAME_MAX = 120


class Conflict(Exception):
    """Another engine delivered rows of this stream meanwhile; nothing was committed."""


class IcebergTable:
    def __init__(self, spark: SparkSession, catalog: Any, table: Any, dataset: Dataset) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._catalog = catalog
        self._table = table
        self.uuid = str(table.uuid().toString())
        self.scratch = Path(str(self._jvm.java.lang.System.getProperty("java.io.tmpdir")))
        """A folder that goes with the JVM."""
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

    def record_of(self, key: str) -> Record | None:
        found = self._table.properties().get(key)
        return record.parse(key, str(found)) if found else None

    def sequences(self, chunk: Chunk) -> set[int]:
        """Of the rows in the chunk's range that are there, whatever the record says."""
        if not self._may_have_rows(self._filter(chunk.stream, chunk.gateway_id, chunk.incarnation, chunk)):
            return set()
        found = self._rows(chunk.stream, chunk.gateway_id, chunk.incarnation)
        inside = found.where(found[HYP_SEQ] > chunk.after).where(found[HYP_SEQ] <= chunk.last)
        return set(inside.select(HYP_SEQ).toArrow().column(HYP_SEQ).to_pylist())

    def delivered(self, stream: StreamKey, gateway_id: str, incarnation: str) -> Delivered:
        """By the record; where it is gone, by the rows, which do not tell what was refused."""
        found = self.record_of(record.key_of(gateway_id, incarnation, stream.source))
        if found is not None:
            return found.delivered
        if not self._may_have_rows(self._filter(stream, gateway_id, incarnation)):
            return Delivered(0)
        highest = self._rows(stream, gateway_id, incarnation).agg({HYP_SEQ: "max"}).first()
        return Delivered((highest[0] or 0) if highest else 0)

    def upload(self, parts: Sequence[Part]) -> list[Any]:
        """The files as the table knows files, stored and synced where it lies, named by no snapshot."""
        found = [self._upload(part) for part in parts]
        secured.secure(str(self._table.location()), [str(file.location()) for file in found])
        _after_files()
        return found

    def discard(self, files: Sequence[Any]) -> None:
        """Files that were uploaded and are surely in no snapshot."""
        for file in files:
            self._table.io().deleteFile(str(file.location()))

    def commit(self, chunk: Chunk, files: Sequence[Any], known: Record) -> None:
        """On top of what was asked last. Raises Conflict where another engine came between."""
        asked = self._table.currentSnapshot()
        try:
            transaction = self._table.newTransaction()
            append = transaction.newOverwrite()
            if asked is not None:
                append = append.validateFromSnapshot(asked.snapshotId())
            ours = self._filter(chunk.stream, chunk.gateway_id, chunk.incarnation)
            append = append.conflictDetectionFilter(ours).validateNoConflictingData()
            for file in files:
                append = append.addFile(file)
            append.set(CHUNK_ID, chunk.id).set(RANGE, f"{chunk.after}-{chunk.last}").commit()
            moved = known.with_range(chunk.after, chunk.last)
            transaction.updateProperties().set(record.chunk_key(chunk), moved.text).commit()
            _before_commit()
            transaction.commitTransaction()
            _after_commit()
        except Exception as error:
            if troubles.is_a(error, "ValidationException"):
                raise Conflict from error
            raise
        self._table.refresh()

    def secure(self) -> None:
        """What the table's newest commit needs to survive a power cut; its data files were synced before it."""
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
        for place, value in enumerate(part.partition):
            partition.set(place, value)
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
        """By the files' statistics alone."""
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
    """A value of a thousand letters makes no folder name; readers go by the table's metadata, never by names."""
    return [
        name if len(name) <= _NAME_MAX else f"{name[:80]}~{sha256(name.encode()).hexdigest()[:16]}"
        for name in path.split("/")
        if name
    ]
