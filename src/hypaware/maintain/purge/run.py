"""One purge, from tombstones to verification. A dry run is the search of the purge without its changes.

    tombstones · flush · find · rewrite · commit · forget · rejects, dead letters · index, free pages · verify

Tombstones are durable before the first row is deleted. If the process is killed at any point, no purged row comes back,
other rows are unharmed, and the same command finishes the purge; until then `hyp verify` reports it.

@ref keeping#purge @ref walks#purge
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from hypaware import faults, telemetry
from hypaware.config.shared_lake import find_shared_lake
from hypaware.engine import jobs as engine_jobs
from hypaware.engine.jobs import JobContext
from hypaware.errors import Cancelled, HypError, LakeError, Retryable
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import CatalogEntry
from hypaware.index.scrub import scrub_index
from hypaware.lake import health, key_index, tombstones
from hypaware.lake.build import BuildFailure, BuildResult, Task
from hypaware.maintain.purge import copies, other_machines, search, table, verify
from hypaware.maintain.purge.context import MAX_HASHES, PurgeContext, PurgedTable, PurgeReport, RemovedRows
from hypaware.maintain.purge.damaged_tables import check_damaged_tables
from hypaware.maintain.purge.search import ProgressCallback
from hypaware.maintain.purge.selector import PurgeSelector, unaffected_datasets
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.privacy import folder_memory
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from hypaware.state.location import has_state

_after_clean = faults.crash_point("maintain.purge.after-clean", "the databases hold no data of deleted rows")
_TABLES_WITH_TEXT = ("dead_letters", "purges", "streams", "titles")
_TIMEOUT = 15.0
_POLL = 0.1
_MANIFEST_FORMAT = 2
_LEFT_BY_QUERIES = ("blockmgr-*/*/shuffle_*", "blockmgr-*/*/temp_*", "blockmgr-*/*/rdd_*", "query-*/*")
_QUERY_TIMEOUT = 30.0
_after_lake = faults.crash_point("maintain.purge.after-lake", "the lake is clean, rejects and dead letters are not")
_before_finish = faults.crash_point(
    "maintain.purge.before-finish", "everything is clean, the purge is still marked unfinished"
)


def purge_job(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Run the job `purge`. args: `kind`, `values` (as in `PurgeSelector`), `allow_reimport`."""
    from hypaware.lake.spark_table import SparkLake

    spark = context.spark
    opened = open_home(context.home)
    with closing(opened.store), telemetry.span("maintain.purge", component="maintain", operation="purge") as span:
        purge_context = PurgeContext(
            context.home,
            context.config,
            opened.store,
            SparkLake(context.home, spark, opened.identity, context.check_cancelled),
            PurgeSelector.from_args(args),
            partial(_describe_live_files_only, spark),
            allow_reimport=bool(args.get("allow_reimport")),
            progress=lambda message, done, total: context.progress(message, done, total or None),
            note=context.note,
            check_cancelled=context.check_cancelled,
        )
        report = run_purge(purge_context)
        span.set(row_count=report.rows)
    return report.as_json()


def run_purge(context: PurgeContext) -> PurgeReport:
    damaged = check_damaged_tables(context.home, context.selector, context.lake.run, context.note)
    context = replace(context, damaged=damaged)
    health.refuse_delete_files(context.home, damaged)
    report, removed_rows = PurgeReport(context.selector, dry_run=False), RemovedRows()
    unfinished = tombstones.list_unfinished_purges(context.home)
    context = replace(context, resumed=any(stone.command in unfinished for stone in context.selector.tombstones))
    report.resumed = context.resumed
    tombstone_ids = _set_tombstones(context, report)
    other_machines.note_values(context.home, context.store, context.selector.tombstones)
    report.left_alone = sorted({*unaffected_datasets(context.selector, datasets.list_all()), *damaged})
    table.apply_all_settlements(context, removed_rows)
    copies.bury_spooled(context, tombstone_ids)
    copies.flush_spool(context, report)
    context = replace(context, sessions=search.find_sessions(context.home, context.selector, context.lake.run, damaged))
    other_machines.note_sessions(context.home, context.store, context.sessions)
    _purge_tables(context, report, removed_rows, tombstone_ids)
    _after_lake()
    copies.remove_rejects(context, report, removed_rows)
    copies.remove_from_dead_letters(context, report, removed_rows)
    copies.remove_titles(context)
    report.delivered = removed_rows.copies
    if context.allow_reimport:
        # A row does not name its transcript, so an import must read all of them again.
        with context.store.transaction() as connection:
            for dataset in datasets.list_all():
                if context.selector.column(dataset) is not None:
                    flushes.forget_checkpoints(connection, dataset.name)
    if context.selector.kind == "cwd":
        folder_memory.forget_names(context.home, context.selector.values)
    context.progress("removing the rows from the index", 0, 0)
    scrub_index(context.home)
    # The state is rewritten (VACUUM): it is small, and its dead letters were the only rows in it. The key index holds
    # hashes and overwrites them when it deletes (`KeyIndex.remove_rows`), so only its log is truncated: rewriting
    # gigabytes of it would remove nothing more.
    for path, vacuum in ((context.home.state, True), (context.home.keys, False), (context.home.tombstones, False)):
        if path.is_file() and not _clean_database(path, vacuum):
            context.note(f"{path.name} is in use, so its log was not truncated and may still hold deleted data")
    if find_shared_lake(context.home) is not None:
        _rewrite_shared_tables(context)
    _after_clean()
    _clear_scratch(context)
    if context.resumed and tombstone_ids:
        # Rows that an earlier attempt removed are known only by their tombstones.
        removed_rows.add([], tombstones.list_parts(context.home, MAX_HASHES))
    context.progress("searching every file of the home", 0, 0)
    verify.verify_purge(context, report, removed_rows)
    if tombstone_ids and not report.remaining:
        _before_finish()
        tombstones.finish_purges(
            context.home, tombstone_ids, report.rows + report.spool_rows, datetime.now(UTC).isoformat()
        )
    other_machines.mark_done(context.home, context.store)
    report.tombstones["parts"] = tombstones.count_parts(context.home)
    return report


def _set_tombstones(context: PurgeContext, report: PurgeReport) -> list[int]:
    """Set the tombstones, so that no row comes back once removal starts; or lift them if reimport is allowed."""
    now, named = datetime.now(UTC).isoformat(), context.selector.tombstones
    if context.allow_reimport:
        if context.selector.kind == "before" and tombstones.has_active(context.home, named):
            # Only the key indexes still know the rows that that purge removed. They are deleted before the tombstone is
            # lifted: a run killed in between finds the tombstone and deletes them again.
            other_machines.note_index(context.home, context.store)
            key_index.remove_index(context.home.keys)
        report.tombstones = {"set": 0, "lifted": tombstones.revoke(context.home, named, now)}
        return []
    tombstone_ids = tombstones.create_tombstones(context.home, named, now)
    report.tombstones = {"set": len(tombstone_ids), "lifted": 0}
    return tombstone_ids


def _purge_tables(
    context: PurgeContext, report: PurgeReport, removed_rows: RemovedRows, tombstone_ids: list[int]
) -> None:
    """Purge all tables. An error in one does not stop the others; the first error is raised at the end."""
    present = {entry.name for entry in metadata.list_tables(context.home)}
    errors: list[HypError] = []
    found = [(dataset, selector) for dataset in datasets.list_all() if (selector := context.for_dataset(dataset))]
    # Datasets purged by session come before those that determine the sessions: after a kill these still can.
    for dataset, selector in sorted(found, key=lambda each: each[1] is context.selector):
        if dataset.name in present - context.damaged:
            table_context, by_sessions = replace(context, selector=selector), selector is not context.selector
            try:
                report.datasets.append(
                    table.purge_table(table_context, dataset, tombstone_ids, removed_rows, by_sessions=by_sessions)
                )
            except Cancelled:
                raise
            except HypError as error:
                errors.append(error)
    if errors:
        raise errors[0]


def _clean_database(path: Path, vacuum: bool) -> bool:
    """Remove deleted data from the pages and the log. Return False if the database is in use the whole time."""
    with closing(sqlite3.connect(path, timeout=_TIMEOUT, isolation_level=None)) as db:
        db.execute("PRAGMA secure_delete=ON").close()
        # Not in a temporary directory outside the home.
        db.execute("PRAGMA temp_store=MEMORY").close()
        try:
            if vacuum:
                db.execute("VACUUM").close()
        except sqlite3.OperationalError:
            return False
        deadline = time.monotonic() + _TIMEOUT
        # The first column is 1 if a reader or writer blocks the checkpoint.
        while db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL)
        return True


def _rewrite_shared_tables(context: PurgeContext) -> None:
    """Rewrite the tables of the database that held rows, titles, or what was purged. Its log is its operator's."""
    from hypaware.state.postgres_database import PostgresDatabase

    assert isinstance(context.store.database, PostgresDatabase)
    try:
        context.store.database.rewrite_tables(_TABLES_WITH_TEXT)
    except Retryable as error:
        context.note(f"tables of the database are in use and may still hold deleted data: {error.message}")


def _clear_scratch(context: PurgeContext) -> None:
    """Remove shuffled rows and spilled results that queries left in the engine's scratch directory.

    A query that started before the purge may have purged rows there. Wait for such queries for a limited time, then
    remove the files that no running job can have written.
    """
    now = time.time()
    engine_jobs.wait_for_other_jobs(now, _QUERY_TIMEOUT, context.check_cancelled)
    latest = min(now, engine_jobs.oldest_other_job_start(context.started_at))
    for pattern in _LEFT_BY_QUERIES:
        for path in (context.home.engine / "tmp").glob(f"spark-*/{pattern}"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime <= latest:
                    path.unlink()


def plan_purge(
    home: Home, selector: PurgeSelector, progress: ProgressCallback, note: Callable[[str], None] = lambda _text: None
) -> dict[str, Any]:
    """Return the report of a dry run: the same search as in a purge, in this process, without Spark and changes."""
    damaged = check_damaged_tables(home, selector, _run_here, note)
    health.refuse_delete_files(home, damaged)
    report, found = PurgeReport(selector, dry_run=True), RemovedRows()
    report.left_alone = sorted({*unaffected_datasets(selector, datasets.list_all()), *damaged})
    unreadable: dict[Path, OSError] = {}
    with ExitStack() as opened:
        store = opened.enter_context(closing(open_home(home).store)) if has_state(home) else None

        def spooled_rows(dataset: Dataset) -> Iterator[dict[str, Any]]:
            yield from copies.unflushed_rows(home, unreadable, dataset)
            if store is not None:
                yield from copies.received_rows(home, store, dataset)

        sessions = {
            *search.find_sessions(home, selector, _run_here, damaged),
            *search.sessions_of_rows(selector, spooled_rows),
        }
        for dataset in datasets.list_all():
            if (within := selector.for_dataset(dataset, sorted(sessions))) is None:
                continue
            if dataset.name not in damaged and (entry := metadata.find_table(home, dataset.name)):
                report.datasets.append(_search_table(entry, dataset, within, found, progress))
            report.spool_rows += sum(within.matches(dataset, row) for row in spooled_rows(dataset))
            report.rejects += copies.count_rejects(home, dataset, within)
        if store is not None:
            report.letters, report.letter_rows = copies.count_dead_letters(store, selector)
            report.delivered = copies.list_copies(store, found.seqs)
    report.spool_unreadable = [f"{path}: {error.strerror or error}" for path, error in unreadable.items()]
    return report.as_json()


def _search_table(
    entry: CatalogEntry, dataset: Dataset, selector: PurgeSelector, found: RemovedRows, progress: ProgressCallback
) -> PurgedTable:
    table_metadata, result = metadata.read_metadata(entry.metadata), PurgedTable(dataset.name)
    files = {file.path: file for file in metadata.iter_live_files(table_metadata)}
    gateway = table_metadata.properties.get(metadata.GATEWAY_ID_PROPERTY)
    try:
        for batch in search.search_table(dataset, files.values(), selector, gateway, _run_here, progress):
            for match in batch:
                result.add(match, files[match.path].source, found)
    except (OSError, pa.ArrowException) as error:
        raise LakeError(
            f"{dataset.name}: cannot read a data file ({error})",
            kind="lake_damaged",
            repair=f"hyp maintain {dataset.name} --rebuild",
        ) from error
    return result


def _run_here(tasks: Sequence[Task]) -> list[BuildResult | BuildFailure]:
    return [task.run() for task in tasks]


def _describe_live_files_only(spark: Any, table: Any) -> bool:
    """Rewrite the manifests from which files were deleted, through Iceberg's Java API; return whether there were any.

    Such a manifest keeps the statistics of the deleted files, which contain the beginnings of their texts. It is
    rewritten without them, in Iceberg's own commit for that; its other entries stay as they are.
    """
    iceberg = table.iceberg
    snapshot = iceberg.currentSnapshot()
    manifests = [each for each in snapshot.dataManifests(iceberg.io()) if each.hasDeletedFiles()] if snapshot else []
    if not manifests:
        return False
    added_by = {file.location: file.snapshot_id for file in metadata.iter_live_files(table.metadata)}
    change = iceberg.rewriteManifests()
    manifest_files = spark._jvm.org.apache.iceberg.ManifestFiles
    for manifest in manifests:
        change = change.deleteManifest(manifest)
        if not (manifest.hasAddedFiles() or manifest.hasExistingFiles()):
            continue
        path = f"{iceberg.location()}/metadata/{secrets.token_hex(16)}-m0.avro"
        spec = iceberg.specs().get(manifest.partitionSpecId())
        writer = manifest_files.write(_MANIFEST_FORMAT, spec, iceberg.io().newOutputFile(path), None)
        reader = manifest_files.read(manifest, iceberg.io(), iceberg.specs())
        try:
            files = reader.iterator()
            while files.hasNext():
                file = files.next().copy()
                added = added_by[str(file.location())]
                writer.existing(file, added, file.dataSequenceNumber(), file.fileSequenceNumber())
        finally:
            reader.close()
            writer.close()
        change = change.addManifest(writer.toManifestFile())
    change.commit()
    iceberg.refresh()
    return True
