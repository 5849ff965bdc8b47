"""The report of one provider's import: the JSON document, its summary, and telemetry counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypaware import telemetry
from hypaware.backfill.pinning import Due, Survey, path_text
from hypaware.backfill.provider import Event
from hypaware.backfill.registry import Registered
from hypaware.errors import HypError

if TYPE_CHECKING:
    # It imports Arrow, which a plan does not need.
    from hypaware.backfill.pieces import SourceReport

_MAX_REASONS = 50
# Errors that have a telemetry event of their own.
_ERROR_EVENTS = (
    "materializer_missing",
    "dataset_mismatch",
    "dataset_not_registered",
    "invalid_yield",
    "provider_error",
)


@dataclass
class Outcome:
    entry: Registered
    items: int = 0
    sessions: set[str] = field(default_factory=set)
    rows_written: int = 0
    rows_skipped: int = 0
    rows_rejected: int = 0
    rows_purged: int = 0
    rows_settled: int = 0
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
    def facts(self) -> dict[str, Any]:
        """The provider and its plugin, for telemetry."""
        return {"provider": self.entry.name, "hyp_plugin": self.entry.plugin}

    def add_survey(self, found: Survey) -> None:
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
            self._add_ignored(report.ignored)
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

    def _add_ignored(self, rows: Counter[str]) -> None:
        self.rows_ignored += rows.total()
        self.rows_skipped += rows.total()
        self.lines_skipped.update(rows)

    def fail_source(self, due: Due, reason: HypError) -> None:
        """Record that a source cannot be imported. It stays due, in case a newer version can import it."""
        self.files_skipped["failed"] += 1
        self.fail(
            HypError(f"{path_text(due.snapshot.path)} cannot be imported: {reason.message}", kind="source_failed")
        )

    def add_rows(self, written: int, skipped: int, rejected: int, days: Iterable[str]) -> None:
        self.rows_written += written
        self.rows_skipped += skipped
        self.rows_rejected += rejected
        self.days.update(days)

    def add_settled(self, rows: int) -> None:
        """Count rows that matched a live row and became a settlement."""
        self.rows_settled += rows
        self.rows_skipped += rows

    def add_purged(self, rows: int) -> None:
        """Count rows that were purged and must not come back."""
        self.rows_purged += rows
        self.rows_skipped += rows
        if rows:
            self.lines_skipped["purged"] += rows

    def fail(self, error: HypError) -> None:
        """Keep the first error; emit an event for each."""
        self.error = self.error or error
        name = error.kind if error.kind in _ERROR_EVENTS else "provider_error"
        telemetry.event(f"backfill.{name}", status="failed", error_kind=error.kind, **self.facts)

    def emit(self, events: Iterable[Event]) -> None:
        for event in events:
            facts = {key: value for key, value in event.facts.items() if key not in _RESERVED_FACTS}
            telemetry.event(f"backfill.event.{event.name}", **{**facts, **self.facts})

    def finish_span(self, span: telemetry.Span, *, cancelled: bool) -> None:
        span.set(
            items_seen=self.items,
            sessions_seen=len(self.sessions),
            rows_written=self.rows_written,
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
            "rows_written": self.rows_written,
            "rows_skipped": self.rows_skipped,
            "rows_rejected": self.rows_rejected,
            "rows_purged": self.rows_purged,
            "rows_settled": self.rows_settled,
            "rows_ignored": self.rows_ignored,
            "files_unchanged": self.files_unchanged,
            "lines_skipped": dict(sorted(_bounded(self.lines_skipped).items())),
            "files": self.files,
            "files_skipped": dict(sorted(self.files_skipped.items())),
            "held_back": self.held,
            "summary": {
                "sessions": len(self.sessions),
                "rows": self.rows_written,
                "tokens": dict(sorted(self.tokens.items())),
                "first_day": min(self.days, default=None),
                "last_day": max(self.days, default=None),
            },
        }
        if self.error:
            document["error"] = self.error.as_json()
        return document


def _bounded(counts: Counter[str]) -> Counter[str]:
    """Return the most common reasons. Names of unknown types come from outside and are not bounded."""
    kept = Counter(dict(counts.most_common(_MAX_REASONS)))
    if rest := counts.total() - kept.total():
        kept["others"] += rest
    return kept


# A provider's event must not set these fields.
_RESERVED_FACTS = frozenset({"status", "provider", "hyp_plugin", "name", "dev_run_id"})
