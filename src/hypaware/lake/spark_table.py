"""One table through Iceberg's Java API: what is in it, and the commits that change it.

Tasks write the Parquet files; the driver commits them in one Iceberg transaction together with the table properties
that must move with them, which Spark's DataFrame writer cannot do.
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
    def known(self) -> Metadata:
        """The table's metadata, read as a file: one look instead of hundreds of calls into the JVM."""
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
        return self.known.field_ids

    @property
    def data_root(self) -> Path:
        return local_path(str(self.iceberg.location())) / "data"

    def landed(self, flush: Flush) -> Landed | None:
        """The rows are asked, not the snapshots: those expire, and a range alone may hold another flush's rows."""
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
            # Without an answer of the JVM the commit may still be under way: nobody may ask, and recovery will.
            if not isinstance(error, Py4JJavaError | CapturedException):
                raise jvm_lost(error) from error
            # And an exception is no answer either: the commit may have landed before it was raised.
            if not self._landed_after_all(flush):
                raise NotCommitted(f"table {self._dataset.name}: the commit failed: {first_line(error)}") from error

    def change(self, change: Change) -> None:
        gone = {file.path for file in change.gone}
        missing = gone - {file.path for file in metadata.remembered_files(self.known)}
        if missing:
            raise NotCommitted(f"table {self._dataset.name}: {min(missing)} is not part of it any more")
        try:
            transaction = self.iceberg.newTransaction()
            if change.gone or change.come:
                rewrite = self._rewriting(transaction) if change.why == "compact" else transaction.newOverwrite()
                for old in self._live(change.gone):
                    rewrite = rewrite.deleteFile(old)
                for data_file in self._data_files(change.come):
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
            if not self._changed_after_all(change):
                raise NotCommitted(f"table {self._dataset.name}: the commit failed: {first_line(error)}") from error

    def _rewriting(self, transaction: Any) -> Any:
        """Iceberg looks for deletes since a snapshot, by default since the first, which has expired some day."""
        current = self.iceberg.currentSnapshot()
        rewrite = transaction.newRewrite()
        return rewrite if current is None else rewrite.validateFromSnapshot(current.snapshotId())

    def expire(self, horizon: float, keep: int = 1) -> int:
        known = self.known
        began = expiry.current_at(known, horizon)
        if began is None or not expiry.expirable(known, horizon, keep):
            return 0
        try:
            expiring = self.iceberg.expireSnapshots().expireOlderThan(round(began.at * 1000)).retainLast(keep)
            expiring.cleanExpiredFiles(True).commit()
            self.iceberg.refresh()
        except (Py4JJavaError, CapturedException) as error:
            # Whether or not it was committed, every row is where it was.
            message = f"table {self._dataset.name}: old snapshots could not be removed: {first_line(error)}"
            raise Retryable(message, kind="expiry_failed") from error
        except Exception as error:
            raise jvm_lost(error) from error
        return len(known.snapshots) - len(self.known.snapshots)

    def trim(self) -> bool:
        """Small commits must not pile up metadata: old snapshots go, their rows stay. Whether anything was done."""
        known = self.known
        if len(known.snapshots) <= _MAX_SNAPSHOTS:
            return False
        return self.expire(expiry.horizon(known), keep=_MAX_SNAPSHOTS // 2) > 0

    def _changed_after_all(self, change: Change) -> bool:
        """Whether it is this change that was made: another may have taken the same files away."""
        try:
            self.iceberg.refresh()
            known = self.known
            live = {file.path for file in metadata.live_files(known)}
        except Exception as error:
            raise jvm_lost(error) from error
        made = live.isdisjoint(file.path for file in change.gone) and live.issuperset(file.path for file in change.come)
        return made and all(known.properties.get(key) == value for key, value in change.properties.items())

    def _landed_after_all(self, flush: Flush) -> bool:
        try:
            self.iceberg.refresh()
            return self.landed(flush) is not None
        except Exception as error:
            raise jvm_lost(error) from error

    def key_hashes(self, after: int) -> Iterator[Iterable[tuple[bytes, int]]]:
        files = metadata.live_files(self.known)
        return scan.key_hashes(self._spark.sparkContext, self._dataset.name, files, after, self.gateway_id)

    def remember(self, identity: Identity) -> bool:
        """Keeps the home's incarnation in the table, in case state and mirror are lost. Whether it changed."""
        told = {
            INCARNATION: identity.incarnation,
            PARENTS: ",".join(identity.parents),
            FORKS: ",".join(map(str, identity.forks)),
        }
        if all(self.known.properties.get(key, "") == value for key, value in told.items()):
            return False
        change = self.iceberg.updateProperties()
        for key, value in told.items():
            change = change.set(key, value)
        change.commit()
        return True

    def _live(self, files: Sequence[DataFile]) -> list[Any]:
        """Files of the table, as Iceberg wants to be told which ones go: their path and partition."""
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
        """Iceberg reads each file's footer for its statistics, which takes longer than anything else in a commit."""
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
    """What makes a row's dedupe key in SQL: `Dataset.key_of`, and whose row it is."""
    key = f"nullif({dataset.key_column}, '')"
    if dataset.key_parts:
        parts = ", '#', ".join(f"cast({part} AS STRING)" for part in dataset.key_parts)
        key = f"coalesce({key}, concat({parts}))"
    if GATEWAY not in dataset.coercers:
        return key
    return f"concat(length(coalesce({GATEWAY}, '')), ':', coalesce({GATEWAY}, ''), ':', {key})"


def first_line(error: Exception) -> str:
    """What an exception of the JVM says, without the way that it came."""
    told = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
    return (str(told).splitlines() or [type(error).__name__])[0]


def jvm_lost(error: Exception) -> Retryable:
    message = f"the JVM of the engine does not answer: {error}; nothing is lost, run it again"
    return Retryable(message, kind="engine_died")
