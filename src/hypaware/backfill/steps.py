"""The steps that an import, its dry run and its plan share. No Spark."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypaware import telemetry
from hypaware.backfill.privacy_filter import ImportPolicy
from hypaware.backfill.providers import ProviderFault, load_providers
from hypaware.backfill.report import ImportReport
from hypaware.backfill.request import ImportArguments
from hypaware.backfill.survey import SourceSurvey, survey_sources
from hypaware.clients.client import Provider
from hypaware.clients.reader import TimeWindow
from hypaware.errors import Cancelled, HypError, Retryable, StateError
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import FLUSH_ID_PROPERTY
from hypaware.lake import health
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.state import flushes, sources
from hypaware.state.sources import SourceCheckpoint
from hypaware.state.store import StateStore

ImportWork = Callable[[ImportReport, Dataset], None]
"""Imports one provider's rows of one dataset."""


def run_providers(request: ImportArguments, work: ImportWork, *, dry_run: bool) -> dict[str, Any]:
    """Run each provider in turn and return the backfill document."""
    facts = request.facts(dry_run=dry_run)
    known = load_providers()
    reports: list[ImportReport] = []
    status: telemetry.Status = "cancelled"
    with telemetry.span("backfill.start", component="backfill", **facts) as span:
        telemetry.event("backfill.start", **facts)
        try:
            for name in request.providers:
                if (entry := known.get(name)) is not None:
                    reports.append(ImportReport(entry))
                    _run_provider(reports[-1], work)
            status = "failed" if any(report.error for report in reports) else "ok"
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


def _run_provider(report: ImportReport, work: ImportWork) -> None:
    cancelled = True
    try:
        with telemetry.span("backfill.provider_start", component="backfill", **report.facts) as span:
            for name in report.entry.provider.datasets:
                isolate_failure(report, name, partial(work, report))
            span.status("failed" if report.error else "ok")
            cancelled = False
    finally:
        with telemetry.span("backfill.provider_finish", component="backfill", **report.facts) as span:
            report.finish_span(span, cancelled=cancelled)


def isolate_failure(report: ImportReport, dataset: str, work: Callable[[Dataset], None]) -> None:
    """Run `work` and record any failure in the report: one provider must not stop the others."""
    try:
        if dataset not in datasets.list_names():
            raise ProviderFault("dataset_not_registered", f"no dataset {dataset} is registered")
        work(datasets.get(dataset))
    except Cancelled:
        raise
    except HypError as error:
        # No provider can continue without the engine; the caller starts another one.
        if error.kind == "engine_died":
            raise
        report.fail(error)
    except ConnectionError as error:
        raise Retryable(
            f"the engine's JVM has stopped ({error}); no data is lost. Run the command again", kind="engine_died"
        ) from error
    except OSError as error:
        report.fail(Retryable(f"{dataset}: {error}; sources that were not imported stay due", kind="import_failed"))
    except (Exception, SystemExit) as error:
        report.fail(ProviderFault("provider_error", f"{dataset}: unexpected {type(error).__name__}: {error}"))


@dataclass(frozen=True)
class ImportState:
    """What the state knows of a provider and a dataset."""

    checkpoints: Mapping[str, SourceCheckpoint]
    recorded: int = 0
    """The highest recorded sequence of the dataset."""


def read_import_state(home: Home, provider: str, dataset: str) -> ImportState:
    """Read the state without opening the home or changing anything. Empty if there is no state.

    Includes the checkpoints of a flush that was committed but not recorded: the next run detects and records it.
    """
    if not home.state.is_file():
        return ImportState({})
    try:
        with StateStore(home.state, read_only=True).reading() as connection:
            if not connection.has_table("sources"):
                return ImportState({})
            committed = _committed_flushes(home, dataset)
            checkpoints = sources.load_checkpoints(connection, provider, dataset, committed=committed)
            return ImportState(checkpoints, flushes.highest_recorded_sequence(connection, dataset))
    except sqlite3.Error as error:
        raise StateError(f"cannot read the state {home.state}: {error}", repair="hyp verify --repair") from error


def _committed_flushes(home: Home, dataset: str) -> set[str]:
    """Return the ids of the flushes that the table's snapshots name."""
    if (table := metadata.find_table(home, dataset)) is None:
        return set()
    summaries = (snapshot.summary for snapshot in metadata.read_metadata(table.metadata).snapshots)
    return {summary[FLUSH_ID_PROPERTY] for summary in summaries if summary.get(FLUSH_ID_PROPERTY)}


def survey_dataset(
    home: Home,
    request: ImportArguments,
    provider: Provider,
    dataset: Dataset,
    state: ImportState,
    policy: ImportPolicy,
    *,
    in_order: bool = True,
    on_progress: Callable[[int], None] = lambda _: None,
) -> SourceSurvey:
    """Return what an import of this provider and dataset would read; raise if the lake has lost rows."""
    health.check_floor(home, dataset.name, state.recorded)
    return survey_sources(
        provider,
        request.environment,
        policy.drop_stale(state.checkpoints),
        clip_to_retention(request.window, metadata.read_retention_start(home, dataset.name)),
        request.now,
        in_order=in_order,
        on_progress=on_progress,
    )


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
    report.add_survey(found)
    return found


def clip_to_retention(window: TimeWindow, retained_from: str | None) -> TimeWindow:
    """Return the window without days that retention has removed; they must not come back."""
    if retained_from is None:
        return window
    kept = f"{retained_from}T00:00:00.000000Z"
    return TimeWindow(max(kept, window.since or kept), window.until)
