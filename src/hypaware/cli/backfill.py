"""`hyp backfill`: import the session history of clients, or list and estimate it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.command import RunnableGroup, json_option
from hypaware.cli.jobs import open_progress, run_job
from hypaware.home import Home
from hypaware.text import format_count, format_size

if TYPE_CHECKING:
    from hypaware.backfill.providers import ProviderRegistry, RegisteredProvider
    from hypaware.backfill.request import ImportRequest
    from hypaware.clients.client import Provider
    from hypaware.config import Config

_providers_argument = click.argument("providers", nargs=-1, metavar="[PROVIDER]...")
_retention_option = click.option(
    "--retention-days",
    type=click.IntRange(min=0),
    metavar="N",
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
@_providers_argument
@click.option("--since", metavar="DATE", help="Import nothing older: 2026-11-15, 2026-11-15T08:00Z, 7d, 12h.")
@click.option("--until", metavar="DATE", help="Import nothing newer; a date includes the whole day.")
@_retention_option
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
    from hypaware.state.home_opener import read_identity

    request = _parse_request(providers, since, until, retention_days)
    if request.why_none is not None:
        _report_nothing_selected(request, as_json, dry_run=dry_run)
        return
    if dry_run:
        report = _run_dry_run(request)
    else:
        read_identity(request.home)
        report = run_job("backfill", request.args)
    if not as_json:
        show_import(report, request.parsed, request.home)
    _finish(request, report, as_json)


@backfill.command("list", examples=["hyp backfill list", "hyp backfill list --json"])
@json_option
def list_(as_json: bool) -> None:
    """List the clients whose history can be imported."""
    from hypaware.backfill import providers
    from hypaware.backfill.request import is_enabled
    from hypaware.config import load as load_config

    config = load_config(Home.from_environment())
    found = providers.load_providers()
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
@_providers_argument
@_retention_option
@json_option
def plan(providers: tuple[str, ...], retention_days: int | None, as_json: bool) -> None:
    """Estimate how much an import would read."""
    from hypaware.backfill.plan import make_plan

    request = _parse_request(providers, retention_days=retention_days)
    if request.why_none is not None:
        _report_nothing_selected(request, as_json)
        return
    found = make_plan(request.home, request.config, request.args)
    if not as_json:
        show_estimate(found)
    _finish(request, found, as_json)


@dataclass(frozen=True)
class _Request:
    home: Home
    config: Config
    parsed: ImportRequest
    args: dict[str, Any]

    @property
    def why_none(self) -> str | None:
        return self.parsed.selection.why_none


def _parse_request(
    names: Sequence[str], since: str | None = None, until: str | None = None, retention_days: int | None = None
) -> _Request:
    from hypaware import telemetry
    from hypaware.backfill import providers
    from hypaware.backfill.request import parse_request
    from hypaware.config import load as load_config

    home = Home.from_environment()
    config = load_config(home)
    found = providers.load_providers()
    _warn_about_broken_plugins(found)
    parsed = parse_request(
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
    return _Request(home, config, parsed, parsed.as_args(telemetry.dev_run_id()))


def _run_dry_run(request: _Request) -> dict[str, Any]:
    """Count in this process: starting an engine would create a home that does not exist yet."""
    from hypaware.backfill.dry_run import run_dry

    with open_progress() as bar:
        return run_dry(
            request.home,
            request.config,
            request.args,
            lambda message, done, total, facts: bar.report(message, done, total, **facts),
        )


def _finish(request: _Request, report: dict[str, Any], as_json: bool) -> None:
    """Print the JSON report; fail if a provider failed or is missing from the report."""
    from hypaware.backfill.report import find_failure

    if error := find_failure(report, request.args["providers"]):
        raise output.PartialFailure(error.message, report, kind=error.kind, repair=error.repair)
    if as_json:
        output.emit_json(report)


def _report_nothing_selected(request: _Request, as_json: bool, **facts: object) -> None:
    output.note(f"nothing to import: {request.why_none}")
    if as_json:
        output.emit_json({"run_id": request.args["run_id"], **facts, "providers": [], "reason": request.why_none})


def _warn_about_broken_plugins(found: ProviderRegistry) -> None:
    for plugin in found.broken:
        output.warn(f"cannot load the client {plugin.name} from {plugin.distribution}: {plugin.error}")


def _provider_json(each: RegisteredProvider) -> dict[str, Any]:
    provider = each.provider
    return {
        "name": each.name,
        "plugin": each.plugin,
        "datasets": list(provider.datasets),
        "summary": provider.summary,
    }


ProviderReport = Mapping[str, Any]
"""One provider in the report of an import."""


class _Count(int):
    """A number that is printed with thousands separators."""

    def __str__(self) -> str:
        return f"{int(self):,}"


def show_import(report: Mapping[str, Any], request: ImportRequest, home: Home) -> None:
    dry, results = bool(report["dry_run"]), report["providers"]
    written = "would write" if dry else "written"
    output.emit_table(
        ["client", "sessions", written, "already stored", "rejected", "tokens in", "out", "cached", "from", "to"],
        [_summary_row(each) for each in results],
    )
    providers = {each.name: each.provider for each in request.selection.chosen}
    for each in results:
        for line in skipped_lines(each):
            output.emit(f"{each['provider']}: {line}")
        found = each.get("files") or each["files_unchanged"] or each["items_seen"] or each.get("files_skipped")
        if each["status"] == "ok" and not found:
            output.emit(f"{each['provider']}: {_searched_places(providers[each['provider']], request)}")
    for each in results:
        warn_about_provider(each, home, dry)
    if any(each["rows_written"] for each in results):
        output.note("next: hyp backfill" if dry else "next: hyp query overview")


def show_estimate(found: Mapping[str, Any]) -> None:
    plans = {each["provider"]: each["plan"] for each in found["providers"] if each["plan"] is not None}
    output.emit_table(
        ["client", "to read", "size"],
        [(name, _Count(plan["estimated_items"]), format_size(plan["estimated_bytes"])) for name, plan in plans.items()],
    )
    for name, plan in plans.items():
        for line in (*plan["sources"], *plan["notes"]):
            output.emit(f"{name}: {line}")
    for each in found["providers"]:
        _warn_about_failure(each)


def _summary_row(each: ProviderReport) -> tuple[object, ...]:
    summary = each.get("summary") or {}
    tokens = summary.get("tokens") or {}
    return (
        each["provider"],
        _Count(each["sessions_seen"]),
        _Count(each["rows_written"]),
        _Count(each["rows_skipped"] - each.get("rows_purged", 0) - each.get("rows_ignored", 0)),
        _Count(each["rows_rejected"]),
        _Count(tokens.get("input_tokens", 0)),
        _Count(tokens.get("output_tokens", 0)),
        _Count(tokens.get("cache_read_tokens", 0) + tokens.get("cache_write_tokens", 0)),
        summary.get("first_day"),
        summary.get("last_day"),
    )


def skipped_lines(each: ProviderReport) -> Iterator[str]:
    """Yield a line for each reason why content of the sources is not in the lake."""
    if unchanged := each["files_unchanged"]:
        yield f"{format_count(unchanged, 'file')} unchanged since the last import"
    if skipped := each["lines_skipped"]:
        yield f"{format_count(sum(skipped.values()), 'line')} produced no row: {_reason_counts(skipped)}"
    if skipped := each.get("files_skipped"):
        yield f"{format_count(sum(skipped.values()), 'file')} not read: {_reason_counts(skipped)}"
    if held := each.get("held_back"):
        yield f"{format_count(held, 'message')} held back: still being written, left for the next import"


def warn_about_provider(each: ProviderReport, home: Home, dry: bool) -> None:
    name = each["provider"]
    if rejected := each["rows_rejected"]:
        kept = ", ".join(str(home.spool / dataset / "rejected") for dataset in each["datasets"])
        what = "would be rejected" if dry else f"rejected; see {kept} for the reasons"
        output.warn(f"{name}: {format_count(rejected, 'row')} {what}")
    _warn_about_failure(each)


def _warn_about_failure(each: ProviderReport) -> None:
    if error := each.get("error"):
        output.warn(f"{each['provider']} failed ({error['kind']}): {error['message']}")


def _searched_places(provider: Provider, request: ImportRequest) -> str:
    variables = request.environment
    names = dict.fromkeys((*provider.environment, "HOME"))
    settings = [f"{name}={variables[name]}" if name in variables else f"{name} is not set" for name in names]
    return f"no history found in {provider.summary} ({', '.join(settings)})"


def _reason_counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} {count:,}" for reason, count in ordered)
