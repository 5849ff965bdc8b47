"""A table through Iceberg's Java API: its metadata and its commits.

Tasks write the Parquet files. The driver commits them in one Iceberg transaction together with table properties, which
Spark's DataFrame writer cannot do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from hypaware.errors import Retryable
from hypaware.lake import expiry, metadata, scan, tables
from hypaware.lake.committer import Change, Landed, NotCommitted
from hypaware.lake.metadata import (
    FLOOR,
    FLUSH_ID,
    FORKS,
    GATEWAY_ID,
    INCARNATION,
    PARENTS,
    REBUILT_FROM,
    SEGMENTS,
    DataFile,
    Metadata,
    local_path,
)
from hypaware.lake.partitions import BuiltFile
from hypaware.model.datasets import BATCH_ID, GATEWAY, SEQ, SOURCE, Dataset
from hypaware.state.flushes import Flush
from hypaware.state.identity import Identity

_EPOCH = date(1970, 1, 1)
_MAX_SNAPSHOTS = 100
_THREADS = 4
_WORTH_THREADS = 8


class SparkTable:
    def __init__(self, spark: SparkSession, dataset: Dataset, namespace: str = metadata.NAMESPACE) -> None:
        self._spark = spark
        self._dataset = dataset
        self._name = tables.full_name(dataset.name, namespace)
        self._jvm: Any = spark._jvm
        self.iceberg: Any = self._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            spark._jsparkSession, self._name
        )

    @property
    def metadata(self) -> Metadata:
        """The table's metadata, read from its file: cheaper than hundreds of calls into the JVM."""
        return metadata.read(local_path(str(self.iceberg.operations().current().metadataFileLocation())))

    @property
    def uuid(self) -> str:
        return str(self.iceberg.uuid().toString())

    @property
    def floor(self) -> int:
        return int(self.iceberg.properties().get(FLOOR) or 0)

    @property
    def gateway_id(self) -> str | None:
        return self.iceberg.properties().get(GATEWAY_ID) or None

    @property
    def rebuilt_from(self) -> str | None:
        return self.iceberg.properties().get(REBUILT_FROM) or None

    @property
    def field_ids(self) -> Mapping[str, int]:
        return self.metadata.field_ids

    @property
    def data_root(self) -> Path:
        return local_path(str(self.iceberg.location())) / "data"

    def find_flush(self, flush: Flush) -> Landed | None:
        """Query the rows, because snapshots expire, and match the flush id, because another flush may use the range."""
        found = self._spark.sql(
            f"SELECT {SOURCE}, max({SEQ}), count(*) FROM {self._name}"
            f" WHERE {SEQ} > {flush.after} AND {SEQ} <= {flush.last} AND {BATCH_ID} = '{flush.id}' GROUP BY {SOURCE}"
        ).collect()
        return Landed({row[0]: (row[1], row[2]) for row in found}) if found else None

    def commit(self, flush: Flush, files: Sequence[BuiltFile]) -> None:
        try:
            transaction = self.iceberg.newTransaction()
            append = transaction.newAppend()
            for data_file in self._data_files(files):
                append = append.appendFile(data_file)
            append = append.set(FLUSH_ID, flush.id).set("hyp.seq-range", f"{flush.after}-{flush.last}")
            append.set(SEGMENTS, ",".join(segment.name for segment in flush.segments)).commit()
            transaction.updateProperties().set(FLOOR, str(flush.last)).commit()
            transaction.commitTransaction()
            self.iceberg.refresh()
        except Exception as error:
            # Without a response of the JVM the commit may still be running: leave the check to recovery.
            if not isinstance(error, Py4JJavaError | CapturedException):
                raise jvm_lost(error) from error
            # The commit may have succeeded before the exception was raised.
            if not self._was_committed(flush):
                raise NotCommitted(f"table {self._dataset.name}: the commit failed: {first_line(error)}") from error

    def replace_files(self, change: Change) -> None:
        gone = {file.path for file in change.removed}
        missing = gone - {file.path for file in metadata.remembered_files(self.metadata)}
        if missing:
            raise NotCommitted(f"table {self._dataset.name}: {min(missing)} is no longer part of it")
        try:
            transaction = self.iceberg.newTransaction()
            if change.removed or change.added:
                rewrite = self._rewriting(transaction) if change.operation == "compact" else transaction.newOverwrite()
                for old in self._live(change.removed):
                    rewrite = rewrite.deleteFile(old)
                for data_file in self._data_files(change.added):
                    rewrite = rewrite.addFile(data_file)
                for key, value in change.summary.items():
                    rewrite = rewrite.set(key, value)
                rewrite.commit()
            if change.properties:
                update = transaction.updateProperties()
                for key, value in change.properties.items():
                    update = update.set(key, value)
                update.commit()
            transaction.commitTransaction()
            self.iceberg.refresh()
        except Exception as error:
            if not isinstance(error, Py4JJavaError | CapturedException):
                raise jvm_lost(error) from error
            if not self._was_changed(change):
                raise NotCommitted(f"table {self._dataset.name}: the commit failed: {first_line(error)}") from error

    def _rewriting(self, transaction: Any) -> Any:
        """Start a rewrite. By default, Iceberg checks for deletes since the first snapshot, which may have expired."""
        current = self.iceberg.currentSnapshot()
        rewrite = transaction.newRewrite()
        return rewrite if current is None else rewrite.validateFromSnapshot(current.snapshotId())

    def expire(self, horizon: float, keep: int = 1) -> int:
        known = self.metadata
        oldest_kept = expiry.current_at(known, horizon)
        if oldest_kept is None or not expiry.expirable(known, horizon, keep):
            return 0
        try:
            expiring = self.iceberg.expireSnapshots().expireOlderThan(round(oldest_kept.at * 1000)).retainLast(keep)
            expiring.cleanExpiredFiles(True).commit()
            self.iceberg.refresh()
        except (Py4JJavaError, CapturedException) as error:
            # Expiry never changes rows, whether or not it was committed.
            message = f"table {self._dataset.name}: old snapshots could not be removed: {first_line(error)}"
            raise Retryable(message, kind="expiry_failed") from error
        except Exception as error:
            raise jvm_lost(error) from error
        return len(known.snapshots) - len(self.metadata.snapshots)

    def trim(self) -> bool:
        """Expire old snapshots if there are too many, and tell whether any was removed. Rows are not affected."""
        known = self.metadata
        if len(known.snapshots) <= _MAX_SNAPSHOTS:
            return False
        return self.expire(expiry.horizon(known), keep=_MAX_SNAPSHOTS // 2) > 0

    def _was_changed(self, change: Change) -> bool:
        """Tell whether this change was committed. Another change may have removed the same files."""
        try:
            self.iceberg.refresh()
            known = self.metadata
            live = {file.path for file in metadata.live_files(known)}
        except Exception as error:
            raise jvm_lost(error) from error
        replaced = live.isdisjoint(file.path for file in change.removed)
        replaced = replaced and live.issuperset(file.path for file in change.added)
        return replaced and all(known.properties.get(key) == value for key, value in change.properties.items())

    def _was_committed(self, flush: Flush) -> bool:
        try:
            self.iceberg.refresh()
            return self.find_flush(flush) is not None
        except Exception as error:
            raise jvm_lost(error) from error

    def key_hashes(self, after: int) -> Iterator[Iterable[tuple[bytes, int]]]:
        files = metadata.live_files(self.metadata)
        return scan.key_hashes(self._spark.sparkContext, self._dataset.name, files, after, self.gateway_id)

    def store_identity(self, identity: Identity) -> bool:
        """Store the home's incarnation in the table, in case state and mirror are lost. Tell whether it changed."""
        properties = {
            INCARNATION: identity.incarnation,
            PARENTS: ",".join(identity.parents),
            FORKS: ",".join(map(str, identity.forks)),
        }
        if all(self.metadata.properties.get(key, "") == value for key, value in properties.items()):
            return False
        change = self.iceberg.updateProperties()
        for key, value in properties.items():
            change = change.set(key, value)
        change.commit()
        return True

    def _live(self, files: Sequence[DataFile]) -> list[Any]:
        """Return Iceberg data files, with path and partition, for files to remove from the table."""
        iceberg = self._jvm.org.apache.iceberg
        spec, builders, make_partition = self.iceberg.spec(), iceberg.DataFiles, iceberg.PartitionData
        partition_type = spec.partitionType()

        @cache
        def partition_of(source: str, day: date | None) -> Any:
            partition = make_partition(partition_type)
            partition.set(0, source)
            partition.set(1, (day - _EPOCH).days if day else None)
            return partition

        def live(file: DataFile) -> Any:
            builder = builders.builder(spec).withPath(file.location).withFormat("parquet")
            builder = builder.withPartition(partition_of(file.source, file.day)).withRecordCount(file.rows)
            return builder.withFileSizeInBytes(file.bytes).build()

        return [live(file) for file in files]

    def _data_files(self, files: Sequence[BuiltFile]) -> list[Any]:
        """Return Iceberg data files to add. Iceberg reads each footer for statistics, the slowest part of a commit."""
        iceberg = self._jvm.org.apache.iceberg
        spec, io = self.iceberg.spec(), self.iceberg.io()
        builders, parquet = iceberg.DataFiles, iceberg.parquet.ParquetUtil
        partition_type, metrics_config = spec.partitionType(), iceberg.MetricsConfig.forTable(self.iceberg)

        def data_file(file: BuiltFile) -> Any:
            opened = io.newInputFile(str(file.path))
            partition = iceberg.PartitionData(partition_type)
            partition.set(0, file.source)
            partition.set(1, (date.fromisoformat(file.day) - _EPOCH).days)
            builder = builders.builder(spec).withInputFile(opened).withFormat("parquet").withPartition(partition)
            return builder.withMetrics(parquet.fileMetrics(opened, metrics_config)).build()

        if len(files) < _WORTH_THREADS:
            return [data_file(file) for file in files]
        with ThreadPoolExecutor(_THREADS) as threads:
            return list(threads.map(data_file, files))


def key_sql(dataset: Dataset) -> str:
    """Return the SQL expression of a row's dedupe key: `Dataset.key_of` with the gateway."""
    key = f"nullif({dataset.key_column}, '')"
    if dataset.key_parts:
        parts = ", '#', ".join(f"cast({part} AS STRING)" for part in dataset.key_parts)
        key = f"coalesce({key}, concat({parts}))"
    if GATEWAY not in dataset.coercers:
        return key
    return f"concat(length(coalesce({GATEWAY}, '')), ':', coalesce({GATEWAY}, ''), ':', {key})"


def first_line(error: Exception) -> str:
    """Return the message of a JVM exception without its stack trace."""
    message = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return (str(message).splitlines() or [type(error).__name__])[0]


def jvm_lost(error: Exception) -> Retryable:
    message = f"the engine's JVM does not respond ({error}); no row is lost, run the command again"
    return Retryable(message, kind="engine_died")
