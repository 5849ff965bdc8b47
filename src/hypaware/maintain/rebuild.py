"""Rebuild: write every readable row into a new generation of the table, which then replaces the old one.

Used to change a table's layout, and for repair: files that cannot be read are moved to `lake/set-aside/` and reported.
Rows keep their sequences, so watermarks stay valid; the floor stays, so no sequence is reused. Flushes wait until the
rebuild is done. Queries and deliveries continue with the old generation and switch to the new one.

@ref keeping#rebuild
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from hypaware import durable, faults, telemetry
from hypaware.errors import Retryable
from hypaware.lake import keyring, turns
from hypaware.lake.build import BuildFailure, Built
from hypaware.lake.metadata import FLOOR, REBUILT_FROM
from hypaware.lake.partitions import BuiltFile, Place
from hypaware.maintain import generation, inventory
from hypaware.maintain.generation import Generation
from hypaware.maintain.inventory import Inventory
from hypaware.maintain.regroup import Regrouped, RegroupTask, unreadable
from hypaware.maintain.report import Report, many
from hypaware.maintain.work import Work
from hypaware.state import flushes, sources

_after_write = faults.point(
    "maintain.rebuild.after-write", "the files of the new generation are written, nothing references them"
)
_after_fill = faults.point("maintain.rebuild.after-fill", "the new generation is committed, the old one is live")

_TASK_BYTES = 128 << 20
_TASKS_AT_ONCE = 16


def run(context: Work, report: Report) -> None:
    """Rebuild the table, or report what a rebuild would do."""
    with (
        telemetry.span("maintain.rebuild", component="maintain", operation="rebuild", hyp_dataset=context.dataset.name),
        turns.changing(context.dataset.name, context.check_cancelled),
    ):
        table_inventory = inventory.take(context.home, context.dataset.name)
        if context.dry_run:
            report.reasons.append(
                f"would rewrite {many(len(table_inventory.paths), 'file')}{_describe_damage(table_inventory)}"
            )
            return
        _rebuild(context, report, table_inventory)


def _rebuild(context: Work, report: Report, table_inventory: Inventory) -> None:
    from hypaware.lake.spark_lake import SparkLake

    assert isinstance(context.lake, SparkLake)
    new_generation = Generation(context.home, context.lake.spark, context.dataset, context.lake.identity)
    rewriting = _Rewriting(context, new_generation, table_inventory)
    try:
        rewriting.run()
        _after_write()
        new_generation.fill(rewriting.files, _properties(context, table_inventory, rewriting))
        _after_fill()
        new_generation.swap(table_inventory.entry)
    except Exception:
        # Cancelled or failed. After a swap there is nothing left to clear.
        generation.clear(context.home, context.dataset.name)
        raise
    lost = {**table_inventory.lost, **rewriting.unreadable}
    for path, reason in lost.items():
        report.set_aside.append(f"{_set_aside(context, path)}: {reason}" if path.exists() else reason)
    report.reasons.append(
        f"rebuilt {rewriting.rows:,} rows into {many(len(rewriting.files), 'file')}{_describe_damage(table_inventory)}"
    )
    if lost:
        files = many(len(lost), "file")
        report.errors.append(
            f"{files} could not be read, and rows that only they held are lost; to import the rows that your clients "
            "still have, run: hyp backfill"
        )
        with context.store.transaction() as connection:
            sources.forget(connection, context.dataset.name)
    # Build the key index now, so that the next flush and `hyp verify` find it complete.
    keyring.opened(context.home, context.lake, context.table(), context.dataset).close()


class _Rewriting:
    """Rewrites all files in batches; if a task fails, its files are checked one by one."""

    def __init__(self, context: Work, new_generation: Generation, table_inventory: Inventory) -> None:
        self._context = context
        self._inventory = table_inventory
        # Readable metadata tells which flushes were committed.
        self._excluded_flushes = frozenset(_uncommitted_flushes(context)) if table_inventory.damage else frozenset()
        self._place = Place(new_generation.table.data_root, context.id, 0)
        self._field_ids = new_generation.table.field_ids
        self.files: list[BuiltFile] = []
        self.unreadable: dict[Path, str] = {}
        self.rows = self.highest = 0

    def run(self) -> None:
        tasks = [self._task(paths) for paths in _lots(self._inventory)]
        for start in range(0, len(tasks), _TASKS_AT_ONCE):
            self._context.check_cancelled()
            self._context.progress(f"rebuilding {self._context.dataset.name}", start, len(tasks))
            group = tasks[start : start + _TASKS_AT_ONCE]
            for task, result in zip(group, self._context.lake.run(group), strict=True):
                self._add(self._retry(task, result) if isinstance(result, BuildFailure) else result)

    def _add(self, built: Built | None) -> None:
        if built is not None:
            note: Regrouped = built.reports[0]
            self.files += built.files
            self.rows += note.rows
            self.highest = max(self.highest, note.max_seq)

    def _retry(self, task: RegroupTask, failure: BuildFailure) -> Built | None:
        unreadable_files = {path: reason for path in task.paths if (reason := unreadable(path))}
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


def _lots(table_inventory: Inventory) -> Iterator[tuple[Path, ...]]:
    """Yield the files of each partition in groups. If rows may be in two files, a partition is one group."""
    by_folder: defaultdict[tuple[str, ...], list[Path]] = defaultdict(list)
    for path in table_inventory.paths:
        by_folder[path.parts[-3:-1]].append(path)
    for paths in by_folder.values():
        group: list[Path] = []
        size = 0
        for path in paths:
            bytes_ = path.stat().st_size
            if group and size + bytes_ > _TASK_BYTES and table_inventory.damage is None:
                yield tuple(group)
                group, size = [], 0
            group.append(path)
            size += bytes_
        yield tuple(group)


def _properties(context: Work, table_inventory: Inventory, rewriting: _Rewriting) -> dict[str, str]:
    """Return the properties of the new table. If rows were lost, `rebuilt-from` is not set: the key index then forgets
    the lost rows, and they can be imported again."""
    with context.store.reading() as connection:
        recorded = flushes.recorded_through(connection, context.dataset.name)
    properties = {key: value for key, value in table_inventory.properties.items() if key != REBUILT_FROM}
    properties[FLOOR] = str(max(int(properties.get(FLOOR, 0)), rewriting.highest, recorded))
    if table_inventory.uuid and not table_inventory.lost and not rewriting.unreadable:
        properties[REBUILT_FROM] = table_inventory.uuid
    return properties


def _uncommitted_flushes(context: Work) -> set[str]:
    with context.store.reading() as connection:
        return flushes.unlanded(connection, context.dataset.name)


def _set_aside(context: Work, path: Path) -> Path:
    """Move the file out of the old generation's directory, which expiry will remove."""
    folder = context.home.lake / "set-aside" / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    durable.make_dir(folder)
    target = folder / path.name
    path.rename(target)
    durable.fsync_dir(folder)
    return target


def _describe_damage(table_inventory: Inventory) -> str:
    if table_inventory.damage:
        return f", from the files on disk: {table_inventory.damage}"
    files = f"{many(len(table_inventory.lost), 'file')} with {many(table_inventory.lost_rows, 'row')}"
    return f"; damaged or missing: {files}" if table_inventory.lost else ""
