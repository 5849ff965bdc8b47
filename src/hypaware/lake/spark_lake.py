"""The lake through Spark and Iceberg's Java API: what `committer` asks for, for real.

Tasks write the Parquet files (`build`); the driver commits them in one Iceberg transaction together with the table
properties that must move with them, which Spark's DataFrame writer cannot do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.lake import metadata, scan, secure, tables
from hypaware.lake.build import BuildFailure, BuildTask, Built, Task, run_or_say_why, workers_run
from hypaware.lake.committer import Landed, NotCommitted
from hypaware.lake.metadata import (
    FLOOR,
    FLUSH_ID,
    FORKS,
    GATEWAY_ID,
    INCARNATION,
    PARENTS,
    SEGMENTS,
    Metadata,
    local_path,
)
from hypaware.lake.partitions import BuiltFile
from hypaware.lake.watching import Watcher, watched
from hypaware.model import datasets
from hypaware.model.datasets import BATCH_ID, GATEWAY, SEQ, SOURCE, Dataset
from hypaware.state.flushes import Flush
from hypaware.state.identity import Identity

_EPOCH = date(1970, 1, 1)
_MAX_SNAPSHOTS = 100
_THREADS = 4
_WORTH_THREADS = 8
# A reader that opened an older snapshot may take its time with it.
_SNAPSHOT_MIN_AGE = 3600.0


class SparkLake:
    def __init__(
        self,
        home: Home,
        spark: SparkSession,
        identity: Identity,
        check_cancelled: Callable[[], None],
        watch: Watcher | None = None,
    ) -> None:
        self._home = home
        self._spark = spark
        self._identity = identity
        self._check_cancelled = check_cancelled
        self._watch = watch

    def table(self, dataset: Dataset) -> SparkTable:
        name = dataset.name
        if not tables.exists(self._spark, name):
            tables.create(self._spark, dataset, self._identity)
            secure.secure(self._home, name)
        table = SparkTable(self._spark, dataset)
        if tables.evolve(table.iceberg, self._spark._jvm, dataset, table.known.fields):
            secure.secure(self._home, name)
            table = SparkTable(self._spark, dataset)
        return table

    def run(self, tasks: Sequence[Task]) -> list[Built | BuildFailure]:
        if not tasks:
            return []
        spark = self._spark.sparkContext
        try:
            if self._watch is not None and isinstance(tasks[0], BuildTask):
                with watched(spark, self._watch) as run:
                    return list(spark.parallelize(tasks, len(tasks)).map(run).collect())
            return list(spark.parallelize(tasks, len(tasks)).map(run_or_say_why).collect())
        except (Py4JJavaError, CapturedException) as error:
            self._check_cancelled()
            # A worker died with its task: nobody can say which rows did it, so all of these are suspects. Unless no
            # worker can live at all.
            reason = f"a Spark task died: {_first_line(error)}"
            return [BuildFailure(reason, surroundings=not self._workers_run())] * len(tasks)
        except (Py4JError, OSError) as error:
            raise _lost(error) from error

    def warm_up(self) -> None:
        """Starts the Python workers beside what comes before the first task; whether they run, that task will tell."""
        threading.Thread(target=self._workers_run, name="warm-up", daemon=True).start()

    def _workers_run(self) -> bool:
        try:
            spark = self._spark.sparkContext
            return all(spark.parallelize([None] * 2, 2).map(workers_run).collect())
        except Exception:
            return False


class SparkTable:
    def __init__(self, spark: SparkSession, dataset: Dataset) -> None:
        self._spark = spark
        self._dataset = dataset
        self._name = tables.full_name(dataset.name)
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
                raise _lost(error) from error
            # And an exception is no answer either: the commit may have landed before it was raised.
            if not self._landed_after_all(flush):
                raise NotCommitted(f"table {self._dataset.name}: the commit failed: {error}") from error

    def trim(self) -> bool:
        """Small commits must not pile up metadata: old snapshots go, their rows stay. Whether anything was done."""
        if len(self.known.snapshots) <= _MAX_SNAPSHOTS:
            return False
        horizon = int((time.time() - _SNAPSHOT_MIN_AGE) * 1000)
        expiry = self.iceberg.expireSnapshots().expireOlderThan(horizon).retainLast(_MAX_SNAPSHOTS // 2)
        expiry.cleanExpiredFiles(True).commit()
        self.iceberg.refresh()
        return True

    def _landed_after_all(self, flush: Flush) -> bool:
        try:
            self.iceberg.refresh()
            return self.landed(flush) is not None
        except Exception as error:
            raise _lost(error) from error

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


def _first_line(error: Exception) -> str:
    told = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    return (str(told).splitlines() or [type(error).__name__])[0]


def _lost(error: Exception) -> Retryable:
    message = f"the JVM of the engine does not answer: {error}; nothing is lost, run it again"
    return Retryable(message, kind="engine_died")


def known_datasets(home: Home) -> list[Dataset]:
    """The datasets that have a table."""
    present = {entry.name for entry in metadata.entries(home)}
    return [dataset for dataset in datasets.all() if dataset.name in present]
