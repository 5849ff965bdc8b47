"""The engine's jobs on the lake: recovery when an engine acquires it, and flush."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from hypaware.engine.jobs import JobContext
from hypaware.errors import Cancelled, LakeError
from hypaware.home.identity import Identity
from hypaware.iceberg import commit_times, fsync, metadata
from hypaware.iceberg.metadata import INCARNATION_PROPERTY
from hypaware.lake import health
from hypaware.lake.commit import finish_interrupted_flushes
from hypaware.lake.flush import Flusher, FlushReport
from hypaware.lake.locks import commit_lock
from hypaware.lake.spark_table import SparkLake, SparkTable, trim_snapshots
from hypaware.model import datasets
from hypaware.spool import segments
from hypaware.state import flushes, recovery
from hypaware.state.home_opener import OpenHome, catch_up, open_home


def recover_lake(context: JobContext) -> None:
    """Repair the lake after its lock was acquired: damage by a power cut, an outdated state, interrupted flushes."""
    with _open_home(context) as opened:
        # Nothing may write to tables that a rollback cannot repair.
        damaged = set()
        found = fsync.roll_back_damaged(context.home, health.read_recorded_floors(opened.store))
        for table, reason in found.items():
            if isinstance(reason, LakeError):
                damaged.add(table)
                context.note(reason.message)
            else:
                context.note(f"{table}: the newest commit was damaged by a crash ({reason}) and was rolled back")
        fsync.fsync_all(context.home, skip=damaged)
        for entry in metadata.list_tables(context.home):
            if entry.name not in damaged and commit_times.lower_future_times(context.home, entry.name, time.time()):
                context.note(
                    f"{entry.name}: a commit was dated in the future, because the clock was ahead; it is dated now"
                )
        floor = recovery.summarize_lake(context.home).floor
        with opened.store.reading() as connection:
            is_behind = flushes.next_sequence(connection) <= floor
            interrupted = flushes.unfinished_flushes(connection)
        if is_behind:
            opened = catch_up(context.home, opened.store, "the state was older than the lake and was updated from it")
            context.note(str(opened.rebuilt))
        lake = SparkLake(context.home, context.spark, opened.identity, context.check_cancelled)
        for name in _installed_datasets(context, sorted({flush.dataset for flush in interrupted} - damaged)):
            try:
                # Also older files, which a rollback does not check.
                fsync.require_intact(context.home, name)
                finish_interrupted_flushes(context.home, opened.store, lake.table(datasets.get(name)), name)
            except LakeError as error:
                damaged.add(name)
                context.note(error.message)
        # No other job runs yet, and the job that acquired the lake may hold the lock already.
        store_incarnation(context, opened.identity, skip=damaged, is_only_job=True)


def store_incarnation(
    context: JobContext, identity: Identity, *, skip: Collection[str] = (), is_only_job: bool = False
) -> None:
    """Store the incarnation in tables that lack it. Spark is used only if there is one."""
    for name, known in recovery.summarize_lake(context.home).tables.items():
        is_stored = known.properties.get(INCARNATION_PROPERTY) == identity.incarnation
        if is_stored or name in skip or name not in datasets.list_names():
            continue
        with nullcontext() if is_only_job else commit_lock(name, context.check_cancelled):
            fsync.fsync_commit(context.home, name)
            if SparkTable(context.spark, datasets.get(name)).store_identity(identity):
                fsync.fsync_commit(context.home, name)


def run_flush(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Run the job `flush`. args: `dataset` (default: all that have a spool), `patient` (skip deferred rows).

    `deferral` is how many seconds rows are deferred, if it is not the default.
    """
    wanted = [args["dataset"]] if args.get("dataset") else segments.list_spooled_datasets(context.home)
    deferral = float(args.get("deferral") or segments.DEFERRAL_SECONDS)
    reports = flush_datasets(context, wanted, skip_deferred=bool(args.get("patient")), deferral=deferral)
    return {"datasets": [report.as_json() for report in reports]}


def flush_datasets(
    context: JobContext,
    names: list[str],
    *,
    skip_deferred: bool = False,
    deferral: float = segments.DEFERRAL_SECONDS,
) -> list[FlushReport]:
    """Flush each dataset. An error of one does not stop the others; the first error is raised at the end."""
    reports: list[FlushReport] = []
    errors: list[Exception] = []
    spark = context.spark
    with _open_home(context) as opened:
        lake = SparkLake(context.home, spark, opened.identity, context.check_cancelled)
        progress = partial(context.progress, unit="rows")
        flusher = Flusher(context.home, opened.store, lake, context.config.flush, progress, context.check_cancelled)
        for name in _installed_datasets(context, names):
            try:
                with commit_lock(name, context.check_cancelled):
                    report = flusher.flush(datasets.get(name), skip_deferred=skip_deferred, deferral=deferral)
                    if report.rows.written:
                        trim_snapshots(context, lake.table(datasets.get(name)), name)
                for active in report.still_active:
                    context.note(f"{name}: a running process has not sealed {active}; its rows remain in the spool")
                reports.append(report)
            except Cancelled:
                raise
            except Exception as error:
                # Damage shows in many ways; it must not keep the rows of other datasets in the spool.
                errors.append(error)
    if errors:
        raise errors[0]
    return reports


def _installed_datasets(context: JobContext, names: list[str]) -> list[str]:
    """Return the datasets that are installed. Rows of the others stay in the spool until their plugin returns."""
    known = datasets.list_names()
    for name in names:
        if name not in known:
            context.note(f"{name}: this dataset is not installed; its rows remain in {context.home.spool / name}")
    return [name for name in names if name in known]


@contextmanager
def _open_home(context: JobContext) -> Iterator[OpenHome]:
    opened = open_home(context.home)
    if opened.rebuilt:
        context.note(opened.rebuilt)
    try:
        yield opened
    finally:
        opened.store.close()
