"""The import, as an engine runs it: per provider and dataset, survey, then commit lot by lot.

One provider's trouble never holds the others. What was committed stays committed; whatever was interrupted is due
again, and the keys of what is in the lake say what not to write twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import Any

from hypaware import telemetry
from hypaware.backfill import registry
from hypaware.backfill.lots import Origin
from hypaware.backfill.outcome import Outcome
from hypaware.backfill.pinning import Survey, path_text
from hypaware.backfill.registry import Registered
from hypaware.backfill.request import Request, attempt, finish, kept_window, surveyed
from hypaware.backfill.take_in import take_in
from hypaware.backfill.watching import Watch
from hypaware.engine.jobs import JobContext
from hypaware.lake import jobs as lake_jobs
from hypaware.lake import metadata, pending, standing
from hypaware.lake.landing import Landing
from hypaware.lake.spark_lake import SparkLake
from hypaware.model.datasets import Dataset
from hypaware.opening import OpenHome, open_home
from hypaware.state import flushes, sources
from hypaware.state.sources import SourceMark


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
            attempt(outcome, name, partial(_import, context, request, outcome))
        span.status("failed" if outcome.error else "ok")
    with telemetry.span("backfill.provider_finish", component="backfill", **outcome.facts) as span:
        outcome.finish(span)
    return outcome


def _import(context: JobContext, request: Request, outcome: Outcome, dataset: Dataset) -> None:
    _flush_the_spool(context, outcome, dataset)
    opened = open_home(context.home)
    with closing(opened.store):
        with opened.store.reading() as connection:
            marks = sources.known(connection, outcome.entry.name, dataset.name)
            recorded = flushes.recorded_through(connection, dataset.name)
        standing.check(context.home, dataset.name, recorded)
        window = kept_window(request.window, metadata.retained_from(context.home, dataset.name))
        found = surveyed(outcome, request, dataset, marks, window, partial(_looking, context, outcome))
        # Nothing new costs nothing: Spark is not asked for.
        if found.due:
            with lake_jobs.changing(dataset.name, context.check_cancelled):
                _drop_what_another_took(opened, outcome, dataset, marks, found)
                _take_in(context, request, opened, outcome, dataset, found)


def _looking(context: JobContext, outcome: Outcome, number: int) -> None:
    context.check_cancelled()
    if number and number % 500 == 0:
        context.progress(f"looking for history of {outcome.entry.name}: {number:,} files")


def _drop_what_another_took(
    opened: OpenHome, outcome: Outcome, dataset: Dataset, marks: Mapping[str, SourceMark], found: Survey
) -> None:
    """Between the survey and our turn another import may have taken some of it; what is left of that is due later."""
    with opened.store.reading() as connection:
        now = sources.known(connection, outcome.entry.name, dataset.name)
    found.due = [due for due in found.due if now.get(name := path_text(due.pinned.path)) == marks.get(name)]


def _take_in(
    context: JobContext, request: Request, opened: OpenHome, outcome: Outcome, dataset: Dataset, found: Survey
) -> None:
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
