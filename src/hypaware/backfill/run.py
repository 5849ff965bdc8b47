"""The import as an engine job: for each provider and dataset, survey its sources, then commit them batch by batch.

A provider that fails does not stop the others. Committed rows stay committed. An interrupted source stays due, and the
key index keeps its rows from being written twice.
"""

from __future__ import annotations

from collections import deque
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypaware import telemetry
from hypaware.backfill.report import ImportReport, run_providers, survey_for_report
from hypaware.backfill.request import ImportArguments, ImportPolicy
from hypaware.backfill.survey import ImportState, SourceSurvey, encode_path, survey_dataset
from hypaware.backfill.tasks import ImportBatch, ImportContext, SourceReport, make_tasks, split_into_batches
from hypaware.engine.jobs import JobContext
from hypaware.errors import HypError
from hypaware.lake import commit, health, jobs
from hypaware.lake.locks import commit_lock
from hypaware.lake.poison import PoisonRows
from hypaware.lake.prepare import prepare_flush
from hypaware.lake.spark_table import SparkLake, trim_snapshots
from hypaware.lake.table import OpenTable
from hypaware.model.datasets import Dataset
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from hypaware.state.store import StateStore


def backfill(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Return the backfill document, with a summary for each provider."""
    request = ImportArguments.from_args(args)
    return run_providers(request, partial(_import_dataset, context, request), dry_run=False)


def _import_dataset(context: JobContext, request: ImportArguments, report: ImportReport, dataset: Dataset) -> None:
    home, provider = context.home, report.entry
    facts = {**report.facts, "hyp_dataset": dataset.name}
    # An import looks for duplicates in the lake, not in the spool, so spooled rows are flushed first.
    with telemetry.span("backfill.flush", component="backfill", **facts) as span:
        if health.has_pending_rows(home, [dataset.name]):
            (flushed,) = jobs.flush_datasets(context, [dataset.name], skip_deferred=True)
            span.set(row_count=flushed.rows.written)
        else:
            span.status("skipped")
            telemetry.event("backfill.flush_skipped", status="skipped", **facts)
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
            trim_snapshots(context, lake.table(dataset), dataset.name)


def _load_state(store: StateStore, provider: str, dataset: str) -> ImportState:
    with store.reading() as connection:
        checkpoints = flushes.load_checkpoints(connection, provider, dataset)
        return ImportState(checkpoints, flushes.highest_recorded_sequence(connection, dataset))


@dataclass
class ImportProgress:
    """Reports bytes, files and rows over all commits of an import."""

    context: JobContext
    report: ImportReport
    found: SourceSurvey
    bytes: int = 0
    files: int = 0

    def tasks_done(self, done: int = 0, files: int = 0, rows: int = 0) -> None:
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
    pending = deque(split_into_batches(found.due))
    while pending:
        batch = pending.popleft()
        if progress is not None:
            progress.context.check_cancelled()
            progress.tasks_done()
        try:
            _commit_batch(target, batch, context, report)
        except PoisonRows as fault:
            if len(batch.due) > 1:
                middle = len(batch.due) // 2
                pending.extendleft((ImportBatch(batch.due[middle:]), ImportBatch(batch.due[:middle])))
                continue
            # The source stays due, in case a newer version can import it.
            path = encode_path(batch.due[0].snapshot.path)
            report.files_skipped["failed"] += 1
            report.fail(HypError(f"{path} cannot be imported: {fault.message}", kind="source_failed"))
        if progress is not None:
            progress.bytes += batch.bytes
            progress.files += len(batch.due)
            progress.tasks_done()


def _commit_batch(target: OpenTable, batch: ImportBatch, context: ImportContext, report: ImportReport) -> None:
    table = target.table
    facts = {**report.facts, "hyp_dataset": context.dataset}
    with telemetry.span("backfill.materialize", component="backfill", **facts) as span:
        flush = commit.reserve_import(target, batch.max_rows)
        with commit.discard_on_error(target, flush):
            tasks = make_tasks(batch, context, flush.after, flush.id, table.data_root, dict(table.field_ids))
            prepared = prepare_flush(target, flush, tasks)
            sources_read: list[SourceReport] = prepared.reports
            for each in sources_read:
                if each.fault is not None:
                    raise each.fault
        span.set(row_count=sum(each.rows for each in sources_read), items=sum(each.items for each in sources_read))
    with telemetry.span("backfill.write", component="backfill", **facts) as span:
        checkpoints = [each.checkpoint for each in sources_read if each.checkpoint]
        result = commit.commit_flush(target, flush, prepared, checkpoints)
        span.set(row_count=result.rows.written)
    dropped = prepared.duplicates | prepared.purged | prepared.settled
    report.add_batch(sources_read, dropped, result.rows, {file.day for file in prepared.files})
