"""Rebuild: write every readable row into a new generation of the table, which then replaces the old one.

Used to change a table's layout, and for repair: files that cannot be read are moved to `lake/set-aside/` and reported.
Rows keep their sequences, so watermarks stay valid; the floor stays, so no sequence is reused. Flushes wait until the
rebuild is done. Queries and deliveries continue with the old generation and switch to the new one.

A generation has its own directory, `warehouse/hypaware/<dataset>-<8 hex>/`. The new one is created under another
namespace and swapped in by one catalog change. The next rebuild removes the generation of a killed one, expiry removes
the directory of the previous generation. If the metadata cannot be read completely, every data file on disk counts,
without the rows of flushes that were not committed, or possibly not: they are still in the spool or in their
transcripts and would be added twice.

@ref keeping#rebuild
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hypaware import faults, telemetry
from hypaware.errors import LakeError, Retryable
from hypaware.home import Home, durable_files
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.iceberg import fsync, metadata
from hypaware.iceberg.metadata import CATALOG, FLOOR_PROPERTY, NAMESPACE, REBUILT_FROM_PROPERTY, CatalogEntry
from hypaware.lake import dedupe, locks, schema
from hypaware.lake.build import BuildFailure, BuildResult
from hypaware.lake.parquet import BuiltFile, OutputPaths
from hypaware.lake.rewrite import RollingWriter, read_in_order
from hypaware.lake.table import LakeTable, TableChange
from hypaware.maintain.compact_plan import split_by_weight
from hypaware.maintain.context import MaintenanceContext, MaintenanceReport
from hypaware.model import datasets
from hypaware.model.datasets import BATCH_ID, SEQ, SOURCE
from hypaware.state import flushes
from hypaware.text import format_count

_after_write = faults.crash_point(
    "maintain.rebuild.after-write", "the files of the new generation are written, nothing references them"
)
_after_fill = faults.crash_point("maintain.rebuild.after-fill", "the new generation is committed, the old one is live")
_before_swap = faults.crash_point("maintain.rebuild.before-swap", "the new generation is complete, the old one is live")
_after_swap = faults.crash_point("maintain.rebuild.after-swap", "the new generation is live")
NEXT_NAMESPACE = f"{NAMESPACE}_next"
_WHERE = " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
_TASK_BYTES = 128 << 20
_TASKS_AT_ONCE = 16


@dataclass(frozen=True)
class TableInventory:
    """The files of a table whose metadata may be damaged."""

    entry: CatalogEntry | None
    properties: Mapping[str, str]
    """The table's own `hyp.*` properties: floor, gateway, first day kept."""
    paths: tuple[Path, ...]
    lost: Mapping[Path, str] = field(default_factory=dict)
    """Referenced files that cannot be used, with the reason."""
    lost_rows: int = 0
    damage: str | None = None
    """Why the metadata could not be read, if so."""
    uuid: str | None = None


def rebuild_dataset(context: MaintenanceContext, report: MaintenanceReport) -> None:
    with (
        telemetry.span("maintain.rebuild", component="maintain", operation="rebuild", hyp_dataset=context.dataset.name),
        locks.commit_lock(context.dataset.name, context.check_cancelled),
    ):
        inventory = _take_inventory(context.home, context.dataset.name)
        if context.dry_run:
            files = format_count(len(inventory.paths), "file")
            report.reasons.append(f"would rewrite {files}{_describe_damage(inventory)}")
        else:
            _rebuild_table(context, report, inventory)


def _rebuild_table(context: MaintenanceContext, report: MaintenanceReport, inventory: TableInventory) -> None:
    # Crash points are listed, and directories searched, without Spark.
    from hypaware.lake.spark_table import SparkLake, SparkTable

    assert isinstance(context.lake, SparkLake)
    home, dataset, spark = context.home, context.dataset, context.lake.spark
    clear_unfinished(home, dataset.name)
    location = home.warehouse / NAMESPACE / f"{dataset.name}-{secrets.token_hex(4)}"
    schema.create_table(spark, dataset, context.lake.identity, namespace=NEXT_NAMESPACE, location=location)
    table = SparkTable(spark, dataset, namespace=NEXT_NAMESPACE)
    try:
        built, unreadable = _rewrite_files(context, table, inventory)
        _after_write()
        properties = _new_properties(context, inventory, built, is_complete=not unreadable)
        table.replace_files(TableChange("rebuild", (), built, properties=properties))
        fsync.fsync_commit(home, dataset.name, NEXT_NAMESPACE)
        _after_fill()
        _swap(home, dataset.name, inventory.entry)
    except Exception:
        # Cancelled or failed. After a swap there is nothing left to clear.
        clear_unfinished(home, dataset.name)
        raise
    lost = {**inventory.lost, **unreadable}
    for path, reason in lost.items():
        report.set_aside.append(f"{_set_aside(context, path)}: {reason}" if path.exists() else reason)
    rows, files = sum(file.rows for file in built), format_count(len(built), "file")
    report.reasons.append(f"rebuilt {rows:,} rows into {files}{_describe_damage(inventory)}")
    if lost:
        report.errors.append(
            f"{format_count(len(lost), 'file')} could not be read, and rows that only they held are lost; to import "
            "the rows that your clients still have, run: hyp backfill"
        )
        with context.store.transaction() as connection:
            flushes.forget_checkpoints(connection, dataset.name)
    # Build the key index now, so that the next flush and `hyp verify` find it complete.
    dedupe.open_index(home, context.lake, context.lake.table(dataset), dataset).close()


def _describe_damage(inventory: TableInventory) -> str:
    if inventory.damage:
        return f", from the files on disk: {inventory.damage}"
    files = f"{format_count(len(inventory.lost), 'file')} with {format_count(inventory.lost_rows, 'row')}"
    return f"; damaged or missing: {files}" if inventory.lost else ""


def _new_properties(
    context: MaintenanceContext, inventory: TableInventory, built: list[BuiltFile], *, is_complete: bool
) -> dict[str, str]:
    """Return the properties of the new table.

    If rows were lost, `rebuilt-from` is not set: the key index then forgets the lost rows, and they can be imported
    again.
    """
    with context.store.reading() as connection:
        recorded = flushes.highest_recorded_sequence(connection, context.dataset.name)
    properties = {key: value for key, value in inventory.properties.items() if key != REBUILT_FROM_PROPERTY}
    floor = int(properties.get(FLOOR_PROPERTY, 0))
    properties[FLOOR_PROPERTY] = str(max(floor, recorded, *(file.max_seq for file in built)))
    if inventory.uuid and not inventory.lost and is_complete:
        properties[REBUILT_FROM_PROPERTY] = inventory.uuid
    return properties


def _swap(home: Home, table: str, old: CatalogEntry | None) -> None:
    """Replace the old generation, which must not have changed since its rows were read. The caller holds the table's
    lock."""
    _before_swap()
    with closing(sqlite3.connect(home.catalog, timeout=30, isolation_level=None)) as catalog:
        catalog.execute("PRAGMA synchronous=FULL")
        catalog.execute("BEGIN IMMEDIATE")
        if metadata.find_table(home, table) != old:
            raise LakeError(f"table {table} changed during the rebuild; the old table stays in place")
        catalog.execute("DELETE FROM iceberg_tables" + _WHERE, (CATALOG, NAMESPACE, table))
        catalog.execute(
            "UPDATE iceberg_tables SET table_namespace = ?, previous_metadata_location = NULL" + _WHERE,
            (NAMESPACE, CATALOG, NEXT_NAMESPACE, table),
        )
        if old is not None:
            # Expiry uses this time to tell when the last reader can have started.
            os.utime(old.metadata.parent.parent)
        catalog.execute("COMMIT")
    _after_swap()


def _set_aside(context: MaintenanceContext, path: Path) -> Path:
    """Move the file out of the old generation's directory, which expiry will remove."""
    folder = context.home.lake / "set-aside" / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    durable_files.make_dir(folder)
    target = folder / path.name
    path.rename(target)
    durable_files.fsync_dir(folder)
    return target


def clear_unfinished(home: Home, table: str) -> None:
    """Remove a generation left by a killed rebuild. The caller holds the maintenance lock, so no rebuild is running.

    The catalog entry is removed first, so that no entry references a missing file.
    """
    leftover = metadata.find_table(home, table, NEXT_NAMESPACE)
    if leftover is None:
        return
    with closing(sqlite3.connect(home.catalog, timeout=30, isolation_level=None)) as catalog:
        catalog.execute("DELETE FROM iceberg_tables" + _WHERE, (CATALOG, NEXT_NAMESPACE, table))
    folder = leftover.metadata.parent.parent
    if folder.parent == home.warehouse / NAMESPACE:
        shutil.rmtree(folder, ignore_errors=True)


def find_abandoned(home: Home, dataset: str) -> list[Path]:
    """Return directories of the dataset that no catalog table uses, under any name, now or before its last commit.

    Paths are compared resolved: a home reached through a link has two spellings, and a live table must not look
    abandoned.
    """
    with open_readonly(home.catalog) as catalog:
        rows = catalog.execute("SELECT metadata_location, previous_metadata_location FROM iceberg_tables").fetchall()
    in_use = {metadata.local_path(place).parent.parent.resolve() for row in rows for place in row if place}
    return [folder for folder in table_folders(home, dataset) if folder.resolve() not in in_use]


def table_folders(home: Home, dataset: str) -> list[Path]:
    """Return all directories on disk that hold, or held, files of the dataset's table."""
    parent = home.warehouse / NAMESPACE
    return sorted(path for path in parent.glob(f"{dataset}*") if dataset in (path.name, path.name.rpartition("-")[0]))


def _take_inventory(home: Home, dataset: str) -> TableInventory:
    """Find the table's files, from its metadata or, if that is damaged, from disk."""
    entry = metadata.find_table(home, dataset)
    if entry is None:
        return _search_disk(home, dataset, None, "the table is not in the catalog")
    try:
        table_metadata = metadata.read_metadata(entry.metadata)
        live = list(metadata.iter_live_files(table_metadata))
    except (OSError, MemoryError) as error:
        if not isinstance(error, FileNotFoundError):
            # A failure to read is not damage.
            raise Retryable(f"cannot read {entry.metadata}: {error}", kind="lake_unreadable") from error
        return _search_disk(home, dataset, entry, f"{error.filename} is missing")
    except Exception as error:
        # Damaged JSON and Avro raise many kinds of errors; all mean damage here.
        return _search_disk(home, dataset, entry, f"{type(error).__name__}: {error}")
    lost = {file: reason for file in live if (reason := fsync.find_file_damage(file.path, file.bytes))}
    return TableInventory(
        entry,
        _own_properties(table_metadata.properties),
        tuple(file.path for file in live if file not in lost),
        {file.path: reason for file, reason in lost.items()},
        sum(file.rows for file in lost),
        uuid=table_metadata.uuid,
    )


def _search_disk(home: Home, dataset: str, entry: CatalogEntry | None, damage: str) -> TableInventory:
    """Return all data files, and the properties with the highest floor among all readable metadata files."""
    paths: list[Path] = []
    newest: Mapping[str, str] = {}
    for folder in table_folders(home, dataset):
        paths += sorted((folder / "data").rglob("*.parquet"))
        for path in (folder / "metadata").glob("*.metadata.json"):
            with suppress(OSError, ValueError, KeyError, StopIteration):
                properties = metadata.read_metadata(path).properties
                if int(properties.get(FLOOR_PROPERTY, 0)) >= int(newest.get(FLOOR_PROPERTY, 0)):
                    newest = properties
    return TableInventory(entry, _own_properties(newest), tuple(paths), damage=damage)


def _own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if key.startswith("hyp.")}


def _rewrite_files(
    context: MaintenanceContext, table: LakeTable, inventory: TableInventory
) -> tuple[list[BuiltFile], dict[Path, str]]:
    """Rewrite all files in batches; if a task fails, its files are checked one by one.

    Return the new files, and the unreadable ones with the reason.
    """
    name, excluded_flushes = context.dataset.name, frozenset[str]()
    if inventory.damage:
        # Readable metadata would tell which flushes were committed.
        with context.store.reading() as connection:
            excluded_flushes = frozenset(flushes.uncommitted_flush_ids(connection, name))
    by_partition: defaultdict[tuple[str, ...], list[Path]] = defaultdict(list)
    for path in inventory.paths:
        by_partition[path.parts[-3:-1]].append(path)
    # If rows may be in two files, one task reads all files of a partition.
    limit = sys.maxsize if inventory.damage else _TASK_BYTES
    output, field_ids = OutputPaths(table.data_root, context.id, 0), table.field_ids
    tasks = [
        RegroupTask(name, tuple(paths), output, field_ids, excluded_flushes)
        for partition in by_partition.values()
        for paths in split_by_weight(partition, [limit], lambda path: [path.stat().st_size])
    ]
    built: list[BuiltFile] = []
    unreadable: dict[Path, str] = {}
    for start in range(0, len(tasks), _TASKS_AT_ONCE):
        context.check_cancelled()
        context.progress(f"rebuilding {name}", start, len(tasks))
        group = tasks[start : start + _TASKS_AT_ONCE]
        for task, result in zip(group, context.lake.run(group), strict=True):
            if isinstance(result, BuildFailure):
                found = {path: reason for path in task.paths if (reason := _read_problem(path))}
                unreadable |= found
                remaining = tuple(path for path in task.paths if path not in found)
                if not remaining:
                    continue
                if found:
                    (result,) = context.lake.run([replace(task, paths=remaining)])
            if isinstance(result, BuildFailure):
                raise Retryable(f"{name}: rebuild failed: {result.reason}", kind="rebuild_failed")
            built += result.files
    return built, unreadable


def _read_problem(path: Path) -> str | None:
    """Read the whole file; return the reason if that fails."""
    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group)
    except (OSError, pa.ArrowException) as error:
        return f"{type(error).__name__}: {error}"
    return None


@dataclass(frozen=True)
class RegroupTask:
    """A Spark task that writes rows into the partitions of a new table, by the rows' own values.

    A row present in several files (before and after a compaction) is written once, recognised by its sequence.
    """

    dataset: str
    paths: tuple[Path, ...]
    output: OutputPaths
    field_ids: Mapping[str, int]
    excluded_flushes: frozenset[str] = frozenset()
    """Flushes whose rows are left out: they were not committed, or possibly not, and are still in the spool."""

    def run(self) -> BuildResult:
        dataset = datasets.get(self.dataset)
        file_schema = schema.file_schema(dataset, self.field_ids)
        excluded = pa.array(sorted(self.excluded_flushes), pa.string())
        writers: dict[tuple[str, str], RollingWriter] = {}
        highest = 0
        try:
            for rows in read_in_order(self.paths, file_schema):
                if self.excluded_flushes:
                    rows = rows.filter(pc.invert(pc.is_in(rows.column(BATCH_ID), value_set=excluded)))
                rows = _deduplicate(rows, highest)
                highest = max(highest, pc.max(rows.column(SEQ)).as_py() or 0)
                for (source, day), part in _split_partitions(rows, dataset.time_column):
                    if (source, day) not in writers:
                        writers[source, day] = RollingWriter(self.output, dataset, source, day, file_schema)
                    writers[source, day].add(part)
            files = [file for writer in writers.values() for file in writer.close()]
        except BaseException:
            for writer in writers.values():
                writer.discard()
            raise
        return BuildResult(files=files)


def _deduplicate(rows: pa.Table, after: int) -> pa.Table:
    """Drop sorted rows that repeat a sequence or have one that was already written."""
    seqs = rows.column(SEQ).combine_chunks()
    is_new = pc.greater(seqs, after)
    if len(seqs) > 1:
        repeated = pc.equal(seqs.slice(1), seqs.slice(0, len(seqs) - 1))
        is_new = pc.and_(is_new, pc.invert(pa.concat_arrays([pa.array([False]), repeated])))
    return rows.filter(is_new)


def _split_partitions(rows: pa.Table, time_column: str) -> Iterator[tuple[tuple[str, str], pa.Table]]:
    days = pc.strftime(rows.column(time_column), format="%Y-%m-%d")
    keyed = rows.select([SOURCE]).append_column("day", days)
    keys = keyed.group_by([SOURCE, "day"]).aggregate([]).to_pylist()
    for key in keys:
        in_partition = pc.and_(pc.equal(keyed.column(SOURCE), key[SOURCE]), pc.equal(days, key["day"]))
        yield (key[SOURCE], key["day"]), rows.filter(in_partition) if len(keys) > 1 else rows
