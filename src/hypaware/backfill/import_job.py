"""The import as an engine job: for each provider and dataset, survey its sources, then commit them batch by batch.

An import is split into batches, one commit each (`backfill.batches`), which keeps finished work if it is interrupted.
The rows of a source and its checkpoint are committed together or not at all.

A provider that fails does not stop the others; only one that breaks its contract stops its whole import. Committed rows
stay committed. An interrupted source stays due, and the key index keeps its rows from being written twice.

@ref walks#backfill
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypaware import telemetry
from hypaware.backfill.batches import BatchQueue, StartedBatch, split_batches
from hypaware.backfill.providers import load_providers
from hypaware.backfill.report import ImportReport, find_dataset, isolate_failure
from hypaware.backfill.request import ImportArguments, ImportPolicy
from hypaware.backfill.source_rows import ImportContext, SourceReport
from hypaware.backfill.survey import ImportState, SourceSurvey, encode_path, survey_dataset
from hypaware.engine.jobs import JobContext, import_lock
from hypaware.errors import Cancelled, HypError
from hypaware.home import Home
from hypaware.home.locks import locked
from hypaware.lake import commit, health, tombstones
from hypaware.lake.build import BuildWatcher
from hypaware.lake.flush import flush_datasets
from hypaware.lake.poison import PoisonRows
from hypaware.lake.prepare import prepare_flush
from hypaware.lake.table import OpenTable, commit_lock
from hypaware.model.datasets import Dataset
from hypaware.spool.segments import SegmentUnreadable
from hypaware.state import titles
from hypaware.state.flushes import Flush
from hypaware.state.home_opener import open_home
from hypaware.state.location import find_machine
from hypaware.text import format_count


def backfill(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Return the backfill document, with a summary for each provider."""
    request = ImportArguments(**args)
    return run_providers(request, partial(_import_dataset, context, request), dry_run=False)


def run_providers(
    request: ImportArguments, work: Callable[[ImportReport, Dataset], None], *, dry_run: bool
) -> dict[str, Any]:
    """Run each provider in turn and return the backfill document."""
    facts: dict[str, Any] = {
        "provider_count": len(request.providers),
        "dry_run": dry_run,
        "retention_days": request.retention_days,
        "since": request.window.since,
        "until": request.window.until,
    }
    reports = [ImportReport(entry) for entry in map(load_providers().get, request.providers) if entry]
    status: telemetry.Status = "cancelled"
    with telemetry.span("backfill.start", component="backfill", **facts) as span:
        telemetry.event("backfill.start", **facts)
        try:
            for report in reports:
                with _trace_provider(report):
                    for name in report.entry.provider.datasets:
                        with isolate_failure(report, name):
                            work(report, find_dataset(name))
            status = "failed" if any(report.error for report in reports) else "ok"
        except Cancelled:
            rows = sum(report.rows.written for report in reports)
            sessions = len(set[str]().union(*(report.sessions for report in reports)))
            raise Cancelled(
                f"cancelled; {format_count(rows, 'row')} of {format_count(sessions, 'session')} were committed and are "
                "kept. Run hyp backfill again to continue"
                if rows
                else "cancelled; nothing was committed yet. Run hyp backfill again to start over"
            ) from None
        finally:
            span.status(status)
            telemetry.event(
                "backfill.finish",
                status=status,
                total_items=sum(report.items for report in reports),
                total_rows_written=sum(report.rows.written for report in reports),
                total_rows_skipped=sum(report.rows_skipped for report in reports),
                error_count=sum(report.error is not None for report in reports),
            )
    return {
        "run_id": telemetry.dev_run_id(),
        "dry_run": dry_run,
        "providers": [report.as_json() for report in reports],
    }


@contextmanager
def _trace_provider(report: ImportReport) -> Iterator[None]:
    status: telemetry.Status = "cancelled"
    try:
        with telemetry.span("backfill.provider_start", component="backfill", **report.facts) as span:
            yield
            status = "failed" if report.error else "ok"
            span.status(status)
    finally:
        with telemetry.span("backfill.provider_finish", component="backfill", **report.facts) as span:
            span.set(
                items_seen=report.items,
                sessions_seen=len(report.sessions),
                rows_written=report.rows.written,
                rows_skipped=report.rows_skipped,
                error_kind=report.error.kind if report.error else "",
            )
            span.status(status)


def _import_dataset(context: JobContext, request: ImportArguments, report: ImportReport, dataset: Dataset) -> None:
    # Not at the top: a dry run works without Spark.
    with import_lock:
        from hypaware.lake.spark_table import SparkLake, trim_snapshots

    home, provider = context.home, report.entry
    facts = {**report.facts, "hyp_dataset": dataset.name}
    # An import looks for duplicates in the lake, not in the spool, so spooled rows are flushed first.
    with telemetry.span("backfill.flush", component="backfill", **facts) as span:
        if health.has_pending_rows(home, [dataset.name]):
            try:
                (flushed,) = flush_datasets(context, [dataset.name], skip_deferred=True)
                span.set(row_count=flushed.rows.written)
            except SegmentUnreadable as error:
                # Rows that stay in the spool and are imported now are duplicates when they are committed.
                report.warnings.append(error.message)
                span.status("degraded")
        else:
            span.status("skipped")
            telemetry.event("backfill.flush_skipped", status="skipped", **facts)
    policy = ImportPolicy.from_config(home, context.config)
    opened, machine = open_home(home), find_machine(home)

    def load_state() -> ImportState:
        with opened.store.reading() as connection:
            return ImportState.load(connection, provider.name, dataset.name, machine)

    def on_progress(number: int) -> None:
        context.check_cancelled()
        if number and number % 500 == 0:
            context.progress(f"scanning the history of {provider.name}: {number:,} files")

    with closing(opened.store):
        state = load_state()
        found = survey_for_report(report, home, request, dataset, state, policy, on_progress)
        # If nothing is due, Spark is not started.
        if not found.due:
            return
        with commit_lock(dataset.name, context.check_cancelled), locked(home.sources_lock):
            # Another import, or the daemon, may have changed the checkpoints before this one got the lock.
            current = load_state()
            if current.checkpoints != state.checkpoints:
                found = survey_dataset(home, request, provider.provider, dataset, current, policy)
            progress = ImportProgress(context, report, found)
            lake = SparkLake(home, context.spark, opened.identity, context.check_cancelled)
            lake.warm_up()
            environment = dict(request.environment)
            shared = ImportContext(provider.name, dataset.name, environment, opened.gateway_of_rows, policy, machine)
            with commit.open_table(home, opened.store, lake, dataset) as target:
                commit_batches(target, report, found, shared, progress)
                if any(each.pin for each in current.checkpoints.values()):
                    # What follows the pinned part of these sources.
                    current = load_state()
                    found = survey_dataset(home, request, provider.provider, dataset, current, policy)
                    commit_batches(target, report, found, shared, ImportProgress(context, report, found))
            trim_snapshots(context, lake.table(dataset), dataset.name)


def survey_for_report(
    report: ImportReport,
    home: Home,
    request: ImportArguments,
    dataset: Dataset,
    state: ImportState,
    policy: ImportPolicy,
    on_progress: Callable[[int], None] = lambda _: None,
) -> SourceSurvey:
    """Survey a dataset for a run or a dry run, with telemetry, and add the survey to the report."""
    facts = {**report.facts, "hyp_dataset": dataset.name}
    with telemetry.span("backfill.plan", component="backfill", **facts) as span:
        provider = report.entry.provider
        found = survey_dataset(home, request, provider, dataset, state, policy, on_progress=on_progress)
        counts: dict[str, Any] = {"files": found.files, "files_due": len(found.due), "bytes_due": found.bytes}
        span.set(**counts)
        telemetry.event("backfill.scan", **facts, **counts)
    # All datasets list the same files, so only the first survey counts.
    report.surveys += 1
    if report.surveys == 1:
        report.files += found.files
        report.files_unchanged += found.unchanged
        report.files_skipped.update(found.skipped)
        report.held += found.held
        report.emit(found.events)
    return found


@dataclass
class ImportProgress:
    """Reports bytes, files and rows over all batches of an import."""

    context: JobContext
    report: ImportReport
    found: SourceSurvey
    bytes: int = 0
    files: int = 0
    building: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Flush → bytes, files and rows of its finished tasks, if it is not committed yet."""

    def watch(self, flush: Flush) -> BuildWatcher:
        def tasks_done(done: int, files: int, rows: int) -> None:
            self.building[flush.id] = done, files, rows
            self.show()

        return tasks_done

    def finish(self, started: StartedBatch) -> None:
        self.building.pop(started.flush.id, None)
        self.bytes += started.batch.bytes
        self.files += len(started.batch.due)
        self.show()

    def show(self) -> None:
        done, files, rows = (sum(each) for each in zip((0, 0, 0), *list(self.building.values()), strict=True))
        self.context.progress(
            f"importing {self.report.entry.name}",
            self.bytes + done,
            self.found.bytes,
            unit="bytes",
            files=self.files + files,
            files_total=len(self.found.due),
            rows=self.report.rows.written + rows,
        )


def commit_batches(
    target: OpenTable,
    report: ImportReport,
    found: SourceSurvey,
    context: ImportContext,
    progress: ImportProgress | None = None,
) -> None:
    """Commit the due sources. If a source crashes its worker, halve its batch to isolate it; the others continue."""
    queue = BatchQueue(target, context, pending=deque(split_batches(found.due)))
    if progress is not None:
        queue.watch = progress.watch
        progress.show()
    with closing(queue):
        while queue.fill():
            started = queue.take()
            batch = started.batch
            try:
                _commit_batch(target, started, context, report)
            except PoisonRows as fault:
                if len(batch.due) > 1:
                    queue.put_back(batch.halves())
                    if progress is not None:
                        progress.building.clear()
                    continue
                # The source stays due, in case a newer version can import it.
                path = encode_path(batch.due[0].snapshot.path)
                report.files_skipped["failed"] += 1
                report.fail(HypError(f"{path} cannot be imported: {fault.message}", kind="source_failed"))
            if progress is not None:
                progress.context.check_cancelled()
                progress.finish(started)


def _store_titles(
    target: OpenTable, context: ImportContext, report: ImportReport, sources_read: Sequence[SourceReport]
) -> None:
    """Store titles before the checkpoints say that their lines were read. To store them twice does no harm."""
    for each in sources_read:
        report.titles.leaves.update(each.leaves)
    found = report.titles.resolve((title for each in sources_read for title in each.titles), {})
    is_purged = tombstones.read_tombstones(target.home).purge_filter.has_session
    if kept := [each for each in found if not is_purged(each.session_id)]:
        with target.store.transaction() as connection:
            titles.write_titles(connection, context.provider, kept)


def _commit_batch(target: OpenTable, started: StartedBatch, context: ImportContext, report: ImportReport) -> None:
    facts, flush = {**report.facts, "hyp_dataset": context.dataset}, started.flush
    with telemetry.span("backfill.materialize", component="backfill", **facts) as span:
        with commit.discard_on_error(target, flush):
            prepared = prepare_flush(target, flush, started.settings, started.built.result())
            sources_read: list[SourceReport] = prepared.reports
            for each in sources_read:
                if each.fault is not None:
                    raise each.fault
        span.set(row_count=sum(each.rows for each in sources_read), items=sum(each.items for each in sources_read))
    with telemetry.span("backfill.write", component="backfill", **facts) as span:
        _store_titles(target, context, report, sources_read)
        checkpoints = [each.checkpoint for each in sources_read if each.checkpoint]
        result = commit.commit_flush(target, flush, prepared, checkpoints)
        span.set(row_count=result.rows.written)
    dropped = prepared.duplicates | prepared.purged | prepared.settled
    report.add_batch(sources_read, dropped, result.rows, {file.day for file in prepared.files})
