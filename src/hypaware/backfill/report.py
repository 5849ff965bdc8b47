"""The report on each provider of an import (the JSON document, its summary, telemetry events), and the plan of one.

A plan comes from file names, sizes and checkpoints; it opens no transcript.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from hypaware import telemetry
from hypaware.backfill.providers import FaultKind, ProviderFault, RegisteredProvider, load_providers
from hypaware.backfill.request import ImportArguments, ImportPolicy
from hypaware.backfill.survey import SourceSurvey, encode_path, read_import_state, survey_dataset
from hypaware.clients.client import ProviderEvent
from hypaware.config import Config
from hypaware.errors import Cancelled, HypError, Retryable
from hypaware.home import Home
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.model.row_counts import RowCounts
from hypaware.state.titles import TitleResolver

if TYPE_CHECKING:
    from hypaware.backfill.source_rows import SourceReport

_MAX_REASONS = 50
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
    unsupported: list[str] = field(default_factory=list)
    """Places with history that the provider cannot import."""
    titles: TitleResolver = field(default_factory=TitleResolver)
    warnings: list[str] = field(default_factory=list)
    """What could not be read apart from the history; the import went on without it."""
    error: HypError | None = None
    surveys: int = 0

    @property
    def rows_skipped(self) -> int:
        return self.rows.duplicate + self.rows.settled + self.rows.purged + self.rows_ignored

    @property
    def facts(self) -> dict[str, Any]:
        return {"provider": self.entry.name, "hyp_plugin": self.entry.plugin}

    def add_batch(
        self, reports: Iterable[SourceReport], dropped: Collection[int], counts: RowCounts, days: Iterable[str]
    ) -> None:
        """Add the sources and rows of a commit; the tokens of dropped rows are not counted."""
        self.rows.add(counts)
        self.days.update(days)
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
        if counts.purged:
            self.lines_skipped["purged"] += counts.purged

    def fail(self, error: HypError) -> None:
        """Keep the first error; emit an event for each."""
        self.error = self.error or error
        name = error.kind if error.kind in get_args(FaultKind) else "provider_error"
        telemetry.event(f"backfill.{name}", status="failed", error_kind=error.kind, **self.facts)

    def emit(self, events: Iterable[ProviderEvent]) -> None:
        for event in events:
            facts = {key: value for key, value in event.facts.items() if key not in _RESERVED_FACTS}
            telemetry.event(f"backfill.event.{event.name}", **{**facts, **self.facts})
            if event.name == "unsupported_location":
                self.unsupported.append(str(event.facts.get("path")))

    def as_json(self) -> dict[str, Any]:
        # Names of unknown types come from outside and are not bounded.
        lines_skipped = Counter(dict(self.lines_skipped.most_common(_MAX_REASONS)))
        if rest := self.lines_skipped.total() - lines_skipped.total():
            lines_skipped["others"] += rest
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
            "lines_skipped": dict(sorted(lines_skipped.items())),
            "files": self.files,
            "files_skipped": dict(sorted(self.files_skipped.items())),
            "held_back": self.held,
            "unsupported_locations": self.unsupported,
            "warnings": list(dict.fromkeys(self.warnings)),
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


def find_dataset(name: str) -> Dataset:
    if name not in datasets.list_names():
        raise ProviderFault("dataset_not_registered", f"no dataset {name} is registered")
    return datasets.get(name)


@contextlib.contextmanager
def isolate_failure(report: ImportReport, dataset: str) -> Iterator[None]:
    """Record any failure in the report: one provider must not stop the others."""
    try:
        yield
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


def make_plan(home: Home, config: Config, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan document; the entry of a provider that fails holds the error."""
    request = ImportArguments(**args)
    chosen = filter(None, map(load_providers().get, request.providers))
    policy = ImportPolicy.from_config(home, config, remembers=False)
    planned = [_plan_provider(home, request, entry, policy) for entry in chosen]
    return {"run_id": telemetry.dev_run_id(), "providers": planned}


def _plan_provider(
    home: Home, request: ImportArguments, entry: RegisteredProvider, policy: ImportPolicy
) -> dict[str, Any]:
    report, found = ImportReport(entry), list[SourceSurvey]()

    with redirect_stdout():
        for name in entry.provider.datasets:
            with isolate_failure(report, name):
                dataset, state = find_dataset(name), read_import_state(home, entry.name, name)
                found.append(survey_dataset(home, request, entry.provider, dataset, state, policy, in_order=False))
    document = {"provider": entry.name, "plugin": entry.plugin, "datasets": list(entry.provider.datasets)}
    if report.error:
        return {**document, "plan": None, "error": report.error.as_json()}
    return {**document, "plan": _estimate(found)}


def _estimate(found: list[SourceSurvey]) -> dict[str, Any]:
    paths = [encode_path(due.snapshot.path) for each in found for due in each.due]
    unchanged = sum(each.unchanged for each in found)
    notes = [f"{unchanged} files are unchanged since their last import"] if unchanged else []
    notes += [f"{count} files cannot be read now: {reason}" for each in found for reason, count in each.skipped.items()]
    notes += [
        " ".join([event.name.replace("_", " "), *(f"{key}={value}" for key, value in event.facts.items())])
        for each in found
        for event in each.events
    ]
    return {
        "estimated_items": len(paths),
        "estimated_bytes": sum(each.bytes for each in found),
        "sources": [os.path.commonpath(paths)] if paths else [],
        "notes": notes,
    }


@contextlib.contextmanager
def redirect_stdout() -> Iterator[None]:
    """Redirect stdout to stderr, even for writes that bypass Python: plugins must not print into a command's output."""
    sys.stdout.flush()
    saved = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
