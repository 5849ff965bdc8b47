"""Recovery of the lake when an engine acquires it, before the first job of the engine reads or writes it."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import closing, nullcontext

from hypaware.engine.jobs import JobContext
from hypaware.errors import LakeError, Retryable
from hypaware.home.identity import Identity
from hypaware.iceberg import commit_times, fsync, metadata
from hypaware.iceberg.metadata import INCARNATION_PROPERTY
from hypaware.lake import health
from hypaware.lake.commit import finish_interrupted_flushes
from hypaware.lake.flush import list_installed
from hypaware.lake.spark_table import SparkLake, SparkTable
from hypaware.lake.table import commit_lock
from hypaware.model import datasets
from hypaware.state import flushes, recovery
from hypaware.state.home_opener import catch_up, open_home, take_shared_mirror


def recover_lake(context: JobContext) -> None:
    """Repair the lake after its lock was acquired: damage by a power cut, an outdated state, interrupted flushes."""
    try:
        take_shared_mirror(context.home)
    except OSError as error:
        raise Retryable(f"lake.warehouse: {error}", kind="warehouse_unavailable") from error
    opened = open_home(context.home)
    if opened.rebuilt:
        context.note(opened.rebuilt)
    with closing(opened.store):
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
        for name in list_installed(context, sorted({flush.dataset for flush in interrupted} - damaged)):
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
