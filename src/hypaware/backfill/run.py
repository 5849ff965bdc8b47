"""The import, as an engine runs it: per provider and dataset, survey, then commit lot by lot.

One provider's trouble never holds the others. What was committed stays committed; whatever was interrupted is due
again, and the keys of what is in the lake say what not to write twice.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from hypaware import telemetry
from hypaware.backfill import registry
from hypaware.backfill.lots import Origin
from hypaware.backfill.outcome import Outcome
from hypaware.backfill.registry import Registered
from hypaware.backfill.request import Request, finish, kept_window, registered, surveyed
from hypaware.backfill.take_in import take_in
from hypaware.backfill.watching import Watch
from hypaware.engine.jobs import JobContext
from hypaware.errors import Cancelled, HypError, Retryable
from hypaware.lake import jobs as lake_jobs
from hypaware.lake import metadata, pending
from hypaware.lake.landing import Landing
from hypaware.lake.spark_lake import SparkLake
from hypaware.model.datasets import Dataset
from hypaware.opening import open_home
from hypaware.state import sources


def backfill(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Result: INTERFACE's backfill document, with a summary for each provider."""
    request = Request.of(args)
    asked = request.facts(dry_run=False)
    known = registry.providers()
    with telemetry.span("backfill.start", component="backfill", **asked) as span:
        telemetry.event("backfill.start", **asked)
        outcomes = [_run_provider(context, request, entry) for name in request.providers if (entry := known.get(name))]
        span.status("failed" if any(outcome.error for outcome in outcomes) else "ok")
        finish(outcomes)
    return {
        "run_id": telemetry.dev_run_id(),
        "dry_run": False,
        "providers": [outcome.document() for outcome in outcomes],
    }


def _run_provider(context: JobContext, request: Request, entry: Registered) -> Outcome:
    outcome = Outcome(entry)
    with telemetry.span("backfill.provider_start", component="backfill", **outcome.facts) as span:
        for name in entry.provider.datasets:
            try:
                _import(context, request, outcome, registered(name))
            except Cancelled:
                raise
            except HypError as error:
                outcome.fail(error)
            except OSError as error:
                outcome.fail(Retryable(f"{name}: {error}; what was not imported is still due", kind="import_failed"))
        span.status("failed" if outcome.error else "ok")
    with telemetry.span("backfill.provider_finish", component="backfill", **outcome.facts) as span:
        outcome.finish(span)
    return outcome


def _import(context: JobContext, request: Request, outcome: Outcome, dataset: Dataset) -> None:
    _flush_the_spool(context, outcome, dataset)
    opened = open_home(context.home)
    with lake_jobs.changing(dataset.name), closing(opened.store):
        with opened.store.reading() as connection:
            marks = sources.known(connection, outcome.entry.name, dataset.name)
        window = kept_window(request.window, metadata.retained_from(context.home, dataset.name))
        found = surveyed(outcome, request, dataset, marks, window)
        # Nothing new costs nothing: Spark is not asked for.
        if found.due:
            watch = Watch(context, outcome, found)
            lake = SparkLake(context.home, context.spark, opened.identity, context.check_cancelled, watch.tasks_done)
            origin = Origin(outcome.entry.name, dataset.name, dict(request.environment), opened.gateway_id)
            take_in(Landing(context.home, opened.store, lake), outcome, found, origin, watch.next_lot)
            lake_jobs.trim(context, lake.table(dataset), dataset.name)


def _flush_the_spool(context: JobContext, outcome: Outcome, dataset: Dataset) -> None:
    """Rows that wait come first: what the lake has decides what an import writes, and the spool is not asked."""
    facts = {**outcome.facts, "hyp_dataset": dataset.name}
    with telemetry.span("backfill.flush", component="backfill", **facts) as span:
        if not pending.waits(context.home, [dataset.name]):
            span.status("skipped")
            telemetry.event("backfill.flush_skipped", status="skipped", **facts)
            return
        (report,) = lake_jobs.flush_datasets(context, [dataset.name])
        span.set(row_count=report.rows_written)
