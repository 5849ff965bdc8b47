"""The import, as an engine runs it: per provider and dataset, survey, then commit lot by lot.

One provider's trouble never holds the others. What was committed stays committed; whatever was interrupted is due
again, and the keys of what is in the lake say what not to write twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypaware import telemetry
from hypaware.backfill import pinning
from hypaware.backfill.admission import Admission
from hypaware.backfill.lots import Origin
from hypaware.backfill.outcome import Outcome
from hypaware.backfill.pinned import Window
from hypaware.backfill.pinning import Survey
from hypaware.backfill.request import Request, kept_window, run_all, surveyed
from hypaware.backfill.take_in import take_in
from hypaware.backfill.watching import Watch
from hypaware.engine.jobs import JobContext
from hypaware.lake import jobs as lake_jobs
from hypaware.lake import metadata, pending, standing
from hypaware.lake.landing import Landing
from hypaware.lake.spark_lake import SparkLake
from hypaware.lake.turns import changing
from hypaware.model.datasets import Dataset
from hypaware.opening import OpenHome, open_home
from hypaware.state import flushes, sources
from hypaware.state.source_mark import SourceMark


@dataclass(frozen=True)
class Known:
    """What a survey went by."""

    marks: Mapping[str, SourceMark]
    window: Window
    admission: Admission


def backfill(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Result: INTERFACE's backfill document, with a summary for each provider."""
    request = Request.of(args)
    return run_all(request, lambda outcome, dataset: _import(context, request, outcome, dataset), dry_run=False)


def _import(context: JobContext, request: Request, outcome: Outcome, dataset: Dataset) -> None:
    _flush_the_spool(context, outcome, dataset)
    opened = open_home(context.home)
    with closing(opened.store):
        with opened.store.reading() as connection:
            marks = sources.known(connection, outcome.entry.name, dataset.name)
            recorded = flushes.recorded_through(connection, dataset.name)
        standing.check(context.home, dataset.name, recorded)
        window = kept_window(request.window, metadata.retained_from(context.home, dataset.name))
        known = Known(marks, window, Admission.of(context.home, context.config))
        looking = partial(_looking, context, outcome)
        found = surveyed(outcome, request, dataset, known.admission.standing(marks), window, looking)
        # Nothing new costs nothing: Spark is not asked for.
        if found.due:
            with changing(dataset.name, context.check_cancelled):
                found = _still_due(request, opened, outcome, dataset, known, found)
                _take_in(context, request, opened, outcome, dataset, known.admission, found)


def _looking(context: JobContext, outcome: Outcome, number: int) -> None:
    context.check_cancelled()
    if number and number % 500 == 0:
        context.progress(f"looking for history of {outcome.entry.name}: {number:,} files")


def _still_due(
    request: Request, opened: OpenHome, outcome: Outcome, dataset: Dataset, known: Known, found: Survey
) -> Survey:
    """Between the survey and our turn another import may have taken some of it: then everything is looked at again."""
    with opened.store.reading() as connection:
        now = sources.known(connection, outcome.entry.name, dataset.name)
    if now == known.marks:
        return found
    counting = known.admission.standing(now)
    return pinning.survey(outcome.entry.provider, request.environment, counting, known.window, request.now)


def _take_in(
    context: JobContext, request: Request, opened: OpenHome, outcome: Outcome, dataset: Dataset, admission: Admission,
    found: Survey,
) -> None:  # fmt: skip
    watch = Watch(context, outcome, found)
    lake = SparkLake(context.home, context.spark, opened.identity, context.check_cancelled, watch.tasks_done)
    lake.warm_up()
    origin = Origin(outcome.entry.name, dataset.name, dict(request.environment), opened.gateway_id, admission)
    take_in(Landing(context.home, opened.store, lake), outcome, found, origin, watch)
    lake_jobs.trim(context, lake.table(dataset), dataset.name)


def _flush_the_spool(context: JobContext, outcome: Outcome, dataset: Dataset) -> None:
    """Rows that wait come first: what the lake has decides what an import writes, and the spool is not asked."""
    facts = {**outcome.facts, "hyp_dataset": dataset.name}
    with telemetry.span("backfill.flush", component="backfill", **facts) as span:
        if not pending.waits(context.home, [dataset.name]):
            span.status("skipped")
            telemetry.event("backfill.flush_skipped", status="skipped", **facts)
            return
        (report,) = lake_jobs.flush_datasets(context, [dataset.name], patient=True)
        span.set(row_count=report.rows_written)
