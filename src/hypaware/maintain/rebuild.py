"""Rebuild: write every readable row into a new generation of the table, which then replaces the old one.

Used to change a table's layout, and for repair: files that cannot be read are moved to `lake/set-aside/` and reported.
Rows keep their sequences, so watermarks stay valid; the floor stays, so no sequence is reused. Flushes wait until the
rebuild is done. Queries and deliveries continue with the old generation and switch to the new one.

@ref keeping#rebuild
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware import faults, telemetry
from hypaware.errors import Retryable
from hypaware.home import durable_files
from hypaware.iceberg.metadata import FLOOR_PROPERTY, REBUILT_FROM_PROPERTY
from hypaware.lake import dedupe, locks
from hypaware.lake.build import BuildFailure, BuildResult
from hypaware.lake.parquet import BuiltFile, OutputPaths
from hypaware.lake.rewrite import RollingWriter, read_in_order
from hypaware.lake.schema import file_schema
from hypaware.maintain import generation
from hypaware.maintain.context import MaintenanceContext, MaintenanceReport
from hypaware.maintain.generation import TableGeneration, TableInventory
from hypaware.model import datasets
from hypaware.model.datasets import BATCH_ID, SEQ, SOURCE
from hypaware.state import flushes, sources
from hypaware.text import format_count

_after_write = faults.crash_point(
    "maintain.rebuild.after-write", "the files of the new generation are written, nothing references them"
)
_after_fill = faults.crash_point("maintain.rebuild.after-fill", "the new generation is committed, the old one is live")
_TASK_BYTES = 128 << 20
_TASKS_AT_ONCE = 16


def rebuild_dataset(context: MaintenanceContext, report: MaintenanceReport) -> None:
    """Rebuild the table, or report what a rebuild would do."""
    with (
        telemetry.span("maintain.rebuild", component="maintain", operation="rebuild", hyp_dataset=context.dataset.name),
        locks.commit_lock(context.dataset.name, context.check_cancelled),
    ):
        inventory = generation.take_inventory(context.home, context.dataset.name)
        if context.dry_run:
            files = format_count(len(inventory.paths), "file")
            report.reasons.append(f"would rewrite {files}{_describe_damage(inventory)}")
        else:
            _rebuild_table(context, report, inventory)


def _rebuild_table(context: MaintenanceContext, report: MaintenanceReport, inventory: TableInventory) -> None:
    from hypaware.lake.spark_table import SparkLake

    assert isinstance(context.lake, SparkLake)
    new_generation = TableGeneration(context.home, context.lake.spark, context.dataset, context.lake.identity)
    rewriting = _TableRewrite(context, new_generation, inventory)
    try:
        rewriting.run()
        _after_write()
        new_generation.fill(rewriting.files, _properties(context, inventory, rewriting))
        _after_fill()
        new_generation.swap(inventory.entry)
    except Exception:
        # Cancelled or failed. After a swap there is nothing left to clear.
        generation.clear_unfinished(context.home, context.dataset.name)
        raise
    lost = {**inventory.lost, **rewriting.unreadable}
    for path, reason in lost.items():
        report.set_aside.append(f"{_set_aside(context, path)}: {reason}" if path.exists() else reason)
    files = format_count(len(rewriting.files), "file")
    report.reasons.append(f"rebuilt {rewriting.rows:,} rows into {files}{_describe_damage(inventory)}")
    if lost:
        report.errors.append(
            f"{format_count(len(lost), 'file')} could not be read, and rows that only they held are lost; to import "
            "the rows that your clients still have, run: hyp backfill"
        )
        with context.store.transaction() as connection:
            sources.forget_checkpoints(connection, context.dataset.name)
    # Build the key index now, so that the next flush and `hyp verify` find it complete.
    dedupe.open_index(context.home, context.lake, context.lake.table(context.dataset), context.dataset).close()


def _describe_damage(inventory: TableInventory) -> str:
    if inventory.damage:
        return f", from the files on disk: {inventory.damage}"
    files = f"{format_count(len(inventory.lost), 'file')} with {format_count(inventory.lost_rows, 'row')}"
    return f"; damaged or missing: {files}" if inventory.lost else ""


def _properties(context: MaintenanceContext, inventory: TableInventory, rewriting: _TableRewrite) -> dict[str, str]:
    """Return the properties of the new table.

    If rows were lost, `rebuilt-from` is not set: the key index then forgets the lost rows, and they can be imported
    again.
    """
    with context.store.reading() as connection:
        recorded = flushes.highest_recorded_sequence(connection, context.dataset.name)
    properties = {key: value for key, value in inventory.properties.items() if key != REBUILT_FROM_PROPERTY}
    properties[FLOOR_PROPERTY] = str(max(int(properties.get(FLOOR_PROPERTY, 0)), rewriting.highest, recorded))
    if inventory.uuid and not inventory.lost and not rewriting.unreadable:
        properties[REBUILT_FROM_PROPERTY] = inventory.uuid
    return properties


def _set_aside(context: MaintenanceContext, path: Path) -> Path:
    """Move the file out of the old generation's directory, which expiry will remove."""
    folder = context.home.lake / "set-aside" / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    durable_files.make_dir(folder)
    target = folder / path.name
    path.rename(target)
    durable_files.fsync_dir(folder)
    return target


class _TableRewrite:
    """Rewrites all files in batches; if a task fails, its files are checked one by one."""

    def __init__(self, context: MaintenanceContext, new_generation: TableGeneration, inventory: TableInventory) -> None:
        self._context = context
        self._inventory = inventory
        self._excluded_flushes: frozenset[str] = frozenset()
        if inventory.damage:
            # Readable metadata would tell which flushes were committed.
            with context.store.reading() as connection:
                self._excluded_flushes = frozenset(flushes.uncommitted_flush_ids(connection, context.dataset.name))
        self._place = OutputPaths(new_generation.table.data_root, context.id, 0)
        self._field_ids = new_generation.table.field_ids
        self.files: list[BuiltFile] = []
        self.unreadable: dict[Path, str] = {}
        self.rows = self.highest = 0

    def run(self) -> None:
        tasks = [self._task(paths) for paths in _task_groups(self._inventory)]
        for start in range(0, len(tasks), _TASKS_AT_ONCE):
            self._context.check_cancelled()
            self._context.progress(f"rebuilding {self._context.dataset.name}", start, len(tasks))
            group = tasks[start : start + _TASKS_AT_ONCE]
            for task, result in zip(group, self._context.lake.run(group), strict=True):
                built = self._retry(task, result) if isinstance(result, BuildFailure) else result
                if built is not None:
                    report: RegroupReport = built.reports[0]
                    self.files += built.files
                    self.rows += report.rows
                    self.highest = max(self.highest, report.max_seq)

    def _retry(self, task: RegroupTask, failure: BuildFailure) -> BuildResult | None:
        unreadable_files = {path: reason for path in task.paths if (reason := read_problem(path))}
        if not unreadable_files:
            raise Retryable(f"{self._context.dataset.name}: rebuild failed: {failure.reason}", kind="rebuild_failed")
        self.unreadable |= unreadable_files
        remaining = tuple(path for path in task.paths if path not in unreadable_files)
        if not remaining:
            return None
        (retried,) = self._context.lake.run([self._task(remaining)])
        if isinstance(retried, BuildFailure):
            raise Retryable(f"{self._context.dataset.name}: rebuild failed: {retried.reason}", kind="rebuild_failed")
        return retried

    def _task(self, paths: tuple[Path, ...]) -> RegroupTask:
        return RegroupTask(self._context.dataset.name, paths, self._place, self._field_ids, self._excluded_flushes)


def _task_groups(inventory: TableInventory) -> Iterator[tuple[Path, ...]]:
    """Yield the files of each partition in groups. If rows may be in two files, a partition is one group."""
    by_folder: defaultdict[tuple[str, ...], list[Path]] = defaultdict(list)
    for path in inventory.paths:
        by_folder[path.parts[-3:-1]].append(path)
    for paths in by_folder.values():
        group: list[Path] = []
        size = 0
        for path in paths:
            bytes_ = path.stat().st_size
            if group and size + bytes_ > _TASK_BYTES and inventory.damage is None:
                yield tuple(group)
                group, size = [], 0
            group.append(path)
            size += bytes_
        yield tuple(group)


@dataclass(frozen=True)
class RegroupReport:
    """The result of a `RegroupTask`."""

    rows: int
    max_seq: int


@dataclass(frozen=True)
class RegroupTask:
    """A Spark task that writes rows into the partitions of a new table, by the rows' own values.

    A row present in several files (before and after a compaction) is written once, recognised by its sequence.
    """

    dataset: str
    paths: tuple[Path, ...]
    place: OutputPaths
    field_ids: Mapping[str, int]
    without: frozenset[str] = frozenset()
    """Flushes whose rows are left out: they were not committed, or possibly not, and are still in the spool."""

    def run(self) -> BuildResult:
        dataset = datasets.get(self.dataset)
        schema = file_schema(dataset, self.field_ids)
        writers: dict[tuple[str, str], RollingWriter] = {}
        rows_out = highest = 0
        try:
            for rows in read_in_order(self.paths, schema):
                rows = _deduplicate(_exclude_flushes(rows, self.without), highest)
                rows_out += rows.num_rows
                highest = max(highest, pc.max(rows.column(SEQ)).as_py() or 0)
                for (source, day), part in _split_partitions(rows, dataset.time_column):
                    writer = writers.get((source, day))
                    if writer is None:
                        writer = RollingWriter(self.place, dataset, source, day, schema)
                        writers[(source, day)] = writer
                    writer.add(part)
            files = [file for writer in writers.values() for file in writer.close()]
        except BaseException:
            for writer in writers.values():
                writer.discard()
            raise
        return BuildResult(files=files, reports=[RegroupReport(rows_out, highest)])


def _deduplicate(rows: pa.Table, after: int) -> pa.Table:
    """Drop sorted rows that repeat a sequence or have one that was already written."""
    seqs = rows.column(SEQ).combine_chunks()
    is_new = pc.greater(seqs, after)
    if len(seqs) > 1:
        repeated = pc.equal(seqs.slice(1), seqs.slice(0, len(seqs) - 1))
        is_new = pc.and_(is_new, pc.invert(pa.concat_arrays([pa.array([False]), repeated])))
    return rows.filter(is_new)


def _exclude_flushes(rows: pa.Table, without: frozenset[str]) -> pa.Table:
    if not without:
        return rows
    excluded = pc.is_in(rows.column(BATCH_ID), value_set=pa.array(sorted(without), pa.string()))
    return rows.filter(pc.invert(excluded))


def _split_partitions(rows: pa.Table, time_column: str) -> list[tuple[tuple[str, str], pa.Table]]:
    days = pc.strftime(rows.column(time_column), format="%Y-%m-%d")
    keyed = rows.select([SOURCE]).append_column("day", days)
    keys = keyed.group_by([SOURCE, "day"]).aggregate([]).to_pylist()
    if len(keys) == 1:
        return [((keys[0][SOURCE], keys[0]["day"]), rows)]
    parts = []
    for key in keys:
        in_partition = pc.and_(pc.equal(keyed.column(SOURCE), key[SOURCE]), pc.equal(days, key["day"]))
        parts.append(((key[SOURCE], key["day"]), rows.filter(in_partition)))
    return parts


def read_problem(path: Path) -> str | None:
    """Read the whole file; return the reason if that fails."""
    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group)
    except (OSError, pa.ArrowException) as error:
        return f"{type(error).__name__}: {error}"
    return None
