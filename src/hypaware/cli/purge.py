"""`hyp purge`: really removes rows, everywhere in the home, and keeps them from coming back."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.confirm import confirm, yes_option
from hypaware.cli.group import Command, json_option
from hypaware.errors import UsageError

if TYPE_CHECKING:
    from hypaware.home import Home
    from hypaware.maintain.purge.selection import Selector

_OF_ANOTHER_SYSTEM = re.compile(r"[A-Za-z]:[\\/]")
_SHOWN = 10


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
@click.option("--session", "sessions", multiple=True, metavar="ID", help="All rows of a session; repeat for several.")
@click.option("--source", "sources", multiple=True, metavar="S", help="All rows of a source, for example codex.")
@click.option(
    "--cwd",
    "folders",
    multiple=True,
    metavar="PATH",
    help="Rows of work in a folder or below it; raw exchanges of its sessions.",
)
@click.option("--before", "before", metavar="D", help="Rows from before D: 2026-11-15, 2026-11-15T08:00:00Z, 90d.")
@click.option("--dry-run", is_flag=True, help="Count what would go; change nothing.")
@click.option("--allow-reimport", is_flag=True, help="Let an import bring the rows back, also those of earlier purges.")
@yes_option
@json_option
def purge(
    sessions: tuple[str, ...],
    sources: tuple[str, ...],
    folders: tuple[str, ...],
    before: str | None,
    dry_run: bool,
    allow_reimport: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove rows for good: from the lake with all its history, the spool, refused rows and dead letters.

    Neither an import nor a client brings them back: a purged session stays closed, so does the time before D; of a
    source or a folder it is the removed rows that stay out. In the end every file of the home is looked into. Copies
    that were delivered are listed, not removed; the transcripts of your clients and backups are not touched.
    """
    from hypaware.home import Home

    selector = _selector(sessions, sources, folders, before)
    home = Home.from_environment()
    if not dry_run:
        _ask(home, selector, yes, allow_reimport)
    if dry_run or not _exists(home):
        report = _count(home, selector)
        report["dry_run"] = dry_run
        if not dry_run:
            output.note(f"nothing was ever recorded in {home.root}, so nothing was done: also no note to keep rows out")
    else:
        from hypaware.cli.jobs import run_job

        report = run_job("purge", {**selector.as_json(), "allow_reimport": allow_reimport})
    if not as_json:
        _show(report, allow_reimport)
    _answer(report, selector, as_json)


def _selector(sessions: Sequence[str], sources: Sequence[str], folders: Sequence[str], before: str | None) -> Selector:
    from hypaware.maintain.purge.selection import Selector

    given = [
        made
        for made in (
            Selector("session", tuple(sessions)),
            Selector("source", tuple(sources)),
            Selector("cwd", tuple(_folder(each) for each in folders)),
            Selector("before", (_moment(before),) if before is not None else ()),
        )
        if made.values
    ]
    if len(given) != 1:
        raise UsageError("say what to purge by exactly one of --session, --source, --cwd and --before")
    if given[0].kind != "cwd" and not all(given[0].values):
        raise UsageError(f"--{given[0].kind} is empty")
    try:
        "".join(given[0].values).encode()
    except UnicodeEncodeError:
        # Such bytes of the command line arrive as lone surrogates, which no row holds.
        raise UsageError(f"--{given[0].kind} is not valid UTF-8") from None
    return given[0]


def _folder(text: str) -> str:
    """Without a slash at the end; the root is the empty text. A path of another system is taken as it is."""
    if not text:
        raise UsageError("--cwd is empty")
    if _OF_ANOTHER_SYSTEM.match(text):
        return text.rstrip("\\/")
    import os.path

    return os.path.normpath(Path(text).expanduser().absolute()).rstrip("/")


def _moment(text: str) -> str:
    from datetime import UTC, datetime, time

    from hypaware.backfill.window import moment
    from hypaware.model.columns import timestamp_text

    now = datetime.now(UTC)
    found = moment("--before", text, time.min, now)
    assert found is not None
    if found > now:
        raise UsageError(f"--before {text} lies in the future: rows that are yet to come would be kept out")
    return timestamp_text(found)


def _exists(home: Home) -> bool:
    return home.state.is_file() or home.lake.is_dir() or home.spool.is_dir()


def _ask(home: Home, selector: Selector, yes: bool, allow_reimport: bool) -> None:
    """With the numbers, where there is somebody to read them."""
    what = f"Rows with {_words(selector)} will be removed for good."
    if not yes and sys.stdin.isatty():
        report = _count(home, selector)
        rows = sum(each["rows"] for each in report["datasets"]) + report["spool"]["rows"]
        what = f"{rows:,} rows with {_words(selector)} will be removed for good."
        if report["delivered"]:
            what += " Some were delivered; those copies stay."
    if allow_reimport:
        what += " An import may bring them back."
    confirm(what, yes)


def _count(home: Home, selector: Selector) -> dict[str, Any]:
    from hypaware.cli.progress import display
    from hypaware.maintain.purge.dry import count

    shown = display()
    try:
        return count(home, selector, lambda message, done, total: shown.report(message, done, total or None))
    finally:
        shown.clear()


def _words(selector: Selector) -> str:
    named = selector.values[:3] + (("…",) if len(selector.values) > 3 else ())
    return f"--{selector.kind} " + ", ".join(value or "/" for value in named)


def _show(report: dict[str, Any], allow_reimport: bool) -> None:
    dry = report["dry_run"]
    rows: list[tuple[object, ...]] = [
        (each["dataset"], source, count, None)
        for each in report["datasets"]
        for source, count in each["sources"].items()
    ]
    waiting, letters = report["spool"]["rows"], report["dead_letters"]
    rows += [("spool", None, waiting, "waited for a flush")] if waiting else []
    rows += [("refused rows", None, report["rejects"], "kept with their reason")] if report["rejects"] else []
    rows += [("dead letters", None, letters["rows"], f"in {letters['letters']}")] if letters["rows"] else []
    if rows:
        output.emit_table(["where", "source", "rows that would go" if dry else "rows removed", ""], rows)
    else:
        output.emit("there are no such rows")
    written = sum(each["files_rewritten"] for each in report["datasets"])
    dropped = sum(each["files_removed"] for each in report["datasets"])
    if rows and not dry:
        output.emit(f"{written} data files written again, {dropped} removed, of {_looked_at(report)} looked at")
    for name in report["left_alone"]:
        output.note(f"{name} has no such column, it was left alone")
    for each in report["datasets"]:
        if each["unsaid"]:
            output.note(_unsaid(each, report["selector"]["kind"]))
    for each in report["delivered"]:
        output.warn(_delivered(each))
    for name in report["spool"]["held"]:
        output.note(f"{name} is still being written by a process that does not seal it")
    if report["again"] and not report["remaining"]:
        output.note("a purge that was cut off before is finished now")
    if not dry:
        _tell_of_return(report, allow_reimport)


def _tell_of_return(report: dict[str, Any], allow_reimport: bool) -> None:
    if allow_reimport:
        lifted = report["tombstones"]["lifted"]
        output.note("they may come back: hyp backfill" + (f" ({lifted} earlier purges lifted)" if lifted else ""))
    elif report["tombstones"]["set"]:
        output.note("they do not come back; to allow that: the same command with --allow-reimport")


def _looked_at(report: dict[str, Any]) -> int:
    return sum(int(each["files_looked_at"]) for each in report["datasets"])


def _unsaid(each: dict[str, Any], kind: str) -> str:
    """They are no rows of what was purged as far as anybody can tell, and may still repeat its words."""
    from hypaware.model import datasets

    by_session = kind == "session" or "cwd" not in datasets.get(each["dataset"]).coercers
    what = "session, and name none that is meant" if by_session else "folder"
    return (
        f"rows of {each['dataset']} that say no {what}: {each['unsaid']:,}; nobody can tell whether they repeat its "
        "words, so they stay. --source and --before reach them, and so does retention"
    )


def _delivered(each: dict[str, Any]) -> str:
    rows = f"{each['rows']:,} of them are"
    if each["unknown"]:
        rows = "nobody knows how many of them are"
    elif each["rows_under_way"]:
        rows = f"{each['rows']:,} of them are, and {each['rows_under_way']:,} more may be,"
    return f"{rows} at {each['destination']} ({each['sink']}, {each['source']}); remove them there"


def _answer(report: dict[str, Any], selector: Selector, as_json: bool) -> None:
    from hypaware.cli.failure import PartlyFailed

    remaining = report["remaining"]
    if not remaining:
        if as_json:
            output.emit_json(report)
        return
    if not as_json:
        for each in remaining[:_SHOWN]:
            output.warn(f"{each['file']}: {each['what']}")
    command = " ".join(f"--{selector.kind} {shlex.quote(value)}" for value in selector.values)
    first = f"{remaining[0]['file']}: {remaining[0]['what']}"
    holding = [each for each in remaining if not each["what"].startswith("cannot be read")]
    if not holding:
        raise PartlyFailed(
            f"what could be read holds none of it; of {len(remaining)} in the home nobody can tell: {first}",
            report,
            kind="purge_incomplete",
        )
    raise PartlyFailed(
        f"{len(holding)} in the home still hold some of it ({first}); end what uses them, then run the same again",
        report,
        kind="purge_incomplete",
        repair=["hyp engine stop", f"hyp purge {command} --yes"],
    )
