"""The import as an engine job: for each provider and dataset, survey its sources, then commit them batch by batch.

A provider that fails does not stop the others. Committed rows stay committed. An interrupted source stays due, and the
key index keeps its rows from being written twice.
"""

from __future__ import annotations

from collections import deque
from contextlib import closing
from functools import partial
from typing import Any

from hypaware import telemetry
from hypaware.backfill.privacy_filter import ImportPolicy
from hypaware.backfill.report import ImportReport, run_providers, survey_for_report
from hypaware.backfill.request import ImportArguments
from hypaware.backfill.survey import ImportState, SourceSurvey, survey_dataset
from hypaware.backfill.tasks import (
    ImportBatch,
    ImportContext,
    SourceReport,
    make_tasks,
    raise_faults,
    split_into_batches,
)
from hypaware.engine.jobs import JobContext
from hypaware.lake import commit, health, jobs
from hypaware.lake.locks import commit_lock
from hypaware.lake.prepare import PoisonRows, prepare_flush
from hypaware.lake.spark_table import SparkLake
from hypaware.lake.table import OpenTable
from hypaware.model.datasets import Dataset
from hypaware.state import flushes, sources
from hypaware.state.home_opener import open_home
from hypaware.state.store import StateStore


def backfill(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Return the backfill document, with a summary for each provider."""
    request = ImportArguments.from_args(args)
    return run_providers(request, partial(_import_dataset, context, request), dry_run=False)


def _import_dataset(context: JobContext, request: ImportArguments, report: ImportReport, dataset: Dataset) -> None:
    _flush_spool(context, report, dataset)
    home, provider = context.home, report.entry
    policy = ImportPolicy.from_config(home, context.config)
    opened = open_home(home)

    def on_progress(number: int) -> None:
        context.check_cancelled()
        if number and number % 500 == 0:
            context.progress(f"scanning the history of {provider.name}: {number:,} files")

    with closing(opened.store):
        state = _load_state(opened.store, provider.name, dataset.name)
        found = survey_for_report(report, home, request, dataset, state, policy, on_progress)
        # If nothing is due, Spark is not started.
        if not found.due:
            return
        with commit_lock(dataset.name, context.check_cancelled):
            # Another import may have changed the checkpoints before this one got the lock.
            current = _load_state(opened.store, provider.name, dataset.name)
            if current.checkpoints != state.checkpoints:
                found = survey_dataset(home, request, provider.provider, dataset, current, policy)
            progress = ImportProgress(context, report, found)
            lake = SparkLake(home, context.spark, opened.identity, context.check_cancelled, progress.tasks_done)
            lake.warm_up()
            shared = ImportContext(provider.name, dataset.name, dict(request.environment), opened.gateway_id, policy)
            with commit.open_table(home, opened.store, lake, dataset) as target:
                commit_batches(target, report, found, shared, progress)
            jobs.trim_snapshots(context, lake.table(dataset), dataset.name)


def _flush_spool(context: JobContext, report: ImportReport, dataset: Dataset) -> None:
    """Flush spooled rows first: an import looks for duplicates in the lake, not in the spool."""
    facts = {**report.facts, "hyp_dataset": dataset.name}
    with telemetry.span("backfill.flush", component="backfill", **facts) as span:
        if not health.has_pending_rows(context.home, [dataset.name]):
            span.status("skipped")
            telemetry.event("backfill.flush_skipped", status="skipped", **facts)
            return
        (flushed,) = jobs.flush_datasets(context, [dataset.name], skip_deferred=True)
        span.set(row_count=flushed.rows.written)


def _load_state(store: StateStore, provider: str, dataset: str) -> ImportState:
    with store.reading() as connection:
        checkpoints = sources.load_checkpoints(connection, provider, dataset)
        return ImportState(checkpoints, flushes.highest_recorded_sequence(connection, dataset))


class ImportProgress:
    """Reports bytes, files and rows over all commits of an import."""

    def __init__(self, context: JobContext, report: ImportReport, found: SourceSurvey) -> None:
        self._context = context
        self._report = report
        self._found = found
        self._bytes = self._files = 0

    def tasks_done(self, done: int, files: int, rows: int) -> None:
        """Report the progress of the tasks of the current commit."""
        self._context.progress(
            f"importing {self._report.entry.name}",
            self._bytes + done,
            self._found.bytes,
            unit="bytes",
            files=self._files + files,
            files_total=len(self._found.due),
            rows=self._report.rows.written + rows,
        )

    def before_batch(self) -> None:
        """Stop the import if the job was cancelled."""
        self._context.check_cancelled()
        self.tasks_done(0, 0, 0)

    def after_batch(self, batch: ImportBatch) -> None:
        self._bytes += batch.bytes
        self._files += len(batch.due)
        self.tasks_done(0, 0, 0)


def commit_batches(
    target: OpenTable,
    report: ImportReport,
    found: SourceSurvey,
    context: ImportContext,
    progress: ImportProgress | None = None,
) -> None:
    """Commit the due sources. If a source crashes its worker, halve its batch to isolate it; the others continue."""
    pending = deque(split_into_batches(found.due))
    while pending:
        batch = pending.popleft()
        if progress is not None:
            progress.before_batch()
        try:
            _commit_batch(target, batch, context, report)
        except PoisonRows as fault:
            if len(batch.due) > 1:
                pending.extendleft(reversed(batch.halves()))
                continue
            report.fail_source(batch.due[0], fault)
        if progress is not None:
            progress.after_batch(batch)


def _commit_batch(target: OpenTable, batch: ImportBatch, context: ImportContext, report: ImportReport) -> None:
    table = target.table
    facts = {**report.facts, "hyp_dataset": context.dataset}
    with telemetry.span("backfill.materialize", component="backfill", **facts) as span:
        flush = commit.reserve_import(target, batch.max_rows)
        with commit.discard_on_error(target, flush):
            tasks = make_tasks(batch, context, flush.after, flush.id, table.data_root, dict(table.field_ids))
            prepared = prepare_flush(target, flush, tasks)
            sources_read: list[SourceReport] = prepared.reports
            raise_faults(sources_read)
        span.set(row_count=sum(each.rows for each in sources_read), items=sum(each.items for each in sources_read))
    with telemetry.span("backfill.write", component="backfill", **facts) as span:
        checkpoints = [each.checkpoint for each in sources_read if each.checkpoint]
        result = commit.commit_flush(target, flush, prepared, checkpoints)
        span.set(row_count=result.rows.written)
    report.add_sources(sources_read, prepared.duplicates | prepared.purged | prepared.settled)
    report.add_rows(result.rows, {file.day for file in prepared.files})
    telemetry.count("hyp_rows_written", result.rows.written, hyp_dataset=context.dataset)
    telemetry.count("hyp_rows_rejected", result.rows.rejected, hyp_dataset=context.dataset)
