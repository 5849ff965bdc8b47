"""`hyp purge`: delete rows everywhere in the home, and keep them from being imported again."""

from __future__ import annotations

import os.path
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.command import Command, json_option, yes_option
from hypaware.cli.jobs import open_progress, run_job
from hypaware.cli.session import resolve_session, unknown_option
from hypaware.errors import UsageError
from hypaware.home import Home
from hypaware.state.location import has_state

if TYPE_CHECKING:
    from hypaware.maintain.purge.selector import PurgeSelector

_WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]")
_MAX_SHOWN_FILES = 10


@click.command(
    "purge",
    cls=Command,
    examples=[
        "hyp purge --session 1b7c6d4e-0f51-4ab2-9d0c-7f0a4f1f2f33 --dry-run",
        "hyp purge --cwd ~/clients/acme",
        "hyp purge --before 2025-01-01 --yes",
        "hyp purge --source codex --allow-reimport",
    ],
)
@click.option(
    "--session",
    "sessions",
    multiple=True,
    metavar="ID",
    help="Purge this session (a unique prefix is enough); repeat for several.",
)
@click.option(
    "--source", "sources", multiple=True, metavar="S", help="Purge this source, for example codex; repeat for several."
)
@click.option(
    "--cwd",
    "folders",
    multiple=True,
    metavar="PATH",
    help="Purge work in this folder and below, and the raw exchanges of its sessions.",
)
@click.option("--before", "before", metavar="D", help="Purge rows older than D: 2026-11-15, 2026-11-15T08:00:00Z, 90d.")
@click.option("--dry-run", is_flag=True, help="Delete nothing; count the rows that would be deleted.")
@click.option(
    "--allow-reimport", is_flag=True, help="Allow imports to restore these rows, including those of earlier purges."
)
@unknown_option
@yes_option
@json_option
def purge(
    sessions: tuple[str, ...],
    sources: tuple[str, ...],
    folders: tuple[str, ...],
    before: str | None,
    dry_run: bool,
    allow_reimport: bool,
    unknown: bool,
    yes: bool,
) -> None:
    """Delete rows permanently from the lake and its snapshots, the spool, rejects and dead letters.

    Pass exactly one kind of selection. Purged rows do not come back: a purged session and the time before D are closed
    to imports and live recording; for a source or a folder, only the deleted rows are kept out. At the end, every file
    of the home is searched for rows that are left. Delivered copies are listed, not deleted. Client transcripts and
    backups are not touched.
    """
    selector = _selector(sessions, sources, folders, before)
    home = Home.from_environment()
    if sessions:
        selector = replace(
            selector, values=tuple(resolve_session(home, each, unknown, dry_run=dry_run) for each in sessions)
        )
    if not dry_run:
        _confirm(home, selector, yes, allow_reimport)
    has_data = has_state(home) or home.lake.is_dir() or home.spool.is_dir()
    if dry_run or not has_data:
        report = _count(home, selector)
        report["dry_run"] = dry_run
        if not dry_run:
            output.note(f"nothing is recorded in {home.root}; no rows were deleted and no tombstone was written")
    else:
        report = run_job("purge", {**selector.as_json(), "allow_reimport": allow_reimport})
    if not output.wants_json():
        _show(report, allow_reimport)
    _finish(report, selector)


def _selector(
    sessions: Sequence[str], sources: Sequence[str], folders: Sequence[str], before: str | None
) -> PurgeSelector:
    from hypaware.maintain.purge.selector import PurgeSelector
    from hypaware.model.columns import format_timestamp
    from hypaware.model.dates import parse_date

    now = datetime.now(UTC)
    instant = parse_date("--before", before, time.min, now)
    if instant is not None and instant > now:
        raise UsageError(f"--before {before} is in the future; it would exclude rows that are recorded later")
    selectors = (
        PurgeSelector("session", tuple(sessions)),
        PurgeSelector("source", tuple(sources)),
        PurgeSelector("cwd", tuple(_normalize_folder(each) for each in folders)),
        PurgeSelector("before", (format_timestamp(instant),) if instant is not None else ()),
    )
    given = [each for each in selectors if each.values]
    if len(given) != 1:
        raise UsageError("pass exactly one of --session, --source, --cwd and --before")
    (selector,) = given
    if selector.kind != "cwd" and not all(selector.values):
        raise UsageError(f"--{selector.kind} is empty")
    try:
        "".join(selector.values).encode()
    except UnicodeEncodeError:
        # Python turns such bytes of the command line into lone surrogates, which no row contains.
        raise UsageError(f"--{selector.kind} is not valid UTF-8") from None
    return selector


def _normalize_folder(text: str) -> str:
    """Return the absolute path without a trailing slash; the root is "". A Windows path is kept unresolved."""
    if not text:
        raise UsageError("--cwd is empty")
    if _WINDOWS_PATH.match(text):
        return text.rstrip("\\/")
    return os.path.normpath(Path(text).expanduser().absolute()).rstrip("/")


def _confirm(home: Home, selector: PurgeSelector, yes: bool, allow_reimport: bool) -> None:
    """Ask the user to confirm, with the number of rows if there is a terminal."""
    named = selector.values[:3] + (("…",) if len(selector.values) > 3 else ())
    chosen = f"--{selector.kind} " + ", ".join(value or "/" for value in named)
    what = f"Rows selected by {chosen} will be deleted permanently."
    if not yes and sys.stdin.isatty():
        report = _count(home, selector)
        rows = sum(each["rows"] for each in report["datasets"]) + report["spool"]["rows"]
        what = f"{rows:,} rows selected by {chosen} will be deleted permanently."
        if report["delivered"]:
            what += " Some were delivered; those copies are not deleted."
    if allow_reimport:
        what += " An import may restore them."
    output.confirm(what, yes)


def _count(home: Home, selector: PurgeSelector) -> dict[str, Any]:
    from hypaware.maintain.purge.run import plan_purge

    with open_progress() as bar:
        return plan_purge(
            home, selector, lambda message, done, total: bar.report(message, done, total or None), output.note
        )


def _show(report: dict[str, Any], allow_reimport: bool) -> None:
    dry = report["dry_run"]
    rows: list[tuple[object, ...]] = [
        (each["dataset"], source, count, None)
        for each in report["datasets"]
        for source, count in each["sources"].items()
    ]
    spooled, letters = report["spool"]["rows"], report["dead_letters"]
    rows += [("spool", None, spooled, "not yet flushed")] if spooled else []
    rows += [("rejects", None, report["rejects"], "rejected by a flush")] if report["rejects"] else []
    rows += [("dead letters", None, letters["rows"], f"in {letters['letters']}")] if letters["rows"] else []
    if rows:
        output.emit_table(["where", "source", "rows to delete" if dry else "rows deleted", ""], rows)
    else:
        output.emit("no matching rows")
    if rows and not dry:
        written, dropped, examined = (
            sum(each[name] for each in report["datasets"])
            for name in ("files_rewritten", "files_removed", "files_looked_at")
        )
        output.emit(f"{written} data files rewritten, {dropped} deleted, {examined} examined")
    for name in report["left_alone"]:
        output.note(f"{name} has no such column and was not searched")
    for each in report["datasets"]:
        if each["unattributed"]:
            output.note(_unattributed(each, report["selector"]["kind"]))
    for each in report["delivered"]:
        count = f"{each['rows']:,} of these rows were"
        if each["unknown"]:
            count = "an unknown number of these rows was"
        elif each["rows_under_way"]:
            count = f"{each['rows']:,} of these rows were, and {each['rows_under_way']:,} more may have been,"
        place = f"{each['destination']} ({each['sink']}, {each['source']})"
        output.warn(f"{count} delivered to {place}; delete them there")
    for problem in report["spool"].get("unreadable", ()):
        output.warn(f"{problem}; its rows were not searched, and a purge stops until it can be read")
    for name in report["spool"]["held"]:
        output.note(f"{name} is still being written by another process")
    if report["again"] and not report["remaining"]:
        output.note("an interrupted earlier purge is now complete")
    if dry:
        return
    if allow_reimport:
        lifted = report["tombstones"]["lifted"]
        output.note("to restore them: hyp backfill" + (f" ({lifted} earlier purges revoked)" if lifted else ""))
    elif report["tombstones"]["set"]:
        output.note("imports will not restore them; to allow that, run the same command with --allow-reimport")


def _unattributed(each: dict[str, Any], kind: str) -> str:
    """Describe rows that could not be attributed, and might repeat purged text."""
    from hypaware.model import datasets

    by_session = kind == "session" or "cwd" not in datasets.get(each["dataset"]).coercers
    what = "session id and do not mention a purged one" if by_session else "folder"
    return (
        f"{each['unattributed']:,} rows of {each['dataset']} have no {what}; they were kept, though they may repeat "
        "purged text. Use --source or --before to delete them, or wait for retention"
    )


def _finish(report: dict[str, Any], selector: PurgeSelector) -> None:
    remaining = report["remaining"]
    if not remaining:
        output.emit_document(report)
        return
    if not output.wants_json():
        for each in remaining[:_MAX_SHOWN_FILES]:
            output.warn(f"{each['file']}: {each['what']}")
    first = f"{remaining[0]['file']}: {remaining[0]['what']}"
    holding = [each for each in remaining if not each["what"].startswith("cannot be read")]
    if holding:
        options = " ".join(f"--{selector.kind} {shlex.quote(value)}" for value in selector.values)
        repair = ["hyp engine stop", f"hyp purge {options} --yes"]
        what = (
            f"{len(holding)} files still hold purged rows ({first}); stop the processes that use them, "
            "then run the same command again"
        )
    else:
        repair = []
        what = f"{len(remaining)} files could not be read, the others hold no purged rows ({first})"
    raise output.PartialFailure(f"purge incomplete: {what}", report, kind="purge_incomplete", repair=repair)
