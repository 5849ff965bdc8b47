"""`hyp import-cache`: import the cache of the original JavaScript HypAware."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hypaware.cli import output
from hypaware.cli.command import Command, json_option
from hypaware.cli.jobs import open_progress, run_job
from hypaware.config import load as load_config
from hypaware.errors import UsageError
from hypaware.home import Home


@click.command(
    "import-cache",
    cls=Command,
    examples=[
        "hyp import-cache ~/.hyp-old/hypaware/cache --dry-run",
        "hyp import-cache ~/.hyp-old/hypaware/cache",
        "hyp import-cache ~/.hyp-old --sink central=team --same-destination team",
    ],
)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=str))
@click.option("--dry-run", is_flag=True, help="Write nothing; report what would be imported.")
@click.option(
    "--sink",
    "sinks",
    multiple=True,
    metavar="THEIRS=OURS",
    help="Map the original's sink THEIRS to the sink OURS of this config.",
)
@click.option(
    "--same-destination",
    "same",
    multiple=True,
    metavar="SINK",
    help="Continue after the original's watermark: SINK has the same destination.",
)
@click.option(
    "--other-destination",
    "other",
    multiple=True,
    metavar="SINK",
    help="Deliver all rows, including old ones: SINK has another destination.",
)
@click.option(
    "--state-dir",
    "state_dirs",
    multiple=True,
    metavar="FOLDER",
    help="Read the original's watermarks from this folder, if they are not next to the cache.",
)
@click.option("--skip-unreadable", is_flag=True, help="Skip and report unreadable files instead of stopping.")
@json_option
def import_cache(
    folder: str,
    dry_run: bool,
    sinks: tuple[str, ...],
    same: tuple[str, ...],
    other: tuple[str, ...],
    state_dirs: tuple[str, ...],
    skip_unreadable: bool,
) -> None:
    """Import the cache of a JavaScript HypAware from DIR: every row once, and the delivery watermarks.

    DIR is the folder that contains `datasets`, usually ~/.hyp/hypaware/cache, or the folder of the installation. It is
    only read. Stop the original first. You can run this again at any time: no row is imported twice.
    """
    from hypaware.takeover import cache

    home = Home.from_environment()
    # Check that DIR is a cache before an engine starts.
    cache.find_cache(_absolute(folder))
    mapped = [each.partition("=") for each in sinks]
    for theirs, sign, ours in mapped:
        if not (theirs and sign and ours):
            raise UsageError(f"--sink {theirs}{sign}{ours}: expected THEIRS=OURS")
    args = {
        "dir": str(_absolute(folder)),
        "sinks": {theirs: ours for theirs, _, ours in mapped},
        "same": list(same),
        "other": list(other),
        "state_dirs": [str(_absolute(each)) for each in state_dirs],
        "skip_unreadable": skip_unreadable,
    }
    config = load_config(home)
    if dry_run:
        from hypaware.takeover.plan import dry_run_takeover

        with open_progress() as bar:
            report = dry_run_takeover(
                home, config, args, lambda message, done, total, facts: bar.report(message, done, total, **facts)
            )
    else:
        report = run_job("import-cache", args)
    if not output.emit_document(report):
        _show(report, home)


def _show(report: dict[str, Any], home: Home) -> None:
    counts = ("rows_found", "rows_written", "rows_duplicate", "rows_rejected", "without_sequence", "pending_spool")
    rows = [
        (each["dataset"], source["source"], *(source[name] for name in counts))
        for each in report["datasets"]
        for source in each["sources"]
    ]
    written = "would write" if report["dry_run"] else "written"
    if rows:
        heads = ["dataset", "source", "found", written, "duplicate", "rejected", "no sequence", "from spool"]
        output.emit_table(heads, rows)
    else:
        output.emit("the cache has no rows")
    if report["watermarks"]:
        output.emit()
        output.emit_table(
            ["original's sink", "source", "delivered up to", "sink", "continues after", "reason"],
            [
                (each["sink"], each["source"] or each["partition"], each["old"], each["to"], each["new"], each["why"])
                for each in report["watermarks"]
            ],
        )
    for each in report["datasets"]:
        _show_notes(each, home, report["dry_run"])
    for skipped in report["not_taken"]:
        count = f" ({skipped['rows']} rows)" if skipped.get("rows") is not None else ""
        output.warn(f"not imported: {skipped['what']}{count}: {skipped['why']}")


def _show_notes(imported: dict[str, Any], home: Home, dry_run: bool) -> None:
    name = imported["dataset"]
    if before := imported["rows_taken_before"]:
        output.note(f"{name}: {before} rows are in files that were imported before; they were not read again")
    rejected = sum(source["rows_rejected"] for source in imported["sources"]) + imported["not_rows"]
    if rejected and dry_run:
        output.warn(f"{name}: {rejected} rows would be rejected")
    elif rejected:
        output.warn(f"{name}: {rejected} rows were rejected; see the reasons in {home.spool / name / 'rejected'}")
    for what, words in (("rows_too_old", "older than the retention"), ("rows_purged", "previously purged")):
        if count := sum(source[what] for source in imported["sources"]):
            output.note(f"{name}: {count} rows were skipped: {words}")
    if imported["torn_bytes"]:
        output.warn(f"{name}: a spool file ends with an incomplete line of {imported['torn_bytes']} bytes")
    if imported["columns_set_aside"]:
        names = ", ".join(f"{column} ({rows})" for column, rows in imported["columns_set_aside"].items())
        output.note(f"{name}: stored in attributes.taken_over because there is no such column (rows): {names}")


def _absolute(folder: str) -> Path:
    return Path(folder).expanduser().absolute()
