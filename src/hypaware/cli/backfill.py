"""`hyp backfill` and `hyp reproject`: import the session history of clients, and decode raw exchanges again."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.command import Command, RunnableGroup, json_option
from hypaware.cli.jobs import open_progress, run_job
from hypaware.config import load as load_config
from hypaware.home import Home
from hypaware.state.location import has_state
from hypaware.text import format_count, format_size

if TYPE_CHECKING:
    from hypaware.backfill.providers import ProviderRegistry
    from hypaware.backfill.request import ImportRequest

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
    providers: tuple[str, ...], since: str | None, until: str | None, retention_days: int | None, dry_run: bool
) -> None:
    """Import the session history of your clients on this machine.

    Without PROVIDER, import from every enabled client. You can run it again at any time: nothing is imported twice, and
    unchanged files are not even opened.
    """
    from hypaware.backfill.providers import load_providers
    from hypaware.backfill.report import find_failure
    from hypaware.backfill.request import parse_request
    from hypaware.state.home_opener import read_identity

    home = Home.from_environment()
    config = load_config(home)
    known = load_providers()
    _warn_about_broken_plugins(known)
    request = parse_request(
        home,
        config,
        known,
        names=providers,
        since=since,
        until=until,
        retention_days=retention_days,
        now=datetime.now(UTC),
        variables=_variables(),
    )
    args = request.args
    if reason := request.selection.why_none:
        output.note(f"nothing to import: {reason}")
        output.emit_document({"run_id": args["run_id"], "dry_run": dry_run, "providers": [], "reason": reason})
        return
    if dry_run:
        from hypaware.backfill.dry_run import run_dry

        # Count in this process: starting an engine would create a home that does not exist yet.
        with open_progress() as bar:
            report = run_dry(
                home, config, args, lambda message, done, total, facts: bar.report(message, done, total, **facts)
            )
    else:
        read_identity(home)
        report = run_job("backfill", args)
    if not output.wants_json():
        show_import(report, request, home)
    if error := find_failure(report, args["providers"]):
        raise output.PartialFailure(error.message, report, kind=error.kind, repair=error.repair)
    output.emit_document(report)


@backfill.command("list", examples=["hyp backfill list", "hyp backfill list --json"])
@json_option
def list_() -> None:
    """List the clients whose history can be imported."""
    from hypaware.backfill import providers
    from hypaware.backfill.request import is_enabled

    config = load_config(Home.from_environment())
    found = providers.load_providers()
    _warn_about_broken_plugins(found)
    registered = [(each.provider, each.plugin) for each in found]
    document = [
        {"name": each.name, "plugin": plugin, "datasets": list(each.datasets), "summary": each.summary}
        for each, plugin in registered
    ]
    if output.emit_document({"providers": document}):
        return
    rows = [
        (each.name, is_enabled(config, each.name), each.summary, ", ".join(each.datasets), plugin)
        for each, plugin in registered
    ]
    output.emit_table(["provider", "enabled", "history", "datasets", "plugin"], rows)


@backfill.command("plan", examples=["hyp backfill plan", "hyp backfill plan claude --retention-days 30 --json"])
@_providers_argument
@_retention_option
@json_option
def plan(providers: tuple[str, ...], retention_days: int | None) -> None:
    """Estimate how much an import would read."""
    from hypaware.backfill.providers import load_providers
    from hypaware.backfill.report import find_failure, make_plan
    from hypaware.backfill.request import parse_request

    home = Home.from_environment()
    config = load_config(home)
    known = load_providers()
    _warn_about_broken_plugins(known)
    request = parse_request(
        home,
        config,
        known,
        names=providers,
        retention_days=retention_days,
        now=datetime.now(UTC),
        variables=_variables(),
    )
    args = request.args
    if reason := request.selection.why_none:
        output.note(f"nothing to import: {reason}")
        output.emit_document({"run_id": args["run_id"], "providers": [], "reason": reason})
        return
    found = make_plan(home, config, args)
    if not output.wants_json():
        plans = {each["provider"]: each["plan"] for each in found["providers"] if each["plan"] is not None}
        rows = [
            (name, _Count(each["estimated_items"]), format_size(each["estimated_bytes"]))
            for name, each in plans.items()
        ]
        output.emit_table(["client", "to read", "size"], rows)
        for name, each in plans.items():
            for line in (*each["sources"], *each["notes"]):
                output.emit(f"{name}: {line}")
        for each in found["providers"]:
            _warn_about_failure(each)
    if error := find_failure(found, args["providers"]):
        raise output.PartialFailure(error.message, found, kind=error.kind, repair=error.repair)
    output.emit_document(found)


@click.command(
    "reproject",
    cls=Command,
    examples=["hyp reproject", "hyp reproject --since 7d --dry-run", "hyp reproject --since 2026-11-01 --json"],
)
@click.option(
    "--since",
    metavar="DATE",
    help="Decode only exchanges that started at or after it: 2026-11-15, 2026-11-15T08:00Z, 7d.",
)
@click.option(
    "--until", metavar="DATE", help="Decode only exchanges that started at or before it; a date includes the whole day."
)
@click.option("--dry-run", is_flag=True, help="Write nothing; count the rows that would be added.")
@json_option
def reproject(since: str | None, until: str | None, dry_run: bool) -> None:
    """Decode the recorded raw exchanges with the current version, and add the rows that older versions missed.

    It is safe to run at any time: existing messages are neither changed nor added again. Raw exchanges are kept for
    retention.datasets.ai_gateway_exchanges days. Ignored sessions and purged rows stay excluded.
    """
    from hypaware.backfill.request import resolve_window

    window = resolve_window(since, until, 0, 0, datetime.now(UTC))
    home = Home.from_environment()
    if dry_run or not has_state(home):
        from hypaware.reproject import preview_reprojection

        with open_progress() as bar:
            report = {**preview_reprojection(home, load_config(home), window, bar.report), "dry_run": dry_run}
    else:
        report = run_job("reproject", {"since": window.since, "until": window.until})
    if output.emit_document(report):
        return
    if not report["exchanges"] and not report["skipped"]:
        output.emit("no raw exchanges in that time")
        return
    written = "would be added" if report["dry_run"] else "added"
    output.emit(
        f"{report['exchanges']:,} exchanges of {report['sessions']:,} sessions give {report['rows_projected']:,} rows: "
        f"{report['rows_written']:,} {written}, {report['rows_duplicate']:,} already stored"
    )
    if report["rows_purged"]:
        output.note(f"{report['rows_purged']:,} previously purged rows were left out")
    if report["rows_rejected"]:
        output.warn(f"{report['rows_rejected']:,} rows do not fit the columns; the raw exchanges keep their content")
    if report["skipped"]:
        output.emit_table(["skipped because", "count"], sorted(report["skipped"].items()))


def _variables() -> dict[str, str]:
    """Return the environment variables for providers, always with HOME."""
    return {**os.environ, "HOME": str(Path.home())}


def _warn_about_broken_plugins(found: ProviderRegistry) -> None:
    for plugin in found.broken:
        output.warn(f"cannot load the client {plugin.name} from {plugin.distribution}: {plugin.error}")


ProviderReport = Mapping[str, Any]
"""One provider in the report of an import."""


class _Count(int):
    """A number that is printed with thousands separators."""

    def __str__(self) -> str:
        return f"{int(self):,}"


def show_import(report: Mapping[str, Any], request: ImportRequest, home: Home) -> None:
    dry, results = bool(report["dry_run"]), report["providers"]
    rows = []
    for each in results:
        summary = each.get("summary") or {}
        tokens = Counter(summary.get("tokens") or {})
        stored = each["rows_skipped"] - each.get("rows_purged", 0) - each.get("rows_ignored", 0)
        counts = (each["sessions_seen"], each["rows_written"], stored, each["rows_rejected"])
        cached = tokens["cache_read_tokens"] + tokens["cache_write_tokens"]
        numbers = map(_Count, (*counts, tokens["input_tokens"], tokens["output_tokens"], cached))
        rows.append((each["provider"], *numbers, summary.get("first_day"), summary.get("last_day")))
    heads = ["client", "sessions", "would write" if dry else "written", "already stored", "rejected"]
    output.emit_table([*heads, "tokens in", "out", "cached", "from", "to"], rows)
    providers = {each.name: each.provider for each in request.selection.chosen}
    for each in results:
        for line in skipped_lines(each):
            output.emit(f"{each['provider']}: {line}")
        found = each.get("files") or each["files_unchanged"] or each["items_seen"] or each.get("files_skipped")
        if each["status"] == "ok" and not found:
            provider, variables = providers[each["provider"]], request.environment
            names = dict.fromkeys((*provider.environment, "HOME"))
            settings = [f"{name}={variables[name]}" if name in variables else f"{name} is not set" for name in names]
            output.emit(f"{each['provider']}: no history found in {provider.summary} ({', '.join(settings)})")
    for each in results:
        warn_about_provider(each, home, dry)
    if any(each["rows_written"] for each in results):
        output.note("next: hyp backfill" if dry else "next: hyp overview")


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
    if places := each.get("unsupported_locations"):
        yield f"history in places that cannot be imported: {', '.join(places)}"


def warn_about_provider(each: ProviderReport, home: Home, dry: bool) -> None:
    name = each["provider"]
    if rejected := each["rows_rejected"]:
        kept = ", ".join(str(home.spool / dataset / "rejected") for dataset in each["datasets"])
        what = "would be rejected" if dry else f"rejected; see {kept} for the reasons"
        output.warn(f"{name}: {format_count(rejected, 'row')} {what}")
    for warning in each.get("warnings", ()):
        output.warn(f"{name}: {warning}")
    _warn_about_failure(each)


def _warn_about_failure(each: ProviderReport) -> None:
    if error := each.get("error"):
        output.warn(f"{each['provider']} failed ({error['kind']}): {error['message']}")


def _reason_counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} {count:,}" for reason, count in ordered)
