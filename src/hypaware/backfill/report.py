"""Run the providers of an import, and report on each: the JSON document, its summary, and telemetry counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from hypaware import telemetry
from hypaware.backfill.providers import ProviderFault, RegisteredProvider, load_providers
from hypaware.backfill.survey import DueSource, ImportState, SourceSurvey, encode_path, survey_dataset
from hypaware.clients.client import ProviderEvent
from hypaware.errors import Cancelled, HypError, Retryable
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.model.row_counts import RowCounts

if TYPE_CHECKING:
    from hypaware.backfill.privacy_filter import ImportPolicy
    from hypaware.backfill.request import ImportArguments
    from hypaware.backfill.tasks import SourceReport
    from hypaware.home import Home

_MAX_REASONS = 50
# Errors that have a telemetry event of their own.
_ERROR_EVENTS = (
    "materializer_missing",
    "dataset_mismatch",
    "dataset_not_registered",
    "invalid_yield",
    "provider_error",
)
# A provider's event must not set these fields.
_RESERVED_FACTS = frozenset({"status", "provider", "hyp_plugin", "name", "dev_run_id"})


@dataclass
class ImportReport:
    entry: RegisteredProvider
    items: int = 0
    sessions: set[str] = field(default_factory=set)
    rows: RowCounts = field(default_factory=RowCounts)
    rows_ignored: int = 0
    files: int = 0
    files_unchanged: int = 0
    files_skipped: Counter[str] = field(default_factory=Counter)
    lines_skipped: Counter[str] = field(default_factory=Counter)
    held: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    days: set[str] = field(default_factory=set)
    error: HypError | None = None
    surveys: int = 0

    @property
    def rows_skipped(self) -> int:
        return self.rows.duplicate + self.rows.settled + self.rows.purged + self.rows_ignored

    @property
    def facts(self) -> dict[str, Any]:
        """The provider and its plugin, for telemetry."""
        return {"provider": self.entry.name, "hyp_plugin": self.entry.plugin}

    def add_sources(self, reports: Iterable[SourceReport], dropped: Collection[int]) -> None:
        """Add the reports of the sources; the tokens of dropped rows are not counted."""
        for report in reports:
            self.items += report.items
            self.sessions |= report.sessions
            self.rows_ignored += report.ignored.total()
            self.lines_skipped.update(report.ignored)
            if self.surveys <= 1:
                self.lines_skipped.update(report.skipped)
                self.held += report.held
            self.tokens.update(report.totals.total(dropped))
            self.emit(report.events)
            if report.changed:
                self.files_skipped[report.changed] += 1
            if report.error:
                self.files_skipped["failed"] += 1
                self.fail(HypError(f"the provider failed to read a source: {report.error}", kind="provider_error"))

    def fail_source(self, due: DueSource, reason: HypError) -> None:
        """Record that a source cannot be imported. It stays due, in case a newer version can import it."""
        self.files_skipped["failed"] += 1
        self.fail(
            HypError(f"{encode_path(due.snapshot.path)} cannot be imported: {reason.message}", kind="source_failed")
        )

    def add_rows(self, counts: RowCounts, days: Iterable[str]) -> None:
        """Add the rows of a commit, and the days of the written ones."""
        self.rows.add(counts)
        self.days.update(days)
        if counts.purged:
            self.lines_skipped["purged"] += counts.purged

    def fail(self, error: HypError) -> None:
        """Keep the first error; emit an event for each."""
        self.error = self.error or error
        name = error.kind if error.kind in _ERROR_EVENTS else "provider_error"
        telemetry.event(f"backfill.{name}", status="failed", error_kind=error.kind, **self.facts)

    def emit(self, events: Iterable[ProviderEvent]) -> None:
        for event in events:
            facts = {key: value for key, value in event.facts.items() if key not in _RESERVED_FACTS}
            telemetry.event(f"backfill.event.{event.name}", **{**facts, **self.facts})

    def as_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "provider": self.entry.name,
            "plugin": self.entry.plugin,
            "datasets": list(self.entry.provider.datasets),
            "status": "failed" if self.error else "ok",
            "items_seen": self.items,
            "sessions_seen": len(self.sessions),
            **self.rows.as_json("written", "rejected", "purged", "settled"),
            "rows_skipped": self.rows_skipped,
            "rows_ignored": self.rows_ignored,
            "files_unchanged": self.files_unchanged,
            "lines_skipped": dict(sorted(_most_common(self.lines_skipped).items())),
            "files": self.files,
            "files_skipped": dict(sorted(self.files_skipped.items())),
            "held_back": self.held,
            "summary": {
                "sessions": len(self.sessions),
                "rows": self.rows.written,
                "tokens": dict(sorted(self.tokens.items())),
                "first_day": min(self.days, default=None),
                "last_day": max(self.days, default=None),
            },
        }
        if self.error:
            document["error"] = self.error.as_json()
        return document


def _most_common(counts: Counter[str]) -> Counter[str]:
    """Return the most common reasons. Names of unknown types come from outside and are not bounded."""
    kept = Counter(dict(counts.most_common(_MAX_REASONS)))
    if rest := counts.total() - kept.total():
        kept["others"] += rest
    return kept


ImportWork = Callable[[ImportReport, Dataset], None]
"""Imports one provider's rows of one dataset."""


def run_providers(request: ImportArguments, work: ImportWork, *, dry_run: bool) -> dict[str, Any]:
    """Run each provider in turn and return the backfill document."""
    facts: dict[str, Any] = {
        "provider_count": len(request.providers),
        "dry_run": dry_run,
        "retention_days": request.retention_days,
        "since": request.window.since,
        "until": request.window.until,
    }
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
            span.set(
                items_seen=report.items,
                sessions_seen=len(report.sessions),
                rows_written=report.rows.written,
                rows_skipped=report.rows_skipped,
                error_kind=report.error.kind if report.error else "",
            )
            span.status("cancelled" if cancelled else "failed" if report.error else "ok")


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


def find_failure(report: Mapping[str, Any], requested: Iterable[str]) -> HypError | None:
    """Return the error of an import in which a provider failed or is missing; None if it succeeded."""
    failed = [each["provider"] for each in report["providers"] if "error" in each]
    missing = sorted(set(requested) - {each["provider"] for each in report["providers"]})
    if missing:
        return HypError(
            f"the engine was started without the plugin of {', '.join(missing)}; stop it and run the import again",
            kind="unknown_provider",
            repair="hyp engine stop",
        )
    return HypError(f"the import failed for {', '.join(failed)}", kind="providers_failed") if failed else None
