"""The import step of a setup: consent, window, and the span `walkthrough.backfill`.

The import is bounded by the retention and by the start time of the setup, so that it never overlaps with live
recording. If one client fails, the others are still imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from hypaware import telemetry
from hypaware.backfill import registry
from hypaware.backfill.verdict import trouble
from hypaware.backfill.wanted import Wanted, understand
from hypaware.config import Config
from hypaware.setup.plan import Plan, Step

Run = Callable[[dict[str, Any]], dict[str, Any]]
"""Runs a backfill: takes its arguments and returns its report."""


def wanted(plan: Plan, config: Config, clients: Sequence[str]) -> Wanted | None:
    """Return the import request, or None if none of the clients keeps history."""
    providers = registry.providers()
    names = [name for name in clients if providers.get(name)]
    if not names:
        return None
    until = plan.now.isoformat()
    return understand(plan.home, config, providers, names=names, until=until, now=plan.now, variables=plan.variables)


def take_in(plan: Plan, request: Wanted | None, run: Run, *, dry_run: bool) -> Step:
    """Call `run` if the user agreed to the import, and return the step."""
    if request is None:
        none_found = "no client found on this machine"
        why = none_found if plan.choices.clients is None else "no chosen client keeps history"
        return Step("import", "skipped", why, ("hyp backfill list",))
    args = request.as_args(telemetry.dev_run_id())
    with _span(plan, args, dry_run=dry_run, consent=plan.choices.imports) as span:
        if not plan.choices.imports:
            span.set(providers_run=0, rows_written=0)
            span.status("skipped")
            return Step("import", "skipped", "declined", ("hyp backfill",))
        report = run(args)
        error = trouble(report, args["providers"])
        rows = sum(each["rows_written"] for each in report["providers"])
        span.set(providers_run=len(report["providers"]), rows_written=rows)
        span.status("failed" if error else "ok")
    facts: dict[str, Any] = {"backfill": report}
    sessions = sum(each["sessions_seen"] for each in report["providers"])
    if error:
        return Step("import", "failed", error.message, ("hyp backfill",), facts=facts, error=error)
    if dry_run:
        size = _bytes(plan, request)
        message = "nothing new"
        if size:
            message = f"{_imported(rows, sessions)} would be imported; {size:,} bytes would be read"
        return Step("import", "would" if rows else "unchanged", message, facts={**facts, "bytes": size})
    if not rows:
        return Step("import", "unchanged", "nothing new", facts=facts)
    return Step("import", "done", _imported(rows, sessions), facts=facts)


def consent_cancelled(plan: Plan, clients: Sequence[str], config: Config) -> None:
    """Record in telemetry that the user cancelled at the question about the import."""
    if (request := wanted(plan, config, clients)) is not None:
        args = request.as_args(telemetry.dev_run_id())
        with _span(plan, args, dry_run=False, consent=False, consent_cancelled=True) as span:
            span.set(providers_run=0, rows_written=0)
            span.status("cancelled")


def _imported(rows: int, sessions: int) -> str:
    return f"{rows:,} row{'s' * (rows != 1)} of {sessions:,} session{'s' * (sessions != 1)}"


def _bytes(plan: Plan, request: Wanted) -> int:
    names = [each.name for each in request.selection.chosen]
    since = datetime.fromisoformat(request.window.since) if request.window.since else None
    return sum(each.estimate(since).bytes for each in plan.found if each.name in names)


def _span(
    plan: Plan, args: Mapping[str, Any], *, dry_run: bool, consent: bool, consent_cancelled: bool = False
) -> telemetry.Span:
    return telemetry.span(
        "walkthrough.backfill",
        component="walkthrough",
        provider_count=len(args["providers"]),
        providers=",".join(args["providers"]),
        dry_run=dry_run,
        interactive=plan.choices.interactive,
        consent=consent,
        consent_cancelled=consent_cancelled,
        retention_days=args["retention_days"],
        until=args["until"],
    )
