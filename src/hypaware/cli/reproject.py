"""`hyp reproject`: decode the recorded raw exchanges again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.command import Command, json_option
from hypaware.cli.jobs import open_progress, run_job
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.clients.reader import TimeWindow


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
def reproject(since: str | None, until: str | None, dry_run: bool, as_json: bool) -> None:
    """Decode the recorded raw exchanges with the current version, and add the rows that older versions missed.

    It is safe to run at any time: existing messages are neither changed nor added again. Raw exchanges are kept for
    retention.datasets.ai_gateway_exchanges days. Ignored sessions and purged rows stay excluded.
    """
    from hypaware.backfill.request import resolve_window

    window = resolve_window(since, until, 0, 0, datetime.now(UTC))
    home = Home.from_environment()
    if dry_run or not home.state.is_file():
        report = {**_count(home, window), "dry_run": dry_run}
    else:
        report = run_job("reproject", {"since": window.since, "until": window.until})
    if as_json:
        output.emit_json(report)
    else:
        _show(report)


def _count(home: Home, window: TimeWindow) -> dict[str, Any]:
    from hypaware import config
    from hypaware.reproject.run import preview_reprojection

    with open_progress() as bar:
        return preview_reprojection(
            home, config.load(home), window, lambda message, done, total: bar.report(message, done, total)
        )


def _show(report: dict[str, Any]) -> None:
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
