"""What an import of one provider came to, and how it is told: INTERFACE's document, the summary, telemetry's counts."""

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
    # It needs Arrow, and whoever only plans an import does not.
    from hypaware.backfill.pieces import SourceReport

# Problems that are told by their own log record.
_MAX_REASONS = 50
_PROBLEMS = ("materializer_missing", "dataset_mismatch", "dataset_not_registered", "invalid_yield", "provider_error")


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
        """For telemetry: whose import this is."""
        return {"provider": self.entry.name, "hyp_plugin": self.entry.plugin}

    def surveyed(self, found: Survey) -> None:
        """Once for each dataset; the files are the same ones each time."""
        self._surveys += 1
        if self._surveys == 1:
            self.files += found.files
            self.files_unchanged += found.unchanged
            self.files_skipped.update(found.skipped)
            self.held += found.held
            self.tell(found.events)

    def read(self, reports: Iterable[SourceReport], duplicates: Collection[int]) -> None:
        for report in reports:
            self.items += report.items
            self.sessions |= report.sessions
            self._ignored(report.ignored)
            if self._surveys <= 1:
                self.lines_skipped.update(report.skipped)
                self.held += report.held
            self.tokens.update(report.tally.total(duplicates))
            self.tell(report.events)
            if report.changed:
                self.files_skipped[report.changed] += 1
            if report.error:
                self.files_skipped["failed"] += 1
                self.fail(HypError(f"reading failed: {report.error}", kind="provider_error"))

    def _ignored(self, rows: Counter[str]) -> None:
        """Their user does not want them recorded."""
        self.rows_ignored += rows.total()
        self.rows_skipped += rows.total()
        self.lines_skipped.update(rows)

    def gave_up(self, due: Due, reason: HypError) -> None:
        """The source cannot be built; it stays due, in case a newer version can."""
        self.files_skipped["failed"] += 1
        self.fail(HypError(f"{path_text(due.pinned.path)} cannot be imported: {reason.message}", kind="source_failed"))

    def wrote(self, written: int, skipped: int, rejected: int, days: Iterable[str]) -> None:
        self.rows_written += written
        self.rows_skipped += skipped
        self.rows_rejected += rejected
        self.days.update(days)

    def settled(self, rows: int) -> None:
        """They told the ids of rows that were recorded live."""
        self.rows_settled += rows
        self.rows_skipped += rows

    def kept_out(self, rows: int) -> None:
        """They were purged, and do not come back."""
        self.rows_purged += rows
        self.rows_skipped += rows
        if rows:
            self.lines_skipped["purged"] += rows

    def fail(self, error: HypError) -> None:
        """The first reason stays; each is told."""
        self.error = self.error or error
        name = error.kind if error.kind in _PROBLEMS else "provider_error"
        telemetry.event(f"backfill.{name}", status="failed", error_kind=error.kind, **self.facts)

    def tell(self, events: Iterable[Event]) -> None:
        for event in events:
            facts = {key: value for key, value in event.facts.items() if key not in _OURS}
            telemetry.event(f"backfill.event.{event.name}", **{**facts, **self.facts})

    def finish(self, span: telemetry.Span, *, cancelled: bool) -> None:
        span.set(
            items_seen=self.items,
            sessions_seen=len(self.sessions),
            rows_written=self.rows_written,
            rows_skipped=self.rows_skipped,
            error_kind=self.error.kind if self.error else "",
        )
        span.status("cancelled" if cancelled else "failed" if self.error else "ok")

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = {
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
            found["error"] = self.error.as_json()
        return found


def _bounded(counts: Counter[str]) -> Counter[str]:
    """The commonest reasons; names of unknown types come from outside, and there is no end of them."""
    told = Counter(dict(counts.most_common(_MAX_REASONS)))
    if rest := counts.total() - told.total():
        told["others"] += rest
    return told


# A provider's facts must not pass for ours.
_OURS = frozenset({"status", "provider", "hyp_plugin", "name", "dev_run_id"})
