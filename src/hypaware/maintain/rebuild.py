"""Rebuild: write every readable row into a new generation of the table, which then replaces the old one.

Used to change a table's layout, and for repair: files that cannot be read are moved to `lake/set-aside/` and reported.
Rows keep their sequences, so watermarks stay valid; the floor stays, so no sequence is reused. Rows that another
program added without a sequence get one (`row_numbers`), and rows that it deleted by position stay deleted. The new
generation is swapped in only if it holds exactly the rows that were read. Flushes wait until the rebuild is done.
Queries and deliveries continue with the old generation and switch to the new one.

A generation has its own directory, `warehouse/hypaware/<dataset>-<8 hex>/`. The new one is created under another
namespace and swapped in by one catalog change. The next rebuild removes the generation of a killed one, expiry removes
the directory of the previous generation. If the metadata cannot be read completely, every data file on disk counts,
without the rows of flushes that were not committed, or possibly not: they are still in the spool or in their
transcripts and would be added twice. Which rows another program deleted is then unknown, so delete files stop it.

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
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from hypaware import faults, telemetry
from hypaware.config.shared_lake import find_shared_lake
from hypaware.errors import LakeError, Retryable
from hypaware.home import Home, durable_files
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.home.storage import parse_location
from hypaware.iceberg import fsync, metadata
from hypaware.iceberg.metadata import (
    CATALOG,
    FLOOR_PROPERTY,
    NAMESPACE,
    REBUILT_FROM_PROPERTY,
    CatalogEntry,
    TableMetadata,
)
from hypaware.lake import dedupe, health, lost_rows
from hypaware.lake.build import BuildFailure, BuildResult, BuiltFile, OutputPaths
from hypaware.lake.key_index import KeyIndex, is_index_readable
from hypaware.lake.lost_rows import LostRange
from hypaware.lake.table import TableChange, commit_lock
from hypaware.maintain import row_numbers
from hypaware.maintain.compact_plan import split_by_weight
from hypaware.maintain.context import MaintenanceContext, MaintenanceReport
from hypaware.maintain.inventory import TableInventory, find_deleted_rows, take_inventory
from hypaware.maintain.regroup import Positions, RegroupBalance, RegroupTask, sum_balances
from hypaware.state import flushes, streams
from hypaware.state.flushes import Flush
from hypaware.text import format_count

if TYPE_CHECKING:
    pass

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


def rebuild_dataset(context: MaintenanceContext, report: MaintenanceReport) -> None:
    with (
        telemetry.span("maintain.rebuild", component="maintain", operation="rebuild", hyp_dataset=context.dataset.name),
        commit_lock(context.dataset.name, context.check_cancelled),
    ):
        inventory = take_inventory(context.home, context.dataset.name)
        if context.dry_run:
            files = format_count(len(inventory.rows), "file")
            report.reasons.append(f"would rewrite {files}{_describe_damage(inventory)}")
        else:
            _rebuild_table(context, report, inventory)


def _rebuild_table(context: MaintenanceContext, report: MaintenanceReport, inventory: TableInventory) -> None:
    # Crash points are listed, and directories searched, without Spark.
    from hypaware.lake.spark_table import SparkLake, SparkTable, create_table

    assert isinstance(context.lake, SparkLake)
    home, dataset, spark = context.home, context.dataset, context.lake.spark
    clear_unfinished(home, dataset.name)
    location = home.warehouse / NAMESPACE / f"{dataset.name}-{secrets.token_hex(4)}"
    create_table(spark, dataset, context.lake.identity, namespace=NEXT_NAMESPACE, location=location)
    table = SparkTable(spark, dataset, namespace=NEXT_NAMESPACE)
    flush: Flush | None = None
    try:
        deleted = find_deleted_rows(spark, dataset.name) if inventory.has_deletes else {}
        flush, numbers = row_numbers.reserve_numbers(context.store, dataset.name, inventory.rows, inventory.floor)
        rewrite = RegroupTask(
            dataset.name,
            (),
            OutputPaths(table.data_root, context.id, 0),
            dict(table.field_ids),
            _find_excluded_flushes(context) if inventory.damage else frozenset(),
            may_repeat=bool(inventory.damage),
            flush_id=flush.id if flush else "",
        )
        results, unreadable = _rewrite_files(context, inventory, rewrite, deleted, numbers)
        built = [file for result in results for file in result.files]
        balance = sum_balances(results)
        _after_write()
        lost = {**inventory.lost, **unreadable}
        lost_ranges = _find_lost_ranges(context, inventory, lost) if lost else []
        keeps_index = lost_ranges is not None
        properties = _new_properties(context, inventory, flush, built, keeps_index=keeps_index)
        table.replace_files(TableChange("rebuild", (), built, properties=properties))
        fsync.fsync_commit(home, dataset.name, NEXT_NAMESPACE)
        _after_fill()
        _check_rows(inventory, unreadable, deleted, balance, table.metadata)
        if lost_ranges:
            # Before the swap, so that a killed rebuild cannot leave lost rows that count as present.
            with closing(KeyIndex(home.keys)) as index:
                lost_rows.mark_lost(home, index, lost_ranges, lost)
        _swap(home, dataset.name, inventory.entry)
    except Exception:
        # Cancelled or failed. After a swap there is nothing left to clear.
        clear_unfinished(home, dataset.name)
        if flush is not None and metadata.find_table(home, dataset.name) == inventory.entry:
            with context.store.transaction() as connection:
                flushes.discard_flush(connection, flush)
        raise
    if flush is not None:
        row_numbers.record_numbers(home, context.store, flush, balance.numbered, built)
    for path, reason in lost.items():
        report.set_aside.append(f"{_set_aside(context, path)}: {reason}" if path.exists() else reason)
    rows, files = sum(file.rows for file in built), format_count(len(built), "file")
    report.reasons.append(f"rebuilt {rows:,} rows into {files}{_describe_damage(inventory)}")
    if balance.numbered:
        report.reasons.append(f"gave {format_count(balance.numbered, 'row')} without a sequence a new one")
    if balance.deleted:
        report.reasons.append(f"left out {format_count(balance.deleted, 'row')} that another program had deleted")
    if lost:
        again = "" if keeps_index else "; sinks receive imported rows again, because it is unknown which rows are lost"
        report.errors.append(
            f"{format_count(len(lost), 'file')} could not be read, and rows that only they held are lost; to import "
            f"the rows that your clients still have, run: hyp backfill{again}"
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
    context: MaintenanceContext,
    inventory: TableInventory,
    flush: Flush | None,
    built: list[BuiltFile],
    *,
    keeps_index: bool,
) -> dict[str, str]:
    """Return the properties of the new table.

    Without `rebuilt-from`, the key index forgets all rows that are not in the new table. Lost rows can then be imported
    again, as new rows.
    """
    with context.store.reading() as connection:
        recorded = flushes.highest_recorded_sequence(connection, context.dataset.name)
    properties = {key: value for key, value in inventory.properties.items() if key != REBUILT_FROM_PROPERTY}
    reserved = flush.last if flush else 0
    properties[FLOOR_PROPERTY] = str(max(inventory.floor, recorded, reserved, *(file.max_seq for file in built)))
    if inventory.uuid and keeps_index:
        properties[REBUILT_FROM_PROPERTY] = inventory.uuid
    return properties


def _find_lost_ranges(
    context: MaintenanceContext, inventory: TableInventory, lost: Collection[Path]
) -> list[LostRange] | None:
    """Return the sequences of the lost files and how far they were delivered, or None if the key index cannot tell
    which rows had them."""
    dataset, found = context.dataset.name, []
    with context.store.reading() as connection:
        known = [stream for stream in streams.list_streams(connection) if stream.key.sink in context.config.sinks]
    for file in (inventory.known[path] for path in lost if path in inventory.known):
        if file.min_seq is None or file.max_seq is None:
            return None
        own = (dataset, file.source)
        reached = [each.watermark or 0 for each in known if (each.key.dataset, each.key.source) == own]
        found.append(LostRange(file.min_seq, file.max_seq, min(reached, default=file.max_seq)))
    others_damaged = health.find_damaged_tables(context.home).keys() - {dataset}
    if inventory.uuid is None or others_damaged or not is_index_readable(context.home.keys):
        return None
    with closing(KeyIndex(context.home.keys)) as index:
        return found if index.indexed_through(dataset, inventory.uuid) == inventory.floor else None


def _check_rows(
    inventory: TableInventory,
    unreadable: Collection[Path],
    deleted: Positions,
    balance: RegroupBalance,
    new: TableMetadata,
) -> None:
    """Refuse a new generation that does not hold exactly the rows of the old one."""
    rows_out = sum(file.rows for file in metadata.iter_live_files(new))
    readable = [path for path in inventory.rows if path not in unreadable]
    rows_in = balance.read if inventory.damage else sum(inventory.rows[path] for path in readable)
    rows_deleted = sum(len(deleted.get(path, ())) for path in readable)
    if not balance.balanced or (rows_in, rows_deleted, rows_out) != (balance.read, balance.deleted, balance.written):
        raise LakeError(
            f"the rebuilt table has {rows_out:,} rows instead of {rows_in - rows_deleted:,} ({balance}); "
            "the old table stays in place",
            kind="rebuild_unbalanced",
        )


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
    if find_shared_lake(home) is not None:
        return []
    with open_readonly(home.catalog) as catalog:
        rows = catalog.execute("SELECT metadata_location, previous_metadata_location FROM iceberg_tables").fetchall()
    in_use = {parse_location(place).parent.parent.resolve() for row in rows for place in row if place}
    return [folder for folder in metadata.table_folders(home, dataset) if folder.resolve() not in in_use]


def _find_excluded_flushes(context: MaintenanceContext) -> frozenset[str]:
    """Return the flushes that may not have been committed. Readable metadata would tell."""
    with context.store.reading() as connection:
        return frozenset(flushes.uncommitted_flush_ids(connection, context.dataset.name))


def _rewrite_files(
    context: MaintenanceContext,
    inventory: TableInventory,
    rewrite: RegroupTask,
    deleted: Positions,
    numbers: Mapping[Path, int],
) -> tuple[list[BuildResult], dict[Path, str]]:
    """Rewrite all files in batches; if a task fails, its files are checked one by one.

    Return the results, and the unreadable files with the reason.
    """
    by_partition: defaultdict[tuple[str, ...], list[Path]] = defaultdict(list)
    for path in inventory.rows:
        # Folders name source and day. A row whose source an earlier rebuild filled in is in files of two sources.
        by_partition[path.parts[-2:-1] if rewrite.may_repeat else path.parts[-3:-1]].append(path)
    # If rows may be in two files, one task reads all files of a partition.
    limit = sys.maxsize if rewrite.may_repeat else _TASK_BYTES
    tasks = [
        replace(
            rewrite,
            paths=tuple(paths),
            deleted={path: deleted[path] for path in paths if path in deleted},
            numbers={path: numbers[path] for path in paths if path in numbers},
        )
        for partition in by_partition.values()
        for paths in split_by_weight(partition, [limit], lambda path: [path.stat().st_size])
    ]
    results: list[BuildResult] = []
    unreadable: dict[Path, str] = {}
    for start in range(0, len(tasks), _TASKS_AT_ONCE):
        context.check_cancelled()
        context.progress(f"rebuilding {rewrite.dataset}", start, len(tasks))
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
                raise Retryable(f"{rewrite.dataset}: rebuild failed: {result.reason}", kind="rebuild_failed")
            results.append(result)
    return results, unreadable


def _read_problem(path: Path) -> str | None:
    """Read the whole file; return the reason if that fails."""
    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group)
    except (OSError, pa.ArrowException) as error:
        return f"{type(error).__name__}: {error}"
    return None
