"""The lake on Spark, and its tables through Iceberg's Java API.

Tasks write the Parquet files. The driver commits them in one Iceberg transaction together with table properties, which
Spark's DataFrame writer cannot do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any

import orjson
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from hypaware.engine.jobs import JobContext
from hypaware.engine.session import is_local
from hypaware.errors import LakeError, Retryable
from hypaware.home import Home
from hypaware.home.identity import Identity
from hypaware.home.machine_facts import Question
from hypaware.home.storage import format_location, parse_location
from hypaware.iceberg import commit_times, fsync, metadata
from hypaware.iceberg.metadata import DataFile, TableField, TableMetadata
from hypaware.lake import build, file_metrics, schema, snapshots, task_input
from hypaware.lake.build import BuildFailure, BuildResult, BuildWatcher, BuiltFile, DriverTask, Task, WatchedTask
from hypaware.lake.poison import ENGINE_DIED
from hypaware.lake.table import NotCommitted, TableChange
from hypaware.lake.task_input import InputTask
from hypaware.model import datasets
from hypaware.model.datasets import BATCH_ID, GATEWAY, SEQ, SOURCE, Dataset
from hypaware.state.flushes import Flush

_EPOCH = date(1970, 1, 1)
_MAX_SNAPSHOTS = 100
_THREADS = 4
_PARALLEL_FROM_FILES = 8
_BACKGROUND_POOL = "background"
_WATCH_SECONDS = 0.25
_accumulators = threading.Lock()


@dataclass(frozen=True)
class SparkLake:
    home: Home
    spark: SparkSession
    identity: Identity
    check_cancelled: Callable[[], None]
    watch: BuildWatcher | None = None
    _answers: dict[Question, Any] = field(default_factory=dict)
    """What tasks on other machines have asked about this one."""
    _sending_input: threading.Lock = field(default_factory=threading.Lock)
    """Held by the run whose input travels, so that the driver prepares no more of it than is about to be used."""

    def table(self, dataset: Dataset) -> SparkTable:
        name = dataset.name
        commit_times.lower_future_times(self.home, name, time.time())
        if not schema.table_exists(self.spark, name):
            create_table(self.spark, dataset, self.identity)
            fsync.fsync_commit(self.home, name)
        table = SparkTable(self.spark, dataset)
        if evolve_table(table.iceberg, self.spark._jvm, dataset, table.metadata.fields):
            fsync.fsync_commit(self.home, name)
            table = SparkTable(self.spark, dataset)
        return table

    def run(self, tasks: Sequence[Task], watch: BuildWatcher | None = None) -> list[BuildResult | BuildFailure]:
        if not tasks:
            return []
        spark, watch = self.spark.sparkContext, watch or self.watch
        is_watched = isinstance(tasks[0], WatchedTask)
        with _watch_build(spark, watch) if watch and is_watched else nullcontext(()) as counts:
            if not is_local(spark.master):
                if isinstance(tasks[0], DriverTask):
                    return [build.run_catching(task, counts) for task in tasks]
                travelling = [task for task in tasks if isinstance(task, InputTask)]
                if any(task.inputs for task in travelling):
                    with self._sending_input:
                        found = task_input.run_tasks(spark, travelling, self._answers, counts)
                    return [self._explain(each) if isinstance(each, Exception) else each for each in found]
            try:
                run = partial(build.run_catching, counts=counts)
                return list(spark.parallelize(tasks, len(tasks)).map(run).collect())
            except Exception as error:
                # A worker died and the guilty rows are unknown, so all tasks fail.
                return [self._explain(error)] * len(tasks)

    def start(
        self, tasks: Sequence[Task], watch: BuildWatcher | None = None
    ) -> Future[list[BuildResult | BuildFailure]]:
        """Run the tasks in the background, in a pool that leaves every other free core to the jobs of others."""
        found: Future[list[BuildResult | BuildFailure]] = Future()

        def run() -> None:
            try:
                self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", _BACKGROUND_POOL)
                found.set_result(self.run(tasks, watch))
            except BaseException as error:
                found.set_exception(error)

        _inheriting_thread(run, "build").start()
        return found

    def _explain(self, error: Exception) -> BuildFailure:
        """Return the failure of a Spark job. If no worker can start at all, the environment is to blame."""
        if isinstance(error, Py4JJavaError | CapturedException):
            self.check_cancelled()
            message = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error
            reason = f"a Spark task failed: {_first_line(message, error)}"
            return BuildFailure(reason, is_environmental=not self._workers_run())
        if isinstance(error, Py4JError | OSError):
            raise jvm_lost_error(error) from error
        raise error

    def warm_up(self) -> None:
        """Start the Python workers in the background. If they fail, the first task reports it."""
        _inheriting_thread(self._workers_run, "warm-up").start()

    def _workers_run(self) -> bool:
        try:
            spark = self.spark.sparkContext
            return all(spark.parallelize([None] * 2, 2).map(build.confirm_worker).collect())
        except Exception:
            return False


@contextmanager
def _watch_build(spark: SparkContext, watcher: BuildWatcher) -> Iterator[Sequence[Any]]:
    """Yield accumulators, to which tasks in executors add what they have done. Call the watcher periodically."""
    with _accumulators:
        # Spark numbers them without a lock.
        counts = [spark.accumulator(0) for _ in range(3)]
    stopped = threading.Event()

    def report() -> None:
        while not stopped.wait(_WATCH_SECONDS):
            try:
                watcher(*(count.value for count in counts))
            except Exception:
                # The client has disconnected; the job itself detects and reports that.
                return

    reporter = threading.Thread(target=report, name="watching", daemon=True)
    reporter.start()
    try:
        yield counts
    finally:
        stopped.set()
        reporter.join()


def _inheriting_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Return a thread that takes over the job group, by which the job is cancelled, of the thread that starts it."""
    from pyspark import InheritableThread

    thread: threading.Thread = InheritableThread(target=target, name=name, daemon=True)
    return thread


def list_stored_datasets(home: Home) -> list[Dataset]:
    present = {entry.name for entry in metadata.list_tables(home)}
    return [dataset for dataset in datasets.list_all() if dataset.name in present]


class SparkTable:
    def __init__(self, spark: SparkSession, dataset: Dataset, namespace: str = metadata.NAMESPACE) -> None:
        self._spark = spark
        self._dataset = dataset
        self._name = schema.full_table_name(dataset.name, namespace)
        self._jvm: Any = spark._jvm
        self.iceberg: Any = self._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            spark._jsparkSession, self._name
        )
        # Not asked for again: what a flush wrote is cleared away even if the JVM has died.
        self.data_root = parse_location(str(self.iceberg.location())) / "data"

    @property
    def metadata(self) -> TableMetadata:
        """The table's metadata, read from its file: cheaper than hundreds of calls into the JVM."""
        return metadata.read_metadata(parse_location(str(self.iceberg.operations().current().metadataFileLocation())))

    @property
    def uuid(self) -> str:
        return str(self.iceberg.uuid().toString())

    @property
    def floor(self) -> int:
        return int(self.iceberg.properties().get(metadata.FLOOR_PROPERTY) or 0)

    @property
    def gateway_id(self) -> str | None:
        return self.iceberg.properties().get(metadata.GATEWAY_ID_PROPERTY) or None

    @property
    def rebuilt_from(self) -> str | None:
        return self.iceberg.properties().get(metadata.REBUILT_FROM_PROPERTY) or None

    @property
    def field_ids(self) -> Mapping[str, int]:
        return self.metadata.field_ids

    def find_flush(self, flush: Flush) -> dict[str, tuple[int, int]]:
        """Query the rows, because snapshots expire, and match the flush id, because another flush may use the range."""
        found = self._spark.sql(
            f"SELECT {SOURCE}, max({SEQ}), count(*) FROM {self._name}"
            f" WHERE {SEQ} > {flush.after} AND {SEQ} <= {flush.last} AND {BATCH_ID} = '{flush.id}' GROUP BY {SOURCE}"
        ).collect()
        return {source: (highest, rows) for source, highest, rows in found}

    def commit(self, flush: Flush, files: Sequence[BuiltFile]) -> None:
        with self._committing(lambda: bool(self.find_flush(flush)) or self._has_files_of(flush)) as transaction:
            append = transaction.newAppend()
            for data_file in self._data_files(files):
                append = append.appendFile(data_file)
            append = append.set(metadata.FLUSH_ID_PROPERTY, flush.id)
            append = append.set("hyp.seq-range", f"{flush.after}-{flush.last}")
            append.set(metadata.SEGMENTS_PROPERTY, ",".join(segment.name for segment in flush.segments)).commit()
            transaction.updateProperties().set(metadata.FLOOR_PROPERTY, str(flush.last)).commit()

    def _has_files_of(self, flush: Flush) -> bool:
        """Return whether files of a flush are live: restored rows have sequences outside its range."""
        return any(file.path.name.startswith(f"{flush.id}-") for file in metadata.iter_live_files(self.metadata))

    def replace_files(self, change: TableChange) -> None:
        removed = {file.path for file in change.removed}
        missing = removed - {file.path for file in metadata.iter_cached_files(self.metadata)}
        if missing:
            raise NotCommitted(f"table {self._dataset.name}: {min(missing)} is no longer part of it")
        with self._committing(lambda: self._has_change(change)) as transaction:
            if change.removed or change.added:
                rewrite = transaction.newRewrite() if change.operation == "compact" else transaction.newOverwrite()
                if change.operation == "compact" and (current := self.iceberg.currentSnapshot()) is not None:
                    # By default, Iceberg checks for deletes since the first snapshot, which may have expired.
                    rewrite = rewrite.validateFromSnapshot(current.snapshotId())
                for old in self._live(change.removed):
                    rewrite = rewrite.deleteFile(old)
                for data_file in self._data_files(change.added):
                    rewrite = rewrite.addFile(data_file)
                _set_all(rewrite, change.summary).commit()
            if change.properties:
                _set_all(transaction.updateProperties(), change.properties).commit()

    @contextmanager
    def _committing(self, is_committed: Callable[[], bool]) -> Iterator[Any]:
        """Commit one Iceberg transaction. Raise NotCommitted only if the table confirms that it did not happen."""
        try:
            transaction = self.iceberg.newTransaction()
            yield transaction
            transaction.commitTransaction()
            self.iceberg.refresh()
        except (Py4JJavaError, CapturedException) as error:
            # The commit may have succeeded before the exception was raised.
            try:
                self.iceberg.refresh()
                succeeded = is_committed()
            except Exception as lost:
                raise jvm_lost_error(lost) from lost
            if not succeeded:
                message = f"table {self._dataset.name}: the commit failed: {summarize_jvm_error(error)}"
                raise NotCommitted(message) from error
        except Exception as error:
            # Without a response of the JVM the commit may still be running: leave the check to recovery.
            raise jvm_lost_error(error) from error

    def _has_change(self, change: TableChange) -> bool:
        """Return whether this change was committed. Another change may have removed the same files."""
        known = self.metadata
        live = {file.path for file in metadata.iter_live_files(known)}
        replaced = live.isdisjoint(file.path for file in change.removed)
        replaced = replaced and live.issuperset(file.path for file in change.added)
        return replaced and all(known.properties.get(key) == value for key, value in change.properties.items())

    def expire(self, horizon: float, keep: int = 1) -> int:
        known = self.metadata
        oldest_kept = snapshots.find_snapshot_at(known, horizon)
        if oldest_kept is None or not snapshots.list_expirable(known, horizon, keep):
            return 0
        try:
            expiring = self.iceberg.expireSnapshots().expireOlderThan(round(oldest_kept.at * 1000)).retainLast(keep)
            expiring.cleanExpiredFiles(True).commit()
            self.iceberg.refresh()
        except (Py4JJavaError, CapturedException) as error:
            # Expiry never changes rows, whether or not it was committed.
            message = f"table {self._dataset.name}: old snapshots could not be removed: {summarize_jvm_error(error)}"
            raise Retryable(message, kind="expiry_failed") from error
        except Exception as error:
            raise jvm_lost_error(error) from error
        return len(known.snapshots) - len(self.metadata.snapshots)

    def trim(self) -> bool:
        """Expire old snapshots if there are too many, and return whether any was removed. Rows are not affected."""
        known = self.metadata
        if len(known.snapshots) <= _MAX_SNAPSHOTS:
            return False
        return self.expire(snapshots.expiry_horizon(known), keep=_MAX_SNAPSHOTS // 2) > 0

    def store_identity(self, identity: Identity) -> bool:
        """Store the home's incarnation in the table, in case state and mirror are lost. Return whether it changed."""
        properties = {
            metadata.INCARNATION_PROPERTY: identity.incarnation,
            metadata.PARENTS_PROPERTY: ",".join(identity.parents),
            metadata.FORKS_PROPERTY: ",".join(map(str, identity.forks)),
        }
        if all(self.metadata.properties.get(key, "") == value for key, value in properties.items()):
            return False
        _set_all(self.iceberg.updateProperties(), properties).commit()
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
        """Return Iceberg data files to add.

        Their tasks have computed the metrics. Iceberg reads those of other files from their footers, one by one, and
        those of all files if the table has other settings.
        """
        iceberg = self._jvm.org.apache.iceberg
        spec, io = self.iceberg.spec(), self.iceberg.io()
        parse, mapper = iceberg.ContentFileParser.fromJson, iceberg.util.JsonUtil.mapper()
        use_metrics = file_metrics.covers(self.metadata.properties)
        builders, parquet = iceberg.DataFiles, iceberg.parquet.ParquetUtil
        partition_type, metrics_config = spec.partitionType(), iceberg.MetricsConfig.forTable(self.iceberg)
        spec_id = spec.specId()

        def data_file(file: BuiltFile) -> Any:
            if use_metrics and file.metrics is not None:
                return parse(mapper.readTree(_describe_file(file, spec_id)), spec)
            opened = io.newInputFile(str(file.path))
            partition = iceberg.PartitionData(partition_type)
            partition.set(0, file.source)
            partition.set(1, (date.fromisoformat(file.day) - _EPOCH).days)
            builder = builders.builder(spec).withInputFile(opened).withFormat("parquet").withPartition(partition)
            return builder.withMetrics(parquet.fileMetrics(opened, metrics_config)).build()

        if len(files) < _PARALLEL_FROM_FILES:
            return [data_file(file) for file in files]
        with ThreadPoolExecutor(_THREADS) as threads:
            return list(threads.map(data_file, files))


def _describe_file(file: BuiltFile, spec_id: int) -> str:
    """Return a data file in Iceberg's JSON."""
    described = {
        "spec-id": spec_id,
        "content": "data",
        "file-path": format_location(file.path),
        "file-format": "parquet",
        "partition": [file.source, file.day],
        "record-count": file.rows,
        "file-size-in-bytes": file.bytes,
        "sort-order-id": 0,
        **(file.metrics or {}),
    }
    return orjson.dumps(described).decode()


def create_table(
    spark: Any, dataset: Dataset, identity: Identity, namespace: str = metadata.NAMESPACE, location: Path | None = None
) -> None:
    properties = {
        **schema.TABLE_PROPERTIES,
        metadata.GATEWAY_ID_PROPERTY: identity.gateway_id,
        metadata.INCARNATION_PROPERTY: identity.incarnation,
    }
    columns = ", ".join(
        f"`{column.name}` {schema.SQL_TYPES[column.type]}{' NOT NULL' if column.required else ''}"
        for column in schema.table_columns(dataset)
    )
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    location_clause = ""
    if location:
        escaped = format_location(location).replace("\\", "\\\\").replace("'", "\\'")
        location_clause = f"LOCATION '{escaped}' "
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {metadata.CATALOG}.{namespace}")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {schema.full_table_name(dataset.name, namespace)} ({columns}) USING iceberg "
        f"PARTITIONED BY ({SOURCE}, days({dataset.time_column})) {location_clause}TBLPROPERTIES ({listed})"
    )


def evolve_table(table: Any, jvm: Any, dataset: Dataset, known: Mapping[str, TableField]) -> bool:
    """Add missing columns to an Iceberg table (Java object) with the known fields. Return whether it changed."""
    added, relaxed = [], []
    for column in schema.table_columns(dataset):
        if (field := known.get(column.name)) is None:
            added.append(column)
        elif field.type != schema.ICEBERG_TYPES[column.type]:
            raise LakeError(
                f"table {dataset.name}: column {column.name} is {field.type} in the lake and "
                f"{schema.ICEBERG_TYPES[column.type]} in the dataset; the type of a column cannot change",
                kind="schema_conflict",
            )
        elif field.required and not column.required:
            relaxed.append(column)
    if not added and not relaxed:
        return False
    change = table.updateSchema()
    for column in added:
        type_ = jvm.org.apache.iceberg.types.Types.fromPrimitiveString(schema.ICEBERG_TYPES[column.type])
        change = change.addColumn(column.name, type_)
    for column in relaxed:
        change = change.makeColumnOptional(column.name)
    change.commit()
    return True


def trim_snapshots(context: JobContext, table: SparkTable, name: str) -> None:
    """Remove old snapshots. A failure is only reported, because the flush is already committed."""
    try:
        if table.trim():
            fsync.fsync_commit(context.home, name)
    except Exception as error:
        context.note(f"{name}: old snapshots could not be removed ({type(error).__name__}); the next flush tries again")


def _set_all(update: Any, values: Mapping[str, str]) -> Any:
    for key, value in values.items():
        update = update.set(key, value)
    return update


def dedupe_key_sql(dataset: Dataset) -> str:
    """Return the SQL expression of a row's dedupe key: `Dataset.key_of` with the gateway."""
    key = f"nullif({dataset.key_column}, '')"
    if dataset.key_parts:
        parts = ", '#', ".join(f"cast({part} AS STRING)" for part in dataset.key_parts)
        key = f"coalesce({key}, concat({parts}))"
    if GATEWAY not in dataset.coercers:
        return key
    return f"concat(length(coalesce({GATEWAY}, '')), ':', coalesce({GATEWAY}, ''), ':', {key})"


def summarize_jvm_error(error: Exception) -> str:
    """Return the message of a JVM exception without its stack trace."""
    return _first_line(error.java_exception.toString() if isinstance(error, Py4JJavaError) else error, error)


def _first_line(message: object, error: Exception) -> str:
    return (str(message).splitlines() or [type(error).__name__])[0]


def jvm_lost_error(error: Exception) -> Retryable:
    message = f"the engine's JVM does not respond ({error}); no row is lost, run the command again"
    return Retryable(message, kind=ENGINE_DIED)
