"""`hyp backfill`: import the session history of clients, or list and estimate it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.group import json_option
from hypaware.cli.runnable_group import RunnableGroup

if TYPE_CHECKING:
    from hypaware.backfill.registry import Providers, Registered
    from hypaware.backfill.wanted import Wanted
    from hypaware.config import Config
    from hypaware.home import Home

_named = click.argument("providers", nargs=-1, metavar="[PROVIDER]...")
_retention = click.option(
    "--retention-days",
    type=click.IntRange(min=0),
    help="Import at most this many days back; 0 means no limit.  [default: retention.default_days]",
)


@click.group(
    "backfill",
    cls=RunnableGroup,
    examples=[
        "hyp backfill",
        "hyp backfill claude --since 30d",
        "hyp backfill --since 2026-11-01 --until 2026-11-15",
        "hyp backfill --dry-run",
    ],
)
@_named
@click.option("--since", metavar="DATE", help="Import nothing older: 2026-11-15, 2026-11-15T08:00Z, 7d, 12h.")
@click.option("--until", metavar="DATE", help="Import nothing newer; a date includes the whole day.")
@_retention
@click.option("--dry-run", is_flag=True, help="Write nothing; report what would be imported.")
@json_option
def backfill(
    providers: tuple[str, ...],
    since: str | None,
    until: str | None,
    retention_days: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import the session history of your clients on this machine.

    Without PROVIDER, import from every enabled client. You can run it again at any time: nothing is imported twice, and
    unchanged files are not even opened.
    """
    from hypaware.cli import backfill_summary

    request = _parse_request(providers, since, until, retention_days)
    if request.why_none is not None:
        _nothing_to_run(request, {"run_id": request.run_id, "dry_run": dry_run, "providers": []}, as_json)
        return
    report = _run_dry(request) if dry_run else _run(request)
    if not as_json:
        backfill_summary.show_run(report, request.parsed, request.home)
    _finish(request, report, as_json)


@backfill.command("list", examples=["hyp backfill list", "hyp backfill list --json"])
@json_option
def list_(as_json: bool) -> None:
    """List the clients whose history can be imported."""
    from hypaware import config as configuration
    from hypaware.backfill import registry
    from hypaware.backfill.selection import is_enabled
    from hypaware.home import Home

    config = configuration.load(Home.from_environment())
    found = registry.providers()
    _warn_about_broken_plugins(found)
    if as_json:
        output.emit_json({"providers": [_provider_json(each) for each in found]})
        return
    output.emit_table(
        ["provider", "enabled", "history", "datasets", "plugin"],
        [
            (
                each.name,
                is_enabled(config, each.name),
                each.provider.summary,
                ", ".join(each.provider.datasets),
                each.plugin,
            )
            for each in found
        ],
    )


@backfill.command("plan", examples=["hyp backfill plan", "hyp backfill plan claude --retention-days 30 --json"])
@_named
@_retention
@json_option
def plan(providers: tuple[str, ...], retention_days: int | None, as_json: bool) -> None:
    """Estimate how much an import would read."""
    from hypaware.backfill.plan import plan as make_plan
    from hypaware.cli import backfill_summary

    request = _parse_request(providers, retention_days=retention_days)
    if request.why_none is not None:
        _nothing_to_run(request, {"run_id": request.run_id, "providers": []}, as_json)
        return
    found = make_plan(request.home, request.config, request.args)
    if not as_json:
        backfill_summary.show_plan(found)
    _finish(request, found, as_json)


@dataclass(frozen=True)
class _Request:
    home: Home
    config: Config
    parsed: Wanted
    run_id: str

    @property
    def why_none(self) -> str | None:
        return self.parsed.selection.why_none

    @property
    def args(self) -> dict[str, Any]:
        return self.parsed.as_args(self.run_id)


def _parse_request(
    names: Sequence[str], since: str | None = None, until: str | None = None, retention_days: int | None = None
) -> _Request:
    from datetime import UTC, datetime
    from pathlib import Path

    from hypaware import config as configuration
    from hypaware import telemetry
    from hypaware.backfill import registry
    from hypaware.backfill.wanted import understand
    from hypaware.home import Home

    home = Home.from_environment()
    config = configuration.load(home)
    found = registry.providers()
    _warn_about_broken_plugins(found)
    parsed = understand(
        home,
        config,
        found,
        names=names,
        since=since,
        until=until,
        retention_days=retention_days,
        now=datetime.now(UTC),
        variables={**os.environ, "HOME": str(Path.home())},
    )
    return _Request(home, config, parsed, telemetry.dev_run_id())


def _run(request: _Request) -> dict[str, Any]:
    from hypaware.cli.jobs import run_job
    from hypaware.opening import identify

    identify(request.home)
    return run_job("backfill", request.args)


def _run_dry(request: _Request) -> dict[str, Any]:
    """Count in this process: starting an engine would create a home that does not exist yet."""
    from hypaware.backfill.dry import dry_run
    from hypaware.cli.progress import display

    bar = display()

    def progress(message: str, done: float, total: float, facts: dict[str, Any]) -> None:
        bar.report(message, done, total, **facts)

    try:
        return dry_run(request.home, request.config, request.args, progress)
    finally:
        bar.clear()


def _finish(request: _Request, report: dict[str, Any], as_json: bool) -> None:
    """Print the JSON report; fail if a provider failed or is missing from the report."""
    from hypaware.backfill.verdict import trouble
    from hypaware.cli.failure import PartlyFailed

    if error := trouble(report, request.args["providers"]):
        raise PartlyFailed(error.message, report, kind=error.kind, repair=error.repair)
    if as_json:
        output.emit_json(report)


def _nothing_to_run(request: _Request, document: dict[str, Any], as_json: bool) -> None:
    output.note(f"nothing to import: {request.why_none}")
    if as_json:
        output.emit_json({**document, "reason": request.why_none})


def _warn_about_broken_plugins(found: Providers) -> None:
    for plugin in found.broken:
        output.warn(f"cannot load the client {plugin.name} from {plugin.distribution}: {plugin.error}")


def _provider_json(each: Registered) -> dict[str, Any]:
    provider = each.provider
    return {
        "name": each.name,
        "plugin": each.plugin,
        "datasets": list(provider.datasets),
        "summary": provider.summary,
    }
