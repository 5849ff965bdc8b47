"""Rebuild: every row that can be read into a new generation of the table, which then takes the old one's place.

For a change of how a table is laid out, and for repair: files that cannot be read are set aside under
`lake/set-aside/`, and told. Rows keep their sequences, so watermarks stay true; the floor stays, so no sequence is
given out again. Flushes wait until it is done; queries and deliveries go on with the old generation and then find the
new one.

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
    "maintain.rebuild.after-write", "the files of the new generation are written, nothing names them"
)
_after_fill = faults.point("maintain.rebuild.after-fill", "the new generation is committed beside the old one")

_TASK_BYTES = 128 << 20
_TASKS_AT_ONCE = 16


def run(work: Work, report: Report) -> None:
    with (
        telemetry.span("maintain.rebuild", component="maintain", operation="rebuild", hyp_dataset=work.dataset.name),
        turns.changing(work.dataset.name, work.check_cancelled),
    ):
        held = inventory.take(work.home, work.dataset.name)
        if work.dry_run:
            report.reasons.append(f"would write {many(len(held.paths), 'file')} again{_said(held)}")
            return
        _rebuild(work, report, held)


def _rebuild(work: Work, report: Report, held: Inventory) -> None:
    from hypaware.lake.spark_lake import SparkLake

    assert isinstance(work.lake, SparkLake)
    next_one = Generation(work.home, work.lake.spark, work.dataset, work.lake.identity)
    rewriting = _Rewriting(work, next_one, held)
    try:
        rewriting.run()
        _after_write()
        next_one.fill(rewriting.files, _properties(work, held, rewriting))
        _after_fill()
        next_one.swap(held.entry)
    except Exception:
        # Cancelled, or failed; after a swap there is nothing left to clear.
        generation.clear(work.home, work.dataset.name)
        raise
    lost = {**held.lost, **rewriting.unreadable}
    for path, reason in lost.items():
        report.set_aside.append(f"{_set_aside(work, path)}: {reason}" if path.exists() else reason)
    report.reasons.append(f"rebuilt {rewriting.rows:,} rows in {many(len(rewriting.files), 'file')}{_said(held)}")
    if lost:
        told = many(len(lost), "file")
        report.errors.append(
            f"{told} could not be read; the rows that only they had are gone. `hyp backfill` brings back what your "
            "clients still have"
        )
        with work.store.transaction() as connection:
            sources.forget(connection, work.dataset.name)
    # Derived, and made now: the next flush, and whoever audits the lake, find it whole.
    keyring.opened(work.home, work.lake, work.table(), work.dataset).close()


class _Rewriting:
    """Lot by lot; a task that fails is asked file by file."""

    def __init__(self, work: Work, next_one: Generation, held: Inventory) -> None:
        self._work = work
        self._held = held
        # Where metadata says what landed, it is believed.
        self._without = frozenset(_unlanded(work)) if held.damage else frozenset()
        self._place = Place(next_one.table.data_root, work.id, 0)
        self._field_ids = next_one.table.field_ids
        self.files: list[BuiltFile] = []
        self.unreadable: dict[Path, str] = {}
        self.rows = self.highest = 0

    def run(self) -> None:
        tasks = [self._task(paths) for paths in _lots(self._held)]
        for start in range(0, len(tasks), _TASKS_AT_ONCE):
            self._work.check_cancelled()
            self._work.progress(f"rebuilding {self._work.dataset.name}", start, len(tasks))
            lot = tasks[start : start + _TASKS_AT_ONCE]
            for task, result in zip(lot, self._work.lake.run(lot), strict=True):
                self._take(self._retried(task, result) if isinstance(result, BuildFailure) else result)

    def _take(self, built: Built | None) -> None:
        if built is not None:
            note: Regrouped = built.notes[0]
            self.files += built.files
            self.rows += note.rows
            self.highest = max(self.highest, note.max_seq)

    def _retried(self, task: RegroupTask, failure: BuildFailure) -> Built | None:
        bad = {path: reason for path in task.paths if (reason := unreadable(path))}
        if not bad:
            raise Retryable(f"{self._work.dataset.name}: rebuilding failed: {failure.reason}", kind="rebuild_failed")
        self.unreadable |= bad
        left = tuple(path for path in task.paths if path not in bad)
        if not left:
            return None
        (again,) = self._work.lake.run([self._task(left)])
        if isinstance(again, BuildFailure):
            raise Retryable(f"{self._work.dataset.name}: rebuilding failed: {again.reason}", kind="rebuild_failed")
        return again

    def _task(self, paths: tuple[Path, ...]) -> RegroupTask:
        return RegroupTask(self._work.dataset.name, paths, self._place, self._field_ids, self._without)


def _lots(held: Inventory) -> Iterator[tuple[Path, ...]]:
    """The files of a partition together. Where rows may lie in two files, all of it must be in one task."""
    by_folder: defaultdict[tuple[str, ...], list[Path]] = defaultdict(list)
    for path in held.paths:
        by_folder[path.parts[-3:-1]].append(path)
    for paths in by_folder.values():
        lot: list[Path] = []
        size = 0
        for path in paths:
            bytes_ = path.stat().st_size
            if lot and size + bytes_ > _TASK_BYTES and held.damage is None:
                yield tuple(lot)
                lot, size = [], 0
            lot.append(path)
            size += bytes_
        yield tuple(lot)


def _properties(work: Work, held: Inventory, rewriting: _Rewriting) -> dict[str, str]:
    """What the table knew of itself. Where rows were lost it does not say whose place it takes: the key index then
    forgets them, and they may come again."""
    with work.store.reading() as connection:
        recorded = flushes.recorded_through(connection, work.dataset.name)
    properties = {key: value for key, value in held.properties.items() if key != REBUILT_FROM}
    properties[FLOOR] = str(max(int(properties.get(FLOOR, 0)), rewriting.highest, recorded))
    if held.uuid and not held.lost and not rewriting.unreadable:
        properties[REBUILT_FROM] = held.uuid
    return properties


def _unlanded(work: Work) -> set[str]:
    with work.store.reading() as connection:
        return flushes.unlanded(connection, work.dataset.name)


def _set_aside(work: Work, path: Path) -> Path:
    """Out of the old generation's folder, which goes some day."""
    folder = work.home.lake / "set-aside" / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    durable.make_dir(folder)
    kept = folder / path.name
    path.rename(kept)
    durable.fsync_dir(folder)
    return kept


def _said(held: Inventory) -> str:
    if held.damage:
        return f", from the files on disk: {held.damage}"
    told = f"{many(len(held.lost), 'file')} with {many(held.lost_rows, 'row')}"
    return f"; damaged or missing: {told}" if held.lost else ""
