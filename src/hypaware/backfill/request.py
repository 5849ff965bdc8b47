"""An import request, and the steps that a real run, a dry run and a plan share. No Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from hypaware import telemetry
from hypaware.backfill import pinning, registry
from hypaware.backfill.check import ProviderFault
from hypaware.backfill.outcome import Outcome
from hypaware.backfill.pinned import Window
from hypaware.backfill.pinning import Survey
from hypaware.errors import Cancelled, HypError, Retryable
from hypaware.model import datasets
from hypaware.model.datasets import Dataset
from hypaware.state.source_mark import SourceMark

Work = Callable[[Outcome, Dataset], None]
"""Imports one provider's rows of one dataset."""


@dataclass(frozen=True)
class Request:
    """The arguments of an import."""

    providers: tuple[str, ...]
    window: Window
    environment: Mapping[str, str]
    now: datetime
    retention_days: int | None = None

    def facts(self, *, dry_run: bool) -> dict[str, Any]:
        """The request, for telemetry."""
        return {
            "provider_count": len(self.providers),
            "dry_run": dry_run,
            "retention_days": self.retention_days,
            "since": self.window.since,
            "until": self.window.until,
        }

    @classmethod
    def from_args(cls, args: Mapping[str, Any]) -> Request:
        return cls(
            tuple(args["providers"]),
            Window(args.get("since"), args.get("until")),
            args.get("environment") or {},
            datetime.now(UTC),
            args.get("retention_days"),
        )


def run_all(request: Request, work: Work, *, dry_run: bool) -> dict[str, Any]:
    """Run each provider in turn and return the backfill document."""
    facts = request.facts(dry_run=dry_run)
    known = registry.providers()
    outcomes: list[Outcome] = []
    status: telemetry.Status = "cancelled"
    with telemetry.span("backfill.start", component="backfill", **facts) as span:
        telemetry.event("backfill.start", **facts)
        try:
            for name in request.providers:
                if (entry := known.get(name)) is not None:
                    outcomes.append(Outcome(entry))
                    _run_provider(outcomes[-1], work)
            status = "failed" if any(outcome.error for outcome in outcomes) else "ok"
        finally:
            span.status(status)
            _finish(outcomes, status)
    return {
        "run_id": telemetry.dev_run_id(),
        "dry_run": dry_run,
        "providers": [outcome.as_json() for outcome in outcomes],
    }


def _finish(outcomes: list[Outcome], status: telemetry.Status) -> None:
    telemetry.event(
        "backfill.finish",
        status=status,
        total_items=sum(outcome.items for outcome in outcomes),
        total_rows_written=sum(outcome.rows_written for outcome in outcomes),
        total_rows_skipped=sum(outcome.rows_skipped for outcome in outcomes),
        error_count=sum(outcome.error is not None for outcome in outcomes),
    )


def _run_provider(outcome: Outcome, work: Work) -> None:
    cancelled = True
    try:
        with telemetry.span("backfill.provider_start", component="backfill", **outcome.facts) as span:
            for name in outcome.entry.provider.datasets:
                attempt(outcome, name, partial(work, outcome))
            span.status("failed" if outcome.error else "ok")
            cancelled = False
    finally:
        with telemetry.span("backfill.provider_finish", component="backfill", **outcome.facts) as span:
            outcome.finish_span(span, cancelled=cancelled)


def attempt(outcome: Outcome, dataset: str, work: Callable[[Dataset], None]) -> None:
    """Run `work` and record any failure in the report: one provider must not stop the others."""
    try:
        work(registered(dataset))
    except Cancelled:
        raise
    except HypError as error:
        # No provider can continue without the engine; the caller starts another one.
        if error.kind == "engine_died":
            raise
        outcome.fail(error)
    except ConnectionError as error:
        raise Retryable(
            f"the engine's JVM has stopped ({error}); no data is lost. Run the command again", kind="engine_died"
        ) from error
    except OSError as error:
        outcome.fail(Retryable(f"{dataset}: {error}; sources that were not imported stay due", kind="import_failed"))
    except (Exception, SystemExit) as error:
        outcome.fail(ProviderFault("provider_error", f"{dataset}: unexpected {type(error).__name__}: {error}"))


def registered(name: str) -> Dataset:
    if name not in datasets.names():
        raise ProviderFault("dataset_not_registered", f"no dataset {name} is registered")
    return datasets.get(name)


def surveyed(
    outcome: Outcome,
    request: Request,
    dataset: Dataset,
    checkpoints: Mapping[str, SourceMark],
    window: Window,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Survey:
    facts = {**outcome.facts, "hyp_dataset": dataset.name}
    with telemetry.span("backfill.plan", component="backfill", **facts) as span:
        provider, environment = outcome.entry.provider, request.environment
        found = pinning.survey(provider, environment, checkpoints, window, request.now, on_progress=on_progress)
        counts: dict[str, Any] = {"files": found.files, "files_due": len(found.due), "bytes_due": found.bytes}
        span.set(**counts)
        telemetry.event("backfill.scan", **facts, **counts)
    outcome.add_survey(found)
    return found


def kept_window(window: Window, retained_from: str | None) -> Window:
    """Return the window without days that retention has removed; they must not come back."""
    if retained_from is None:
        return window
    kept = f"{retained_from}T00:00:00.000000Z"
    return Window(max(kept, window.since or kept), window.until)
