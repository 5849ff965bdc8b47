"""`hyp import-cache`: takes over a cache that the JavaScript original wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.group import Command, json_option
from hypaware.cli.jobs import run_job
from hypaware.cli.progress import display

if TYPE_CHECKING:
    from pathlib import Path

    from hypaware.config import Config
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
@click.option("--dry-run", is_flag=True, help="Write nothing; report what would be taken over.")
@click.option(
    "--sink", "sinks", multiple=True, metavar="THEIRS=OURS", help="The original's sink THEIRS is called OURS here."
)
@click.option(
    "--same-destination", "same", multiple=True, metavar="SINK", help="SINK delivers to where the original did."
)
@click.option(
    "--other-destination", "other", multiple=True, metavar="SINK", help="It does not: it gets all rows, old ones too."
)
@click.option(
    "--state-dir",
    "state_dirs",
    multiple=True,
    metavar="FOLDER",
    help="Where the original's watermarks lie, if not with the cache.",
)
@click.option("--skip-unreadable", is_flag=True, help="Leave out what cannot be read, and say so, instead of stopping.")
@json_option
def import_cache(
    folder: str,
    dry_run: bool,
    sinks: tuple[str, ...],
    same: tuple[str, ...],
    other: tuple[str, ...],
    state_dirs: tuple[str, ...],
    skip_unreadable: bool,
    as_json: bool,
) -> None:
    """Take over the cache of a JavaScript HypAware, which lies in DIR: every row once, and how far it was delivered.

    DIR is only read. It is the folder that holds `datasets`, often ~/.hyp/hypaware/cache, or the installation's own.
    Stop the original first. Run it again at any time: what is there already is not taken twice.
    """
    from hypaware import config as configuration
    from hypaware.home import Home
    from hypaware.takeover import cache

    home = Home.from_environment()
    # Whether it is one is known without an engine.
    cache.find(_absolute(folder))
    args = {
        "dir": str(_absolute(folder)),
        "sinks": dict(map(_pair, sinks)),
        "same": list(same),
        "other": list(other),
        "state_dirs": [str(_absolute(each)) for each in state_dirs],
        "skip_unreadable": skip_unreadable,
    }
    config = configuration.load(home)
    report = _run_dry(home, config, args) if dry_run else run_job("import-cache", args)
    if as_json:
        output.emit_json(report)
    else:
        _show(report, home)


def _run_dry(home: Home, config: Config, args: dict[str, Any]) -> dict[str, Any]:
    from hypaware.takeover.dry import dry_run

    shown = display()
    try:
        return dry_run(
            home, config, args, lambda message, done, total, facts: shown.report(message, done, total, **facts)
        )
    finally:
        shown.clear()


def _show(report: dict[str, Any], home: Home) -> None:
    rows = [
        (
            each["dataset"],
            source["source"],
            source["rows_found"],
            source["rows_written"],
            source["rows_duplicate"],
            source["rows_rejected"],
            source["without_sequence"],
            source["pending_spool"],
        )
        for each in report["datasets"]
        for source in each["sources"]
    ]
    written = "would write" if report["dry_run"] else "written"
    if rows:
        heads = ["dataset", "source", "found", written, "duplicate", "rejected", "no sequence", "from spool"]
        output.emit_table(heads, rows)
    else:
        output.emit("no rows in it")
    if report["watermarks"]:
        output.emit()
        output.emit_table(
            ["original's sink", "source", "delivered up to", "sink here", "goes on after", "why"],
            [
                (each["sink"], each["source"] or each["partition"], each["old"], each["to"], each["new"], each["why"])
                for each in report["watermarks"]
            ],
        )
    for each in report["datasets"]:
        _tell(each, home, report["dry_run"])
    for left in report["not_taken"]:
        count = f" ({left['rows']} rows)" if left.get("rows") is not None else ""
        output.warn(f"not taken: {left['what']}{count}: {left['why']}")


def _tell(taken: dict[str, Any], home: Home, dry_run: bool) -> None:
    name = taken["dataset"]
    if before := taken["rows_taken_before"]:
        output.note(f"{name}: {before} of them lie in files that were taken over before, and were not read again")
    refused = sum(source["rows_rejected"] for source in taken["sources"]) + taken["not_rows"]
    if refused and dry_run:
        output.warn(f"{name}: {refused} rows would be refused, and kept with the reason")
    elif refused:
        output.warn(
            f"{name}: {refused} were refused; they are kept with the reason in {home.spool / name / 'rejected'}"
        )
    for what, words in (("rows_too_old", "older than what retention keeps"), ("rows_purged", "purged here before")):
        if count := sum(source[what] for source in taken["sources"]):
            output.note(f"{name}: {count} rows were left out: {words}")
    if taken["torn_bytes"]:
        output.warn(f"{name}: a spool ends in {taken['torn_bytes']} bytes of a line that was never finished")
    if taken["columns_set_aside"]:
        names = ", ".join(f"{column} ({rows})" for column, rows in taken["columns_set_aside"].items())
        output.note(f"{name}: kept in attributes.taken_over, for want of a column (rows): {names}")


def _pair(text: str) -> tuple[str, str]:
    from hypaware.errors import UsageError

    theirs, sign, ours = text.partition("=")
    if not (theirs and sign and ours):
        raise UsageError(f"--sink {text}: write it as THEIRS=OURS")
    return theirs, ours


def _absolute(folder: str) -> Path:
    from pathlib import Path

    return Path(folder).expanduser().absolute()
