"""The import as an engine job: for each provider and dataset, survey its sources, then commit them batch by batch.

A provider that fails does not stop the others. Committed rows stay committed. An interrupted source stays due, and
the key index keeps its rows from being written twice.
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
    """What a survey was based on."""

    checkpoints: Mapping[str, SourceMark]
    window: Window
    policy: Admission


def backfill(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Return the backfill document, with a summary for each provider."""
    request = Request.from_args(args)
    return run_all(request, lambda outcome, dataset: _import(context, request, outcome, dataset), dry_run=False)


def _import(context: JobContext, request: Request, outcome: Outcome, dataset: Dataset) -> None:
    _flush_the_spool(context, outcome, dataset)
    opened = open_home(context.home)
    with closing(opened.store):
        with opened.store.reading() as connection:
            checkpoints = sources.known(connection, outcome.entry.name, dataset.name)
            recorded = flushes.recorded_through(connection, dataset.name)
        standing.check(context.home, dataset.name, recorded)
        window = kept_window(request.window, metadata.retained_from(context.home, dataset.name))
        known = Known(checkpoints, window, Admission.from_config(context.home, context.config))
        on_progress = partial(_looking, context, outcome)
        found = surveyed(outcome, request, dataset, known.policy.drop_stale(checkpoints), window, on_progress)
        # If nothing is due, Spark is not started.
        if found.due:
            with changing(dataset.name, context.check_cancelled):
                found = _still_due(request, opened, outcome, dataset, known, found)
                _take_in(context, request, opened, outcome, dataset, known.policy, found)


def _looking(context: JobContext, outcome: Outcome, number: int) -> None:
    context.check_cancelled()
    if number and number % 500 == 0:
        context.progress(f"scanning the history of {outcome.entry.name}: {number:,} files")


def _still_due(
    request: Request, opened: OpenHome, outcome: Outcome, dataset: Dataset, known: Known, found: Survey
) -> Survey:
    """Survey again if another import changed the checkpoints before this one got the lock."""
    with opened.store.reading() as connection:
        current = sources.known(connection, outcome.entry.name, dataset.name)
    if current == known.checkpoints:
        return found
    checkpoints = known.policy.drop_stale(current)
    return pinning.survey(outcome.entry.provider, request.environment, checkpoints, known.window, request.now)


def _take_in(
    context: JobContext, request: Request, opened: OpenHome, outcome: Outcome, dataset: Dataset, policy: Admission,
    found: Survey,
) -> None:  # fmt: skip
    listener = Watch(context, outcome, found)
    lake = SparkLake(context.home, context.spark, opened.identity, context.check_cancelled, listener.tasks_done)
    lake.warm_up()
    origin = Origin(outcome.entry.name, dataset.name, dict(request.environment), opened.gateway_id, policy)
    take_in(Landing(context.home, opened.store, lake), outcome, found, origin, listener)
    lake_jobs.trim(context, lake.table(dataset), dataset.name)


def _flush_the_spool(context: JobContext, outcome: Outcome, dataset: Dataset) -> None:
    """Flush spooled rows first: an import looks for duplicates in the lake, not in the spool."""
    facts = {**outcome.facts, "hyp_dataset": dataset.name}
    with telemetry.span("backfill.flush", component="backfill", **facts) as span:
        if not pending.waits(context.home, [dataset.name]):
            span.status("skipped")
            telemetry.event("backfill.flush_skipped", status="skipped", **facts)
            return
        (report,) = lake_jobs.flush_datasets(context, [dataset.name], skip_deferred=True)
        span.set(row_count=report.rows_written)
