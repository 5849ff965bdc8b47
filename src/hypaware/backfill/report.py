"""The report of one provider's import: the JSON document, its summary, and telemetry counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypaware import telemetry
from hypaware.backfill.providers import RegisteredProvider
from hypaware.backfill.survey import DueSource, SourceSurvey, encode_path
from hypaware.clients.client import ProviderEvent
from hypaware.errors import HypError
from hypaware.model.row_counts import RowCounts

if TYPE_CHECKING:
    from hypaware.backfill.tasks import SourceReport

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
    _surveys: int = 0

    @property
    def rows_skipped(self) -> int:
        return self.rows.duplicate + self.rows.settled + self.rows.purged + self.rows_ignored

    @property
    def facts(self) -> dict[str, Any]:
        """The provider and its plugin, for telemetry."""
        return {"provider": self.entry.name, "hyp_plugin": self.entry.plugin}

    def add_survey(self, found: SourceSurvey) -> None:
        """Add a survey. There is one per dataset, and all of them list the same files."""
        self._surveys += 1
        if self._surveys == 1:
            self.files += found.files
            self.files_unchanged += found.unchanged
            self.files_skipped.update(found.skipped)
            self.held += found.held
            self.emit(found.events)

    def add_sources(self, reports: Iterable[SourceReport], dropped: Collection[int]) -> None:
        """Add the reports of the sources; the tokens of dropped rows are not counted."""
        for report in reports:
            self.items += report.items
            self.sessions |= report.sessions
            self.rows_ignored += report.ignored.total()
            self.lines_skipped.update(report.ignored)
            if self._surveys <= 1:
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

    def finish_span(self, span: telemetry.Span, *, cancelled: bool) -> None:
        span.set(
            items_seen=self.items,
            sessions_seen=len(self.sessions),
            rows_written=self.rows.written,
            rows_skipped=self.rows_skipped,
            error_kind=self.error.kind if self.error else "",
        )
        span.status("cancelled" if cancelled else "failed" if self.error else "ok")

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
